"""The small federation of one cell: clients of one heterogeneity and one quantity, drawn from proxy rows.

Each client draws its classes, and holds near-equal numbers of their rows; where a class has too few, all of them, and
more of the others. Rows of a class are dealt in one random order that begins anew when it is used up: so no client
holds a row twice, and clients share rows only where there are not enough. Every client's test part is the balanced part
of the proxy data, whole and after its training rows: what a trial scores is the global model on that part.

Where a cell's row is the value of a metric, which of the counts near that value a client holds is drawn.

Deviation: the source says nothing of the shares of a client's classes.

Proxy data of a table of client settings: labelled rows that no client ever holds.

They are the server's rows of the configuration (`federation.server_rows`, or all of `federation.server_dataset`): taken
out before anything is dealt, so that whoever trains with the same `federation.server_rows` and `federation.seed` trains
on none of them. A row that the data set holds twice may still be on both sides; such rows of the server's are left
out. Of another data set, a row that equals one of the clients' is refused: then it is no other data set.

A balanced part of them, as many rows of each class, scores every setting of every cell and trains nobody.

The grid of a table of client settings: how heterogeneous, and how many, the rows of each cell's clients are.

FedCust: a heterogeneity index HI = 1 − (c − 1)/(C − 1) takes as many values as there are classes. The grid takes the
nearest that there is, c = round((1 − HI)(C − 1) + 1), and names the cell by what its clients then have. So two classes
know the indices 0 and 1 only, and values that come to the same are one row of the table.

Of entropy, and of a metric of the user's own (`proxies.py`), the rows of the grid are values, and all clients may
hold all classes.

A refined grid has a value between any two, and one half a step beyond each end; all of the coarser one are in it.

Synthetic proxy rows, for who has none: normal rows of each class, by what clients tell of themselves.

Clients are asked what the detectors ask them: sums of their features over all rows and by class, of which the gate lets
out nothing over fewer than `federation.min_release` rows. A row of class c is drawn from

    N(M_c, W),

M_c being the mean of the rows of the class that were told, W the covariance within classes: the model of a linear
discriminant. So classes differ by their means alone, and a table tuned on such rows is as good as that holds. Every
class that was told of has near-equal numbers of rows.

No row leaves a client, but sums over its rows do, test rows included: with synthetic rows it is not so that nothing
about the clients' data goes back.

Clients of a cell whose row of the table is a value of a metric: entropy, or a function of the user's own.

Class counts are tried: shares of a Dirichlet distribution over some of the classes, how many and with which
concentration being drawn, and a client's rows by them. Of those that the proxy rows can fill the nearest to the cell's
value are kept. Of a user's own metric, of which nothing is known, they must lie nearer than half-way to the next row
of the grid: a client of them finds the cell. Where none is found, nothing can be tuned there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, product
from math import floor, inf

import numpy as np
import numpy.typing as npt

from fedscout.detectors.calibrated_feature_skew import within_covariance
from fedscout.detectors.conversation import hold
from fedscout.detectors.feature_exchanges import ask_moments
from fedscout.detectors.feature_skew import ClassMoments
from fedscout.detectors.statistics import Values
from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.client_table import ENTROPY, HETEROGENEITY, METRICS, metric_named
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation, ServerData
from fedscout.engine.errors import ConfigurationError, DataError, Fault, first_line
from fedscout.engine.messages.calls import Session
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import stream
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.dataset import DIGEST_BYTES
from fedscout.experiments.studies.runner import open_runner

SCORED_SHARE = 0.25
"""Of the proxy rows, as far as they are balanced."""


@dataclass(frozen=True)
class ProxyData:
    """Rows of one federation's kind, none of which a client holds.

    Attributes:
        features: float32, shape `(num_rows, *feature_shape)`; those that train before those that score.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_classes: Of the clients' data set.
        num_scored: Rows at the end that score, as many of each class.
        num_left_out: Rows of the server's that a client holds as well.
    """

    features: FloatArray
    labels: IntArray
    num_classes: int
    num_scored: int
    num_left_out: int = 0

    @property
    def num_trained(self) -> int:
        """Rows that proxy clients train on."""
        return len(self.labels) - self.num_scored

    @property
    def class_rows(self) -> IntArray:
        """Training rows of each class, shape `(num_classes,)`."""
        return np.bincount(self.labels[: self.num_trained], minlength=self.num_classes)

    def most_rows(self, held: int) -> int:
        """Return the most training rows of one client that holds so many classes: those of the most frequent ones."""
        return int(np.sort(self.class_rows)[::-1][:held].sum())

    def usual_rows(self, held: int) -> int:
        """Return the training rows that nearly any draw of so many classes has: of each as of the lower quartile."""
        rows = self.class_rows
        return int(held * np.quantile(rows[rows > 0], 0.25))

    def digest(self) -> str:
        """Return the SHA-256 of the rows and which of them score."""
        digest = hashlib.sha256(f"{self.features.dtype} {self.features.shape} {self.num_scored}".encode())
        for array in (self.features, self.labels):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def proxy_data(federation: Federation, seed: int, of_another: bool) -> ProxyData:
    """Return the proxy data of a federation: its server's rows.

    Args:
        federation: With labelled rows of the server's.
        seed: Draws which of them score.
        of_another: Whether they are of another data set than the clients'.

    Raises:
        DataError: If they overlap the clients' rows, or hold too few classes or rows.
    """
    server = federation.server
    assert server is not None, "the configuration must give the server rows"
    assert server.labels is not None, "and their labels"
    theirs = {*row_digests(federation.features, federation.labels)}
    is_free = np.array([row not in theirs for row in row_digests(server.features, server.labels)])
    num_shared = int(np.count_nonzero(~is_free))
    if of_another and num_shared:
        raise DataError(
            Fault(
                "proxy data",
                "hold no row of the clients",
                f"{num_shared} of {len(is_free)} rows that they hold",
                ("take them out of the clients' own data set by federation.server_rows in place of --proxy"),
            )
        )
    features, labels = server.features[is_free], server.labels[is_free]
    scored = _balanced(labels, stream(seed, "proxy-scored"))
    order = np.concatenate([np.setdiff1d(np.arange(len(labels)), scored, assume_unique=True), scored])
    return ProxyData(features[order], labels[order], federation.num_classes, len(scored), num_shared)


def row_digests(features: FloatArray, labels: IntArray) -> list[bytes]:
    """Return what tells rows apart, labels included, as `duplicate_rows` does."""
    found = []
    for row, label in zip(features, labels.tolist(), strict=True):
        digest = hashlib.blake2b((np.ascontiguousarray(row) + 0.0).data, digest_size=DIGEST_BYTES)
        digest.update(label.to_bytes(8, "little", signed=True))
        found.append(digest.digest())
    return found


def _balanced(labels: IntArray, generator: np.random.Generator) -> IntArray:
    """Return rows of which as many are of each class that is there, shape `(num_scored,)`.

    Raises:
        DataError: If there are fewer than two classes, or a single row of one.
    """
    present, counts = np.unique(labels, return_counts=True)
    if len(present) < 2:
        raise DataError(Fault("proxy data", "hold at least two classes", f"{len(present)} in {len(labels)} rows"))
    if counts.min() < 2:
        raise DataError(
            Fault(
                "proxy data",
                "hold two rows of each class or more, one to train on and one to score by",
                f"one of class {present[counts.argmin()]}",
                "a larger federation.server_rows brings more",
            )
        )
    each = int(np.clip(SCORED_SHARE * len(labels) / len(present), 1, counts.min() // 2))
    order = generator.permutation(len(labels))
    return np.concatenate([order[labels[order] == label][:each] for label in present])


DoubleArray = npt.NDArray[np.float64]

TRIES, KEPT = 4000, 20

CONCENTRATIONS = 0.05, 100.0
"""Between nearly all rows in one class, and nearly as many in each."""


@dataclass(frozen=True, order=True)
class MetricRow:
    """A row of a grid.

    Attributes:
        metric: `entropy` or `package.module:function`.
        value: Of the metric.
        reach: How far from that a client's may lie, exclusive.
    """

    metric: str
    value: float
    reach: float = field(default=inf, compare=False)

    def counts(self, quantity: int, class_rows: IntArray) -> IntArray:
        """Return rows of each class of clients of the cell, the nearest first, shape `(found, classes)`.

        Args:
            quantity: Rows of a client.
            class_rows: What there is of each class, shape `(classes,)`.
        """
        counts, values = _tried(self.metric, quantity, tuple(class_rows.tolist()))
        distances = np.abs(values - self.value)
        nearest = np.argsort(distances, kind="stable")[:KEPT]
        return np.asarray(counts[nearest[distances[nearest] < self.reach]])

    def fault(self, quantity: int, class_rows: IntArray) -> str | None:
        """Return why no client of the cell can be drawn; None if one can."""
        if len(self.counts(quantity, class_rows)):
            return None
        _, values = _tried(self.metric, quantity, tuple(class_rows.tolist()))
        given = f"{values.min():.3g} to {values.max():.3g}" if len(values) else "no client that the proxy rows fill"
        return f"needs clients within {self.reach:.3g} of that value, got {given} in {TRIES:,} tries"


@lru_cache(maxsize=64)
def _tried(metric: str, quantity: int, class_rows: tuple[int, ...]) -> tuple[IntArray, DoubleArray]:
    """Return class counts that rows suffice for, shape `(found, classes)`, and what the metric gives of them."""
    generator, num_classes = stream(0, "metric-rows", quantity), len(class_rows)
    num_held = generator.integers(1, num_classes + 1, TRIES)
    ranks = generator.permuted(np.tile(np.arange(num_classes), (TRIES, 1)), axis=1)
    low, high = np.log(CONCENTRATIONS).tolist()
    concentrations = np.exp(generator.uniform(low, high, TRIES))
    weights = generator.gamma(np.tile(concentrations[:, None], num_classes)) + 1e-9  # some may be 0 to rounding
    weights[ranks >= num_held[:, None]] = 0.0
    counts = generator.multinomial(quantity, weights / weights.sum(axis=1, keepdims=True))
    counts = counts[(counts <= np.array(class_rows)).all(axis=1)]
    measure = metric_named(metric)
    try:
        values = np.array([float(measure(row, quantity)) for row in counts], np.float64)
    except Exception as error:  # user code may raise anything
        raise ConfigurationError(
            Fault(metric, "give a number of (class counts, rows)", f"{type(error).__name__}: {first_line(error)}")
        ) from error
    known = np.isfinite(values)
    return counts[known], values[known]


HETEROGENEITIES = (0.2, 0.4, 0.6, 0.8)
QUANTITIES = (100, 200, 400, 600, 800, 1000)
LEVELS = {HETEROGENEITY: HETEROGENEITIES, ENTROPY: HETEROGENEITIES}
"""Rows of the grid where nothing else is said, by the metric of a table."""


@dataclass(frozen=True, order=True)
class CellPosition:
    """Of one cell.

    Attributes:
        num_classes: Classes that each of its clients holds.
        quantity: Training rows that each of its clients holds.
        row: What a metric is to give of its clients, in place of equal shares of the classes that they hold.
    """

    num_classes: int
    quantity: int
    row: MetricRow | None = None

    def heterogeneity(self, num_classes: int) -> float:
        """Return HI where there are so many classes, or the metric's value."""
        return index_of(self.num_classes, num_classes) if self.row is None else self.row.value

    @property
    def level(self) -> tuple[int, MetricRow | None]:
        """Its row of the grid."""
        return self.num_classes, self.row


def index_of(held: int, num_classes: int) -> float:
    """Return HI of who holds so many of the classes, two or more."""
    return 1 - (held - 1) / (num_classes - 1)


def classes_of(heterogeneity: float, num_classes: int) -> int:
    """Return how many classes give the HI that is nearest to one in [0, 1]; of two equally near, more classes."""
    return floor((1 - heterogeneity) * (num_classes - 1) + 1.5)


def grid_of(held: Iterable[int], quantities: Iterable[int]) -> tuple[CellPosition, ...]:
    """Return the full grid: classes from many to few, which is HI from low to high, and quantities from few to many."""
    return tuple(CellPosition(*place) for place in product(sorted({*held}, reverse=True), sorted({*quantities})))


def metric_grid(
    metric: str,
    values: Iterable[float],
    quantities: Iterable[int],
    num_classes: int,
    among: Sequence[float] | None = None,
) -> tuple[CellPosition, ...]:
    """Return the full grid of entropy, or of a metric of one's own: values ascending, quantities likewise.

    Args:
        metric: Of the first axis.
        values: Of it.
        quantities: Of the second axis.
        num_classes: There are.
        among: All values of the table, from which clients tell theirs apart; None is `values`.
    """
    wanted = sorted({*values})
    reach = inf
    if metric not in METRICS:
        reach = min((high - low for low, high in pairwise(sorted({*(among or wanted)}))), default=inf) / 2
    rows = [MetricRow(metric, value, reach) for value in wanted]
    return tuple(CellPosition(num_classes, quantity, row) for row, quantity in product(rows, sorted({*quantities})))


def scaled(quantities: Sequence[int], most: int) -> tuple[int, ...]:
    """Return quantities in the same proportions of which the largest is `most`, if one is larger; none below 1."""
    largest = max(quantities)
    if largest <= most:
        return tuple(quantities)
    return tuple(max(1, floor(quantity * most / largest + 0.5)) for quantity in quantities)


def warm_started_by(
    cells: Sequence[CellPosition], known: Sequence[CellPosition] = ()
) -> dict[CellPosition, tuple[CellPosition, ...]]:
    """Return for each cell those whose best settings it tries first: its neighbours in the grid that come before it.

    Neighbours are next to it in its row or column. What is known comes before all others, and these in their order;
    so nothing depends on which cell happens to be done first.

    Args:
        cells: To be tuned, in order.
        known: Tuned before.
    """
    order = {place: number for number, place in enumerate([*known, *cells])}
    levels = sorted({place.level for place in order})
    quantities = sorted({place.quantity for place in order})

    def around(place: CellPosition) -> list[CellPosition]:
        row, column = levels.index(place.level), quantities.index(place.quantity)
        steps = ((row + 1, column), (row - 1, column), (row, column - 1), (row, column + 1))
        inside = [(r, c) for r, c in steps if 0 <= r < len(levels) and 0 <= c < len(quantities)]
        return [CellPosition(levels[r][0], quantities[c], levels[r][1]) for r, c in inside]

    return {
        place: tuple(near for near in around(place) if order.get(near, len(order)) < order[place]) for place in cells
    }


def refined_classes(held: Iterable[int], num_classes: int) -> tuple[int, ...]:
    """Return the classes held in a refined grid: those, and those of the indices between and beyond, in [0, 1]."""
    indices = _halved(sorted(index_of(count, num_classes) for count in {*held}), 0.0, 1.0)
    return tuple(sorted({*held, *(classes_of(index, num_classes) for index in indices)}))


def refined_values(metric: str, values: Iterable[float]) -> tuple[float, ...]:
    """Return the values of a refined grid: those, and those between and beyond; none beyond a single one's own."""
    known = sorted({*values})
    if metric in METRICS:
        return tuple(sorted({*known, *_halved(known, 0.0, 1.0)}))
    return tuple(sorted({*known, *(_halved(known, -inf, inf) if len(known) > 1 else ())}))


def refined_quantities(quantities: Iterable[int]) -> tuple[int, ...]:
    """Return the quantities of a refined grid: those, and those between and beyond; none below half the smallest."""
    values = sorted({*quantities})
    halved = (max(value, values[0] / 2) for value in _halved(values, 0.0, 2.0 * values[-1]))
    return tuple(sorted({*values, *(floor(value + 0.5) for value in halved)}))


def _halved(values: Sequence[float], lowest: float, highest: float) -> list[float]:
    """Return what lies half-way between neighbours, and half a step beyond the ends as far as the bounds allow.

    A single value has the bounds as its neighbours.
    """
    steps = [high - low for low, high in pairwise(values)]
    first, last = (steps[0], steps[-1]) if steps else (values[0] - lowest, highest - values[0])
    between = [low + step / 2 for low, step in zip(values[:-1], steps, strict=True)]
    return [max(lowest, values[0] - first / 2), *between, min(highest, values[-1] + last / 2)]


@dataclass(frozen=True)
class ProxyClients:
    """Of one cell.

    Attributes:
        rows: Each client's training rows, positions among the proxy rows; shape `(clients, quantity)`.
        num_repeated: How many of these some earlier client holds.
    """

    rows: IntArray
    num_repeated: int


def place_faults(place: CellPosition, proxy: ProxyData) -> list[str]:
    """Return why proxy clients of a cell can't be drawn; empty if they can."""
    what = f"{place.quantity} rows of {place.num_classes} classes"
    axis = "heterogeneity" if place.row is None else place.row.metric
    cell = f"the cell of {axis} {place.heterogeneity(proxy.num_classes):.2g} and quantity {place.quantity}"
    if place.row is not None:
        fault = place.row.fault(place.quantity, proxy.class_rows)
        return [] if fault is None else [Fault(cell, problem=fault)]
    there = int(np.count_nonzero(proxy.class_rows))
    if place.num_classes > there:
        return [Fault(cell, f"have {place.num_classes} classes", f"proxy data with {there} of {proxy.num_classes}")]
    if place.quantity < place.num_classes:
        return [Fault(cell, f"have a row of each of {place.num_classes} classes, so a quantity of at least as many")]
    if (most := proxy.most_rows(place.num_classes)) < place.quantity:
        return [
            Fault(
                cell,
                f"have {what} a client",
                f"proxy data with at most {most}",
                "a smaller --quantity or a larger federation.server_rows would do",
            )
        ]
    return []


def draw_proxy_clients(place: CellPosition, proxy: ProxyData, num_clients: int, seed: int) -> ProxyClients:
    """Draw the clients of a cell.

    Raises:
        ConfigurationError: If the proxy rows do not reach.
    """
    if faults := place_faults(place, proxy):
        raise ConfigurationError(faults)
    purpose = "proxy-clients"
    if place.row is not None:
        purpose += f" {place.row.metric} {place.row.value!r}"
    generator = stream(seed, purpose, place.num_classes, place.quantity)
    order = generator.permutation(proxy.num_trained)
    queues = [order[proxy.labels[order] == label] for label in range(proxy.num_classes)]
    dealt = np.zeros(proxy.num_classes, np.int64)
    clients = []
    for _ in range(num_clients):
        shares = _shares(place, proxy.class_rows, generator)
        held = [
            queue.take(np.arange(start, start + share), mode="wrap")
            for queue, start, share in zip(queues, dealt, shares, strict=True)
            if share
        ]
        clients.append(np.sort(np.concatenate(held)))
        dealt += shares
    rows = np.array(clients, np.int64)
    return ProxyClients(rows, rows.size - len(np.unique(rows)))


def cell_federation(clients: ProxyClients, proxy: ProxyData, model: ModelFactory, name: str) -> Federation:
    """Return the federation of a cell; a share of `test_share` of each client's rows are its test part."""
    scored = np.arange(proxy.num_trained, len(proxy.labels))
    return Federation(
        name=name,
        features=proxy.features,
        labels=proxy.labels,
        num_classes=proxy.num_classes,
        partition=Partition.from_lists([np.concatenate([rows, scored]) for rows in clients.rows]),
        model=model,
        split="last",
    )


def test_share(place: CellPosition, proxy: ProxyData) -> float:
    """Return the share of a proxy client's rows that score."""
    return proxy.num_scored / (proxy.num_scored + place.quantity)


def _shares(place: CellPosition, class_rows: IntArray, generator: np.random.Generator) -> IntArray:
    """Return how many rows of each class a client holds, shape `(num_classes,)`.

    Classes are drawn at random; while they hold too few rows, the smallest makes way for the largest of the others.
    """
    if place.row is not None:
        return np.asarray(generator.choice(place.row.counts(place.quantity, class_rows)))
    drawn = generator.permutation(np.flatnonzero(class_rows))
    chosen, others = list(drawn[: place.num_classes]), list(drawn[place.num_classes :])
    while class_rows[chosen].sum() < place.quantity:
        chosen.remove(min(chosen, key=lambda label: class_rows[label]))
        chosen.append(max(others, key=lambda label: class_rows[label]))
        others.remove(chosen[-1])
    shares = np.zeros(len(class_rows), np.int64)
    left = place.quantity
    by_size = sorted(chosen, key=lambda label: class_rows[label])  # as drawn, where they hold equally many
    for others_left, label in zip(reversed(range(len(by_size))), by_size, strict=True):
        shares[label] = min(class_rows[label], left // (others_left + 1))
        left -= int(shares[label])
    return shares


def synthetic_rows(federation: Federation, config: StudyConfig, num_rows: int) -> ServerData:
    """Ask the clients of a federation for their sums, and draw labelled rows by them.

    Raises:
        DataError: If rows are tokens, or clients tell too little.
    """
    if federation.facts.get("data_kind") == "tokens":
        raise DataError(Fault("--synthetic", "be left out for tokens, of which there is no mean"))
    clients = [client for client in range(federation.num_clients) if client not in federation.unseen]
    engine = config.engine.model_copy(update={"grid": "local"})
    by_features = replace(federation, embedding=None)  # of which no row could be drawn
    with open_runner(by_features, engine, None, parallel=1) as runner:
        told = hold(runner.grid(Session(seed=config.seed)), ask_moments(clients, config.detection.max_features))
    if told.pooled is None or np.count_nonzero(told.classes.pooled_counts) < 2:
        reason = told.notes[0] if told.notes else f"they tell of {np.count_nonzero(told.classes.pooled_counts)} classes"
        raise DataError(
            Fault(
                "--synthetic", "be left out where clients do not tell the sums of their features by class", hint=reason
            )
        )
    within = within_covariance(told.pooled, told.classes)
    rows, labels = draw_rows(told.classes, within, num_rows, stream(config.seed, "synthetic-rows"))
    return ServerData(rows.reshape(-1, *federation.features.shape[1:]).astype(np.float32), labels)


def draw_rows(
    classes: ClassMoments, within: Values, num_rows: int, generator: np.random.Generator
) -> tuple[Values, IntArray]:
    """Draw normal rows, shape `(num_rows, d)`, and their labels, shape `(num_rows,)`.

    Args:
        classes: Whose means, where anybody told of them.
        within: Covariance within classes, shape `(d, d)`; what rounding made negative of it counts as 0.
        num_rows: In all.
        generator: Draws them.
    """
    present = np.flatnonzero(classes.pooled_counts)
    labels = np.sort(present[np.arange(num_rows) % len(present)])
    variances, axes = np.linalg.eigh(within)
    root = axes * np.sqrt(np.maximum(variances, 0))
    noise = generator.standard_normal((num_rows, len(within))) @ root.T
    return classes.means[labels] + noise, labels.astype(np.int64)
