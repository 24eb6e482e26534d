"""Environments by name: federations whose clients play episodes instead of classifying rows."""

from experiments.environments.contract import Environment, EnvironmentRequest
from experiments.environments.table import ENVIRONMENTS

__all__ = ["ENVIRONMENTS", "Environment", "EnvironmentRequest"]
