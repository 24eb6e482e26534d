"""What a sweep found, averaged over seeds.

Studies that differ in nothing but a seed make a group. They deal, split and train on rows of one data set, so their
interval is that for new data (`fedscout.search.confirmation.intervals`): with S the standard deviation of s studies'
values, each a mean over c seeds of its own, S² is a c-th of one seed's variance: (1/s + c n_test/n_train) S².
A group of a single study has the study's own interval. Neither knows of other data sets of the kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

from fedscout.experiments.studies.sweeps.sweep_table import BEST, CHALLENGER, FEDAVG, TUNED, Row
from fedscout.search.confirmation.intervals import mean_score

SEEDS = ("seed", "federation.seed")


@dataclass(frozen=True)
class Mean:
    """A mean over so many studies with its 95 % interval; None where a single study has none of its own."""

    mean: float
    low: float | None
    high: float | None
    count: int


@dataclass(frozen=True)
class Group:
    """Studies that differ in seeds alone.

    Attributes:
        values: The value of each other axis.
        num_studies: In the group, whatever became of them.
        num_completed: Of these.
        accuracy: Of each chooser that is compared, in the order of `compared_choosers`.
        difference: Of the search's choice to FedAvg; None where the search found nothing but FedAvg.
        gain: Of the search's choice to the stronger of FedAvg and tuned FedAvg in each study; likewise.
        num_better: Studies whose choice beats the reference beyond noise.
        told_apart: Whether the choice is shown to differ: by the verdict of a single study, else by the gain.
        detected: Studies in which each property was found, by the verdict.
    """

    values: Mapping[str, Any]
    num_studies: int
    num_completed: int
    accuracy: Mapping[str, Mean]
    difference: Mean | None
    gain: Mean | None
    num_better: int
    told_apart: bool
    detected: Mapping[str, int]


def measure_of(rows: Sequence[Row]) -> str:
    """Return the column that compares choosers: `accuracy` on fresh seeds if there is any, else `fitness`."""
    return "accuracy" if any(row["accuracy"] is not None for row in rows) else "fitness"


def compared_choosers(rows: Sequence[Row]) -> tuple[str, ...]:
    """Return who is compared: FedAvg, FedAvg tuned if there is any, and what the search chose.

    On fresh seeds that is the challenger. Without them it is the best of the search, which flatters itself: it is the
    largest of several scores on one seed.
    """
    present = {row["chooser"] for row in rows}
    choice = CHALLENGER if measure_of(rows) == "accuracy" else BEST
    return tuple(chooser for chooser in (FEDAVG, TUNED, choice) if chooser in present)


def mean_of(values: Sequence[float], test_to_train: float = 0.0) -> Mean:
    """Return the mean of at least one value with its interval; see `mean_score`."""
    found = mean_score(values, test_to_train=test_to_train)
    return Mean(found.mean, found.low, found.high, len(values))


def groups_of(rows: Sequence[Row], axes: Sequence[str]) -> list[Group]:
    """Return the groups of a table's rows, in its order; its axes include those of seeds."""
    kept = [axis for axis in axes if axis not in SEEDS]
    members: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        members.setdefault(tuple(row[axis] for axis in kept), []).append(row)
    measure, choosers = measure_of(rows), compared_choosers(rows)
    return [_group(dict(zip(kept, key, strict=True)), own, measure, choosers) for key, own in members.items()]


def _group(values: Mapping[str, Any], rows: Sequence[Row], measure: str, choosers: Sequence[str]) -> Group:
    found = {
        chooser: {row["study"]: row for row in rows if row["chooser"] == chooser and row[measure] is not None}
        for chooser in choosers
    }
    fedavg, choice = found.get(FEDAVG, {}), found.get(choosers[-1], {}) if choosers else {}
    per_study = {row["study"]: row for row in rows}
    paired = [study for study in choice if study in fedavg]
    difference = gain = _compared([(choice[study], fedavg[study]) for study in paired], measure, "difference")
    if tuned := found.get(TUNED):
        stronger = {
            study: max(fedavg[study], tuned.get(study, fedavg[study]), key=itemgetter(measure)) for study in paired
        }
        gain = _compared([(choice[study], stronger[study]) for study in paired], measure, "gain")
    (verdict, *more) = [row["verdict"] for row in rows if row["chooser"] == CHALLENGER] or [None]
    beyond_zero = gain is not None and gain.low is not None and gain.high is not None
    apart = beyond_zero and not gain.low <= 0 <= gain.high  # type: ignore[union-attr, operator]
    detectors = ("label_skew", "feature_skew", "outliers")
    return Group(
        values=values,
        num_studies=len(per_study),
        num_completed=sum(row["status"] == "completed" for row in per_study.values()),
        accuracy={chooser: _accuracy(list(own.values()), measure) for chooser, own in found.items() if own},
        difference=difference,
        gain=gain,
        num_better=sum(row["verdict"] == "better" for row in rows if row["chooser"] == CHALLENGER),
        told_apart=apart if more or verdict is None else verdict in ("better", "worse"),
        detected={name: sum(bool(row[f"{name}_detected"]) for row in per_study.values()) for name in detectors},
    )


def _accuracy(rows: Sequence[Row], measure: str) -> Mean:
    if len(rows) == 1 and measure == "accuracy":
        return Mean(rows[0]["accuracy"], rows[0]["accuracy_low"], rows[0]["accuracy_high"], 1)
    return mean_of([row[measure] for row in rows], _shared(rows))


def _compared(pairs: Sequence[tuple[Row, Row]], measure: str, column: str) -> Mean | None:
    """Return what the choice gains on another chooser, over studies that have both; a column has a single one's."""
    if not pairs:
        return None
    own = pairs[0][0]
    if len(pairs) == 1 and own.get(column) is not None:
        return Mean(own[column], own[f"{column}_low"], own[f"{column}_high"], 1)
    return mean_of([ours[measure] - theirs[measure] for ours, theirs in pairs], _shared([ours for ours, _ in pairs]))


def _shared(rows: Sequence[Row]) -> float:
    """Return n_test / n_train in units of a study's variance, as the module says."""
    terms = [(row["test_to_train"] or 0.0) * (row["num_confirmation_seeds"] or 1) for row in rows]
    return sum(terms) / len(terms)
