"""Federated-learning strategies: their validated specifications, and the search space of a federation."""

from fedscout.strategies.custom import CustomSpec as CustomSpec
from fedscout.strategies.methods.averaging import FedAdamSpec as FedAdamSpec, FedAvgSpec as FedAvgSpec
from fedscout.strategies.selection.policies import SelectionSpec as SelectionSpec
from fedscout.strategies.selection.table import (
    SELECTIONS as SELECTIONS,
    named_selection as named_selection,
    parse_selection as parse_selection,
)
from fedscout.strategies.space import SearchSpace as SearchSpace, space_of as space_of
from fedscout.strategies.specification import (
    ChoiceRange as ChoiceRange,
    IntegerRange as IntegerRange,
    Range as Range,
    RealRange as RealRange,
    SearchRange as SearchRange,
    StrategySpec as StrategySpec,
    Value as Value,
    given_values as given_values,
)
from fedscout.strategies.table import (
    BUILT_IN_KINDS as BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS as CHOSEN_BY_NAME_KINDS,
    STRATEGIES as STRATEGIES,
    parse_strategy as parse_strategy,
)
