"""Closed forms and laws of the divergences, spreads and distances."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, pearson3, wasserstein_distance

from fedscout.detectors import statistics as metrics
from fedscout.detectors.queries import input_curvature
from fedscout.detectors.report import CalibratedFinding, ClientEvidence, DetectionConfig, ReportedMetrics
from fedscout.detectors.statistics import ClientTest, decide, holm, moment_matched_tail, speed_skew
from fedscout.engine.data.client import QueryInputs, Samples
from tests.search.recommenders.reports import report_of

REPEATABLE = settings(derandomize=True, deadline=None)


def test_each_row_is_a_distribution_of_its_own() -> None:
    np.testing.assert_allclose(metrics.distribution([[1, 3], [2, 0], [5, 5]]), [[0.25, 0.75], [1, 0], [0.5, 0.5]])


histograms = st.lists(st.integers(0, 1000), min_size=5, max_size=5).filter(any).map(metrics.distribution)


@REPEATABLE
@given(p=histograms, q=histograms)
def test_divergences_are_symmetric_and_bounded(p: np.ndarray, q: np.ndarray) -> None:
    for distance in (metrics.js_divergence, metrics.hellinger):
        assert 0 <= distance(p, q) <= 1
        assert distance(p, q) == pytest.approx(distance(q, p), abs=1e-15)
    # Hellinger and total variation bound each other: H² ≤ TV ≤ √2 H
    total_variation = np.abs(p - q).sum() / 2
    assert metrics.hellinger(p, q) ** 2 <= total_variation + 1e-12
    assert total_variation <= np.sqrt(2) * metrics.hellinger(p, q) + 1e-12


@REPEATABLE
@given(p=histograms)
def test_equal_distributions_have_no_distance(p: np.ndarray) -> None:
    assert metrics.js_divergence(p, p) == 0
    assert metrics.hellinger(p, p) == 0
    assert metrics.kl_divergence(p, p) == 0


def test_disjoint_distributions_are_at_the_upper_bound() -> None:
    p, q = np.array([0.5, 0.5, 0, 0]), np.array([0, 0, 0.25, 0.75])
    assert metrics.js_divergence(p, q) == pytest.approx(1)
    assert metrics.hellinger(p, q) == pytest.approx(1)
    assert metrics.kl_divergence(p, q) == np.inf


def test_js_is_the_divergence_and_not_its_root() -> None:
    from scipy.spatial.distance import jensenshannon

    p, q = np.array([0.2, 0.3, 0.5]), np.array([0.6, 0.3, 0.1])
    assert metrics.js_divergence(p, q) == pytest.approx(jensenshannon(p, q, base=2) ** 2)


@pytest.mark.parametrize("num_clients", [2, 21])
def test_pairwise_means_are_means_over_pairs(num_clients: int) -> None:
    shares = metrics.distribution(np.random.default_rng(0).integers(1, 50, (num_clients, 7)))
    pairs = [(shares[i], shares[j]) for i in range(num_clients) for j in range(i)]
    assert metrics.mean_pairwise_hellinger(shares) == pytest.approx(
        np.mean([metrics.hellinger(p, q) for p, q in pairs]), rel=1e-12
    )
    assert metrics.mean_pairwise_wasserstein(shares, 0.2) == pytest.approx(
        np.mean([wasserstein_distance(0.2 * np.arange(7), 0.2 * np.arange(7), p, q) for p, q in pairs]), rel=1e-12
    )
    assert metrics.output_divergence(shares) == pytest.approx(np.mean([metrics.js_divergence(p, q) for p, q in pairs]))


def test_pairwise_means_of_many_features_are_those_of_each() -> None:
    shares = metrics.distribution(np.random.default_rng(1).integers(0, 9, (2, 3, 4, 6)))
    hellinger = metrics.mean_pairwise_hellinger(shares)
    wasserstein = metrics.mean_pairwise_wasserstein(shares, 0.5)
    assert hellinger.shape == wasserstein.shape == (2, 3)
    for index in np.ndindex(2, 3):
        assert hellinger[index] == pytest.approx(float(metrics.mean_pairwise_hellinger(shares[index])), rel=1e-14)
        alone = float(metrics.mean_pairwise_wasserstein(shares[index], 0.5))
        assert wasserstein[index] == pytest.approx(alone, rel=1e-14)


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


@pytest.mark.parametrize(
    ("present", "classes", "index"), [(10, 10, 0), (1, 10, 1), (4, 10, 1 - 3 / 9), (1, 2, 1), (1, 1, 0)]
)
def test_heterogeneity_index(present: int, classes: int, index: float) -> None:
    assert metrics.heterogeneity_index(present, classes) == pytest.approx(index)


@REPEATABLE
@given(st.lists(st.lists(st.integers(0, 50), min_size=4, max_size=4).filter(any), min_size=2, max_size=6))
def test_label_wasserstein_is_the_mean_of_scipys_over_pairs_on_class_numbers(tables: list[list[int]]) -> None:
    classes = np.arange(4)
    pairs = [wasserstein_distance(classes, classes, p, q) for p, q in itertools.combinations(tables, 2)]
    assert metrics.count_metrics(tables, tables)["label_wasserstein"] == pytest.approx(np.mean(pairs), abs=1e-12)


def test_what_counts_tell_has_the_names_of_the_report() -> None:
    counts = np.array([[10, 0], [0, 30], [5, 5]])
    found = metrics.count_metrics(counts, counts[:2])
    assert set(found) < set(ReportedMetrics.model_fields)
    assert (found["quantity_ratio"], found["label_hellinger"]) == (3, pytest.approx(1))  # 30 : 10; disjoint labels
    alone = metrics.count_metrics(counts, counts[:1])
    assert (alone["label_hellinger"], alone["label_wasserstein"]) == (None, None)
    assert metrics.count_metrics(counts[:0], counts[:0]) == {}


# -- What calibrated decisions share: correction over clients, tails of quadratic forms, words -------------------------


LEAST = 0.5


def told(
    known: dict[int, tuple[float, float]], describe: Callable[[int, ClientEvidence], str], remark: str = ""
) -> CalibratedFinding:
    """Return what is decided of clients' p-values and effects, of which `LEAST` suffices."""
    p_values, effects = ({client: pair[place] for client, pair in known.items()} for place in (0, 1))
    test = ClientTest(p_values, effects, {}, "labels", "a test")
    return decide("outliers", [(test, LEAST)], 0.01, describe, remark)


def test_holm_by_hand() -> None:
    """Ascending .01 .02 .03 .5 times 4 3 2 1 is .04 .06 .06 .5, none below the one before."""
    np.testing.assert_allclose(holm(np.array([0.02, 0.5, 0.01, 0.03])), [0.06, 0.5, 0.04, 0.06])
    np.testing.assert_allclose(holm(np.array([0.6, 0.9])), [1.0, 1.0])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
@settings(deadline=None)
def test_holm_lies_between_no_correction_and_bonferroni(values: list[float]) -> None:
    p_values = np.array(values)
    corrected = holm(p_values)
    assert (corrected >= p_values).all()
    assert (corrected <= np.minimum(1, p_values * len(p_values)) + 1e-15).all()
    order = np.argsort(p_values, kind="stable")
    assert (np.diff(corrected[order]) >= 0).all()


@pytest.mark.parametrize("freedom", [1, 3, 200])
@pytest.mark.parametrize("scale", [0.5, 1.0, 7.0])
def test_a_scaled_chi_squared_is_matched_exactly(freedom: int, scale: float) -> None:
    """c χ²_f has the moments c f, 2 c² f and 8 c³ f, so three of them give it back."""
    values = scale * chi2.ppf([0.01, 0.5, 0.95, 0.9999], freedom)
    tail = moment_matched_tail(values, scale * freedom, 2 * scale**2 * freedom, 8 * scale**3 * freedom)
    np.testing.assert_allclose(tail, [0.99, 0.5, 0.05, 0.0001], rtol=1e-6)


def test_the_matched_distribution_is_pearsons_third_type_below_its_support_too() -> None:
    values, (mean, variance, third) = np.array([-20.0, 0.0, 5.9, 6.1, 10.0, 25.0]), (10.0, 4.0, 4.0)
    expected = pearson3.sf(values, third / variance**1.5, mean, np.sqrt(variance))
    assert expected[0] == 1.0
    np.testing.assert_allclose(moment_matched_tail(values, mean, variance, third), expected, rtol=1e-9)


def test_a_federation_divides_its_rate_among_the_detectors() -> None:
    assert 3 * DetectionConfig(false_alarm_rate=0.05).detector_rate == pytest.approx(0.05)


def test_a_decision_tells_of_the_flagged_client_that_stands_out_most() -> None:
    """Client 5 is the surer one, yet its effect did not suffice."""
    known = {5: (0.001, 0.01), 3: (0.004, 0.9), 1: (0.5, 0.1)}
    finding = told(known, lambda client, own, _: f"{client}: {own.effect}")
    assert (finding.detected, finding.flagged_clients, finding.p_value, finding.effect) == (True, (3,), 0.004, 0.9)
    assert finding.method == "a test"
    assert "3: 0.9 (p = 0.004" in finding.sentence


def test_flagged_clients_come_in_their_order() -> None:
    known = {5: (0.001, 0.9), 1: (0.5, 0.1), 3: (0.004, 0.9)}
    assert told(known, lambda *_: "").flagged_clients == (3, 5)


def test_who_is_at_both_limits_is_flagged() -> None:
    assert told({1: (0.01, LEAST), 2: (0.0101, LEAST), 3: (0.01, 0.99 * LEAST)}, lambda *_: "").flagged_clients == (1,)


def test_without_a_flag_the_likeliest_is_told_and_of_equals_the_larger_effect() -> None:
    finding = told({1: (0.2, 0.1), 2: (0.2, 0.3), 3: (0.9, 0.8)}, lambda client, *_: f"Client {client}", "More.")
    assert (finding.p_value, finding.effect, finding.detected) == (0.2, 0.3, False)
    assert "Client 2" in finding.sentence
    assert finding.sentence.endswith("More.")


# -- How unlike clients are in speed -----------------------------------------------------------------------------------


def test_the_slowest_against_the_median() -> None:
    found = speed_skew({0: 10.0, 1: 2.0, 2: 4.0, 3: 30.0, 4: 3.0})
    assert (found.slowest, found.slowest_seconds, found.median_seconds, found.ratio) == (3, 30.0, 4.0, 7.5)
    assert [value for value in ("client 3", "30 simulated seconds", "7.5 times") if value not in found.sentence] == []


def test_clients_that_take_no_time() -> None:
    assert speed_skew({}) is None
    assert speed_skew({0: 0.0, 1: 0.0}) is None
    found = speed_skew({0: 0.0, 1: 0.0, 2: 5.0})
    assert found.ratio is None
    assert "client 2 takes 5 simulated seconds" in found.sentence


def test_of_equals_the_first() -> None:
    found = speed_skew({4: 1.0, 2: 1.0})
    assert (found.slowest, found.ratio) == (2, 1.0)


@pytest.mark.parametrize(("slowest", "is_told"), [(1.0, False), (1.04, False), (1.06, True), (7.5, True)], ids=str)
def test_that_all_are_about_as_quick_is_not_worth_a_line(slowest: float, is_told: bool) -> None:
    found = speed_skew({0: 10.0, 1: 10.0, 2: 10.0 * slowest})
    assert found.is_notable == is_told
    report = report_of().model_copy(update={"speed_skew": found})
    assert (found.sentence in report.beside) == is_told
    assert report.speed_skew == found


# -- The input curvature: the largest eigenvalue of E[x xᵀ], and the step that it allows -------------------------------


def curvature_of(rows: np.ndarray, shown: np.ndarray | None = None) -> float:
    def samples(features: np.ndarray) -> Samples:
        return Samples(features.astype(np.float32), np.zeros(len(features), np.int64), np.arange(len(features)))

    inputs = QueryInputs(samples(rows if shown is None else shown), 2, {}, {}, model_inputs=samples(rows))
    answer = input_curvature(inputs)["curvature"]
    assert answer.rows == len(rows)
    return float(answer.values[0])


@pytest.mark.parametrize("shape", [(40, 7), (30, 3, 4, 5)], ids=["more rows than columns", "pictures"])
def test_it_is_the_squared_largest_singular_value(shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = np.linalg.norm(rows.reshape(len(rows), -1), ord=2) ** 2 / len(rows)
    assert curvature_of(rows) == pytest.approx(expected, rel=0.02)


def test_it_is_of_the_models_inputs_not_of_embeddings() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3))
    assert curvature_of(2 * rows, shown=rows) == pytest.approx(4 * curvature_of(rows), rel=1e-6)


def test_token_numbers_have_none() -> None:
    assert np.isnan(curvature_of(np.random.default_rng(0).integers(0, 900, size=(20, 8))))
    assert np.isfinite(curvature_of(np.random.default_rng(0).integers(0, 2, size=(20, 8))))
