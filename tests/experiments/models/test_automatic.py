"""The model that is chosen where none is named."""

from __future__ import annotations

import pytest

from fedscout.experiments.data.dataset import DataKind
from fedscout.experiments.models.request import ModelRequest
from fedscout.experiments.models.table import MODELS, automatic_kind, build_model


@pytest.mark.parametrize(
    ("data_kind", "shape", "vocabulary_size", "num_classes", "kind"),
    [
        ("table", (11,), 0, 6, "dense"),
        ("table", (3, 32, 32), 0, 6, "dense"),
        ("image", (3, 32, 32), 0, 10, "lenet"),
        ("image", (1, 16, 16), 0, 10, "lenet"),
        ("image", (1, 16, 15), 0, 10, "cnn2"),
        ("image", (1, 8, 8), 0, 10, "cnn2"),
        ("image", (1, 4, 40), 0, 10, "cnn2"),
        ("image", (1, 3, 40), 0, 10, "dense"),
        ("image", (64,), 0, 10, "dense"),
        ("tokens", (80,), 67, 65, "char_lstm"),  # as many characters as Shakespeare uses
        ("tokens", (32,), 10_000, 2, "embedding_bag"),
        ("tokens", (32,), 300, 2, "embedding_bag"),  # a small vocabulary, but the classes are no tokens
        ("tokens", (32,), 50_000, 49_000, "embedding_bag"),
        ("embedding", (384,), 0, 2, "embedding_classifier"),
    ],
)
def test_choice(data_kind: DataKind, shape: tuple[int, ...], vocabulary_size: int, num_classes: int, kind: str) -> None:
    asked = ModelRequest(shape, num_classes, data_kind=data_kind, vocabulary_size=vocabulary_size)
    assert automatic_kind(asked) == kind
    assert build_model(asked) == MODELS[kind](asked)
