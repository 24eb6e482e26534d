"""Federated-learning strategies: their validated specifications, and the search space of a federation."""

from fedscout.strategies.custom import CustomSpec as CustomSpec
from fedscout.strategies.methods.averaging import FedAdamSpec as FedAdamSpec
from fedscout.strategies.methods.averaging import FedAvgSpec as FedAvgSpec
from fedscout.strategies.selection.policies import SelectionSpec as SelectionSpec
from fedscout.strategies.selection.table import SELECTIONS as SELECTIONS
from fedscout.strategies.selection.table import named_selection as named_selection
from fedscout.strategies.selection.table import parse_selection as parse_selection
from fedscout.strategies.space import SearchSpace as SearchSpace
from fedscout.strategies.space import space_of as space_of
from fedscout.strategies.specification import ChoiceRange as ChoiceRange
from fedscout.strategies.specification import IntegerRange as IntegerRange
from fedscout.strategies.specification import Range as Range
from fedscout.strategies.specification import RealRange as RealRange
from fedscout.strategies.specification import SearchRange as SearchRange
from fedscout.strategies.specification import StrategySpec as StrategySpec
from fedscout.strategies.specification import Value as Value
from fedscout.strategies.specification import given_values as given_values
from fedscout.strategies.table import BUILT_IN_KINDS as BUILT_IN_KINDS
from fedscout.strategies.table import CHOSEN_BY_NAME_KINDS as CHOSEN_BY_NAME_KINDS
from fedscout.strategies.table import STRATEGIES as STRATEGIES
from fedscout.strategies.table import parse_strategy as parse_strategy
