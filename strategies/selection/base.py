"""Base class of selection-policy specifications, and weighted sampling without replacement.

Like a strategy's, a policy's specification is a frozen pydantic model with its name, its parameters and its
construction for a cohort; schema, help and validation are derived from it.

`draw_by_weight` draws one item after another with probability proportional to the weights of the remaining
items.

Reference:
    Efraimidis, Spirakis: Weighted random sampling with a reservoir. Information Processing Letters 97(5),
        2006: the smallest of exponential variables with the weights as rates.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from pydantic import BaseModel, ConfigDict

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import Fault, StrategyError
from fedscout.engine.messages.calls import Cohort, DoubleArray, SelectionPolicy


class SelectionSpec(BaseModel, ABC):
    """A selection policy and its parameters: a validated, picklable value that satisfies `SelectionChoice`.

    Attributes:
        kind: Name of the policy; a literal in each subclass that discriminates documents.
        paper: Reference of the policy.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    paper: ClassVar[str] = ""

    kind: str

    @property
    def label(self) -> str:
        """Name in the log."""
        return self.kind

    @property
    def without_labels(self) -> str:
        """Error message if the policy measures losses but clients have no class labels."""
        return f"selection.kind={self.label} must be used for classification, as it measures losses on class labels"

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured, unless the study sets one."""
        return 0.0

    def parameters(self) -> Mapping[str, Any]:
        """Return all fields but the kind as JSON-able values; with the kind they reproduce the specification."""
        return self.model_dump(mode="json", exclude={"kind"})

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each user code file of the policy; empty for built-in policies."""
        return {}

    def faults(self, cohort: Cohort) -> list[str]:
        """Return the faults that prevent selection in a cohort, as sentences; empty if none."""
        if cohort.num_sampled < cohort.num_clients:
            return []
        return [
            Fault(
                f"selection.kind={self.kind}",
                "have fewer clients per round than clients to choose from",
                f"training.fraction_train that selects {cohort.num_sampled} of {cohort.num_clients}",
            )
        ]

    def build(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy.

        Raises:
            StrategyError: If the parameters do not fit the cohort; contains all faults.
        """
        if faults := self.faults(cohort):
            raise StrategyError(faults)
        policy = self._construct(cohort)
        if policy.observes.losses and not cohort.classifies:
            raise StrategyError(self.without_labels)
        return policy

    @abstractmethod
    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy from valid parameters."""

    def __str__(self) -> str:
        fields = type(self).model_fields
        shown = [
            f"{name}={value}"
            for name, value in self.parameters().items()
            if fields[name].default != getattr(self, name)
        ]
        return f"{self.label}({', '.join(shown)})" if shown else self.label


_LEAST = 1e-12
"""Of the largest weight; a weight of 0 is drawn after all others, and needs no case of its own."""


def draw_by_weight(weights: DoubleArray, num_drawn: int, generator: np.random.Generator) -> IntArray:
    """Return the indices of the drawn items, in the order of the draws.

    Args:
        weights: Shape (items,), any scale. Negative and non-finite weights count as 0; if all are 0, all are
            equal.
        num_drawn: At most the number of items.
        generator: Draws one number per item, whatever the weights.
    """
    arrival_times = generator.exponential(size=len(weights))
    rates = np.where(np.isfinite(weights), weights, 0.0)
    rates = rates / largest if (largest := rates.max(initial=0.0)) > 0 else np.ones(len(weights))
    return np.argsort(arrival_times / np.maximum(rates, _LEAST), kind="stable")[:num_drawn]
