"""Cumulative regret on a planted problem: below that of random choice, and ever slower."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedscout.experiments.benchmarks.selection.planted_regret import BANDITS, Nobody, regret_lines, regrets

SEEDS = range(8)


@pytest.mark.parametrize("name", [name for name in BANDITS if name != "random"])
def test_regret_is_below_randoms_and_falls(name: str) -> None:
    of_bandit = np.stack([regrets(BANDITS[name](), seed) for seed in SEEDS])
    of_nobody = np.stack([regrets(Nobody(), seed) for seed in SEEDS])
    below = (of_nobody - of_bandit).sum(axis=1)
    halves = of_bandit.reshape(len(SEEDS), 2, -1).sum(axis=2)
    falls = halves[:, 0] - halves[:, 1]
    for differences in (below, falls):  # 99 % intervals over seeds lie above 0
        low, _ = stats.t.interval(0.99, len(SEEDS) - 1, differences.mean(), stats.sem(differences))
        assert low > 0


def test_random_choice_never_learns() -> None:
    """Its regret in the second half is that in the first, but for what is drawn."""
    of_nobody = np.stack([regrets(Nobody(), seed) for seed in SEEDS]).reshape(len(SEEDS), 2, -1).sum(axis=2)
    difference = of_nobody[:, 0] - of_nobody[:, 1]
    assert abs(difference.mean()) < 4 * stats.sem(difference)


def test_the_table_has_a_line_a_bandit() -> None:
    lines = regret_lines(2)
    assert [line.split("|")[1].strip() for line in lines[2:]] == [*BANDITS]
