"""From files and arguments to a configuration, with every fault that was found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.fault_text import details, shown
from fedscout.engine.truth_values import truths_as_words
from fedscout.experiments.config.config_keys import fault_text, known_keys
from fedscout.experiments.config.key_values import takes_text
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.datasets.loaders.inferred_task import with_task

YAML_SUFFIXES = (".yaml", ".yml")
LARGEST_FILE = 1_000_000
DEEPEST = 20
_TOO_DEEP = f"{{name}} must not be nested in more than {DEEPEST} levels"
_OTHER_NUMBER = re.compile(
    r"[-+]?(0\d[\d_]*|\d[\d_]*_[\d_]*(\.[\d_]*)?|\d+(:[0-5]?\d)+(\.\d*)?|0[xob][\da-f_]+)", re.IGNORECASE
)
"""Numbers of YAML 1.1 that JSON does not have: 010 is 8 there, 1:30 is 90, 1_0 is 10."""
_HALF_A_CHARACTER = re.compile("[\ud800-\udfff]")


def load_config(arguments: Sequence[str] = (), file: Path | None = None) -> StudyConfig:
    """Read the configuration.

    Args:
        arguments: `dotted.key=value`, later ones win; YAML values. A path of a YAML file is read in its place.
        file: A YAML file under all arguments.

    Raises:
        ConfigurationError: With every fault that was found.
    """
    return config_of(*_merged(arguments, file))


def config_of(settings: Mapping[Any, Any], faults: Sequence[str] = ()) -> StudyConfig:
    """Return the configuration that settings make, by section.

    Args:
        settings: Such as `{"training": {"num_rounds": 10}}`.
        faults: Of settings that could not be read.

    Raises:
        ConfigurationError: With every fault that was found.
    """
    found = [*faults]
    try:
        config = StudyConfig.model_validate(truths_as_words(with_task(settings), StudyConfig))
    except ValidationError as error:
        found += _fault_texts(details(error))
    if found:
        raise ConfigurationError(found)
    return config


def _fault_texts(faults: Sequence[ErrorDetails]) -> Iterator[str]:
    """Yield a line for each fault, but one alone for items of a list that have the same."""
    alike: dict[tuple[Any, ...], list[ErrorDetails]] = {}
    for fault in faults:
        place = fault["loc"]
        item = next((depth for depth, part in enumerate(place) if isinstance(part, int)), len(place))
        alike.setdefault((place[:item], place[item + 1 :], fault["type"]), []).append(fault)
    for same in alike.values():
        more = f", and {len(same) - 1} more of that list" if len(same) > 1 else ""
        told = fault_text(same[0])
        yield told + more if more else told


def given_settings(arguments: Sequence[str] = (), file: Path | None = None) -> dict[str, Any]:
    """Return what arguments and file say, merged as `load_config` does it, without defaults.

    Raises:
        ConfigurationError: If an argument or a file can't be read.
    """
    merged, faults = _merged(arguments, file)
    if faults:
        raise ConfigurationError(faults)
    return merged


def _merged(arguments: Sequence[str], file: Path | None) -> tuple[dict[Any, Any], list[str]]:
    """Return the settings of all layers that can be read, and the faults of the others."""
    merged: dict[Any, Any] = {}
    faults: list[str] = []
    for name, read in _layers(arguments, file):
        try:
            layer = read()
            _refuse_what_no_key_takes(name, layer)
            _refuse_values_for_groups(layer)
            merged = laid_over(layer, merged)
        except ConfigurationError as error:
            faults += error.faults
        except RecursionError:
            faults.append(_TOO_DEEP.format(name=name))
    return merged, faults


def laid_over(layer: Mapping[Any, Any], below: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a layer laid over another: groups are joined, everything else takes the place of what was there."""
    both = {
        key: laid_over(layer[key], below[key])
        for key in layer.keys() & below.keys()
        if isinstance(layer[key], Mapping) and isinstance(below[key], Mapping)
    }
    return {**below, **layer, **both}


def _refuse_what_no_key_takes(name: str, layer: Any) -> None:
    """Refuse nesting, bytes and halves of characters: YAML can say them, but no key means them, and no file keeps them.

    Raises:
        ConfigurationError: With the first of them.
    """
    level = [layer]
    for _ in range(DEEPEST):
        for value in level:
            if isinstance(value, bytes) or (isinstance(value, str) and _HALF_A_CHARACTER.search(value)):
                raise ConfigurationError(Fault(name, "hold text and numbers", shown(value)))
        groups = [[*value, *value.values()] if isinstance(value, dict) else value for value in level]
        level = [part for group in groups if isinstance(group, list) for part in group]
        if not level:
            return
    raise ConfigurationError(_TOO_DEEP.format(name=name))


def _refuse_values_for_groups(layer: Mapping[Any, Any]) -> None:
    """Refuse `federation=wine`, which a later `federation.seed=1` would silently replace."""
    groups = {key.partition(".")[0] for key in known_keys() if "." in key}
    faults = []
    for group in sorted(groups & set(layer)):
        if not isinstance(layer[group], dict):
            keys = [key for key in known_keys() if key.startswith(f"{group}.")]
            faults.append(Fault(group, f"be a group of keys, such as {keys[0]}", shown(layer[group])))
    if faults:
        raise ConfigurationError(faults)


def _layers(arguments: Sequence[str], file: Path | None) -> Iterator[tuple[str, Callable[[], dict[Any, Any]]]]:
    """Yield name and reader of each layer, so that one that can't be read does not hide the faults of the others."""
    if file is not None:
        yield str(file), partial(_read_yaml, file)
    for argument in arguments:
        if "=" not in argument and argument.endswith(YAML_SUFFIXES):
            yield argument, partial(_read_yaml, Path(argument))
        else:
            yield argument.partition("=")[0], partial(_read_argument, argument)


def _read_argument(argument: str) -> dict[Any, Any]:
    from omegaconf import OmegaConf

    key, equals, text = argument.partition("=")
    if not equals or not all(part.strip() for part in key.split(".")):
        raise ConfigurationError(Fault("an argument", "be dotted.key=value or a YAML file", shown(argument)))
    wanted = f"{key} must have a YAML value, got {shown(argument)}"
    if not takes_text(key):
        _refuse_other_numbers(key, text)
    elif isinstance(_plain(lambda: OmegaConf.from_dotlist([f"value={text}"]), wanted)["value"], bool | int | float):
        argument = f"{key}={json.dumps(text)}"  # the column 1, or yes
    return dict(_plain(lambda: OmegaConf.from_dotlist([argument]), wanted))


def _read_yaml(file: Path) -> dict[Any, Any]:
    from omegaconf import OmegaConf

    try:
        size = file.stat().st_size if file.is_file() else None
    except OSError as error:
        raise ConfigurationError(f"the configuration file must be readable, got {file}: {error.strerror}") from error
    if size is None:
        raise ConfigurationError(Fault("the configuration file", "exist", file))
    if size > LARGEST_FILE:
        raise ConfigurationError(
            Fault("the configuration file", f"have at most {LARGEST_FILE} bytes, {file} has {size}")
        )
    with suppress(UnicodeDecodeError):  # which is told below
        _refuse_other_numbers(str(file), file.read_text("utf-8"))
    loaded = _plain(lambda: OmegaConf.load(file), f"{file} must be YAML")
    if not isinstance(loaded, dict):
        raise ConfigurationError(Fault(file, "hold keys and values, such as `seed: 1`"))
    return loaded


def _refuse_other_numbers(name: str, text: str) -> None:
    """Refuse numbers that YAML 1.1 reads otherwise than people and JSON do.

    Raises:
        ConfigurationError: With the first of them.
    """
    import yaml

    with suppress(yaml.YAMLError):  # which is told where the text is read
        for token in yaml.scan(text, Loader=yaml.SafeLoader):
            if isinstance(token, yaml.ScalarToken) and token.plain and _OTHER_NUMBER.fullmatch(token.value):
                raise ConfigurationError(
                    Fault(
                        name,
                        "hold numbers as JSON writes them",
                        f"{token.value}, which YAML takes for another number",
                        f"""a text is quoted: '"{token.value}"'""",
                    )
                )


def _plain(read: Callable[[], Any], wanted: str) -> Any:
    """Return what OmegaConf reads as groups and lists, references such as `${seed}` as they are written."""
    from omegaconf import OmegaConf

    try:
        return OmegaConf.to_container(read(), resolve=False)
    except RecursionError:
        raise
    except Exception as error:  # YAML's constructors raise anything: KeyError for `!!bool x`, IndexError for `!!int ""`
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConfigurationError(f"{wanted}: {reason}") from error
