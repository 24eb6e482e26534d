"""Contexts and rewards of three rounds, worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from fedscout.engine.messages.calls import ClientTable, Losses, ReportRequest, RoundReport
from fedscout.strategies.selection.bandits import ClientContexts, ContextualSelection, MeasuredLoss, standardised
from tests.strategies.selection.planted_rounds import report

NAN = math.nan


def table(clients: list[int], seconds: list[float]) -> ClientTable:
    return ClientTable(np.array(clients), np.full(len(clients), 10), np.array(seconds))


def test_three_rounds_by_hand() -> None:
    contexts = ClientContexts(4, standardised=False)
    seconds = table([0, 1, 2], [2.0, 3.0, 5.0])
    np.testing.assert_array_equal(contexts.show(seconds), [[1, 1, 2, 0], [1, 1, 3, 0], [1, 1, 5, 0]])
    first = contexts.take(report(1, [0, 1, 2], [0], [4.0, 2.0, NAN], round_seconds=5.0))
    np.testing.assert_array_equal(first, [NAN] * 4)
    np.testing.assert_array_equal(contexts.show(seconds), [[1, 1, 2, 0], [1, 1, 3, 0], [1, 1, 5, 0]])
    # client 3 is new; τ of the reward is the first round's, 5
    second = contexts.take(report(2, [0, 1, 2, 3], [0, 1], [3.0, 2.5, 8.0, 1.0], round_seconds=4.0))
    np.testing.assert_allclose(second, [1 / 5, 0.5 / 5, NAN, NAN])
    np.testing.assert_allclose(contexts.show(seconds), [[0.75, 0.75, 2, 0.2], [1.25, 1.25, 3, 0.1], [1, 1, 5, 0]])
    # client 1 is silent: it keeps what it told; τ is 4
    third = contexts.take(report(3, [0, 2], [2], [1.0, 6.0], round_seconds=0.0))
    np.testing.assert_allclose(third, [2 / 4, NAN, 2 / 4, NAN])
    everyone = table([0, 1, 2, 3], [2.0, 3.0, 0.0, 7.0])
    expected = [[0.25, 0.25, 2, 0.5], [1.25, 1.25, 3, 0.1], [0.75, 0.75, 1, 0.5], [1, 1, 7, 0]]
    np.testing.assert_allclose(contexts.show(everyone), expected)
    # after silence the change is that since it last told; the third round had no duration, so τ is 1
    np.testing.assert_allclose(contexts.take(report(4, [1], [1], [0.5]))[1], 2.0)


def test_durations_can_be_the_other_ones() -> None:
    contexts = ClientContexts(2, ["duration"], context_duration="round", reward_duration="own", standardised=False)
    seconds = table([0, 1], [2.0, 4.0])
    np.testing.assert_array_equal(contexts.show(seconds), [[2], [4]])  # no round has lasted
    contexts.take(report(1, [0, 1], [0], [1.0, 1.0], round_seconds=9.0))
    np.testing.assert_array_equal(contexts.show(seconds), [[9], [9]])
    np.testing.assert_allclose(contexts.take(report(2, [0, 1], [0], [2.0, 2.0])), [1 / 2, 1 / 4])


def test_the_robust_loss_by_hand() -> None:
    right = np.array([0.5, 0.25])  # p_y of one row each, and of the other class the rest
    entropy = -(right * np.log(right) + (1 - right) * np.log(1 - right))
    told = Losses(-np.log(right), np.log(right) ** 2, 1 - right, entropy)
    nothing = np.zeros(2)
    both = RoundReport(1, np.arange(2), nothing > 0, nothing, nothing, nothing, nothing, nothing, told)
    reverse = 4.0 * (1 - right)  # −A(1 − p_y), A = −4
    expected = -np.log(right) + 0.1 * entropy + 8.0 * reverse
    np.testing.assert_allclose(MeasuredLoss("robust", alpha=0.1, beta=8.0).of(both), expected)
    np.testing.assert_allclose(MeasuredLoss("pseudo").of(both), entropy)
    np.testing.assert_allclose(MeasuredLoss().of(both), -np.log(right))
    np.testing.assert_array_equal(MeasuredLoss(rows="validation").of(both), [NAN, NAN])


def test_a_loss_beyond_all_bounds_is_none() -> None:
    told = report(1, [0, 1, 2, 3], [0], [math.inf, 1e7, -math.inf, 3.0])
    np.testing.assert_array_equal(MeasuredLoss().of(told), [NAN, NAN, NAN, 3.0])


def test_standardised_columns() -> None:
    found = standardised(np.array([[1.0, 7.0, 0.1], [3.0, 7.0, 0.1], [5.0, 7.0, 0.1]]))
    np.testing.assert_allclose(found[:, 0], np.array([-2, 0, 2]) / np.sqrt(8 / 3))
    np.testing.assert_array_equal(found[:, 1:], 0)


@pytest.mark.parametrize(
    ("names", "rows", "expected"),
    [
        (["training"], "training", ReportRequest(training_losses=True, include_idle_clients=True)),
        (["duration"], "validation", ReportRequest(validation_losses=True, include_idle_clients=True)),
        (
            ["validation"],
            "training",
            ReportRequest(training_losses=True, validation_losses=True, include_idle_clients=True),
        ),
    ],
)
def test_only_what_is_used_is_measured(names: list, rows: str, expected: ReportRequest) -> None:
    assert ClientContexts(3, names, reward_loss=MeasuredLoss(rows=rows)).observes == expected


class Listener:
    """Notes what a bandit is told; prefers those with the largest contexts."""

    def __init__(self) -> None:
        self.told: list[tuple[list, list]] = []

    def scores(self, contexts: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        return contexts.sum(axis=1)

    def update(self, contexts: np.ndarray, rewards: np.ndarray) -> None:
        self.told.append((contexts.ravel().tolist(), rewards.tolist()))


@pytest.mark.parametrize(
    ("credited", "told"),
    [
        # round 2: of clients 1 and 2, that train, with the contexts 30 and 40; 3: of 0 alone, since 2 failed
        ("current", [([], []), ([30, 40], [0.5, 0.25]), ([50], [1.0])]),
        # round 2: of clients 2, 1 that trained in round 1, with its contexts; 3: of 1, with those of round 2
        ("previous", [([], []), ([20, 30], [0.5, 0.25]), ([30], [2.0])]),
    ],
)
def test_who_is_credited_with_what(credited: str, told: list) -> None:
    listener = Listener()
    policy = ContextualSelection(ClientContexts(3, ["duration"], standardised=False), listener, credited=credited)
    generator = np.random.default_rng(0)
    assert {*policy.choose(1, table([0, 1, 2], [10, 20, 30]), 2, generator)} == {1, 2}
    policy.observe(report(1, [0, 1, 2], [1, 2], [1.0, 1.0, 1.0]))
    assert {*policy.choose(2, table([0, 1, 2], [20, 30, 40]), 2, generator)} == {1, 2}
    policy.observe(report(2, [0, 1, 2], [1, 2], [2.0, 1.5, 1.25]))
    assert {*policy.choose(3, table([0, 1, 2], [50, 20, 40]), 2, generator)} == {0, 2}
    policy.observe(report(3, [0, 1], [0], [3.0, 3.5]))
    assert listener.told == told
