"""Federated-learning strategies: their validated specifications, and the search space of a federation."""

from fedscout.strategies.methods.averaging import (
    FedAdamSpec,
    FedAvgMSpec,
    FedAvgSpec,
    FedExPSpec,
    FedProxSpec,
    FedYogiSpec,
    ProximalTerm,
    QFedAvgSpec,
)
from fedscout.strategies.methods.custom import CustomSpec
from fedscout.strategies.methods.dp_fedavg import DPFedAvgSpec
from fedscout.strategies.methods.drift import FedDynSpec, FedNovaSpec, ScaffoldSpec
from fedscout.strategies.methods.losses import FedLCSpec, MoonSpec
from fedscout.strategies.methods.personal import DittoSpec, FedBNSpec, LocalOnlySpec
from fedscout.strategies.methods.robust import (
    BulyanSpec,
    CenteredClippingSpec,
    FedMedianSpec,
    FedTrimmedAvgSpec,
    KrumSpec,
    MultiKrumSpec,
    RfaSpec,
)
from fedscout.strategies.selection.policies import SelectionSpec
from fedscout.strategies.selection.table import SELECTIONS, named_selection, parse_selection
from fedscout.strategies.space import SearchSpace, StrategyRow, space_of
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
    "CustomSpec",
    "DPFedAvgSpec",
    "DittoSpec",
    "FedAdamSpec",
    "FedAvgMSpec",
    "FedAvgSpec",
    "FedBNSpec",
    "FedDynSpec",
    "FedExPSpec",
    "FedLCSpec",
    "FedMedianSpec",
    "FedNovaSpec",
    "FedProxSpec",
    "FedTrimmedAvgSpec",
    "FedYogiSpec",
    "IntegerRange",
    "KrumSpec",
    "LocalOnlySpec",
    "MoonSpec",
    "MultiKrumSpec",
    "ProximalTerm",
    "QFedAvgSpec",
    "Range",
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
]
