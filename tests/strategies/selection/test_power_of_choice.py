"""Power of choice: its two limits, what it knows of whom, and what it refuses."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import ReportRequest
from fedscout.strategies.selection.policies import PowerOfChoice, ProbedPowerOfChoice
from fedscout.strategies.selection.table import parse_selection
from tests.kits.refusals import refused
from tests.strategies.selection.reports import cohort, report, table


def test_as_many_candidates_as_train_is_the_draw_by_rows() -> None:
    """d = M = 1: p ∝ rows, whatever the losses."""
    policy, generator, num_draws = PowerOfChoice(1), np.random.default_rng(0), 5000
    policy.observe(report(1, [0, 1, 2], [9.0, 1.0, 5.0]))
    seen = Counter(int(policy.choose(2, table(3, rows=[1, 3, 6]), 1, generator)[0]) for _ in range(num_draws))
    for client, expected in enumerate([0.1, 0.3, 0.6]):
        assert abs(seen[client] / num_draws - expected) < 4 * np.sqrt(expected * (1 - expected) / num_draws)


def test_all_candidates_are_the_largest_losses() -> None:
    policy = PowerOfChoice(6)
    policy.observe(report(1, range(6), [3.0, 1.0, 6.0, 2.0, 5.0, 4.0]))
    for seed in range(20):
        assert policy.choose(2, table(6), 3, np.random.default_rng(seed)).tolist() == [2, 4, 5]


def test_who_never_trained_comes_first_in_the_order_of_the_draw() -> None:
    policy, first = PowerOfChoice(4), Counter[int]()
    policy.observe(report(1, [0, 3], [1e9, 1.0]))
    generator, num_draws = np.random.default_rng(0), 4000
    for _ in range(num_draws):
        chosen = policy.choose(2, table(4, rows=[1, 1, 3, 1]), 3, generator).tolist()
        assert (set(chosen[:2]), chosen[2]) == ({1, 2}, 0)
        first[chosen[0]] += 1
    assert abs(first[2] / num_draws - 3 / 4) < 4 * np.sqrt(3 / 16 / num_draws)


def test_the_latest_loss_is_that_of_training() -> None:
    policy = PowerOfChoice(4)
    policy.observe(report(1, [0, 1], [2.0, np.nan]))
    policy.observe(report(2, [0, 2], [3.0, 9.0], trained=[True, False]))
    assert policy.loss == {0: 3.0, 1: 0.0}


def test_probed_losses_are_those_of_everybody() -> None:
    policy = ProbedPowerOfChoice(3)
    policy.observe(report(1, [0, 1, 2], [2.0, 1.0, 3.0], trained=[True, False, False]))
    assert policy.loss == {0: 2.0, 1: 1.0, 2: 3.0}
    assert ProbedPowerOfChoice.observes == ReportRequest(training_losses=True, include_idle_clients=True)
    assert PowerOfChoice.observes == ReportRequest()


def test_everybody_trains_once() -> None:
    policy, generator, asked = PowerOfChoice(6), np.random.default_rng(0), set[int]()
    for server_round in range(1, 200):
        chosen = sorted(policy.choose(server_round, table(30, rows=range(10, 40)), 3, generator).tolist())
        policy.observe(report(server_round, chosen, [30.0 - client for client in chosen]))
        asked.update(chosen)
    assert asked == set(range(30))


def test_the_lowest_losses_are_starved_as_documented() -> None:
    """Of six candidates three train, so the three lowest known losses are never among them."""
    policy = PowerOfChoice(6)
    policy.observe(report(1, range(12), [float(client) for client in range(12)]))
    generator = np.random.default_rng(0)
    chosen = {client for _ in range(500) for client in policy.choose(2, table(12), 3, generator).tolist()}
    assert chosen == set(range(3, 12))


@pytest.mark.parametrize("candidates", [4, 21])
def test_candidates_lie_between_those_that_train_and_all(candidates: int) -> None:
    with refused(
        StrategyError, key="candidates of selection.kind=power_of_choice", names="selection.kind=power_of_choice"
    ):
        parse_selection({"kind": "power_of_choice", "candidates": candidates}, cohort(20, 5))


@pytest.mark.parametrize(("num_clients", "losses"), [(20, 10), (8, 8)])
def test_by_default_twice_as_many_are_candidates(num_clients: int, losses: int) -> None:
    """With all losses known, the d − M lowest never train: 5 of 20 for d = 10, 3 of 8 for d = 8."""
    policy = parse_selection("power_of_choice").build(cohort(num_clients, 5))
    policy.observe(report(1, range(num_clients), [float(client) for client in range(num_clients)]))
    generator = np.random.default_rng(0)
    chosen = {c for _ in range(2000) for c in np.asarray(policy.choose(2, table(num_clients), 5, generator)).tolist()}
    assert chosen == set(range(losses - 5, num_clients))
