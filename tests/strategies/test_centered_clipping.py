"""Centered clipping is FedAvg without a bound, and with one no client goes beyond it."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import CenteredClippingSpec, FedAvgSpec
from fedscout.strategies.methods.robust import clipped_mean
from tests.strategies.rounds import models, played


def test_without_a_bound_it_is_fedavg_with_equal_weights() -> None:
    """Whatever was kept from the rounds before: v + mean(Δ_i − v) = mean Δ_i."""
    cohort = Cohort(6, 6, 0.1)
    ours = models(CenteredClippingSpec(clipping_radius=1e9).build(cohort), 6, num_rounds=4)
    theirs = models(FedAvgSpec(sample_scaling="uniform").build(cohort), 6, num_rounds=4)
    for model, fedavg in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(model, fedavg, rtol=1e-5, atol=1e-6)


def test_the_last_change_is_kept() -> None:
    """One client goes three further each round, τ = 1: v = 1, 2, 3, 3 and x = 1, 3, 6, 9, by hand."""
    built = CenteredClippingSpec(clipping_radius=1.0).build(Cohort(1, 1, 0.1))
    rounds = played(built, np.zeros(1), lambda sent: [sent + 3], num_rounds=4)
    np.testing.assert_allclose([model for _, model in rounds], [[1], [3], [6], [9]], rtol=1e-6)


@pytest.mark.parametrize("radius", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("strength", [1e-3, 1.0, 1e3, 1e30, np.inf])
def test_an_attacker_moves_the_model_by_at_most_its_share_of_the_bound(radius: float, strength: float) -> None:
    """Against the same round with a client in its place that asks for the last change, which adds nothing."""
    generator = np.random.default_rng(3)
    honest = list(generator.normal(size=(6, 5)))
    center = generator.normal(size=5)
    attack = strength * np.array([1.0, -1.0, 1.0, 1.0, -1.0])
    with np.errstate(invalid="ignore"):
        attacked = clipped_mean([*honest, attack], center, radius)
    moved = float(np.linalg.norm(attacked - clipped_mean([*honest, center], center, radius)))
    assert moved <= radius / 7 * (1 + 1e-9)
    if 1e3 <= strength < np.inf:
        assert moved == pytest.approx(radius / 7)


def test_within_the_bound_nothing_is_clipped() -> None:
    """Whether a client's model is the center, inside, or at τ."""
    center = np.array([1.0, 2.0])
    near = [center, center + np.array([0.3, 0.4]), center - np.array([0.6, 0.8])]
    np.testing.assert_allclose(clipped_mean(near, center, 1.0), [-0.1, -0.4 / 3], rtol=1e-12)


def test_a_round_without_replies_leaves_the_last_change_as_it_was() -> None:
    built = CenteredClippingSpec(clipping_radius=1.0).build(Cohort(1, 1, 0.1))
    played(built, np.zeros(1), lambda sent: [sent + 3], num_rounds=2)
    ((_, model),) = played(built, np.zeros(1), lambda _: [None], num_rounds=1)
    assert model is None
    np.testing.assert_array_equal(built.change, [2.0])


def test_the_bound_is_searched_in_log_space() -> None:
    found = CenteredClippingSpec().search_range("clipping_radius", Cohort(4, 4, 0.1), {})
    assert found.text() == "[0.1, 100] (log)"
