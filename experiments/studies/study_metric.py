"""The metric of a study, and what a constant answer is worth by it."""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.metrics.metric import Metric, Sums, add
from fedscout.engine.metrics.metric_table import ACCURACY, OF_CLASSES
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.search.measure import MEASURES, Measure


def metric_of(name: str, federation: Federation) -> Metric | None:
    """Return what is measured beside accuracy; None if accuracy is what counts.

    Raises:
        ConfigurationError: If it is not for what these clients do.
    """
    if name == ACCURACY:
        return None
    if federation.task is not None:
        raise ConfigurationError(
            f"training.metric must be {ACCURACY} where clients play: their score is the environment's, got {name}"
        )
    return OF_CLASSES[name]()


def measure_of_study(config: StudyConfig) -> Measure:
    """Return what a study's fitness measures."""
    return MEASURES[config.training.metric]


def constant_answer(federation: Federation, metric: Metric | None) -> float:
    """Return the score of always saying the most frequent class, over the clients' rows; 0 of a task."""
    if metric is None or federation.task is not None:
        return federation.majority_share
    counts = np.bincount(federation.labels[federation.partition.rows], minlength=federation.num_classes)
    sums = _sums_of_constant(metric, counts)
    return 0.0 if sums is None else metric.value(sums)


def _sums_of_constant(metric: Metric, counts: IntArray) -> Sums | None:
    """Return a metric's sums where every row is said to be of the most frequent class."""
    said = np.zeros((1, len(counts)), np.float32)
    said[0, counts.argmax()] = 1.0
    parts = [metric.statistics(said, np.array([label])) * count for label, count in enumerate(counts) if count]
    return add(parts)
