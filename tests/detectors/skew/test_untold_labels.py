"""Label counts of clients that leave small classes out: hiding creates no evidence."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedscout.detectors.label_skew import ReleasedCounts, decide_label_skew, decide_label_skew_calibrated
from fedscout.detectors.report import DetectionConfig
from fedscout.detectors.statistics import distribution, js_divergence, kl_divergence
from fedscout.engine.data.client import release_counts
from tests.detectors.federations import federation, report_of
from tests.detectors.rates import most_alarms

RATE = 0.05
TABLES = arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=st.integers(0, 30)).filter(
    lambda table: (table.sum(axis=1) > 0).all()
)


def released(table: np.ndarray, min_release: int = 5) -> ReleasedCounts:
    """Return what clients of these counts tell, those left out that hold too few rows to answer."""
    table = table[table.sum(axis=1) >= min_release]
    least = np.full(len(table), min_release)
    return ReleasedCounts(tuple(range(len(table))), release_counts(table, min_release), table.sum(axis=1), least)


def information(table: np.ndarray) -> float:
    """Return the mutual information of client and class, times the rows, in bits."""
    return float(table.sum(axis=1) @ kl_divergence(distribution(table), distribution(table.sum(axis=0))))


@given(TABLES, st.integers(1, 9))
def test_what_clients_hold_agrees_with_what_they_tell(table: np.ndarray, min_release: int) -> None:
    """The limits hold for every table, and so do they for its completion, which adds up to the clients' rows."""
    counts = released(table, min_release)
    table = table[table.sum(axis=1) >= min_release]
    low, high = counts.limits()
    assert ((low <= table) & (table <= high)).all()
    whole = counts.completed()
    np.testing.assert_allclose(whole.sum(axis=1), table.sum(axis=1), rtol=1e-9)
    assert ((low <= whole) & (whole <= high)).all()
    np.testing.assert_array_equal(released(table, 1).completed(), table)


@given(TABLES, st.integers(2, 9))
def test_no_table_that_agrees_with_what_is_told_makes_clients_more_alike(table: np.ndarray, min_release: int) -> None:
    """The clients' own table is one that agrees."""
    counts = released(table, min_release)
    if len(counts.clients):
        table = table[table.sum(axis=1) >= min_release]
        assert information(counts.completed()) <= information(table) + 1e-4


@settings(max_examples=30)
@given(TABLES, st.integers(2, 9))
def test_no_client_looks_more_unlike_the_others_than_it_is(table: np.ndarray, min_release: int) -> None:
    """By the information of it and all others in the table of these two, which completion minimises.

    The published divergence weighs both sides equally where information weighs them by rows, so its least value lies a
    little elsewhere.
    """
    counts = released(table, min_release)
    if len(counts.clients) < 2:
        return
    table = table[table.sum(axis=1) >= min_release]
    pairs = np.stack([table, table.sum(axis=0) - table], axis=1)
    for completed, own in zip(counts.against_others(), pairs, strict=True):
        assert information(completed) <= information(own) + 1e-3
    finding = decide_label_skew(counts, 0.1)
    divergences = js_divergence(distribution(table), distribution(table.sum(axis=0)))
    assert all(finding.client_values[client] <= value + 0.005 for client, value in enumerate(divergences))


@pytest.mark.parametrize(
    ("told", "rows", "low", "high"),
    [
        ([25, 0], 30, [25, 0], [29, 4]),  # one row takes four of the others with it
        ([0, 25, 0], 31, [0, 25, 0], [5, 25, 4]),  # six: of 5 and 1, or of 4 and 2, or of 2 and 4
        ([0, 25, 0, 0], 35, [0, 25, 0, 0], [4, 25, 4, 4]),  # ten are too many for one that joined
        ([10, 20], 30, [10, 20], [10, 20]),
    ],
)
def test_the_limits_by_hand(told: list[int], rows: int, low: list[int], high: list[int]) -> None:
    counts = ReleasedCounts((0,), np.array([told]), np.array([rows]), np.array([5]))
    assert [limit[0].tolist() for limit in counts.limits()] == [low, high]


def test_a_client_that_does_not_keep_to_the_release_is_completed_all_the_same() -> None:
    counts = ReleasedCounts((0, 1), np.array([[10, 0], [6, 6]]), np.array([40, 20]), np.array([5, 5]))
    np.testing.assert_allclose(counts.completed().sum(axis=1), [40, 20])
    assert counts.completed()[0].tolist() == [10, 30]


def test_one_row_of_another_class_is_no_evidence() -> None:
    """20 clients of 30 rows, one with a single row of class 1: whoever holds it, no table is likelier."""
    table = np.tile([30, 0], (20, 1))
    table[0] = [29, 1]
    counts = released(table)
    assert counts.told[0].tolist() == [25, 0]
    np.testing.assert_allclose(counts.completed(), table, atol=1e-6)
    assert decide_label_skew_calibrated(counts, RATE, 0.0, 0).p_value == 1.0
    divergence = js_divergence(distribution(table), distribution(table.sum(axis=0))).max()
    assert decide_label_skew(counts, 0.1).value == pytest.approx(divergence, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("min_release", [2, 5, 20])
@pytest.mark.parametrize("margins", [(0.98, 0.02), (0.6, 0.3, 0.05, 0.03, 0.02), tuple(np.full(8, 1 / 8))])
def test_alarms_keep_to_the_rate(margins: tuple[float, ...], min_release: int) -> None:
    """Eight clients of 40 rows from one distribution."""
    generator, federations, alarms = np.random.default_rng(0), 25, 0
    for index in range(federations):
        counts = released(generator.multinomial(40, margins, size=8), min_release)
        alarms += decide_label_skew_calibrated(counts, RATE, 0.0, index).detected
    assert alarms <= most_alarms(federations, RATE)


@pytest.mark.stress
@pytest.mark.parametrize("min_release", [1, 2, 5, 20])
@pytest.mark.parametrize("sizes", [(30,) * 3, (30,) * 20, (25, *[1000] * 5), tuple(range(20, 200, 9))])
@pytest.mark.parametrize("margins", [(0.995, 0.005), (0.95, 0.05), (0.8, 0.2), (0.4, 0.3, 0.2, 0.08, 0.02)])
def test_alarms_keep_to_the_rate_of_a_detector(
    margins: tuple[float, ...], sizes: tuple[int, ...], min_release: int
) -> None:
    """Whatever the margins, the number and sizes of clients, and what they withhold."""
    generator, rate, federations, alarms = np.random.default_rng(1), DetectionConfig().detector_rate, 200, 0
    for index in range(federations):
        counts = released(np.stack([generator.multinomial(rows, margins) for rows in sizes]), min_release)
        alarms += decide_label_skew_calibrated(counts, rate, 0.0, index).detected
    assert alarms <= most_alarms(federations, rate)


def clients_of(counts: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [(generator.normal(size=(sum(own), 3)), np.repeat(np.arange(len(own)), own)) for own in counts]


def test_a_report_tells_what_clients_tell() -> None:
    counts = np.array([[30, 3, 7], [40, 40, 40], [38, 42, 40]])
    report = report_of(federation(clients_of(counts.tolist()), num_classes=3))
    assert report.clients[0].num_rows == 40
    assert report.clients[0].label_counts == (28, 0, 7)
    assert report.clients[0].min_release == 5
    assert report.clients[0].heterogeneity_index == 0.0
    assert report.withheld_rows == {0: 5}
    assert "5 of 280 rows" in report.withholding
    assert report.label_skew == decide_label_skew(released(counts), report.label_skew.threshold)
    whole = report_of(federation(clients_of([[40, 40, 40], [38, 42, 40]]), num_classes=3))
    assert whole.withheld_rows == {}
    assert whole.withholding == ""


def test_the_heterogeneity_index_is_the_least_that_agrees() -> None:
    """Three classes are told of none: 5 rows withheld may be of all three, beside a part of the first."""
    report = report_of(federation(clients_of([[40, 1, 0, 0], [30, 30, 30, 30]]), num_classes=4))
    assert report.clients[0].label_counts == (36, 0, 0, 0)
    assert report.clients[0].heterogeneity_index == 0.0


def test_where_nothing_is_told_label_skew_is_not_measured() -> None:
    report = report_of(federation(clients_of([[4, 3, 2], [2, 4, 4], [3, 3, 3]]), num_classes=3))
    assert not report.label_skew.measured
    assert not report.calibrated[0].measured
    assert "federation.min_release=1" in report.label_skew.sentence
    everything = report_of(federation(clients_of([[4, 3, 2], [2, 4, 4], [3, 3, 3]]), num_classes=3, min_release=1))
    assert everything.label_skew.measured
