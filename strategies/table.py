"""The registry of strategies, and the parsing of names and documents into specifications.

A new strategy is a specification and an entry here. The discrimination of documents by kind, the log columns and
the available pairs are derived from the registry. A name is a kind of the registry, a pair of two kinds, or `"all"`
for all available ones. Parsing a document reports all its faults at once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.text import booleans_as_words, did_you_mean, shown
from fedscout.strategies.methods import (
    averaging,
    communities,
    custom,
    dp_fedavg,
    drift,
    losses,
    personal,
    robust,
    server_rows,
    tuned_clients,
)
from fedscout.strategies.pairs import JOINT, has_clients, is_server_rule, kind_of, pair_class, pair_fault
from fedscout.strategies.selection.table import selection_class
from fedscout.strategies.specification import StrategySpec, parameter_faults

BUILT_IN: tuple[type[StrategySpec], ...] = (
    averaging.FedAvgSpec,
    averaging.FedProxSpec,
    averaging.FedAvgMSpec,
    averaging.FedAdagradSpec,
    averaging.FedAdamSpec,
    averaging.FedYogiSpec,
    robust.FedMedianSpec,
    robust.FedTrimmedAvgSpec,
    robust.KrumSpec,
    robust.MultiKrumSpec,
    robust.BulyanSpec,
    averaging.QFedAvgSpec,
)
"""Those that are in a search space unless asked otherwise. One more would change the draws of every earlier study."""

CHOSEN_BY_NAME: tuple[type[StrategySpec], ...] = (
    robust.RfaSpec,
    robust.CenteredClippingSpec,
    averaging.FedExPSpec,
    averaging.FedBuffSpec,
    drift.ScaffoldSpec,
    drift.FedNovaSpec,
    personal.FedBNSpec,
    personal.MFedBNSpec,
    personal.DittoSpec,
    drift.FedDynSpec,
    losses.MoonSpec,
    losses.FedLCSpec,
    personal.FedPerSpec,
    personal.FedRepSpec,
    personal.LocalOnlySpec,
    personal.FineTuningSpec,
    losses.FedSAMSpec,
    losses.FedRSSpec,
    losses.SymmetricLossSpec,
    personal.FedBABUSpec,
    personal.PFedMeSpec,
    personal.FedRoDSpec,
    tuned_clients.FedExSpec,
    tuned_clients.FedPopSpec,
    dp_fedavg.DPFedAvgSpec,
    communities.CommunitiesSpec,
    server_rows.FedDFSpec,
    server_rows.FedBiOSpec,
    server_rows.RhflSpec,
)
"""Those that are in a search space if it names them."""


BUILT_IN_KINDS: tuple[str, ...] = tuple(map(kind_of, BUILT_IN))
"""The kinds that are in a search space unless asked otherwise."""

CHOSEN_BY_NAME_KINDS: tuple[str, ...] = tuple(map(kind_of, CHOSEN_BY_NAME))
"""The kinds that are in a search space if it names them."""

STRATEGIES: Mapping[str, type[StrategySpec]] = {
    **{kind_of(each): each for each in BUILT_IN + CHOSEN_BY_NAME},
    kind_of(custom.CustomSpec): custom.CustomSpec,
}
"""Every kind but pairs: built in, chosen by name, or `"custom"`."""

ALL = "all"
"""Stands in a list of kinds for all that are possible; pairs and what `ALL_KINDS` leaves out are named beside it."""

ALL_KINDS: tuple[str, ...] = tuple(
    kind_of(each) for each in BUILT_IN + CHOSEN_BY_NAME if each is not dp_fedavg.DPFedAvgSpec
)
"""What it stands for, impossible ones included. DP-FedAvg gives accuracy away for privacy, so it must be asked for."""

SERVER_RULE_KINDS: tuple[str, ...] = tuple(kind for kind, each in STRATEGIES.items() if is_server_rule(each))
"""What may stand first in a pair."""

CLIENT_KINDS: tuple[str, ...] = tuple(kind for kind, each in STRATEGIES.items() if has_clients(each))
"""What may stand second in a pair."""


NAMES = f"{', '.join([*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS])}, pairs such as fedadam{JOINT}fedprox, and {ALL}"
"""What a search may be given to choose from, for people."""


def strategy_class(kind: object) -> type[StrategySpec]:
    """Return the specification class of a kind or of a pair of kinds.

    Raises:
        StrategyError: If there is none; states what is allowed, and why a pair is invalid.
    """
    if isinstance(kind, str) and kind in STRATEGIES:
        return STRATEGIES[kind]
    if isinstance(kind, str) and JOINT in kind:
        return _pair(kind)
    allowed = f"{', '.join(STRATEGIES)}, and pairs such as fedadam{JOINT}fedprox"
    suggestion = did_you_mean(kind, STRATEGIES)
    raise StrategyError.of("kind", "be a known strategy", shown(kind), f"allowed are {allowed}{suggestion}")


def _pair(kind: str) -> type[StrategySpec]:
    halves = kind.split(JOINT)
    if len(halves) != 2 or not {*halves} <= STRATEGIES.keys():
        pairs = (f"{server}{JOINT}{client}" for server in SERVER_RULE_KINDS for client in CLIENT_KINDS)
        raise StrategyError.of(
            "a pair",
            "be one server rule and one strategy's clients",
            shown(kind),
            f"allowed are server rules {', '.join(SERVER_RULE_KINDS)} and clients "
            f"{', '.join(CLIENT_KINDS)}{did_you_mean(kind, pairs)}",
        )
    server_class, client_class = (STRATEGIES[half] for half in halves)
    if fault := pair_fault(server_class, client_class):
        raise StrategyError(fault)
    assert has_clients(client_class)
    return pair_class(server_class, client_class)


def named_classes(kinds: Iterable[str]) -> list[type[StrategySpec]]:
    """Return the specification classes of names, in registry order and then pairs; unknown names are skipped.

    Args:
        kinds: Names of any type; custom strategies are named by import path instead.
    """
    names = {*kinds}
    if ALL in names:
        names |= {*ALL_KINDS}
    registered = [spec_class for spec_class in (*BUILT_IN, *CHOSEN_BY_NAME) if kind_of(spec_class) in names]
    pairs = sorted(kind for kind in names if JOINT in kind and not _pair_faults(kind))
    return [*registered, *map(strategy_class, pairs)]


def name_faults(kinds: Iterable[str]) -> list[str]:
    """Return the faults of the names that a search chooses from."""
    faults: list[str] = []
    for kind in kinds:
        if JOINT in kind:
            faults += _pair_faults(kind)
        elif kind not in (*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS, ALL):
            allowed = f"allowed are {NAMES}{did_you_mean(kind, STRATEGIES)}"
            faults.append(Fault("kinds", "be known strategies", repr(kind), allowed))
    return faults


def _pair_faults(kind: str) -> tuple[str, ...]:
    try:
        strategy_class(kind)
    except StrategyError as error:
        return error.faults
    return ()


def parse_strategy(value: Mapping[str, Any] | str, cohort: Cohort | None = None) -> StrategySpec:
    """Return the specification that a document describes.

    Args:
        value: `{"kind": ..., parameter: ...}`, the same as JSON text, or a kind for its defaults.
        cohort: If given, the specification must also fit it.

    Raises:
        StrategyError: If it is invalid; contains all faults and what is allowed.
    """
    document = _document(value) if isinstance(value, str) else dict(value)
    if "kind" not in document:
        raise StrategyError.of("a strategy", "have a kind", shown(document), f"allowed are {', '.join(STRATEGIES)}")
    spec_class = strategy_class(document["kind"])
    try:
        spec = spec_class.model_validate(booleans_as_words(document, spec_class))
    except ValidationError as error:
        raise StrategyError(parameter_faults(error, spec_class, document["kind"])) from error
    if spec.selection is not None:
        selection_class(spec.selection)  # of its parameters the study decides
    if cohort is not None and (faults := spec.faults(cohort)):
        raise StrategyError(faults)
    return spec


communities.CommunitiesSpec.parsed = staticmethod(parse_strategy)


def _document(text: str) -> dict[str, Any]:
    text = text.strip()
    if not text.startswith(("{", "[", '"')):
        return {"kind": text}
    try:
        document = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        raise StrategyError.of("a strategy", "be valid JSON", f"{shown(text)}: {error}") from error
    if not isinstance(document, dict):
        raise StrategyError.of("a strategy", "be one JSON object", shown(text))
    return document
