"""Small federations and grids that the detectors' tests share."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ConfigRecord, Message
from scipy.special import softmax
from scipy.stats import binom

from fedscout.detectors import CLIENT_QUERIES, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detect import detect
from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Answer, Arrays, ClientTransform, Partition, QueryInputs, Release, Samples
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import client_of

if TYPE_CHECKING:
    from torch import nn


class SmallNet:
    """A picklable factory of a dense network."""

    def __init__(self, num_features: int, num_classes: int) -> None:
        self.num_features, self.num_classes = num_features, num_classes
        self.num_parameters = (num_features + 1) * 16 + 17 * num_classes

    def __call__(self) -> nn.Module:
        from torch import nn

        return nn.Sequential(nn.Linear(self.num_features, 16), nn.ReLU(), nn.Linear(16, self.num_classes))


def samples(features: np.ndarray, labels: np.ndarray | None = None) -> Samples:
    """Return rows of a client that owns all of them."""
    labels = np.zeros(len(features), np.int64) if labels is None else np.asarray(labels, np.int64)
    return Samples(np.asarray(features, np.float32), labels, np.arange(len(features)))


def inputs(
    data: Samples,
    num_classes: int = 2,
    arrays: Mapping[str, np.ndarray] | None = None,
    config: Mapping[str, Any] | None = None,
    min_release: int = 5,
) -> QueryInputs:
    """Return what a client query reads; its model is a softmax of a linear map, from the front of the vector."""

    def outputs(vector: FloatArray) -> Iterator[FloatArray]:
        for features, _ in data.chunks():
            weights = vector[: features.shape[1] * num_classes].reshape(features.shape[1], num_classes)
            yield softmax((features[:, :, None] * weights).sum(axis=1), axis=1).astype(np.float32)

    return QueryInputs(data, num_classes, arrays or {}, config or {}, outputs, min_release)


def let_out(answer: Answer, min_release: int = 5) -> Arrays:
    """Return what leaves the client of an answer."""
    return Release(min_release).released_part(answer)


def federation(
    clients: Sequence[tuple[np.ndarray, np.ndarray]],
    num_classes: int = 2,
    transforms: Mapping[int, tuple[ClientTransform, ...]] | None = None,
    min_release: int = 5,
) -> Federation:
    """Return a federation of the given (features, labels), one pair a client."""
    features = np.concatenate([f for f, _ in clients]).astype(np.float32)
    labels = np.concatenate([y for _, y in clients]).astype(np.int64)
    bounds = np.concatenate([[0], np.cumsum([len(y) for _, y in clients])])
    rows = [np.arange(a, b) for a, b in itertools.pairwise(bounds)]
    return Federation(
        name="test",
        features=features,
        labels=labels,
        num_classes=num_classes,
        partition=Partition.from_lists(rows),
        model=SmallNet(int(np.prod(features.shape[1:])), num_classes),
        transforms=transforms or {},
        release=Release(min_release),
    )


def report_of(source: Federation | LocalGrid, seed: int = 0, **settings: object) -> HeterogeneityReport:
    """Return the report on a federation, with settings as a user names them."""
    grid = source if isinstance(source, LocalGrid) else LocalGrid(source, CLIENT_QUERIES)
    asked = DetectionConfig.model_validate(settings)
    return detect(grid, grid.initial_vectors, LocalTraining(), asked, seed, grouped=grid.facts.grouped)


def gaussian_clients(sizes: Sequence[int], num_features: int = 6, seed: int = 0) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return clients of one distribution: two classes whose means differ by one in every feature."""
    generator = np.random.default_rng(seed)
    clients = []
    for size in sizes:
        labels = generator.permutation(np.arange(size) % 2)
        clients.append((generator.normal(size=(size, num_features)) + labels[:, None], labels))
    return clients


class RecordingGrid(LocalGrid):
    """A local grid that keeps what it was asked.

    Attributes:
        exchanges: Of each push, its contents: (type, clients, configuration), in the order of the messages.
    """

    def __init__(self, source: Federation) -> None:
        super().__init__(source, CLIENT_QUERIES)
        self.exchanges: list[list[tuple[str, tuple[int, ...], dict[str, Any]]]] = []

    @property
    def sent(self) -> list[tuple[str, tuple[int, ...], dict[str, Any]]]:
        """All contents, whatever exchange they were part of."""
        return [content for contents in self.exchanges for content in contents]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        messages = list(messages)
        contents: dict[int, list[Message]] = {}
        for message in messages:
            contents.setdefault(id(message.content), []).append(message)
        self.exchanges.append([self._asked(group) for group in contents.values()])
        return super().push_messages(messages)

    def _asked(self, messages: list[Message]) -> tuple[str, tuple[int, ...], dict[str, Any]]:
        config = next(iter(messages[0].content.config_records.values()), ConfigRecord())
        receivers = tuple(client_of(message.metadata.dst_node_id) for message in messages)
        return messages[0].metadata.message_type, receivers, dict(config)


class SpreadGrid(LocalGrid):
    """A local grid whose clients are spread over several hosts, as far as the routing knows."""

    def __init__(self, source: Federation, num_hosts: int) -> None:
        self.host = ClientHost(source, CLIENT_QUERIES)
        HostGrid.__init__(self, self.host.facts(), num_hosts=num_hosts)


SURE = 0.001
"""A count of false alarms outside of the bounds has at most this probability on each side if the rate is right."""


def most_alarms(num_federations: int, rate: float) -> int:
    """Return the largest count of false alarms that the rate still explains."""
    return int(binom.ppf(1 - SURE, num_federations, rate))


def fewest_alarms(num_federations: int, rate: float) -> int:
    """Return the smallest count of false alarms that the rate still explains."""
    return int(binom.ppf(SURE, num_federations, rate))
