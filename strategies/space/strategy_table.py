"""The tables of strategies. A new one is a file with its specification and a line here.

What holds for all of them is read from it: how a document is told apart, the JSON schema, the columns of the log, and
which of them make pairs.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field, TypeAdapter

from fedscout.strategies.methods.averaging import FedAvgMSpec, FedAvgSpec, FedProxSpec
from fedscout.strategies.methods.clients.feddyn import FedDynSpec
from fedscout.strategies.methods.clients.fedex import FedExSpec
from fedscout.strategies.methods.clients.fedlc import FedLCSpec
from fedscout.strategies.methods.clients.fednova import FedNovaSpec
from fedscout.strategies.methods.clients.fedpop import FedPopSpec
from fedscout.strategies.methods.clients.fedrs import FedRSSpec
from fedscout.strategies.methods.clients.fedsam import FedSAMSpec
from fedscout.strategies.methods.clients.moon import MoonSpec
from fedscout.strategies.methods.clients.scaffold import ScaffoldSpec
from fedscout.strategies.methods.clients.symmetric_loss import SymmetricLossSpec
from fedscout.strategies.methods.custom_strategy import CustomSpec
from fedscout.strategies.methods.groups.communities import CommunitiesSpec
from fedscout.strategies.methods.groups.rhfl import RhflSpec
from fedscout.strategies.methods.personal.ditto import DittoSpec
from fedscout.strategies.methods.personal.fedbabu import FedBABUSpec
from fedscout.strategies.methods.personal.fedbn import FedBNSpec
from fedscout.strategies.methods.personal.fedper import FedPerSpec
from fedscout.strategies.methods.personal.fedrep import FedRepSpec
from fedscout.strategies.methods.personal.fedrod import FedRoDSpec
from fedscout.strategies.methods.personal.fine_tuning import FineTuningSpec
from fedscout.strategies.methods.personal.local_only import LocalOnlySpec
from fedscout.strategies.methods.personal.mfedbn import MFedBNSpec
from fedscout.strategies.methods.personal.pfedme import PFedMeSpec
from fedscout.strategies.methods.servers.adaptive import FedAdagradSpec, FedAdamSpec, FedYogiSpec
from fedscout.strategies.methods.servers.centered_clipping import CenteredClippingSpec
from fedscout.strategies.methods.servers.fair import QFedAvgSpec
from fedscout.strategies.methods.servers.fedbio import FedBiOSpec
from fedscout.strategies.methods.servers.fedbuff import FedBuffSpec
from fedscout.strategies.methods.servers.feddf import FedDFSpec
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
from fedscout.strategies.space.pairs import kind_of
from fedscout.strategies.specification import StrategySpec

BUILT_IN: tuple[type[StrategySpec], ...] = (
    FedAvgSpec,
    FedProxSpec,
    FedAvgMSpec,
    FedAdagradSpec,
    FedAdamSpec,
    FedYogiSpec,
    FedMedianSpec,
    FedTrimmedAvgSpec,
    KrumSpec,
    MultiKrumSpec,
    BulyanSpec,
    QFedAvgSpec,
)
"""Those that are in a search space unless asked otherwise. One more would change the draws of every earlier study."""

CHOSEN_BY_NAME: tuple[type[StrategySpec], ...] = (
    RfaSpec,
    CenteredClippingSpec,
    FedExPSpec,
    FedBuffSpec,
    ScaffoldSpec,
    FedNovaSpec,
    FedBNSpec,
    MFedBNSpec,
    DittoSpec,
    FedDynSpec,
    MoonSpec,
    FedLCSpec,
    FedPerSpec,
    FedRepSpec,
    LocalOnlySpec,
    FineTuningSpec,
    FedSAMSpec,
    FedRSSpec,
    SymmetricLossSpec,
    FedBABUSpec,
    PFedMeSpec,
    FedRoDSpec,
    FedExSpec,
    FedPopSpec,
    DPFedAvgSpec,
    CommunitiesSpec,
    FedDFSpec,
    FedBiOSpec,
    RhflSpec,
)
"""Those that are in a search space if it names them."""


BUILT_IN_KINDS: tuple[str, ...] = tuple(map(kind_of, BUILT_IN))
"""The kinds that are in a search space unless asked otherwise."""

CHOSEN_BY_NAME_KINDS: tuple[str, ...] = tuple(map(kind_of, CHOSEN_BY_NAME))
"""The kinds that are in a search space if it names them."""

STRATEGIES: Mapping[str, type[StrategySpec]] = {
    **dict(zip(BUILT_IN_KINDS, BUILT_IN, strict=True)),
    **dict(zip(CHOSEN_BY_NAME_KINDS, CHOSEN_BY_NAME, strict=True)),
    kind_of(CustomSpec): CustomSpec,
}
"""Every kind but pairs: built in, chosen by name, or `"custom"`."""

StrategyChoice: TypeAlias = Annotated[  # type: ignore[valid-type]  # a union read from the table
    functools.reduce(operator.or_, STRATEGIES.values()), Field(discriminator="kind")
]

STRATEGY_ADAPTER: TypeAdapter[StrategySpec] = TypeAdapter(StrategyChoice)
"""Validates a document of any strategy but a pair, told apart by its `kind`."""


def strategy_json_schema() -> dict[str, Any]:
    """Return the JSON schema of all strategies but pairs: what is valid, and under `x-searched` what a search draws.

    `SearchSpace.json_schema` gives the schema of the strategies and ranges of one federation.
    """
    return STRATEGY_ADAPTER.json_schema()
