"""CMA-ES over the parameters of one strategy, by the package `cmaes`.

Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772; Nomura and Shibata, "cmaes: A Simple yet Practical
Python Library for CMA-ES", arXiv:2402.01373. Points live in the unit cube, in log space where a parameter is
log-scaled. The first generation is drawn around the cube's middle with a step of 0.3, as the tutorial advises where the
optimum is expected within the cube. A point outside the cube is drawn again, a hundred times, and then moved to its
border.

Choices of our own: a point is rounded as every configuration is, and told where it was evaluated; a duplicate or a
twin is drawn again, and a random configuration takes its place when that does not help. What is told is the rank in the
generation, failed trials last, equal fitness in the order of digests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.seeds import integer, stream
from fedscout.engine.trials.trial_record import Trial
from fedscout.search.searcher import SearchTask, ranking
from fedscout.search.searchers.generational import GenerationalSearcher
from fedscout.strategies import Range, RealRange, SearchSpace, StrategySpec, Value

if TYPE_CHECKING:
    from cmaes import CMA
    from numpy.typing import NDArray

SMALLEST_POPULATION = 2
FIRST_STEP = 0.3
REDRAWS = 100
LARGEST_SEED = 2**32


def cma_faults(space: SearchSpace, population: int) -> list[str]:
    """Return why CMA-ES can't search a space with generations of a size, each fault a sentence; empty if it can."""
    faults = []
    if reason := _unfit(space):
        faults.append(
            f"search.kind=cmaes needs a space of {reason}; name such a strategy in search.strategies, as [fedadam], "
            f"{_without(space)}or choose search.kind=tpe, which takes any space"
        )
    if population < SMALLEST_POPULATION:
        faults.append(
            Fault("search.generation_size", f"be at least {SMALLEST_POPULATION} for search.kind=cmaes", population)
        )
    return faults


def _unfit(space: SearchSpace) -> str | None:
    if len(space.kinds) != 1:
        return f"one strategy, got {len(space.kinds)}: {', '.join(space.kinds)}"
    (kind,) = space.kinds
    ranges = space.parameters_of(kind)
    others = [name for name, found in ranges.items() if not isinstance(found, RealRange)]
    if others:
        return f"real parameters only, got {', '.join(others)} of {kind}"
    if all(found.num_values == 1 for found in ranges.values()):
        return f"at least one free parameter, got none of {kind}"
    return None


def _without(space: SearchSpace) -> str:
    """Return which settings of clients no strategy could be named without."""
    beside = [name for name, found in space.client_ranges.items() if not isinstance(found, RealRange)]
    return f"and search for no {' or '.join(beside)}, " if beside else ""


class CmaEsSearcher(GenerationalSearcher):
    """Moves a normal distribution towards what was good; the tutorial advises generations of 4 + ⌊3 ln n⌋.

    Raises:
        ConfigurationError: If the space is not one that CMA-ES can search, or its generations are too small.
    """

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        if faults := cma_faults(task.space, self.population):
            raise ConfigurationError(faults)
        self._kind = task.space.kinds[0]
        self._ranges: dict[str, RealRange] = {
            name: found
            for name, found in task.space.parameters_of(self._kind).items()
            if isinstance(found, RealRange) and found.num_values != 1
        }

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield draws from the distribution that the earlier generations led to."""
        generator = stream(self.seed, "cma-es", number, 1)
        optimizer = self.told(earlier, integer(self.seed, "cma-es", number, 0) % LARGEST_SEED)
        while (spec := self._new(optimizer, taken) or self.random_new(taken, generator)) is not None:
            yield spec

    def told(self, earlier: Sequence[Trial], seed: int = 0) -> CMA:
        """Return the optimizer after whole generations; one with trials of other strategies teaches nothing.

        Args:
            earlier: Results so far.
            seed: Of its draws.
        """
        from cmaes import CMA

        n = len(self._ranges)
        cube = np.tile([0.0, 1.0], (n, 1))
        with np.errstate(divide="ignore"):  # of a single parent the rank-μ update has rate 0, by which it divides
            optimizer = CMA(np.full(n, 0.5), FIRST_STEP, cube, REDRAWS, seed, self.population)
        for generation in self.in_generations(earlier):
            if all(evaluation.spec.label == self._kind for evaluation in generation):
                ranked = ranking(generation, self.space)
                optimizer.tell([(self._point(told.spec), float(rank)) for rank, told in enumerate(ranked)])
        return optimizer

    def _new(self, optimizer: CMA, taken: set[str]) -> StrategySpec | None:
        for _ in range(REDRAWS):
            spec = self._spec(optimizer.ask())
            if self.space.digest(spec) not in taken and not self.space.is_twin(spec):
                return spec
        return None

    def _point(self, spec: StrategySpec) -> NDArray[np.float64]:
        values = spec.search_values()
        return np.array([found.to_unit(values[name]) for name, found in self._ranges.items()])

    def _spec(self, point: NDArray[np.float64]) -> StrategySpec:
        places = dict(zip(self._ranges, point.tolist(), strict=True))

        def chosen(name: str, parameter_range: Range) -> Value:
            assert isinstance(parameter_range, RealRange)
            return parameter_range.from_unit(places.get(name, 0.0))

        return self.space.compose(self._kind, chosen)
