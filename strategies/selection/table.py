"""The table of selection policies. A new one is a file with its specification and a line here.

A user's own selection policy, named by import path.

```yaml
kind: custom
path: my_package.my_module:MyPolicy     # a fedscout.engine.messages.calls.SelectionPolicy
values: {temperature: 3}                # arguments of its constructor
```

A constructor that takes `cohort` gets the facts of the federation (`Cohort`), such as how many clients there are. What
a policy wants to observe stands in its class (`observes`). The class is imported when it is checked against a cohort
or built, never when a document is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, overload

from pydantic import Field, ValidationError

from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort, ReportRequest, SelectionPolicy
from fedscout.engine.text import details, did_you_mean, fault_of, shown
from fedscout.engine.user_code import code_digests
from fedscout.strategies.arguments import (
    Argument,
    ImportPath,
    accepted,
    constructed,
    converted,
    imported_class,
    name_faults,
)
from fedscout.strategies.selection.bandits import VALIDATION_SHARE, FlashSpec, NeuralSpec, RestlessSpec
from fedscout.strategies.selection.base import SelectionSpec
from fedscout.strategies.selection.fedcor import FedCorSpec
from fedscout.strategies.selection.oort import OortSpec, PyramidFLSpec
from fedscout.strategies.selection.policies import FeelSpec, PowerOfChoiceSpec, RandomSpec


class CustomSelectionSpec(SelectionSpec):
    """A user's own selection policy, by import path."""

    paper: ClassVar[str] = "the user's own"

    kind: Literal["custom"] = "custom"
    path: Annotated[ImportPath, Field(description="module:Class of a SelectionPolicy")]
    values: Annotated[Mapping[str, Argument], Field(description="arguments of its constructor")] = {}

    @property
    def label(self) -> str:
        """The import path, since several policies are of this kind."""
        return self.path

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured, if the class observes them."""
        try:
            observes = self._imported().observes
        except StrategyError:  # told when it is checked
            return 0.0
        return VALIDATION_SHARE if getattr(observes, "validation_losses", False) else 0.0

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of the class's module and of the user's own modules that it imports."""
        return code_digests(self.path)

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why the policy can't choose in a cohort: it can't be imported, or does not take the arguments."""
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
        known = {"cohort": cohort} if "cohort" in accepted(policy_class)[0] else {}
        arguments = {**known, **converted(self.path, policy_class, self.values)}
        policy: SelectionPolicy = constructed(self.path, policy_class, arguments, self.values)
        if not isinstance(policy.observes, ReportRequest):
            raise StrategyError(Fault(f"observes of {self.path}", "be a ReportRequest", shown(policy.observes)))
        if policy.observes.validation_losses and not self.validation_share:
            raise StrategyError(
                Fault(
                    f"observes of {self.path}",
                    (
                        "ask for validation_losses in the class, as rows are set aside for them before its "
                        "constructor runs"
                    ),
                )
            )
        return policy


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
