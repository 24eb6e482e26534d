"""Class samplings: shares by closed forms, distances by SciPy's, and clients that find their own parameter."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import euclidean
from scipy.stats import chisquare

from fedscout.engine.contracts.settings_lookup import metric_named
from fedscout.experiments.benchmarks.client_settings.class_samplings import (
    LEAST,
    bhattacharyya,
    chi_square,
    ordered_dirichlet,
    shares_of,
)
from fedscout.experiments.benchmarks.client_settings.settings_battery import PARTS

METRICS = [row.options["metric"] for row in PARTS["metrics"].rows if row.options]
FAR_APART = (0.4, 1.0, 3.0)


def kind_of(metric: str) -> str:
    return metric.partition(":")[2].removesuffix("_bhattacharyya")


def rearranged(counts: np.ndarray, kind: str, generator: np.random.Generator) -> np.ndarray:
    """Return counts from another class onwards, or of other classes: a client's own numbering says nothing."""
    return (
        generator.permutation(counts) if kind == "dirichlet" else np.roll(counts, int(generator.integers(len(counts))))
    )


def test_expected_ordered_shares_are_known_where_shares_are_uniform() -> None:
    # The k-th largest of C spacings of the unit interval has the mean (1/C) (1/k + … + 1/C).
    for num_classes in (2, 5, 12):
        harmonic = [sum(1 / j for j in range(k, num_classes + 1)) / num_classes for k in range(1, num_classes + 1)]
        assert_allclose(ordered_dirichlet(num_classes, 1.0), harmonic, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 4.0])
def test_expected_ordered_shares_are_the_mean_of_draws(alpha: float) -> None:
    drawn = np.random.default_rng(0).dirichlet(np.full(6, alpha), 40_000)
    assert_allclose(ordered_dirichlet(6, alpha), np.sort(drawn, axis=1)[:, ::-1].mean(axis=0), atol=0.005)


@pytest.mark.parametrize("kind", LEAST)
def test_small_parameters_are_one_class_and_large_ones_all_alike(kind: str) -> None:
    assert_allclose(shares_of(kind, 1e-3, 8), [1, *[0] * 7], atol=0.01)
    assert_allclose(shares_of(kind, 1e4, 8), np.full(8, 1 / 8), atol=0.003)
    for parameter in FAR_APART:
        assert_allclose(shares_of(kind, parameter, 8).sum(), 1)


def test_distances_are_those_of_scipy() -> None:
    generator = np.random.default_rng(1)
    counts = generator.integers(1, 30, (3, 7)) * 1.0
    counts *= 700 / counts.sum(axis=1, keepdims=True)
    shares = generator.dirichlet(np.ones(7), 4)
    pearson = [[chisquare(row, 700 * each).statistic for each in shares] for row in counts]
    assert_allclose(chi_square(counts, shares), pearson)
    hellinger = [[euclidean(np.sqrt(row / 700), np.sqrt(each)) ** 2 / 2 for each in shares] for row in counts]
    assert_allclose(bhattacharyya(counts, shares), -np.log(1 - np.array(hellinger)))


@pytest.mark.parametrize("metric", METRICS)
def test_a_client_of_expected_shares_finds_their_parameter(metric: str) -> None:
    kind, generator = kind_of(metric), np.random.default_rng(0)
    for parameter in FAR_APART:
        counts = rearranged(np.rint(1e6 * shares_of(kind, parameter, 9)).astype(np.int64), kind, generator)
        assert metric_named(metric)(counts, int(counts.sum())) == pytest.approx(np.log(parameter), abs=0.06)


@pytest.mark.parametrize("metric", [metric for metric in METRICS if kind_of(metric) != "dirichlet"])
def test_a_client_that_was_drawn_finds_what_it_was_drawn_from(metric: str) -> None:
    kind, generator = kind_of(metric), np.random.default_rng(2)
    for parameter in FAR_APART:
        for _ in range(20):
            counts = rearranged(generator.multinomial(2000, shares_of(kind, parameter, 10)), kind, generator)
            assert 0.8 < np.exp(metric_named(metric)(counts, 2000)) / parameter < 1.25


@pytest.mark.parametrize("metric", [metric for metric in METRICS if kind_of(metric) == "dirichlet"])
def test_clients_of_a_dirichlet_scatter_around_what_they_were_drawn_from(metric: str) -> None:
    generator = np.random.default_rng(3)
    for alpha in (0.1, 1.0, 10.0):
        drawn = [generator.multinomial(2000, generator.dirichlet(np.full(20, alpha))) for _ in range(60)]
        found = [metric_named(metric)(counts, 2000) for counts in drawn]
        assert abs(np.median(found) - np.log(alpha)) < np.log(1.6)
