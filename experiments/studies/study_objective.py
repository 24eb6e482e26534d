"""What makes a trial of a study good: its metric, its objective, and what a constant answer is worth by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import isnan
from statistics import fmean

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.grid.evaluation import WORST_OF
from fedscout.engine.messages.travelling_values import BYTES_A_VALUE
from fedscout.engine.metrics.metric import Metric, Sums, add
from fedscout.engine.metrics.metric_table import ACCURACY, OF_CLASSES, OF_QUANTITIES
from fedscout.engine.metrics.quantity_errors import Mae
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
from fedscout.experiments.studies.simulated_clock import plain_seconds
from fedscout.search.measure import MEASURES, Measure, reward
from fedscout.search.objective import Objective
from fedscout.search.search_config import HAS_TARGET, ObjectiveName


def metric_of(name: str, federation: Federation) -> Metric | None:
    """Return what is measured beside accuracy; None if accuracy is what counts.

    Raises:
        ConfigurationError: If it is not for what these clients do.
    """
    if federation.task is not None:
        allowed, why = [ACCURACY], "where clients play: their score is the environment's"
    elif federation.targets is not None:
        allowed, why = [*OF_QUANTITIES], "where a quantity is predicted"
    else:
        allowed, why = [ACCURACY, *OF_CLASSES], "where classes are predicted"
    if name not in allowed:
        raise ConfigurationError(Fault("training.metric", f"be {' or '.join(allowed)} {why}", name))
    return None if name == ACCURACY else {**OF_CLASSES, **OF_QUANTITIES}[name]()


def objectives_of(config: StudyConfig, federation: Federation) -> tuple[Objective, ...]:
    """Return what makes the fitness of a trial, and what else a front is of; none takes the mean score."""
    search = config.search
    if search.objectives == ("accuracy",):
        return ()
    return tuple(_objective(name, config, federation) for name in search.objectives)


def _objective(name: ObjectiveName, config: StudyConfig, federation: Federation | None) -> Objective:
    """Return an objective; without a federation what a plain round costs is not known, which only its measure needs."""
    objective = Objective(name, config.training.num_rounds, config.search.target or 1.0)
    if federation is None or name not in PLAIN_COSTS:
        return objective
    return replace(objective, plain_cost=PLAIN_COSTS[name](config, federation))


def _plain_bytes(config: StudyConfig, federation: Federation) -> float:
    """Return what plain FedAvg sends and receives in a round."""
    from fedscout.engine.model.flat_model import new_model  # torch, which others do without

    num_values = new_model(federation.model, seed=0).layout.size
    return float(2 * BYTES_A_VALUE * num_values * config.training.num_sampled(federation.num_seen))


PLAIN_COSTS: Mapping[ObjectiveName, Callable[[StudyConfig, Federation], float]] = {
    "bytes_to_target": _plain_bytes,
    "time_to_accuracy": plain_seconds,
}
"""What a round of plain FedAvg costs, by the objective that counts it."""


def measures_of_study(config: StudyConfig, federation: Federation | None = None) -> list[Measure]:
    """Return what each objective of a study measures, the first of which makes its fitness.

    How large a mean absolute error can be, the federation's rows say.
    """
    score, search = MEASURES[config.metric_name], config.search
    if kind := ENVIRONMENTS.get(config.federation.dataset):
        score = reward(kind.score_name, kind.largest_score)
    if config.metric_name == Mae.name and federation is not None and federation.targets is not None:
        held = federation.targets[federation.partition.rows]
        score = score.model_copy(update={"best": float(np.abs(held - held.mean()).mean())})
    return [_objective(name, config, federation).measure(score) for name in search.objectives]


def constant_answer(federation: Federation, metric: Metric | None, objective: ObjectiveName = "accuracy") -> float:
    """Return the fitness of always saying the most frequent class, over the clients' rows; 0 of a quantity or task."""
    if federation.task is not None or federation.targets is not None or objective in HAS_TARGET:
        return 0.0
    if objective == "worst_clients":
        return _constant_answer_to_the_worst(federation, metric)
    if metric is None:
        return federation.majority_share
    counts = _label_counts(federation, federation.partition.rows)
    sums = _sums_of_constant(metric, counts, int(counts.argmax()))
    return 0.0 if sums is None else metric.value(sums)


def _constant_answer_to_the_worst(federation: Federation, metric: Metric | None) -> float:
    """Return the mean over the worst tenth of the clients, each scored on its rows."""
    most = int(_label_counts(federation, federation.partition.rows).argmax())
    scores = []
    for client in range(federation.num_clients):
        counts = _label_counts(federation, federation.partition.client(client))
        if client in federation.unseen or not counts.sum():
            continue
        sums = None if metric is None else _sums_of_constant(metric, counts, most)
        share = counts[most] / counts.sum()
        scores.append(float(share) if metric is None or sums is None else metric.value_of_client(sums))
    known = sorted(score for score in scores if not isnan(score))
    return fmean(known[: -(-len(known) // WORST_OF)]) if known else 0.0


def _label_counts(federation: Federation, rows: IntArray) -> IntArray:
    return np.bincount(federation.labels[rows], minlength=federation.num_classes)


def _sums_of_constant(metric: Metric, counts: IntArray, label: int) -> Sums | None:
    """Return a metric's sums where so many rows of each class are all said to be of one."""
    said = np.zeros((1, len(counts)), np.float32)
    said[0, label] = 1.0
    return add(metric.statistics(said, np.array([of])) * count for of, count in enumerate(counts) if count)
