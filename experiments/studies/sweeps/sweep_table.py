"""The tidy table of a sweep: one row a study and chooser, all columns in every row.

A chooser is somebody who picks a strategy: plain FedAvg, FedAvg at its best client learning rate, the best of the
search, and the challenger, which is the best of the search other than FedAvg and the one that is confirmed on fresh
seeds. A study that did not go through is one row without a chooser.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.verdict import verdicts
from fedscout.experiments.studies.study_objective import measures_of_study
from fedscout.experiments.studies.sweeps.grid_configurations import GridConfiguration, Sweep, value_text
from fedscout.experiments.studies.sweeps.study_run import StudyEnd, SweepStudy
from fedscout.experiments.studies.sweeps.sweep_folder import SweepFolder
from fedscout.search.confirmation.intervals import PairedDifference, mean_score, paired_difference, tested_to_trained
from fedscout.search.confirmation.sequential_design import SequentialDesign
from fedscout.search.measure import Measure

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]

FEDAVG, BEST, CHALLENGER, TUNED = "fedavg", "search best", "challenger", "tuned fedavg"

COLUMNS: Mapping[str, str] = {
    "study": "string",
    "path": "string",
    "config_hash": "string",
    "status": "string",
    "error": "string",
    "chooser": "string",
    "strategy": "string",
    "parameters": "string",
    "learning_rate": "float64",
    "measure": "string",
    "fitness": "float64",
    "accuracy": "float64",
    "accuracy_own": "float64",
    "accuracy_clean": "float64",
    "accuracy_low": "float64",
    "accuracy_high": "float64",
    "num_confirmation_seeds": "int64",
    "test_to_train": "float64",
    "difference": "float64",
    "difference_low": "float64",
    "difference_high": "float64",
    "gain": "float64",
    "gain_low": "float64",
    "gain_high": "float64",
    "verdict": "string",
    "label_skew": "float64",
    "label_skew_detected": "bool",
    "label_skew_published": "bool",
    "feature_skew": "float64",
    "feature_skew_detected": "bool",
    "feature_skew_published": "bool",
    "outliers": "float64",
    "outliers_detected": "bool",
    "outliers_published": "bool",
    "outlier_clients": "string",
    "num_clients": "int64",
    "num_trials": "int64",
    "num_failed_trials": "int64",
    "seconds": "float64",
    "trial_seconds": "float64",
}
"""Name and type of every column beside those of the axes; docs/sweep.md says what they mean."""


def ended_study(folder: SweepFolder, one: GridConfiguration, end: StudyEnd) -> SweepStudy:
    """Return a study with its rows, whose paths are relative to the sweep's folder."""
    path = folder.study(one)
    shared: Row = {
        **one.setting,
        "study": path.name,
        "path": path.relative_to(folder.path).as_posix(),
        "config_hash": one.digest,
        "status": end.status,
        "error": end.error,
    }
    result = folder.result(one) if end.status == "completed" else None
    if result is None:
        return SweepStudy(one, path, end, (shared,))
    shared["measure"] = measures_of_study(one.config)[0].name
    shared |= _findings(result) | _effort(result, path)
    return SweepStudy(one, path, end, tuple(shared | chosen for chosen in _choices(result)))


def _findings(result: Mapping[str, Any]) -> Row:
    """Return the published figures, and both rules' decisions; the verdict's is the calibrated one's where it could."""
    if result["report"] is None:
        return {}
    report = HeterogeneityReport.model_validate(result["report"])
    row: Row = {}
    for published, verdict in zip(report.findings, verdicts(report), strict=True):
        row |= {
            published.name: published.value,
            f"{published.name}_detected": verdict.detected if verdict.measured else None,
            f"{published.name}_published": published.detected if published.measured else None,
        }
        if published.name == "outliers":
            row["outlier_clients"] = json.dumps(list(verdict.decided_by.flagged_clients))
    return row


def _effort(result: Mapping[str, Any], folder: Path) -> Row:
    from fedscout.engine.trials.trial_log import read_columns

    trials, _ = read_columns(folder / "trials", ["trial", "status", "seconds"])
    return {
        "num_clients": result["federation"]["num_clients"],
        "num_trials": len(trials),
        "num_failed_trials": sum(trial["status"] == "failed" for trial in trials),
        "seconds": result["timings"]["seconds"]["total"],
        "trial_seconds": sum(trial["seconds"] for trial in trials),
    }


def _choices(result: Mapping[str, Any]) -> list[Row]:
    """Return one row a chooser: what it picked, and how that fares."""
    confirmation = result["confirmation"] or {"contestants": []}
    config = result["config"]
    shared = tested_to_trained(config["training"]["test_fraction"], config["search"]["validation_fraction"])
    contestants = {one["role"]: one for one in confirmation["contestants"]}
    baseline, best, tuned = result["baseline"], result["best"], result["tuned_baseline"]
    others = [trial for trial in result["trials"] if trial["phase"] == "search" and trial["status"] == "completed"]
    challenger = _picked(others, contestants.get("challenger"))
    best_role = "fedavg" if best == baseline else "challenger" if best == challenger else "search"
    tuned_role = "tuned-fedavg" if "tuned-fedavg" in contestants else "fedavg"  # whose rate was the best
    picks = ((FEDAVG, baseline, "fedavg"), (TUNED, tuned, tuned_role), (BEST, best, best_role))
    rows = []
    for chooser, trial, role in (*picks, (CHALLENGER, challenger, "challenger")):
        if trial is None:
            continue
        row: Row = {"chooser": chooser, **{key: trial[key] for key in ("strategy", "learning_rate", "fitness")}}
        row |= {"parameters": json.dumps(trial["parameters"], sort_keys=True), "test_to_train": shared}
        if role in contestants:
            row |= _confirmed(contestants[role], contestants["fedavg"], confirmation)
            if role == "challenger":
                row |= {"verdict": confirmation["verdict"], **_gain(confirmation)}
        rows.append(row)
    return rows


def _picked(searched: Sequence[Mapping[str, Any]], pick: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the trial of the search whose configuration the confirmation picked; without one, the best trial."""
    keys = ("strategy", "parameters")
    same = [trial for trial in searched if pick is not None and all(trial[key] == pick[key] for key in keys)]
    return max(same or searched, key=lambda trial: float(trial["fitness"]), default=None)


def _confirmed(contestant: Mapping[str, Any], fedavg: Mapping[str, Any], confirmation: Mapping[str, Any]) -> Row:
    """Return the accuracy on the fresh seeds, and its difference to FedAvg's on the same seeds, for new data."""
    view, design = confirmation["view"], SequentialDesign.model_validate(confirmation["design"])
    measure = Measure.model_validate(confirmation.get("measure", {}))
    alone = mean_score(contestant[view], design.resolution, design.test_to_train, measure.bounds)
    row: Row = {
        "accuracy": alone.mean,
        "accuracy_low": alone.low,
        "accuracy_high": alone.high,
        "accuracy_own": float(np.mean(contestant["own"])),
        "accuracy_clean": float(np.mean(contestant["clean"])),
        "num_confirmation_seeds": len(contestant[view]),
    }
    if contestant["role"] == "fedavg":
        return row
    if contestant["role"] == "challenger":
        difference = PairedDifference.model_validate(confirmation["versus"]["fedavg"][view])
    else:
        difference = paired_difference(
            contestant[view],
            fedavg[view],
            resolution=design.resolution,
            test_to_train=design.test_to_train,
            span=design.span,
        )
    return row | {
        "difference": difference.mean,
        "difference_low": difference.low,
        "difference_high": difference.high,
    }


def _gain(confirmation: Mapping[str, Any]) -> Row:
    """Return the difference that the verdict is on: to the stronger of FedAvg and tuned FedAvg."""
    gain = PairedDifference.model_validate(confirmation["versus"][confirmation["reference"]][confirmation["view"]])
    return {"gain": gain.mean, "gain_low": gain.low, "gain_high": gain.high}


def table_of(sweep: Sweep, studies: Sequence[SweepStudy]) -> pa.Table:
    """Return the table: the axes' columns first, in the order of the grid."""
    import pyarrow as pa

    axes = {key: axis_type([one.setting[key] for one in sweep.configurations]) for key in sweep.axes}
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in {**axes, **COLUMNS}.items()])
    position = {one.digest: number for number, one in enumerate(sweep.configurations)}
    ordered = sorted(studies, key=lambda study: position[study.configuration.digest])
    rows = [dict(row) for study in ordered for row in study.rows]
    for row in rows:
        texts = [key for key, kind in axes.items() if kind == "string" and row[key] is not None]
        row.update({key: value_text(row[key]) for key in texts})
    return pa.Table.from_pylist(rows, schema=schema)


def axis_type(values: Sequence[Any]) -> str:
    """Return the type of an axis's column: that of its values if they have one in common, else text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "bool"
    if kinds == {int}:
        return "int64"
    return "float64" if kinds and kinds <= {int, float} else "string"


def write_table(table: pa.Table, folder: SweepFolder) -> None:
    """Write `table.parquet` and `table.csv`."""
    import pyarrow.parquet as pq
    from pyarrow import csv

    folder.write("table.parquet", lambda path: pq.write_table(table, path))
    folder.write("table.csv", lambda path: csv.write_csv(table, path))


def failed_before(folder: Path) -> set[str]:
    """Return the digests of the studies that failed for a reason of their own when the sweep was last run."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "table.parquet"
    if not path.is_file():  # a pipe would be waited for
        return set()
    try:
        with pq.ParquetFile(path) as file:
            rows = file.read(columns=["config_hash", "status"]).to_pylist()
    except (OSError, pa.ArrowException):
        return set()
    return {row["config_hash"] for row in rows if row.get("status") == "failed" and "config_hash" in row}
