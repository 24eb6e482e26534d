"""The table of effects, and what a user writes to effects: a new one is a class beside its relatives and one line here.

A list of mappings, or one mapping for a list of one. Faults name the place and the key, as in
`federation.scenario.0.rate`; a union's own errors would name the members of the union as well.

Effects one after the other, on top of a partition.

The published scenarios: how rows are dealt, and a list of effects. A new one is an entry here.

Published for four clients of a bearing data set with a binary label; noise is in units of the standardised feature.
One affected client is the third, or the last of fewer. What `label_skew` does for other numbers of clients and classes
is in its file; the four noises of `feature_skew` repeat in turn for more clients.

Those of X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769, 2024, are
for any number of clients, there 50: 30 % of them skewed, 80 % of their rows of one class; labels wrong at a rate of
each client's own from Beta(15, 85); and both. All clients have latency, lat_i(t) = α n_i + an exponential time of mean
λ n_i with n_i rows, drawn anew each round: α = 1, and of its λ of 1, 10 and 100 the middle one.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, TypeAlias

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from fedscout.engine.contracts.algorithm import UpdateAttack
from fedscout.engine.data.client import ClientTransform, Partition
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.text import details, did_you_mean, shown, truths_as_words
from fedscout.experiments.partitions.base import Partitioner, PartitionRequest, PartitionResult
from fedscout.experiments.partitions.others import iid
from fedscout.experiments.scenarios.base import EffectRequest, ScenarioEffect, ScenarioPlan
from fedscout.experiments.scenarios.devices import DevicesEffect, DropoutEffect, LatencyEffect
from fedscout.experiments.scenarios.features import (
    FeatureDropEffect,
    FeatureNoiseEffect,
    FeatureScaleEffect,
    GaussianUpdateEffect,
    JpegEffect,
    LittleIsEnoughEffect,
    ScaledUpdateEffect,
    SignFlipEffect,
)
from fedscout.experiments.scenarios.labels import (
    ClassSkewEffect,
    ConceptShiftEffect,
    CorruptedEffect,
    LabelFlipEffect,
    PoisoningEffect,
    label_skew,
)

_MEMBERS: tuple[type[ScenarioEffect], ...] = (
    FeatureNoiseEffect,
    LabelFlipEffect,
    PoisoningEffect,
    CorruptedEffect,
    FeatureDropEffect,
    FeatureScaleEffect,
    JpegEffect,
    ConceptShiftEffect,
    ClassSkewEffect,
    SignFlipEffect,
    ScaledUpdateEffect,
    GaussianUpdateEffect,
    LittleIsEnoughEffect,
    LatencyEffect,
    DevicesEffect,
    DropoutEffect,
)

EFFECTS: Mapping[str, type[ScenarioEffect]] = {member.model_fields["kind"].default: member for member in _MEMBERS}

EffectChoice: TypeAlias = Annotated[  # type: ignore[valid-type]  # a union read from the table
    functools.reduce(operator.or_, _MEMBERS), Field(discriminator="kind")
]

EXAMPLE = "{kind: label_flip, rate: 0.3}"


def parse_effects(given: Any) -> tuple[ScenarioEffect, ...]:
    """Return the effects of a list, a mapping or effects that are built already.

    Raises:
        ValidationError: With every fault of every effect.
        ValueError: If there is none.
    """
    items = [given] if isinstance(given, Mapping | ScenarioEffect) else list(given)
    if not items:
        raise ValueError(f"must hold at least one effect, such as {EXAMPLE}, got []; null means no scenario")
    effects: list[ScenarioEffect] = []
    faults: list[InitErrorDetails] = []
    for place, item in enumerate(items):
        try:
            effects.append(item if isinstance(item, ScenarioEffect) else _effect(item))
        except ValidationError as error:
            faults += [_placed(place, detail, item) for detail in details(error)]
        except _ItemError as fault:
            faults.append(_own_fault((place, *fault.key), fault.text, item))
    if faults:
        raise ValidationError.from_exception_data("scenario", faults)
    return tuple(effects)


class _ItemError(Exception):
    """A fault of one item as a whole.

    Attributes:
        text: Condition and value.
        key: Inside the item, if it is one of its keys.
    """

    def __init__(self, text: str, *key: str) -> None:
        super().__init__(text)
        self.text = text
        self.key = key


def _effect(item: Any) -> ScenarioEffect:
    effect_class = _effect_class(item)
    return effect_class.model_validate(truths_as_words(item, effect_class))


def _effect_class(item: Any) -> type[ScenarioEffect]:
    if not isinstance(item, Mapping):
        raise _ItemError(f"must be an effect, such as {EXAMPLE}, got {shown(item)}")
    if "kind" not in item:
        raise _ItemError(f"must be given; allowed are {', '.join(EFFECTS)}", "kind")
    kind = item["kind"]
    if not isinstance(kind, str) or kind not in EFFECTS:
        raise _ItemError(f"must be one of {', '.join(EFFECTS)}, got {shown(kind)}{did_you_mean(kind, EFFECTS)}", "kind")
    return EFFECTS[kind]


def _placed(place: int, detail: ErrorDetails, item: Any) -> InitErrorDetails:
    """Return the fault of one effect, at its place and in our words where pydantic's would not do."""
    location = (place, *detail["loc"])
    if detail["type"] == "missing":
        return _own_fault(location, f"must be given for {item['kind']}", item)
    if detail["type"] == "extra_forbidden":
        effect_class = EFFECTS[item["kind"]]
        allowed = ", ".join(effect_class.model_fields)
        return _own_fault((place,), f"must have no other keys than {allowed}, got {shown(detail['loc'][0])}", item)
    if detail["type"] == "value_error":
        return _own_fault(location, detail["msg"].removeprefix("Value error, "), item)
    return InitErrorDetails(type=detail["type"], loc=location, input=detail["input"], ctx=detail.get("ctx", {}))


def _own_fault(location: tuple[int | str, ...], text: str, item: Any) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("value_error", "{text}", {"text": text}), loc=location, input=item)


def stack_effects(effects: Sequence[ScenarioEffect], request: EffectRequest) -> ScenarioPlan:
    """Return what all effects do together; what each came to stands under `effects` of the facts.

    A client's data go through the effects that name it in their order, and so does its update. Of effects that set a
    client's dropout, or the same value of its device, the last one counts. Effects by which rows change hands come
    ahead of all others. A client is affected if any effect changes its data or update.

    Args:
        effects: In order.
        request: The federation before any of them.

    Raises:
        ConfigurationError: With every fault of every effect.
    """
    faults = [
        f"federation.scenario.{place}.{fault}"
        for place, effect in enumerate(effects)
        for fault in effect.faults(request)
    ]
    if faults:
        raise ConfigurationError(faults)
    transforms: dict[int, tuple[ClientTransform, ...]] = {}
    attacks: dict[int, tuple[UpdateAttack, ...]] = {}
    affected: set[int] = set()
    dropout: dict[int, float] = {}
    timings: dict[int, Mapping[str, float]] = {}
    records: dict[int, dict[str, Any]] = {}
    before: Counter[str] = Counter()
    partition: Partition | None = None
    for place, effect in sorted(enumerate(effects), key=lambda placed: not placed[1].moves_rows):
        own_request = replace(request, occurrence=before[effect.kind])
        before[effect.kind] += 1
        clients = effect.chosen(own_request)
        plan = effect.plan(clients, own_request)
        if plan.partition is not None:
            partition = plan.partition
            request = replace(request, partition=partition)
        for client, added in plan.transforms.items():
            transforms[client] = transforms.get(client, ()) + added
        for client, steps in plan.attacks.items():
            attacks[client] = attacks.get(client, ()) + steps
        affected.update(plan.affected_clients)
        dropout |= plan.dropout
        for client, fields in plan.timings.items():
            timings[client] = {**timings.get(client, {}), **fields}
        records[place] = {"kind": effect.kind, "clients": list(clients), **plan.facts}
    facts = {"effects": [records[place] for place in sorted(records)]}
    return ScenarioPlan(transforms, tuple(sorted(affected)), dropout, timings, attacks, facts, partition)


@dataclass(frozen=True)
class PublishedScenario:
    """A scenario that is chosen by its name.

    Attributes:
        name: What the user writes.
        effects: In order; without a choice of clients, each is for the one that is affected.
        in_turn: Whether they are for all clients in turn instead: of J effects the j-th for clients j, j + J, …
        dealt: How rows are dealt.
    """

    name: str
    effects: tuple[ScenarioEffect, ...] = ()
    in_turn: bool = False
    dealt: Partitioner = iid

    def deal(self, request: PartitionRequest) -> PartitionResult:
        """Deal the rows.

        Raises:
            ConfigurationError: If rows are tokens, which noise would make meaningless.
            DataError: If the rows do not allow it.
        """
        if request.data_kind == "tokens" and any(effect.needs_measurements for effect in self.effects):
            raise ConfigurationError(
                Fault(
                    f"federation.scenario={self.name}",
                    "be used on data whose features are measurements, as it adds noise to them",
                    "tokens, which are numbers of words or characters",
                )
            )
        return self.dealt(request)

    def plan(self, deal: PartitionResult, request: EffectRequest) -> ScenarioPlan:
        """Return what is done to the clients of a deal; a client that any effect is for counts as affected."""
        effects = self.effects
        if self.in_turn:
            turns = [tuple(range(turn, request.num_clients, len(effects))) for turn in range(len(effects))]
            effects = tuple(
                effect.model_copy(update={"clients": clients})
                for effect, clients in zip(effects, turns, strict=True)
                if clients
            )
        plan = stack_effects(effects, request)
        affected = {*deal.affected_clients, *plan.affected_clients, *plan.transforms}
        return replace(plan, affected_clients=tuple(sorted(affected)), facts=plan.facts if effects else {})


BEARING_SCENARIOS: Mapping[str, PublishedScenario] = {
    scenario.name: scenario
    for scenario in (
        PublishedScenario("iid"),
        PublishedScenario("label_skew", dealt=label_skew),
        PublishedScenario(
            "feature_skew",
            (
                FeatureNoiseEffect(std=0.1),
                FeatureNoiseEffect(std=0.5),
                FeatureNoiseEffect(mean=1.0, std=0.1),
                FeatureNoiseEffect(mean=-0.1, std=0.1),
            ),
            in_turn=True,
        ),
        PublishedScenario("noisy_labels", (LabelFlipEffect(rate=0.3),)),
        PublishedScenario("label_poisoning", (PoisoningEffect(),)),
        PublishedScenario("corrupted_client", (CorruptedEffect(),)),
    )
}

_SKEWED = ClassSkewEffect(clients=0.3, share=0.8)
_NOISY = LabelFlipEffect(clients="all", alpha=15, beta=85)
_SLOW = LatencyEffect(clients="all", shift_seconds=1, mean_seconds=10, per_row=True)

FLASH_SCENARIOS: Mapping[str, PublishedScenario] = {
    scenario.name: scenario
    for scenario in (
        PublishedScenario("flash_skew", (_SKEWED, _SLOW)),
        PublishedScenario("flash_noise", (_NOISY, _SLOW)),
        PublishedScenario("flash_both", (_SKEWED, _NOISY, _SLOW)),
    )
}

SCENARIOS: Mapping[str, PublishedScenario] = {**BEARING_SCENARIOS, **FLASH_SCENARIOS}
