"""Multinomial logistic regression: one fully connected layer, logits at the end."""

from __future__ import annotations

from experiments.models.contract import ModelRequest
from experiments.models.dense import DenseModel


def linear(request: ModelRequest) -> DenseModel:
    """Return the factory of a dense net without hidden layers; `hidden` is not read."""
    return DenseModel(
        widths=(request.num_features, request.num_classes),
        flatten=len(request.feature_shape) > 1,
    )
