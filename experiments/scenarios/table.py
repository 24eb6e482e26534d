"""Registries of effects and published scenarios, and the parsing and stacking of effects.

To add an effect, write its class and add one line to `_MEMBERS`. Users configure a list of mappings, or one mapping for
a list of one. Errors name the position and the key, as in `federation.scenario.0.rate`; the errors of a pydantic union
would also name the members of the union.

To add a published scenario, a partition and a list of effects, add an entry to `SCENARIOS`. The bearing scenarios were
published for four clients of a bearing data set with a binary label; noise is in units of the standardised feature. A
single affected client is the third, or the last if there are fewer. `labels.py` describes `label_skew` for other
numbers of clients and classes; the four noise settings of `feature_skew` repeat in turn for more clients.

The scenarios of X. Chang et al., "FLASH: Federated Learning Across Simultaneous Heterogeneities", arXiv:2402.08769,
2024, apply to any number of clients, 50 in the paper: 30 % of them skewed, 80 % of their rows of one class; wrong
labels at client-specific rates from Beta(15, 85); and both. All clients have latency, lat_i(t) = α n_i + an exponential
time of mean λ n_i with n_i rows, redrawn each round: α = 1, and of its λ of 1, 10 and 100 the middle one.
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
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.text import booleans_as_words, details, did_you_mean, shown
from fedscout.experiments.partitions.labels import Partitioner, PartitionResult
from fedscout.experiments.partitions.table import iid
from fedscout.experiments.scenarios import effects, labels
from fedscout.experiments.scenarios.effects import EffectRequest, ScenarioEffect, ScenarioPlan

_MEMBERS: tuple[type[ScenarioEffect], ...] = (
    effects.FeatureNoiseEffect,
    labels.LabelFlipEffect,
    labels.PoisoningEffect,
    labels.CorruptedEffect,
    effects.FeatureDropEffect,
    effects.FeatureScaleEffect,
    effects.JpegEffect,
    labels.ConceptShiftEffect,
    labels.ClassSkewEffect,
    effects.SignFlipEffect,
    effects.ScaledUpdateEffect,
    effects.GaussianUpdateEffect,
    effects.LittleIsEnoughEffect,
    effects.LatencyEffect,
    effects.DevicesEffect,
    effects.DropoutEffect,
)

EFFECTS: Mapping[str, type[ScenarioEffect]] = {member.model_fields["kind"].default: member for member in _MEMBERS}

EffectChoice: TypeAlias = Annotated[  # type: ignore[valid-type]  # a union read from the table
    functools.reduce(operator.or_, _MEMBERS), Field(discriminator="kind")
]

EXAMPLE = "{kind: label_flip, rate: 0.3}"


def parse_effects(given: Any) -> tuple[ScenarioEffect, ...]:
    """Return the effects of a list, a mapping or existing effects.

    Raises:
        ValidationError: Lists every fault of every effect.
        ValueError: If there is none.
    """
    items = [given] if isinstance(given, Mapping | ScenarioEffect) else list(given)
    if not items:
        raise ValueError(f"must hold at least one effect, such as {EXAMPLE}, got []; null means no scenario")
    found = [_effect_or_faults(place, item) for place, item in enumerate(items)]
    if faults := [fault for result in found if isinstance(result, list) for fault in result]:
        raise ValidationError.from_exception_data("scenario", faults)
    return tuple(effect for effect in found if isinstance(effect, ScenarioEffect))


def _effect_or_faults(place: int, item: Any) -> ScenarioEffect | list[InitErrorDetails]:
    if isinstance(item, ScenarioEffect):
        return item
    if not isinstance(item, Mapping):
        return [_fault((place,), f"must be an effect, such as {EXAMPLE}, got {shown(item)}", item)]
    kind = item.get("kind")
    if not isinstance(kind, str) or kind not in EFFECTS:
        given = f"got {shown(kind)}{did_you_mean(kind, EFFECTS)}" if "kind" in item else "got nothing"
        return [_fault((place, "kind"), f"must be one of {', '.join(EFFECTS)}, {given}", item)]
    try:
        return EFFECTS[kind].model_validate(booleans_as_words(item, EFFECTS[kind]))
    except ValidationError as error:
        return [_placed(place, detail, kind) for detail in details(error)]


def _placed(place: int, detail: ErrorDetails, kind: str) -> InitErrorDetails:
    """Return the error of one effect at its position in the list."""
    location, context = (place, *detail["loc"]), detail.get("ctx", {})
    if detail["type"] == "extra_forbidden":
        keys = f"; {kind} has {', '.join(EFFECTS[kind].model_fields)}" if len(detail["loc"]) == 1 else ""
        return _fault(location, f"must be left out, as it is not a known key{keys}", detail["input"])
    return InitErrorDetails(type=detail["type"], loc=location, input=detail["input"], ctx=context)


def _fault(location: tuple[int | str, ...], text: str, item: Any) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("value_error", "{text}", {"text": text}), loc=location, input=item)


def stack_effects(stack: Sequence[ScenarioEffect], request: EffectRequest) -> ScenarioPlan:
    """Return the combined plan of all effects; the facts of each are recorded under `effects`.

    A client's data pass through the effects that select it in their order, and so does its update. If several effects
    set a client's dropout, or the same device value, the last one applies. Effects that move rows precede all others. A
    client is affected if any effect changes its data or update.

    Args:
        stack: Effects in order.
        request: The federation before any of them.

    Raises:
        ConfigurationError: Lists every fault of every effect.
    """
    faults = [
        fault.below(f"federation.scenario.{place}")
        for place, effect in enumerate(stack)
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
    num_preceding: Counter[str] = Counter()
    partition: Partition | None = None
    for place, effect in sorted(enumerate(stack), key=lambda placed: not placed[1].changes_partition):
        effect_request = replace(request, occurrence=num_preceding[effect.kind])
        num_preceding[effect.kind] += 1
        clients = effect.chosen(effect_request)
        plan = effect.plan(clients, effect_request)
        if plan.partition is not None:
            partition = plan.partition
            request = replace(request, partition=partition)
        for client, client_transforms in plan.transforms.items():
            transforms[client] = transforms.get(client, ()) + client_transforms
        for client, client_attacks in plan.attacks.items():
            attacks[client] = attacks.get(client, ()) + client_attacks
        affected.update(plan.affected_clients)
        dropout |= plan.dropout
        for client, fields in plan.timings.items():
            timings[client] = {**timings.get(client, {}), **fields}
        records[place] = {"kind": effect.kind, "clients": list(clients), **plan.facts}
    facts = {"effects": [records[place] for place in sorted(records)]}
    return ScenarioPlan(transforms, tuple(sorted(affected)), dropout, timings, attacks, facts, partition)


@dataclass(frozen=True)
class PublishedScenario:
    """A scenario selected by its name.

    Attributes:
        effects: Effects in order; without a client choice, each applies to the affected client.
        in_turn: Whether they cycle through all clients instead: of J effects the j-th for clients j, j + J, …
        partition: Partitions the rows.
    """

    effects: tuple[ScenarioEffect, ...] = ()
    in_turn: bool = False
    partition: Partitioner = iid

    def plan(self, partitioned: PartitionResult, request: EffectRequest) -> ScenarioPlan:
        """Return the plan for the clients of a partition; clients that any effect selects count as affected."""
        stack = self.effects
        if self.in_turn:
            turns = [tuple(range(turn, request.num_clients, len(stack))) for turn in range(len(stack))]
            stack = tuple(
                effect.model_copy(update={"clients": clients})
                for effect, clients in zip(stack, turns, strict=True)
                if clients
            )
        plan = stack_effects(stack, request)
        affected = {*partitioned.affected_clients, *plan.affected_clients, *plan.transforms}
        return replace(plan, affected_clients=tuple(sorted(affected)), facts=plan.facts if stack else {})


_NOISES = tuple(
    effects.FeatureNoiseEffect(mean=mean, std=std) for mean, std in ((0.0, 0.1), (0.0, 0.5), (1.0, 0.1), (-0.1, 0.1))
)
BEARING_SCENARIOS: Mapping[str, PublishedScenario] = {
    "iid": PublishedScenario(),
    "label_skew": PublishedScenario(partition=labels.label_skew),
    "feature_skew": PublishedScenario(_NOISES, in_turn=True),
    "noisy_labels": PublishedScenario((labels.LabelFlipEffect(rate=0.3),)),
    "label_poisoning": PublishedScenario((labels.PoisoningEffect(),)),
    "corrupted_client": PublishedScenario((labels.CorruptedEffect(),)),
}

_SKEWED = labels.ClassSkewEffect(clients=0.3, share=0.8)
_NOISY = labels.LabelFlipEffect(clients="all", alpha=15, beta=85)
_SLOW = effects.LatencyEffect(clients="all", shift_seconds=1, mean_seconds=10, per_row=True)

SCENARIOS: Mapping[str, PublishedScenario] = {
    **BEARING_SCENARIOS,
    "flash_skew": PublishedScenario((_SKEWED, _SLOW)),
    "flash_noise": PublishedScenario((_NOISY, _SLOW)),
    "flash_both": PublishedScenario((_SKEWED, _NOISY, _SLOW)),
}
