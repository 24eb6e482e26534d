"""The grid configurations of a sweep: every combination of the values of its axes, validated, with a name for people.

`key=a,b,c` is an axis of three values: what stands between the brackets of a YAML list. So a comma inside brackets,
braces or quotes belongs to a value: `key=[64,32]` is one value and `key=[64,32],[128]` are two. A single value is read
as in any other command.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.config.config_file import given_settings, load_config
from fedscout.experiments.config.study_config import StudyConfig, check_searchable

DIGEST_DIGITS = 10
NAME_CHARACTERS = 120
VALUE_CHARACTERS = 32


@dataclass(frozen=True)
class GridConfiguration:
    """What one study of a sweep is asked.

    Attributes:
        setting: The value of each axis, as configured: by dotted key, in the order of the axes.
        config: Of the study.
        digest: Of what decides its results.
        name: Of its folder: values for people, and enough of the digest to be unique.
    """

    setting: Mapping[str, Any]
    config: StudyConfig
    digest: str
    name: str

    @property
    def text(self) -> str:
        """The values for people."""
        return ", ".join(f"{key}={value_text(value)}" for key, value in self.setting.items()) or "the only study"


@dataclass(frozen=True)
class Sweep:
    """What a sweep is to do.

    Attributes:
        axes: Dotted keys, in the order in which they are given.
        configurations: Every combination, the last axis running fastest.
        default_name: Of its folder, the same for the same single values and axes, whichever values these have.
    """

    axes: tuple[str, ...]
    configurations: tuple[GridConfiguration, ...]
    default_name: str

    def fixed(self) -> dict[str, Any]:
        """Return what all studies have in common, by dotted key."""
        first, *others = (flattened(one.config.identity()) for one in self.configurations)
        return {key: value for key, value in first.items() if all(key in own and own[key] == value for own in others)}


def read_sweep(arguments: Sequence[str], file: Path | None = None) -> Sweep:
    """Read the arguments of a sweep and validate every combination.

    Args:
        arguments: As of any command, but that a value may be several, separated by commas.
        file: A YAML file under all arguments.

    Raises:
        ConfigurationError: With every fault of every study, each told once.
    """
    choices = argument_choices(arguments)
    axes = tuple(_key(options[0]) for options in choices if len(options) > 1)
    found: dict[str, GridConfiguration] = {}
    faults: dict[str, None] = {}
    for chosen in product(*choices):
        try:
            config = load_config(chosen, file)
            check_searchable(config)
        except ConfigurationError as error:
            faults.update(dict.fromkeys(error.faults))
            continue
        one = _configuration(config, axes)
        first = found.setdefault(one.digest, one)
        if first is not one:
            faults[f"each point must be another study, got the same one twice: {first.text} and {one.text}"] = None
    if faults:
        raise ConfigurationError(list(faults))
    configurations = tuple(found.values())
    single = [options[0] for options in choices if len(options) == 1]
    return Sweep(axes, configurations, _default_name(given_settings(single, file), axes, configurations[0].config))


def argument_choices(arguments: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each argument once for every value that it names; a file stands for itself.

    Raises:
        ConfigurationError: With every fault: values that are missing, keys that can't be an axis.
    """
    choices: list[tuple[str, ...]] = []
    faults: list[str] = []
    keys = [_key(argument) for argument in arguments]
    for argument, key in zip(arguments, keys, strict=True):
        try:
            values = _split_values(key, argument.partition("=")[2])
        except ConfigurationError as error:
            faults += error.faults
            continue
        choices.append(tuple(f"{key}={value}" for value in values) if len(values) > 1 else (argument,))
        if len(values) > 1 and keys.count(key) > 1:
            faults.append(Fault(key, "be given once where it has several values", f"it {keys.count(key)} times"))
        if len(values) > 1 and key.partition(".")[0] == "engine":
            faults.append(f"{key} must have one value, got {len(values)}: it does not change what a study finds")
    if faults:
        raise ConfigurationError(list(dict.fromkeys(faults)))
    return choices


def _key(argument: str) -> str:
    return argument.partition("=")[0].strip()


def _split_values(key: str, text: str) -> list[str]:
    """Return the values between the commas of a YAML list as they are written.

    Where it is none, as of texts with brackets in them, each comma separates; what is no YAML then, reading it tells.
    """
    import yaml

    if "," not in text:
        return [text]
    try:
        listed = yaml.compose(f"[{text}\n]", Loader=yaml.SafeLoader)
        assert isinstance(listed, yaml.SequenceNode)
        values = [text[value.start_mark.index - 1 : value.end_mark.index - 1] for value in listed.value]
    except (yaml.YAMLError, RecursionError):
        values = [value.strip() for value in text.split(",")]
    if "" in values[1:] or re.search(r"^\s*,|,\s*$", text):
        raise ConfigurationError(Fault(key, "have a value before and after each comma", repr(text)))
    return values


def _configuration(config: StudyConfig, axes: Sequence[str]) -> GridConfiguration:
    document, digest = config.model_dump(mode="json"), config.digest()  # whose identity may lack a default
    setting = {key: _value_at(document, key) for key in axes}
    return GridConfiguration(setting, config, digest, study_name(setting, digest))


def _value_at(document: Any, key: str) -> Any:
    for part in key.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def study_name(values: Mapping[str, Any], digest: str) -> str:
    """Return a folder's name such as `alpha_0.1,seed_0-1a2b3c4d5e`.

    There is no `=` in it: readers of Parquet take a folder `seed=0` for a column.
    """
    lasts = [key.rpartition(".")[2] for key in values]
    parts = []
    for key, last in zip(values, lasts, strict=True):
        shown = re.sub(r"[^A-Za-z0-9.+-]+", "-", value_text(values[key])).strip("-")[:VALUE_CHARACTERS]
        parts.append(f"{last if lasts.count(last) == 1 else key}_{shown}")
    return f"{','.join(parts)[:NAME_CHARACTERS]}-{digest[:DIGEST_DIGITS]}".lstrip("-")


def value_text(value: Any) -> str:
    """Return a value for people: numbers short, text as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    return f"{value:.12g}" if isinstance(value, float) else json.dumps(value, sort_keys=True)


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of nested groups by their dotted keys."""
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        group = isinstance(value, Mapping) and value
        leaves |= flattened(value, f"{prefix}{key}.") if group else {f"{prefix}{key}": value}
    return leaves


def _default_name(single: Mapping[str, Any], axes: Sequence[str], config: StudyConfig) -> str:
    """Name a sweep by what stays when a value is added to an axis."""
    kept = {
        key: value
        for key, value in flattened(single).items()
        if key.partition(".")[0] != "engine" and key != "federation.folder" and key not in axes
    }
    text = json.dumps([kept, sorted(axes)], sort_keys=True, default=str)
    dataset = "" if "federation.dataset" in axes else f"{config.federation.dataset}-"
    return f"sweep-{dataset}{hashlib.sha256(text.encode()).hexdigest()[:8]}"
