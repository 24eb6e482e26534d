"""The table of models: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from engine.errors import ConfigurationError
from engine.federation import ModelFactory
from experiments.models.contract import ModelBuilder, ModelRequest
from experiments.models.dense import dense
from experiments.models.lenet import lenet
from experiments.models.linear import linear

MODELS: Mapping[str, ModelBuilder] = {
    "auto": dense,  # every data set so far is a table of numbers
    "dense": dense,
    "lenet": lenet,
    "linear": linear,
}


def build_model(request: ModelRequest) -> ModelFactory:
    """Return the factory of the model that the settings name.

    Raises:
        ConfigurationError: If there is no such model.
        DataError: If it does not fit the data.
    """
    kind = request.settings.kind
    if kind not in MODELS:
        raise ConfigurationError(f"model.kind must be one of {', '.join(MODELS)}, got {kind!r}")
    return MODELS[kind](request)
