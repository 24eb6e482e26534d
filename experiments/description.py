"""Description of a federation: how its clients differ, what a scenario changed, and which rows depend on each other.

The heterogeneity metrics are those of `fedscout.detectors.statistics`, computed centrally from all rows, without
messages. They measure what a partition and a scenario actually produced, since the outcome of a setting such as
Dirichlet's alpha depends on the data and on chance. Metrics that detection also reports have the same name and, with
`federation.min_release=1`, the same value for the same settings and seed: they cover the clients with at least
`federation.min_release` rows, as other clients answer no query, and distances cover pairs of the same sampled clients.
Where detectors compare embeddings of rows (`federation.embedding`), the stored features are compared here instead, and
a note says so.

Feature distances use the bins and distances of `fedscout.detectors.feature_skew`, so they equal those of detection up
to the rounding of bin edges. Only the moments that place the bins are computed differently: in one pass over the rows
of all clients, as sums of x − x₀ and (x − x₀)² for one of the rows, x₀. A constant feature therefore has a variance of
exactly 0, and since |x₀ − μ| ≤ √(N − 1) σ, at most a factor N of the last bit is lost.

The features of texts are not compared, as token numbers carry no meaning.

Clients whose data a scenario changes are read through `Federation.client_data(client).own`; all others are counted
together, without a loop over clients. The changes are measured by comparing each client's rows with its original ones.
Attacks on updates are named but not measured, as nothing is trained.

Dependence notes warn where test accuracy may not hold on new data: columns that reveal the label (`own_columns.py`); a
time series that is split at random; a split in row order, which tests every seed on the same rows, so that intervals
over seeds are not valid for new data; groups of rows that are held by several clients; and more near copies of test
rows among the training rows than independent rows would have (`fedscout.detectors.near_copies`). Near copies are
counted on the split of the study's seed, on stored rows, over all clients together: up to `NUM_EXAMINED` test rows are
compared with the training rows of all clients, or with a random sample of these if they hold more than `MAX_NUMBERS`
numbers. With more than `CLIENTS_SPLIT` clients, test rows come from that many sampled clients, and all rows of the
others are training rows. Texts are not compared, as token numbers have no distance.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from fedscout.detectors import statistics as metrics
from fedscout.detectors.feature_skew import Bins, feature_distances, feature_histogram
from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew, label_counts
from fedscout.detectors.near_copies import NearCopies, count_near_copies
from fedscout.detectors.report import DetectionConfig, Finding
from fedscout.detectors.statistics import Values, paired_clients
from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import UpdateAttack
from fedscout.engine.data.client import CHUNK_ROWS, ClientTransform, Partition, QueryInputs, Samples
from fedscout.engine.data.federation import Federation, Names
from fedscout.engine.seeds import stream
from fedscout.engine.text import listed
from fedscout.experiments.data.dataset import blocks, list_argument


@dataclass(frozen=True)
class ClientRows:
    """The rows of all clients, including the scenario's changes.

    Attributes:
        features: Flattened source rows, chosen columns only, shape `(source_rows, num_columns)`.
        labels: Source labels, shape `(source_rows,)`.
        partition: Assignment of source rows to clients.
        changed: Flattened rows of each client that a scenario changes, chosen columns only.
        label_counts: Shape `(num_clients, num_classes)`.
        num_columns: Numbers in a source row before columns are chosen.
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


def holdings_of(federation: Federation, max_columns: int, seed: int) -> ClientRows:
    """Return the rows of a federation's clients.

    Args:
        federation: Federation with its rows.
        max_columns: Maximum number of columns; longer rows are reduced to a random sample of this many.
        seed: Seed of that sample.
    """
    assert len(federation.features) == len(federation.labels), "a federation without its rows can't be described"
    num_columns = row_length(federation)
    flat = federation.features.reshape(len(federation.labels), num_columns)
    columns: IntArray | None = None
    if num_columns > max_columns:
        sampled_columns = stream(seed, "described-columns").choice(num_columns, size=max_columns, replace=False)
        columns = np.sort(sampled_columns).astype(np.int64)
        flat = flat[:, columns]
    changed = {}
    for client in sorted(client for client, steps in federation.transforms.items() if steps):
        samples = federation.client_data(client).own
        rows = samples.features.reshape(len(samples), num_columns)
        changed[client] = Samples(rows if columns is None else rows[:, columns], samples.labels, samples.rows)
    return ClientRows(
        features=flat,
        labels=federation.labels,
        partition=federation.partition,
        changed=changed,
        label_counts=_label_counts(federation, changed),
        num_columns=num_columns,
    )


def row_length(federation: Federation) -> int:
    """Return the number of values in a row."""
    return math.prod(federation.features.shape[1:])


def _label_counts(federation: Federation, changed: Mapping[int, Samples]) -> IntArray:
    partition, num_classes = federation.partition, federation.num_classes
    cells = np.repeat(np.arange(partition.num_clients) * num_classes, partition.sizes)
    cells += federation.labels[partition.rows]
    counts = np.bincount(cells, minlength=partition.num_clients * num_classes).astype(np.int64)
    counts = counts.reshape(partition.num_clients, num_classes)
    for client, samples in changed.items():
        counts[client] = label_counts(QueryInputs(samples, num_classes, {}, {}))["counts"].values
    return counts


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ClientChange(_Value):
    """The effect of a scenario on one client.

    Attributes:
        client: Client number.
        steps: Transforms of the client's rows, in order, with their parameters.
        num_rows: Number of rows.
        num_labels_changed: Number of rows whose label the scenario changed.
        share_numbers_changed: Share of the compared values that the scenario changed, in `[0, 1]`.
        feature_shift: Mean change of a value, in standard deviations of a feature.
        feature_deviation: Standard deviation of that change, in the same unit.
        dropout: Probability that the client misses a round.
        latency_shift: Minimum simulated seconds of a round; None without a device.
        latency_mean: Mean of the exponential time added to that minimum; None without a device.
        seconds_per_step: Simulated seconds of an optimizer step; None without a device.
        bytes_per_second_down: Bandwidth from the server; None where messages take no time.
        bytes_per_second_up: Bandwidth to the server; None where messages take no time.
        attacks: Attacks on the client's update, in order, with parameters.
    """

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
        """Whether rounds take time regardless of the work done in them."""
        return bool(self.latency_shift or self.latency_mean)


def changes_of(federation: Federation, client_rows: ClientRows) -> tuple[ClientChange, ...]:
    """Return the changes of each client whose rows, availability or updates a scenario affects, in ascending order."""
    clients = sorted({*client_rows.changed, *federation.dropout, *federation.devices, *federation.attacks})
    return tuple(_change(federation, client_rows, client) for client in clients)


def _change(federation: Federation, client_rows: ClientRows, client: int) -> ClientChange:
    timings: dict[str, float | None] = {}
    if client in federation.devices:
        device = federation.devices[client]
        down, up = device.bytes_per_second_down, device.bytes_per_second_up
        timings = {
            "latency_shift": device.shift_seconds,
            "latency_mean": device.mean_seconds,
            "seconds_per_step": device.seconds_per_step,
            "bytes_per_second_down": down if math.isfinite(down) else None,
            "bytes_per_second_up": up if math.isfinite(up) else None,
        }
    return ClientChange(
        client=client,
        steps=tuple(_name(step) for step in federation.transforms.get(client, ())),
        num_rows=int(federation.partition.sizes[client]),
        dropout=federation.dropout.get(client, 0.0),
        **timings,
        attacks=tuple(_name(attack) for attack in federation.attacks.get(client, ())),
        **_differences(client_rows, client, float(federation.facts.get("feature_unit", 1.0))),
    )


def _name(step: ClientTransform | UpdateAttack) -> str:
    """Return the `repr` of a transform or an attack, or its class name where the `repr` would contain an address."""
    text = repr(step)
    return type(step).__name__ if " at 0x" in text else text


def _differences(client_rows: ClientRows, client: int, unit: float) -> Mapping[str, float]:
    """Return statistics of the difference between a client's rows and its original rows, which have the same order."""
    own, clean = client_rows.client(client), client_rows.clean(client)
    if client not in client_rows.changed or len(own) == 0:
        return {}
    added = own.features[own.rows].astype(np.float64) - clean.features[clean.rows]
    return {
        "num_labels_changed": int(np.count_nonzero(own.labels[own.rows] != clean.labels[clean.rows])),
        "share_numbers_changed": float(np.count_nonzero(added) / added.size),
        "feature_shift": float(added.mean() / unit),
        "feature_deviation": float(added.std() / unit),
    }


MAX_COLUMNS_SHOWN: Final = 5
NUM_EXAMINED: Final = 200
CLIENTS_SPLIT: Final = 100
MAX_NUMBERS: Final = 20_000_000
"""Numbers in the training rows: about a second of work."""


def dependence_notes(federation: Federation, seed: int, test_fraction: float) -> tuple[str, ...]:
    """Return notes on rows that depend on each other, or an empty tuple if there are none.

    Args:
        federation: Federation with its rows.
        seed: Seed of the study.
        test_fraction: Share of test rows per client.
    """
    if federation.task is not None:
        return ()
    columns: Sequence[Mapping[str, str]] = federation.facts.get("columns", ())
    notes = [*_leak_notes(columns)]
    series = federation.facts.get("series")
    if series and federation.split == "random" and federation.groups is None:
        notes.append(
            f"Rows of a series ({series}) are split at random, which may inflate accuracy: test rows have neighbours "
            "among the training rows. federation.split=last uses each client's last rows as test rows."
        )
    if federation.split == "last":
        notes.append(
            "Every seed uses the same test rows, each client's last ones, so intervals hold for another training run "
            "here and are too narrow for new data."
        )
    shared, total = _shared_groups(federation)
    if shared:
        notes.append(
            f"{shared} of {total} groups of federation.group_column are held by several clients: a client never tests "
            "on a group that it trains on, but may test on groups that other clients train on."
        )
    copies = near_copies_of_test_rows(federation, seed, test_fraction)
    if copies is not None and copies.too_many:
        notes.append(_copies_note(federation, copies))
    return tuple(notes)


def scored_notes(federation: Federation, num_scored: int | None) -> tuple[str, ...]:
    """Return a note if only some of the clients are scored (`training.scored_clients`)."""
    if num_scored is None or num_scored >= federation.num_seen:
        return ()
    return (
        f"Scores cover {num_scored} of {federation.num_seen} clients, sampled for each seed (training.scored_clients); "
        "statements about clients refer to these.",
    )


def _leak_notes(columns: Sequence[Mapping[str, str]]) -> Iterator[str]:
    """Yield a note that names the columns in use that reveal the label, and the setting that drops them."""
    leaks = [column for column in columns if column["suspicion"] and not column["became"].startswith("left out")]
    if leaks:  # the key first, as screens cut the end
        reasons = listed([f"{column['name']} {column['suspicion']}" for column in leaks], MAX_COLUMNS_SHOWN)
        key = list_argument("drop_columns", *(column["name"] for column in leaks))
        yield f"{key} drops columns that may reveal the label: {reasons}."


def _copies_note(federation: Federation, copies: NearCopies) -> str:
    """Return a note on near copies: their effect and the remedy first, as terminals truncate the end."""
    advice = (
        "federation.group_column keeps related rows on one side of the split; federation.split=last splits by time."
        if federation.groups is None
        else "Groups are kept together already, so the copies are in other groups or held by other clients."
    )
    columns: Sequence[Mapping[str, str]] = federation.facts.get("columns", ())
    group_columns = [
        column["name"] for column in columns if column["key"] == f"federation.group_column={column['name']}"
    ]
    if group_columns and federation.groups is None:
        advice += f" Possible group columns: {listed(group_columns, MAX_COLUMNS_SHOWN)}."
    return (
        "Test rows have near copies among the training rows, so memorization may inflate accuracy. "
        f"{advice} Copies: {copies.text()}."
    )


def _shared_groups(federation: Federation) -> tuple[int, int]:
    """Return the number of groups whose rows are held by several clients, and the number of groups."""
    if federation.groups is None:
        return 0, 0
    owners = np.repeat(np.arange(federation.num_clients), federation.partition.sizes)
    pairs = np.unique(np.column_stack([federation.groups[federation.partition.rows], owners]), axis=0)
    _, holders = np.unique(pairs[:, 0], return_counts=True)
    return int(np.count_nonzero(holders > 1)), len(holders)


def near_copies_of_test_rows(federation: Federation, seed: int, test_fraction: float) -> NearCopies | None:
    """Return the count of near copies of test rows among all training rows; None for texts, or without rows.

    Args:
        federation: Federation with its rows.
        seed: Seed of the study, which determines the split.
        test_fraction: Share of test rows per client.
    """
    if federation.facts.get("data_kind") == "tokens" or not len(federation.labels):
        return None
    generator = stream(seed, "near-copies")
    train, test = _split_rows(federation, seed, test_fraction, generator)
    test = generator.permutation(test)[:NUM_EXAMINED]
    train = generator.permutation(train)[: max(1, MAX_NUMBERS // max(row_length(federation), 1))]
    rows = federation.features.reshape(len(federation.labels), -1)
    return count_near_copies(rows[test].astype(np.float64), rows[train].astype(np.float64))


def _split_rows(
    federation: Federation, seed: int, test_fraction: float, generator: np.random.Generator
) -> tuple[IntArray, IntArray]:
    """Return the training rows and the test rows."""
    drawn = generator.permutation(federation.num_clients)[:CLIENTS_SPLIT]
    tested = [np.empty(0, np.int64)]
    for client in np.sort(drawn).tolist():
        rows = federation.partition.client(client)
        tested.append(rows[federation.split_rows(client, federation.labels[rows], seed, test_fraction, 0.0).test])
    test = np.unique(np.concatenate(tested))
    return np.setdiff1d(federation.partition.rows, test), test


def measure_features(
    client_rows: ClientRows, measured: Sequence[int], paired: Sequence[int], settings: DetectionConfig
) -> dict[str, float]:
    """Return the mean feature distances, by metric; empty with fewer than two clients or if no feature varies.

    Args:
        client_rows: Rows of the clients.
        measured: Clients over whose rows mean and variance are computed.
        paired: Clients whose pairs are averaged.
        settings: Number and range of the bins.
    """
    if len(paired) < 2:
        return {}
    mean, variance = _moments(client_rows, measured)
    bins = Bins.around(mean, variance, settings.histogram_bins, settings.histogram_reach)
    arrays = {"start": bins.start, "width": bins.width}
    samples = [client_rows.client(client) for client in paired]
    counts = (feature_histogram(QueryInputs(own, 1, arrays, {"bins": bins.bins}))["counts"].values for own in samples)
    return feature_distances(counts, [own.features[own.rows].mean(0, dtype=np.float64) for own in samples], bins)


def _moments(client_rows: ClientRows, clients: Sequence[int]) -> tuple[Values, Values]:
    """Return mean and variance of each column over all rows of some clients, shapes `(d,)`."""
    origin = client_rows.features[client_rows.partition.client(clients[0])[0]].astype(np.float64)
    num_rows = 0
    sums, squares = np.zeros(len(origin)), np.zeros(len(origin))
    for rows, times in _weighted_rows(client_rows, clients):
        offsets = rows - origin
        num_rows += int(times.sum())
        sums += np.einsum("r,rc->c", times, offsets)  # no BLAS, whose sums depend on its threads
        squares += np.einsum("r,rc->c", times, np.square(offsets, out=offsets))
    variance = np.maximum(squares - sums**2 / num_rows, 0.0) / max(num_rows - 1, 1)
    return origin + sums / num_rows, variance


def _weighted_rows(client_rows: ClientRows, clients: Sequence[int]) -> Iterator[tuple[Values, Values]]:
    """Yield rows with the number of times clients hold each: source rows first, then rows changed by a scenario."""
    untouched = [client_rows.partition.client(client) for client in clients if client not in client_rows.changed]
    if untouched:
        times = np.bincount(np.concatenate(untouched), minlength=len(client_rows.labels)).astype(np.float64)
        for chunk in blocks(len(times), CHUNK_ROWS):
            if times[chunk].any():
                yield client_rows.features[chunk].astype(np.float64), times[chunk]
    for client in clients:
        if client in client_rows.changed:
            for rows, _ in client_rows.changed[client].chunks():
                yield rows.astype(np.float64), np.ones(len(rows))


QUICK_COLUMNS = 64
"""Number of columns that are compared in every run."""

MAX_COMPARED = 400_000
"""Maximum of columns times clients that are compared: about ten seconds of work."""


class Spread(_Value):
    """Distribution of a number over clients: minimum, quartiles, maximum and mean."""

    smallest: float
    lower_quartile: float
    median: float
    upper_quartile: float
    largest: float
    mean: float

    @classmethod
    def of(cls, values: npt.ArrayLike) -> Spread:
        """Return the spread of at least one value."""
        array = np.asarray(values, dtype=np.float64)
        quantiles = [float(quantile) for quantile in np.quantile(array, [0, 0.25, 0.5, 0.75, 1])]
        names = ("smallest", "lower_quartile", "median", "upper_quartile", "largest")
        return cls(**dict(zip(names, quantiles, strict=True)), mean=float(array.mean()))


class RealizedHeterogeneity(_Value):
    """Heterogeneity metrics of a federation's clients; None where there is nothing to measure.

    Attributes:
        num_clients: Clients, including empty ones.
        num_empty_clients: Clients without rows.
        num_measured_clients: Clients with at least `federation.min_release` rows, over which everything below
            `client_rows` is measured.
        num_paired_clients: Clients over whose pairs the distances are averaged.
        num_classes: Number of classes.
        num_rows: Rows of the data set.
        num_rows_assigned: Rows that at least one client holds.
        num_rows_unassigned: Rows that no client holds.
        num_rows_repeated: Additional copies of rows that are held more than once, by one client or several.
        client_rows: Rows per client, over all clients.
        quantity_ratio: Largest over smallest number of rows.
        quantity_variation: Coefficient of variation of the numbers of rows.
        quantity_gini: Gini coefficient of the numbers of rows.
        label_hellinger: Mean Hellinger distance of label distributions over pairs, in `[0, 1]`.
        label_wasserstein: Mean 1-Wasserstein distance of label distributions over pairs, with class numbers as
            positions on a line, in classes; None for classes with non-numeric names, whose order has no meaning.
        label_skew: Largest Jensen-Shannon divergence between the labels of a client and of all clients, in bits.
        label_skew_client: Client with that divergence.
        label_divergence: Distribution of the divergence over clients.
        heterogeneity_index: Distribution over clients of 1 − (c − 1)/(c_max − 1), for a client with c of c_max classes.
        feature_hellinger: Mean Hellinger distance of feature histograms over pairs and features, in `[0, 1]`.
        feature_wasserstein: Mean 1-Wasserstein distance over pairs and features, in standard deviations.
        num_features: Values in a row.
        num_features_compared: Number of features that were compared.
        notes: Remarks on how the metrics were measured.
    """

    num_clients: int
    num_empty_clients: int
    num_measured_clients: int
    num_paired_clients: int
    num_classes: int
    num_rows: int
    num_rows_assigned: int
    num_rows_unassigned: int
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
    notes: tuple[str, ...] = ()


def realised(
    federation: Federation, settings: DetectionConfig | None = None, seed: int = 0, max_features: int = QUICK_COLUMNS
) -> RealizedHeterogeneity:
    """Return the heterogeneity metrics of a federation. Equal arguments give bit-identical results.

    Args:
        federation: Federation with its rows.
        settings: Detection settings for limits and bins; None for the defaults.
        seed: Seed of the client and feature samples; detection samples with the study's seed.
        max_features: Maximum number of compared features; larger feature sets are sampled.
    """
    return measure(federation, settings or DetectionConfig(), seed, max_features)[0]


def measure(
    federation: Federation, settings: DetectionConfig, seed: int, max_features: int
) -> tuple[RealizedHeterogeneity, ClientRows, Finding, Mapping[int, float]]:
    """Return the metrics of `realised` with the data from which they were computed.

    These are the rows of the clients, the finding on label skew with the divergence of each client, and the
    heterogeneity index of each measured client.
    """
    sizes, plays = federation.partition.sizes, federation.task is not None
    measured = tuple(np.flatnonzero(sizes >= max(federation.release.min_release, 1)).tolist())
    paired = paired_clients(measured, settings.max_pairwise_clients, seed)
    is_text = federation.facts.get("data_kind") == "tokens"
    num_compared = max(1, min(max_features, MAX_COMPARED // max(len(paired), 1)))
    client_rows = holdings_of(federation, num_compared, seed)
    with_labels = () if plays else measured
    counts = client_rows.label_counts
    released_counts = ReleasedCounts.exact({client: counts[client] for client in with_labels})
    finding = decide_label_skew(released_counts, settings.label_threshold)
    num_present = np.count_nonzero(counts, axis=1).tolist()
    indices = {client: metrics.heterogeneity_index(num_present[client], counts.shape[1]) for client in with_labels}
    values: dict[str, object] = {
        **metrics.count_metrics(counts[list(with_labels)], counts[list(paired)], federation.has_ordered_classes),
        "heterogeneity_index": Spread.of(list(indices.values())) if indices else None,
    }
    if finding.value is not None:
        values |= {
            "label_skew": finding.value,
            "label_skew_client": max(finding.client_values, key=finding.client_values.__getitem__),
            "label_divergence": Spread.of(list(finding.client_values.values())),
        }
    if not plays and not is_text and (distances := measure_features(client_rows, measured, paired, settings)):
        values |= {**distances, "num_features_compared": client_rows.features.shape[1]}
    num_holders = np.bincount(federation.partition.rows, minlength=len(federation.labels))
    num_held = int(np.count_nonzero(num_holders))
    document = {
        "num_clients": federation.num_clients,
        "num_empty_clients": int(np.count_nonzero(sizes == 0)),
        "num_measured_clients": len(measured),
        "num_paired_clients": len(paired),
        "num_classes": federation.num_classes,
        "num_rows": len(federation.labels),
        "num_rows_assigned": num_held,
        "num_rows_unassigned": len(federation.labels) - num_held,
        "num_rows_repeated": int(sizes.sum()) - num_held,
        "client_rows": Spread.of(sizes),
        "num_features": client_rows.num_columns,
        **values,
        "notes": _notes(federation, client_rows, len(measured), len(paired), is_text),
    }
    return RealizedHeterogeneity.model_validate(document), client_rows, finding, indices


def _notes(
    federation: Federation, client_rows: ClientRows, num_measured: int, num_paired: int, is_text: bool
) -> tuple[str, ...]:
    """Return notes on what was left out, sampled, or measured in place of something else."""
    if federation.task is not None:
        return ("Reinforcement-learning clients generate episodes; their rows are placeholders and are not compared.",)
    notes = []
    left_out = federation.num_clients - num_measured
    if left_out:
        notes.append(
            f"{left_out} of {federation.num_clients} clients hold fewer than {federation.release.min_release} rows "
            "(federation.min_release) and are left out of all metrics, as in detection."
        )
    if num_paired < num_measured:
        notes.append(
            f"Label and feature distances cover pairs of {num_paired} of {num_measured} clients, sampled by the seed."
        )
    if is_text:
        notes.append("Rows are texts, whose features are not compared, as token numbers carry no meaning.")
    elif client_rows.features.shape[1] < client_rows.num_columns:
        notes.append(
            f"Feature distances cover {client_rows.features.shape[1]} of {client_rows.num_columns} features, "
            "sampled by the seed."
        )
    if federation.embedding is not None:
        notes.append("Detection compares a network's embeddings of rows; here, the stored features are compared.")
    return tuple(notes)


class ClientDescription(_Value):
    """Description of one client.

    Attributes:
        client: Client number.
        name: Name of a natural client; None for others.
        num_rows: Number of rows.
        label_counts: Rows of each class, including the scenario's changes; empty for reinforcement-learning clients.
        label_divergence: Jensen-Shannon divergence between the labels of this client and of all clients, in bits; None
            if not measured.
        heterogeneity_index: 1 − (c − 1)/(c_max − 1), c of c_max classes present; None if not measured.
        affected: Whether a scenario is known to have made the client different.
        physics: Physics parameters of a reinforcement-learning client, as the task shows them; None for others.
    """

    client: int
    name: str | None = None
    num_rows: int
    label_counts: tuple[int, ...]
    label_divergence: float | None = None
    heterogeneity_index: float | None = None
    affected: bool = False
    physics: str | None = None


class Description(BaseModel, frozen=True, extra="forbid"):
    """A federation and the heterogeneity of its clients; can be printed, drawn and written as JSON.

    Attributes:
        name: Display name.
        source: Publisher of the data.
        data_kind: Kind of a row: table, image, tokens or embedding.
        feature_shape: Shape of a row.
        class_names: In the order of the counts; empty if classes have no names.
        realised: Metrics over all clients.
        clients: Description of each client.
        changes: Effects of the scenario on clients.
        affected_clients: Clients that a scenario is known to have made different, by their rows or by the partition.
        unseen_clients: Clients that join after training; the metrics include them.
        target_name: Regression target, whose deciles are the classes; empty for classification.
        score_name: Score of reinforcement-learning clients; None where clients hold rows.
        dependence: Notes on rows that depend on each other.
        facts: Facts recorded by the builder of the federation.
    """

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
        """Names of clients and classes."""
        return Names(tuple(client.name or str(client.client) for client in self.clients), self.class_names)

    @property
    def class_labels(self) -> tuple[str, ...]:
        """The names of the classes, or their numbers if they have no names."""
        return self.class_names or tuple(map(str, range(self.realised.num_classes)))

    @property
    def class_counts(self) -> tuple[tuple[str, int], ...]:
        """Each class with its rows over all clients, most frequent first; empty where clients hold no rows."""
        if self.score_name is not None or not self.clients:
            return ()
        counts = [sum(column) for column in zip(*(client.label_counts for client in self.clients), strict=True)]
        return tuple(sorted(zip(self.class_labels, counts, strict=True), key=lambda pair: -pair[1]))


def describe_federation(
    federation: Federation, settings: DetectionConfig, seed: int, test_fraction: float = 0.2
) -> Description:
    """Return the description of a federation.

    Args:
        federation: Federation with its rows.
        settings: Detection settings, for limits, bins and the sample of clients.
        seed: Seed of the study, for the sample of clients and the train/test split.
        test_fraction: Share of test rows per client.
    """
    metrics_of_all, client_rows, label_skew, indices = measure(federation, settings, seed, settings.max_features)
    return Description(
        name=federation.name,
        source=str(federation.facts.get("source", "")),
        data_kind=str(federation.facts.get("data_kind", "table")),
        feature_shape=federation.features.shape[1:],
        class_names=federation.class_names,
        realised=metrics_of_all,
        clients=_clients(federation, client_rows, label_skew.client_values, indices),
        changes=changes_of(federation, client_rows),
        affected_clients=federation.affected_clients,
        unseen_clients=tuple(sorted(federation.unseen)),
        target_name=federation.target_name,
        score_name=None if federation.task is None else federation.task.score_name,
        dependence=dependence_notes(federation, seed, test_fraction),
        facts=dict(federation.facts),
    )


def _clients(
    federation: Federation, client_rows: ClientRows, divergences: Mapping[int, float], indices: Mapping[int, float]
) -> tuple[ClientDescription, ...]:
    names = federation.facts.get("client_names", ())
    affected = frozenset(federation.affected_clients)
    counts = client_rows.label_counts.tolist()
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
