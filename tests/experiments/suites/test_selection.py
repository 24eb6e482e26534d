"""Cumulative regret on a planted problem: below that of random choice, and ever slower."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedscout.experiments import suites
from fedscout.experiments.grids.cells import CellContext
from fedscout.experiments.grids.experiment import read_experiment
from fedscout.experiments.suites.selection_policies import BANDITS, Nobody, PolicyCosts, Regrets, regrets

SEEDS = range(8)


@pytest.mark.parametrize("name", [name for name in BANDITS if name != "random"])
def test_regret_is_below_randoms_and_falls(name: str) -> None:
    of_bandit = np.stack([regrets(BANDITS[name](), seed) for seed in SEEDS])
    empty_moments = np.stack([regrets(Nobody(), seed) for seed in SEEDS])
    below = (empty_moments - of_bandit).sum(axis=1)
    halves = of_bandit.reshape(len(SEEDS), 2, -1).sum(axis=2)
    falls = halves[:, 0] - halves[:, 1]
    for differences in (below, falls):  # 99 % intervals over seeds lie above 0
        low, _ = stats.t.interval(0.99, len(SEEDS) - 1, differences.mean(), stats.sem(differences))
        assert low > 0


EXPERIMENT = read_experiment(Path(suites.__file__).parent / "selection" / "regret.yaml")


def test_random_choice_never_learns() -> None:
    """Its regret in the second half is that in the first, but for what is drawn."""
    empty_moments = np.stack([regrets(Nobody(), seed) for seed in SEEDS]).reshape(len(SEEDS), 2, -1).sum(axis=2)
    difference = empty_moments[:, 0] - empty_moments[:, 1]
    assert abs(difference.mean()) < 4 * stats.sem(difference)


def test_a_bandit_s_numbers_are_sums_over_rounds_one_a_seed(tmp_path: Path) -> None:
    values = Regrets().measure(EXPERIMENT, CellContext(tmp_path, num_seeds=2)).values
    assert {row for row, _ in values} == {*BANDITS}
    expected = [regrets(Nobody(), seed, 60).sum() for seed in range(2)]
    assert values["random", "60 rounds"] == pytest.approx(expected)


# The times of selection policies: which are parts of which, and one a turn.


COSTS = read_experiment(Path(suites.__file__).parent / "selection" / "cost.yaml")


@pytest.mark.slow
def test_policies_are_timed(tmp_path: Path) -> None:
    quick = ("training.num_rounds=3", "training.local_epochs=1", "federation.num_clients=10")
    values = PolicyCosts(["oort"]).measure(COSTS, CellContext(tmp_path, quick, 2)).values
    by_column = {column: of_turns for (_, column), of_turns in values.items()}
    own, many, most = (by_column[name] for name in ("own time, ms", "3,550 clients, ms", "longest there, ms"))
    assert len(own) == 2
    assert all(milliseconds is not None and milliseconds > 0 for milliseconds in own)
    assert all(0 < median <= longest for median, longest in zip(many, most, strict=True))  # type: ignore[operator]
