"""Everything that can be configured, key by key, and what a wrong key may have meant."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from fedscout.engine.errors import Fault
from fedscout.engine.fault_text import fault_of
from fedscout.experiments.config.study_config import StudyConfig


@dataclass(frozen=True)
class Key:
    """One key of the configuration, by its dotted name."""

    name: str
    default: Any
    description: str


def known_keys(model: type[BaseModel] = StudyConfig, prefix: str = "") -> dict[str, Key]:
    """Return every key by its dotted name, in the order of the models."""
    keys: dict[str, Key] = {}
    for name, field in model.model_fields.items():
        annotation = field.annotation
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            keys.update(known_keys(annotation, f"{prefix}{name}."))
        else:
            default = field.get_default(call_default_factory=True)
            keys[prefix + name] = Key(prefix + name, default, field.description or "")
    return keys


def fault_text(detail: ErrorDetails) -> Fault:
    """Return one fault as key, condition and value."""
    key = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        return Fault(f"{key} is not a known key{_suggestion(key)}")
    if detail["type"] == "invalid_key":
        return Fault(f"{key.removesuffix('.[key]')} is not a known key; a key must be text")
    is_unquoted = detail["type"] == "string_type" and isinstance(detail["input"], bool | int | float)
    hint = '; quotes make a text of what YAML takes for a number or truth value, such as "1" or "yes"'
    return fault_of(key, detail, hint if is_unquoted else "")


def _suggestion(key: str) -> str:
    """Return what may have been meant: a key of the same group, or else of another, or all that the group holds."""
    keys = known_keys()
    group, _, leaf = key.rpartition(".")
    inside = [name for name in keys if not group or name.startswith(f"{group}.")]
    members = list(dict.fromkeys(".".join(name.split(".")[: key.count(".") + 1]) for name in inside))
    if near := _close(leaf, members) or _close(leaf, list(keys)):
        return f"; did you mean {' or '.join(near)}?"
    return f"; allowed are {', '.join(members)}"


def _close(leaf: str, names: Sequence[str]) -> list[str]:
    """Return the names whose last part is, or else looks like, `leaf`."""
    lasts = list(dict.fromkeys(name.rpartition(".")[2] for name in names))
    near = [leaf] if leaf in lasts else difflib.get_close_matches(leaf, lasts, n=3, cutoff=0.6)
    return [name for last in near for name in names if name.rpartition(".")[2] == last]
