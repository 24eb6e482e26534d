"""The registry of strategies, and the parsing of names and documents into specifications.

A new strategy is a specification and an entry here. The discrimination of documents by kind, the log columns and
the available pairs are derived from the registry. A name is a kind of the registry, a pair of two kinds, or `"all"`
for all available ones. Parsing a document reports all its faults at once.

**Pairs**: the server rule of one strategy with the client algorithm of another, such as `fedadam+fedprox`.

A strategy consists of a server rule and a client algorithm. Which parts a strategy can contribute is derived
from its class:

- A *server rule* that does not depend on its clients can be combined with any client algorithm.
- A *client algorithm* whose models are averaged as FedAvg's can be combined with any server rule. A server
  rule made for what its clients send, as SCAFFOLD's or FedNova's, can't be separated from them.

A pair is a specification like any other: its class has the parameters of the rule, then those of the clients,
with their ranges. The class is created once, at the first use of its name, so that pairs compare equal and
pickle like other specifications.

Equivalents: if the rule is equivalent to FedAvg's in a cohort, such as FedAvgM with η = 1 and no momentum,
the pair is the clients' strategy; if the clients are FedAvg's, such as FedProx's with μ = 0, it is the rule's
strategy.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, ClassVar, Literal, TypeGuard

from flwr.serverapp import strategy as flower
from pydantic import ValidationError, create_model

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.text import booleans_as_words, did_you_mean, shown
from fedscout.strategies.custom import CustomSpec
from fedscout.strategies.methods import (
    averaging,
    communities,
    dp_fedavg,
    drift,
    losses,
    personal,
    robust,
    server_rows,
    tuned_clients,
)
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from fedscout.strategies.selection.table import selection_class
from fedscout.strategies.specification import SHARED_PARAMETERS, StrategySpec, parameter_faults

JOINT = "+"


class PairSpec(StrategySpec):
    """Base class of all pairs; `pair_class` creates the class of one.

    Attributes:
        server_class: Strategy of the server rule.
        client_class: Strategy of the client algorithm.
    """

    server_class: ClassVar[type[StrategySpec]]
    client_class: ClassVar[type[MeanSpec]]

    @property
    def server_half(self) -> StrategySpec:
        """The strategy of the server rule, with its parameters."""
        return self.server_class(**self._values(self.server_class, _parameters(self.server_class)))

    @property
    def client_half(self) -> MeanSpec:
        """The strategy of the client algorithm, with its parameters."""
        return self.client_class(**self._values(self.client_class, _own_parameters(self.client_class)))

    def needs(self) -> EngineNeeds:
        """Return the engine features that the server rule needs."""
        return self.server_half.needs()

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return the client algorithm."""
        return self.client_half.paired_algorithm()

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults of both halves."""
        return [*dict.fromkeys([*self.server_half.faults(cohort), *self.client_half.faults(cohort)])]

    def notes(self, cohort: Cohort) -> list[str]:
        """Return warnings about the pair and its halves, without those on the halves' equivalents."""
        notes = super().notes(cohort)
        for half in (self.server_half, self.client_half):
            equivalents = StrategySpec.notes(half, cohort)
            notes += [note for note in half.notes(cohort) if note not in equivalents]
        return notes

    def notes_after(self, cohort: Cohort, num_models: int) -> list[str]:
        """Return notes of both halves on a trial."""
        return [note for half in (self.server_half, self.client_half) for note in half.notes_after(cohort, num_models)]

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return one half if the other is FedAvg's, or the pair with simpler halves."""
        server, client = self.server_half.equivalent(cohort), self.client_half.equivalent(cohort)
        if client.client_algorithm() is None:
            return self.server_half
        if isinstance(server, FedAvgSpec):
            return self.client_half.model_copy(update={"sample_scaling": server.sample_scaling})
        return _paired(server, client if has_clients(type(client)) else self.client_half)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the halves' classes and the fields: the pair's class has no import path."""
        return _empty, (self.server_class, self.client_class), self.__getstate__()

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return self.server_half.build(cohort)

    def _values(self, spec_class: type[StrategySpec], parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*parameters, *SHARED_PARAMETERS)}


@cache
def pair_class(server_class: type[StrategySpec], client_class: type[MeanSpec]) -> type[PairSpec]:
    """Return the specification class of a valid pair."""
    server, client = kind_of(server_class), kind_of(client_class)
    kind = f"{server}{JOINT}{client}"
    parameters = {**_parameters(server_class), **_own_parameters(client_class)}
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in parameters.items()}
    new_class: type[PairSpec] = create_model(
        f"{server_class.__name__}With{client_class.__name__}",
        __base__=PairSpec,
        __doc__=f"The server rule of {server} with the clients of {client}.",
        __module__=__name__,
        **{"kind": (Literal[kind], kind), **fields},
    )
    new_class.server_class, new_class.client_class = server_class, client_class
    new_class.paper = f"{server_class.paper}; {client_class.paper}"
    new_class.requires = (*server_class.requires, *client_class.requires)
    new_class.bound = {**server_class.bound, **client_class.bound}
    return new_class


def kind_of(spec_class: type[StrategySpec]) -> str:
    """Return the kind of a specification."""
    return str(spec_class.model_fields["kind"].default)


def _has_algorithm(spec_class: type[StrategySpec]) -> bool:
    return spec_class.algorithm is not None or spec_class.client_algorithm is not StrategySpec.client_algorithm


def is_server_rule(spec_class: type[StrategySpec]) -> bool:
    """Return whether a strategy has a server rule for any client algorithm."""
    return not _has_algorithm(spec_class) and spec_class is not FedAvgSpec and not spec_class.unpaired


def has_clients(spec_class: type[StrategySpec]) -> TypeGuard[type[MeanSpec]]:
    """Return whether a strategy has a client algorithm for any server rule."""
    if not _has_algorithm(spec_class) or not issubclass(spec_class, MeanSpec):
        return False
    is_declared = spec_class.paired_algorithm is not MeanSpec.paired_algorithm
    averaged = spec_class._construct is MeanSpec._construct and spec_class.needs is MeanSpec.needs
    return (averaged or is_declared) and not spec_class.unpaired


def pair_fault(server_class: type[StrategySpec], client_class: type[StrategySpec]) -> str | None:
    """Return why two strategies make no pair, the server rule's first; None if they do."""
    server, client = kind_of(server_class), kind_of(client_class)
    pair, halves = f"{server}{JOINT}{client}", (server_class, client_class)
    for spec_class in halves:
        if reason := _whole(spec_class):
            return Fault(kind_of(spec_class), "stand alone", f"{pair}: {reason}")
    if FedAvgSpec in halves:
        return Fault(pair, f"be written as {(client if server_class is FedAvgSpec else server)}")
    if not (is_server_rule(server_class) and has_clients(client_class)):
        return Fault("a pair", "be a server rule, then a strategy with clients", pair)
    shared = _parameters(server_class).keys() & _own_parameters(client_class).keys()
    return Fault(", ".join(sorted(shared)), "be a parameter of only one half", pair) if shared else None


def _whole(spec_class: type[StrategySpec]) -> str:
    """Return why a strategy can't be part of a pair; empty if it can."""
    if spec_class.unpaired or spec_class is FedAvgSpec or is_server_rule(spec_class) or has_clients(spec_class):
        return spec_class.unpaired
    return "its server rule needs what its own clients send, so they can't be separated"


def _parameters(spec_class: type[StrategySpec]) -> dict[str, Any]:
    fields = spec_class.model_fields
    return {name: field for name, field in fields.items() if name not in StrategySpec.model_fields}


def _own_parameters(spec_class: type[StrategySpec]) -> dict[str, Any]:
    """Return the parameters of a client algorithm, without those of the mean, which the server rule sets."""
    return {name: field for name, field in _parameters(spec_class).items() if name not in MeanSpec.model_fields}


def _paired(server: StrategySpec, client: StrategySpec) -> StrategySpec:
    assert has_clients(type(client))
    spec_class = pair_class(type(server), type(client))
    values = {name: getattr(server, name) for name in _parameters(type(server))}
    return spec_class(**values, **{name: getattr(client, name) for name in _own_parameters(type(client))})


def _empty(server_class: type[StrategySpec], client_class: type[MeanSpec]) -> PairSpec:
    spec_class = pair_class(server_class, client_class)
    return spec_class.__new__(spec_class)


BUILT_IN: tuple[type[StrategySpec], ...] = (
    *(averaging.FedAvgSpec, averaging.FedProxSpec, averaging.FedAvgMSpec),
    *(averaging.FedAdagradSpec, averaging.FedAdamSpec, averaging.FedYogiSpec),
    *(robust.FedMedianSpec, robust.FedTrimmedAvgSpec, robust.KrumSpec, robust.MultiKrumSpec, robust.BulyanSpec),
    averaging.QFedAvgSpec,
)
"""Those that are in a search space unless asked otherwise. One more would change the draws of every earlier study."""

CHOSEN_BY_NAME: tuple[type[StrategySpec], ...] = (
    *(robust.RfaSpec, robust.CenteredClippingSpec, averaging.FedExPSpec, averaging.FedBuffSpec),
    *(drift.ScaffoldSpec, drift.FedNovaSpec, personal.FedBNSpec, personal.MFedBNSpec, personal.DittoSpec),
    *(drift.FedDynSpec, losses.MoonSpec, losses.FedLCSpec, personal.FedPerSpec, personal.FedRepSpec),
    *(personal.LocalOnlySpec, personal.FineTuningSpec, losses.FedSAMSpec, losses.FedRSSpec, losses.SymmetricLossSpec),
    *(personal.FedBABUSpec, personal.PFedMeSpec, personal.FedRoDSpec),
    *(tuned_clients.FedExSpec, tuned_clients.FedPopSpec, dp_fedavg.DPFedAvgSpec, communities.CommunitiesSpec),
    *(server_rows.FedDFSpec, server_rows.FedBiOSpec, server_rows.RhflSpec),
)
"""Those that are in a search space if it names them."""


BUILT_IN_KINDS: tuple[str, ...] = tuple(map(kind_of, BUILT_IN))
"""The kinds that are in a search space unless asked otherwise."""

CHOSEN_BY_NAME_KINDS: tuple[str, ...] = tuple(map(kind_of, CHOSEN_BY_NAME))
"""The kinds that are in a search space if it names them."""

STRATEGIES: Mapping[str, type[StrategySpec]] = {
    **{kind_of(each): each for each in BUILT_IN + CHOSEN_BY_NAME},
    kind_of(CustomSpec): CustomSpec,
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
