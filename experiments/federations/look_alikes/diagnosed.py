"""What a report says of each client of a diagnosed federation, and how it is completed where they tell nothing.

How many rows a client holds is known, and so how many it has left out of its counts. They are taken to be of the
classes of which it tells 0, in the proportion of everyone's rows. Deviation from what detection does
(`fedscout.detectors.skew.label_skew`): all rows that are left out are at first spread as the proxy's classes are, not
evenly, or a rare class of which nobody tells would be taken for a frequent one, which the proxy has not enough rows of.
A client that told nothing at all is known to be there, and no more.

Labels count as wrong where the calibrated decision flags a client because the others' rows contradict its labels; the
part that is wrong is the effect of that decision, at most 1 (`fedscout.detectors.outliers.agreement_tests`). Rows whose
features are too small or too noisy for their class are contradicted as well; but wrong labels leave a client's spread
and draw its class means together (`fedscout.detectors.skew.client_features`), by at least half of what the rate asks.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedscout.detectors.report import TENTHS, ClientFacts, ClientFeatures, HeterogeneityReport
from fedscout.detectors.skew.label_skew import FEWEST_ROWS, ReleasedCounts
from fedscout.detectors.statistics.privacy import plausible_counts
from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.experiments.federations.look_alikes.report_file import read_report

KEY = "federation.like"
MOST_CLIENTS, MOST_ROWS = 1_000_000, 2**53
USUAL_SPREAD = 0.75
"""Of the median client's: rows that scatter less are small."""


@dataclass(frozen=True)
class Diagnosed:
    """A diagnosed federation; clients are numbered in the order of their indices in the report.

    Attributes:
        report: As it was read.
        counts: Rows of each class as far as they are told, shape `(clients, classes)`.
        num_rows: Rows of each client, 0 of clients that told nothing, shape `(clients,)`.
        min_release: Fewest rows of a class of which each client tells, likewise.
        wrong: Part of each client's labels that is wrong, shape `(clients,)`.
        features: How a client's rows lie, by its number, of clients of which that was told.
        name: Of the file.
        digest: SHA-256 of the file.
    """

    report: HeterogeneityReport
    counts: IntArray
    num_rows: IntArray
    min_release: IntArray
    wrong: tuple[float, ...]
    features: Mapping[int, ClientFeatures]
    name: str
    digest: str

    @property
    def num_clients(self) -> int:
        """Number of clients, those that told nothing included."""
        return len(self.counts)

    @property
    def told(self) -> IntArray:
        """The numbers of the clients that told anything."""
        return np.flatnonzero(self.num_rows)

    @property
    def class_rows(self) -> IntArray:
        """Rows of each class that were told, all clients together, shape `(classes,)`."""
        return np.asarray(self.counts.sum(axis=0))

    def completed(self, proxy_rows: IntArray) -> IntArray:
        """Return rows of each class that add up to the clients' rows, shape `(clients, classes)`.

        Args:
            proxy_rows: Rows of each class of the proxy, shape `(classes,)`.
        """
        withheld = self.num_rows.sum() - self.counts.sum()
        everyone = self.class_rows + (1 + withheld) * proxy_rows / proxy_rows.sum() + FEWEST_ROWS
        clients = tuple(range(self.num_clients))
        released = ReleasedCounts(clients, self.counts, self.num_rows, self.min_release)
        return plausible_counts(released.completed(everyone), self.num_rows)


def read_diagnosed(path: Path) -> Diagnosed:
    """Read a report.

    Raises:
        DataError: If it is none, or tells too little of labelled rows.
    """
    report = read_report(path, KEY)
    if fault := next(_faults(report), None):
        raise DataError(f"{KEY} must be a report {fault}, got {path}")
    facts = report.clients
    indices = sorted({*(own.client for own in facts), *report.withheld})
    numbers = {index: number for number, index in enumerate(indices)}
    own = [numbers[each.client] for each in facts]
    num_clients = max(report.num_clients, len(indices))
    counts, num_rows = np.zeros((num_clients, report.num_classes), np.int64), np.zeros(num_clients, np.int64)
    min_release = np.ones(num_clients, np.int64)
    counts[own], num_rows[own] = [each.label_counts for each in facts], [each.num_rows for each in facts]
    min_release[own] = [each.min_release for each in facts]
    wrong = np.zeros(num_clients)
    for index, rate in _wrong(report).items():
        wrong[numbers[index]] = rate
    return Diagnosed(
        report,
        counts,
        num_rows,
        min_release,
        tuple(wrong.tolist()),
        {numbers[each.client]: each for each in report.features if each.client in numbers},
        path.name,
        hashlib.sha256(path.read_bytes()).hexdigest(),
    )


def _faults(report: HeterogeneityReport) -> Iterator[str]:
    """Yield what the report would have to be, as it follows `a report`, the first things first."""
    if report.num_classes == 0:
        yield "on clients that hold labelled rows, not on clients that play episodes"
    if TENTHS in report.notes:
        yield "on clients that tell classes, not on a quantity that is predicted"
    if not report.clients:
        yield "in which a client tells of its rows"
    if report.num_clients > MOST_CLIENTS:
        yield f"on at most {MOST_CLIENTS} clients, not on {report.num_clients}"
    wrong = [own for own in report.clients if not _adds_up(own, report.num_classes)]
    if wrong or len({own.client for own in report.clients}) < len(report.clients):
        which = f"client {wrong[0].client}" if wrong else "some client"
        yield f"that names each client once, with counts of its rows in {report.num_classes} classes, unlike {which}"
    if not any(sum(own.label_counts) for own in report.clients):
        yield "in which a client tells of a class; none does that holds too few rows of each (federation.min_release)"


def _adds_up(own: ClientFacts, num_classes: int) -> bool:
    told = own.label_counts
    return len(told) == num_classes and min(told) >= 0 and 0 < own.num_rows >= sum(told) and own.num_rows < MOST_ROWS


def _wrong(report: HeterogeneityReport) -> dict[int, float]:
    """Return the part of the labels that is wrong, of the clients whose labels the others' rows contradict."""
    outliers = report.calibrated_finding("outliers")
    if outliers is None:
        return {}
    contradicted = {c: own for c, own in outliers.clients.items() if own.flagged and own.source == "labels"}
    rates = {client: min(own.effect, 1.0) for client, own in contradicted.items()}
    usual = usual_spread_and_gain(report.features)
    features = {own.client: own for own in report.features}
    return {index: rate for index, rate in rates.items() if _may_be_wrong(features.get(index), usual, rate)}


def usual_spread_and_gain(features: Sequence[ClientFeatures]) -> tuple[float, float]:
    """Return the median client's spread and gain; 1 where none is told."""
    spreads = [own.spread for own in features if own.spread]
    gains = [own.gain for own in features if own.gain is not None and own.gain > 0]
    return float(np.median(spreads or [1.0])), float(np.median(gains or [1.0]))


def _may_be_wrong(own: ClientFeatures | None, usual: tuple[float, float], rate: float) -> bool:
    """Return whether a client's rows lie as those with wrong labels do, and not as features that are small or noisy."""
    if own is None or own.spread is None or own.gain is None:
        return True
    return own.spread >= USUAL_SPREAD * usual[0] and own.gain <= (1 - rate / 2) * usual[1]
