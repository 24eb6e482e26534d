"""Shell commands suggested to the user as next steps."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python

from fedscout.experiments.config import YAML_SUFFIXES
from fedscout.strategies import parse_strategy

NOT_TRAINING_KEYS = ("search.", "recommender.", "strategy")
"""Prefixes of a study's arguments that a training of its winner omits."""

RANGES = "ranges"
"""The parameter of a user's own strategy that only a search uses."""

OF_ITS_MEASURE = ("search.view=", "search.objective=", "search.target=")


def command_line(words: Sequence[str], width: int = 72) -> str:
    r"""Return words as a shell command; long commands are continued on the next line after a `\`."""
    lines = [""]
    for word in map(shlex.quote, words):
        if lines[-1] and len(lines[-1]) + len(word) + 3 > width:
            lines[-1] += " \\"
            lines.append(f"  {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def study_command(name: str, settings: Iterable[str], file: Path | None, out: Path | None, *flags: str) -> list[str]:
    """Return the words of a command with these arguments."""
    return [
        "fedscout",
        name,
        *([] if file is None else ["-c", str(file)]),
        *settings,
        *([] if out is None else ["--out", str(out)]),
        *flags,
    ]


def training_command(settings: Iterable[str], file: Path | None, strategy: Mapping[str, Any]) -> list[str]:
    """Return the words of the command that trains a study's winner.

    Args:
        settings: Arguments of the study.
        file: Configuration file of the study, or None.
        strategy: Kind and parameters of the winner.
    """
    strategy_values = {**strategy, "kind": "custom"} if ":" in strategy["kind"] else strategy
    fields = type(parse_strategy(strategy_values)).model_fields
    strategy_settings = [
        f"strategy.{name}={_yaml(value)}"
        for name, value in strategy_values.items()
        if name == "kind" or (name != RANGES and (name not in fields or value != _default(fields[name])))
    ]
    return study_command("train", [*filter(_is_of_a_training, settings), *strategy_settings], file, None)


def _default(field: FieldInfo) -> Any:
    return None if field.is_required() else to_jsonable_python(field.get_default(call_default_factory=True))


def _is_of_a_training(setting: str) -> bool:
    if "=" not in setting and setting.endswith(YAML_SUFFIXES):
        return True
    return not setting.startswith(NOT_TRAINING_KEYS) or setting.startswith(OF_ITS_MEASURE)


def _yaml(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
