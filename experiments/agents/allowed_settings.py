"""What an agent's settings may name: keys and values of the configuration, and files below one folder.

An agent's words may come from anywhere, such as a page that it read. So they are arguments `key=value` and nothing else
that the command line takes, name no code, no address, and no file outside the folder that the server was started with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.models.imported_model import is_import_path
from fedscout.experiments.studies.sweeps.grid_configurations import flattened

SETTING = re.compile(r"[a-z][A-Za-z0-9_.]*=")
NAMED_ELSEWHERE = "hf:"
"""A data set of the Hugging Face hub, which is no path."""


def allowed_config(settings: Sequence[str], root: Path, own_code: bool = False) -> StudyConfig:
    """Return the configuration of an agent's settings.

    Args:
        settings: Each `key=value`.
        root: The folder below which files may lie.
        own_code: Whether import paths are followed.

    Raises:
        ConfigurationError: With every fault.
    """
    strange = [setting for setting in settings if not SETTING.match(setting)]
    if strange:
        raise ConfigurationError([Fault("a setting", "be key=value", repr(setting)) for setting in strange])
    config = load_config(settings)
    faults = [*_faults(config, root, own_code)]
    if faults:
        raise ConfigurationError(faults)
    return config


def folder_below(root: Path, name: str) -> Path:
    """Return a folder of that name below the root.

    Raises:
        ConfigurationError: If it lies elsewhere.
    """
    if name.isprintable() and not name.startswith("-") and _lies_below(root, name):
        folder = (root / name).resolve()
        if folder != root.resolve():
            return folder
    raise ConfigurationError(Fault("a folder", "lie below the one that the server was started with", repr(name)))


def _faults(config: StudyConfig, root: Path, own_code: bool) -> Iterator[str]:
    for key, value in _texts(flattened(config.model_dump(mode="json"))):
        if key in ("engine.address", "recommender.base_url"):
            yield Fault(key, "be left out, as an agent may name no server", repr(value))
        elif value.startswith(NAMED_ELSEWHERE):
            continue
        elif "://" in value:
            yield Fault(key, "be no address, as an agent may name none", repr(value))
        elif is_import_path(value):
            if not own_code:
                yield f"{key} names code, which an agent may only do with `fedscout mcp --own-code`, got {value!r}"
        elif not _lies_below(root, value):
            yield Fault(key, "lie below the folder that the server was started with", repr(value))


def _texts(leaves: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for key, value in leaves.items():
        if isinstance(value, str):
            yield key, value
        elif isinstance(value, list):
            for item in value:
                yield from _texts(flattened(item, f"{key}.") if isinstance(item, Mapping) else {key: item})


def _lies_below(root: Path, value: str) -> bool:
    """Whether a value is no path out of the folder; every word may be one, as a link has any name."""
    try:
        return (root / value).resolve().is_relative_to(root.resolve())
    except (RuntimeError, ValueError):  # links in a circle; a character that no path has
        return False
