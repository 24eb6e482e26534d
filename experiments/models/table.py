"""The table of models: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import ConfigurationError
from engine.federation import ModelFactory
from experiments.models.automatic import automatic_kind
from experiments.models.char_lstm import char_lstm
from experiments.models.cnn2 import cnn2
from experiments.models.cnn4 import cnn4
from experiments.models.contract import ModelBuilder, ModelRequest
from experiments.models.dense import dense, dense_large
from experiments.models.dqn import dqn
from experiments.models.embedding_classifier import embedding_classifier
from experiments.models.lenet import lenet
from experiments.models.linear import linear
from experiments.models.own import is_import_path, own_model
from experiments.models.resnet18 import resnet18
from experiments.models.textcnn import textcnn


def automatic(request: ModelRequest) -> ModelFactory:
    """Return the factory of the model that suits the rows."""
    return MODELS[automatic_kind(request)](request)


MODELS: Mapping[str, ModelBuilder] = {
    "auto": automatic,
    "linear": linear,
    "dense": dense,
    "dense_large": dense_large,
    "lenet": lenet,
    "cnn2": cnn2,
    "cnn4": cnn4,
    "resnet18": resnet18,
    "textcnn": textcnn,
    "char_lstm": char_lstm,
    "embedding_classifier": embedding_classifier,
    "dqn": dqn,
}


def model_fault(kind: str) -> str | None:
    """Return what is wrong with the name of a model, or None."""
    if kind in MODELS or is_import_path(kind):
        return None
    return f"must be one of {', '.join(MODELS)}, or package.module:factory of one's own, got {kind!r}"


def build_model(request: ModelRequest) -> ModelFactory:
    """Return the factory of the model that the settings name, a picklable value whose `str` is its name.

    Raises:
        ConfigurationError: If there is no such model, a setting does not go with it, or it does not work.
        DataError: If it does not fit the data.
    """
    kind = request.settings.kind
    if fault := model_fault(kind):
        raise ConfigurationError(f"model.kind {fault}")
    return MODELS[kind](request) if kind in MODELS else own_model(request)
