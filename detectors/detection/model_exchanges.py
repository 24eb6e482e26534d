"""The model messages: what the outlier detector trains, and how differently the clients' data make one model answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedscout.detectors.conversation import Conversation
from fedscout.detectors.detection_config import DetectionConfig
from fedscout.detectors.outliers.mean_outputs import MEAN_OUTPUT
from fedscout.detectors.outliers.outliers import Comparison, InitialVectors, decide_outliers, train_and_compare
from fedscout.detectors.report import Finding
from fedscout.detectors.statistics.heterogeneity_metrics import output_divergence
from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.names import UNNAMED, Names
from fedscout.engine.data.row_parts import RowPart
from fedscout.engine.messages.exchange import Query


@dataclass(frozen=True)
class ModelMeasurement:
    """What training gave.

    Attributes:
        finding: The published decision.
        comparisons: Those behind it.
        parts: Comparisons on disjoint parts of the rows.
        output_divergence: Of the average model of the first comparison.
    """

    finding: Finding
    comparisons: tuple[Comparison, ...]
    parts: tuple[Comparison, ...]
    output_divergence: float | None

    def metrics(self) -> dict[str, Any]:
        """Return what is reported of them beside the decision."""
        return {
            "output_divergence": self.output_divergence,
            "model_distances": _client_means([comparison.distances for comparison in self.comparisons]),
            "distances_from_average": _client_means([comparison.from_average for comparison in self.comparisons]),
        }


def measure_models(
    clients: Sequence[int],
    paired: Sequence[int],
    initial_vectors: InitialVectors,
    training: LocalTraining,
    settings: DetectionConfig,
    seed: int,
    parts: Sequence[RowPart] = (),
    names: Names = UNNAMED,
) -> Conversation[ModelMeasurement]:
    """Train, compare and decide, then ask for the outputs of the first average.

    Args:
        clients: Who trains.
        paired: Those of them who are asked for outputs; none where rows have no labels.
        initial_vectors: Gives the random initial models of seeds.
        training: Local training of each round.
        settings: Repetitions, rounds and thresholds.
        seed: Of initial models, batches and projections.
        parts: Of the clients' rows, on which they train as well.
        names: Of clients, for the sentence.
    """
    compared = yield from train_and_compare(clients, initial_vectors, training, settings, seed, parts)
    comparisons = compared[: settings.outlier_repetitions]
    usable, whole = (
        tuple(comparison for comparison in some if comparison is not None)
        for some in (comparisons, compared[settings.outlier_repetitions :])
    )
    divergence = None
    if usable and paired and settings.epsilon is None:
        divergence = yield from measure_output_divergence(paired, usable[0].average)
    return ModelMeasurement(decide_outliers(comparisons, settings, names), usable, whole, divergence)


def measure_output_divergence(clients: Sequence[int], model: FloatArray) -> Conversation[float | None]:
    """Ask clients for their mean outputs; None if fewer than two answer with finite ones.

    Args:
        clients: Who is asked.
        model: The model that all of them run, shape `(params,)`.
    """
    (answers,), _ = yield [Query(MEAN_OUTPUT, {"model": model}, clients=clients)], []
    means = [arrays["mean"] for arrays in answers.arrays.values() if np.isfinite(arrays["mean"]).all()]
    return output_divergence(np.stack(means)) if len(means) > 1 else None


def _client_means(repetitions: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """Return each client's mean over the repetitions that have it."""
    clients = sorted({client for values in repetitions for client in values})
    return {c: float(np.mean([values[c] for values in repetitions if c in values])) for c in clients}
