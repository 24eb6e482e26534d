"""The registry of selection policies, and custom policies named by import path.

A new policy is a module with its specification and an entry here. A custom policy is configured as

```yaml
kind: custom
path: my_package.my_module:MyPolicy     # a fedscout.engine.messages.calls.SelectionPolicy
values: {temperature: 3}                # arguments of its constructor
```

A constructor with a `cohort` argument receives the facts about the federation (`Cohort`), such as the number
of clients. The class attribute `observes` declares the reports that the policy needs. The class is imported
when it is checked against a cohort or built, never when a document is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import ValidationError

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort, ReportRequest, SelectionPolicy
from fedscout.engine.text import booleans_as_words, did_you_mean, shown
from fedscout.strategies.custom import UserClass, accepted, constructed, converted, imported_class, name_faults
from fedscout.strategies.selection import bandits, oort, policies
from fedscout.strategies.selection.policies import SelectionSpec
from fedscout.strategies.specification import parameter_faults


class CustomSelectionSpec(UserClass, SelectionSpec):
    """A custom selection policy, by import path."""

    paper: ClassVar[str] = "the user's own"

    kind: Literal["custom"] = "custom"

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured, if the class observes them."""
        try:
            observes = self._imported().observes
        except StrategyError:  # reported when it is checked
            return 0.0
        return bandits.VALIDATION_SHARE if getattr(observes, "validation_losses", False) else 0.0

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults: the class can't be imported, does not accept the arguments, or can't choose."""
        faults = super().faults(cohort)
        try:
            policy_class = self._imported()
            faults += name_faults(self.path, policy_class, {*self.values}, {"cohort"})
            converted(self.path, policy_class, self.values)
        except StrategyError as error:
            faults += error.faults
        return faults

    def _imported(self) -> type[SelectionPolicy]:
        return imported_class(self.path, {"fedscout.engine.messages.calls.SelectionPolicy": SelectionPolicy})

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        policy_class: Any = self._imported()
        given = converted(self.path, policy_class, self.values)
        if "cohort" in accepted(policy_class)[0]:
            given["cohort"] = cohort
        policy: SelectionPolicy = constructed(self.path, policy_class, given, self.values)
        if not isinstance(policy.observes, ReportRequest):
            raise StrategyError.of(f"observes of {self.path}", "be a ReportRequest", shown(policy.observes))
        if policy.observes.validation_losses and not self.validation_share:
            raise StrategyError.of(
                f"observes of {self.path}",
                "ask for validation_losses in the class, as rows are set aside for them before its constructor runs",
            )
        return policy


SELECTIONS: Mapping[str, type[SelectionSpec]] = {
    each.model_fields["kind"].default: each
    for each in (
        *(policies.RandomSpec, oort.OortSpec, oort.PyramidFLSpec, bandits.RestlessSpec, bandits.NeuralSpec),
        *(policies.FedCorSpec, policies.FeelSpec, bandits.FlashSpec, policies.PowerOfChoiceSpec, CustomSelectionSpec),
    )
}
"""Every policy by its kind."""


def selection_class(kind: Any) -> type[SelectionSpec]:
    """Return the specification class of a kind of policy.

    Raises:
        StrategyError: If there is none.
    """
    if not isinstance(kind, str) or kind not in SELECTIONS:
        given = f"{shown(kind)}{did_you_mean(kind, SELECTIONS)}"
        raise StrategyError.of("kind of a selection", f"be one of {', '.join(SELECTIONS)}", given)
    return SELECTIONS[kind]


def parse_selection(value: Mapping[str, Any] | str, cohort: Cohort | None = None) -> SelectionSpec:
    """Return the policy that a document describes.

    Args:
        value: `{"kind": ..., parameter: ...}`, or a kind for its defaults.
        cohort: If given, the policy must also be valid for it.

    Raises:
        StrategyError: If it is invalid; contains all faults and what is allowed.
    """
    document = {"kind": value} if isinstance(value, str) else dict(value)
    kind = document.get("kind")
    spec_class = selection_class(kind)
    try:
        spec = spec_class.model_validate(booleans_as_words(document, spec_class))
    except ValidationError as error:
        raise StrategyError(parameter_faults(error, spec_class, f"selection.kind={kind}")) from error
    if cohort is not None:
        spec.build(cohort)
    return spec


def named_selection(kind: str | None, own: SelectionSpec | None, cohort: Cohort | None = None) -> SelectionSpec | None:
    """Return the policy of a kind: the study's own with its parameters, or another kind with defaults.

    Args:
        kind: Kind of the policy; None for the study's.
        own: The study's policy; None if it has none.
        cohort: If given, the policy must also be valid for it.

    Raises:
        StrategyError: If it is invalid; contains all faults and what is allowed.
    """
    if kind is not None and (own is None or own.kind != kind):
        return parse_selection(kind, cohort)
    if own is not None and cohort is not None:
        own.build(cohort)
    return own
