"""Calibrated label skew: the false-alarm rate on synthetic counts, power on stated effects, and laws."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import chi2_contingency, fisher_exact

from fedscout.detectors import label_skew
from fedscout.detectors.label_skew import (
    ReleasedCounts,
    beyond_chance,
    decide_label_skew_calibrated,
    label_p_values,
    least_expected,
    number_of_draws,
    pearson,
    reference_shares,
)
from fedscout.detectors.report import CalibratedFinding
from tests.detectors.rates import fewest_alarms, most_alarms

RATE = 0.05


def decide(counts: np.ndarray, min_effect: float = 0.1, rate: float = RATE, seed: int = 0) -> CalibratedFinding:
    return decide_label_skew_calibrated(ReleasedCounts.whole(dict(enumerate(counts))), rate, min_effect, seed)


def like_clients(generator: np.random.Generator, clients: int, rows: int, classes: int) -> np.ndarray:
    """Return counts of clients that draw their labels alike, frequencies falling like 1, 1/2, 1/3, ..."""
    shares = 1 / np.arange(1, classes + 1)
    return generator.multinomial(rows, shares / shares.sum(), size=clients)


def test_the_statistic_is_pearson_s() -> None:
    counts = like_clients(np.random.default_rng(0), 5, 90, 4)
    for client, value in enumerate(pearson(counts)):
        others = counts.sum(axis=0) - counts[client]
        reference = chi2_contingency(np.stack([counts[client], others]), correction=False)
        assert value == pytest.approx(reference.statistic)


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("clients", "rows", "classes", "federations"),
    [
        (4, 20, 2, 300),
        (4, 245, 2, 1000),
        (10, 180, 10, 200),
        (10, 20, 10, 100),
        (30, 200, 3, 500),
        (100, 20, 100, 8),
        pytest.param(100, 20_000, 100, 100, marks=pytest.mark.stress),
    ],
)
def test_false_alarms_keep_to_the_rate(clients: int, rows: int, classes: int, federations: int) -> None:
    """Without a minimum effect, so that the rate rests on the p-value alone."""
    generator = np.random.default_rng(clients + rows)
    alarms = sum(
        decide(like_clients(generator, clients, rows, classes), min_effect=0.0, seed=index).detected
        for index in range(federations)
    )
    assert alarms <= most_alarms(federations, RATE)
    if min(clients, classes) > 2:  # with few possible tables the rate can't be met, only kept
        assert alarms >= fewest_alarms(federations, 0.8 * RATE)


@pytest.mark.parametrize("clients", [4, 10, 100])
@pytest.mark.parametrize("rows", [60, 20_000])
def test_one_other_client_is_found_and_the_others_are_not(clients: int, rows: int) -> None:
    """It has 95 % of one of two equal classes: 0.45 in total variation, and seven standard errors at 60 rows.

    Others are flagged no more often than the rate allows, although the rest that each is compared with is not alike.
    """
    generator = np.random.default_rng(1)
    federations, others = 20, 0
    for seed in range(federations):
        counts = generator.multinomial(rows, [0.5, 0.5], size=clients)
        counts[2] = generator.multinomial(rows, [0.95, 0.05])
        finding = decide(counts, seed=seed)
        assert 2 in finding.flagged_clients
        assert finding.clients[2].effect == pytest.approx(0.45, abs=4 * 0.5 / np.sqrt(rows) + 0.05)
        others += finding.flagged_clients != (2,)
    assert others <= most_alarms(federations, RATE)


def test_where_all_differ_all_are_flagged() -> None:
    """Shares 0.9, 0.7, 0.5 and 0.1: no client is left that the others could be said to differ from."""
    counts = np.array([[900, 100], [700, 300], [500, 500], [100, 900]])
    assert decide(counts, min_effect=0.05).detected
    assert {0, 3} <= set(decide(counts, min_effect=0.05).flagged_clients)


def test_a_certain_but_small_difference_is_not_called_skew() -> None:
    """52 against 50 % of 100,000 rows: the p-value is 0, two in a hundred rows would have to change class."""
    counts = np.array([[50_000, 50_000]] * 3 + [[52_000, 48_000]])
    finding = decide(counts)
    assert finding.p_value == pytest.approx(0, abs=1e-10)
    assert not finding.detected
    found = decide(counts, min_effect=0.01)
    assert found.flagged_clients == (3,)
    assert [value for value in ("2.0%", "client 3", "classes 0 and 1") if value not in found.sentence] == []


@pytest.mark.parametrize("rows", [20, 2000])
def test_the_order_of_clients_and_classes_does_not_matter(rows: int) -> None:
    """Of drawn tables and of χ² alike."""
    generator = np.random.default_rng(3)
    counts = generator.multinomial(rows, [0.4, 0.3, 0.2, 0.1], size=6)
    counts[1] = generator.multinomial(rows, [0.1, 0.1, 0.2, 0.6])
    order, classes = generator.permutation(6), generator.permutation(4)
    plain, permuted = decide(counts), decide(counts[order][:, classes])
    for position, client in enumerate(order):
        before, after = plain.clients[int(client)], permuted.clients[position]
        assert after.p_value == pytest.approx(before.p_value, rel=1e-9)
        assert after.effect == pytest.approx(before.effect)
        assert {int(classes[label]) for label in after.classes} == set(before.classes)


def test_few_rows_are_compared_by_drawn_tables() -> None:
    few, many = np.array([[9, 11, 2]] * 4), np.array([[90, 110, 20]] * 4)
    generator = np.random.default_rng(0)
    assert "same margins" in label_p_values(few, RATE, generator)[1]
    assert "χ²" in label_p_values(many, RATE, generator)[1]
    assert few[:, 2].sum() * few[0].sum() / few.sum() < least_expected(4, RATE)


def test_drawn_tables_agree_with_the_exact_test() -> None:
    """Two clients of 5 rows: of the C(10, 5) = 252 deals of 5 + 5 labels two separate the classes."""
    p_values, _ = label_p_values(np.array([[5, 0], [0, 5]]), 1e-3, np.random.default_rng(0))
    np.testing.assert_allclose(p_values, 2 / 252, atol=4 * np.sqrt(2 / 252 / 20_000))


def test_what_no_drawn_table_reaches_has_the_smallest_p_value() -> None:
    """1 of 1,000: the table itself and 999 drawn ones, of which a client has one class alone in one of 80,000."""
    p_values, _ = label_p_values(8 * np.eye(3, dtype=int), RATE, np.random.default_rng(0))
    assert p_values.tolist() == [0.001] * 3


def test_draws_that_end_early_decide_as_all_draws_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an early end leaves a p-value above the rate, so do all draws; any other p-value is that of all draws."""
    generator, drawn = np.random.default_rng(4), []
    monkeypatch.setattr(label_skew, "pearson", lambda tables: drawn.append(len(tables)) or pearson(tables))
    ended, draws = 0, number_of_draws(RATE)
    for seed in range(20):
        counts = generator.multinomial(12, [0.7, 0.3], size=5)
        counts[0] = generator.multinomial(12, [1 - seed / 40, seed / 40])
        drawn.clear()
        early, _ = label_p_values(counts, RATE, np.random.default_rng(seed))
        ended += sum(drawn[1:]) < draws
        drawn.clear()
        with monkeypatch.context() as patch:
            patch.setattr(label_skew, "DRAWS_PER_ALARM", 10**9)
            patch.setattr(label_skew, "number_of_draws", lambda _: draws)
            whole, _ = label_p_values(counts, RATE, np.random.default_rng(seed))
        assert sum(drawn[1:]) == draws
        assert (early.min() <= RATE) == (whole.min() <= RATE)
        np.testing.assert_allclose(early, whole, rtol=4 / np.sqrt(50))  # of at least 50 draws that reach it
        if early.min() <= RATE:
            np.testing.assert_array_equal(early, whole)
    assert 5 < ended < 20


def test_many_that_differ_are_taken_out_in_few_comparisons(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten of 40 clients: one by one that would be eleven comparisons."""
    counts, asked = like_clients(np.random.default_rng(5), 40, 400, 4), []
    counts[::4] = [340, 20, 20, 20]
    wrapped = label_p_values
    monkeypatch.setattr(label_skew, "label_p_values", lambda *a: asked.append(len(a[0])) or wrapped(*a))
    assert decide(counts).flagged_clients == tuple(range(0, 40, 4))
    assert asked[-1] == 30
    assert len(asked) <= 9


def test_the_statistics_of_many_tables_are_those_of_each() -> None:
    tables = np.stack([like_clients(np.random.default_rng(seed), 5, 90, 4) for seed in range(3)])
    np.testing.assert_allclose(pearson(tables), [pearson(table) for table in tables])


@pytest.mark.parametrize("noise_scale", [0.0, 3.0])
def test_what_chance_makes_of_the_distance_is_taken_off(noise_scale: float) -> None:
    """Its mean over simulated clients of 500 rows that are like the reference, by counts with noise or without."""
    generator, rows = np.random.default_rng(0), 500
    reference = np.array([0.5, 0.3, 0.2])
    counts = generator.multinomial(rows, reference, size=20_000) + generator.laplace(0, noise_scale, (20_000, 3))
    by_chance = 0.5 * np.abs(counts / rows - reference).sum(axis=1).mean()
    differences = np.array([[0.1, 0.06, 0.04]])
    found = beyond_chance(differences, reference, np.array([rows]), noise_scale)
    assert found[0] == pytest.approx(np.sqrt(0.1**2 - by_chance**2), rel=5e-3)
    assert beyond_chance(differences / 100, reference, np.array([rows]), noise_scale)[0] == 0


def test_tables_too_large_to_draw_are_compared_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fisher's exact test of a class at a client against the others, doubled, times classes and clients."""
    monkeypatch.setattr("fedscout.detectors.label_skew.MAX_DRAWN_CELLS", 0)
    generator = np.random.default_rng(0)
    p_values, _ = label_p_values(np.array([[9, 1], [5, 5], [6, 4]]), RATE, generator)
    one_sided = fisher_exact([[9, 1], [11, 9]], alternative="greater").pvalue
    assert p_values[0] == pytest.approx(min(1.0, 3 * 2 * 2 * one_sided))
    counts = like_clients(generator, 10, 200, 30)
    assert not decide(counts).detected
    counts[2] = counts[2][::-1]
    assert decide(counts).flagged_clients == (2,)


def test_the_reference_is_what_most_clients_share() -> None:
    shares = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_allclose(reference_shares(shares, np.array([0.66, 0.34])), [0.5, 0.5])
    disjoint, pooled = np.eye(4), np.full(4, 0.25)
    np.testing.assert_allclose(reference_shares(disjoint, pooled), pooled)
    uneven = np.array([[0.6, 0.3, 0.1], [0.5, 0.2, 0.3], [0.1, 0.3, 0.6]])  # medians 0.5, 0.3 and 0.3
    np.testing.assert_allclose(reference_shares(uneven, np.ones(3) / 3), np.array([5, 3, 3]) / 11)
    # Clients of one class each have no median in common; all their rows together have a quarter of each class.
    effects = [evidence.effect for evidence in decide(100_000 * np.eye(4, dtype=int)).clients.values()]
    assert effects == pytest.approx([0.75] * 4, abs=1e-3)


def test_one_class_or_one_client_is_no_skew() -> None:
    assert not decide(np.array([[10, 0], [20, 0]])).detected
    assert not decide(np.array([[10, 5]])).measured
    assert decide(np.array([[10, 5], [5, 10]])).measured
    assert label_p_values(np.array([[5, 1], [5, 0], [5, 0]]), RATE, np.random.default_rng(0))[1] != "one class only"
