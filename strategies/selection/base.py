"""What a selection policy must declare: its name, its parameters, and how it is made for a cohort.

As a strategy's, its specification is a frozen pydantic model from which schema, help and validation are read.

Draws without replacement by weight: one after another, each ∝ the weights of those that are left.

Reference:
    Efraimidis, Spirakis: Weighted random sampling with a reservoir. Information Processing Letters 97(5), 2006: the
        smallest of exponential variables with the weights as rates.
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
        kind: The name of the policy; a literal in each subclass, by which a document is told apart.
        paper: Where the policy was published.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    paper: ClassVar[str] = ""

    kind: str

    @property
    def label(self) -> str:
        """The name in the log."""
        return self.kind

    @property
    def without_labels(self) -> str:
        """That clients must have labels for what the policy wants measured."""
        return f"selection.kind={self.label} must have clients with classes as labels, on which losses are measured"

    @property
    def validation_share(self) -> float:
        """Share of the training rows on which validation losses are measured, unless the study says another."""
        return 0.0

    def parameters(self) -> Mapping[str, Any]:
        """Return everything but the kind as JSON-able values; with the kind they make the same specification."""
        return self.model_dump(mode="json", exclude={"kind"})

    def code(self) -> Mapping[str, str]:
        """Return the SHA-256 of each file of a user's own code that it is; nothing for this program's."""
        return {}

    def faults(self, cohort: Cohort) -> list[str]:
        """Return why the policy can't choose in a cohort, each fault a sentence; empty if it can."""
        if cohort.num_sampled < cohort.num_clients:
            return []
        return [
            Fault(
                f"selection.kind={self.kind}",
                "have fewer clients a round than there are to choose from",
                (f"training.fraction_train that asks for {cohort.num_sampled} of {cohort.num_clients}"),
            )
        ]

    def build(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy.

        Raises:
            StrategyError: If the parameters do not fit the cohort; carries every fault.
        """
        if faults := self.faults(cohort):
            raise StrategyError(faults)
        policy = self._construct(cohort)
        if policy.observes.losses and not cohort.classifies:
            raise StrategyError(self.without_labels)
        return policy

    @abstractmethod
    def _construct(self, cohort: Cohort) -> SelectionPolicy:
        """Construct the policy; the parameters fit."""

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
    """Return the places of what is drawn, in the order of the draws.

    Args:
        weights: Shape (things,), any scale. What is negative or no number weighs nothing; if nothing weighs anything,
            everything weighs the same.
        num_drawn: At most as many as there are things.
        generator: Gives one number for each thing, whatever the weights.
    """
    waits = generator.exponential(size=len(weights))
    rates = np.where(np.isfinite(weights), weights, 0.0)
    rates = rates / largest if (largest := rates.max(initial=0.0)) > 0 else np.ones(len(weights))
    return np.argsort(waits / np.maximum(rates, _LEAST), kind="stable")[:num_drawn]
