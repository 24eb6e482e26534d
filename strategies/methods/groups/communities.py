"""Communities: clients that are alike train a model of their own, by a strategy inside each community.

`grouped_by=labels` finds communities before the first training, from the clients' label counts, as FedPilot does:
`label_communities.py`. `grouped_by=updates` finds them while they train, from the directions of the clients' updates,
as clustered federated learning does: `update_communities.py`. What a strategy per community means, and how a round's
clients are dealt to communities, is in `strategies/aggregation/grouped_rule.py`. Each client is scored under the model
of its community, also in rounds that it does not train in.

With a single community it is the strategy inside. `num_communities` is how many there are by labels, and how many there
may be by updates; without it the data decide. A strategy that a community is too small for, such as Krum for three
clients, fails the trial when the communities are known, before anything is trained by labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, Self

from flwr.serverapp import strategy as flower
from pydantic import BeforeValidator, Field, ValidationError, WithJsonSchema, field_serializer, model_validator

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.contracts.trial_strategy import Cohort, EngineNeeds
from fedscout.engine.data.client_query import LABEL_COUNTS
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.fault_text import details, fault_of, shown
from fedscout.strategies.aggregation.mean_rule import MeanRule
from fedscout.strategies.methods.averaging import FedAvgSpec
from fedscout.strategies.methods.groups.label_communities import LabelCommunities
from fedscout.strategies.methods.groups.update_communities import Bipartition, UpdateCommunities
from fedscout.strategies.specification import StrategySpec, clients_text

_NOT_INSIDE = ("communities", "custom", "dp_fedavg", "fedbuff", "local", "rhfl")
_BY_UPDATES = ("stillness", "restlessness", "separation")


def _inside(given: Any) -> StrategySpec:
    """Return the strategy that a document, or a kind alone, describes."""
    document = {"kind": given} if isinstance(given, str) else given
    kind = document.get("kind") if isinstance(document, Mapping) else getattr(document, "kind", None)
    if not isinstance(kind, str) or kind in _NOT_INSIDE:
        raise ValueError(
            f"must be a strategy that trains a model of all its clients, got {shown(kind or given)}; not allowed are "
            f"{', '.join(_NOT_INSIDE)}"
        )
    try:
        spec = given if isinstance(given, StrategySpec) else CommunitiesSpec.named(kind).model_validate(document)
    except StrategyError as error:
        raise ValueError(f"must be a strategy: {error}") from error
    except ValidationError as error:
        faults = (fault_of(".".join(map(str, detail["loc"])) or kind, detail) for detail in details(error))
        raise ValueError(f"must be a valid {kind}: {'; '.join(faults)}") from error
    if told := spec.client_values():
        raise ValueError(f"must leave {', '.join(told)} to communities itself, got {shown(dict(told))}")
    return spec


Inside = Annotated[
    StrategySpec,
    BeforeValidator(_inside),
    WithJsonSchema({"type": "object", "required": ["kind"]}),
    Field(description="the strategy of each community, by kind or with parameters; pairs included"),
]


class CommunitiesSpec(StrategySpec):
    """Communities: clients that are alike train a model of their own, by a strategy inside each community."""

    paper: ClassVar[str] = "FedPilot (by labels); Sattler et al. 2020, arXiv:1910.01991 (by updates)"
    grouped: ClassVar[bool] = True

    unpaired: ClassVar[str] = "it wraps a strategy, which strategy.inside names"
    named: ClassVar[Callable[[object], type[StrategySpec]]]
    """From a name to what it means; given by `strategies/space/strategy_names.py`, which knows them all."""

    kind: Literal["communities"] = "communities"
    inside: Inside = FedAvgSpec()
    grouped_by: Annotated[
        Literal["labels", "updates"],
        Field(description="by what clients are alike: their label counts, or their updates"),
    ] = "labels"
    num_communities: Annotated[
        int | None, Field(ge=1, description="how many, by updates at most; nothing leaves it to the data")
    ] = None
    preference: Annotated[
        float, Field(ge=-1, lt=1, description="by labels, the cosine below which a client opens a community of its own")
    ] = 0.5
    stillness: Annotated[
        float,
        Field(gt=0, description="ε_1: by updates, a mean shorter than this share of the longest one stands still"),
    ] = 0.5
    restlessness: Annotated[
        float, Field(ge=0, description="ε_2: by updates, a client's own longer than this share of it does not")
    ] = 1.0
    separation: Annotated[
        float, Field(ge=0, le=1, description="γ_max: by updates, halves are this far apart, sqrt((1 − cosine) / 2)")
    ] = 0.75

    @field_serializer("inside")
    def _document_of(self, inside: StrategySpec) -> Mapping[str, Any]:
        return {"kind": inside.kind, **inside.parameters()}

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        fields = type(self).model_fields
        unread = [name for name in _BY_UPDATES if getattr(self, name) != fields[name].default]
        if unread and self.grouped_by == "labels":
            raise ValueError(f"{', '.join(unread)} must be left out unless grouped_by=updates, got grouped_by=labels")
        automatic = self.grouped_by == "labels" and self.num_communities is None
        if self.preference != fields["preference"].default and not automatic:
            raise ValueError("preference must be left out unless grouped_by=labels finds the number of communities")
        return self

    def needs(self) -> EngineNeeds:
        """Return what the engine must provide: what the strategy inside needs; by updates one reply per client."""
        needs = self.inside.needs()
        if self.grouped_by == "updates":
            return replace(needs, replies="individual")
        return replace(needs, queries=(LABEL_COUNTS,))

    def client_algorithm(self) -> ClientAlgorithm | None:
        """Return that of the strategy inside."""
        return self.inside.client_algorithm()

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why it can't be built: more communities than clients, or clients whose updates are not seen."""
        inside_faults, most = self.inside.faults(cohort), cohort.num_sampled
        faults = [*super().faults(cohort), *inside_faults]
        if self.num_communities is not None and self.num_communities > most:
            faults.append(
                Fault(
                    "num_communities of communities",
                    (f"be at most {most} with {clients_text(most)}, of which each community trains one at least"),
                    self.num_communities,
                )
            )
        if self.grouped_by == "updates" and most < cohort.num_clients:
            faults.append(
                Fault(
                    "grouped_by of communities",
                    "be labels unless every client trains in every round",
                    f"updates with {clients_text(most)} of {cohort.num_clients}",
                )
            )
        if self.grouped_by == "updates" and not inside_faults and isinstance(self.inside.build(cohort), MeanRule):
            faults.append(
                Fault(
                    "inside of communities",
                    "read each client's update where grouped_by=updates",
                    f"{self.inside.kind}, which reads means alone",
                )
            )
        return faults

    def equivalent(self, cohort: Cohort) -> StrategySpec:
        """Return a simpler specification: one community is the strategy inside."""
        del cohort
        return self.inside if self.num_communities == 1 else self

    def _text(self, name: str, value: Any) -> str:
        """Return a parameter and its value; the strategy inside as it shows itself."""
        return super()._text(name, self.inside if name == "inside" else value)

    def _construct(self, cohort: Cohort) -> flower.Strategy:
        if self.grouped_by == "labels":
            return LabelCommunities(self.inside.build, cohort, self.num_communities, self.preference)
        rule = Bipartition(self.stillness, self.restlessness, self.separation, self.num_communities)
        return UpdateCommunities(self.inside.build, cohort, rule)
