"""Divergences, spreads and distances; private counts and sums."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.spatial.distance import pdist
from scipy.stats import norm, pearson3, wasserstein_distance

from fedscout.detectors import DetectionConfig, statistics as metrics
from fedscout.detectors.feature_exchanges import FeatureMeasurement, decide_private_features, measure_private_features
from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew_calibrated
from fedscout.detectors.privacy import (
    check_library,
    counts_scale,
    integer_laplace,
    noise_terms,
    plausible_counts,
    private_counts,
    private_sums,
    sums_deviation,
)
from fedscout.detectors.queries import input_curvature
from fedscout.detectors.statistics import ClientTest, decide, holm, moment_matched_tail, speed_skew
from fedscout.engine.data.client import QueryInputs
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.contents import QueryAnswers
from tests.detectors.federations import (
    RecordingGrid,
    federation,
    gaussian_clients,
    inputs,
    most_alarms,
    report_of,
    samples,
)
from tests.kits.refusals import refused
from tests.search.recommenders import reports

REPEATABLE = settings(derandomize=True)


def hellinger(p: np.ndarray, q: np.ndarray) -> float:
    return float(metrics.mean_pairwise_hellinger([p, q]))


histograms = st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(any).map(metrics.distribution)


@REPEATABLE
@given(p=histograms, q=histograms)
def test_divergences_are_symmetric_and_bounded(p: np.ndarray, q: np.ndarray) -> None:
    for distance in (metrics.js_divergence, hellinger):
        assert 0 <= distance(p, q) <= 1
        assert distance(p, q) == pytest.approx(distance(q, p), abs=1e-15)
        assert distance(p, p) == metrics.kl_divergence(p, p) == 0
    # Hellinger and total variation bound each other: H² ≤ TV ≤ √2 H
    total_variation = np.abs(p - q).sum() / 2
    assert hellinger(p, q) ** 2 - 1e-12 <= total_variation <= np.sqrt(2) * hellinger(p, q) + 1e-12


def test_disjoint_distributions_are_at_the_upper_bound() -> None:
    p, q = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.25, 0.75])
    assert metrics.js_divergence(p, q) == pytest.approx(1)
    assert hellinger(p, q) == pytest.approx(1)
    assert metrics.kl_divergence(p, q) == np.inf


@pytest.mark.parametrize("num_clients", [2, 21])
def test_pairwise_means_are_means_over_pairs_of_each_feature(num_clients: int) -> None:
    features = metrics.distribution(np.random.default_rng(0).integers(1, 50, (2, 3, num_clients, 7)))
    places = 0.2 * np.arange(7)
    for index in np.ndindex(2, 3):
        shares = features[index]
        pairs = [(shares[i], shares[j]) for i in range(num_clients) for j in range(i)]
        hellinger = pdist(np.sqrt(shares)).mean() / np.sqrt(2)
        wasserstein = np.mean([wasserstein_distance(places, places, p, q) for p, q in pairs])
        divergence = np.mean([metrics.js_divergence(p, q) for p, q in pairs])
        assert metrics.mean_pairwise_hellinger(features)[index] == pytest.approx(hellinger, rel=1e-12)
        assert metrics.mean_pairwise_wasserstein(features, 0.2)[index] == pytest.approx(wasserstein, rel=1e-12)
        assert metrics.output_divergence(shares) == pytest.approx(divergence)


@pytest.mark.parametrize(
    ("sizes", "ratio", "variation", "gini"),
    [([7, 7, 7], 1, 0, 0), ([1, 3], 3, 0.5, 0.25), ([1, 2, 3, 4], 4, np.sqrt(1.25) / 2.5, 0.25)],
)
def test_quantity_skew(sizes: list[int], ratio: float, variation: float, gini: float) -> None:
    """By hand: of 1 and 3 rows the mean is 2, the deviation 1, and Gini's |1 − 3| · 2 / (2 · 4 · 2)."""
    found = metrics.count_metrics(np.array(sizes)[:, None], [])
    expected = {"quantity_ratio": ratio, "quantity_variation": variation, "quantity_gini": gini}
    assert {name: found[name] for name in expected} == pytest.approx(expected)


@REPEATABLE
@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=20))
def test_gini_is_half_the_relative_mean_difference(sizes: list[int]) -> None:
    values = np.array(sizes, dtype=float)
    by_definition = np.abs(values[:, None] - values).sum() / (2 * len(values) ** 2 * values.mean())
    assert metrics.gini(sizes) == pytest.approx(by_definition, abs=1e-12)
    assert 0 <= metrics.gini(sizes) + 1e-12 <= (len(values) - 1) / len(values) + 2e-12


@pytest.mark.parametrize(("present", "classes", "index"), [(10, 10, 0), (4, 10, 1 - 3 / 9), (1, 2, 1), (1, 1, 0)])
def test_heterogeneity_index(present: int, classes: int, index: float) -> None:
    assert metrics.heterogeneity_index(present, classes) == pytest.approx(index)


def test_distances_are_of_the_pairs_alone_and_without_any_there_are_none() -> None:
    counts = np.array([[10, 0], [0, 30], [5, 5]])
    found, alone = metrics.count_metrics(counts, counts[:2]), metrics.count_metrics(counts, counts[:1])
    assert (found["quantity_ratio"], found["label_hellinger"]) == (3, pytest.approx(1))  # 30 : 10; disjoint labels
    assert (alone["label_hellinger"], alone["label_wasserstein"]) == (None, None)
    assert metrics.count_metrics(counts[:0], counts[:0]) == {}


# -- What calibrated decisions share: correction over clients, tails of quadratic forms, who decides -------------------


def test_holm_by_hand() -> None:
    """Ascending .01 .02 .03 .5 times 4 3 2 1 is .04 .06 .06 .5, none below the one before."""
    np.testing.assert_allclose(holm(np.array([0.02, 0.5, 0.01, 0.03])), [0.06, 0.5, 0.04, 0.06])
    np.testing.assert_allclose(holm(np.array([0.6, 0.9])), [1.0, 1.0])


def test_the_matched_distribution_is_pearsons_third_type_below_its_support_too() -> None:
    values, (mean, variance, third) = np.array([-20.0, 0.0, 5.9, 6.1, 10.0, 25.0]), (10.0, 4.0, 4.0)
    expected = pearson3.sf(values, third / variance**1.5, mean, np.sqrt(variance))
    assert expected[0] == 1.0
    np.testing.assert_allclose(moment_matched_tail(values, mean, variance, third), expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("known", "flagged", "p_value", "effect"),
    [
        # Client 5 is the surer one, yet its effect did not suffice; clients 2 and 6 are at the limits of both.
        ({5: (0.001, 0.01), 3: (0.004, 0.9), 1: (0.5, 0.1), 2: (0.01, 0.5), 6: (0.0101, 0.9)}, (2, 3), 0.004, 0.9),
        ({1: (0.2, 0.1), 2: (0.2, 0.3), 3: (0.9, 0.8)}, (), 0.2, 0.3),
    ],
    ids=["who stands out most of the flagged", "without a flag the likeliest, of equals the larger effect"],
)
def test_whose_numbers_a_decision_tells(
    known: dict[int, tuple[float, float]], flagged: tuple[int, ...], p_value: float, effect: float
) -> None:
    p_values, effects = ({client: pair[place] for client, pair in known.items()} for place in (0, 1))
    test = ClientTest(p_values, effects, {}, "labels", "a test")
    finding = decide("outliers", [(test, 0.5)], 0.01, lambda client, *_: f"Client {client}")
    assert (finding.detected, finding.flagged_clients, finding.method) == (bool(flagged), flagged, "a test")
    assert (finding.p_value, finding.effect) == (p_value, effect)


# -- How unlike clients are in speed -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "slowest", "median", "ratio", "is_told"),
    [
        ({4: 3.0, 5: 30.0, 0: 10.0, 1: 2.0, 2: 4.0, 3: 30.0, 6: 4.0}, 3, 4.0, 7.5, True),  # of equals the first
        ({0: 0.0, 1: 0.0, 2: 5.0}, 2, 0.0, None, True),
        ({0: 10.0, 1: 10.0, 2: 10.4}, 2, 10.0, 1.04, False),  # about as quick as the others
        ({0: 10.0, 1: 10.0, 2: 10.6}, 2, 10.0, 1.06, True),
    ],
)
def test_the_slowest_against_the_median(
    seconds: dict[int, float], slowest: int, median: float, ratio: float | None, is_told: bool
) -> None:
    found = speed_skew(seconds)
    assert (found.slowest, found.slowest_seconds, found.median_seconds) == (slowest, max(seconds.values()), median)
    assert found.ratio == pytest.approx(ratio) if ratio else found.ratio is None
    report = reports.report_of().model_copy(update={"speed_skew": found})
    assert (found.sentence in report.further_sentences) == found.is_notable == is_told
    assert speed_skew({}) is speed_skew({0: 0.0, 1: 0.0}) is None


# -- The input curvature: the largest eigenvalue of E[x xᵀ], and the step that it allows -------------------------------


def curvature_of(rows: np.ndarray, shown: np.ndarray | None = None) -> float:
    inputs = QueryInputs(samples(rows if shown is None else shown), 2, {}, {}, model_inputs=samples(rows))
    answer = input_curvature(inputs)["curvature"]
    assert answer.rows == len(rows)
    return float(answer.values[0])


@pytest.mark.parametrize("shape", [(40, 7), (30, 3, 4, 5)], ids=["more rows than columns", "pictures"])
def test_it_is_the_squared_largest_singular_value(shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = np.linalg.norm(rows.reshape(len(rows), -1), ord=2) ** 2 / len(rows)
    assert curvature_of(rows) == pytest.approx(expected, rel=0.02)
    assert curvature_of(2 * rows, shown=rows) == pytest.approx(4 * curvature_of(rows), rel=1e-6)  # not of embeddings
    for most, has_one in ((900, False), (2, True)):  # numbers of tokens have none
        whole = np.random.default_rng(0).integers(0, most, size=(20, 8))
        assert np.isfinite(curvature_of(whole)) == has_one


# -- Private counts and sums: sensitivities, noise of the stated size, both sources, and what is asked -----------------


RATE = 0.05


def terms(epsilon: float = 1.0, source: str = "seeded", seed: int = 0) -> dict[str, Any]:
    return noise_terms(DetectionConfig(epsilon=epsilon, delta=1e-6, clip=3.0, noise=source), seed)  # type: ignore[arg-type]


def ask(own: dict[str, Any], rows: int = 50, num_features: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    features, labels = np.full((rows, num_features), 1.0), np.arange(rows) % 2
    asked = inputs(samples(features, labels), config=own)
    sums = private_sums(asked)
    return private_counts(asked)["counts"].values, sums["sum"].values, sums["squares"].values


def test_the_scales_of_counts_and_sums() -> None:
    """An exchanged row changes two counts by one: 2 / ε; counts have half of ε.

    Sums: proportional to the sensitivity √(2d), and below the classical √(2 ln(1.25/δ)) Δ/ε, which is no tight bound.
    """
    assert counts_scale(1.0) == pytest.approx(4.0)
    small, large = sums_deviation(1.0, 1e-6, 2), sums_deviation(1.0, 1e-6, 200)
    assert large == pytest.approx(10 * small, rel=1e-3)
    assert 2 / 0.5 < small < np.sqrt(2 * np.log(1.25e6)) * 2 / 0.5


@pytest.mark.parametrize("scale", [0.5, 4.0])
def test_integer_laplace_noise_has_its_variance(scale: float) -> None:
    """2 q / (1 − q)² with q = exp(−1/scale); a sample's variance has a standard deviation of about √(5/n) of it."""
    noise = integer_laplace(scale, (40_000,), np.random.default_rng(0))
    q = np.exp(-1 / scale)
    assert noise.mean() == pytest.approx(0, abs=4 * np.sqrt(2 * q / (1 - q) ** 2 / 40_000))
    assert noise.var() == pytest.approx(2 * q / (1 - q) ** 2, rel=5 * np.sqrt(5 / 40_000) + 0.03)


@pytest.mark.parametrize(("source", "repeated"), [("seeded", True), ("secure", False)])
def test_noise_is_repeated_only_from_a_seed(source: str, repeated: bool) -> None:
    first, again, other = (
        inputs(samples(np.zeros((40, 1))), num_classes=40, config=terms(source=source, seed=seed)) for seed in (1, 1, 2)
    )
    for query, name in ((private_counts, "counts"), (private_sums, "sum"), (private_sums, "squares")):
        found, same, unlike = (query(asked)[name].values for asked in (first, again, other))
        assert np.array_equal(found, same) == repeated
        assert (found != unlike).any()


@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_noise_is_as_large_as_its_terms_say(source: str) -> None:
    """Over 4000 features a deviation is found to one part in √8000, and Σx/(2B) and Σx²/B² have the same.

    At ε = 1000 a count's scale is 0.004. Rows of 100 count as 3.
    """
    own = terms(epsilon=2.0, source=source)
    _, sums, squares = ask(own, num_features=4000)
    expected = pytest.approx(sums_deviation(2.0, 1e-6, 4000), rel=5 / np.sqrt(8000))
    assert np.std(sums - 50) / 6 == expected
    assert np.std(squares - 50) / 9 == expected
    np.testing.assert_array_equal(ask(terms(epsilon=1000.0, source=source))[0], [25, 25])
    asked = inputs(samples(np.full((50, 1), 100.0)), config=terms(epsilon=1000.0, source=source))
    assert private_sums(asked)["sum"].values == pytest.approx(150, abs=8)


def test_clients_of_other_rows_add_other_noise() -> None:
    """Also where rows differ in the last bit of a value."""
    values = np.arange(2**23, 2**23 + 300, dtype=np.float32)
    config = terms(epsilon=1000.0)
    asked = [inputs(samples(np.full((1, 1), value)), config=config) for value in values]  # all are clipped to 3
    assert len({float(private_sums(own)["sum"].values[0]) for own in asked}) == len(values)


@given(st.lists(st.integers(-20, 50), min_size=2, max_size=6), st.integers(1, 90))
def test_plausible_counts_add_up(noisy: list[int], rows: int) -> None:
    """Each client's by themselves; of equal classes the first have one row more."""
    counts = plausible_counts(np.array(noisy), np.array(rows))
    assert (counts >= 0).all()
    assert counts.sum() == rows
    np.testing.assert_array_equal(plausible_counts(counts, np.array(rows)), counts)  # without noise nothing changes
    both = plausible_counts(np.array([noisy, np.ones_like(noisy)]), np.array([rows, 1]))
    np.testing.assert_array_equal(both, [counts, np.arange(len(noisy)) == 0])
    assert plausible_counts(np.array([-3, 0, -1]), np.array(4)).tolist() == [2, 1, 1]


@pytest.mark.slow
def test_label_alarms_keep_to_the_rate_under_noise() -> None:
    """Ten clients of 60 rows; noise of scale 4 is as large as what a row's chance makes of a class."""
    generator = np.random.default_rng(0)
    federations, alarms, scale = 150, 0, 4.0
    for index in range(federations):
        table = generator.multinomial(60, [0.5, 0.3, 0.2], size=10)
        table = plausible_counts(table + integer_laplace(scale, table.shape, generator), table.sum(axis=1))
        told = ReleasedCounts.exact(dict(enumerate(table)))
        alarms += decide_label_skew_calibrated(told, RATE, 0.0, index, scale).detected
    assert alarms <= most_alarms(federations, RATE)


def test_feature_alarms_keep_to_the_rate_under_noise() -> None:
    """Six clients of 100 rows in four features, noise twice as large as the sampling error."""
    generator = np.random.default_rng(0)
    federations, alarms, noise = 1000, 0, (20.0, 30.0)
    for _ in range(federations):
        rows = generator.normal(size=(6, 100, 4))
        sums = rows.sum(axis=1) + noise[0] * generator.normal(size=(6, 4))
        squares = (rows**2).sum(axis=1) + noise[1] * generator.normal(size=(6, 4))
        told = dict(enumerate(sums)), dict(enumerate(squares)), dict.fromkeys(range(6), 100)
        alarms += decide_private_features(*told, noise, RATE, 0.0).detected
    assert alarms <= most_alarms(federations, RATE)


SUM_NOISE, SQUARES_NOISE = np.sqrt(400 / 11), 100 / np.sqrt(3)
"""With 400 rows of three clients the latter adds 2 √3 · 100 / √3 / 400 = 0.5 to variances."""


def three_clients() -> tuple[dict[int, np.ndarray], dict[int, np.ndarray], dict[int, int]]:
    """Return sums, squares and rows of clients whose first feature is 0.2, −0.2 and 0 on average and whose second is 3.

    Variances, noise included, are 1.
    """
    rows = {4: 100, 5: 100, 9: 200}
    sums = {4: np.array([20.0, 300.0]), 5: np.array([-20.0, 300.0]), 9: np.array([0.0, 600.0])}
    return sums, {client: own * np.array([0.5, 9.5]) for client, own in rows.items()}, rows


def test_private_features_in_closed_form() -> None:
    """The first two clients: z = 20 / √(100 · 3/4 + 400/11 (9/16 + 2/16)) = 2, two features, Holm over three clients.

    Their effect is √(0.2² / 2 − 1/100 − 400/11 / 100²); the third has none.
    """
    finding = decide_private_features(*three_clients(), (SUM_NOISE, SQUARES_NOISE), RATE, 0.0)
    p_value, effect = 3 * 2 * 2 * norm.sf(2), np.sqrt(0.02 - 0.01 - 4 / 1100)
    found = [(evidence.p_value, evidence.effect) for evidence in finding.clients.values()]
    assert list(finding.clients) == [4, 5, 9]
    np.testing.assert_allclose(found, [(p_value, effect), (p_value, effect), (1, 0)], rtol=1e-6)


def test_private_features_know_the_noise_of_their_terms() -> None:
    """A sum is told in 2B, a square in B², of which the terms give the noise."""
    sums, squares, rows = three_clients()
    settings = DetectionConfig(epsilon=20.0, clip=5.0)

    def measured(clients: tuple[int, ...], alike: tuple[int, ...] = (4, 5, 9)) -> FeatureMeasurement:
        conversation = measure_private_features((4, 5, 9), settings, 0, alike)
        ((query,), _) = next(conversation)
        assert query.config == noise_terms(settings, 0)
        arrays = {client: {"sum": sums[client], "squares": squares[client]} for client in clients}
        with pytest.raises(StopIteration) as stop:
            conversation.send(([QueryAnswers(arrays, rows, {})], []))
        return stop.value.value

    whole = measured((4, 5, 9))
    noise = sums_deviation(20.0, 1e-6, 2) * 10.0, sums_deviation(20.0, 1e-6, 2) * 25.0
    rate = settings.detector_rate
    assert whole.calibrated == decide_private_features(sums, squares, rows, noise, rate, settings.feature_effect)
    assert (whole.finding.value, whole.finding.threshold, whole.num_features) == (None, 0, 2)
    assert not measured((4,)).calibrated.measured
    assert measured((4, 5)).calibrated.measured
    nobody = measured(())
    assert (nobody.calibrated.measured, nobody.num_features) == (False, None)
    assert not measured((4, 5, 9), alike=()).calibrated.measured


def test_nothing_but_noisy_aggregates_and_models_is_asked_for() -> None:
    clients = gaussian_clients([400] * 5)
    clients[1][0][:] += 2.0
    grid = RecordingGrid(federation(clients))
    report = report_of(grid, epsilon=20.0, clip=5.0)
    asked = {config["function"] for kind, _, config in grid.sent if kind == "query"}
    assert asked == {"private_counts", "private_sums"}
    assert report.calibrated_finding("feature_skew").flagged_clients == (1,)
    assert not report.feature_skew.measured
    assert report.notes
    assert report_of(grid, epsilon=20.0, clip=5.0).without_timings() == report.without_timings()


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(ConfigurationError, key="detection.epsilon"):
        check_library()
