"""A study as its folder tells it; the folder stays as it is, whoever may be writing to it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedscout.engine.errors import Fault, LogError
from fedscout.engine.trials.trial_log import read_columns
from fedscout.engine.trials.trial_record import SCORES_WHERE_KNOWN, Trial, log_schema
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.extras import extra_module
from fedscout.experiments.studies.stored_study import read_claim
from fedscout.strategies import parameter_columns

CURVES = ("accuracy", "clean_accuracy", *SCORES_WHERE_KNOWN, "clean_metric", "loss", "clean_loss", "train_loss")


@dataclass(frozen=True)
class LoggedStudy:
    """A study with its trials by number, so far if it is running, and why files of its log could not be used."""

    path: Path
    config: StudyConfig
    config_hash: str
    records: tuple[Trial, ...]
    faults: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A name that no other study has, and that a folder may have: the data set and the beginning of the hash."""
        return f"{Path(self.config.federation.dataset).stem}-{self.config_hash[:8]}"

    @property
    def num_clients(self) -> int:
        """Number of clients that take part; of natural clients those that were evaluated."""
        asked = self.config.federation.num_seen
        return asked or max((len(record.client) for record in self.records), default=0) or 1


def read_study(path: Path) -> LoggedStudy:
    """Read a study.

    Raises:
        LogError: If the folder holds none, or one of another version.
    """
    claim, config = read_claim(path)
    config_hash = str(claim["config_hash"])
    names = log_schema(parameter_columns()).names
    rows, unread = read_columns(path / "trials", names, config_hash)
    faults = [f"{file} can't be used and is left out ({reason})" for file, reason in unread.items()]
    records = [Trial.from_row(row) for row in rows]
    if not records:
        why = f": {faults[0]}" if faults else ""
        raise LogError(Fault("the folder", "hold a study's log", f"{path} without a trial that can be read{why}"))
    return LoggedStudy(path, config, config_hash, tuple(records), tuple(faults))


def trial_name(record: Trial) -> str:
    """Return the name of a trial, unique in its study, such as `00012-fedadam-3f2a`."""
    strategy = "".join(letter if letter.isalnum() else "-" for letter in record.strategy)
    return f"{record.trial:05d}-{strategy}-{record.key[:4]}"


def settings_of(record: Trial) -> dict[str, Any]:
    """Return what was tried, flat: strategy, parameters, the clients' step size, seed."""
    flat: dict[str, Any] = {"strategy": record.strategy}
    for name, value in record.parameters.items():
        if isinstance(value, dict):
            flat |= {f"{name}.{inner}": held for inner, held in value.items()}
        elif value is not None:
            flat[name] = value
    return flat | {"learning_rate": record.learning_rate, "seed": record.seed}


def curves_of(record: Trial) -> Iterator[tuple[str, int, float]]:
    """Yield what was measured in every round, from 1: measure, round, value; nothing for a value that is not finite."""
    for name in CURVES:
        for number, value in enumerate(getattr(record, f"round_{name}") or (), start=1):
            if math.isfinite(value):
                yield name, number, value


def export_module(module: str, target: str) -> Any:
    """Import a module of the program that is exported to, which the extra of its name installs.

    Raises:
        ConfigurationError: If it is not installed; says how to install it.
    """
    return extra_module(module, target, f"--to {target} needs the package {target}")
