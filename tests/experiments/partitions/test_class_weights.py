"""Gaussian and Poisson classes: kernels with the moments of their distributions, and shares in proportion to them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedscout.experiments.partitions.labels import owners_by_log_weights, wrapped_normal, wrapped_poisson
from tests.experiments.partitions.requests import class_counts, deal


def test_kernels_are_the_distributions_where_the_ring_is_long() -> None:
    steps = np.arange(60)
    poisson = np.exp(wrapped_poisson(60, 3.0))
    np.testing.assert_allclose(poisson, stats.poisson.pmf(steps, 3.0), atol=1e-12)
    normal = np.exp(wrapped_normal(60, 2.0))
    around = np.minimum(steps, 60 - steps)
    np.testing.assert_allclose(normal, np.exp(-(around**2) / 8), atol=1e-12)


@pytest.mark.parametrize("rate", [0.2, 3.0, 40.0])
def test_wrapped_poisson_by_its_characteristic_function(rate: float) -> None:
    # The discrete Fourier transform of a wrapped Poisson(λ) over C classes is exp(λ(e^(−2πij/C) − 1)).
    num_classes = 7
    transform = np.fft.fft(np.exp(wrapped_poisson(num_classes, rate)))
    roots = np.exp(-2j * np.pi * np.arange(num_classes) / num_classes)
    np.testing.assert_allclose(transform, np.exp(rate * (roots - 1)), atol=1e-9)


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
@pytest.mark.parametrize("num_classes", [2, 10])
def test_mixtures_are_the_kernel_around_each_own_class(kind: str, num_classes: int) -> None:
    rows_of_class = 1000
    labels = np.arange(num_classes * rows_of_class) % num_classes
    knob = {"gaussian": {"class_sigma": 0.7}, "poisson": {"class_rate": 0.7}}[kind]
    kernel = np.exp(wrapped_normal(num_classes, 0.7) if kind == "gaussian" else wrapped_poisson(num_classes, 0.7))
    counts = class_counts(labels, deal(kind, labels, 2 * num_classes, **knob).partition)
    # Each class is the own one of two clients, so a client has half the kernel's share of it, rounded up or down.
    expected = {tuple(np.roll(kernel / kernel.sum(), own) * rows_of_class / 2) for own in range(num_classes)}
    for row in counts:
        assert sum(np.abs(row - np.array(shares)).max() < 1 + 1e-9 for shares in expected) == 1


def test_weights_too_small_for_floating_point_still_say_who_wants_a_class_most() -> None:
    labels = np.repeat(np.arange(2), 50)
    log_weights = np.array([[0.0, -2000.0], [-1000.0, -5000.0]])
    owners = owners_by_log_weights(labels, log_weights, np.random.default_rng(0))
    assert (owners == 0).all()


def test_a_client_without_weight_gets_nothing() -> None:
    labels = np.zeros(1000, np.int64)
    log_weights = np.log(
        np.array([[3.0], [0.0], [1.0]]), where=np.array([[True], [False], [True]]), out=np.full((3, 1), -np.inf)
    )
    sizes = np.bincount(owners_by_log_weights(labels, log_weights, np.random.default_rng(0)), minlength=3)
    assert sizes[1] == 0
    assert abs(sizes[0] - 750) <= 1


@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
def test_clients_that_rounding_leaves_short_are_filled_up(kind: str) -> None:
    # Forty clients for three classes of 70 rows: about five each, and five asked.
    labels = np.arange(210) % 3
    dealt = deal(kind, labels, 40, min_size=5)
    assert dealt.partition.sizes.min() == 5
    assert dealt.facts["num_rows_moved"] >= 0
