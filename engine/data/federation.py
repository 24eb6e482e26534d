"""A federation as a value: rows, clients, names, and the rows of the server.

A federation: which clients exist and what each of them holds.

The data are two arrays, placed once; a client is a range of an index array. A client whose data a scenario corrupts
additionally has transforms, applied to all its local rows before any split, as the client itself would not know of
them. `own` data are what the client has, `clean` data what it would have without corruption.

What the server itself holds: rows that no client ever sees.

Disjoint random parts of a client's rows, one of which a train message may ask for.

Rows that are independent draws of one distribution fall into parts that are, too, whosever they are. So the models of
parts can be exchanged between clients where those of whole clients can't: a permutation test compares clients by them
(`fedscout.detectors.outliers`). Parts are of one size for all clients and pay no regard to labels;
stratified parts of a client would share what its labels have of chance.

What the clients, classes and features of a federation are called in sentences.

Everything computed and sent uses positions. A sentence for people uses names: the client column's values, the classes'
labels, the columns. Where there is no name, the position stands in its place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import ClientData, ClientTransform, Partition, Release, Samples, TargetScale
from fedscout.engine.data.devices import Device
from fedscout.engine.data.split import ClientSplit, SplitKind, split_client
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import stream

if TYPE_CHECKING:
    from fedscout.engine.contracts.algorithm import UpdateAttack
    from fedscout.engine.contracts.client_task import ClientTask


@dataclass(frozen=True)
class ServerData:
    """Rows of the server, scaled as the clients' rows are, or by themselves if of another data set; never corrupted.

    Attributes:
        features: float32, shape `(num_rows, *feature_shape)`, at least one row.
        labels: int64 in `[0, num_classes)`, shape `(num_rows,)`; None where they are stripped.
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
    """The network whose view of a row detectors compare.

    Attributes:
        network: Picklable factory; built from the federation's seed.
        penultimate: Whether the input of its last fully connected layer counts, and not its output.
    """

    network: ModelFactory
    penultimate: bool = True


@dataclass(frozen=True)
class Federation:
    """Clients, their data and the model they train. A value: placed once, read by every host.

    Attributes:
        name: For people and logs.
        features: All rows, float32, shape `(num_rows, *feature_shape)`.
        labels: All labels, int64 in `[0, num_classes)`, shape `(num_rows,)`.
        num_classes: Number of classes.
        partition: The rows of each client.
        model: Picklable factory of the model; the engine seeds torch around the call.
        transforms: Corruption of a client's local data, applied in order.
        seed: Seed of the corruption (the partition was drawn from it, too).
        affected_clients: Clients that a scenario is known to have changed, for reports and tests.
        release: What clients let out in answer to queries, and who trains: a model trained on few rows gives them away.
        feature_names: One name per column for tabular data, else empty.
        class_names: One name per class, or empty.
        facts: What the builder wants on record: counts of dropped rows, realised sizes and the like.
        embedding: What detectors compare in place of the features; None compares the features.
        dropout: Probability in `[0, 1)` that a client misses a round, of clients that may.
        devices: Of clients whose rounds take simulated time.
        attacks: What attackers send in place of their updates, each with its attacks in order.
        task: What clients do in place of classifying rows; None classifies. Rows then only count.
        unseen: Clients that join after the training: they never train and are asked nothing, but scored as clients that
            know the global model alone.
        server: Rows of the server's own, none of which is among `features`; None where it holds none.
        groups: The group of each row, such as a subject, int64, shape `(num_rows,)`: rows of a group that a client
            holds stay together when it splits its rows. None where rows are independent.
        split: Whether test rows are drawn at random, or are each client's last ones.
        targets: The quantity to predict, float64, shape `(num_rows,)`; None where classes are. Labels are then tenths
            of it, for all that needs classes, and the model has one output.
        target_name: What it is.
        reading: How rows became features, as values: what is kept beside a trained model, so that other rows can be
            read in the same way. The engine does not look at it.
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
    def num_clients(self) -> int:
        """Number of clients, unseen ones included."""
        return self.partition.num_clients

    @property
    def num_seen(self) -> int:
        """Number of clients that take part: those that a strategy and a detector meet."""
        return self.num_clients - len(self.unseen)

    @property
    def majority_share(self) -> float:
        """Share of the clients' rows that belong to the most frequent class, in `[0, 1]`; 0 of a task."""
        rows = self.partition.rows
        if self.task is not None or not len(rows):
            return 0.0
        return float(np.bincount(self.labels[rows]).max() / len(rows))

    @property
    def has_ordered_classes(self) -> bool:
        """Whether class numbers are places on a line: tenths of a quantity, or classes whose names are all numbers."""
        return bool(self.target_name) or all(map(PLAIN_NUMBER.fullmatch, self.class_names))

    def client_groups(self, client: int) -> IntArray | None:
        """Return the group of each of a client's rows, shape `(num_rows,)`, or None where rows are independent."""
        return None if self.groups is None else self.groups[self.partition.client(client)]

    def split_rows(
        self, client: int, labels: IntArray, seed: int, test_fraction: float, validation_fraction: float
    ) -> ClientSplit:
        """Return how a client divides its rows, see `fedscout.engine.data.split`.

        Args:
            client: Its index.
            labels: Its labels as it has them, shape `(num_rows,)`.
            seed: The trial's seed.
            test_fraction: Share of test rows, in `[0, 1)`.
            validation_fraction: Share of the other rows kept for validation, in `[0, 1)`.
        """
        order = self.partition.client(client) if self.split == "last" else None
        groups = self.client_groups(client)
        return split_client(labels, seed, client, test_fraction, validation_fraction, groups, order)

    def target_scale(self, seed: int, test_fraction: float, validation_fraction: float) -> TargetScale | None:
        """Return by which a quantity is standardised: that of the training rows of all clients that take part.

        Real clients would tell it by one exchange of sums and sums of squares. No test row is looked at.

        Args:
            seed: The trial's seed.
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
        """Return the same federation without features and server rows, for who no longer needs them: most of it."""
        return replace(self, features=np.empty((0, *self.features.shape[1:]), np.float32), server=None)

    def alone(self, client: int, number: int) -> Federation:
        """Return a federation in which one client of this one holds its rows and nobody else any.

        Args:
            client: Whose rows.
            number: Its number there, from which its random streams derive.
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

    def num_moved_labels(self) -> dict[int, int]:
        """Return how many rows of each client have another label than they would without its corruption, if any."""
        found: dict[int, int] = {}
        for client in self.transforms:
            data = self.client_data(client)
            (_, own), (_, clean) = (view.take(np.arange(len(view))) for view in (data.own, data.clean))
            if num_moved := int((own != clean).sum()):
                found[client] = num_moved
        return found

    def client_data(self, client: int) -> ClientData:
        """Return the local data of one client, its corruption applied."""
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
DEALT_BY_KEY: Final = "part-seed"


@dataclass(frozen=True)
class RowPart:
    """Which of a client's rows.

    Attributes:
        index: Of the part, >= 0.
        num_rows: Rows of each part, >= 1.
        seed: By which rows are dealt to parts; parts of one seed are disjoint.
    """

    index: int
    num_rows: int
    seed: int

    def to_config(self) -> dict[str, int]:
        """Return the entries of a train message's configuration."""
        return {INDEX_KEY: self.index, ROWS_KEY: self.num_rows, DEALT_BY_KEY: self.seed}

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Self | None:
        """Read what `to_config` wrote; None where a client is to train on all its training rows."""
        if INDEX_KEY not in config:
            return None
        return cls(int(config[INDEX_KEY]), int(config[ROWS_KEY]), int(config[DEALT_BY_KEY]))

    def positions(self, num_rows: int, client: int, groups: IntArray | None = None) -> IntArray:
        """Return the part's positions among a client's rows; fewer than asked for where the rows do not reach.

        Args:
            num_rows: Of the client.
            client: Its index.
            groups: Of its rows, shape `(num_rows,)`: rows of a group lie together, in one part or two neighbours.
        """
        generator = stream(self.seed, "row-parts", client)
        order = generator.permutation(num_rows)
        if groups is not None:
            drawn = generator.permutation(len(groups))
            _, first = np.unique(groups[drawn], return_index=True)
            _, group_of = np.unique(groups, return_inverse=True)
            order = order[np.argsort(first[group_of[order]], kind="stable")]
        return order[self.index * self.num_rows : (self.index + 1) * self.num_rows]


CLIENTS_NAMED = 12
"""A sentence names this many clients and counts the rest."""


@dataclass(frozen=True)
class Names:
    """Names by position; empty where there are none.

    Attributes:
        clients: Of the federation's clients.
        classes: Of the labels.
        features: Of a table's columns, after encoding.
    """

    clients: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    features: tuple[str, ...] = ()

    @classmethod
    def of(cls, federation: Federation) -> Names:
        """Return the names that a federation's builder knows."""
        clients = tuple(map(str, federation.facts.get("client_names", ())))
        return cls(clients, tuple(map(str, federation.class_names)), tuple(map(str, federation.feature_names)))

    def client(self, position: int) -> str:
        """Return the name of one client, without the word."""
        return _name(self.clients, position)

    def one_client(self, position: int) -> str:
        """Return `client a`."""
        return f"client {self.client(position)}"

    def some_clients(self, positions: Sequence[int]) -> str:
        """Return `client a`, `clients a, b` or, of many, the first ones and the number of the others."""
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
"""Positions stand in place of all names."""


def _name(names: Sequence[str], position: int) -> str:
    return names[position] if 0 <= position < len(names) else str(position)


def _several(one: str, several: str, names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"{one} {names[0]}"
    return f"{several} {', '.join(names[:-1])} and {names[-1]}"
