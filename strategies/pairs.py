"""A pair: the server rule of one strategy with the clients of another, such as `fedadam+fedprox`.

A strategy is a server rule with a client algorithm, and published names are fixed pairs of them. Which strategies have
a half to give is read from their classes:

- A *server rule* says nothing of its clients, so any of them can stand under it.
- *Clients* do something of their own and are averaged as FedAvg's, so any other rule can take the mean's place. What
  keeps a server rule made for what its clients send, as SCAFFOLD's or FedNova's, does not part from it.

A pair is a specification like any other: its class has the parameters of the rule, then those of the clients, with
their ranges. It is made when its name is first used, and once, so pairs are equal, and travel, as others do.

Equivalents: with a rule that is FedAvg's in a cohort, such as FedAvgM with η = 1 and no momentum, it is the strategy of
the clients; with clients that are FedAvg's, such as FedProx's with μ = 0, it is the strategy of the rule.
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
    """What all pairs have in common; `pair_class` makes the class of one.

    Attributes:
        server_class: Whose server rule it is.
        client_class: Whose clients they are.
    """

    server_class: ClassVar[type[StrategySpec]]
    client_class: ClassVar[type[MeanSpec]]

    @property
    def server_half(self) -> StrategySpec:
        """The strategy whose server rule it is, with its parameters."""
        return self.server_class(**self._values(self.server_class, _parameters(self.server_class)))

    @property
    def client_half(self) -> MeanSpec:
        """The strategy whose clients they are, likewise."""
        return self.client_class(**self._values(self.client_class, _own_parameters(self.client_class)))

    def needs(self) -> EngineNeeds:
        """Return what the engine must provide for the server rule."""
        return self.server_half.needs()

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return what the clients do."""
        return self.client_half.paired_algorithm()

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        """Return why no parameters could make a half work."""
        return cls.server_class.unavailable(cohort) or cls.client_class.unavailable(cohort)

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why it can't be built: the faults of both halves."""
        return [*dict.fromkeys([*self.server_half.faults(cohort), *self.client_half.faults(cohort)])]

    def notes(self, cohort: Cohort) -> list[str]:
        """Return what is worth knowing of the pair, and of its halves what is not about their equivalents."""
        notes = super().notes(cohort)
        for half in (self.server_half, self.client_half):
            equivalents = StrategySpec.notes(half, cohort)
            notes += [note for note in half.notes(cohort) if note not in equivalents]
        return notes

    def notes_after(self, cohort: Cohort, num_models: int) -> list[str]:
        """Return what is worth knowing of a trial of either half."""
        return [note for half in (self.server_half, self.client_half) for note in half.notes_after(cohort, num_models)]

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return one half alone where the other is FedAvg's, or the pair of a simpler half."""
        server, client = self.server_half.equivalent(cohort), self.client_half.equivalent(cohort)
        if client.client_algorithm() is None:
            return self.server_half
        if isinstance(server, FedAvgSpec):
            return self.client_half.model_copy(update={"sample_scaling": server.sample_scaling})
        return _paired(server, client if has_clients(type(client)) else self.client_half)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel as the halves' classes and what is set: the pair's own class is found under no import path."""
        return _empty, (self.server_class, self.client_class), self.__getstate__()

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        return self.server_half.build(cohort)

    def _values(self, spec_class: type[StrategySpec], parameters: Mapping[str, Any]) -> dict[str, Any]:
        return {name: getattr(self, name) for name in (*parameters, *SHARED_PARAMETERS)}


@cache
def pair_class(server_class: type[StrategySpec], client_class: type[MeanSpec]) -> type[PairSpec]:
    """Return the specification of a pair that has no fault."""
    server, client = kind_of(server_class), kind_of(client_class)
    kind = f"{server}{JOINT}{client}"
    parameters = {**_parameters(server_class), **_own_parameters(client_class)}
    fields: dict[str, Any] = {name: (field.annotation, field) for name, field in parameters.items()}
    made: type[PairSpec] = create_model(
        f"{server_class.__name__}With{client_class.__name__}",
        __base__=PairSpec,
        __doc__=f"The server rule of {server} with the clients of {client}.",
        __module__=__name__,
        **{"kind": (Literal[kind], kind), **fields},
    )
    made.server_class, made.client_class = server_class, client_class
    made.paper = f"{server_class.paper}; {client_class.paper}"
    made.bound = {**server_class.bound, **client_class.bound}
    made.reads_layers = server_class.reads_layers or client_class.reads_layers
    return made


def kind_of(spec_class: type[StrategySpec]) -> str:
    """Return the kind of a specification."""
    return str(spec_class.model_fields["kind"].default)


def is_server_rule(spec_class: type[StrategySpec]) -> bool:
    """Return whether a strategy has a server rule for any clients."""
    plain = spec_class.client_algorithm is StrategySpec.client_algorithm
    return plain and spec_class is not FedAvgSpec and not spec_class.unpaired


def has_clients(spec_class: type[StrategySpec]) -> TypeGuard[type[MeanSpec]]:
    """Return whether a strategy has clients for any server rule."""
    if spec_class.client_algorithm is StrategySpec.client_algorithm or not issubclass(spec_class, MeanSpec):
        return False
    says_so = spec_class.paired_algorithm is not MeanSpec.paired_algorithm
    averaged = spec_class._construct is MeanSpec._construct and spec_class.needs is MeanSpec.needs
    return (averaged or says_so) and not spec_class.unpaired


def pair_fault(server_class: type[StrategySpec], client_class: type[StrategySpec]) -> str | None:
    """Return why two strategies make no pair, the server rule's first; None if they do."""
    server, client = kind_of(server_class), kind_of(client_class)
    pair, halves = f"{server}{JOINT}{client}", (server_class, client_class)
    for spec_class in halves:
        if reason := _whole(spec_class):
            return f"{kind_of(spec_class)} must stand alone, got {pair}: {reason}"
    if FedAvgSpec in halves:
        return Fault(pair, f"be written as what it is, {(client if server_class is FedAvgSpec else server)}")
    if not any(map(has_clients, halves)) or not any(map(is_server_rule, halves)):
        kinds = "bring their clients" if has_clients(server_class) else "are server rules"
        return f"a pair must be one server rule and one strategy's clients, got {pair}: both {kinds}"
    if is_server_rule(client_class):
        return Fault("a pair", f"name its server rule first, {client}{JOINT}{server}", pair)
    both = _parameters(server_class).keys() & _own_parameters(client_class).keys()
    return Fault(", ".join(sorted(both)), "be a parameter of one half", pair) if both else None


def _whole(spec_class: type[StrategySpec]) -> str:
    """Return why a strategy has no half to give; nothing if it has one."""
    if spec_class.unpaired or spec_class is FedAvgSpec or is_server_rule(spec_class) or has_clients(spec_class):
        return spec_class.unpaired
    return "its server rule is made for what its clients send, so its halves do not part"


def _parameters(spec_class: type[StrategySpec]) -> dict[str, Any]:
    fields = spec_class.model_fields
    return {name: field for name, field in fields.items() if name not in StrategySpec.model_fields}


def _own_parameters(spec_class: type[StrategySpec]) -> dict[str, Any]:
    """Return the parameters of clients: how they are averaged is a matter of the server rule."""
    return {name: field for name, field in _parameters(spec_class).items() if name not in MeanSpec.model_fields}


def _paired(server: StrategySpec, client: StrategySpec) -> StrategySpec:
    assert has_clients(type(client))
    made = pair_class(type(server), type(client))
    values = {name: getattr(server, name) for name in _parameters(type(server))}
    return made(**values, **{name: getattr(client, name) for name in _own_parameters(type(client))})


def _empty(server_class: type[StrategySpec], client_class: type[MeanSpec]) -> PairSpec:
    made = pair_class(server_class, client_class)
    return made.__new__(made)
