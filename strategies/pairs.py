"""Pairs: the server rule of one strategy with the client algorithm of another, such as `fedadam+fedprox`.

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

from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, Literal, TypeGuard

from flwr.serverapp import strategy as flower
from pydantic import create_model

from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.errors import Fault
from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.strategies.methods.averaging import FedAvgSpec, MeanSpec
from fedscout.strategies.specification import SHARED_PARAMETERS, StrategySpec

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
