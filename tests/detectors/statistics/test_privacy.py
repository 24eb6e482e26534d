"""Private counts and sums: sensitivities, noise of the stated size, both sources, and what is asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from fedscout.detectors import DetectionConfig
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
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.contents import QueryAnswers
from tests.detectors.detection.test_detect import calibrated
from tests.detectors.federations import RecordingGrid, federation, gaussian_clients, inputs, report_of, samples
from tests.detectors.rates import most_alarms
from tests.kits.refusals import refused

RATE = 0.05


def terms(epsilon: float = 1.0, source: str = "seeded", seed: int = 0) -> dict[str, Any]:
    return noise_terms(DetectionConfig(epsilon=epsilon, delta=1e-6, clip=3.0, noise=source), seed)  # type: ignore[arg-type]


def ask(own: dict[str, Any], rows: int = 50, num_features: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    features, labels = np.full((rows, num_features), 1.0), np.arange(rows) % 2
    asked = inputs(samples(features, labels), config=own)
    sums = private_sums(asked)
    return private_counts(asked)["counts"].values, sums["sum"].values, sums["squares"].values


def test_the_scale_of_counts() -> None:
    """An exchanged row changes two counts by one: 2 / ε; counts have half of ε."""
    assert counts_scale(1.0) == pytest.approx(4.0)


def test_the_scale_of_sums() -> None:
    """Proportional to the sensitivity √(2d), and below the classical √(2 ln(1.25/δ)) Δ/ε, which is no tight bound."""
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


def test_seeded_noise_is_repeated_and_differs_by_seed() -> None:
    first, again, other = ask(terms(seed=1)), ask(terms(seed=1)), ask(terms(seed=2))
    for position in range(3):
        np.testing.assert_array_equal(first[position], again[position])
    assert (first[1] != other[1]).all()


@pytest.mark.parametrize(("source", "repeated"), [("seeded", True), ("secure", False)])
def test_noise_is_repeated_only_from_a_seed(source: str, repeated: bool) -> None:
    asked = inputs(samples(np.zeros((40, 1))), num_classes=40, config=terms(source=source))
    for query, name in ((private_counts, "counts"), (private_sums, "sum"), (private_sums, "squares")):
        first, again = (query(asked)[name].values for _ in range(2))
        assert np.array_equal(first, again) == repeated


@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_noise_is_as_large_as_its_terms_say(source: str) -> None:
    """Over 4000 features a deviation is found to one part in √8000, and Σx/(2B) and Σx²/B² have the same."""
    own = terms(epsilon=2.0, source=source)
    _, sums, squares = ask(own, num_features=4000)
    expected = pytest.approx(sums_deviation(2.0, 1e-6, 4000), rel=5 / np.sqrt(8000))
    assert np.std(sums - 50) / 6 == expected
    assert np.std(squares - 50) / 9 == expected


def test_clients_of_other_rows_add_other_noise() -> None:
    """Also where rows differ in the last bit of a value."""
    values = np.arange(2**23, 2**23 + 300, dtype=np.float32)
    config = terms(epsilon=1000.0)
    asked = [inputs(samples(np.full((1, 1), value)), config=config) for value in values]  # all are clipped to 3
    assert len({float(private_sums(own)["sum"].values[0]) for own in asked}) == len(values)


@pytest.mark.parametrize("source", ["seeded", "secure"])
def test_noise_vanishes_with_a_large_epsilon(source: str) -> None:
    """At ε = 1000 a count's scale is 0.004, and a sum's deviation is below 6 · 2 · 0.1."""
    counts, sums, squares = ask(terms(epsilon=1000.0, source=source))
    np.testing.assert_array_equal(counts, [25, 25])
    np.testing.assert_allclose(sums, 50, atol=8)
    np.testing.assert_allclose(squares, 50, atol=12)


def test_features_are_clipped() -> None:
    """Rows of 100 count as 3."""
    asked = inputs(samples(np.full((50, 1), 100.0)), config=terms(epsilon=1000.0))
    assert private_sums(asked)["sum"].values == pytest.approx(150, abs=8)


@given(st.lists(st.integers(-20, 50), min_size=2, max_size=6), st.integers(1, 90))
def test_plausible_counts_add_up(noisy: list[int], rows: int) -> None:
    counts = plausible_counts(np.array(noisy), np.array(rows))
    assert (counts >= 0).all()
    assert counts.sum() == rows


def test_each_client_s_counts_are_made_plausible_by_themselves() -> None:
    generator = np.random.default_rng(0)
    noisy, rows = generator.integers(-9, 40, size=(30, 5)), generator.integers(1, 90, size=30)
    alone = [plausible_counts(own, np.array(count)) for own, count in zip(noisy, rows, strict=True)]
    np.testing.assert_array_equal(plausible_counts(noisy, rows), alone)


def test_of_equal_classes_the_first_have_one_row_more() -> None:
    assert plausible_counts(np.ones(40), np.array(60)).tolist() == [2] * 20 + [1] * 20
    assert plausible_counts(np.array([-3, 0, -1]), np.array(4)).tolist() == [2, 1, 1]


@given(st.lists(st.integers(0, 50), min_size=2, max_size=6).filter(any))
def test_counts_without_noise_are_plausible(counts: list[int]) -> None:
    np.testing.assert_array_equal(plausible_counts(np.array(counts), np.array(sum(counts))), counts)


@pytest.mark.slow
def test_label_alarms_keep_to_the_rate_under_noise() -> None:
    """Ten clients of 60 rows; noise of scale 4 is as large as what a row's chance makes of a class."""
    generator = np.random.default_rng(0)
    federations, alarms, scale = 150, 0, 4.0
    for index in range(federations):
        table = generator.multinomial(60, [0.5, 0.3, 0.2], size=10)
        table = plausible_counts(table + integer_laplace(scale, table.shape, generator), table.sum(axis=1))
        alarms += decide_label_skew_calibrated(
            ReleasedCounts.whole(dict(enumerate(table))), RATE, 0.0, index, scale
        ).detected
    assert alarms <= most_alarms(federations, RATE)


def test_feature_alarms_keep_to_the_rate_under_noise() -> None:
    """Six clients of 100 rows in four features, noise twice as large as the sampling error."""
    generator = np.random.default_rng(0)
    federations, alarms, noise = 1000, 0, (20.0, 30.0)
    for _ in range(federations):
        rows = generator.normal(size=(6, 100, 4))
        sums = rows.sum(axis=1) + noise[0] * generator.normal(size=(6, 4))
        squares = (rows**2).sum(axis=1) + noise[1] * generator.normal(size=(6, 4))
        known = dict.fromkeys(range(6), 100)
        alarms += decide_private_features(
            dict(enumerate(sums)), dict(enumerate(squares)), known, noise, RATE, 0.0
        ).detected
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
    p_value = 3 * 2 * 2 * norm.sf(2)
    p_values = {client: evidence.p_value for client, evidence in finding.clients.items()}
    assert p_values == pytest.approx({4: p_value, 5: p_value, 9: 1})
    effect = np.sqrt(0.02 - 0.01 - 4 / 1100)
    effects = {client: evidence.effect for client, evidence in finding.clients.items()}
    assert effects == pytest.approx({4: effect, 5: effect, 9: 0})


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
        found: FeatureMeasurement = stop.value.value
        return found

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
    clients = [
        (features + 2.0 * (client == 1), labels)
        for client, (features, labels) in enumerate(gaussian_clients([400] * 5))
    ]
    grid = RecordingGrid(federation(clients))
    report = report_of(grid, epsilon=20.0, clip=5.0)
    asked = {config["function"] for kind, _, config in grid.sent if kind == "query"}
    assert asked == {"private_counts", "private_sums"}
    assert calibrated(report)["feature_skew"].flagged_clients == (1,)
    assert not report.feature_skew.measured
    assert any("ε" in note or "epsilon" in note for note in report.notes)
    assert report_of(grid, epsilon=20.0, clip=5.0).without_timings() == report.without_timings()


def test_a_missing_library_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with refused(ConfigurationError, key="detection.epsilon"):
        check_library()
