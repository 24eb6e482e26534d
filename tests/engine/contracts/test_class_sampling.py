"""Class samplings: shares by closed forms, distances by SciPy's, and clients that find their own parameter."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import euclidean
from scipy.stats import chisquare

from fedscout.engine.contracts.class_sampling import (
    ClassSampling,
    Distance,
    Sampling,
    bhattacharyya,
    chi_square,
    ordered_dirichlet,
    sampling_distances,
    sampling_parameter,
)
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.settings_lookup import SAMPLINGS, SettingsLookup, metric_named
from fedscout.engine.contracts.settings_table import SettingsCell, SettingsTable

KINDS: tuple[Sampling, ...] = ("gaussian", "poisson", "dirichlet")
DISTANCES: tuple[Distance, ...] = ("chi_square", "bhattacharyya")
FAR_APART = (0.4, 1.0, 3.0)


def arranged(counts: np.ndarray, sampling: ClassSampling, generator: np.random.Generator) -> np.ndarray:
    """Return counts from another class onwards, or of other classes: a client's own numbering says nothing."""
    return np.roll(counts, generator.integers(len(counts))) if sampling.is_turned else generator.permutation(counts)


def test_expected_ordered_shares_are_known_where_shares_are_uniform() -> None:
    # The k-th largest of C spacings of the unit interval has the mean (1/C) (1/k + … + 1/C).
    for num_classes in (2, 5, 12):
        harmonic = [sum(1 / j for j in range(k, num_classes + 1)) / num_classes for k in range(1, num_classes + 1)]
        assert_allclose(ordered_dirichlet(num_classes, 1.0), harmonic, atol=1e-6)


@pytest.mark.parametrize("alpha", [0.05, 0.3, 4.0])
def test_expected_ordered_shares_are_the_mean_of_draws(alpha: float) -> None:
    drawn = np.random.default_rng(0).dirichlet(np.full(6, alpha), 40_000)
    assert_allclose(ordered_dirichlet(6, alpha), np.sort(drawn, axis=1)[:, ::-1].mean(axis=0), atol=0.005)


@pytest.mark.parametrize("kind", KINDS)
def test_small_parameters_are_one_class_and_large_ones_all_alike(kind: Sampling) -> None:
    assert_allclose(ClassSampling(kind, 1e-3).shares(8), [1, *[0] * 7], atol=0.01)
    assert_allclose(ClassSampling(kind, 1e4).shares(8), np.full(8, 1 / 8), atol=0.003)
    for parameter in FAR_APART:
        assert_allclose(ClassSampling(kind, parameter).shares(8).sum(), 1)


def test_distances_are_those_of_scipy() -> None:
    generator = np.random.default_rng(1)
    counts = generator.integers(1, 30, (3, 7)) * 1.0
    counts *= 700 / counts.sum(axis=1, keepdims=True)
    shares = generator.dirichlet(np.ones(7), 4)
    pearson = [[chisquare(row, 700 * each).statistic for each in shares] for row in counts]
    assert_allclose(chi_square(counts, shares), pearson)
    hellinger = [[euclidean(np.sqrt(row / 700), np.sqrt(each)) ** 2 / 2 for each in shares] for row in counts]
    assert_allclose(bhattacharyya(counts, shares), -np.log(1 - np.array(hellinger)))


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_sampling_expects_is_at_distance_zero_to_it_alone(kind: Sampling, distance: Distance) -> None:
    samplings = [ClassSampling(kind, parameter) for parameter in FAR_APART]
    shares = np.array([sampling.shares(9) for sampling in samplings])
    for place, sampling in enumerate(samplings):
        expected = arranged(1000 * sampling.shares(9), sampling, np.random.default_rng(place))
        found = sampling_distances(kind, distance, expected, shares)
        assert_allclose(found[place], 0, atol=1e-9)
        assert (np.delete(found, place) > 1e-3).all()


@pytest.mark.parametrize("distance", DISTANCES)
@pytest.mark.parametrize("kind", ["gaussian", "poisson"])
def test_a_client_that_was_drawn_is_nearest_to_what_it_was_drawn_from(kind: Sampling, distance: Distance) -> None:
    generator = np.random.default_rng(2)
    shares = np.array([ClassSampling(kind, parameter).shares(10) for parameter in FAR_APART])
    for place, parameter in enumerate(FAR_APART):
        sampling = ClassSampling(kind, parameter)
        for _ in range(20):
            counts = arranged(generator.multinomial(2000, sampling.shares(10)), sampling, generator)
            assert np.argmin(sampling_distances(kind, distance, counts, shares)) == place
            assert 0.8 < sampling_parameter(kind, distance, counts) / parameter < 1.25


def test_clients_of_a_dirichlet_scatter_around_what_they_were_drawn_from() -> None:
    generator = np.random.default_rng(3)
    for alpha in (0.1, 1.0, 10.0):
        drawn = [generator.multinomial(2000, generator.dirichlet(np.full(20, alpha))) for _ in range(60)]
        for distance in DISTANCES:
            found = np.log([sampling_parameter("dirichlet", distance, counts) for counts in drawn])
            assert abs(np.median(found) - np.log(alpha)) < np.log(1.6)


@pytest.mark.parametrize("name", SAMPLINGS)
def test_a_table_of_parameters_is_looked_up_in_log_space(name: str) -> None:
    cells = [SettingsCell(parameter, 100, rate, 8, 1) for parameter, rate in ((0.2, 0.1), (1.0, 0.2), (5.0, 0.3))]
    lookup = SettingsLookup(SettingsTable(tuple(cells), threshold=0.2), name)
    kind, _ = SAMPLINGS[name]
    for parameter, rate in ((0.2, 0.1), (0.6, 0.2), (1.6, 0.2), (5.0, 0.3)):
        counts = np.rint(100 * ClassSampling(kind, parameter).shares(10)).astype(np.int64)
        counts[0] += 100 - counts.sum()
        assert lookup.settings(LocalTraining(), counts).learning_rate == rate
    one_class = np.array([100, *[0] * 9])
    assert lookup.says_far(one_class, seed=0, client=0) == (metric_named(name)(one_class, 100) < 0.2 / 5**0.4)


@pytest.mark.parametrize("counts", [[0, 0], [5]])
def test_no_rows_and_one_class_are_refused(counts: list[int]) -> None:
    with pytest.raises(ValueError, match="needs rows and two classes or more"):
        sampling_parameter("gaussian", "chi_square", np.array(counts))
