"""TPE: densities of the good trials and of the others, and the configuration with the best ratio of them.

Bergstra, Bardenet, Bengio, Kégl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011; as it is built here in
Watanabe, arXiv:2304.11127. The strategy has a density of its own; the parameters of one strategy are drawn together, as
in Falkner, Klein, Hutter, "BOHB", ICML 2018, from the trials of that strategy. Running trials count as bad ones.

Of two objectives the good trials are those of the first fronts, and of the last of these as many as add most to the
volume that is dominated: Ozaki, Tanigaki, Watanabe, Nomura, Onishi, "Multiobjective Tree-Structured Parzen Estimator",
JAIR 73, 2022, as Optuna has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from fedscout.engine.trials.trial_record import Trial
from fedscout.search.searchers.optuna_searcher import OptunaSearcher

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler


class TPESearcher(OptunaSearcher):
    """Asks Optuna's TPE sampler."""

    padded = False
    redraws = 10

    def sampler(self, seed: int, earlier: Sequence[Trial], taken: set[str]) -> BaseSampler:
        """Return the sampler, which handles the tree of strategies and their parameters."""
        from optuna.samplers import TPESampler

        return TPESampler(seed=seed, n_startup_trials=1, multivariate=True, group=True, constant_liar=True)
