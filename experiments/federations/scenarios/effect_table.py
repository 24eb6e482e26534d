"""The table of effects, and what a user writes to effects: a new one is a class beside its relatives and one line here.

A list of mappings, or one mapping for a list of one. Faults name the place and the key, as in
`federation.scenario.0.rate`; a union's own errors would name the members of the union as well.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias

from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from fedscout.engine.fault_text import details, did_you_mean, shown
from fedscout.engine.truth_values import truths_as_words
from fedscout.experiments.federations.scenarios.attack_effects import (
    GaussianUpdateEffect,
    LittleIsEnoughEffect,
    ScaledUpdateEffect,
    SignFlipEffect,
)
from fedscout.experiments.federations.scenarios.availability_effects import DropoutEffect, LatencyEffect
from fedscout.experiments.federations.scenarios.class_skew import ClassSkewEffect
from fedscout.experiments.federations.scenarios.compression_effects import JpegEffect
from fedscout.experiments.federations.scenarios.concept_shift import ConceptShiftEffect
from fedscout.experiments.federations.scenarios.device_effects import DevicesEffect
from fedscout.experiments.federations.scenarios.effect import ScenarioEffect
from fedscout.experiments.federations.scenarios.feature_effects import (
    FeatureDropEffect,
    FeatureNoiseEffect,
    FeatureScaleEffect,
)
from fedscout.experiments.federations.scenarios.label_effects import CorruptedEffect, LabelFlipEffect, PoisoningEffect

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
