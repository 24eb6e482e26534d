"""The bench's work as a federation of ours; what it is, `peers/work.py` says, for our peers as well."""

from __future__ import annotations

import numpy as np

from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.client_data import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.server_data import ServerData
from fedscout.experiments.benchmarks.peers.work import (
    BATCH_SIZE,
    FEATURE_SHAPES,
    HIDDEN,
    LEARNING_RATE,
    NUM_CLASSES,
    VOCABULARY_SIZES,
    WorkName,
    client_rows,
)
from fedscout.experiments.federations.models.model_request import ModelRequest
from fedscout.experiments.federations.models.model_settings import ModelSettings
from fedscout.experiments.federations.models.model_table import dense, lenet, resnet18, textcnn

TRAINING = LocalTraining(local_epochs=1, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE)

SERVER_ROWS = 100


def work_federation(name: WorkName, num_clients: int, num_samples: int, batch_norm: bool = False) -> Federation:
    """Return the federation of a piece of work, with so many rows a client, and some of the server's own.

    The dense net may have batch norm. The server's rows and labels are for strategies that can't do without.
    """
    shape = FEATURE_SHAPES[name]
    settings = ModelSettings(
        hidden=HIDDEN.get(name),
        norm="batch" if batch_norm else None,
        dropout=0.0 if name == "textcnn" else None,
    )
    build = {"lenet": lenet, "resnet18": resnet18, "resnet18-32": resnet18, "textcnn": textcnn}.get(name, dense)
    num_tokens = VOCABULARY_SIZES.get(name, 0)
    features = np.empty((num_clients, num_samples, *shape), np.float32)
    labels = np.empty((num_clients, num_samples), np.int64)
    for client in range(num_clients):
        features[client], labels[client] = client_rows(name, client, num_samples)
    return Federation(
        name=f"{name}, {num_clients} clients of {num_samples}",
        features=features.reshape(-1, *shape),
        labels=labels.reshape(-1),
        num_classes=NUM_CLASSES[name],
        partition=Partition(np.arange(num_clients * num_samples), num_samples * np.arange(num_clients + 1)),
        model=build(ModelRequest(shape, NUM_CLASSES[name], settings, "tokens" if num_tokens else "table", num_tokens)),
        server=ServerData(*client_rows(name, num_clients, SERVER_ROWS)),
    )
