"""The bandits of FLASH and its rivals, and FedCor: their formulas written out, contexts by hand, what each learns."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort, Losses, ReportRequest, RoundReport, SelectionPolicy
from fedscout.strategies.selection import bandits, policies
from fedscout.strategies.selection.policies import NOISE, fitted, greedy_choice, leave_one_out, principal, without_means
from fedscout.strategies.selection.table import parse_selection
from tests.kits.refusals import refused
from tests.strategies.selection import reports
from tests.strategies.selection.reports import table

# -- The linear bandits against least squares written out in float64 ---------------------------------------------------


RNG = np.random.default_rng(0)
ROUNDS = [(RNG.normal(size=(5, 3)), RNG.normal(size=5)) for _ in range(6)]
CONTEXTS, REWARDS = (np.concatenate(parts) for parts in zip(*ROUNDS, strict=True))


def told(bandit: bandits.LinearPosterior | bandits.DiscountedRegression) -> None:
    for contexts, rewards in ROUNDS:
        bandit.update(contexts, rewards)


def test_draws_have_the_mean_of_ridge_regression_on_all_that_was_told_and_the_printed_width() -> None:
    bandit = bandits.LinearPosterior(3, num_clients=20, regularisation=0.7, delta=0.1, exploration=2.0)
    told(bandit)
    precision = 0.7 * np.eye(3) + CONTEXTS.T @ CONTEXTS
    mean, width = np.linalg.inv(precision) @ CONTEXTS.T @ REWARDS, 2 * (0.7**0.5 + (3 * math.log(101 / 0.1)) ** 0.5)
    np.testing.assert_allclose(bandit.mean(), mean, rtol=1e-12)
    assert bandit.width() == pytest.approx(width, rel=1e-12)
    first = bandits.LinearPosterior(4, num_clients=50)
    first.update(np.zeros((50, 4)), np.zeros(50))
    assert first.width() == pytest.approx(1 + (4 * math.log(1 / 0.05)) ** 0.5)  # γ_0, by which S_1 is chosen
    generator = np.random.default_rng(1)
    draws = np.stack([bandit.draw(generator) for _ in range(20_000)])
    whitened = np.linalg.solve(np.linalg.cholesky(width**2 * np.linalg.inv(precision)), (draws - mean).T)
    # of 20,000 standard normals: means have a standard error of 0.007, products at most one of 0.01
    np.testing.assert_allclose(whitened.mean(axis=1), 0, atol=0.035)
    np.testing.assert_allclose(np.cov(whitened), np.eye(3), atol=0.05)


@pytest.mark.parametrize("discount", [0.8, 1.0])
def test_what_is_forgotten_counts_less_by_its_age_and_the_bound_is_the_one_printed(discount: float) -> None:
    """Who never forgets is LinUCB, of which six rounds are discounted by nothing."""
    bandit = bandits.DiscountedRegression(3, discount=discount, regularisation=0.7, delta=0.1)
    told(bandit)
    weights = np.repeat(discount ** np.arange(6)[::-1], 5)
    inverse = np.linalg.inv((CONTEXTS.T * weights) @ CONTEXTS + 0.7 * np.eye(3))
    squared = (CONTEXTS.T * weights**2) @ CONTEXTS + 0.7 * np.eye(3)
    rounds = (1 - 0.8**12) / (1 - 0.64) if discount < 1 else 6
    width = math.sqrt(0.7) + math.sqrt(2 * math.log(10) + 3 * math.log(1 + rounds / (0.7 * 3)))
    known = inverse @ (CONTEXTS.T * weights) @ REWARDS
    expected = [x @ known + width * math.sqrt(x @ inverse @ squared @ inverse @ x) for x in CONTEXTS]
    np.testing.assert_allclose(bandit.scores(CONTEXTS, np.random.default_rng(0)), expected, rtol=1e-12)


# -- The neural bandit's gradients against finite differences, its bound against the formula ---------------------------


HIDDEN, SIZE = 6, 3
RNG_NEURAL = np.random.default_rng(3)
CONTEXTS_NEURAL = RNG_NEURAL.normal(size=(5, SIZE))
TARGETS = RNG_NEURAL.normal(size=5)
PARAMETERS = RNG_NEURAL.normal(size=(SIZE + 1) * HIDDEN)
STEP = 1e-6
DIRECTIONS = STEP * np.eye(PARAMETERS.size)


def neural_outputs(parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs and gradients of the network for the contexts."""
    return bandits.outputs_and_gradients(parameters, CONTEXTS_NEURAL, HIDDEN)


def test_the_network_is_the_one_written_and_gradients_are_its_differences() -> None:
    outputs, gradients = neural_outputs(PARAMETERS)
    inner, outer = PARAMETERS[: SIZE * HIDDEN].reshape(HIDDEN, SIZE), PARAMETERS[SIZE * HIDDEN :]
    expected = [HIDDEN**0.5 * sum(outer[j] * max(inner[j] @ x, 0) for j in range(HIDDEN)) for x in CONTEXTS_NEURAL]
    np.testing.assert_allclose(outputs, expected, rtol=1e-12)
    above, below = ([neural_outputs(PARAMETERS + sign * way)[0] for way in DIRECTIONS] for sign in (1, -1))
    np.testing.assert_allclose(gradients, np.subtract(above, below).T / (2 * STEP), atol=1e-7)


def test_descent_follows_the_difference_of_the_loss() -> None:
    """Two steps on the mean of (f − r)²/2 and mλ‖θ − θ₀‖²/2n, each half of 1/(mean ‖g‖² + mλ/n); r is divided by 4."""
    bandit = bandits.NeuralBandit(SIZE, HIDDEN, regularisation=0.3, num_steps=2, step=0.5)
    bandit.scores(CONTEXTS_NEURAL, np.random.default_rng(0))
    bandit.parameters, bandit.start = PARAMETERS, PARAMETERS / 2
    rewards = 4 * np.array([-1, 0.5, 0.25, 0.75, 0])

    def loss(parameters: np.ndarray) -> float:
        outputs, _ = neural_outputs(parameters)
        pull = HIDDEN * 0.3 / 5 * np.sum((parameters - PARAMETERS / 2) ** 2)
        return float(np.mean((outputs - rewards / 4) ** 2) + pull) / 2

    _, gradients = neural_outputs(PARAMETERS)
    step, expected = 0.5 / (np.square(gradients).sum() / 5 + HIDDEN * 0.3 / 5), PARAMETERS
    for _ in range(2):
        differences = [(loss(expected + way) - loss(expected - way)) / (2 * STEP) for way in DIRECTIONS]
        expected = expected - step * np.array(differences)
    bandit.update(CONTEXTS_NEURAL, rewards)
    np.testing.assert_allclose(bandit.parameters, expected, atol=1e-8)


@pytest.mark.parametrize("num_rows", [1, 9, SIZE + 40])
def test_the_bound_is_by_the_inverse_of_all_gradients_so_far(num_rows: int) -> None:
    """Also of more gradients at once than the network has parameters, and after several rounds."""
    bandit = bandits.NeuralBandit(SIZE, HIDDEN, regularisation=0.5, exploration=0.3)
    bandit.scores(CONTEXTS_NEURAL, np.random.default_rng(0))
    information = 0.5 * np.eye(PARAMETERS.size)
    for _ in range(4):
        contexts = RNG_NEURAL.normal(size=(num_rows, SIZE))
        _, gradients = bandits.outputs_and_gradients(bandit.parameters, contexts, HIDDEN)
        information += gradients.T @ gradients / HIDDEN
        bandit.update(contexts, RNG_NEURAL.normal(size=num_rows))
    outputs, gradients = neural_outputs(bandit.parameters)
    bounds = [np.sqrt(g @ np.linalg.inv(information) @ g / HIDDEN) for g in gradients]
    scores = bandit.scores(CONTEXTS_NEURAL, np.random.default_rng(1))
    np.testing.assert_allclose(scores, outputs + 0.3 * np.array(bounds), rtol=1e-9)


def test_only_the_last_are_remembered() -> None:
    bandit = bandits.NeuralBandit(SIZE, HIDDEN, num_remembered=7)
    bandit.scores(CONTEXTS_NEURAL, np.random.default_rng(0))
    bandit.update(CONTEXTS_NEURAL, TARGETS)
    bandit.update(CONTEXTS_NEURAL, TARGETS)
    np.testing.assert_array_equal(bandit.contexts, np.concatenate([CONTEXTS_NEURAL[-2:], CONTEXTS_NEURAL]))


# -- Contexts and rewards of three rounds, worked by hand --------------------------------------------------------------


NAN = math.nan


def report(
    server_round: int, clients: list[int], trained: list[int], losses: list[float], round_seconds: float = 0.0
) -> RoundReport:
    has_trained = np.isin(clients, trained).tolist()
    return reports.report(server_round, clients, losses, trained=has_trained, round_seconds=round_seconds)


def test_three_rounds_by_hand() -> None:
    contexts = bandits.ClientContexts(4, standardised=False)
    seconds = table([0, 1, 2], seconds=[2.0, 3.0, 5.0])
    np.testing.assert_array_equal(contexts.show(seconds), [[1, 1, 2, 0], [1, 1, 3, 0], [1, 1, 5, 0]])
    first = contexts.take(report(1, [0, 1, 2], [0], [4.0, 2.0, NAN], round_seconds=5.0))
    np.testing.assert_array_equal(first, [NAN] * 4)
    np.testing.assert_array_equal(contexts.show(seconds), [[1, 1, 2, 0], [1, 1, 3, 0], [1, 1, 5, 0]])
    # client 3 is new; τ of the reward is the first round's, 5
    second = contexts.take(report(2, [0, 1, 2, 3], [0, 1], [3.0, 2.5, 8.0, 1.0], round_seconds=4.0))
    np.testing.assert_allclose(second, [1 / 5, 0.5 / 5, NAN, NAN])
    np.testing.assert_allclose(contexts.show(seconds), [[0.75, 0.75, 2, 0], [1.25, 1.25, 3, 0], [1, 1, 5, 0]])
    # client 1 is silent: it keeps what it told; τ is 4
    third = contexts.take(report(3, [0, 2], [2], [1.0, 6.0], round_seconds=0.0))
    np.testing.assert_allclose(third, [2 / 4, NAN, 2 / 4, NAN])
    everyone = table([0, 1, 2, 3], seconds=[2.0, 3.0, 0.0, 7.0])
    expected = [[0.25, 0.25, 2, 0.2], [1.25, 1.25, 3, 0.1], [0.75, 0.75, 1, 0], [1, 1, 7, 0]]  # r_{t−1}
    np.testing.assert_allclose(contexts.show(everyone), expected)
    # after silence the change is that since it last told; the third round had no duration, so τ is 1
    np.testing.assert_allclose(contexts.take(report(4, [1], [1], [0.5]))[1], 2.0)


def test_the_robust_loss_by_hand() -> None:
    right = np.array([0.5, 0.25])  # p_y of one row each, and of the other class the rest
    entropy = -(right * np.log(right) + (1 - right) * np.log(1 - right))
    told = Losses(-np.log(right), np.log(right) ** 2, 1 - right, entropy)
    reverse = 4.0 * (1 - right)  # −A(1 − p_y), A = −4
    expected = -np.log(right) + 0.1 * entropy + 8.0 * reverse
    np.testing.assert_allclose(policies.robust_loss(told, 2, alpha=0.1, beta=8.0), expected)
    np.testing.assert_array_equal(policies.robust_loss(told, 2), -np.log(right))
    np.testing.assert_array_equal(policies.robust_loss(None, 2), [NAN, NAN])
    beyond_all_bounds = report(1, [0, 1, 2, 3], [0], [math.inf, 1e7, -math.inf, 3.0]).training
    np.testing.assert_array_equal(policies.robust_loss(beyond_all_bounds, 4), [NAN, NAN, NAN, 3.0])


@pytest.mark.parametrize(
    ("options", "context", "reward"),
    [
        ({}, [6.0 / 10.0], 4.0),
        ({"context_loss": "cross_entropy"}, [1.0 / 2.0], 4.0),
        ({"reward_loss": "cross_entropy"}, [6.0 / 10.0], 1.0),
        ({"reward_loss": "cross_entropy", "reward_rows": "validation"}, [6.0 / 10.0], 2.0),
    ],
)
def test_contexts_and_rewards_have_losses_of_their_own(options: dict, context: list[float], reward: float) -> None:
    """Training: from 2 + 0.5·8 + 1·4 to 1 + 0.5·6 + 1·2; the cross-entropy of validation rows from 3 to 1."""
    document = {"kind": "flash", "contexts": ["training"], "alpha": 0.5, "beta": 1.0, "standardised": False}
    contexts = parse_selection({**document, **options}).build(COHORT).contexts  # type: ignore[attr-defined]
    nothing, client = np.zeros(1), np.array([0])
    rounds = [
        (Losses(*map(np.array, training)), Losses(*map(np.array, validation)))
        for training, validation in [
            (([2.0], [0.0], [1.0], [8.0]), ([3.0], [0.0], [0.0], [0.0])),
            (([1.0], [0.0], [0.5], [6.0]), ([1.0], [0.0], [0.0], [0.0])),
        ]
    ]
    for number, losses in enumerate(rounds):
        told = RoundReport(number + 1, client, nothing == 0, *[nothing] * 5, *losses)
        rewards = contexts.take(told)
    assert contexts.show(table([0])).tolist() == [context]
    assert rewards[0] == reward


def test_standardised_columns() -> None:
    found = bandits.standardised(np.array([[1.0, 7.0, 0.1], [3.0, 7.0, 0.1], [5.0, 7.0, 0.1]]))
    np.testing.assert_allclose(found[:, 0], np.array([-2, 0, 2]) / np.sqrt(8 / 3))
    np.testing.assert_array_equal(found[:, 1:], 0)


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
        ("chosen", [([], []), ([30, 40], [0.5, 0.25]), ([50], [1.0])]),
        # round 2: of clients 2, 1 that trained in round 1, with its contexts; 3: of 1, with those of round 2
        ("previous", [([], []), ([20, 30], [0.5, 0.25]), ([30], [2.0])]),
    ],
)
def test_who_is_credited_with_what(credited: str, told: list) -> None:
    listener = Listener()
    policy = bandits.ContextualSelection(
        bandits.ClientContexts(3, ["duration"], standardised=False), listener, credited=credited
    )
    generator = np.random.default_rng(0)
    assert {*policy.choose(1, table([0, 1, 2], seconds=[10, 20, 30]), 2, generator)} == {1, 2}
    policy.observe(report(1, [0, 1, 2], [1, 2], [1.0, 1.0, 1.0]))
    assert {*policy.choose(2, table([0, 1, 2], seconds=[20, 30, 40]), 2, generator)} == {1, 2}
    policy.observe(report(2, [0, 1, 2], [1, 2], [2.0, 1.5, 1.25]))
    assert {*policy.choose(3, table([0, 1, 2], seconds=[50, 20, 40]), 2, generator)} == {0, 2}
    policy.observe(report(3, [0, 1], [0], [3.0, 3.5]))
    assert listener.told == told


@pytest.mark.parametrize(("credited", "contexts"), [("measured", [[2, 1.5, 1.25], [3]]), ("chosen", [[1, 1, 1], [2]])])
def test_the_loss_of_a_context_is_that_of_its_reward_or_the_one_before(credited: str, contexts: list) -> None:
    listener = Listener()
    kinds = bandits.ClientContexts(3, ["training"], standardised=False)
    policy = bandits.ContextualSelection(kinds, listener, credited=credited)
    for number, clients, losses in [(1, [0, 1, 2], [1, 1, 1]), (2, [0, 1, 2], [2, 1.5, 1.25]), (3, [0, 1], [3, 3.5])]:
        policy.choose(number, table([0, 1, 2]), 3, np.random.default_rng(0))
        policy.observe(report(number, clients, clients[:3] if number < 3 else [0], losses))
    assert listener.told == [([], []), (contexts[0], [1, 0.5, 0.25]), (contexts[1], [1])]


NUM_CLIENTS = 20
COHORT = Cohort(NUM_CLIENTS, 4, client_learning_rate=0.1, num_rounds=30)
FEDCOR = {"kind": "fedcor", "warm_up": 3, "refit_every": 2, "dimension": 4}


def fedcor() -> SelectionPolicy:
    return parse_selection(FEDCOR, COHORT).build(COHORT)


def round_of(policy: SelectionPolicy, server_round: int) -> list[int]:
    """Play a round in which all clients tell their losses; return who trained."""
    generator = np.random.default_rng(server_round)
    chosen = np.asarray(policy.choose(server_round, table(NUM_CLIENTS), 4, generator)).tolist()
    policy.observe(report(server_round, [*range(NUM_CLIENTS)], chosen, generator.exponential(size=20).tolist()))
    return chosen


def test_fedcor_is_random_in_its_warm_up_and_until_it_can_fit() -> None:
    policy, silent = fedcor(), fedcor()
    for server_round in (1, 2, 3):
        round_of(policy, server_round)
        assert not policy.embeddings.any()
    round_of(policy, 4)
    assert policy.embeddings.any()
    for server_round in range(1, 9):
        assert len({*silent.choose(server_round, table(NUM_CLIENTS), 4, np.random.default_rng(server_round))}) == 4
    assert not silent.embeddings.any()


def test_fedcor_anneals_who_is_chosen_until_the_next_fit() -> None:
    policy, expected = fedcor(), np.ones(NUM_CLIENTS)
    for server_round in range(1, 7):
        chosen = round_of(policy, server_round)
        if server_round in (4, 6):  # there is a new fit
            expected = np.ones(NUM_CLIENTS)
        if server_round >= 4:
            expected[chosen] *= 0.95
            np.testing.assert_array_equal(policy.annealing, expected)


@pytest.mark.parametrize(
    ("document", "losses", "share"),
    [
        ({"kind": "flash"}, (True, True), 0.1),
        ({"kind": "flash", "contexts": ["training", "reward"]}, (True, False), 0.0),
        ({"kind": "flash", "contexts": ["validation"]}, (True, True), 0.1),
        ({"kind": "flash", "contexts": ["training"], "reward_rows": "validation"}, (True, True), 0.1),
        ({"kind": "flash", "contexts": ["duration"], "reward_rows": "validation"}, (False, True), 0.1),
        ({"kind": "fedcor"}, (True, False), 0.0),
        ({"kind": "neural"}, (True, True), 0.1),
        ({"kind": "restless"}, (True, True), 0.1),
    ],
)
def test_only_what_is_used_is_measured_and_set_aside(document: dict, losses: tuple[bool, bool], share: float) -> None:
    spec = parse_selection(document)
    assert spec.validation_share == share
    assert spec.build(COHORT).observes == ReportRequest(*losses, include_idle_clients=True)


@pytest.mark.parametrize(
    ("document", "cohort", "first", "given"),
    [
        ({"kind": "flash", "contexts": ["reward", "reward"]}, COHORT, "contexts of selection.kind=flash", None),
        ({"kind": "flash", "contexts": []}, COHORT, "contexts of selection.kind=flash", "[]"),
        ({"kind": "fedcor"}, Cohort(50, 10, 0.1, num_rounds=15), "warm_up", "15"),
        ({"kind": "fedcor"}, Cohort(15, 5, 0.1, num_rounds=40), "dimension of selection.kind=fedcor", "15"),
        ({"kind": "flash"}, Cohort(10, 10, 0.1), "selection.kind", "training.fraction_train that selects 10 of 10"),
        ({"kind": "pyramidfl", "withheld_first": 0.5, "withheld_last": 0.2}, COHORT, "withheld_first", "0.5"),
        ({"kind": "power_of_choice", "candidates": 3}, COHORT, "candidates of selection.kind=power_of_choice", "3"),
        ({"kind": "power_of_choice", "candidates": 21}, COHORT, "candidates of selection.kind=power_of_choice", "21"),
    ],
)
def test_faults_are_told_before_training(document: dict, cohort: Cohort, first: str, given: str | None) -> None:
    with refused(StrategyError, key=first, given=given):
        parse_selection(document, cohort)


# -- FedCor's Gaussian process against dense float64 algebra and scikit-learn ------------------------------------------


RNG_FEDCOR = np.random.default_rng(0)
EMBEDDINGS = 0.1 * RNG_FEDCOR.normal(size=(3, 8))
CHANGES = 0.1 * RNG_FEDCOR.normal(size=(5, 8))
WEIGHTS = 0.9 ** np.arange(5)[::-1]
COVARIANCE = EMBEDDINGS.T @ EMBEDDINGS + NOISE**2 * np.eye(8)


def predicted(changes: np.ndarray, left_out: int) -> tuple[float, float]:
    """Return mean and variance of one client's change given the others', by scikit-learn."""
    others = [client for client in range(8) if client != left_out]
    kernel = DotProduct(sigma_0=0, sigma_0_bounds="fixed")
    process = GaussianProcessRegressor(kernel, alpha=NOISE**2, optimizer=None)
    process.fit(EMBEDDINGS[:, others].T, changes[others])
    mean, deviation = process.predict(EMBEDDINGS[:, [left_out]].T, return_std=True)
    return float(mean[0]), float(deviation[0]) ** 2 + NOISE**2


def test_the_likelihood_is_that_of_each_client_left_out() -> None:
    expected = 0.0
    for weight, changes in zip(WEIGHTS, CHANGES, strict=True):
        for client in range(8):
            mean, variance = predicted(changes, client)
            expected -= weight * (np.log(variance) + (changes[client] - mean) ** 2 / variance) / 2
    value, _ = leave_one_out(EMBEDDINGS, CHANGES, WEIGHTS)
    np.testing.assert_allclose(value, expected, rtol=1e-7)


def test_its_gradient_is_its_difference() -> None:
    _, gradient = leave_one_out(EMBEDDINGS, CHANGES, WEIGHTS)
    differences = np.empty_like(EMBEDDINGS)
    for place in np.ndindex(*EMBEDDINGS.shape):
        way = np.zeros_like(EMBEDDINGS)
        way[place] = 1e-6
        up, down = (leave_one_out(EMBEDDINGS + sign * way, CHANGES, WEIGHTS)[0] for sign in (1, -1))
        differences[place] = (up - down) / 2e-6
    np.testing.assert_allclose(gradient, differences, rtol=1e-5, atol=1e-5 * np.abs(gradient).max())


def test_the_greedy_choice_is_that_of_dense_conditioning() -> None:
    shares = RNG_FEDCOR.random(8)
    shares /= shares.sum()
    annealing = RNG_FEDCOR.uniform(0.5, 1, 8)
    covariance, expected = COVARIANCE.copy(), []
    for _ in range(8):
        variances = np.diag(covariance)
        free = [client for client in range(8) if client not in expected]
        scores = {
            client: annealing[client] * shares @ covariance[:, client] / np.sqrt(variances[client]) for client in free
        }
        pick = max(scores, key=scores.__getitem__)
        expected.append(pick)
        column = covariance[:, pick]
        covariance = covariance - np.outer(column, column) / column[pick]
    assert greedy_choice(EMBEDDINGS, shares, annealing, 8).tolist() == expected


def test_a_fit_finds_who_changes_together() -> None:
    generator = np.random.default_rng(4)
    groups = np.repeat([0, 1, 2], 4)
    changes = 0.3 * generator.normal(size=(25, 3))[:, groups] + 0.01 * generator.normal(size=(25, 12))
    weights = np.ones(25)
    deviations = without_means(changes, weights)
    found, start = fitted(deviations, weights, 5, 100), principal(deviations, weights, 5)
    assert leave_one_out(found, deviations, weights)[0] > leave_one_out(start, deviations, weights)[0]
    lengths = np.linalg.norm(found, axis=0)
    correlations = found.T @ found / np.outer(lengths, lengths)
    together = groups[:, None] == groups
    assert correlations[together].min() > np.abs(correlations[~together]).max()
    chosen = greedy_choice(found, np.full(12, 1 / 12), np.ones(12), 3)
    assert {*groups[chosen]} == {0, 1, 2}  # one of each, since a group's second tells next to nothing


def test_principal_embeddings_give_back_the_covariance_of_few_changes() -> None:
    covariance = (CHANGES.T * WEIGHTS) @ CHANGES / WEIGHTS.sum()
    found = principal(CHANGES, WEIGHTS, 7)  # five changes have no more than five directions
    np.testing.assert_allclose(found.T @ found, covariance, atol=1e-15)


def test_means_are_taken_off_with_their_weights_and_silence_is_the_mean() -> None:
    changes = np.array([[1.0, np.nan, np.nan], [4.0, 2.0, np.nan]])
    found = without_means(changes, np.array([0.5, 1.0]))
    np.testing.assert_allclose(found, [[-2, 0, 0], [1, 0, 0]])
