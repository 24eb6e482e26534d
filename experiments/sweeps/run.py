"""Execution of a sweep and its results: finished studies are read, the others are run, and all are put in one table.

read_sweep ─► open_sweep_folder ─► finished? ─► workers on one Ray, or this process ─► table, summary

The tidy table has one row per study and chooser, with all columns in every row. A chooser is a way to pick a strategy:
plain FedAvg, FedAvg at its best client learning rate, the best of the search, and the challenger, which is the best of
the search other than FedAvg and is confirmed on fresh seeds. A study that did not complete is one row without a
chooser.

Studies that differ only in a seed form a group. They partition, split and train on rows of one data set, so their
interval is that for new data (`fedscout.search.confirmation.intervals`): with S the standard deviation of s studies'
values, each a mean over c seeds of its own, S² is 1/c of the variance of one seed, which gives (1/s + c n_test/n_train)
S². A group of a single study has that study's own interval. Neither interval covers other data sets of the same kind,
and both are clipped to the bounds of the measure.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import csv

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import verdicts
from fedscout.engine.runtime.files import LOCK, Storage, refresh, storage_of
from fedscout.engine.runtime.ray import ray_runtime
from fedscout.engine.trials.log import read_columns
from fedscout.experiments.config import planned_trials
from fedscout.experiments.studies import workers
from fedscout.experiments.studies.checks import measure_of_study
from fedscout.experiments.studies.result import StudyResult, TrialSummary
from fedscout.experiments.studies.run_folder import STUDIES, has_changed_since
from fedscout.experiments.sweeps.sweep import (
    GridConfiguration,
    Sweep,
    SweepFolder,
    SweepStudy,
    data_digests,
    open_sweep_folder,
    run_stored,
    value_text,
)
from fedscout.search.confirmation import intervals
from fedscout.search.confirmation.confirmation import Candidate, Confirmation
from fedscout.search.objective import UNLIKE, Measure

Row = dict[str, Any]

FEDAVG, BEST, CHALLENGER, TUNED = "fedavg", "search best", "challenger", "tuned fedavg"
LABELS: Mapping[str, str] = {
    FEDAVG: "FedAvg",
    TUNED: "tuned FedAvg",
    BEST: "best of the search",
    CHALLENGER: "chosen by the search",
}
"""Display name of each chooser."""

_NAMES = ("study", "path", "config_hash", "status", "error", "chooser", "strategy", "parameters")
_SCORES = ("fitness", "accuracy", "accuracy_own", "accuracy_clean", "accuracy_low", "accuracy_high")

TABLE_COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(_NAMES, "string"),
    "learning_rate": "float64",
    "measure": "string",
    **dict.fromkeys(("smallest_score", "largest_score", *_SCORES), "float64"),
    "num_confirmation_seeds": "int64",
    **dict.fromkeys(("test_to_train", "gain", "gain_low", "gain_high"), "float64"),
    "verdict": "string",
    **{
        f"{name}{rule}": kind
        for name in ("label_skew", "feature_skew", "outliers")
        for rule, kind in (("", "float64"), ("_detected", "bool"), ("_published", "bool"))
    },
    "outlier_clients": "string",
    **dict.fromkeys(("num_clients", "num_trials", "num_failed_trials"), "int64"),
    **dict.fromkeys(("seconds", "trial_seconds"), "float64"),
}
"""Name and type of every column beside those of the axes; docs/sweep.md says what they mean."""


def ended_study(folder: SweepFolder, one: GridConfiguration, end: workers.End) -> SweepStudy:
    """Return an ended study with its table rows; paths are relative to the sweep's folder."""
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
    one = replace(one, config=one.config.with_task(result.config["federation"]["task"] == "regression"))
    measure = result.confirmation.measure if result.confirmation else measure_of_study(one.config)
    trials, _ = read_columns(path / "trials", ["trial", "status", "seconds"])
    shared |= _findings(result.report) | {
        "measure": measure.name,
        "smallest_score": measure.worst,
        "largest_score": measure.best,
        "num_clients": result.federation.num_clients,
        "num_trials": len(trials),
        "num_failed_trials": sum(trial["status"] == "failed" for trial in trials),
        "seconds": result.timings["seconds"]["total"],
        "trial_seconds": sum(trial["seconds"] for trial in trials),
        "test_to_train": intervals.tested_to_trained(
            one.config.training.test_fraction, one.config.search.validation_fraction
        ),
    }
    return SweepStudy(one, path, end, tuple(shared | choice for choice in _choices(result)), measure)


def _findings(report: HeterogeneityReport | None) -> Row:
    """Return the published indices and the decisions of both rules; a verdict is calibrated where possible."""
    row: Row = {}
    for published, verdict in () if report is None else zip(report.findings, verdicts(report), strict=True):
        row |= {
            published.name: published.value,
            f"{published.name}_detected": verdict.detected if verdict.measured else None,
            f"{published.name}_published": published.detected if published.measured else None,
        }
        if published.name == "outliers":
            row["outlier_clients"] = json.dumps(list(verdict.decided_by.flagged_clients))
    return row


def _choices(result: StudyResult) -> list[Row]:
    """Return one row per chooser: its choice and the choice's scores."""
    confirmation, baseline, best = result.confirmation, result.baseline, result.best
    candidates: dict[str, Candidate] = {one.role: one for one in confirmation.candidates} if confirmation else {}
    others = [trial for trial in result.trials if trial.phase == "search" and trial.status == "completed"]
    challenger = _picked(others, candidates.get("challenger"))
    best_role = "fedavg" if best == baseline else "challenger" if best == challenger else "search"
    tuned, tuned_role = result.tuned_baseline, "tuned-fedavg" if "tuned-fedavg" in candidates else "fedavg"
    if tuned is not None and candidates and tuned_role == "fedavg":  # the study's own rate was the stronger reference
        tuned = baseline
    picks = ((FEDAVG, baseline, "fedavg"), (TUNED, tuned, tuned_role), (BEST, best, best_role))
    rows = []
    for chooser, trial, role in (*picks, (CHALLENGER, challenger, "challenger")):
        if trial is None:
            continue
        row: Row = {"chooser": chooser, **trial.model_dump(include={"strategy", "learning_rate", "fitness"})}
        row["parameters"] = json.dumps(trial.parameters, sort_keys=True)
        if confirmation is not None and role in candidates:
            row |= _confirmed(candidates[role], confirmation)
        rows.append(row)
    return rows


def _picked(searched: Sequence[TrialSummary], pick: Candidate | None) -> TrialSummary | None:
    """Return the search trial with the configuration that was confirmed; without one, the best trial."""
    wanted = None if pick is None else (pick.strategy, pick.parameters)
    same = [trial for trial in searched if (trial.strategy, trial.parameters) == wanted]
    return max(same or searched, key=lambda trial: trial.fitness, default=None)


def _confirmed(candidate: Candidate, confirmation: Confirmation) -> Row:
    """Return the accuracy on the fresh seeds, and the pick's gain over the reference, for new data."""
    view, design = confirmation.view, confirmation.design
    scores, bounds = candidate.scores(view), confirmation.measure.bounds
    row: Row = {
        **_interval("accuracy", intervals.mean_score(scores, design.resolution, design.test_to_train, bounds)),
        "accuracy_own": float(np.mean(candidate.own)),
        "accuracy_clean": float(np.mean(candidate.clean)),
        "num_confirmation_seeds": len(scores),
    }
    if candidate.role == "challenger":
        row |= {**_interval("gain", confirmation.difference), "verdict": confirmation.verdict}
    return row


def _interval(name: str, difference: intervals.PairedDifference) -> Row:
    return {name: difference.mean, f"{name}_low": difference.low, f"{name}_high": difference.high}


def table_of(sweep: Sweep, studies: Sequence[SweepStudy]) -> pa.Table:
    """Return the table of studies in the order of the grid: the axes' columns first."""
    axes = {key: axis_type([one.setting[key] for one in sweep.configurations]) for key in sweep.axes}
    schema = pa.schema([(name, pa.type_for_alias(kind)) for name, kind in {**axes, **TABLE_COLUMNS}.items()])
    rows = [dict(row) for study in studies for row in study.rows]
    for row in rows:
        texts = [key for key, kind in axes.items() if kind == "string" and row[key] is not None]
        row.update({key: value_text(row[key]) for key in texts})
    return pa.Table.from_pylist(rows, schema=schema)


def axis_type(values: Sequence[Any]) -> str:
    """Return the type of an axis's column: the common type of its values, else string."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {int, float}:
        return "float64"
    return {bool: "bool", int: "int64", float: "float64"}.get(kinds.pop(), "string") if len(kinds) == 1 else "string"


def write_table(table: pa.Table, folder: SweepFolder) -> None:
    """Write `table.parquet` and `table.csv`."""
    folder.write("table.parquet", lambda path: pq.write_table(table, path))
    folder.write("table.csv", lambda path: csv.write_csv(table, path))


SEEDS = ("seed", "federation.seed")


@dataclass(frozen=True)
class Mean:
    """A mean over `count` studies with its 95 % interval; None if a single study has no interval."""

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Group:
    """Studies that differ only in seeds.

    Attributes:
        values: The value of each other axis.
        num_studies: Studies in the group, whatever their status.
        num_completed: Studies in the group that completed.
        accuracy: Of each compared chooser, in the order of `compared_choosers`.
        gain: Of the search's choice over each study's reference; None if the search found nothing but FedAvg.
        num_better: Studies whose choice is significantly better than the reference.
        is_distinguished: Whether the choice is shown to differ: by the verdict of a single study, else by the gain.
        detected: Studies in which each property was detected, by the verdict.
    """

    values: Mapping[str, Any]
    num_studies: int
    num_completed: int
    accuracy: Mapping[str, Mean]
    gain: Mean | None
    num_better: int
    is_distinguished: bool
    detected: Mapping[str, int]


def measure_of(rows: Sequence[Row]) -> str:
    """Return the column that compares choosers: `accuracy` if any study has fresh seeds, else `fitness`."""
    return "accuracy" if any(row["accuracy"] is not None for row in rows) else "fitness"


def compared_choosers(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return the compared choosers: FedAvg where it is not tuned, tuned FedAvg, and the search's choice.

    On fresh seeds, the search's choice is the challenger. Without them it is the best of the search, whose score is
    biased upwards as the maximum of several scores on one seed.
    """
    choice = CHALLENGER if measure_of(rows) == "accuracy" else BEST
    present = {row["chooser"] for row in references_of(rows).values()} | ({choice} & {row["chooser"] for row in rows})
    return tuple(chooser for chooser in (FEDAVG, TUNED, choice) if chooser in present)


def references_of(rows: Sequence[Row]) -> dict[str, Row]:
    """Return the row of each study's reference: tuned FedAvg, or FedAvg where it was not tuned."""
    return {row["study"]: row for chooser in (FEDAVG, TUNED) for row in rows if row["chooser"] == chooser}


def mean_of(
    values: Sequence[float], test_to_train: float = 0.0, bounds: intervals.Bounds = intervals.UNBOUNDED
) -> Mean:
    """Return the mean of at least one value with its interval; see `mean_score`."""
    interval = intervals.mean_score(values, test_to_train=test_to_train, bounds=bounds)
    return Mean(interval.mean, interval.low, interval.high, len(values))


def groups_of(rows: Sequence[Row], axes: Sequence[str]) -> list[Group]:
    """Return the groups of a table's rows, in its order; `axes` includes those of seeds."""
    group_axes = [axis for axis in axes if axis not in SEEDS]
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(tuple(row[axis] for axis in group_axes), []).append(row)
    measure, choosers = measure_of(rows), compared_choosers(rows)
    return [
        _group(dict(zip(group_axes, key, strict=True)), group_rows, measure, choosers)
        for key, group_rows in members.items()
    ]


def _group(values: Mapping[str, Any], rows: Sequence[Row], measure: str, choosers: Sequence[str]) -> Group:
    references = references_of(rows)
    choices = [row for row in rows if row["chooser"] in choosers and row["chooser"] not in (FEDAVG, TUNED)]
    scored = [row for row in (*references.values(), *choices) if row[measure] is not None]
    pairs = [(row, references[row["study"]]) for row in choices if row["study"] in references]
    gain = _mean_difference([pair for pair in pairs if all(row[measure] is not None for row in pair)], measure)
    members = {chooser: [row for row in scored if row["chooser"] == chooser] for chooser in choosers}
    studies = {row["study"]: row for row in rows}.values()
    (verdict, *more) = [row["verdict"] for row in rows if row["chooser"] == CHALLENGER] or [None]
    differs = gain is not None and gain.low is not None and gain.high is not None and not gain.low <= 0 <= gain.high
    detectors = ("label_skew", "feature_skew", "outliers")
    return Group(
        values=values,
        num_studies=len(studies),
        num_completed=sum(row["status"] == "completed" for row in studies),
        accuracy={chooser: _accuracy(own, measure) for chooser, own in members.items() if own},
        gain=gain,
        num_better=[verdict, *more].count("better"),
        is_distinguished=differs if more or verdict is None else verdict in ("better", "worse"),
        detected={name: sum(bool(row[f"{name}_detected"]) for row in studies) for name in detectors},
    )


def _accuracy(rows: Sequence[Row], measure: str) -> Mean:
    return _mean(rows, "accuracy", [row[measure] for row in rows], _bounds(rows[0]))


def _mean_difference(pairs: Sequence[tuple[Row, Row]], measure: str) -> Mean | None:
    """Return the mean difference of the choice from the reference; a single study has its own."""
    if not pairs:
        return None
    ours, (least, most) = [one for one, _ in pairs], _bounds(pairs[0][0])
    return _mean(ours, "gain", [one[measure] - other[measure] for one, other in pairs], (least - most, most - least))


def _mean(rows: Sequence[Row], column: str, values: Sequence[float], bounds: intervals.Bounds) -> Mean:
    """Return the mean of values of studies; the columns of a single study hold its own."""
    if len(rows) == 1 and rows[0].get(column) is not None:
        return Mean(rows[0][column], rows[0][f"{column}_low"], rows[0][f"{column}_high"], 1)
    return mean_of(values, _test_to_train(rows), bounds)


def _bounds(row: Row) -> intervals.Bounds:
    """Return the smallest and the largest possible score of a study, infinite where unknown."""
    least, most = row["smallest_score"], row["largest_score"]
    return -math.inf if least is None else least, math.inf if most is None else most


def _test_to_train(rows: Sequence[Row]) -> float:
    """Return the mean n_test / n_train in units of a study's variance (see the module docstring)."""
    terms = [(row["test_to_train"] or 0.0) * (row["num_confirmation_seeds"] or 1) for row in rows]
    return sum(terms) / len(terms)


TABLE_SECONDS = 60.0
"""Seconds between writes of the table while studies run."""


@dataclass(frozen=True)
class SweepOutcome:
    """The outcome of a sweep.

    Attributes:
        table: One row per study and chooser.
        groups: Means over seeds.
        measure: The column of the groups' accuracy.
        scored: The studies' measure.
        studies: In the order of the grid.
    """

    folder: Path
    table: pa.Table
    groups: list[Group]
    measure: str
    scored: Measure
    studies: tuple[SweepStudy, ...]

    def with_status(self, status: str) -> list[SweepStudy]:
        """Return the studies with a status."""
        return [study for study in self.studies if study.end.status == status]


def run_sweep(
    sweep: Sweep,
    out: Path,
    display: workers.Display | None = None,
    parallel: int | None = None,
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
) -> SweepOutcome:
    """Run a sweep to its end, resuming an earlier run.

    Args:
        sweep: From `read_sweep`.
        out: Its folder.
        display: Progress callbacks.
        parallel: Maximum number of parallel studies; None chooses by the available CPUs.
        verbose: Whether Ray's and Flower's own messages are shown.
        search_path: Folders for a user's own strategies.

    Raises:
        UserError: If the folder can't be used, Ray can't be reached, or `parallel` is too large.
    """
    display, configurations = display or workers.Display(), sweep.configurations
    with open_sweep_folder(out, sweep) as folder:
        studies = _known(folder, sweep)
        planned = [planned_trials(one.config)[0] for one in configurations]
        pieces = [
            workers.Piece(one.name, folder.study(one), n, n) for one, n in zip(configurations, planned, strict=True)
        ]
        display.known(pieces, [*studies])
        pending = {position: one for position, one in enumerate(configurations) if position not in studies}
        last_written = time.monotonic()
        ends = _run_all(folder, pending, display, parallel, verbose, search_path)
        for position, end in workers.reported(ends, pieces, display):
            one = configurations[position]
            if end.details is not None:
                folder.write_text(f"lost/{one.name}.txt", end.details)
            studies[position] = ended_study(folder, one, end)
            if time.monotonic() - last_written > TABLE_SECONDS:
                write_table(table_of(sweep, [studies[place] for place in sorted(studies)]), folder)
                last_written = time.monotonic()
        ended = [studies[position] for position in sorted(studies)]
        table = table_of(sweep, ended)
        write_table(table, folder)
        rows = table.to_pylist()
        groups, scored = groups_of(rows, sweep.axes), scored_by([study.measure for study in ended if study.measure])
        outcome = SweepOutcome(folder.path, table, groups, measure_of(rows), scored, tuple(ended))
        folder.write_json("summary.json", summary_document(outcome))
        return outcome


def _known(folder: SweepFolder, sweep: Sweep) -> dict[int, SweepStudy]:
    """Return the studies that are finished with the current data and code, by position."""
    studies: dict[int, SweepStudy] = {}
    digest_of = data_digests()
    for position, one in enumerate(sweep.configurations):
        current_data = partial(digest_of, one.config)
        if folder.result(one) is not None and not has_changed_since(folder.study(one), one.config, current_data):
            studies[position] = ended_study(folder, one, workers.End("completed"))
    return studies


def _run_all(
    folder: SweepFolder,
    pending: Mapping[int, GridConfiguration],
    display: workers.Display,
    parallel: int | None,
    verbose: bool,
    search_path: tuple[str, ...],
) -> workers.Ends:
    """Run studies in this process, or by workers on one Ray, and yield the position of each with its end."""
    if not pending:
        return
    configs = [one.config for one in pending.values()]
    engine = configs[0].engine

    def pieces(num_hosts: int | None, storage: Storage | None) -> dict[int, tuple[Any, ...]]:
        arguments = {}
        for position, one in pending.items():
            path = folder.study(one)
            own_storage = storage and storage.below(f"{STUDIES}/{path.name}")
            arguments[position] = (workers.with_share(one.config, num_hosts), path, own_storage, verbose, search_path)
        return arguments

    if engine.grid == "local":
        yield from workers.run_pieces(engine, run_stored, pieces(0, None), parallel, display)
        return
    with ExitStack() as stack:
        ray = stack.enter_context(ray_runtime(engine, verbose))
        device = engine.host_device(has_gpu=ray.cluster_resources().get("GPU", 0) >= 1)
        pool = stack.enter_context(closing(workers.WorkerPool(ray, search_path, workers.driver_nodes(ray, configs))))
        pool.drop_differing_nodes([workers.with_share(config, 0) for config in configs])
        share = pool.share(configs, parallel, device.on_gpu)
        storage = storage_of(folder.path) or pool.storage_for(folder.path, folder.path / LOCK)
        for position, end in pool.run(run_stored, pieces(share.num_hosts, storage), share.parallel, display):
            refresh(folder.study(pending[position]))
            yield position, end


def scored_by(measures: Sequence[Measure]) -> Measure:
    """Return the common measure of all studies; if they differ, plain fitness."""
    return measures[0] if measures and all(measure == measures[0] for measure in measures) else UNLIKE


def summary_document(outcome: SweepOutcome) -> dict[str, Any]:
    """Return the outcome as a JSON-serialisable dictionary, which does not depend on the machine's speed."""
    counts = {status: len(outcome.with_status(status)) for status in ("completed", "failed", "lost")}
    return {
        "studies": {"total": len(outcome.studies), **counts},
        "measure": outcome.measure,
        "scored": outcome.scored.name,
        "groups": [asdict(group) for group in outcome.groups],
        "not_completed": [
            {"study": study.folder.name, "status": study.end.status, "error": study.end.error}
            for study in outcome.studies
            if study.end.status != "completed"
        ],
    }
