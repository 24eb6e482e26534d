"""Configurations, folder and single studies of a sweep.

A sweep is a grid: every combination of the values of its axes, validated, with a readable name. `key=a,b,c` is an axis
of three values: the items of a YAML list. So a comma inside brackets, braces or quotes belongs to a value:
`key=[64,32]` is one value and `key=[64,32],[128]` are two. A single value is read as in any other command.

OUT/sweep.json          the axes, and the settings that all studies share
OUT/studies/<name>/     one folder per study, as `fedscout run` leaves it
OUT/table.parquet       one row per study and chooser; also table.csv
OUT/summary.json        means over seeds
OUT/lost/<name>.txt     the traceback of a study that a defect ended

A study's folder is found by the digest at the end of its name, so a sweep with more values or another axis reuses the
studies that earlier commands finished.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from fedscout.engine.errors import ConfigurationError, Fault, LogError, UserError
from fedscout.engine.runtime.files import Storage, mounted
from fedscout.experiments.config import StudyConfig, check_searchable, flattened, given_settings, load_config
from fedscout.experiments.studies.result import StudyResult, read_result
from fedscout.experiments.studies.run_folder import (
    STUDIES,
    GridFolder,
    claimed_folder,
    read_json,
    refuse_others,
    usable,
)
from fedscout.experiments.studies.workers import End, NodeStorage, await_release, end_by, end_of
from fedscout.search.objective import Measure

DIGEST_DIGITS = 10
NAME_CHARACTERS = 120
VALUE_CHARACTERS = 32


@dataclass(frozen=True)
class GridConfiguration:
    """The configuration of one study of a sweep.

    Attributes:
        setting: The value of each axis, as configured: by dotted key, in the order of the axes.
        config: The study's configuration.
    """

    setting: Mapping[str, Any]
    config: StudyConfig

    @cached_property
    def digest(self) -> str:
        """The digest of everything that determines its results."""
        return self.config.digest()

    @cached_property
    def name(self) -> str:
        """The name of its folder: readable values, and enough of the digest to be unique."""
        return study_name(self.setting, self.digest)

    @property
    def text(self) -> str:
        """The values as readable text."""
        return ", ".join(f"{key}={value_text(value)}" for key, value in self.setting.items()) or "the only study"


@dataclass(frozen=True)
class Sweep:
    """The configurations of a sweep.

    Attributes:
        axes: Dotted keys, in the order in which they are given.
        configurations: Every combination, the last axis varying fastest.
        default_name: Of its folder; determined by the single values and the axes' keys, not by the axes' values.
    """

    axes: tuple[str, ...]
    configurations: tuple[GridConfiguration, ...]
    default_name: str

    def fixed(self) -> dict[str, Any]:
        """Return the settings that all studies share, by dotted key."""
        first, *others = (flattened(one.config.identity()) for one in self.configurations)
        return {
            key: value
            for key, value in first.items()
            if all(key in settings and settings[key] == value for settings in others)
        }


def read_sweep(arguments: Sequence[str], file: Path | None = None) -> Sweep:
    """Read the arguments of a sweep and validate every combination.

    Args:
        arguments: As of any command, except that a value may be several, separated by commas.
        file: A YAML file, overridden by the arguments.

    Raises:
        ConfigurationError: With every distinct fault of every study.
    """
    choices = argument_choices(arguments)
    axes = tuple(_key(options[0]) for options in choices if len(options) > 1)
    unique: dict[str, GridConfiguration] = {}
    faults: dict[str, None] = {}
    for chosen in product(*choices):
        try:
            config = load_config(chosen, file)
            check_searchable(config)
        except ConfigurationError as error:
            faults.update(dict.fromkeys(error.faults))
            continue
        document = config.model_dump(mode="json")  # as the identity may lack a default
        point = GridConfiguration({key: _value_at(document, key) for key in axes}, config)
        first = unique.setdefault(point.digest, point)
        if first is not point:
            faults[f"combinations must differ, got the same study twice: {first.text} and {point.text}"] = None
    if faults:
        raise ConfigurationError([*faults])
    configurations = tuple(unique.values())
    single = [options[0] for options in choices if len(options) == 1]
    return Sweep(axes, configurations, _default_name(given_settings(single, file), axes, configurations[0].config))


def argument_choices(arguments: Sequence[str]) -> list[tuple[str, ...]]:
    """Return each argument once for each of its values; the argument itself if it has only one.

    Raises:
        ConfigurationError: With every fault: missing values, and keys that can't be an axis.
    """
    choices: list[tuple[str, ...]] = []
    faults: dict[str, None] = {}
    keys = [_key(argument) for argument in arguments]
    for argument, key in zip(arguments, keys, strict=True):
        try:
            values = _split_values(key, argument.partition("=")[2])
        except ConfigurationError as error:
            faults |= dict.fromkeys(error.faults)
            continue
        choices.append(tuple(f"{key}={value}" for value in values) if len(values) > 1 else (argument,))
        if len(values) > 1 and keys.count(key) > 1:
            faults[Fault(key, "be given only once if it has several values", f"it {keys.count(key)} times")] = None
        if len(values) > 1 and key.partition(".")[0] == "engine":
            faults[f"{key} must have one value, got {len(values)}: it does not change a study's result"] = None
    if faults:
        raise ConfigurationError([*faults])
    return choices


def _value_at(document: Any, key: str) -> Any:
    for part in key.split("."):
        document = document.get(part) if isinstance(document, Mapping) else None
    return document


def _key(argument: str) -> str:
    return argument.partition("=")[0].strip()


def _split_values(key: str, text: str) -> list[str]:
    """Return the items of a comma-separated YAML list as they are written.

    If the text is not such a list, for example with unbalanced brackets, it is split at each comma; parsing reports
    invalid YAML later.

    Raises:
        ConfigurationError: If a value is missing before or after a comma.
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
        raise ConfigurationError.of(key, "have a value before and after each comma", repr(text))
    return values


def study_name(values: Mapping[str, Any], digest: str) -> str:
    """Return a folder's name such as `alpha_0.1,seed_0-1a2b3c4d5e`.

    It contains no `=`, as Parquet readers interpret a folder `seed=0` as a partition column.
    """
    lasts = [key.rpartition(".")[2] for key in values]
    parts = []
    for key, last in zip(values, lasts, strict=True):
        text = re.sub(r"[^A-Za-z0-9.+-]+", "-", value_text(values[key])).strip("-")[:VALUE_CHARACTERS]
        parts.append(f"{last if lasts.count(last) == 1 else key}_{text}")
    return f"{','.join(parts)[:NAME_CHARACTERS]}-{digest[:DIGEST_DIGITS]}".lstrip("-")


def value_text(value: Any) -> str:
    """Return a readable value: numbers short, text unchanged, anything else as JSON."""
    if isinstance(value, str):
        return value
    return f"{value:.12g}" if isinstance(value, float) else json.dumps(value, sort_keys=True)


def _default_name(single: Mapping[str, Any], axes: Sequence[str], config: StudyConfig) -> str:
    """Return the name of a sweep, which does not change when a value is added to an axis."""
    identity = {
        key: value
        for key, value in flattened(single).items()
        if key.partition(".")[0] != "engine" and key != "federation.folder" and key not in axes
    }
    text = json.dumps([identity, sorted(axes)], sort_keys=True, default=str)
    dataset = "" if "federation.dataset" in axes else f"{config.federation.dataset}-"
    return f"sweep-{dataset}{hashlib.sha256(text.encode()).hexdigest()[:8]}"


BINDING = "sweep.json"


class SweepFolder(GridFolder):
    """The folder of one sweep, as an absolute path."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        studies = self.path / STUDIES
        existing = sorted(studies.iterdir()) if studies.is_dir() else []
        self._by_digest = {folder.name[-DIGEST_DIGITS:]: folder for folder in existing if folder.is_dir()}

    def study(self, one: GridConfiguration) -> Path:
        """Return the folder of a configuration's study, whatever name an earlier command gave it."""
        existing = self._by_digest.get(one.digest[:DIGEST_DIGITS])
        return self.path / STUDIES / one.name if existing is None else existing

    def result(self, one: GridConfiguration) -> StudyResult | None:
        """Return the result of a configuration's study; None if it is not finished."""
        try:
            result = read_result(self.study(one))
        except LogError:
            return None
        return result if result is not None and result.config_hash == one.digest else None


@contextmanager
def open_sweep_folder(path: Path, sweep: Sweep) -> Iterator[SweepFolder]:
    """Open a new folder, or that of the same sweep with other values, locked by this process.

    Raises:
        LogError: If the folder is not writable, is in use, or holds anything else: another sweep, a study.
    """
    path = path.absolute()
    _binding(path, sweep)  # a refusal leaves nothing behind
    with claimed_folder(path, BINDING) as folder:
        with usable(path):
            folder.write_json(BINDING, _binding(path, sweep))
        yield SweepFolder(path)


def check_sweep_folder(path: Path, sweep: Sweep) -> SweepFolder:
    """Return the folder for reading; nothing is created.

    Raises:
        LogError: As `open_sweep_folder`, except that the folder may be in use.
    """
    _binding(path.absolute(), sweep)
    return SweepFolder(path)


def _binding(path: Path, sweep: Sweep) -> dict[str, Any]:
    """Return the content of `sweep.json`, after comparing it with the stored one.

    A key that has been an axis in this folder may take any value. All others must be unchanged, as the table has no
    column that would distinguish the studies.

    Raises:
        LogError: If they have changed, or if the folder holds something else.
    """
    fixed, axes = sweep.fixed(), [*sweep.axes]
    stored = read_json(path / BINDING) or {}
    if not (isinstance(stored.get("axes"), list) and isinstance(stored.get("fixed"), dict)):
        refuse_others(path)
        return {"axes": axes, "fixed": fixed}
    old, axes = stored["fixed"], list(dict.fromkeys([*stored["axes"], *axes]))
    free = tuple(f"{axis}." for axis in axes)
    shared = [key for key in old if key in fixed and not f"{key}.".startswith(free)]
    differing = [key for key in shared if old[key] != json.loads(json.dumps(fixed[key]))]
    if differing:
        changes = [f"{key}: {value_text(old[key])} before, {value_text(fixed[key])} now" for key in differing]
        key = differing[0]
        raise LogError.of(
            path,
            problem=f"holds another sweep; what differs: {'; '.join(changes[:6])}",
            hint="choose another --out, or make the key an axis, such as "
            f"{key}={value_text(old[key])},{value_text(fixed[key])}",
        )
    return {"axes": axes, "fixed": {key: fixed[key] for key in shared}}


@dataclass(frozen=True)
class SweepStudy:
    """A study of a sweep: its configuration, end, rows of the table, and the measure of its scores, if it completed."""

    configuration: GridConfiguration
    folder: Path
    end: End
    rows: tuple[Mapping[str, Any], ...]
    measure: Measure | None = None


def run_stored(
    config: StudyConfig,
    out: Path,
    storage: Storage | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> End:
    """Run a study, or resume it, in an absolute folder visible from this node or in a storage."""
    if storage is None:
        return end_of(_run, config, out, verbose, search_path)
    try:
        with mounted(storage, out.name) as local_folder:
            end = end_of(_run, config, local_folder, verbose, search_path)
        if isinstance(storage, NodeStorage):
            storage.release()
    except Exception as error:  # the storage's
        return end_by(error)
    return end.with_stored_paths(local_folder, str(storage))


def _run(config: StudyConfig, out: Path, verbose: bool, search_path: tuple[str, ...]) -> None:
    from fedscout.experiments.studies.workflow import Display, run_workflow

    await_release(out)
    run_workflow(config, out, Display(), verbose=verbose, search_path=search_path)


def data_digests() -> Callable[[StudyConfig], str | None]:
    """Return a cached function that returns the current digest of a study's data; None if unreadable."""
    from fedscout.experiments.federation import build_federation, data_digest

    digests: dict[str, str | None] = {}

    def digest(config: StudyConfig) -> str | None:
        key = config.federation.model_dump_json() + config.model.model_dump_json()
        if key not in digests:
            try:
                digests[key] = data_digest(build_federation(config.federation, config.model))
            except UserError:
                digests[key] = None
        return digests[key]

    return digest
