"""How far the sums over groups of rows scatter: design effects of features, for rows that belong together.

As for labels (`fedscout.detectors.statistics.design_effects`): with y_i a row less everyone's mean of its class, in
standard deviations within classes, and y_g the sum over the rows of group g, any two rows of a group have in feature j
the correlation ρ_j, estimated over the groups of all clients by

    Σ_g y_gj² · M / (M − 1) = N + ρ_j (Σ n_g² − N)

and kept in [0, 1]. The mean of a client's n rows then has the variance δ_j / n, δ_j = 1 + ρ_j (Σ n_g² / n − 1), and its
groups take the place of rows where the spread of a mean's squared length depends on how many there are and how unlike
(`fedscout.detectors.skew.class_sums`). The correlation between features is taken to be that of rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fedscout.detectors.statistics.client_rows import flat_features, own_counts
from fedscout.detectors.statistics.heterogeneity_metrics import Values
from fedscout.engine.data.client_query import QueryInputs
from fedscout.engine.data.release import Answer, Arrays, Over, told_cells

GROUP_NORMS: Final = "group_norms"


def group_norms(inputs: QueryInputs) -> Answer:
    """Client half: return `squares` Σ y_gj², shape `(d,)`, and `norms`, shape `(5,)`.

    `norms` are the rows, the groups, Σ n_g², Σ |y_g|² and Σ |y_g|⁴, over the rows of the classes that the client tells
    of. Reads `per_deviation`, shape `(d,)`, `means`, shape `(num_classes, d)`, or `(1, d)` where `by_class` is false.
    """
    scale = inputs.arrays["per_deviation"].astype(np.float64)
    by_class = bool(inputs.config["by_class"])
    means = inputs.by_class("means", inputs.num_classes if by_class else 1)
    told = told_cells(own_counts(inputs) if by_class else np.array([len(inputs.data)]), inputs.min_release)
    groups = np.arange(len(inputs.data)) if inputs.groups is None else inputs.groups
    _, members = np.unique(groups, return_inverse=True)
    sums = np.zeros((members.max() + 1, len(scale)))
    sizes = np.zeros(len(sums))
    start = 0
    for features, labels in inputs.data.chunks():
        classes = labels if by_class else np.zeros_like(labels)
        kept = told[classes]
        own = members[start : start + len(labels)][kept]
        np.add.at(sums, own, (flat_features(features)[kept] - means[classes[kept]]) * scale)
        sizes += np.bincount(own, minlength=len(sizes))
        start += len(labels)
    lengths = (sums**2).sum(axis=1)
    norms = [sizes.sum(), (sizes > 0).sum(), (sizes**2).sum(), lengths.sum(), (lengths**2).sum()]
    num_rows = int(sizes.sum())
    return {"squares": Over((sums**2).sum(axis=0), num_rows), "norms": Over(np.array(norms, np.float64), num_rows)}


@dataclass(frozen=True)
class FeatureGroups:
    """What is known of groups; of a client that told nothing, the largest effects and the fewest groups of the others.

    Attributes:
        effects: δ of each client, shape `(d,)`.
        num_groups: Groups of each client, at least 1.
        excess: Squared coefficient of variation of |y_g|², at least 0.
    """

    effects: Mapping[int, Values]
    num_groups: Mapping[int, float]
    excess: float

    @classmethod
    def read(cls, answers: Mapping[int, Arrays]) -> FeatureGroups | None:
        """Return it from the clients' answers; None without any, or where none has a row to tell of."""
        norms = {client: np.asarray(answer["norms"], np.float64) for client, answer in answers.items()}
        rows, groups, size_squares, second, fourth = np.sum([np.zeros(5), *norms.values()], axis=0)
        if rows == 0:
            return None
        squares = np.sum([np.asarray(answer["squares"], np.float64) for answer in answers.values()], axis=0)
        surplus = squares * groups / max(groups - 1, 1) / rows - 1
        together = size_squares / rows - 1
        correlations = np.clip(surplus / together, 0.0, 1.0) if together > 0 else np.zeros_like(squares)
        return cls(
            {client: 1 + correlations * max(own[2] / max(own[0], 1) - 1, 0) for client, own in norms.items()},
            {client: max(float(own[1]), 1.0) for client, own in norms.items()},
            float(max(0.0, fourth * groups / second**2 - 1)) if second > 0 else 0.0,
        )

    def of(self, clients: Sequence[int], features: Sequence[int] | np.ndarray) -> Values:
        """Return δ of some clients and features, shape `(clients, features)`."""
        largest = np.max(list(self.effects.values()), axis=0)
        return np.stack([self.effects.get(client, largest)[features] for client in clients])

    def groups_of(self, clients: Sequence[int]) -> Values:
        """Return how many groups some clients have, shape `(clients,)`."""
        fewest = min(self.num_groups.values())
        return np.array([self.num_groups.get(client, fewest) for client in clients])
