"""A federation as a value: rows, clients, their split, devices, server rows, row parts and display names.

The data are two arrays, put into shared memory once; a client is a range of an index array. A client whose data a
scenario corrupts also has transforms, applied to all its local rows before any split, as the client itself would not
be aware of the corruption. `own` data are observed by the client, `clean` data are uncorrupted.

`ServerData` are rows of the server that no client has.

**Devices.** With τ optimiser steps, and b_down and b_up bytes received and sent, a client's round lasts

    shift + E + τ · seconds a step + b_down / bandwidth down + b_up / bandwidth up,

with E exponential: the shifted exponential distribution by which stragglers are usually modelled (K. Lee, M. Lam, R.
Pedarsani, D. Papailiopoulos and K. Ramchandran, "Speeding Up Distributed Machine Learning Using Codes", IEEE
Transactions on Information Theory 64(3), 2018), plus the time for computation and communication (F. Lai, Y. Dai, S.
Singapuram, J. Liu, X. Zhu, H. V. Madhyastha and M. Chowdhury, "FedScale: Benchmarking Model and System Performance of
Federated Learning at Scale", ICML 2022). Participation and durations are drawn from (seed, round, client). The
simulation does not wait: seconds are added up, and a client that would answer after the deadline is left out. A client
without a `Device` takes no time.

**Split** of a client's local rows into training, validation and test parts: 80/20 by default, stratified by the
client's own labels if the class counts allow, and drawn from the trial's seed: candidates of one search share the
split, confirmation seeds draw a new one. Validation rows are cut from the training part, never from test.

Rows of one group, such as those of a subject, stay together: a model that saw a subject in training would otherwise be
tested on it. Groups are visited in a random order in which every prefix holds its share of each class, where a
group's class is its most frequent one, and a group is drawn if it brings the number of rows closer to the target.
The target is thus missed by at most half of the largest drawn or smallest undrawn group, unless no group is small
enough: then the smallest is drawn, so that there are test rows. A client with a single group only trains.

A series may be cut in the order of its rows instead: its last rows are the test part, those before them the validation
part, without stratification. Groups stay together, in the order of their first rows.

`RowPart` selects one of several disjoint random parts of a client's rows, which a train message may request. If the
rows are independent draws from one distribution, so are the parts, regardless of their clients. The models of parts are
therefore exchangeable between clients, unlike those of whole clients: a permutation test compares clients by them
(`fedscout.detectors.outliers`). Parts have one size for all clients and ignore labels; stratified parts of a client
would share the random composition of its labels.

`Names` are the names of clients, classes and features for messages: the values of the client column, the labels of the
classes, the columns. Everything that is computed and sent uses indices, which also replace missing names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, Literal, Self

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import ClientData, ClientTransform, Partition, Release, Samples, TargetScale
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import stream

if TYPE_CHECKING:
    from fedscout.engine.contracts.algorithm import ClientTask, UpdateAttack


SplitKind = Literal["random", "last"]


@dataclass(frozen=True)
class ClientSplit:
    """Positions in `[0, num_rows)`; disjoint, and together all rows."""

    train: IntArray
    validation: IntArray
    test: IntArray


def _draw(labels: IntArray, positions: IntArray, fraction: float, generator: np.random.Generator) -> IntArray:
    """Draw a stratified share of `positions`: at least one, and at least one is left.

    Systematic sampling: rows are shuffled, ordered by class, and every (1/fraction)-th is taken from a random start,
    so that each class gets its share rounded down or up.
    """
    num_rows = len(positions)
    if fraction <= 0 or num_rows < 2:
        return np.empty(0, np.int64)
    num_drawn = int(np.clip(round(fraction * num_rows), 1, num_rows - 1))
    shuffled = generator.permutation(positions)
    by_class = shuffled[np.argsort(labels[shuffled], kind="stable")]
    ticks = (np.arange(num_drawn) + generator.random()) * (num_rows / num_drawn)
    return np.sort(by_class[np.minimum(ticks.astype(np.int64), num_rows - 1)])


def _draw_groups(
    labels: IntArray, groups: IntArray, positions: IntArray, fraction: float, generator: np.random.Generator
) -> IntArray:
    """Draw whole groups with about a share of `positions`: at least one, and at least one is left."""
    _, members = np.unique(groups[positions], return_inverse=True)
    sizes = np.bincount(members)
    if fraction <= 0 or len(sizes) < 2:
        return np.empty(0, np.int64)
    wanted, total = fraction * len(positions), 0
    drawn: list[int] = []
    for group in spread_over_classes(_majorities(labels[positions], members), generator):
        is_closer = abs(total + sizes[group] - wanted) < abs(total - wanted)
        if is_closer and len(drawn) < len(sizes) - 1:
            drawn.append(group)
            total += sizes[group]
    return np.asarray(positions[np.isin(members, drawn or [np.argmin(sizes)])])


def _majorities(labels: IntArray, members: IntArray) -> IntArray:
    """Return the most frequent label of each group, the lowest one on ties, shape `(num_groups,)`."""
    pairs, counts = np.unique(np.column_stack([members, labels]), axis=0, return_counts=True)
    most = np.lexsort((pairs[:, 1], -counts, pairs[:, 0]))
    return np.asarray(pairs[most[np.unique(pairs[most, 0], return_index=True)[1]], 1])


def spread_over_classes(classes: IntArray, generator: np.random.Generator) -> list[int]:
    """Return a random order in which every prefix holds its share of each class, rounded.

    Args:
        classes: Class of each item, shape `(items,)`.
        generator: Random generator.
    """
    shuffled = generator.permutation(len(classes))
    keys = np.empty(len(classes))
    for label in np.unique(classes):
        members = shuffled[classes[shuffled] == label]
        keys[members] = (np.arange(len(members)) + generator.random()) / len(members)
    order: list[int] = np.argsort(keys, kind="stable").tolist()
    return order


def _cut_last(order: IntArray, groups: IntArray | None, positions: IntArray, fraction: float) -> IntArray:
    """Return about the last share of `positions` in an order, in whole groups if there are any; at least one is left.

    Args:
        order: Rank of each row; later rows have larger ranks.
        groups: Group of each row, or None.
        positions: Positions to cut.
        fraction: Share that is cut off.
    """
    units = positions if groups is None else groups[positions]
    _, members = np.unique(units, return_inverse=True)
    sizes = np.bincount(members)
    if fraction <= 0 or len(sizes) < 2:
        return np.empty(0, np.int64)
    begins = np.full(len(sizes), np.iinfo(np.int64).max)
    np.minimum.at(begins, members, order[positions])
    latest = np.argsort(begins, kind="stable")[::-1]
    wanted = round(fraction * len(positions))
    num_cut = 1 + int(np.argmin(np.abs(np.cumsum(sizes[latest])[:-1] - wanted)))
    return np.asarray(positions[np.isin(members, latest[:num_cut])])


def split_client(
    labels: IntArray,
    seed: int,
    client: int,
    test_fraction: float,
    validation_fraction: float = 0.0,
    groups: IntArray | None = None,
    order: IntArray | None = None,
) -> ClientSplit:
    """Split one client's rows.

    Args:
        labels: The client's own labels, shape `(num_rows,)`. With fewer than two rows the client only trains.
        seed: Seed of the trial.
        client: Index of the client.
        test_fraction: Share of test rows, in `[0, 1)`.
        validation_fraction: Share of the remaining rows kept for validation, in `[0, 1)`.
        groups: The group of each row, shape `(num_rows,)`; None if rows are independent.
        order: Rank of each row in a series, shape `(num_rows,)`, if it is cut by order instead of drawn.
    """
    generator = stream(seed, "split", client)

    def take(positions: IntArray, fraction: float) -> IntArray:
        if order is not None:
            return _cut_last(order, groups, positions, fraction)
        if groups is not None:
            return _draw_groups(labels, groups, positions, fraction, generator)
        return _draw(labels, positions, fraction, generator)

    every = np.arange(len(labels))
    test = take(every, test_fraction)
    rest = np.setdiff1d(every, test, assume_unique=True)
    validation = take(rest, validation_fraction)
    return ClientSplit(np.setdiff1d(rest, validation, assume_unique=True), validation, test)


def num_part_rows(num_rows: IntArray, test_fraction: float, validation_fraction: float) -> dict[str, IntArray]:
    """Return clients' rows of each part, `train`, `validation` and `test`; approximate for rows in groups.

    Args:
        num_rows: Number of rows of each client, shape `(clients,)`.
        test_fraction: As for `split_client`.
        validation_fraction: As for `split_client`.
    """
    remaining, parts = np.asarray(num_rows), {}
    for part, fraction in (("test", test_fraction), ("validation", validation_fraction)):
        taken = np.clip(np.rint(fraction * remaining), 1, remaining - 1).astype(np.int64)
        parts[part] = np.where((fraction > 0) & (remaining >= 2), taken, 0)
        remaining = remaining - parts[part]
    return {**parts, "train": remaining}


@dataclass(frozen=True)
class ServerData:
    """Rows of the server, scaled like the clients' rows, or by themselves if from another data set; never corrupted.

    Attributes:
        features: float32, shape `(num_rows, *feature_shape)`, at least one row.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`; None if they are stripped.
    """

    features: FloatArray
    labels: IntArray | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.features)


PLAIN_NUMBER = re.compile(r"-?\d+(\.\d+)?", re.ASCII)


@dataclass(frozen=True)
class EmbeddingSource:
    """The network whose representation of a row detectors compare.

    Attributes:
        network: Picklable factory; built from the federation's seed.
        penultimate: Whether to use the input of its last fully connected layer instead of its output.
    """

    network: ModelFactory
    penultimate: bool = True


@dataclass(frozen=True)
class Federation:
    """Clients, their data and the model they train. A value: put into shared memory once, read by every host.

    Attributes:
        name: Name for people and logs.
        features: All rows, float32, shape `(num_rows, *feature_shape)`.
        labels: All labels, int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_classes: Number of classes.
        partition: The rows of each client.
        model: Picklable factory of the model; the engine seeds torch around the call.
        transforms: Corruption of a client's local data, applied in order.
        seed: Seed of the corruption (the partition was drawn from it, too).
        affected_clients: Clients that a scenario is known to have changed, for reports and tests.
        release: Release rules for query answers, and which clients train: a model trained on few rows reveals them.
        feature_names: One name per column for tabular data, else empty.
        class_names: One name per class, or empty.
        facts: Facts recorded by the builder: counts of dropped rows, realised sizes and the like.
        embedding: Network whose outputs detectors compare instead of the features; None compares the features.
        dropout: Probability in `[0, 1)` that a client misses a round, for clients that may.
        devices: Devices of clients whose rounds take simulated time.
        attacks: Attackers and their attacks, applied to their updates in order.
        task: The clients' task if it is not to train on rows, as in reinforcement learning; None trains on rows. With a
            task, only the number of rows is used.
        unseen: Clients that join after the training: they never train and answer no queries, but are scored as clients
            with only the global model.
        server: Rows of the server, none of which is among `features`; None if it holds none.
        groups: The group of each row, such as a subject, int64, shape `(num_rows,)`: rows of a group that a client
            holds stay together when it splits its rows. None if rows are independent.
        split: Whether test rows are drawn at random, or are each client's last ones.
        targets: Regression targets, float64, shape `(num_rows,)`; None for classification. Labels are then tenths of
            the target, for everything that needs classes, and the model has one output.
        target_name: Name of the regression target.
        reading: How rows were converted into features, as values: stored with a trained model, so that other rows can
            be converted in the same way. Not used by the engine.
    """

    name: str
    features: FloatArray
    labels: IntArray
    num_classes: int
    partition: Partition
    model: ModelFactory
    transforms: Mapping[int, tuple[ClientTransform, ...]] = field(default_factory=dict)
    seed: int = 0
    affected_clients: tuple[int, ...] = ()
    release: Release = field(default_factory=Release)
    feature_names: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    embedding: EmbeddingSource | None = None
    dropout: Mapping[int, float] = field(default_factory=dict)
    devices: Mapping[int, Device] = field(default_factory=dict)
    attacks: Mapping[int, tuple[UpdateAttack, ...]] = field(default_factory=dict)
    task: ClientTask | None = None
    unseen: frozenset[int] = frozenset()
    server: ServerData | None = None
    groups: IntArray | None = None
    split: SplitKind = "random"
    targets: npt.NDArray[np.float64] | None = None
    target_name: str = ""
    reading: Mapping[str, Any] = field(default_factory=dict)

    @property
    def task_name(self) -> Literal["classification", "regression", "reinforcement learning"]:
        """What the clients learn."""
        if self.task is not None:
            return "reinforcement learning"
        return "classification" if self.targets is None else "regression"

    @property
    def num_clients(self) -> int:
        """Number of clients, including unseen ones."""
        return self.partition.num_clients

    @property
    def num_seen(self) -> int:
        """Number of participating clients, which strategies and detectors use."""
        return self.num_clients - len(self.unseen)

    @property
    def has_ordered_classes(self) -> bool:
        """Whether classes are ordinal: tenths of a regression target, or classes whose names are all numbers."""
        return bool(self.target_name) or all(map(PLAIN_NUMBER.fullmatch, self.class_names))

    def client_groups(self, client: int) -> IntArray | None:
        """Return the group of each of a client's rows, shape `(num_rows,)`, or None without groups."""
        return None if self.groups is None else self.groups[self.partition.client(client)]

    def split_rows(
        self, client: int, labels: IntArray, seed: int, test_fraction: float, validation_fraction: float
    ) -> ClientSplit:
        """Return the split of a client's rows, see `fedscout.engine.data.federation`.

        Args:
            client: Index of the client.
            labels: Observed labels of the client, shape `(num_rows,)`.
            seed: Seed of the trial.
            test_fraction: Share of test rows, in `[0, 1)`.
            validation_fraction: Share of the other rows kept for validation, in `[0, 1)`.
        """
        order = self.partition.client(client) if self.split == "last" else None
        groups = self.client_groups(client)
        return split_client(labels, seed, client, test_fraction, validation_fraction, groups, order)

    def target_scale(self, seed: int, test_fraction: float, validation_fraction: float) -> TargetScale | None:
        """Return the standardisation of a regression target over the training rows of all participating clients.

        Real clients would compute it by one exchange of sums and sums of squares. No test row is used.

        Args:
            seed: Seed of the trial.
            test_fraction: As for `split_rows`.
            validation_fraction: As for `split_rows`.
        """
        if self.targets is None:
            return None
        parts = []
        for client in range(self.num_clients):
            own = self.client_data(client).own
            if client not in self.unseen and own.targets is not None:
                split = self.split_rows(client, own.labels[own.rows], seed, test_fraction, validation_fraction)
                parts.append(own.targets[own.rows[split.train]])
        return TargetScale.of(np.concatenate(parts))

    def without_rows(self) -> Federation:
        """Return the federation without features and server rows, which take most of its memory."""
        return replace(self, features=np.empty((0, *self.features.shape[1:]), np.float32), server=None)

    def alone(self, client: int, number: int) -> Federation:
        """Return a federation in which one client of this one holds its rows, and all others are empty.

        Args:
            client: The client whose rows are kept.
            number: Index of the client in the new federation, from which its random streams derive.
        """
        rows = self.partition.client(client)
        return replace(
            self,
            features=self.features[rows],
            labels=self.labels[rows],
            targets=None if self.targets is None else self.targets[rows],
            groups=None if self.groups is None else self.groups[rows],
            partition=Partition.from_lists([*[[]] * number, np.arange(len(rows))]),
            transforms={number: self.transforms[client]} if client in self.transforms else {},
            attacks={number: self.attacks[client]} if client in self.attacks else {},
            dropout={},
            devices={},
            unseen=frozenset(),
            server=None,
        )

    def client_data(self, client: int) -> ClientData:
        """Return the local data of one client, with its corruption applied."""
        clean = Samples(self.features, self.labels, self.partition.client(client), self.targets)
        transforms = self.transforms.get(client, ())
        if not transforms:
            return ClientData(own=clean, clean=clean)
        features, labels = clean.take(np.arange(len(clean)))
        for index, transform in enumerate(transforms):
            generator = stream(self.seed, "corruption", client, index)
            features, labels = transform(features, labels, self.num_classes, generator)
        targets = None if self.targets is None else self.targets[clean.rows]
        return ClientData(own=Samples(features, labels, np.arange(len(labels)), targets), clean=clean)


INDEX_KEY: Final = "part-index"
ROWS_KEY: Final = "part-rows"
PARTITION_SEED_KEY: Final = "part-seed"


@dataclass(frozen=True)
class RowPart:
    """A random part of each client's rows.

    Attributes:
        index: Index of the part, >= 0.
        num_rows: Rows of each part, >= 1.
        seed: Seed by which rows are assigned to parts; parts of one seed are disjoint.
    """

    index: int
    num_rows: int
    seed: int

    def to_config(self) -> dict[str, int]:
        """Return the entries of a train message's configuration."""
        return {INDEX_KEY: self.index, ROWS_KEY: self.num_rows, PARTITION_SEED_KEY: self.seed}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Read the entries of `to_config`; None if a client is to train on all its training rows."""
        if INDEX_KEY not in config:
            return None
        return cls(int(config[INDEX_KEY]), int(config[ROWS_KEY]), int(config[PARTITION_SEED_KEY]))

    def positions(self, num_rows: int, client: int, groups: IntArray | None = None) -> IntArray:
        """Return the part's positions among a client's rows; fewer than `self.num_rows` if the client has too few rows.

        Args:
            num_rows: Number of rows of the client.
            client: Index of the client.
            groups: Group of each row, shape `(num_rows,)`: rows of a group stay together, in one part or two adjacent
                ones.
        """
        generator = stream(self.seed, "row-parts", client)
        order = generator.permutation(num_rows)
        if groups is not None:
            shuffled = generator.permutation(len(groups))
            _, first = np.unique(groups[shuffled], return_index=True)
            _, group_of = np.unique(groups, return_inverse=True)
            order = order[np.argsort(first[group_of[order]], kind="stable")]
        return order[self.index * self.num_rows : (self.index + 1) * self.num_rows]


CLIENTS_NAMED = 12
"""Number of clients that a sentence names; it counts the rest."""


@dataclass(frozen=True)
class Names:
    """Display names by index; empty if there are none.

    Attributes:
        clients: Names of the federation's clients.
        classes: Names of the labels.
        features: Names of a table's columns, after encoding.
    """

    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, federation: Federation) -> Names:
        """Return the names that are recorded in a federation."""
        clients = tuple(map(str, federation.facts.get("client_names", ())))
        return cls(clients, tuple(map(str, federation.class_names)), tuple(map(str, federation.feature_names)))

    def client(self, position: int) -> str:
        """Return the name of one client, without the word `client`."""
        return _name(self.clients, position)

    def one_client(self, position: int) -> str:
        """Return `client a`."""
        return f"client {self.client(position)}"

    def some_clients(self, positions: Sequence[int]) -> str:
        """Return `client a`, `clients a, b` or, for many clients, the first ones and the number of the others."""
        named = ", ".join(self.client(position) for position in positions[:CLIENTS_NAMED])
        rest = f" and {len(positions) - CLIENTS_NAMED} more" if len(positions) > CLIENTS_NAMED else ""
        return f"client{'' if len(positions) == 1 else 's'} {named}{rest}"

    def some_classes(self, positions: Sequence[int]) -> str:
        """Return `class a`, or `classes a, b and c`."""
        return _several("class", "classes", [_name(self.classes, position) for position in positions])

    def some_features(self, positions: Sequence[int], remarks: Sequence[str]) -> str:
        """Return `feature a (remark)`, or `features a (remark), b (remark) and c (remark)`."""
        named = (f"{_name(self.features, at)} ({remark})" for at, remark in zip(positions, remarks, strict=True))
        return _several("feature", "features", list(named))


UNNAMED = Names()
"""No names: positions are shown instead."""


def _name(names: Sequence[str], position: int) -> str:
    return names[position] if 0 <= position < len(names) else str(position)


def _several(one: str, several: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{one} {names[0]}"
    return f"{several} {', '.join(names[:-1])} and {names[-1]}"


FORWARD_SHARE = 1 / 3
"""Of a step's time: a backward pass takes about twice as long as a forward pass, being two products for its one."""


@dataclass(frozen=True)
class RoundWork:
    """A client's work in a round.

    Attributes:
        num_steps: Optimiser steps.
        bytes_down: Bytes that it receives.
        bytes_up: Bytes that it sends.
    """

    num_steps: int
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class Device:
    """A client's machine and network link; with the defaults, a round takes no time.

    Attributes:
        seconds_per_step: Seconds per optimiser step, >= 0.
        bytes_per_second_down: Bandwidth from the server, > 0.
        bytes_per_second_up: Bandwidth to the server, > 0.
        shift_seconds: Constant part of each round's duration, >= 0.
        mean_seconds: Mean of the additional exponential time, >= 0.
    """

    seconds_per_step: float = 0.0
    bytes_per_second_down: float = inf
    bytes_per_second_up: float = inf
    shift_seconds: float = 0.0
    mean_seconds: float = 0.0

    def least_seconds(self, work: RoundWork) -> float:
        """Return the duration of a round without the exponential time."""
        transfer = work.bytes_down / self.bytes_per_second_down + work.bytes_up / self.bytes_per_second_up
        return self.shift_seconds + work.num_steps * self.seconds_per_step + transfer

    def expected_seconds(self, work: RoundWork) -> float:
        """Return the mean duration of a round."""
        return self.least_seconds(work) + self.mean_seconds

    def probe_seconds(self, work: RoundWork, local_epochs: int) -> float:
        """Return the time for a client to receive the model and measure it on its rows, without training.

        The client sends some numbers, which take no time, and performs the forward passes of one of the round's epochs:
        the corresponding share of the time of the round's steps, and of the shift, as the shift of a shifted
        exponential grows with the work (Lee et al. 2018). Nothing is drawn.
        """
        trained = self.shift_seconds + work.num_steps * self.seconds_per_step
        return FORWARD_SHARE * trained / local_epochs + work.bytes_down / self.bytes_per_second_down


class AbsentError(Exception):
    """Raised when a client misses a round by the federation's design; reported as the reason of its missing reply."""


def misses(dropout: Mapping[int, float], seed: int, server_round: int, client: int) -> bool:
    """Return whether the client drops out of the round."""
    probability = dropout.get(client, 0.0)
    return probability > 0 and float(stream(seed, "dropout", server_round, client).random()) < probability


def simulated_seconds(device: Device, work: RoundWork, seed: int, server_round: int, client: int) -> float:
    """Return the simulated duration of the client's round."""
    delay = device.mean_seconds * float(stream(seed, "latency", server_round, client).exponential())
    return replace(device, shift_seconds=device.shift_seconds + delay).least_seconds(work)


def check_takes_part(
    dropout: Mapping[int, float],
    seconds: float,
    deadline_seconds: float | None,
    seed: int,
    server_round: int,
    client: int,
) -> None:
    """Check that the client takes part in the round.

    Args:
        dropout: See `Federation`.
        seconds: Simulated duration of the client's round.
        deadline_seconds: Maximum duration; None for no deadline.
        seed: Seed of the trial.
        server_round: From 1.
        client: Index of the client.

    Raises:
        AbsentError: If it misses the round, or would answer after the deadline.
    """
    if misses(dropout, seed, server_round, client):
        raise AbsentError("the client misses this round")
    if deadline_seconds is not None and seconds > deadline_seconds:
        raise AbsentError(f"the client takes {seconds:.3g} simulated seconds, the deadline is {deadline_seconds:g}")


def round_seconds(durations: Iterable[float], deadline_seconds: float | None) -> float:
    """Return how long the server waits: for the slowest client, or until the deadline."""
    slowest = max(durations, default=0.0)
    return slowest if deadline_seconds is None else min(slowest, deadline_seconds)
