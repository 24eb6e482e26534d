"""FLASH, its two rivals and FedCor: what each learns, what is refused, and FedCor's process against dense algebra."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import DotProduct

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import ClientTable, Cohort, SelectionPolicy
from fedscout.strategies.selection.bandits import FlashSpec
from fedscout.strategies.selection.fedcor import NOISE, fitted, greedy_choice, leave_one_out, principal, without_means
from fedscout.strategies.selection.table import parse_selection
from tests.strategies.selection.planted_rounds import NUM_CHOSEN, NUM_CLIENTS, played, report

COHORT = Cohort(NUM_CLIENTS, NUM_CHOSEN, client_learning_rate=0.1, num_rounds=30)
FEDCOR = {"kind": "fedcor", "warm_up": 3, "refit_every": 2, "dimension": 4}


def fedcor() -> SelectionPolicy:
    return parse_selection(FEDCOR, COHORT).build(COHORT)


LEARNT = [
    {"kind": "flash"},
    {"kind": "flash", "credited": "previous"},
    {"kind": "flash", "bandit": "neural"},
    {"kind": "flash", "bandit": "restless"},
    {"kind": "restless"},
    {"kind": "neural"},
]


@pytest.mark.parametrize("document", LEARNT, ids=str)
def test_clients_whose_losses_change_most_are_found(document: dict) -> None:
    policy = parse_selection(document, COHORT).build(COHORT)
    clients = np.arange(NUM_CLIENTS)
    spread = np.where(clients < 10, 1.0, 0.1)
    table = ClientTable(clients, np.full(NUM_CLIENTS, 10), np.random.default_rng(0).lognormal(size=NUM_CLIENTS))
    shares = []
    for server_round in range(1, 61):
        generator = np.random.default_rng(server_round)
        chosen = [int(client) for client in policy.choose(server_round, table, NUM_CHOSEN, generator)]
        shares.append(np.mean([client < 10 for client in chosen]))
        told = (4 + spread * generator.normal(size=NUM_CLIENTS)).clip(0.01)
        policy.observe(report(server_round, clients.tolist(), chosen, told.tolist(), round_seconds=1.0))
    assert np.mean(shares[20:]) > 0.8  # a random choice has 0.5, with a standard error of 0.04


def test_fedcor_is_random_in_its_warm_up_and_until_it_can_fit() -> None:
    policy = fedcor()
    for _ in played(policy, range(1, 4)):
        assert not policy.embeddings.any()
    (_,) = played(policy, range(4, 5))
    assert policy.embeddings.any()
    silent = fedcor()
    table = next(played(fedcor(), range(1, 2)))[0]
    for server_round in range(1, 9):
        assert len({*silent.choose(server_round, table, 4, np.random.default_rng(server_round))}) == 4
    assert not silent.embeddings.any()


def test_fedcor_anneals_who_is_chosen_until_the_next_fit() -> None:
    policy = fedcor()
    for _ in played(policy, range(1, 4)):
        pass
    for server_round in (4, 5, 6):
        ((_, chosen),) = played(policy, range(server_round, server_round + 1))
        if server_round != 5:  # there is a new fit
            expected = np.ones(NUM_CLIENTS)
        expected[chosen] *= 0.95
        np.testing.assert_array_equal(policy.annealing, expected)


@pytest.mark.parametrize(
    ("document", "share"),
    [
        ({"kind": "flash"}, 0.1),
        ({"kind": "flash", "contexts": ["training", "reward"]}, 0.0),
        ({"kind": "flash", "contexts": ["training"], "reward_rows": "validation"}, 0.1),
        ({"kind": "fedcor"}, 0.0),
        ({"kind": "neural"}, 0.1),
        ({"kind": "restless"}, 0.1),
    ],
)
def test_rows_are_set_aside_only_where_they_are_measured(document: dict, share: float) -> None:
    spec = parse_selection(document)
    assert spec.validation_share == share
    assert spec.build(COHORT).observes.validation_losses == (share > 0)


@pytest.mark.parametrize(
    ("document", "cohort", "first", "given"),
    [
        ({"kind": "flash", "contexts": ["reward", "reward"]}, COHORT, "contexts of selection.kind=flash", None),
        ({"kind": "flash", "contexts": []}, COHORT, "contexts of selection.kind=flash", "[]"),
        ({"kind": "flash", "delta": 1}, COHORT, "delta of selection.kind=flash", "1"),
        ({"kind": "neural", "num_hidden": 5}, COHORT, "num_hidden of selection.kind=neural", "5"),
        ({"kind": "fedcor"}, Cohort(50, 10, 0.1, num_rounds=15), "warm_up of selection.kind=fedcor", "15"),
        ({"kind": "fedcor"}, Cohort(15, 5, 0.1, num_rounds=40), "dimension of selection.kind=fedcor", "15"),
        ({"kind": "flash"}, Cohort(10, 10, 0.1), "selection.kind", "training.fraction_train that selects 10 of 10"),
    ],
)
def test_faults_are_told_before_training(document: dict, cohort: Cohort, first: str, given: str | None) -> None:
    with pytest.raises(StrategyError) as caught:
        parse_selection(document, cohort)
    (fault,) = caught.value.faults
    assert fault.startswith(first)
    assert fault.given == given


# -- FedCor's Gaussian process against dense float64 algebra and scikit-learn ------------------------------------------


RNG = np.random.default_rng(0)
EMBEDDINGS = 0.1 * RNG.normal(size=(3, 8))
CHANGES = 0.1 * RNG.normal(size=(5, 8))
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
    shares = RNG.random(8)
    shares /= shares.sum()
    annealing = RNG.uniform(0.5, 1, 8)
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


def test_a_specification_is_shown_by_what_is_not_default() -> None:
    assert str(FlashSpec()) == "flash"
    assert str(FlashSpec(contexts=("reward",), bandit="neural")) == "flash(bandit=neural, contexts=['reward'])"
    assert parse_selection({"kind": "flash", **FlashSpec(contexts=("reward",)).parameters()}) == FlashSpec(
        contexts=("reward",)
    )
