"""The order of configurations by two objectives: by the front that each is on, and on a front the lonelier first.

As NSGA-II compares them (Deb, Pratap, Agarwal, Meyarivan: A fast and elitist multiobjective genetic algorithm. IEEE
Transactions on Evolutionary Computation 6(2), 2002, sections III-A and III-B). The first front are those that no other
beats, the next one those that only these beat, and so on. On a front of l values f_1 ≤ … ≤ f_l of an objective, the
crowding distance of the i-th is the sum over objectives of (f_{i+1} − f_{i−1}) / (f_l − f_1), and infinite at the ends.

Choices of our own: failed trials come after all fronts, and equals are ordered by digest, as in a search by one number.
Where a front has one value of an objective, that objective tells nobody apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from fedscout.engine.trials.trial_record import Trial
from fedscout.search.searcher import SearchTask, ranking
from fedscout.search.study_trials import beats
from fedscout.strategies import SearchSpace


def best_first(trials: Iterable[Trial], task: SearchTask) -> list[Trial]:
    """Return trials from best to worst: by fitness, or by fronts where a search has two objectives."""
    return (crowded_ranking if len(task.settings.objectives) > 1 else ranking)(trials, task.space)


def crowded_ranking(trials: Iterable[Trial], space: SearchSpace) -> list[Trial]:
    """Return trials of two objectives from best to worst."""
    by_digest = sorted(trials, key=lambda trial: space.digest(trial.spec))
    completed = [trial for trial in by_digest if trial.status == "completed"]
    ranked: list[Trial] = []
    for front in _fronts(completed):
        distances = crowding_distances([trial.objectives or () for trial in front])
        ranked += [front[place] for place in np.argsort(-distances, kind="stable")]
    return ranked + ranking((trial for trial in by_digest if trial.status == "failed"), space)


def _fronts(left: Sequence[Trial]) -> Iterator[list[Trial]]:
    while left:
        beaten = [any(beats(other.objectives or (), trial.objectives or ()) for other in left) for trial in left]
        yield [trial for trial, below in zip(left, beaten, strict=True) if not below]
        left = [trial for trial, below in zip(left, beaten, strict=True) if below]


def crowding_distances(values: Sequence[Sequence[float]]) -> np.ndarray:
    """Return how alone each one is on its front, shape `(values,)`, larger is lonelier.

    Args:
        values: Its objectives, of each.
    """
    distances = np.zeros(len(values))
    for objective in np.array(values, np.float64).T:
        order = np.argsort(objective, kind="stable")
        spread = objective[order[-1]] - objective[order[0]]
        if spread > 0:
            distances[order[1:-1]] += (objective[order[2:]] - objective[order[:-2]]) / spread
            distances[order[[0, -1]]] = np.inf
    return distances
