"""Federated-learning strategies: their validated specifications, and the search space of a federation."""

from fedscout.strategies.methods.averaging import (
    FedAdagradSpec,
    FedAdamSpec,
    FedAvgMSpec,
    FedAvgSpec,
    FedProxSpec,
    FedYogiSpec,
    ProximalTerm,
    QFedAvgSpec,
)
from fedscout.strategies.methods.communities import CommunitiesSpec
from fedscout.strategies.methods.custom import CustomSpec
from fedscout.strategies.methods.dp_fedavg import DPFedAvgSpec
from fedscout.strategies.methods.fedbuff import FedBuffSpec
from fedscout.strategies.methods.feddyn import FedDynSpec
from fedscout.strategies.methods.fedexp import FedExPSpec
from fedscout.strategies.methods.fednova import FedNovaSpec
from fedscout.strategies.methods.losses import FedLCSpec, MoonSpec
from fedscout.strategies.methods.personal import DittoSpec, FedBNSpec, FedPerSpec, LocalOnlySpec
from fedscout.strategies.methods.robust import (
    BulyanSpec,
    CenteredClippingSpec,
    FedMedianSpec,
    FedTrimmedAvgSpec,
    KrumSpec,
    MultiKrumSpec,
    RfaSpec,
)
from fedscout.strategies.methods.scaffold import ScaffoldSpec
from fedscout.strategies.pairs import PairSpec
from fedscout.strategies.selection.base import SelectionSpec
from fedscout.strategies.selection.table import SELECTIONS, named_selection, parse_selection
from fedscout.strategies.space import ParameterRow, SearchSpace, StrategyRow, space_of
from fedscout.strategies.specification import (
    ChoiceRange,
    IntegerRange,
    Range,
    RangeWidth,
    RealRange,
    SearchRange,
    StrategySpec,
    Value,
    given_values,
)
from fedscout.strategies.table import (
    ALL,
    ALL_KINDS,
    BUILT_IN_KINDS,
    CHOSEN_BY_NAME_KINDS,
    CLIENT_KINDS,
    SERVER_RULE_KINDS,
    STRATEGIES,
    named_classes,
    parse_strategy,
    strategy_class,
    strategy_json_schema,
)

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
    "SearchRange",
    "SearchSpace",
    "SelectionSpec",
    "StrategyRow",
    "StrategySpec",
    "Value",
    "given_values",
    "named_classes",
    "named_selection",
    "parse_selection",
    "parse_strategy",
    "space_of",
    "strategy_class",
    "strategy_json_schema",
]
