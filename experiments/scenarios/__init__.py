"""Scenarios by name: known heterogeneity, with the clients that it affects."""

from experiments.scenarios.contract import Scenario, ScenarioPlan, ScenarioRequest
from experiments.scenarios.table import SCENARIOS

__all__ = ["SCENARIOS", "Scenario", "ScenarioPlan", "ScenarioRequest"]
