"""(ε, δ) against closed forms and against other accountants."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import comb
from scipy.stats import norm

from fedscout.strategies.methods.dp_fedavg import (
    LEAST_NOISE,
    MOST_NOISE,
    Sampling,
    default_delta,
    epsilon_of,
    library_missing,
    noise_for,
)

DELTA = 1e-3


def analytic_epsilon(deviation: float, sensitivity: float, delta: float) -> float:
    """Balle and Wang 2018, Theorem 8: δ(ε) = Φ(Δ/2σ − εσ/Δ) − e^ε Φ(−Δ/2σ − εσ/Δ), solved for ε."""
    ratio = deviation / sensitivity

    def excess(epsilon: float) -> float:
        near, far = 1 / (2 * ratio) - epsilon * ratio, -1 / (2 * ratio) - epsilon * ratio
        return float(norm.cdf(near) - math.exp(epsilon) * norm.cdf(far)) - delta

    return 0.0 if excess(0) <= 0 else float(brentq(excess, 0, 500))


def sampled_epsilon_at_least(noise_multiplier: float, sampled_share: float, delta: float) -> float:
    """A lower bound for one round: all clients but one send nothing, that one sends C or, exchanged, −C.

    P = (1−q)N(0, z²) + q N(1, z²) against Q = (1−q)N(0, z²) + q N(−1, z²), ∫ max(0, P − e^ε Q) = δ.
    """
    at = np.linspace(-30, 30, 400_001)
    apart = [
        (1 - sampled_share) * norm.pdf(at, 0, noise_multiplier) + sampled_share * norm.pdf(at, mean, noise_multiplier)
        for mean in (1, -1)
    ]
    step = at[1] - at[0]

    def excess(epsilon: float) -> float:
        return float(np.maximum(0, apart[0] - math.exp(epsilon) * apart[1]).sum() * step) - delta

    return 0.0 if excess(0) <= 0 else float(brentq(excess, 0, 50))


def sampled_epsilon_at_most(noise_multiplier: float, sampling: Sampling, delta: float) -> float:
    """Wang et al. 2019, Theorem 9, for a Gaussian of sensitivity 2, whole orders alone, and the plain conversion."""
    deviation, share = noise_multiplier / 2, sampling.num_sampled / sampling.num_clients

    def plain(order: int) -> float:
        return order / (2 * deviation**2)

    def sampled(order: int) -> float:
        second = min(4 * math.expm1(plain(2)), 2 * math.exp(plain(2)))
        total = share**2 * comb(order, 2) * second
        total += sum(share**j * comb(order, j) * 2 * math.exp((j - 1) * plain(j)) for j in range(3, order + 1))
        return math.log1p(total) / (order - 1)

    orders = [order for order in (2, 3, 4, 5, 6, 8, 12, 16, 24, 32) if order * plain(order) < 600]
    return min(sampling.num_rounds * sampled(order) + math.log(1 / delta) / (order - 1) for order in orders)


@pytest.mark.parametrize("noise_multiplier", [0.3, 1.0, 2.5, 20.0])
@pytest.mark.parametrize("delta", [1e-6, DELTA, 0.05])
def test_one_round_of_all_clients_is_the_gaussian_mechanism(noise_multiplier: float, delta: float) -> None:
    """Of deviation z·C, and sensitivity 2C as one client is exchanged for another."""
    expected = analytic_epsilon(noise_multiplier * 0.7, 2 * 0.7, delta)
    assert epsilon_of(noise_multiplier, Sampling(10, 10, 1), delta) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_rounds_of_all_clients_are_those_of_another_accountant() -> None:
    """The composition of privacy loss distributions, which rounds up on its grid of 1e-4, a round at a time.

    It takes the noise over one client's part, and doubles the sensitivity for one that is exchanged itself.
    """
    from dp_accounting import GaussianDpEvent, NeighboringRelation, SelfComposedDpEvent
    from dp_accounting.pld import PLDAccountant

    accountant: Any = PLDAccountant(NeighboringRelation.REPLACE_ONE)
    accountant.compose(SelfComposedDpEvent(GaussianDpEvent(6.0), 20))
    ours = epsilon_of(6.0, Sampling(10, 10, 20), DELTA)
    assert ours <= accountant.get_epsilon(DELTA) <= ours + 20 * 1e-4


@pytest.mark.parametrize("noise_multiplier", [1.0, 2.0, 5.0])
@pytest.mark.parametrize("num_sampled", [2, 10, 60])
def test_sampling_lies_between_what_an_attack_shows_and_the_simpler_theorem(
    noise_multiplier: float, num_sampled: int
) -> None:
    sampling = Sampling(100, num_sampled, 1)
    found = epsilon_of(noise_multiplier, sampling, DELTA)
    assert sampled_epsilon_at_least(noise_multiplier, num_sampled / 100, DELTA) <= found
    assert found <= sampled_epsilon_at_most(noise_multiplier, sampling, DELTA) * (1 + 1e-9)
    assert found <= epsilon_of(noise_multiplier, Sampling(100, 100, 1), DELTA)


@pytest.mark.slow
@pytest.mark.parametrize("num_sampled", [5, 100])
def test_noise_lowers_epsilon_and_rounds_raise_it(num_sampled: int) -> None:
    by_noise = [epsilon_of(noise, Sampling(100, num_sampled, 30), DELTA) for noise in (0.5, 1.0, 2.0, 4.0)]
    assert by_noise == sorted(by_noise, reverse=True)
    assert len({*by_noise}) == 4
    by_rounds = [epsilon_of(1.0, Sampling(100, num_sampled, rounds), DELTA) for rounds in (1, 10, 100, 1000)]
    assert by_rounds == sorted(by_rounds)
    assert len({*by_rounds}) == 4


def test_fewer_clients_a_round_cost_less() -> None:
    by_share = [epsilon_of(1.0, Sampling(1000, sampled, 30), DELTA) for sampled in (10, 100, 1000)]
    assert by_share == sorted(by_share)


def test_without_noise_there_is_no_privacy() -> None:
    assert epsilon_of(0.0, Sampling(10, 5, 1), DELTA) == math.inf


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("sampling", "epsilon"),
    [
        (Sampling(20, 20, 7), 0.5),
        (Sampling(20, 20, 7), 200.0),
        pytest.param(Sampling(200, 10, 30), 0.5, marks=pytest.mark.slow),
        pytest.param(Sampling(200, 10, 30), 8.0, marks=pytest.mark.slow),
        pytest.param(Sampling(200, 10, 30), 200.0, marks=pytest.mark.slow),
    ],
)
def test_the_noise_that_is_found_just_suffices(sampling: Sampling, epsilon: float) -> None:
    noise = noise_for(epsilon, sampling, DELTA)
    assert epsilon * (1 - 1e-3) <= epsilon_of(noise, sampling, DELTA) <= epsilon
    assert epsilon_of(noise * 0.999, sampling, DELTA) > epsilon


def test_noise_has_its_ends() -> None:
    one = Sampling(10, 10, 1)
    assert noise_for(1e-9, one, 1e-9) == math.inf
    assert epsilon_of(MOST_NOISE, one, 1e-9) > 1e-9
    assert noise_for(1e9, one, DELTA) == LEAST_NOISE


def test_delta_is_below_one_over_the_clients() -> None:
    assert [default_delta(clients) * clients < 1 for clients in (2, 10, 10_000)] == [True] * 3
    assert default_delta(100) == pytest.approx(10**-2.2)
    assert 0 < default_delta(1) < 1


def test_the_library_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert library_missing() is None
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    fault = library_missing()
    assert (fault.key, fault.hint) == ("dp-accounting", "pip install 'fedscout[privacy]'")
