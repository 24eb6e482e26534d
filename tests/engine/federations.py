"""Small federations: clients of uneven sizes, one with one row, one with one class, one without rows, one corrupted."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientWork, Correct, TaskResult, TrainRequest
from fedscout.engine.data.client import Answer, Partition, QueryInputs, QueryTable, Release, RowAggregate
from fedscout.engine.data.federation import Device, Federation, ServerData
from fedscout.engine.models.flat import FlatModel
from fedscout.engine.models.layout import ModelFactory

NUM_FEATURES, NUM_CLASSES = 6, 3
SIZES = (40, 17, 1, 12, 0, 33, 2)
ONE_ROW, ONE_CLASS, EMPTY, CORRUPTED, TWO_ROWS = 2, 3, 4, 5, 6
ABLE = tuple(client for client, size in enumerate(SIZES) if size > 0)
"""The clients that can train."""


def dense() -> nn.Module:
    """A small dense net: 6·5 + 5 + 5·3 + 3 = 53 parameters."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 5), nn.ReLU(), nn.Linear(5, NUM_CLASSES))


def wide() -> nn.Module:
    """A dense net whose layers fill whole vectors, so that a core has the same bits in each of several lanes."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 16), nn.ReLU(), nn.Linear(16, NUM_CLASSES))


def huge() -> nn.Module:
    """A dense net of 300,003 parameters: a large state of 1.2 MB, and an answer that its node on Ray keeps."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 30_000), nn.ReLU(), nn.Linear(30_000, NUM_CLASSES))


def linear() -> nn.Module:
    """Softmax regression: the loss is convex."""
    return nn.Linear(NUM_FEATURES, NUM_CLASSES)


def normalised() -> nn.Module:
    """The dense net with batch normalisation, whose statistics travel as buffers."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, NUM_CLASSES))


def counting() -> nn.Module:
    """Batch normalisation by cumulative average: its integer count of batches changes the outcome."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 5), nn.BatchNorm1d(5, momentum=None), nn.Linear(5, NUM_CLASSES))


def dropping() -> nn.Module:
    """The dense net with dropout, which draws random numbers in training."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, NUM_CLASSES))


def one_output() -> nn.Module:
    """A dense net for a quantity."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 16), nn.Tanh(), nn.Linear(16, 1))


@dataclass(frozen=True)
class Noisy:
    """A corruption that draws: adds normal noise to the features and moves every label to the next class."""

    strength: float = 0.3

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        noise = generator.normal(scale=self.strength, size=features.shape)
        return (features + noise).astype(np.float32), (labels + 1) % num_classes


def learnable_rows(num_rows: int, seed: int = 0) -> tuple[FloatArray, IntArray]:
    """Return normal features, labelled by the largest of three fixed linear functions."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
    weights = np.random.default_rng(12345).normal(size=(NUM_FEATURES, NUM_CLASSES))
    return features, np.argmax(features @ weights, axis=1).astype(np.int64)


def uneven_federation(model: ModelFactory = dense, sizes: tuple[int, ...] = SIZES, min_release: int = 5) -> Federation:
    """Return the federation of `SIZES`; the client of one class is given rows of that class alone."""
    features, labels = learnable_rows(num_rows=sum(sizes) + 200)
    free = list(np.random.default_rng(1).permutation(len(labels)))
    of_one_class = [row for row in free if labels[row] == 0]
    clients: list[list[int]] = []
    for client, size in enumerate(sizes):
        source = of_one_class if client == ONE_CLASS else free
        rows = [int(row) for row in source[:size]]
        taken = set(rows)
        free = [row for row in free if row not in taken]
        of_one_class = [row for row in of_one_class if row not in taken]
        clients.append(rows)
    return Federation(
        name="uneven",
        features=features,
        labels=labels,
        num_classes=NUM_CLASSES,
        partition=Partition.from_lists(clients),
        model=model,
        transforms={CORRUPTED: (Noisy(),)} if len(sizes) > CORRUPTED else {},
        release=Release(min_release),
    )


def with_server_rows(federation: Federation, num_rows: int = 60, labelled: bool = False) -> Federation:
    """Return a federation whose server holds further rows of the same distribution."""
    features, labels = learnable_rows(num_rows, seed=77)
    return replace(federation, server=ServerData(features, labels if labelled else None))


def quantities(model: ModelFactory = one_output) -> Federation:
    """Return the uneven federation, whose rows have a target of mean 40 that is linear in the clean features."""
    plain = uneven_federation(model)
    return replace(plain, targets=plain.features.astype(np.float64) @ np.arange(1.0, NUM_FEATURES + 1) + 40)


def label_counts(inputs: QueryInputs) -> Answer:
    """A query: rows per class, plus the message's offset and scalar."""
    counts = np.zeros(inputs.num_classes)
    for _, labels in inputs.data.chunks():
        counts += np.bincount(labels, minlength=inputs.num_classes)
    counts = counts + inputs.arrays["offset"] * float(inputs.config.get("scale", 1.0))
    return {"counts": RowAggregate(counts, len(inputs.data))}


def broken_query(inputs: QueryInputs) -> Answer:
    """A query that fails on a client whose rows are all of one class."""
    if len(np.unique(inputs.data.labels[inputs.data.rows])) == 1:
        raise ArithmeticError("one class only")
    mean = np.float64(inputs.data.features[inputs.data.rows].mean()).reshape(())
    return {"mean": RowAggregate(mean, len(inputs.data))}


QUERIES: QueryTable = {"label-counts": label_counts, "broken": broken_query}


def plain_model(factory: ModelFactory, vector: FloatArray) -> nn.Module:
    """Return an ordinary torch module holding `vector`: parameters in order, then float buffers.

    They lie in memory one after the other, as in the vector, since the last bits of a matrix product may depend on
    the alignment of its operands.
    """
    module = factory()
    tensors = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
    assert sum(tensor.numel() for tensor in tensors) == len(vector)
    memory, start = torch.tensor(vector), 0
    for tensor in tensors:
        tensor.data = memory[start : start + tensor.numel()].view(tensor.shape)
        start += tensor.numel()
    return module


def plain_vector(module: nn.Module) -> FloatArray:
    """Return an ordinary module's parameters and float buffers as one vector."""
    tensors = [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).numpy()


def timed_federation() -> Federation:
    """Return clients of which each has a device of its own, some miss rounds, and some come late."""
    plain = uneven_federation()
    devices = {
        client: Device(0.1 * client, 1e4, 1e3 * (1 + client), shift_seconds=client, mean_seconds=2.0)
        for client in range(1, plain.num_clients)
    }
    return replace(plain, devices=devices, dropout={2: 0.5})


GUESSING = 7
"""Clients that have a task in place of rows."""


@dataclass(frozen=True)
class Guess:
    """A client moves the first weight towards a number of its own; its score is how near the model is to that number.

    It remembers in how many rounds it took part.
    """

    score_name: str = "nearness"
    largest_score: float = 1.0

    def train(self, model: FlatModel, asked: TrainRequest, work: ClientWork, correct: Correct | None) -> TaskResult:
        if work.client == 3 and asked.server_round == 2:
            raise RuntimeError("out of order")
        rounds = work.state.get("task/rounds", np.zeros(1, np.float32)) + 1
        with torch.no_grad():
            model.weights[0] += 0.5 * (work.client / 10 - model.weights[0])
        return TaskResult(1, 0.25, {"task/rounds": rounds})

    def score(self, model: FlatModel, client: int, generator: np.random.Generator) -> npt.NDArray[np.float64]:
        near = max(0.0, 1 - abs(client / 10 - float(model.weights[0])))
        return np.array([near, near / 2, 0.0 if client else generator.random()])


def guessing_federation() -> Federation:
    """Return clients of such a task."""
    return replace(uneven_federation(sizes=(10,) * GUESSING), task=Guess(), transforms={})
