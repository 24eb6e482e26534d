"""A study as its folder tells it, finished or not: configuration, report, result, and the log as a table.

The folder is only read. What is not there, or can't be read, is None or empty, and `faults` says so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from pydantic import BaseModel, ValidationError

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.data.names import Names
from fedscout.engine.errors import Fault, LogError
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.engine.trials.trial_log import read_columns
from fedscout.experiments.studies.stored_study import read_claim, read_result
from fedscout.search.confirmation.confirmation import Confirmation
from fedscout.search.measure import ACCURACY, MEASURES, UNLIKE, Measure

COLUMNS = (
    "trial",
    "phase",
    "generation",
    "strategy",
    "parameters",
    "seed",
    "learning_rate",
    "status",
    "error",
    "fitness",
    "num_rounds",
    "metric",
    "round_accuracy",
    "round_clean_accuracy",
    "round_metric",
    "round_clean_metric",
    "client",
    "client_num_examples",
    "client_accuracy",
    "client_clean_accuracy",
    "client_metric",
    "client_clean_metric",
    "bytes_down",
    "bytes_up",
    "seconds",
    "versions",
    "objectives",
    "selection",
    "client_rounds",
    "round_seconds",
)

Model = TypeVar("Model", bound=BaseModel)


@dataclass(frozen=True)
class StudyFiles:
    """What a study's folder holds.

    Attributes:
        folder: The folder.
        claim: `config.json`.
        result: `result.json`; None while the study is not finished.
        report: Of the detectors; None if they were not asked.
        confirmation: Out of the result; None without.
        trials: The log, a row a trial by number, columns as in docs/log.md; lists are lists.
        faults: What could not be read, a sentence each.
    """

    folder: Path
    claim: Mapping[str, Any]
    result: Mapping[str, Any] | None
    report: HeterogeneityReport | None
    confirmation: Confirmation | None
    trials: pd.DataFrame
    faults: tuple[str, ...]

    @property
    def config(self) -> Mapping[str, Any]:
        """The configuration, as far as it decides results."""
        held: Mapping[str, Any] = self.claim["config"]
        return held

    @property
    def federation(self) -> Mapping[str, Any]:
        """Facts of the federation; empty while the study is not finished."""
        return {} if self.result is None else self.result.get("federation", {})

    @property
    def dependence(self) -> tuple[str, ...]:
        """What must be known of its scores, of rows that belong together above all, a sentence each."""
        return tuple(map(str, (self.result or {}).get("dependence", ())))

    @property
    def name(self) -> str:
        """What the study is of."""
        known = self.federation.get("name") or next(iter(self.trials["study"]), "")
        return str(known or self.config.get("federation", {}).get("dataset", self.folder.name))

    @property
    def view(self) -> str:
        """The view that decides: `own` or `clean`."""
        return str(self.config.get("search", {}).get("view", "own"))

    @cached_property
    def measure(self) -> Measure:
        """What the fitness is of."""
        if self.confirmation is not None:
            return self.confirmation.measure
        if self.config.get("search", {}).get("objective", "accuracy") != "accuracy":
            return UNLIKE
        return self.score_measure

    @property
    def score_measure(self) -> Measure:
        """What the score of a round is of."""
        measured = self.trials["metric"].dropna()
        return MEASURES.get(next(iter(measured), "accuracy"), ACCURACY)

    @property
    def class_names(self) -> list[str]:
        """Names of the classes; their numbers where they are not known."""
        names = [str(name) for name in self.federation.get("class_names", ())]
        count = 0 if self.report is None else self.report.num_classes
        return names if len(names) >= count else [str(number) for number in range(count)]

    @property
    def names(self) -> Names:
        """Names of its clients and classes; positions while the study is not finished."""
        return Names(tuple(map(str, self.federation.get("client_names", ()))), tuple(self.class_names))

    def scores(self, trial: Mapping[str, Any], of: str = "round") -> list[float]:
        """Return a trial's scores in the deciding view, of each round or, `of="client"`, of each client."""
        measure = "accuracy" if pd.isna(trial["metric"]) else "metric"
        name = f"{of}_{'clean_' if self.view == 'clean' else ''}{measure}"
        found = trial.get(name)
        return list(found) if isinstance(found, list) else []


def read_study_files(folder: Path) -> StudyFiles:
    """Read a study's folder.

    Raises:
        LogError: If the folder holds none.
    """
    claim, _ = read_claim(folder)
    faults: list[str] = []
    result = None
    try:
        result = read_result(folder)
    except LogError as error:
        faults.append(f"{error}.")
    written = _read(folder / "report.json", faults) or (result or {}).get("report")
    confirmed = (result or {}).get("confirmation")
    rows, unread = read_columns(folder / "trials", ["study", *COLUMNS], claim["config_hash"])
    faults += [f"{path.name} of the log can't be used and is left out ({reason})." for path, reason in unread.items()]
    trials = pd.DataFrame(rows, columns=["study", *COLUMNS])
    trials["parameters"] = [json.loads(held or "{}") for held in trials["parameters"]]
    if result is None and trials.empty and written is None:
        raise LogError(Fault("the folder", "hold a study", f"{folder} without a trial or a report that can be read"))
    return StudyFiles(
        folder,
        claim,
        result,
        _parsed(HeterogeneityReport, written, "report", faults),
        _parsed(Confirmation, confirmed, "confirmation", faults),
        trials,
        tuple(faults),
    )


def _read(path: Path, faults: list[str]) -> dict[str, Any] | None:
    try:
        return read_json_object(path)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        faults.append(f"{path.name} can't be read ({type(error).__name__}).")
        return None


def _parsed(kind: type[Model], document: Any, what: str, faults: list[str]) -> Model | None:
    if document is None:
        return None
    try:
        return kind.model_validate(document)
    except ValidationError:
        faults.append(f"The {what} is of another version and is left out.")
        return None
