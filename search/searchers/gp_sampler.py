"""Optuna's GP sampler, with the acquisition function maximised over candidates; the only use of Optuna's private API.

The public API does not suffice: `GPSampler` takes no candidates and maximises over the whole cube;
`Study.enqueue_trial` evaluates candidates but does not rank them; the process and the acquisition function, which a
custom `BaseSampler` would need, are only in `optuna._gp`. So the step `_optimize_acqf` is overridden and calls
`eval_acqf_no_grad`. Neither is stable API: the project pins Optuna's minor version, and a test fails if either changes.

This module imports Optuna, so it is imported only when a search begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.samplers import GPSampler
from threadpoolctl import threadpool_limits

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from optuna import Study
    from optuna._gp.acqf import BaseAcquisitionFunc
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial


class CandidateGPSampler(GPSampler):
    """A GP sampler that chooses among candidates.

    Args:
        seed: Seed of the sampler.
        candidates: Returns the candidates of all proposals, as parameters of a trial by digest; called at most once.
        taken: Digests that must not be proposed; may grow.
    """

    def __init__(self, seed: int, candidates: Callable[[], Mapping[str, Mapping[str, Any]]], taken: set[str]) -> None:
        super().__init__(seed=seed, n_startup_trials=1, warn_independent_sampling=False)
        self._find = candidates
        self._candidates: Mapping[str, Mapping[str, Any]] | None = None
        self._taken = taken
        self._trial_distributions: Mapping[str, BaseDistribution] = {}

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the best candidate's parameters; empty before the first trial."""
        self._trial_distributions = search_space
        with threadpool_limits(limits=1):  # the same bits whatever else the process does
            return super().sample_relative(study, trial, search_space)

    def _optimize_acqf(self, acqf: BaseAcquisitionFunc, best_params: NDArray[np.float64] | None) -> NDArray[np.float64]:
        if self._candidates is None:
            self._candidates = self._find()
        new = [parameters for digest, parameters in self._candidates.items() if digest not in self._taken]
        points = np.array([self._point(parameters) for parameters in new])
        if not len(points):  # all is taken: what the searcher finds out from any point
            return np.full(len(self._trial_distributions), 0.0)
        best: NDArray[np.float64] = points[int(np.argmax(acqf.eval_acqf_no_grad(points)))]
        return best

    def _point(self, parameters: Mapping[str, Any]) -> list[float]:
        """Return the coordinates: numbers are in `[0, 1]` already, a choice becomes its index."""
        return [shown.to_internal_repr(parameters[name]) for name, shown in self._trial_distributions.items()]
