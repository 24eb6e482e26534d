"""Rows for partitions to deal, and what is measured on the result."""

from __future__ import annotations

from typing import Any

import numpy as np

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import Partition
from fedscout.experiments.partitions.labels import PartitionRequest, PartitionResult, PartitionSettings
from fedscout.experiments.partitions.table import PARTITIONS


def asked(
    kind: str,
    labels: IntArray,
    num_clients: int | None,
    seed: int = 0,
    features: FloatArray | None = None,
    **settings: Any,
) -> PartitionRequest:
    """Return a request of a kind; where natural clients are needed, rows are theirs in turn."""
    clients = np.array([f"client {row % (num_clients or 1):05d}" for row in range(len(labels))])
    return PartitionRequest(
        labels,
        num_clients,
        np.random.default_rng(seed),
        settings=PartitionSettings(kind=kind, **settings),
        features=features,
        client_ids=clients if kind == "natural" else None,
    )


def deal(kind: str, labels: IntArray, num_clients: int | None, seed: int = 0, **settings: Any) -> PartitionResult:
    return PARTITIONS[kind].partition(asked(kind, labels, num_clients, seed, **settings))


def noise(num_rows: int, num_columns: int = 12, seed: int = 0) -> FloatArray:
    """Return features without any structure."""
    return np.random.default_rng(seed).normal(size=(num_rows, num_columns)).astype(np.float32)


def class_counts(labels: IntArray, partition: Partition) -> np.ndarray:
    """Rows of each class at each client, shape `(clients, classes)`."""
    clients = range(partition.num_clients)
    return np.stack([np.bincount(labels[partition.client(k)], minlength=labels.max() + 1) for k in clients])


def label_distance(labels: IntArray, partition: Partition) -> float:
    """Mean over clients of the total variation distance of their label distribution from that of all dealt rows."""
    counts = class_counts(labels, partition)
    client, overall = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
    return float(np.abs(client - overall).sum(axis=1).mean() / 2)
