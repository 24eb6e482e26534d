"""The table of selection policies. A new one is a file with its specification and a line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from pydantic import ValidationError

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.fault_text import details, did_you_mean, fault_of, shown
from fedscout.strategies.selection.custom_selection import CustomSelectionSpec
from fedscout.strategies.selection.fedcor import FedCorSpec
from fedscout.strategies.selection.feel import FeelSpec
from fedscout.strategies.selection.flash import FlashSpec
from fedscout.strategies.selection.neural import NeuralSpec
from fedscout.strategies.selection.oort import OortSpec
from fedscout.strategies.selection.power_of_choice import PowerOfChoiceSpec
from fedscout.strategies.selection.pyramidfl import PyramidFLSpec
from fedscout.strategies.selection.random_selection import RandomSpec
from fedscout.strategies.selection.restless import RestlessSpec
from fedscout.strategies.selection.selection_specification import SelectionSpec

SELECTIONS: Mapping[str, type[SelectionSpec]] = {
    each.model_fields["kind"].default: each
    for each in (
        RandomSpec,
        OortSpec,
        PyramidFLSpec,
        RestlessSpec,
        NeuralSpec,
        FedCorSpec,
        FeelSpec,
        FlashSpec,
        PowerOfChoiceSpec,
        CustomSelectionSpec,
    )
}
"""Every policy by its kind."""


def selection_class(kind: Any) -> type[SelectionSpec]:
    """Return the specification of a kind of policy.

    Raises:
        StrategyError: If there is none.
    """
    if not isinstance(kind, str) or kind not in SELECTIONS:
        raise _no_kind(f"{shown(kind)}{did_you_mean(kind, SELECTIONS)}")
    return SELECTIONS[kind]


def _no_kind(given: str) -> StrategyError:
    return StrategyError(Fault("kind of a selection", f"be one of {', '.join(SELECTIONS)}", given))


def parse_selection(value: Mapping[str, Any] | str, cohort: Cohort | None = None) -> SelectionSpec:
    """Return the policy that a document describes.

    Args:
        value: `{"kind": ..., parameter: ...}`, or a kind alone for its defaults.
        cohort: If given, the policy must be able to choose there.

    Raises:
        StrategyError: If it is no valid policy; carries every fault with what is allowed.
    """
    document = {"kind": value} if isinstance(value, str) else dict(value)
    kind = document.get("kind")
    if kind is None:
        raise _no_kind(shown(document))
    spec_class = selection_class(kind)
    try:
        spec = spec_class.model_validate(document)
    except ValidationError as error:
        raise StrategyError([_sentence(detail, spec_class, kind) for detail in details(error)]) from error
    if cohort is not None:
        spec.build(cohort)
    return spec


@overload
def named_selection(kind: str, own: SelectionSpec | None, cohort: Cohort | None = None) -> SelectionSpec: ...


@overload
def named_selection(
    kind: str | None, own: SelectionSpec | None, cohort: Cohort | None = None
) -> SelectionSpec | None: ...


def named_selection(kind: str | None, own: SelectionSpec | None, cohort: Cohort | None = None) -> SelectionSpec | None:
    """Return the policy of a kind: the study's with its parameters, or of another kind with their defaults.

    Args:
        kind: Of the policy; None means the study's.
        own: The study's; None where it has none.
        cohort: If given, the policy must be able to choose there.

    Raises:
        StrategyError: If it is no valid policy; carries every fault with what is allowed.
    """
    if kind is not None and (own is None or own.kind != kind):
        return parse_selection(kind, cohort)
    if own is not None and cohort is not None:
        own.build(cohort)
    return own


def _sentence(detail: Any, spec_class: type[SelectionSpec], kind: str) -> str:
    """Return a fault as condition, value and what is allowed."""
    path = [str(part) for part in detail["loc"]]
    if not path:
        return fault_of(f"selection.kind={kind}", detail)
    if detail["type"] == "extra_forbidden":
        allowed = ", ".join(name for name in spec_class.model_fields if name != "kind") or "none"
        return f"{path[0]} is no parameter of selection.kind={kind}, got {shown(detail['input'])}; allowed: {allowed}"
    return fault_of(f"{'.'.join(path)} of selection.kind={kind}", detail)
