"""Proxy data and the grid of cells of a client-settings table.

Proxy data are labelled rows that no client holds: the server's rows (`federation.server_rows`, or all rows of
`federation.server_dataset`). They are taken out before the partition, so a training with the same
`federation.server_rows` and `federation.seed` uses none of them. Duplicate rows of a data set may be on both sides; the
server's copies are dropped. With another data set, a row that equals a client's is an error. A class-balanced part of
the proxy data scores every setting of every cell and is never trained on.

The grid crosses heterogeneity with quantity, the training rows of each client. FedCust: the heterogeneity index HI = 1
− (c − 1)/(C − 1) of a client with c of C classes takes as many values as there are classes. The grid uses the nearest,
c = round((1 − HI)(C − 1) + 1), and labels the cell with its clients' actual index. So with two classes only the indices
0 and 1 exist, and values that map to the same c share one row. For entropy or a user's own metric, the rows of the grid
are values of the metric, and a client may hold any of the classes. A finer grid adds the midpoints and half a step
beyond each end as far as there are enough proxy rows, and contains the coarser one.

Clients of a cell draw their classes and hold near-equal numbers of rows of each; a class with too few rows contributes
all of them, and the others more. The rows of a class are assigned in one random order that restarts when it is
exhausted: no client holds a row twice, and clients share rows only if there are too few. Every client's test part is
the whole balanced part of the proxy data, placed after its training rows, so a trial's score is that of the global
model on that part. Deviation: the source does not specify the shares of a client's classes.

Clients of a cell of another metric are drawn from sampled class counts: shares from a Dirichlet distribution over a
random number of classes with a random concentration. Of the counts that the proxy rows can fill, the nearest to the
cell's value are kept. For a user's own metric, of which nothing is known, they must be closer than half the distance to
the next row of the grid, so that a client with these counts is assigned to the cell. If there are none, the cell can't
be tuned.

Synthetic proxy rows, for a server without data, are drawn from statistics that the clients report to the detectors:
sums of features over all rows and by class, of which none over fewer than `federation.min_release` rows is released. A
row of class c is drawn from

    N(M_c, W),

where M_c is the reported class mean and W the within-class covariance, as in linear discriminant analysis. So classes
differ only by their means, and a table is only as good as this model. Every reported class has a near-equal number of
rows. No row leaves a client, but sums over its rows do, test rows included; so with synthetic rows some information on
the clients' data does reach the server.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise, product
from math import floor, inf, isfinite

import numpy as np
import numpy.typing as npt

from fedscout.detectors.calibrated_feature_skew import within_covariance
from fedscout.detectors.conversation import hold
from fedscout.detectors.feature_exchanges import ask_moments
from fedscout.detectors.feature_skew import ClassMoments
from fedscout.detectors.statistics import Values
from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.client_table import HETEROGENEITY, METRICS, metric_named
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation, ServerData
from fedscout.engine.errors import ConfigurationError, DataError, Fault, first_line
from fedscout.engine.messages.calls import Session
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import stream
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.dataset import row_digests
from fedscout.experiments.studies.runner import open_runner

logger = logging.getLogger("fedscout")

SCORED_SHARE = 0.25
"""Fraction of the proxy rows for scoring, as far as classes are balanced."""


@dataclass(frozen=True)
class ProxyData:
    """Labelled rows of the same kind as a federation's, none of which a client holds.

    Attributes:
        features: float32, shape `(num_rows, *feature_shape)`; training rows before scoring rows.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_classes: Of the clients' data set.
        num_scored: Scoring rows, at the end; equally many of each class.
        num_left_out: Rows of the server's that were dropped because a client holds them.
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
        """Return the most training rows a client with `held` classes can have: those of the most frequent."""
        return int(np.sort(self.class_rows)[::-1][:held].sum())

    def usual_rows(self, held: int) -> int:
        """Return the training rows of `held` classes of lower-quartile size, which nearly any draw has."""
        rows = self.class_rows
        return int(held * np.quantile(rows[rows > 0], 0.25))

    def scored_share(self, quantity: int) -> float:
        """Return the share of scoring rows among the rows of a proxy client that trains on `quantity` rows."""
        return self.num_scored / (self.num_scored + quantity)

    def digest(self) -> str:
        """Return the SHA-256 of the rows and of the split into training and scoring rows."""
        digest = hashlib.sha256(f"{self.features.dtype} {self.features.shape} {self.num_scored}".encode())
        for array in (self.features, self.labels):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def proxy_data(federation: Federation, seed: int, of_another: bool) -> ProxyData:
    """Return the proxy data of a federation: its server's rows.

    Args:
        federation: With labelled rows of the server's.
        seed: For drawing the scoring rows.
        of_another: Whether they are of another data set than the clients'.

    Raises:
        DataError: If they overlap the clients' rows, or have too few classes or rows.
    """
    server = federation.server
    assert server is not None, "the configuration must give the server rows"
    assert server.labels is not None, "and their labels"
    client_digests = {*row_digests(federation.features, federation.labels)}
    is_free = np.array([row not in client_digests for row in row_digests(server.features, server.labels)])
    num_shared = int(np.count_nonzero(~is_free))
    if of_another and num_shared:
        raise DataError.of(
            "proxy data",
            "contain no row of the clients",
            f"{num_shared} of {len(is_free)} rows that clients hold",
            "use federation.server_rows instead of --proxy to reserve rows of the clients' data set",
        )
    features, labels = server.features[is_free], server.labels[is_free]
    scored = _balanced(labels, stream(seed, "proxy-scored"))
    order = np.concatenate([np.setdiff1d(np.arange(len(labels)), scored, assume_unique=True), scored])
    return ProxyData(features[order], labels[order], federation.num_classes, len(scored), num_shared)


def _balanced(labels: IntArray, generator: np.random.Generator) -> IntArray:
    """Return row indices with equally many rows of each class that occurs, shape `(num_scored,)`.

    Raises:
        DataError: If there are fewer than two classes, or a class with a single row.
    """
    present, counts = np.unique(labels, return_counts=True)
    if len(present) < 2:
        raise DataError.of("proxy data", "hold at least two classes", f"{len(present)} in {len(labels)} rows")
    if counts.min() < 2:
        raise DataError.of(
            "proxy data",
            "hold at least two rows of each class, one for training and one for scoring",
            f"one of class {present[counts.argmin()]}",
            "increase federation.server_rows",
        )
    rows_per_class = int(np.clip(SCORED_SHARE * len(labels) / len(present), 1, counts.min() // 2))
    order = generator.permutation(len(labels))
    return np.concatenate([order[labels[order] == label][:rows_per_class] for label in present])


TRIES, KEPT = 4000, 20
"""Sampled class counts for a cell of a metric, and how many of the nearest its clients are drawn from."""

CONCENTRATIONS = 0.05, 100.0
"""From nearly all rows in one class to nearly equal numbers in each."""


@lru_cache(maxsize=64)
def _sampled_counts(
    metric: str, quantity: int, class_rows: tuple[int, ...]
) -> tuple[IntArray, npt.NDArray[np.float64]]:
    """Return sampled class counts that the rows can fill, shape `(found, classes)`, and their metric values."""
    generator, num_classes = stream(0, "metric-rows", quantity), len(class_rows)
    num_held = generator.integers(1, num_classes + 1, (TRIES, 1))
    is_held = generator.permuted(np.arange(num_classes) < num_held, axis=1)
    low, high = np.log(CONCENTRATIONS).tolist()
    concentrations = np.exp(generator.uniform(low, high, (TRIES, 1)))
    weights = (generator.gamma(concentrations, size=is_held.shape) + 1e-9) * is_held  # some may be 0 to rounding
    counts = generator.multinomial(quantity, weights / weights.sum(axis=1, keepdims=True))
    counts = counts[(counts <= np.array(class_rows)).all(axis=1)]
    measure = metric_named(metric)
    try:
        values = np.array([float(measure(row, quantity)) for row in counts])
    except Exception as error:  # user code may raise anything
        raise ConfigurationError.of(
            metric, "return a number for (class counts, rows)", f"{type(error).__name__}: {first_line(error)}"
        ) from error
    finite = np.isfinite(values)
    return counts[finite], values[finite]


@dataclass(frozen=True, order=True)
class MetricRow:
    """A row of a grid whose first axis is another metric than heterogeneity.

    Attributes:
        metric: `entropy` or `package.module:function`.
        value: The metric's value.
        reach: Maximum distance of a client's value, exclusive.
    """

    metric: str
    value: float
    reach: float = field(default=inf, compare=False)

    def counts(self, quantity: int, class_rows: IntArray) -> IntArray:
        """Return class counts of clients of the cell, the nearest first, shape `(found, classes)`.

        Args:
            quantity: Rows of a client.
            class_rows: Available rows of each class, shape `(classes,)`.
        """
        counts, values = _sampled_counts(self.metric, quantity, tuple(class_rows.tolist()))
        distances = np.abs(values - self.value)
        nearest = np.argsort(distances, kind="stable")[:KEPT]
        return np.asarray(counts[nearest[distances[nearest] < self.reach]])

    def fault(self, quantity: int, class_rows: IntArray) -> str | None:
        """Return why no client of the cell can be drawn; None if one can."""
        if len(self.counts(quantity, class_rows)):
            return None
        _, values = _sampled_counts(self.metric, quantity, tuple(class_rows.tolist()))
        there = f"{values.min():.3g} to {values.max():.3g}" if len(values) else "no client that the rows can fill"
        return f"needs clients within {self.reach:.3g} of that value, got {there} in {TRIES:,} tries"


QUANTITIES = (100, 200, 400, 600, 800, 1000)


@dataclass(frozen=True, order=True)
class CellPosition:
    """The position of a cell in the grid.

    Attributes:
        num_classes: Classes that each of its clients holds.
        quantity: Training rows that each of its clients holds.
        row: The value of a metric, in place of equal shares of the classes.
    """

    num_classes: int
    quantity: int
    row: MetricRow | None = None

    def heterogeneity(self, num_classes: int) -> float:
        """Return HI for `num_classes` classes in total, two or more, or the metric's value."""
        return 1 - (self.num_classes - 1) / (num_classes - 1) if self.row is None else self.row.value


def classes_of(heterogeneity: float, num_classes: int) -> int:
    """Return the number of classes with the HI nearest to one in [0, 1]; in a tie, the larger number."""
    return floor((1 - heterogeneity) * (num_classes - 1) + 1.5)


def grid_of(
    levels: Iterable[float],
    quantities: Iterable[int],
    num_classes: int,
    metric: str = HETEROGENEITY,
    among: Iterable[float] = (),
) -> tuple[CellPosition, ...]:
    """Return the full grid, levels and quantities ascending.

    Args:
        levels: Values of the first axis; those of heterogeneity become the nearest that exist.
        quantities: Values of the second axis.
        num_classes: Total number of classes.
        metric: Of the first axis.
        among: Further levels of the table, to one of which a client may be assigned.
    """
    columns, values = sorted({*quantities}), sorted({*levels})
    if metric == HETEROGENEITY:
        held = sorted({classes_of(value, num_classes) for value in values}, reverse=True)
        return tuple(CellPosition(*place) for place in product(held, columns))
    gaps = [high - low for low, high in pairwise(sorted({*values, *among}))]
    reach = inf if metric in METRICS else min(gaps, default=inf) / 2
    rows = [MetricRow(metric, value, reach) for value in values]
    return tuple(CellPosition(num_classes, quantity, row) for row, quantity in product(rows, columns))


def scaled(quantities: Sequence[int], most: int) -> tuple[int, ...]:
    """Return quantities, scaled down proportionally to a maximum of `most` if it is exceeded; none below 1."""
    largest = max(quantities)
    if largest <= most:
        return tuple(quantities)
    return tuple(max(1, floor(quantity * most / largest + 0.5)) for quantity in quantities)


def warm_started_by(
    cells: Sequence[CellPosition], known: Sequence[CellPosition] = ()
) -> dict[CellPosition, tuple[CellPosition, ...]]:
    """Return for each cell the earlier neighbours in the grid whose best settings it tries first.

    Neighbours are adjacent in a row or column. Known cells precede all others, which keep their order; so the result
    does not depend on which cell finishes first.

    Args:
        cells: To be tuned, in order.
        known: Tuned before.
    """
    order = {place: number for number, place in enumerate([*known, *cells])}
    levels = sorted({(place.num_classes, place.row) for place in order})
    quantities = sorted({place.quantity for place in order})
    at = {(levels.index((place.num_classes, place.row)), quantities.index(place.quantity)): place for place in order}
    first: dict[CellPosition, tuple[CellPosition, ...]] = {}
    for (row, column), place in at.items():
        around = ((row + 1, column), (row - 1, column), (row, column - 1), (row, column + 1))
        neighbours = (at[step] for step in around if step in at)
        first[place] = tuple(neighbour for neighbour in neighbours if order[neighbour] < order[place])
    return {place: first[place] for place in cells}


def finer_grid(
    places: Sequence[CellPosition], proxy: ProxyData, metric: str = HETEROGENEITY
) -> tuple[CellPosition, ...]:
    """Return the refined grid, columns before rows, as far as there are enough proxy rows; omitted ones are logged."""
    levels = {place.heterogeneity(proxy.num_classes) for place in places}
    quantities = {place.quantity for place in places}
    finer, wanted = refined_levels(levels, metric), refined_quantities(quantities)

    def grid(rows: Iterable[float], columns: Iterable[int]) -> tuple[CellPosition, ...]:
        return grid_of(rows, columns, proxy.num_classes, metric, finer)

    def fits(rows: Iterable[float], columns: Iterable[int]) -> bool:
        return not any(place_faults(place, proxy) for place in grid(rows, columns))

    columns = [one for one in wanted if one in quantities or fits(levels, [one])]
    rows = [one for one in finer if one in levels or fits([one], columns)]
    left_out = [f"quantity {one}" for one in wanted if one not in columns]
    left_out += [f"{metric} {one:.3g}" for one in finer if one not in rows]
    if left_out:
        logger.warning("there are too few proxy rows for %s, which the finer grid omits", ", ".join(left_out))
    return grid(rows, columns)


def refined_levels(levels: Iterable[float], metric: str = HETEROGENEITY) -> tuple[float, ...]:
    """Return the given levels and those between and beyond; none beyond a single value of a user's own metric."""
    values = sorted({*levels})
    lowest, highest = (0.0, 1.0) if metric in METRICS else (-inf, inf)
    return tuple(sorted({*values, *filter(isfinite, _midpoints(values, lowest, highest))}))


def refined_quantities(quantities: Iterable[int]) -> tuple[int, ...]:
    """Return the given quantities and those between and beyond; none below half the smallest."""
    values = sorted({*quantities})
    midpoints = (max(value, values[0] / 2) for value in _midpoints(values, 0.0, 2.0 * values[-1]))
    return tuple(sorted({*values, *(floor(value + 0.5) for value in midpoints)}))


def _midpoints(values: Sequence[float], lowest: float, highest: float) -> list[float]:
    """Return the midpoints of neighbours, and half a step beyond each end within the bounds.

    A single value has the bounds as its neighbours.
    """
    steps = [high - low for low, high in pairwise(values)]
    first, last = (steps[0], steps[-1]) if steps else (values[0] - lowest, highest - values[0])
    between = [low + step / 2 for low, step in zip(values[:-1], steps, strict=True)]
    return [max(lowest, values[0] - first / 2), *between, min(highest, values[-1] + last / 2)]


def place_faults(place: CellPosition, proxy: ProxyData) -> list[str]:
    """Return why the proxy clients of a cell can't be drawn; empty if they can."""
    axis = HETEROGENEITY if place.row is None else place.row.metric
    cell = f"the cell of {axis} {place.heterogeneity(proxy.num_classes):.2g} and quantity {place.quantity}"
    if place.row is not None:
        problem = place.row.fault(place.quantity, proxy.class_rows)
        return [] if problem is None else [Fault(cell, problem=problem)]
    num_present, most = int(np.count_nonzero(proxy.class_rows)), proxy.most_rows(place.num_classes)
    if place.num_classes <= num_present and place.num_classes <= place.quantity <= most:
        return []
    must = f"have {place.quantity} rows of {place.num_classes} classes per client, one of each at least"
    given = f"proxy data of {num_present} classes with at most {most} such rows"
    return [Fault(cell, must, given, "change --quantity or increase federation.server_rows")]


def draw_proxy_clients(place: CellPosition, proxy: ProxyData, num_clients: int, seed: int) -> IntArray:
    """Draw the clients of a cell, and return their training rows as indices of proxy rows, `(clients, quantity)`.

    Raises:
        ConfigurationError: If there are too few proxy rows.
    """
    if faults := place_faults(place, proxy):
        raise ConfigurationError(faults)
    purpose = "proxy-clients" if place.row is None else f"proxy-clients {place.row.metric} {place.row.value!r}"
    generator = stream(seed, purpose, place.num_classes, place.quantity)
    order = generator.permutation(proxy.num_trained)
    queues = [order[proxy.labels[order] == label] for label in range(proxy.num_classes)]
    assigned = np.zeros(proxy.num_classes, np.int64)
    clients = []
    for _ in range(num_clients):
        shares = _shares(place, proxy.class_rows, generator)
        client_rows = [
            queue.take(np.arange(start, start + share), mode="wrap")
            for queue, start, share in zip(queues, assigned, shares, strict=True)
            if share
        ]
        clients.append(np.sort(np.concatenate(client_rows)))
        assigned += shares
    return np.array(clients, np.int64)


def cell_federation(
    place: CellPosition, proxy: ProxyData, num_clients: int, seed: int, model: ModelFactory
) -> tuple[Federation, int]:
    """Draw the clients of a cell and return their federation, and how many of their training rows are repeated.

    The test part of each client is all scoring rows, at its end.

    Raises:
        ConfigurationError: As `draw_proxy_clients`.
    """
    clients = draw_proxy_clients(place, proxy, num_clients, seed)
    scored = np.arange(proxy.num_trained, len(proxy.labels))
    federation = Federation(
        name=f"{place.num_classes} classes, {place.quantity} rows, {num_clients} proxy clients",
        features=proxy.features,
        labels=proxy.labels,
        num_classes=proxy.num_classes,
        partition=Partition.from_lists([np.concatenate([rows, scored]) for rows in clients]),
        model=model,
        split="last",
    )
    return federation, clients.size - len(np.unique(clients))


def _shares(place: CellPosition, class_rows: IntArray, generator: np.random.Generator) -> IntArray:
    """Return the number of rows of each class of a client, shape `(num_classes,)`.

    Classes are drawn at random; while they hold too few rows, the smallest is replaced by the largest of the others.
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
    """Query the clients for sums of their features, and draw labelled rows from them.

    Raises:
        DataError: If rows are tokens, or if clients release too little.
    """
    if federation.facts.get("data_kind") == "tokens":
        raise DataError.of("--synthetic", "be left out for tokens, which have no mean")
    clients = [client for client in range(federation.num_clients) if client not in federation.unseen]
    engine = config.engine.model_copy(update={"grid": "local"})
    by_features = replace(federation, embedding=None)  # of which no row could be drawn
    with open_runner(by_features, engine, None, parallel=1) as runner:
        moments = hold(runner.grid(Session(seed=config.seed)), ask_moments(clients, config.detection.max_features))
    num_classes = np.count_nonzero(moments.classes.pooled_counts)
    if moments.pooled is None or num_classes < 2:
        reason = next(iter(moments.notes), f"they reported {num_classes} classes")
        raise DataError.of(
            "--synthetic", "be left out if clients do not report the sums of their features by class", hint=reason
        )
    within = within_covariance(moments.pooled, moments.classes)
    rows, labels = draw_rows(moments.classes, within, num_rows, stream(config.seed, "synthetic-rows"))
    return ServerData(rows.reshape(-1, *federation.features.shape[1:]).astype(np.float32), labels)


def draw_rows(
    classes: ClassMoments, within: Values, num_rows: int, generator: np.random.Generator
) -> tuple[Values, IntArray]:
    """Draw normal rows, shape `(num_rows, d)`, and their labels, shape `(num_rows,)`.

    Args:
        classes: The class means, of the classes that were reported.
        within: Within-class covariance, shape `(d, d)`, whose eigenvalues may be negative by rounding.
        num_rows: Total number of rows.
        generator: The random generator.
    """
    present = np.flatnonzero(classes.pooled_counts)
    labels = np.sort(present[np.arange(num_rows) % len(present)])
    no_mean = np.zeros(len(within))
    noise = generator.multivariate_normal(no_mean, within, num_rows, check_valid="ignore", method="eigh")
    return classes.means[labels] + noise, labels.astype(np.int64)
