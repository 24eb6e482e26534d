"""Bayesian optimisation: a Gaussian process, and the configuration of largest expected improvement.

Jones, Schonlau, Welch, "Efficient Global Optimization of Expensive Black-Box Functions", J. Global Optimization 13,
1998. The process is Optuna's: Matérn 5/2 kernel, a length scale per coordinate, log EI, and given running trials log
qEI (Ament et al., arXiv:2310.20708). It needs coordinates that every trial has, so they are padded.

Of two objectives each has a process, and what improves is the volume that the front dominates: its expected gain over
Sobol points, in logarithms (log EHVI: Daulton, Balandat, Bakshy, "Differentiable Expected Hypervolume Improvement for
Parallel Multi-Objective Bayesian Optimization", NeurIPS 2020, and Ament et al.). The best, whose neighbours are among
the candidates, are then the loneliest of the first front.

Deviation: the improvement is maximised over candidates of the space itself, random ones and neighbours of the best, not
over the cube of padded coordinates. Almost all of that cube is nowhere near a configuration: a process that has seen
the middle of a coordinate only is most uncertain off the middle, and is drawn there, where nothing is to be had.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial_record import Trial
from fedscout.search.searchers.crowding import best_first
from fedscout.search.searchers.optuna_coordinates import from_place, to_place
from fedscout.search.searchers.optuna_searcher import OptunaSearcher
from fedscout.strategies import ChoiceRange, Range, StrategySpec, Value

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

NUM_RANDOM_CANDIDATES = 1000
NUM_PARENTS = 4
NUM_NEIGHBOURS = 100
NEIGHBOUR_STEP = 0.1
KEPT_CHOICES = 0.8


class GPSearcher(OptunaSearcher):
    """Asks Optuna's Gaussian process about candidates."""

    padded = True
    redraws = 2

    def sampler(self, seed: int, earlier: Sequence[Trial], taken: set[str]) -> BaseSampler:
        """Return the sampler."""
        from fedscout.search.searchers.gp_sampler import CandidateGPSampler

        return CandidateGPSampler(seed, lambda: self._encoded(stream(seed, "candidates"), earlier), taken)

    def _encoded(self, generator: np.random.Generator, earlier: Sequence[Trial]) -> dict[str, Mapping[str, Any]]:
        """Return a generation's candidates as an Optuna trial's parameters, by digest."""
        candidates = (spec for spec in self._candidates(earlier, generator) if not self.space.is_twin(spec))
        distinct = {self.space.digest(spec): spec for spec in candidates}
        encoded = {digest: self.coordinates.encode(spec) for digest, spec in distinct.items()}
        return {digest: parameters for digest, parameters in encoded.items() if parameters is not None}

    def _candidates(self, earlier: Sequence[Trial], generator: np.random.Generator) -> Iterator[StrategySpec]:
        for _ in range(NUM_RANDOM_CANDIDATES):
            yield self.space.random(generator)
        known = [evaluation for evaluation in earlier if evaluation.spec.label in self.space.kinds]
        for parent in best_first(known, self.task)[:NUM_PARENTS]:
            for _ in range(NUM_NEIGHBOURS):
                yield self._neighbour(parent.spec, generator)

    def _neighbour(self, parent: StrategySpec, generator: np.random.Generator) -> StrategySpec:
        """Return a configuration near another of the same strategy."""
        values = parent.search_values()

        def moved(name: str, parameter_range: Range) -> Value:
            if name not in values:
                return parameter_range.draw(generator)
            if isinstance(parameter_range, ChoiceRange):
                keeps = generator.random() < KEPT_CHOICES and parameter_range.contains(values[name])
                return values[name] if keeps else parameter_range.draw(generator)
            step = float(generator.normal(scale=NEIGHBOUR_STEP))
            return from_place(parameter_range, to_place(parameter_range, values[name]) + step)

        return self.space.recompose(parent, moved)
