"""Label skew: how far a client's label distribution is from everyone's.

Client k sends its label counts. With P_k its normalised counts and G those of all clients together, client k is
flagged if JS(P_k‖G) > 0.1 (Jensen-Shannon divergence in bits, in `[0, 1]`; J. Lin, IEEE Transactions on Information
Theory 37(1), 1991). The federation's value is the largest divergence.

What clients withhold: a client tells 0 of a class of which it holds fewer than `min_release` rows, and of one more
class fewer rows than it holds if the rows left out would be too few to hide among each other
(`fedscout.engine.data.release`). How many rows it withholds altogether is known, as it tells how many it holds.

Hiding must create no evidence, so withheld rows are completed so that clients are most alike: of all tables x that
agree with what was told, that of least mutual information between client and class is taken,

    min_x Σ_k Σ_c x_kc log(x_kc / (n_k q_c)),   q_c = Σ_k x_kc / Σ_k n_k,   low_kc ≤ x_kc ≤ high_kc,   Σ_c x_kc = n_k,

by alternating minimisation over q and x (I. Csiszár and G. Tusnády. Information geometry and alternating minimization
procedures. Statistics & Decisions, Supplement 1, 1984). The problem is convex; x is of real numbers. The least and the
most rows of a class follow from the release: as told; 0 to `min_release` − 1 where nothing is told; more for the class
that may have joined the others. A client is compared with the others in the table of these two alone, completed
likewise, so that its divergence is a lower bound; metrics of all clients are those of the table of all. Where nobody
tells of any class label skew is not measured.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedscout.detectors.report import Finding, yes_no
from fedscout.detectors.statistics.client_rows import own_counts
from fedscout.detectors.statistics.heterogeneity_metrics import Values, distribution, js_divergence
from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_query import QueryInputs
from fedscout.engine.data.names import UNNAMED, Names
from fedscout.engine.data.release import Answer, Counts, Over

NAME: Final = "label_skew"

NOTHING_TOLD: Final = (
    "clients hold too few rows of every class to tell of it (where all data are your own, federation.min_release=1 "
    "lets them)"
)

MAX_STEPS: Final = 100
TOLERANCE: Final = 1e-3
"""Of rows."""

FEWEST_ROWS: Final = 1e-6
"""Of a class, so that its share stays positive."""


def label_counts(inputs: QueryInputs) -> Answer:
    """Client half: return `counts`, the rows of each class, shape `(num_classes,)`, and `min_release`, shape `(1,)`."""
    return {"counts": Counts(own_counts(inputs)), "min_release": Over(np.array([inputs.min_release]), 0)}


@dataclass(frozen=True)
class ReleasedCounts:
    """What clients tell of their classes.

    Attributes:
        clients: Their indices.
        told: Rows of each class as far as they are told, shape `(clients, classes)`.
        num_rows: Rows of each client, shape `(clients,)`.
        min_release: Fewest rows of a class of which each client tells, likewise.
    """

    clients: tuple[int, ...]
    told: IntArray
    num_rows: IntArray
    min_release: IntArray

    @classmethod
    def whole(cls, counts: Mapping[int, IntArray]) -> ReleasedCounts:
        """Return the counts of clients that withhold nothing, each of shape `(classes,)`."""
        clients = tuple(sorted(counts))
        told = np.stack([counts[client] for client in clients]) if clients else np.zeros((0, 0), np.int64)
        return cls(clients, told, told.sum(axis=1), np.ones(len(told), np.int64))

    def of(self, positions: IntArray) -> ReleasedCounts:
        """Return the counts of the clients at some positions, shape `(clients,)`."""
        clients = tuple(self.clients[position] for position in positions)
        return ReleasedCounts(clients, self.told[positions], self.num_rows[positions], self.min_release[positions])

    def limits(self) -> tuple[IntArray, IntArray]:
        """Return the least and the most rows of each class that agree with what is told, `(clients, classes)` each.

        A class that joined others is the first one of at least `min_release` rows. With it exactly `min_release` rows
        are withheld; or, where too few of it would remain to be told, more than that and fewer than twice as many.
        """
        least, withheld = self.min_release[:, None], np.maximum(self.num_rows - self.told.sum(axis=1), 0)[:, None]
        untold = self.told == 0
        first = np.where(untold.all(axis=1), untold.shape[1], (~untold).argmax(axis=1))[:, None]
        places = np.arange(untold.shape[1])
        may_join = untold & (places < first) & (least < withheld) & (withheld < 2 * least)
        more = np.where(untold, np.where(may_join, withheld - 1, least - 1), 0)
        more = np.where((places == first) & (withheld == least), least - 1, more)
        impossible = more.sum(axis=1, keepdims=True) < withheld  # of a client that does not keep to the release
        more = np.where(impossible, np.where(untold | ~untold.any(axis=1, keepdims=True), withheld, 0), more)
        return self.told, self.told + np.minimum(more, withheld)

    def completed(self, start: Values | None = None) -> Values:
        """Return the rows of each class that make clients most alike, shape `(clients, classes)`; see the module.

        Args:
            start: Expected rows of each class, positive, shape `(classes,)`: they divide what no client's counts can.
        """
        return _most_alike(*self.limits(), self.num_rows, self.told.sum(axis=0) + 1.0 if start is None else start)

    def against_others(self) -> Values:
        """Return the rows of each client beside those of all others, completed so that these two are most alike.

        The limits of the others' rows are the sums of theirs. Shape `(clients, 2, classes)`.
        """
        low, high = (np.stack([limit, limit.sum(axis=0) - limit], axis=1) for limit in self.limits())
        num_rows = np.stack([self.num_rows, self.num_rows.sum() - self.num_rows], axis=1)
        return _most_alike(low, high, num_rows, self.told.sum(axis=0) + 1.0)

    @property
    def share_told(self) -> float:
        """Share of all rows whose class is told, in `[0, 1]`."""
        return float(self.told.sum() / self.num_rows.sum())


def _most_alike(low: IntArray, high: IntArray, num_rows: IntArray, start: Values) -> Values:
    """Return the tables within limits in which clients are most alike, `(..., clients, classes)`; see the module.

    Args:
        low: Least rows of each class, shape as the tables'.
        high: Most rows, likewise.
        num_rows: Rows of each client, to which its classes add up, shape `(..., clients)`.
        start: Expected rows of each class, positive, shape `(classes,)`.
    """
    table, rows = low.astype(np.float64), np.asarray(start)
    if (low == high).all():
        return table
    for _ in range(MAX_STEPS):
        shares = np.broadcast_to((rows / rows.sum(axis=-1, keepdims=True))[..., None, :], low.shape)
        before, table = table, _nearest(shares, low, high, num_rows)
        if np.abs(table - before).max() < TOLERANCE:
            break
        rows = np.maximum(table.sum(axis=-2), FEWEST_ROWS)
    return table


def _nearest(shares: Values, low: IntArray, high: IntArray, num_rows: IntArray) -> Values:
    """Return the rows within limits of least divergence from shares: clip(λ_k q_c, low, high), adding up to `num_rows`.

    The sum rises with λ_k along a line between the places where a class reaches a limit.
    """
    places = np.concatenate([low / shares, high / shares], axis=-1)
    order = places.argsort(axis=-1, kind="stable")
    places = np.take_along_axis(places, order, axis=-1)
    rising = np.take_along_axis(np.concatenate([shares, -shares], axis=-1), order, axis=-1).cumsum(axis=-1)[..., :-1]
    sums = low.sum(axis=-1, keepdims=True) + (rising * np.diff(places, axis=-1)).cumsum(axis=-1)
    last = np.minimum((sums < num_rows[..., None]).sum(axis=-1), rising.shape[-1] - 1)[..., None]
    rest = num_rows[..., None] - np.take_along_axis(sums, last, axis=-1)
    begin, end = (np.take_along_axis(places, position, axis=-1) for position in (last, last + 1))
    slope = np.take_along_axis(rising, last, axis=-1)
    factors = np.clip(end + np.divide(rest, slope, out=np.zeros_like(rest), where=slope > 0), begin, end)
    return np.asarray(np.clip(factors * shares, low, high))


def decide_label_skew(released: ReleasedCounts, threshold: float, names: Names = UNNAMED) -> Finding:
    """Server half: compare each client with the sum of all.

    Args:
        released: What the clients that answered tell of their label counts.
        threshold: Divergence in bits above which a client is flagged.
        names: Of clients, for the sentence.
    """
    clients = released.clients
    if len(clients) < 2:
        return Finding.unmeasured(NAME, threshold, f"it takes two clients, got {len(clients)}")
    pairs = released.against_others()
    divergences = js_divergence(distribution(pairs[:, 0]), distribution(pairs.sum(axis=1)))
    values = {client: float(value) for client, value in zip(clients, divergences, strict=True)}
    flagged = tuple(client for client in clients if values[client] > threshold)
    farthest = max(clients, key=values.__getitem__)
    sentence = (
        f"Label skew: {yes_no(bool(flagged))}. The largest Jensen-Shannon divergence between a client's labels and "
        f"everyone's is {values[farthest]:.4f} ({names.one_client(farthest)}; 0 = equal, 1 = disjoint), "
        f"{'above' if flagged else 'not above'} the threshold {threshold:g}."
    )
    if flagged:
        sentence += f" Above it: {names.some_clients(flagged)}."
    return Finding(
        name=NAME,
        value=values[farthest],
        threshold=threshold,
        detected=bool(flagged),
        flagged_clients=flagged,
        client_values=values,
        sentence=sentence,
    )
