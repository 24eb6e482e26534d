"""Reading earlier studies: how their clients' data differed, and by how much each configuration beat FedAvg there.

A study's folder holds `config.json`, `report.json` and the log in `trials/`. The gain of a configuration is its fitness
minus FedAvg's on the same seed, averaged over the seeds on which both were trained: the search's, and for what was
confirmed the fresh ones. Trials of fewer rounds than the study's are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, FiniteFloat, Json, PositiveInt, ValidationError

from fedscout.engine.errors import ConfigurationError, Fault, StrategyError
from fedscout.engine.fault_text import details, fault_of
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.engine.trials.trial_log import read_columns
from fedscout.strategies import FedAvgSpec, StrategySpec, parse_strategy

PHASES = ("baseline", "search", "confirmation")
FILES = ("config.json", "report.json")

Checked = TypeVar("Checked", bound=BaseModel)


class _Row(BaseModel):
    """What is read of a trial: another may have written it."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")

    phase: str
    strategy: str
    parameters: Json[dict[str, Any]]
    seed: int
    status: Literal["completed", "failed"]
    fitness: FiniteFloat
    num_rounds: int


class _Training(BaseModel):
    """What is read of a study's training."""

    num_rounds: PositiveInt = 1
    level_off: bool = False


class _Settings(BaseModel):
    """What is read of its configuration."""

    federation: dict[str, Any] = {}
    training: _Training = _Training()


class _Claim(BaseModel):
    """What is read of what a study's folder is bound to."""

    config_hash: str
    config: _Settings
    data_digest: str | None = None


COLUMNS = ("trial", *_Row.model_fields)


@dataclass(frozen=True)
class EarlierStudy:
    """What is left of a study.

    Attributes:
        name: Its folder, as it was given.
        config_hash: Of all that decided its results.
        config: The same in full.
        data_digest: Of its rows and who held which; None if it is not known.
        report: How its clients' data differed, as JSON.
        gains: Mean gain over FedAvg of each configuration that was trained in full, best first.
    """

    name: str
    config_hash: str
    config: Mapping[str, Any]
    data_digest: str | None
    report: Mapping[str, Any]
    gains: tuple[tuple[StrategySpec, float], ...]

    def is_of(self, config_hash: str, config: Mapping[str, Any], data_digest: str | None) -> bool:
        """Whether it is the same study as another, or one of the same federation, whatever was trained there."""
        if self.config_hash == config_hash:
            return True
        own, other = self.config.get("federation", {}), config.get("federation", {})
        same_rows = self.data_digest is not None and self.data_digest == data_digest
        return own == other or (same_rows and own.get("scenario") == other.get("scenario"))

    def is_of_data(self, config: Mapping[str, Any]) -> bool:
        """Whether its federation is made from the same data set as that of a configuration."""
        own, other = (each.get("federation", {}).get("dataset") for each in (self.config, config))
        return own is not None and own == other


def read_earlier_studies(folders: Sequence[str], leave_out: Path | None = None) -> tuple[list[EarlierStudy], list[str]]:
    """Read studies.

    Args:
        folders: Each a study's folder, or one under which there are studies, at any depth.
        leave_out: A folder that is not read, nor spoken of: the reader's own.

    Returns:
        The studies by name, and a sentence on each that was found under a folder and can't be used, and on each file.

    Raises:
        ConfigurationError: If a folder holds no study, or is a study that can't be used; carries every fault.
    """
    studies: dict[str, EarlierStudy] = {}
    notes: list[str] = []
    faults: list[str] = []
    for name in folders:
        folder = Path(name).expanduser()
        found = list(_study_folders(folder))
        if not found:
            faults.append(
                Fault("search.warm_start", "name folders of studies", f"{name!r} without any config.json in it")
            )
        for path in found:
            if leave_out is not None and path.resolve() == leave_out.resolve():
                continue
            try:
                study, damaged = _read(path)
                studies.setdefault(str(path.resolve()), study)
                notes += [f"{file} can't be used and is left out ({reason})" for file, reason in damaged.items()]
            except ValueError as error:
                reason = f"{path} can't be used for a warm start: {error}"
                (faults if path == folder else notes).append(reason)
    if faults:
        raise ConfigurationError(faults)
    return sorted(studies.values(), key=lambda study: study.name), notes


def full_rounds(training: Mapping[str, Any], baseline: Sequence[int]) -> int:
    """Return the rounds of a study's full trainings.

    Args:
        training: The study's settings of training.
        baseline: Rounds of each of FedAvg's trials on the search's seed; the longest decides where it was left to them.
    """
    return max(baseline, default=1) if training.get("level_off") else int(training.get("num_rounds", 1))


def _study_folders(folder: Path) -> Iterator[Path]:
    if (folder / "config.json").is_file():
        yield folder
    elif folder.is_dir():
        yield from (path.parent for path in sorted(folder.rglob("config.json")) if path.is_file())


def _read(path: Path) -> tuple[EarlierStudy, Mapping[Path, str]]:
    """Return a study, and why files of its log could not be used.

    Raises:
        ValueError: If it can't be used; says why.
    """
    document, report = (_json_object(path / name) for name in FILES)
    claim = _checked(_Claim, document, "its config.json is not that of a study")
    read, damaged = read_columns(path / "trials", COLUMNS, claim.config_hash)
    if not read:
        reason = next(iter(damaged.values()), "there are none")
        raise ValueError(f"its log must hold trials that can be read: {reason}")
    rows = [_checked(_Row, row, f"trial {row['trial']} of its log is none") for row in read]
    baseline = [row.num_rounds for row in rows if row.phase == "baseline"]
    study = EarlierStudy(
        name=str(path),
        config_hash=claim.config_hash,
        config=document["config"],
        data_digest=claim.data_digest,
        report=report,
        gains=_gains(rows, full_rounds(claim.config.training.model_dump(), baseline)),
    )
    return study, damaged


def _checked(kind: type[Checked], document: Mapping[str, Any], otherwise: str) -> Checked:
    """Return what is read of a document.

    Raises:
        ValueError: If it is not what it should be; begins with what is said otherwise.
    """
    try:
        return kind.model_validate(document)
    except ValidationError as error:
        first = details(error)[0]
        raise ValueError(f"{otherwise}: {fault_of('.'.join(map(str, first['loc'])), first)}") from error


def _json_object(path: Path) -> dict[str, Any]:
    try:
        return read_json_object(path)
    except FileNotFoundError as error:
        why = ": it was searched without detection, or not to its end" if path.name == "report.json" else ""
        raise ValueError(f"it must hold {path.name}{why}") from error
    except (OSError, ValueError) as error:
        raise ValueError(f"its {path.name} must be readable JSON, got {type(error).__name__}: {error}") from error


def best_first(gains: Iterable[tuple[StrategySpec, float]]) -> tuple[tuple[StrategySpec, float], ...]:
    """Return configurations with their gains, the largest gain first; equals in an order that is always the same."""
    return tuple(sorted(gains, key=lambda gain: (-gain[1], gain[0].model_dump_json())))


def _gains(rows: Sequence[_Row], num_rounds: int) -> tuple[tuple[StrategySpec, float], ...]:
    fitness: dict[str, dict[tuple[str, int], float]] = {}
    specs: dict[str, StrategySpec] = {}
    for row in rows:
        whole = row.status == "failed" or row.num_rounds >= num_rounds
        if row.phase not in PHASES or not whole:
            continue
        kind = "custom" if "path" in row.parameters else row.strategy
        try:
            spec = parse_strategy({**row.parameters, "kind": kind})
        except StrategyError:  # of another version, or of a strategy that there is no more
            continue
        key = spec.model_dump_json()
        specs[key] = spec
        part = "confirmation" if row.phase == "confirmation" else "search"
        fitness.setdefault(key, {})[part, row.seed] = row.fitness
    baseline = fitness.pop(FedAvgSpec().model_dump_json(), {})
    gains = []
    for key, scores in fitness.items():
        differences = [score - baseline[place] for place, score in scores.items() if place in baseline]
        if differences:
            gains.append((specs[key], fmean(differences)))
    return best_first(gains)
