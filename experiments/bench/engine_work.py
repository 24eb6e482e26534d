"""A fixed piece of work by which simulators can be compared.

A round is: every client trains one epoch of plain SGD (batch 32, rate 0.01) from the global model, the models are
averaged by row count, and every client evaluates the new model on its own training data. `dense` is a 254-64-32-2 net
on normal features, `lenet` LeNet-5 on 3 x 32 x 32 images of 10 classes. Labels are the largest of fixed random linear
functions of the row, so they can be learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.federation import Federation, ModelFactory, Partition
from engine.training_config import LocalTraining
from experiments.models.contract import ModelRequest
from experiments.models.dense import dense
from experiments.models.lenet import lenet

WorkName = Literal["dense", "lenet"]

TRAINING = LocalTraining(local_epochs=1, batch_size=32, learning_rate=0.01)
LABEL_SEED = 10**6


@dataclass(frozen=True)
class Work:
    """Shape of the rows and the model.

    Attributes:
        feature_shape: Of one row.
        num_classes: Classes.
        model: Factory.
    """

    feature_shape: tuple[int, ...]
    num_classes: int
    model: ModelFactory


WORKS: dict[WorkName, Work] = {
    "dense": Work((254,), 2, dense(ModelRequest((254,), 2, (64, 32)))),
    "lenet": Work((3, 32, 32), 10, lenet(ModelRequest((3, 32, 32), 10))),
}


def work_federation(name: WorkName, num_clients: int, num_samples: int) -> Federation:
    """Return the federation of a piece of work.

    Args:
        name: Which work.
        num_clients: Clients.
        num_samples: Rows of each.
    """
    work = WORKS[name]
    features = np.empty((num_clients * num_samples, *work.feature_shape), np.float32)
    for client in range(num_clients):
        rows = np.random.default_rng(client).normal(size=(num_samples, *work.feature_shape))
        features[client * num_samples : (client + 1) * num_samples] = rows
    directions = np.random.default_rng(LABEL_SEED).normal(size=(int(np.prod(work.feature_shape)), work.num_classes))
    flat = features.reshape(len(features), -1)
    labels = np.concatenate([(flat[i : i + 4096] @ directions).argmax(axis=1) for i in range(0, len(flat), 4096)])
    return Federation(
        name=f"{name}, {num_clients} clients of {num_samples}",
        features=features,
        labels=labels.astype(np.int64),
        num_classes=work.num_classes,
        partition=Partition.from_lists(np.split(np.arange(len(features)), num_clients)),
        model=work.model,
    )
