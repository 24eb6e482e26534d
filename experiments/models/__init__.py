"""Models by name: picklable factories, which import torch when they are called and not before."""

from experiments.models.contract import ModelBuilder, ModelRequest
from experiments.models.table import MODELS, build_model

__all__ = ["MODELS", "ModelBuilder", "ModelRequest", "build_model"]
