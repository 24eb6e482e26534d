"""A user's own selection policy, named by import path.

```yaml
kind: custom
path: my_package.my_module:MyPolicy     # a fedscout.engine.contracts.client_selection.SelectionPolicy
values: {temperature: 3}                # arguments of its constructor
```

A constructor that takes `cohort` gets the facts of the federation (`Cohort`), such as how many clients there are. What
a policy wants to observe stands in its class (`observes`). The class is imported when it is checked against a cohort
or built, never when a document is parsed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from fedscout.engine.contracts.client_selection import Observed, SelectionPolicy
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.fault_text import shown
from fedscout.engine.user_code import code_digests
from fedscout.strategies.arguments import Argument, accepted, constructed, converted, name_faults
from fedscout.strategies.import_path import ImportPath, imported_class
from fedscout.strategies.selection.client_context import VALIDATION_SHARE
from fedscout.strategies.selection.selection_specification import SelectionSpec


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
        return imported_class(
            self.path, {"fedscout.engine.contracts.client_selection.SelectionPolicy": SelectionPolicy}
        )

    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        policy_class: Any = self._imported()
        known = {"cohort": cohort} if "cohort" in accepted(policy_class)[0] else {}
        arguments = {**known, **converted(self.path, policy_class, self.values)}
        policy: SelectionPolicy = constructed(self.path, policy_class, arguments, self.values)
        if not isinstance(policy.observes, Observed):
            raise StrategyError(Fault(f"observes of {self.path}", "be an Observed", shown(policy.observes)))
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
