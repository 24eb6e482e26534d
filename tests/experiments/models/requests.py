"""A small request for every model, and rows that it can learn from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.experiments.data.dataset import DataKind
from fedscout.experiments.models.request import ModelRequest, ModelSettings

VOCABULARY = 12
THIN = (16, 16, 32, 32)


def request(
    kind: str, shape: tuple[int, ...], data_kind: DataKind = "table", num_classes: int = 2, **settings: object
) -> ModelRequest:
    """A request by its parts."""
    vocabulary_size = VOCABULARY if data_kind == "tokens" else 0
    chosen = ModelSettings.model_validate({"kind": kind, **settings})
    return ModelRequest(shape, num_classes, chosen, data_kind, vocabulary_size)


SMALL = {
    "linear": request("linear", (5,)),
    "dense": request("dense", (5,), hidden=(8, 4)),
    "dense of images": request("dense", (2, 3, 3), "image", hidden=(8,)),
    "dense with batch norm": request("dense", (5,), hidden=(8, 4), norm="batch"),
    "dense with tanh and dropout": request("dense", (5,), hidden=(8, 4), norm="batch", activation="tanh", dropout=0.2),
    "dense_large": request("dense_large", (5,)),
    "lenet": request("lenet", (1, 16, 16), "image"),
    "cnn2": request("cnn2", (1, 4, 4), "image", hidden=(8,)),
    "cnn2 with gelu": request("cnn2", (1, 4, 4), "image", hidden=(8,), activation="gelu"),
    "cnn4": request("cnn4", (3, 8, 8), "image", hidden=(8,)),
    "resnet18": request("resnet18", (3, 8, 8), "image", hidden=THIN),
    "resnet18 with batch norm": request("resnet18", (3, 8, 8), "image", norm="batch", hidden=THIN),
    "embedding_bag": request("embedding_bag", (6,), "tokens", embedding_size=4),
    "textcnn": request("textcnn", (6,), "tokens", hidden=(5,), embedding_size=4),
    "char_lstm": request("char_lstm", (6,), "tokens", hidden=(7, 5), embedding_size=3),
    "embedding_classifier": request("embedding_classifier", (9,)),
    "embedding_classifier with a hidden layer": request("embedding_classifier", (9,), hidden=(8,)),
    "dqn": request("dqn", (4,)),
    "auto": request("auto", (6,), "tokens", num_classes=VOCABULARY - 1),
}


def learnable_federation(asked: ModelRequest, num_rows: int = 48) -> Federation:
    """Two clients. A row of class c lies around the c-th of a few random points, or holds tokens c + 1 and c + 3."""
    from fedscout.experiments.models.table import build_model

    generator = np.random.default_rng(7)
    labels = np.arange(num_rows) % asked.num_classes
    shape = (num_rows, *asked.feature_shape)
    if asked.data_kind == "tokens":
        odd = generator.integers(0, 2, size=shape)
        features = 1 + (labels[:, None] + 2 * odd) % (VOCABULARY - 1)
    else:
        points = generator.normal(size=(asked.num_classes, *asked.feature_shape))
        features = points[labels] + 0.2 * generator.normal(size=shape)
    return Federation(
        name="learnable",
        features=features.astype(np.float32),
        labels=labels.astype(np.int64),
        num_classes=asked.num_classes,
        partition=Partition.from_lists([range(num_rows // 2), range(num_rows // 2, num_rows)]),
        model=build_model(asked),
    )


def with_settings(asked: ModelRequest, **settings: object) -> ModelRequest:
    """The same request with other settings."""
    return replace(asked, settings=ModelSettings.model_validate(settings))
