"""Strategies: one validated specification each, and the space of those that a federation can choose from."""

from strategies.adaptive import FedAdagradSpec, FedAdamSpec, FedYogiSpec
from strategies.averaging import FedAvgMSpec, FedAvgSpec, FedProxSpec
from strategies.client_parameters import given_values
from strategies.columns import parameter_columns
from strategies.custom import CustomSpec
from strategies.fair import QFedAvgSpec
from strategies.parsing import parse_strategy
from strategies.proximal import ProximalTerm
from strategies.ranges import ChoiceRange, IntegerRange, Range, RealRange, Value
from strategies.robust import BulyanSpec, FedMedianSpec, FedTrimmedAvgSpec, KrumSpec, MultiKrumSpec
from strategies.space import ParameterRow, SearchSpace, StrategyRow, space_of
from strategies.specification import RangeWidth, Searched, StrategySpec
from strategies.table import BUILT_IN_KINDS, STRATEGIES, strategy_json_schema

__all__ = [
    "BUILT_IN_KINDS",
    "STRATEGIES",
    "BulyanSpec",
    "ChoiceRange",
    "CustomSpec",
    "FedAdagradSpec",
    "FedAdamSpec",
    "FedAvgMSpec",
    "FedAvgSpec",
    "FedMedianSpec",
    "FedProxSpec",
    "FedTrimmedAvgSpec",
    "FedYogiSpec",
    "IntegerRange",
    "KrumSpec",
    "MultiKrumSpec",
    "ParameterRow",
    "ProximalTerm",
    "QFedAvgSpec",
    "Range",
    "RangeWidth",
    "RealRange",
    "SearchSpace",
    "Searched",
    "StrategyRow",
    "StrategySpec",
    "Value",
    "given_values",
    "parameter_columns",
    "parse_strategy",
    "space_of",
    "strategy_json_schema",
]
