"""Strategies: one validated specification each, and the space of those that a federation can choose from."""

from fedscout.strategies.methods.averaging import FedAvgMSpec, FedAvgSpec, FedProxSpec
from fedscout.strategies.methods.clients.feddyn import FedDynSpec
from fedscout.strategies.methods.clients.fedlc import FedLCSpec
from fedscout.strategies.methods.clients.fednova import FedNovaSpec
from fedscout.strategies.methods.clients.moon import MoonSpec
from fedscout.strategies.methods.clients.scaffold import ScaffoldSpec
from fedscout.strategies.methods.custom_strategy import CustomSpec
from fedscout.strategies.methods.groups.communities import CommunitiesSpec
from fedscout.strategies.methods.personal.ditto import DittoSpec
from fedscout.strategies.methods.personal.fedbn import FedBNSpec
from fedscout.strategies.methods.personal.fedper import FedPerSpec
from fedscout.strategies.methods.personal.local_only import LocalOnlySpec
from fedscout.strategies.methods.proximal_term import ProximalTerm
from fedscout.strategies.methods.servers.adaptive import FedAdagradSpec, FedAdamSpec, FedYogiSpec
from fedscout.strategies.methods.servers.centered_clipping import CenteredClippingSpec
from fedscout.strategies.methods.servers.fair import QFedAvgSpec
from fedscout.strategies.methods.servers.fedbuff import FedBuffSpec
from fedscout.strategies.methods.servers.fedexp import FedExPSpec
from fedscout.strategies.methods.servers.private_averaging import DPFedAvgSpec
from fedscout.strategies.methods.servers.rfa import RfaSpec
from fedscout.strategies.methods.servers.robust import (
    BulyanSpec,
    FedMedianSpec,
    FedTrimmedAvgSpec,
    KrumSpec,
    MultiKrumSpec,
)
from fedscout.strategies.ranges import ChoiceRange, IntegerRange, Range, RealRange, Value
from fedscout.strategies.selection.selection_specification import SelectionSpec
from fedscout.strategies.selection.selection_table import SELECTIONS, named_selection, parse_selection
from fedscout.strategies.space.pairs import PairSpec
from fedscout.strategies.space.parameter_columns import parameter_columns
from fedscout.strategies.space.search_space import ParameterRow, SearchSpace, StrategyRow, space_of
from fedscout.strategies.space.strategy_names import (
    ALL,
    ALL_KINDS,
    CLIENT_KINDS,
    SERVER_RULE_KINDS,
    named_classes,
    strategy_class,
)
from fedscout.strategies.space.strategy_parsing import parse_strategy
from fedscout.strategies.space.strategy_table import (
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    STRATEGIES,
    strategy_json_schema,
)
from fedscout.strategies.specification import RangeWidth, Searched, StrategySpec, given_values

__all__ = [
    "ALL",
    "ALL_KINDS",
    "BUILT_IN_KINDS",
    "CHOSEN_BY_NAME_KINDS",
    "CLIENT_KINDS",
    "SELECTIONS",
    "SERVER_RULE_KINDS",
    "STRATEGIES",
    "BulyanSpec",
    "CenteredClippingSpec",
    "ChoiceRange",
    "CommunitiesSpec",
    "CustomSpec",
    "DPFedAvgSpec",
    "DittoSpec",
    "FedAdagradSpec",
    "FedAdamSpec",
    "FedAvgMSpec",
    "FedAvgSpec",
    "FedBNSpec",
    "FedBuffSpec",
    "FedDynSpec",
    "FedExPSpec",
    "FedLCSpec",
    "FedMedianSpec",
    "FedNovaSpec",
    "FedPerSpec",
    "FedProxSpec",
    "FedTrimmedAvgSpec",
    "FedYogiSpec",
    "IntegerRange",
    "KrumSpec",
    "LocalOnlySpec",
    "MoonSpec",
    "MultiKrumSpec",
    "PairSpec",
    "ParameterRow",
    "ProximalTerm",
    "QFedAvgSpec",
    "Range",
    "RangeWidth",
    "RealRange",
    "RfaSpec",
    "ScaffoldSpec",
    "SearchSpace",
    "Searched",
    "SelectionSpec",
    "StrategyRow",
    "StrategySpec",
    "Value",
    "given_values",
    "named_classes",
    "named_selection",
    "parameter_columns",
    "parse_selection",
    "parse_strategy",
    "space_of",
    "strategy_class",
    "strategy_json_schema",
]
