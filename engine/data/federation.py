"""A federation: which clients exist and what each of them holds.

The data are two arrays, placed once; a client is a range of an index array. A client whose data a scenario corrupts
additionally has transforms, applied to all its local rows before any split, as the client itself would not know of
them. `own` data are what the client has, `clean` data what it would have without corruption.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import ClientData, ClientTransform, Partition, Samples, TargetScale
from fedscout.engine.data.client_split import ClientSplit, SplitKind, split_client
from fedscout.engine.data.device import Device
from fedscout.engine.data.release import Release
from fedscout.engine.data.server_data import ServerData
from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.engine.seeds import stream

if TYPE_CHECKING:
    from fedscout.engine.contracts.client_task import ClientTask
    from fedscout.engine.contracts.update_attack import UpdateAttack


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
        """Return how a client divides its rows, see `fedscout.engine.data.client_split`.

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
