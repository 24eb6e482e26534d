"""Federated-learning strategies: their validated specifications, and the search space of a federation."""

from fedscout.strategies.custom import CustomSpec
from fedscout.strategies.methods.averaging import FedAdamSpec, FedAvgSpec
from fedscout.strategies.selection.policies import SelectionSpec
from fedscout.strategies.selection.table import SELECTIONS, named_selection, parse_selection
from fedscout.strategies.space import SearchSpace, space_of
from fedscout.strategies.specification import (
    ChoiceRange,
    IntegerRange,
    Range,
    RealRange,
    SearchRange,
    StrategySpec,
    Value,
    given_values,
)
from fedscout.strategies.table import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, STRATEGIES, parse_strategy

__all__ = [
    "BUILT_IN_KINDS",
    "CHOSEN_BY_NAME_KINDS",
    "SELECTIONS",
    "STRATEGIES",
    "ChoiceRange",
    "CustomSpec",
    "FedAdamSpec",
    "FedAvgSpec",
    "IntegerRange",
    "Range",
    "RealRange",
    "SearchRange",
    "SearchSpace",
    "SelectionSpec",
    "StrategySpec",
    "Value",
    "given_values",
    "named_selection",
    "parse_selection",
    "parse_strategy",
    "space_of",
]
