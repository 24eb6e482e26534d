"""How to run a study again: the command, made from its configuration and checked to give the same one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from fedscout.engine.errors import UserError
from fedscout.experiments.reports.page.study_files import StudyFiles


def command_of(study: StudyFiles) -> str | None:
    """Return a command that runs the same study; None if this version can't tell one that has the same digest."""
    from fedscout.experiments.config.config_file import load_config
    from fedscout.experiments.config.study_config import StudyConfig

    try:
        settings = list(_settings(study.config, StudyConfig().identity()))
        config = load_config([f"{key}={text}" for key, text in settings], None)
    except (UserError, TypeError, ValueError):
        return None
    phases = set(study.trials["phase"])
    digests = {"run": config.digest(), "search": config.without_diagnosis().digest()}
    names = ["search", "run"] if study.report is None else ["run", "search"]
    command = next((name for name in names if digests[name] == study.claim["config_hash"]), None)
    if command is None:
        return None
    if phases == {"train"}:
        command = "train"
    return " ".join(["fedscout", command, *(shlex.quote(f"{key}={text}") for key, text in settings)])


def _settings(config: Mapping[str, Any], usual: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield key and value of whatever is not as usual."""
    for name, value in config.items():
        key, default = f"{prefix}{name}", usual.get(name)
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            yield from _settings(value, default, f"{key}.")
        elif value != default:
            yield key, _text(value)


def _text(value: Any) -> str:
    """Return a value as an argument gives it, which is YAML: words as they are where they mean themselves."""
    import yaml

    if isinstance(value, str):
        with suppress(yaml.YAMLError):
            if value and yaml.safe_load(value) == value:
                return value
    return json.dumps(value)
