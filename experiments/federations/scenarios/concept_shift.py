"""Concept shift: the same features mean other labels. At some clients classes have changed places.

This is the "same features, different labels" of P. Kairouz et al., "Advances and Open Problems in Federated Learning",
Foundations and Trends in Machine Learning 14 (1–2), 2021, section 3.1, produced by a permutation of the labels of a
group of clients as in F. Sattler, K.-R. Müller and W. Samek, "Clustered Federated Learning: Model-Agnostic Distributed
Multi-Task Optimization Under Privacy Constraints", IEEE Transactions on Neural Networks and Learning Systems 32 (8),
2021.

A drawn permutation is one cycle through the classes that take part, so none of them stays where it is. The clients of
an effect share it, and so form a group; or each has its own. Several groups are several effects.

The clean view of such a client has the labels as they were: what the model would be asked by all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.experiments.federations.scenarios.effect import EffectRequest, ScenarioEffect, ScenarioPlan


@dataclass(frozen=True)
class RenameLabels:
    """Gives every row another name for its class.

    Attributes:
        names: The new class of each old one, shape `(num_classes,)`; a permutation.
    """

    names: tuple[int, ...]

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        """Return the same features and renamed labels."""
        return features.copy(), np.asarray(self.names, dtype=np.int64)[labels]


class ConceptShiftEffect(ScenarioEffect):
    """The same features, other labels: classes change places."""

    needs_classes: ClassVar[bool] = True

    kind: Literal["concept_shift"] = "concept_shift"
    shared: bool = Field(default=True, description="whether the clients share a permutation, or each draws its own")
    share: float = Field(default=1.0, gt=0, le=1, description="part of the classes that change places; at least two")
    permutation: tuple[int, ...] | None = Field(
        default=None, description="in place of a drawn one: the new class of each old one, such as [1, 0, 2]"
    )

    @field_validator("permutation")
    @classmethod
    def _is_permutation(cls, given: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if given is not None and sorted(given) != list(range(len(given))):
            raise ValueError(f"must hold each class from 0 on once, such as [1, 0, 2], got {list(given)}")
        return given

    @model_validator(mode="after")
    def _one_way_to_say_it(self) -> ConceptShiftEffect:
        if self.permutation is not None and not (self.shared and self.share == 1):
            raise ValueError(
                f"must leave shared and share out where permutation is given, got shared={str(self.shared).lower()}, "
                f"share={self.share:g}"
            )
        return self

    def faults(self, request: EffectRequest) -> list[str]:
        """Return what does not fit the federation; each fault begins with the key."""
        found = super().faults(request)
        if self.permutation is not None and len(self.permutation) != request.num_classes:
            found.append(
                f"permutation must have one entry for each of the {request.num_classes} classes, "
                f"got {len(self.permutation)}"
            )
        return found

    def plan(self, clients: tuple[int, ...], request: EffectRequest) -> ScenarioPlan:
        """Return each client's permutation."""
        names = self._names(clients, request)
        moved = {client: _num_moved(names[client], request.client_labels(client)) for client in clients}
        permutations = [names[clients[0]]] if self.shared else [names[client] for client in clients]
        return ScenarioPlan(
            transforms={client: (RenameLabels(names[client]),) for client in clients},
            affected_clients=tuple(client for client in clients if moved[client]),
            facts={
                "shared": self.shared,
                "permutations": [list(permutation) for permutation in permutations],
                "moved_rows": list(moved.values()),
            },
        )

    def _names(self, clients: tuple[int, ...], request: EffectRequest) -> dict[int, tuple[int, ...]]:
        if self.permutation is not None:
            return dict.fromkeys(clients, self.permutation)
        if self.shared:
            return dict.fromkeys(clients, self._draw(request.num_classes, request.stream("concept_shift group")))
        return {
            client: self._draw(request.num_classes, request.stream("concept_shift client", client))
            for client in clients
        }

    def _draw(self, num_classes: int, generator: np.random.Generator) -> tuple[int, ...]:
        """Return a random cycle through a random part of the classes."""
        names = np.arange(num_classes)
        cycle = generator.permutation(num_classes)[: max(2, round(self.share * num_classes))]
        names[cycle] = np.roll(cycle, -1)
        return tuple(names.tolist())


def _num_moved(names: tuple[int, ...], labels: IntArray) -> int:
    return int((np.asarray(names)[labels] != labels).sum())
