"""What the clients of a federation hold together, by sums that are formed under masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscout.detectors.skew.feature_totals import FEATURE_TOTALS
from fedscout.engine.data.client_query import LABEL_COUNTS
from fedscout.engine.messages.exchange import Query
from fedscout.engine.nodes.secure_grid import SecureGrid


@dataclass(frozen=True)
class FederationTotals:
    """Of all clients that answered; no client's own numbers are known.

    Attributes:
        num_clients: How many answered.
        num_rows: Their rows.
        class_counts: Rows by class, without those of classes of which a client has fewer rows than it tells of.
        feature_means: Mean of each feature, in the order of a row's values.
        feature_deviations: Standard deviation of each, about that mean, over all rows.
    """

    num_clients: int
    num_rows: int
    class_counts: dict[str, int]
    feature_means: list[float]
    feature_deviations: list[float]


def ask_totals(grid: SecureGrid, class_names: tuple[str, ...]) -> FederationTotals:
    """Ask the clients, in three sums.

    Args:
        grid: To them.
        class_names: In the order of the model's outputs.

    Raises:
        TrialError: If too few answer.
    """
    labels, num_clients = grid.total_of(Query(LABEL_COUNTS))
    about_zero, _ = grid.total_of(Query(FEATURE_TOTALS, {"centre": np.zeros(())}))
    means: Any = about_zero["sums"] / int(about_zero["rows"])
    about_mean, _ = grid.total_of(Query(FEATURE_TOTALS, {"centre": means}))
    variances: Any = about_mean["squares"] / int(about_mean["rows"])
    return FederationTotals(
        num_clients=num_clients,
        num_rows=int(about_zero["rows"]),
        class_counts=dict(zip(class_names, labels["counts"].tolist(), strict=True)),
        feature_means=means.tolist(),
        feature_deviations=np.sqrt(np.maximum(variances, 0)).tolist(),
    )
