"""Exhaustive search of a grid.

A real parameter takes equally spaced values of its range, ends included, in log space where it is log-scaled; an
integer takes all its values, or as many equally spaced ones if it has more; a choice takes each. A range that depends
on an earlier parameter is divided for each of its values.

Points that are the same in the cohort are one, and twins (`SearchSpace.is_twin`) are left out, unless there is nothing
else.

The seed shuffles each strategy's part of the grid, and the strategies take turns. A budget smaller than the grid thus
sees every strategy, and no corner of the grid before the others.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest

import numpy as np

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial_record import Trial
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.generational import GenerationalSearcher
from fedscout.strategies import ChoiceRange, Range, SearchSpace, StrategySpec, Value

logger = logging.getLogger("fedscout")

LARGEST_GRID = 10_000
"""No larger than the largest budget, or it could not be exhausted."""


def range_points(parameter_range: Range, num_points: int) -> list[Value]:
    """Return the grid's values of one range, in its order: at most `num_points`, or every choice."""
    if isinstance(parameter_range, ChoiceRange):
        return list(parameter_range.choices)
    places = np.linspace(0, 1, num_points) if num_points > 1 else np.array([0.5])
    return list(dict.fromkeys(parameter_range.from_unit(float(place)) for place in places))


def grid_values(
    space: SearchSpace, kind: str, num_points: int | Callable[[int, int], int]
) -> Iterator[Mapping[str, Value]]:
    """Yield the parameters of every point that one strategy has on the grid.

    `num_points` are the values of each parameter, or tell them by its place among so many parameters.
    """
    names = tuple(space.parameters_of(kind))

    def completed(chosen: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
        if len(chosen) == len(names):
            yield chosen
            return
        name = names[len(chosen)]
        count = num_points if isinstance(num_points, int) else num_points(len(chosen), len(names))
        for value in range_points(space.parameters_of(kind, chosen)[name], count):
            yield from completed({**chosen, name: value})

    return completed({})


def grid_parts(space: SearchSpace, num_points: int) -> dict[str, list[Mapping[str, Value]]]:
    """Return the parameters of every point, by strategy.

    Raises:
        ConfigurationError: If there are more than the largest budget.
    """
    parts: dict[str, list[Mapping[str, Value]]] = {}
    left = LARGEST_GRID
    for kind in space.kinds:
        parts[kind] = list(islice(grid_values(space, kind, num_points), left + 1))
        left -= len(parts[kind])
        if left < 0:
            raise ConfigurationError(
                Fault(
                    "a grid",
                    f"hold at most {LARGEST_GRID} configurations",
                    (f"more with {num_points} values of a parameter and the strategies {', '.join(space.kinds)}"),
                    "lower search.grid_points or name fewer strategies in search.strategies",
                )
            )
    return parts


class GridSearcher(GenerationalSearcher):
    """Goes through a grid and ends; a warning tells where the budget is smaller than the grid.

    Raises:
        ConfigurationError: If the grid is too large.
    """

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        budget, space = task.settings.budget, task.space
        parts = [
            [_composed(space, kind, values) for values in points]
            for kind, points in grid_parts(space, task.settings.grid_points).items()
        ]
        if any(without_twins := [[spec for spec in part if not space.is_twin(spec)] for part in parts]):
            parts = without_twins
        self._points: dict[str, StrategySpec] = {}
        for spec in _by_turns(parts, stream(task.seed, "grid search")):
            if (digest := space.digest(spec)) not in self.archive.reference_digests:
                self._points.setdefault(digest, spec)
        if budget < len(self._points):
            logger.warning(
                "the grid has %d configurations, of which search.budget=%d are tried", len(self._points), budget
            )

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield what is left of the grid."""
        del number, earlier
        for digest, spec in self._points.items():
            if digest not in taken:
                yield spec


def _composed(space: SearchSpace, kind: str, values: Mapping[str, Value]) -> StrategySpec:
    return space.compose(kind, lambda name, _: values[name])


def _by_turns(parts: Sequence[Sequence[StrategySpec]], generator: np.random.Generator) -> Iterator[StrategySpec]:
    shuffled = [[part[place] for place in generator.permutation(len(part))] for part in parts]
    turns = generator.permutation(len(shuffled))
    for turn in zip_longest(*(shuffled[place] for place in turns)):
        yield from (spec for spec in turn if spec is not None)
