"""The description of a federation: what differs between clients, what a scenario changed, dependent rows.

What a scenario did to each client: measured on its rows, which are compared with those it would hold without.

An attack on what a client sends up is named and not measured: nothing is trained here.

What must be known of a run's scores: what its split leaks of rows that belong together, and that few clients score.

Columns of a table that tell the label (`own_columns.py`) come first. Accuracy on test rows is that on new data only if
test rows are independent of the training rows. Said is that a data
set known to be a series is split at random; that one cut in its order is tested on the same rows by every seed, so that
no interval over seeds is one for new data; that a partition deals rows of one group to several clients, so that what
one tests on resembles what another trains on; and that more test rows have near copies among the training rows than
independent rows would (`fedscout.detectors.near_copies`).

The last is measured on the split of the study's seed, on rows as they are stored, over all clients together: up to
`LOOKED_AT` test rows against the training rows of all clients, of which a random sample is taken where they hold more
than `MAX_CELLS` numbers. With more than `CLIENTS_SPLIT` clients, test rows are those of as many drawn ones, and all
rows of the others train. Texts are not compared: their token numbers have no distance.

The whole description of a federation: a value that is printed, drawn and written as JSON.

How far clients' features are apart: the distances that detection reports, without sending a message.

Bins and distances are those of `fedscout.detectors.feature_skew`, so the values are those of a detection of
the same clients, up to the rounding of the bins' edges. Only the moments that place the bins are obtained differently:
in one pass over the rows of all clients at once, as sums of x − x₀ and (x − x₀)² for one of the rows, x₀. A constant
feature thus has variance 0 exactly, and since |x₀ − μ| ≤ √(N − 1) σ for a row of the data, at most a factor N of the
last bit is lost.

What each client holds, corruption included: counts of all clients at once, rows of one when they are needed.

Clients whose data a scenario changes are read through `Federation.client_data(client).own`, so what is described is
what the client has. All others are counted together, without a loop over clients.

The heterogeneity that a partition and a scenario have in fact produced, in numbers that every run can report.

A partition is asked for by a knob such as Dirichlet's alpha; what comes out depends on the data and on chance. These
are the metrics of `fedscout.detectors.statistics`, computed by whoever built the federation. What
detection reports too has the same name, and where clients tell all (`federation.min_release=1`) the same value for the
same settings and seed: metrics are over the clients that hold at least `federation.min_release` rows, as others answer
no query, and distances over the pairs of the same drawn clients.

Distances of features are the detectors' where these compare the features themselves. Where a federation names a
network whose view detectors compare, the features as stored are compared here, and a note says so.

How far clients' texts are apart: the Hellinger distance of their token histograms.

A token's number says nothing of its meaning, so positions are not compared as numbers are, and there is no Wasserstein
distance. The histogram of a client counts all tokens of all its rows; 0 is padding and is not counted. Of a large
vocabulary, the most frequent tokens have a bin each and all others share one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from fedscout.detectors import statistics as metrics
from fedscout.detectors.feature_skew import Bins, FeatureDistances, feature_distances, feature_histogram
from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew, label_counts
from fedscout.detectors.near_copies import NearCopies, count_near_copies
from fedscout.detectors.report import DetectionConfig, Finding
from fedscout.detectors.statistics import Values, distribution, mean_pairwise_hellinger, paired_clients
from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import UpdateAttack
from fedscout.engine.data.client import CHUNK_ROWS, ClientTransform, Partition, QueryInputs, Samples
from fedscout.engine.data.devices import Device
from fedscout.engine.data.federation import Federation, Names
from fedscout.engine.seeds import stream
from fedscout.engine.text import listed
from fedscout.experiments.data.columns import list_argument


@dataclass(frozen=True)
class Holdings:
    """The rows of all clients, as they have them.

    Attributes:
        features: Rows of the source, flat, the chosen columns only, shape `(source_rows, num_columns)`.
        labels: Of the source, shape `(source_rows,)`.
        partition: Which rows of the source are whose.
        changed: Rows of each client that a scenario changes, flat, the chosen columns only.
        label_counts: Shape `(num_clients, num_classes)`.
        num_columns: Numbers in one row of the source, of which some may be chosen.
    """

    features: FloatArray
    labels: IntArray
    partition: Partition
    changed: Mapping[int, Samples]
    label_counts: IntArray
    num_columns: int

    def client(self, client: int) -> Samples:
        """Return the rows of one client."""
        return self.changed[client] if client in self.changed else self.clean(client)

    def clean(self, client: int) -> Samples:
        """Return the rows of one client as they were before the scenario."""
        return Samples(self.features, self.labels, self.partition.client(client))


def holdings_of(federation: Federation, max_columns: int, seed: int) -> Holdings:
    """Read a federation.

    Args:
        federation: With its rows.
        max_columns: With more numbers in a row than that, as many are drawn.
        seed: Of the draw.
    """
    assert len(federation.features) == len(federation.labels), "a federation without its rows can't be described"
    num_columns = row_length(federation)
    flat = federation.features.reshape(len(federation.labels), num_columns)
    columns: IntArray | None = None
    if num_columns > max_columns:
        drawn = stream(seed, "described-columns").choice(num_columns, size=max_columns, replace=False)
        columns = np.sort(drawn).astype(np.int64)
        flat = flat[:, columns]
    changed = {}
    for client in sorted(client for client, steps in federation.transforms.items() if steps):
        own = federation.client_data(client).own
        rows = own.features.reshape(len(own), num_columns)
        changed[client] = Samples(rows if columns is None else rows[:, columns], own.labels, own.rows)
    return Holdings(
        features=flat,
        labels=federation.labels,
        partition=federation.partition,
        changed=changed,
        label_counts=_label_counts(federation, changed),
        num_columns=num_columns,
    )


def row_length(federation: Federation) -> int:
    """Return how many numbers a row has."""
    return math.prod(federation.features.shape[1:])


def _label_counts(federation: Federation, changed: Mapping[int, Samples]) -> IntArray:
    partition, num_classes = federation.partition, federation.num_classes
    cells = np.repeat(np.arange(partition.num_clients) * num_classes, partition.sizes)
    cells += federation.labels[partition.rows]
    counts = np.bincount(cells, minlength=partition.num_clients * num_classes).astype(np.int64)
    counts = counts.reshape(partition.num_clients, num_classes)
    for client, own in changed.items():
        counts[client] = label_counts(QueryInputs(own, num_classes, {}, {}))["counts"].values
    return counts


class ClientChange(BaseModel):
    """What a scenario did to one client.

    Attributes:
        client: Its number.
        steps: The transforms of its rows, in order, with their parameters.
        num_rows: Rows it holds.
        num_labels_changed: Of which so many have another label than without the scenario.
        share_numbers_changed: Share of the compared numbers of its rows that are others than without, in `[0, 1]`.
        feature_shift: Mean of what was added to a number, in standard deviations of a feature.
        feature_deviation: Standard deviation of what was added, likewise.
        dropout: Probability that it misses a round.
        latency_shift: Simulated seconds that its round takes at least; None without a device.
        latency_mean: Mean of the exponential time on top; None without a device.
        seconds_per_step: Simulated seconds of an optimiser step; None without a device.
        bytes_per_second_down: Its bandwidth from the server; None where messages take no time.
        bytes_per_second_up: To the server, likewise.
        attacks: What is done to the update that it sends, in order, with parameters.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    client: int
    steps: tuple[str, ...] = ()
    num_rows: int
    num_labels_changed: int = 0
    share_numbers_changed: float = 0.0
    feature_shift: float = 0.0
    feature_deviation: float = 0.0
    dropout: float = 0.0
    latency_shift: float | None = None
    latency_mean: float | None = None
    seconds_per_step: float | None = None
    bytes_per_second_down: float | None = None
    bytes_per_second_up: float | None = None
    attacks: tuple[str, ...] = ()

    @property
    def has_latency(self) -> bool:
        """Whether its rounds take time whatever is done in them."""
        return bool(self.latency_shift or self.latency_mean)


def changes_of(federation: Federation, holdings: Holdings) -> tuple[ClientChange, ...]:
    """Return what happened to each client whose rows, availability or updates a scenario changes, ascending."""
    clients = sorted({*holdings.changed, *federation.dropout, *federation.devices, *federation.attacks})
    return tuple(_change(federation, holdings, client) for client in clients)


def _change(federation: Federation, holdings: Holdings, client: int) -> ClientChange:
    device = federation.devices.get(client)
    return ClientChange(
        client=client,
        steps=tuple(_name(step) for step in federation.transforms.get(client, ())),
        num_rows=int(federation.partition.sizes[client]),
        dropout=federation.dropout.get(client, 0.0),
        **({} if device is None else _timings(device)),
        attacks=tuple(_name(attack) for attack in federation.attacks.get(client, ())),
        **_differences(holdings, client, float(federation.facts.get("feature_unit", 1.0))),
    )


def _timings(device: Device) -> Mapping[str, float | None]:
    down, up = device.bytes_per_second_down, device.bytes_per_second_up
    return {
        "latency_shift": device.shift_seconds,
        "latency_mean": device.mean_seconds,
        "seconds_per_step": device.seconds_per_step,
        "bytes_per_second_down": down if isfinite(down) else None,
        "bytes_per_second_up": up if isfinite(up) else None,
    }


def _name(step: ClientTransform | UpdateAttack) -> str:
    """Return a transform or an attack as its dataclass shows it; by its class where that would tell an address."""
    text = repr(step)
    return type(step).__name__ if " at 0x" in text else text


def _differences(holdings: Holdings, client: int, unit: float) -> Mapping[str, float]:
    """Compare the client's rows with the untouched ones, which are in the same order."""
    own, clean = holdings.client(client), holdings.clean(client)
    if client not in holdings.changed or len(own) == 0:
        return {}
    added = own.features[own.rows].astype(np.float64) - clean.features[clean.rows]
    return {
        "num_labels_changed": int(np.count_nonzero(own.labels[own.rows] != clean.labels[clean.rows])),
        "share_numbers_changed": float(np.count_nonzero(added) / added.size),
        "feature_shift": float(added.mean() / unit),
        "feature_deviation": float(added.std() / unit),
    }


MOST_COLUMNS_TOLD: Final = 5
LOOKED_AT: Final = 200
CLIENTS_SPLIT: Final = 100
MAX_NUMBERS: Final = 20_000_000
"""Numbers in the training rows: about a second of work."""


def dependence_notes(federation: Federation, seed: int, test_fraction: float) -> tuple[str, ...]:
    """Return what a reader must know of rows that belong together; nothing where nothing is known or found.

    Args:
        federation: With its rows.
        seed: Of the study.
        test_fraction: Share of test rows a client.
    """
    if federation.task is not None:
        return ()
    columns: Sequence[Mapping[str, str]] = federation.facts.get("columns", ())
    notes = [*_leak_notes(columns)]
    series = federation.facts.get("series")
    if series and federation.split == "random" and federation.groups is None:
        notes.append(_series_note(str(series), federation.facts.get("accuracy_by_split")))
    if federation.split == "last":
        notes.append(
            "Every seed tests on the same rows, each client's last ones: intervals are for another training run here, "
            "and too short for new data."
        )
    shared, total = _shared_groups(federation)
    if shared:
        notes.append(
            f"{shared} of {total} groups of federation.group_column are held by several clients: no client tests on a "
            "group that it trains on, but on groups that others train on."
        )
    copies = near_copies_of_test_rows(federation, seed, test_fraction)
    if copies is not None and copies.too_many:
        notes.append(_copies_note(federation, copies))
    return tuple(notes)


def scored_notes(federation: Federation, num_scored: int | None) -> tuple[str, ...]:
    """Return that scores are of a few clients, where they are (`training.scored_clients`)."""
    if num_scored is None or num_scored >= federation.num_seen:
        return ()
    return (
        f"Every score is of {num_scored} of {federation.num_seen} clients, others for each seed "
        "(training.scored_clients): what is said of all, or of one, is of those.",
    )


def _leak_notes(columns: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield which of the columns that models see tell the label, and the key that drops them."""
    leaks = [column for column in columns if column["suspicion"] and not column["became"].startswith("left out")]
    if leaks:  # the key first, as screens cut the end
        said = listed([f"{column['name']} {column['suspicion']}" for column in leaks], MOST_COLUMNS_TOLD)
        key = list_argument("drop_columns", *(column["name"] for column in leaks))
        yield f"{key} leaves out what may be the label itself: {said}."


def _series_note(series: str, accuracy_by_split: str | None) -> str:
    """Return what a random split of a series leaks, with what was measured where it was."""
    told = (
        f"The rows are a series, {series}, split at random: neighbours of test rows train, which may flatter accuracy. "
    )
    if accuracy_by_split is None:
        return f"{told}federation.split=last tests on each client's last rows."
    return f"{told}FedAvg had {accuracy_by_split} (docs/bearing.md)."


def _copies_note(federation: Federation, copies: NearCopies) -> str:
    """Return what copies do, and what to do about them, before how many there are, as screens cut the end."""
    advice = (
        "federation.group_column keeps what belongs together on one side, federation.split=last cuts a series."
        if federation.groups is None
        else "Groups are kept together already, so copies are of other groups, or held by other clients."
    )
    columns: Sequence[Mapping[str, str]] = federation.facts.get("columns", ())
    named = [column["name"] for column in columns if column["key"] == f"federation.group_column={column['name']}"]
    if named and federation.groups is None:
        advice += f" What they belong to may stand in {listed(named, MOST_COLUMNS_TOLD)}."
    return (
        "Test rows have near copies among the training rows, so that what is learnt by heart counts as accuracy. "
        f"{advice} Copies: {copies.text()}."
    )


def _shared_groups(federation: Federation) -> tuple[int, int]:
    """Return how many groups several clients hold rows of, and how many there are."""
    if federation.groups is None:
        return 0, 0
    owners = np.repeat(np.arange(federation.num_clients), federation.partition.sizes)
    pairs = np.unique(np.column_stack([federation.groups[federation.partition.rows], owners]), axis=0)
    _, holders = np.unique(pairs[:, 0], return_counts=True)
    return int(np.count_nonzero(holders > 1)), len(holders)


def near_copies_of_test_rows(federation: Federation, seed: int, test_fraction: float) -> NearCopies | None:
    """Count near copies of test rows among the training rows of all clients; None for texts, or without rows.

    Args:
        federation: With its rows.
        seed: Of the study, whose split it is.
        test_fraction: Share of test rows a client.
    """
    if federation.facts.get("data_kind") == "tokens" or not len(federation.labels):
        return None
    generator = stream(seed, "near-copies")
    train, test = _split_rows(federation, seed, test_fraction, generator)
    test = generator.permutation(test)[:LOOKED_AT]
    train = generator.permutation(train)[: max(1, MAX_NUMBERS // max(row_length(federation), 1))]
    rows = federation.features.reshape(len(federation.labels), -1)
    return count_near_copies(rows[test].astype(np.float64), rows[train].astype(np.float64))


def _split_rows(
    federation: Federation, seed: int, test_fraction: float, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Return the rows that train and those that test."""
    drawn = generator.permutation(federation.num_clients)[:CLIENTS_SPLIT]
    tested = [np.empty(0, np.int64)]
    for client in np.sort(drawn).tolist():
        rows = federation.partition.client(client)
        tested.append(rows[federation.split_rows(client, federation.labels[rows], seed, test_fraction, 0.0).test])
    test = np.unique(np.concatenate(tested))
    return np.setdiff1d(federation.partition.rows, test), test


BLOCK_NUMBERS = 2**22
"""Histograms are compared in blocks of features of about as many numbers: 32 MiB in float64."""


def measure_features(
    holdings: Holdings, measured: Sequence[int], paired: Sequence[int], settings: DetectionConfig
) -> FeatureDistances | None:
    """Return the mean distances; None with fewer than two clients or no feature that varies.

    Args:
        holdings: What clients hold.
        measured: Clients over whose rows mean and variance are taken.
        paired: Clients whose pairs are averaged.
        settings: Number of bins and their reach.
    """
    if len(paired) < 2:
        return None
    mean, variance = _moments(holdings, measured)
    bins = Bins.around(mean, variance, settings.histogram_bins, settings.histogram_reach)
    arrays = {"start": bins.start, "width": bins.width}
    inputs = (QueryInputs(holdings.client(client), 1, arrays, {"bins": bins.bins}) for client in paired)
    counts = np.stack([feature_histogram(one)["counts"].values for one in inputs])  # (clients, d, bins)
    return _mean_distances(counts.astype(np.int64, copy=False), bins)


def _mean_distances(counts: IntArray, bins: Bins) -> FeatureDistances | None:
    """Average over features, block by block, so that memory does not grow with them."""
    block = max(1, BLOCK_NUMBERS // (len(counts) * bins.bins))
    parts = []
    for start in range(0, len(bins.width), block):
        some = slice(start, start + block)
        own = replace(bins, start=bins.start[some], width=bins.width[some])
        found = feature_distances(counts[:, some], own)
        if found is not None:
            parts.append((found, np.count_nonzero(own.width > 0)))
    if not parts:
        return None
    weights = [weight for _, weight in parts]
    return FeatureDistances(
        wasserstein=float(np.average([part.wasserstein for part, _ in parts], weights=weights)),
        hellinger=float(np.average([part.hellinger for part, _ in parts], weights=weights)),
    )


def _moments(holdings: Holdings, clients: Sequence[int]) -> tuple[Values, Values]:
    """Return mean and variance of each column over all rows of some clients, shapes `(d,)`."""
    origin = holdings.features[holdings.partition.client(clients[0])[0]].astype(np.float64)
    num_rows = 0
    sums, squares = np.zeros(len(origin)), np.zeros(len(origin))
    for rows, times in _weighted_rows(holdings, clients):
        offsets = rows - origin
        num_rows += int(times.sum())
        sums += np.einsum("r,rc->c", times, offsets)  # no BLAS, whose sums depend on its threads
        squares += np.einsum("r,rc->c", times, np.square(offsets, out=offsets))
    variance = np.maximum(squares - sums**2 / num_rows, 0.0) / max(num_rows - 1, 1)
    return origin + sums / num_rows, variance


def _weighted_rows(holdings: Holdings, clients: Sequence[int]) -> Iterator[tuple[Values, Values]]:
    """Yield rows and how often clients hold each of them: those of the source, then those that a scenario changed."""
    untouched = [holdings.partition.client(client) for client in clients if client not in holdings.changed]
    if untouched:
        times = np.bincount(np.concatenate(untouched), minlength=len(holdings.labels)).astype(np.float64)
        for start in range(0, len(times), CHUNK_ROWS):
            some = slice(start, start + CHUNK_ROWS)
            if times[some].any():
                yield holdings.features[some].astype(np.float64), times[some]
    for client in clients:
        if client in holdings.changed:
            for rows, _ in holdings.changed[client].chunks():
                yield rows.astype(np.float64), np.ones(len(rows))


MAX_BINS = 2000


def token_hellinger(holdings: Holdings, paired: Sequence[int]) -> float | None:
    """Return the mean distance over all pairs of clients; None if fewer than two hold a token.

    Args:
        holdings: What clients hold; rows are token numbers.
        paired: Clients whose pairs are averaged.
    """
    vocabulary_size = 1 + max((int(_tokens(holdings.client(client)).max(initial=0)) for client in paired), default=0)
    total = np.zeros(vocabulary_size, np.int64)
    for client in paired:
        total += np.bincount(_tokens(holdings.client(client)), minlength=vocabulary_size)
    bins = _bins(total)
    num_bins = int(bins.max(initial=0)) + 1
    counts = [np.bincount(bins[_tokens(holdings.client(client))], minlength=num_bins)[1:] for client in paired]
    holding = [one for one in counts if one.sum() > 0]
    return float(mean_pairwise_hellinger(distribution(np.stack(holding)))) if len(holding) > 1 else None


def _tokens(rows: Samples) -> IntArray:
    return rows.features[rows.rows].reshape(-1).astype(np.int64)


def _bins(total: IntArray) -> IntArray:
    """Return each token's bin: 0 for padding, then the most frequent tokens, then one for all others."""
    by_frequency = 1 + np.argsort(-total[1:], kind="stable")
    bins = np.zeros(len(total), np.int64)
    bins[by_frequency] = np.minimum(np.arange(len(by_frequency)) + 1, MAX_BINS)
    return bins


QUICK_COLUMNS = 64
"""So many columns of a row are compared where every run must pay for it."""

MAX_COMPARED = 400_000
"""Most columns times clients that are compared: some ten seconds of work."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Spread(_Value):
    """How a number is distributed over clients: smallest, quartiles, largest and mean."""

    smallest: float
    lower_quartile: float
    median: float
    upper_quartile: float
    largest: float
    mean: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Spread:
        """Return the spread of at least one value."""
        found = np.asarray(values, dtype=np.float64)
        marks = [float(mark) for mark in np.quantile(found, [0, 0.25, 0.5, 0.75, 1])]
        names = ("smallest", "lower_quartile", "median", "upper_quartile", "largest")
        return cls(**dict(zip(names, marks, strict=True)), mean=float(found.mean()))


class RealizedHeterogeneity(_Value):
    """How the data of a federation's clients differ; None where there is nothing to measure.

    Attributes:
        num_clients: Clients, empty ones included.
        num_empty_clients: Those without a row.
        num_measured_clients: Those with at least `federation.min_release` rows, over which everything below
            `client_rows` is measured.
        num_paired_clients: Those over whose pairs the distances are averaged.
        num_classes: Classes.
        num_rows: Rows of the data set.
        num_rows_dealt: Those that at least one client holds.
        num_rows_not_dealt: Those that nobody holds.
        num_rows_repeated: Further copies of rows that are held more than once, by the same client or by others.
        client_rows: Rows of a client, over all clients.
        quantity_ratio: Largest over smallest number of rows.
        quantity_variation: Coefficient of variation of the numbers of rows.
        quantity_gini: Gini coefficient of the numbers of rows.
        label_hellinger: Mean Hellinger distance of label distributions over pairs, in `[0, 1]`.
        label_wasserstein: Mean 1-Wasserstein distance of the same, class numbers taken as places on a line: in classes;
            None of classes with names that are no numbers, whose order means nothing.
        label_skew: Largest Jensen-Shannon divergence between a client's labels and everyone's, in bits.
        label_skew_client: Whose that is.
        label_divergence: The divergence over clients.
        heterogeneity_index: 1 − (c − 1)/(c_max − 1) of a client that holds c of c_max classes, over clients.
        feature_hellinger: Mean Hellinger distance of feature histograms over pairs and features, in `[0, 1]`.
        feature_wasserstein: Mean 1-Wasserstein distance over pairs and features, in standard deviations.
        num_features: Numbers in a row.
        num_features_compared: Of which so many were compared.
        token_hellinger: For texts: mean Hellinger distance of token histograms over pairs, in place of the two.
        notes: What a reader must know of how it was measured.
    """

    num_clients: int
    num_empty_clients: int
    num_measured_clients: int
    num_paired_clients: int
    num_classes: int
    num_rows: int
    num_rows_dealt: int
    num_rows_not_dealt: int
    num_rows_repeated: int
    client_rows: Spread
    quantity_ratio: float | None = None
    quantity_variation: float | None = None
    quantity_gini: float | None = None
    label_hellinger: float | None = None
    label_wasserstein: float | None = None
    label_skew: float | None = None
    label_skew_client: int | None = None
    label_divergence: Spread | None = None
    heterogeneity_index: Spread | None = None
    feature_hellinger: float | None = None
    feature_wasserstein: float | None = None
    num_features: int
    num_features_compared: int = 0
    token_hellinger: float | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Measurement:
    """The realised heterogeneity and what it was computed from.

    Attributes:
        realised: The numbers.
        holdings: What clients hold.
        label_skew: The detector's finding, which has every client's divergence.
        heterogeneity_indices: Of each measured client.
    """

    realised: RealizedHeterogeneity
    holdings: Holdings
    label_skew: Finding
    heterogeneity_indices: Mapping[int, float]


def realised(
    federation: Federation, settings: DetectionConfig | None = None, seed: int = 0, max_features: int = QUICK_COLUMNS
) -> RealizedHeterogeneity:
    """Measure what a federation has become. Equal arguments give equal results, to the last bit.

    Args:
        federation: With its rows.
        settings: Of detection, for limits and bins; None for the defaults.
        seed: Of clients and features that are drawn where there are too many; detection draws by the study's seed.
        max_features: Most features that are compared; of more, as many are drawn.
    """
    return measure(federation, settings or DetectionConfig(), seed, max_features).realised


def measure(federation: Federation, settings: DetectionConfig, seed: int, max_features: int) -> Measurement:
    """Measure as `realised`, and return what it was computed from, too."""
    sizes, plays = federation.partition.sizes, federation.task is not None
    measured = tuple(np.flatnonzero(sizes >= max(federation.release.min_release, 1)).tolist())
    paired = paired_clients(measured, settings.max_pairwise_clients, seed)
    is_text = federation.facts.get("data_kind") == "tokens"
    num_compared = max(1, min(max_features, MAX_COMPARED // max(len(paired), 1)))
    holdings = holdings_of(federation, row_length(federation) if is_text else num_compared, seed)
    with_labels = () if plays else measured
    counts = holdings.label_counts
    whole = ReleasedCounts.whole({client: counts[client] for client in with_labels})
    finding = decide_label_skew(whole, settings.label_threshold)
    indices = _heterogeneity_indices(counts, with_labels)
    found: dict[str, object] = {
        **metrics.count_metrics(counts[list(with_labels)], counts[list(paired)], federation.has_ordered_classes),
        "heterogeneity_index": Spread.of(list(indices.values())) if indices else None,
    }
    if finding.value is not None:
        found |= {
            "label_skew": finding.value,
            "label_skew_client": max(finding.client_values, key=finding.client_values.__getitem__),
            "label_divergence": Spread.of(list(finding.client_values.values())),
        }
    if is_text and not plays:
        found["token_hellinger"] = token_hellinger(holdings, paired)
    elif not plays and (distances := measure_features(holdings, measured, paired, settings)) is not None:
        found |= {"feature_hellinger": distances.hellinger, "feature_wasserstein": distances.wasserstein}
        found["num_features_compared"] = holdings.features.shape[1]
    times = np.bincount(federation.partition.rows, minlength=len(federation.labels))
    dealt = int(np.count_nonzero(times))
    document = {
        "num_clients": federation.num_clients,
        "num_empty_clients": int(np.count_nonzero(sizes == 0)),
        "num_measured_clients": len(measured),
        "num_paired_clients": len(paired),
        "num_classes": federation.num_classes,
        "num_rows": len(federation.labels),
        "num_rows_dealt": dealt,
        "num_rows_not_dealt": len(federation.labels) - dealt,
        "num_rows_repeated": int(sizes.sum()) - dealt,
        "client_rows": Spread.of(sizes),
        "num_features": holdings.num_columns,
        **found,
        "notes": _notes(federation, holdings, len(measured), len(paired), is_text),
    }
    return Measurement(RealizedHeterogeneity.model_validate(document), holdings, finding, indices)


def _heterogeneity_indices(counts: IntArray, measured: Sequence[int]) -> dict[int, float]:
    num_classes = counts.shape[1]
    by_present = [metrics.heterogeneity_index(present, num_classes) for present in range(1, num_classes + 1)]
    present = np.count_nonzero(counts, axis=1)
    return {client: by_present[present[client] - 1] for client in measured}


def _notes(
    federation: Federation, holdings: Holdings, num_measured: int, num_paired: int, is_text: bool
) -> tuple[str, ...]:
    """Say what was left out, drawn, or measured in place of something else."""
    if federation.task is not None:
        return (
            "Clients play episodes in place of holding rows, so there is nothing to compare; their rows only count.",
        )
    notes = []
    left_out = federation.num_clients - num_measured
    if left_out:
        notes.append(
            f"{left_out} of {federation.num_clients} clients hold fewer than {federation.release.min_release} rows "
            "(federation.min_release) and are left out of all metrics, as in detection."
        )
    if num_paired < num_measured:
        notes.append(
            f"Label and feature distances are over the pairs of {num_paired} clients drawn by seed, of {num_measured}."
        )
    if is_text:
        notes.append(
            f"Rows are texts: token histograms are compared, without padding; beyond the {MAX_BINS - 1} most frequent, "
            "tokens share a bin."
        )
    elif holdings.features.shape[1] < holdings.num_columns:
        notes.append(
            f"Feature distances are over {holdings.features.shape[1]} of {holdings.num_columns} numbers of a row, "
            "drawn by seed."
        )
    if federation.embedding is not None:
        notes.append("Detection compares a network's view of a row; here the rows are compared as they are stored.")
    return tuple(notes)


class ClientDescription(BaseModel):
    """One client.

    Attributes:
        client: Its number.
        name: Of a natural client; else None.
        num_rows: Rows it holds.
        label_counts: Rows of each class, as the client has them; empty for clients that play episodes.
        label_divergence: Jensen-Shannon divergence between its labels and everyone's, in bits; None if not measured.
        heterogeneity_index: 1 − (c − 1)/(c_max − 1), c of c_max classes present; None if not measured.
        affected: Whether a scenario is known to have made it different.
        physics: Of a client that plays episodes, as the task shows them; else None.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    client: int
    name: str | None = None
    num_rows: int
    label_counts: tuple[int, ...]
    label_divergence: float | None = None
    heterogeneity_index: float | None = None
    affected: bool = False
    physics: str | None = None


class Description(BaseModel):
    """A federation and how its clients differ.

    Attributes:
        name: For people.
        source: Who published the data.
        data_kind: What a row is: table, image, tokens or embedding.
        feature_shape: Of one row.
        class_names: In the order of the counts; empty if classes have no names.
        realised: The numbers over all clients.
        clients: Each client.
        changes: What a scenario did to clients.
        affected_clients: Clients that a scenario is known to have made different, by their rows or by the deal.
        unseen_clients: Clients that join after the training; the numbers are over them, too.
        target_name: The quantity that is predicted, whose tenths the classes are; nothing where classes are predicted.
        score_name: What clients that play episodes are scored by; None where clients hold rows.
        dependence: What a reader must know of rows that belong together.
        facts: What the builder put on record.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    source: str
    data_kind: str
    feature_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    realised: RealizedHeterogeneity
    clients: tuple[ClientDescription, ...]
    changes: tuple[ClientChange, ...]
    affected_clients: tuple[int, ...]
    unseen_clients: tuple[int, ...] = ()
    target_name: str = ""
    score_name: str | None = None
    dependence: tuple[str, ...] = ()
    facts: dict[str, Any]

    @property
    def names(self) -> Names:
        """Of clients and classes."""
        return Names(tuple(one.name or str(one.client) for one in self.clients), self.class_names)

    @property
    def class_counts(self) -> tuple[tuple[str, int], ...]:
        """Each class with its rows over all clients, the most frequent first; empty where clients hold no rows."""
        if self.score_name is not None or not self.clients:
            return ()
        counts = [sum(column) for column in zip(*(one.label_counts for one in self.clients), strict=True)]
        named = [
            self.class_names[label] if label < len(self.class_names) else str(label) for label in range(len(counts))
        ]
        return tuple(sorted(zip(named, counts, strict=True), key=lambda pair: -pair[1]))


def describe_federation(
    federation: Federation, settings: DetectionConfig, seed: int, test_fraction: float = 0.2
) -> Description:
    """Describe a federation.

    Args:
        federation: With its rows.
        settings: Of detection, whose limits, bins and sample are used.
        seed: Of the study, by which detection draws its sample and clients split their rows.
        test_fraction: Share of test rows a client.
    """
    measurement = measure(federation, settings, seed, settings.max_features)
    return Description(
        name=federation.name,
        source=str(federation.facts.get("source", "")),
        data_kind=str(federation.facts.get("data_kind", "table")),
        feature_shape=federation.features.shape[1:],
        class_names=federation.class_names,
        realised=measurement.realised,
        clients=_clients(federation, measurement),
        changes=changes_of(federation, measurement.holdings),
        affected_clients=federation.affected_clients,
        unseen_clients=tuple(sorted(federation.unseen)),
        target_name=federation.target_name,
        score_name=None if federation.task is None else federation.task.score_name,
        dependence=dependence_notes(federation, seed, test_fraction),
        facts=dict(federation.facts),
    )


def _clients(federation: Federation, measurement: Measurement) -> tuple[ClientDescription, ...]:
    names = federation.facts.get("client_names", ())
    divergences, indices = measurement.label_skew.client_values, measurement.heterogeneity_indices
    affected = frozenset(federation.affected_clients)
    counts = measurement.holdings.label_counts.tolist()
    sizes = federation.partition.sizes.tolist()
    plays = federation.task is not None
    physics = getattr(federation.task, "physics", ())
    return tuple(
        ClientDescription(
            client=client,
            name=str(names[client]) if client < len(names) else None,
            num_rows=sizes[client],
            label_counts=() if plays else tuple(counts[client]),
            label_divergence=divergences.get(client),
            heterogeneity_index=indices.get(client),
            affected=client in affected,
            physics=repr(physics[client]) if client < len(physics) else None,
        )
        for client in range(federation.num_clients)
    )
