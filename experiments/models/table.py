"""The table of models: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.models.contract import ModelBuilder
from experiments.models.dense import dense
from experiments.models.lenet import lenet
from experiments.models.linear import linear

MODELS: Mapping[str, ModelBuilder] = {
    "auto": dense,  # every data set so far is a table of numbers
    "dense": dense,
    "lenet": lenet,
    "linear": linear,
}
