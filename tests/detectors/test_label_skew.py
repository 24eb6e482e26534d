"""Label skew: closed forms of the published rule, the calibrated test's alarms and power, and untold counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2_contingency, chisquare, fisher_exact, norm, random_table

from fedscout.detectors import label_skew
from fedscout.detectors.report import CalibratedFinding, Finding
from fedscout.detectors.statistics import distribution, js_divergence, kl_divergence
from fedscout.engine.data.client import Samples, release_counts
from tests.detectors.federations import federation, fewest_alarms, inputs, most_alarms, report_of, samples

RATE = 0.05


def decide(counts: np.ndarray, min_effect: float = 0.1, rate: float = RATE, seed: int = 0) -> CalibratedFinding:
    told = label_skew.ReleasedCounts.exact(dict(enumerate(counts)))
    return label_skew.decide_label_skew_calibrated(told, rate, min_effect, seed)


def like_clients(generator: np.random.Generator, clients: int, rows: int, classes: int) -> np.ndarray:
    """Return counts of clients that draw their labels alike, frequencies falling like 1, 1/2, 1/3, ..."""
    shares = 1 / np.arange(1, classes + 1)
    return generator.multinomial(rows, shares / shares.sum(), size=clients)


def test_the_statistic_is_pearson_s() -> None:
    counts = like_clients(np.random.default_rng(0), 5, 90, 4)
    for client, value in enumerate(label_skew.pearson(counts)):
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
    drawn = (like_clients(generator, clients, rows, classes) for _ in range(federations))
    alarms = sum(decide(counts, min_effect=0.0, seed=index).detected for index, counts in enumerate(drawn))
    assert alarms <= most_alarms(federations, RATE)
    if min(clients, classes) > 2:  # with few possible tables the rate can't be met, only kept
        assert alarms >= fewest_alarms(federations, 0.8 * RATE)


def test_where_all_differ_all_are_flagged() -> None:
    """Shares 0.9, 0.7, 0.5 and 0.1: no client is left that the others could be said to differ from."""
    counts = np.array([[900, 100], [700, 300], [500, 500], [100, 900]])
    assert decide(counts, min_effect=0.05).detected
    assert {0, 3} <= set(decide(counts, min_effect=0.05).flagged_clients)
    twelve = np.stack([np.linspace(50, 950, 12), np.linspace(950, 50, 12)], axis=1).astype(int)
    assert len(decide(twelve).flagged_clients) > 6


def test_a_certain_but_small_difference_is_not_called_skew() -> None:
    """52 against 50 % of 100,000 rows: the p-value is 0, two in a hundred rows would have to change class."""
    counts = np.array([[50_000, 50_000]] * 3 + [[52_000, 48_000]])
    finding = decide(counts)
    assert finding.p_value == pytest.approx(0, abs=1e-10)
    assert not finding.detected
    assert decide(counts, min_effect=0.01).flagged_clients == (3,)


def test_the_three_classes_that_differ_most_are_named() -> None:
    """By 400, 350 and 310 of 8,000 rows, of which 1,000 are of each class elsewhere."""
    counts = np.full((6, 8), 1000)
    counts[2] += [400, 310, 200, 90, -350, -280, -220, -150]
    assert decide(counts).clients[2].classes == (0, 4, 1)


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
    assert "same margins" in label_skew.label_p_values(few, RATE, generator)[1]
    assert "χ²" in label_skew.label_p_values(many, RATE, generator)[1]
    assert "noise" in label_skew.label_p_values(many, RATE, generator, noise_scale=0.5)[1]
    unlike, seeded = np.array([[16, 4], [10, 10], [9, 11]]), np.random.default_rng
    exact, noisy = (label_skew.label_p_values(unlike, RATE, seeded(1), scale)[0] for scale in (0.0, 1.0))
    assert noisy[0] > exact[0] + 0.02
    assert few[:, 2].sum() * few[0].sum() / few.sum() < label_skew.least_expected(4, RATE)
    assert norm.isf(RATE / 4 / 2) ** 6 / (72 * label_skew.least_expected(4, RATE)) == pytest.approx(0.2)
    assert [label_skew.number_of_draws(rate) for rate in (0.05, 1e-3, 1e-9)] == [999, 19_999, 100_000]


def test_drawn_tables_have_the_law_of_independent_labels() -> None:
    """Against the probabilities of all tables with these margins, by SciPy."""
    rows, columns = np.array([2, 3, 4]), np.array([1, 3, 5])
    drawn = label_skew.random_tables(rows, columns, 20_000, np.random.default_rng(1))
    assert (drawn.sum(axis=2) == rows).all()
    assert (drawn.sum(axis=1) == columns).all()
    tables, counts = np.unique(drawn, axis=0, return_counts=True)
    expected = 20_000 * random_table(rows, columns).pmf(tables)
    assert expected.sum() == pytest.approx(20_000)
    assert chisquare(counts, expected).pvalue > 1e-3


def test_drawn_tables_agree_with_the_exact_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clients of 5 rows: of the C(10, 5) = 252 deals of 5 + 5 labels two separate the classes.

    Sampling ends with the 400th table that does.
    """
    monkeypatch.setattr(label_skew, "DRAWS_PER_ALARM", 400)
    p_values, _ = label_skew.label_p_values(np.array([[5, 0], [0, 5]]), 1e-3, np.random.default_rng(0))
    np.testing.assert_allclose(p_values, 2 / 252, rtol=4 / np.sqrt(400))


def test_what_no_drawn_table_reaches_has_the_smallest_p_value() -> None:
    """1 of 1,000: the table itself and 999 drawn ones, of which a client has one class alone in one of 80,000.

    What all reach has the p-value 1.
    """
    for counts, p_value in ((8 * np.eye(3, dtype=int), 0.001), (np.full((3, 3), 8), 1)):
        assert label_skew.label_p_values(counts, RATE, np.random.default_rng(0))[0].tolist() == [p_value] * 3


def test_draws_that_end_early_decide_as_all_draws_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an early end leaves a p-value above the rate, so do all draws; any other p-value is that of all draws."""
    generator, drawn = np.random.default_rng(4), []
    wrapped = label_skew.pearson
    monkeypatch.setattr(label_skew, "pearson", lambda tables: drawn.append(len(tables)) or wrapped(tables))
    ended, draws = 0, label_skew.number_of_draws(RATE)
    for seed in range(20):
        counts = generator.multinomial(12, [0.7, 0.3], size=5)
        counts[0] = generator.multinomial(12, [1 - seed / 40, seed / 40])
        drawn.clear()
        early, _ = label_skew.label_p_values(counts, RATE, np.random.default_rng(seed))
        ended += sum(drawn[1:]) < draws
        drawn.clear()
        with monkeypatch.context() as patch:
            patch.setattr(label_skew, "DRAWS_PER_ALARM", 10**9)
            patch.setattr(label_skew, "number_of_draws", lambda _: draws)
            whole, _ = label_skew.label_p_values(counts, RATE, np.random.default_rng(seed))
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
    wrapped = label_skew.label_p_values
    monkeypatch.setattr(label_skew, "label_p_values", lambda *a: asked.append(len(a[0])) or wrapped(*a))
    assert decide(counts).flagged_clients == tuple(range(0, 40, 4))
    assert asked[-1] == 30
    assert len(asked) <= 9


@pytest.mark.parametrize("noise_scale", [0.0, 6.0])
def test_what_chance_makes_of_the_distance_is_taken_off(noise_scale: float) -> None:
    """Its mean over simulated clients of 500 rows that are like the reference, by counts with noise or without."""
    generator, rows = np.random.default_rng(0), 500
    reference = np.array([0.5, 0.3, 0.2])
    counts = generator.multinomial(rows, reference, size=20_000) + generator.laplace(0, noise_scale, (20_000, 3))
    by_chance = 0.5 * np.abs(counts / rows - reference).sum(axis=1).mean()
    differences = np.array([[0.1, 0.06, 0.04]])
    found = label_skew.beyond_chance(differences, reference, np.array([rows]), noise_scale)
    assert found[0] == pytest.approx(np.sqrt(0.1**2 - by_chance**2), rel=5e-3)
    assert label_skew.beyond_chance(differences / 100, reference, np.array([rows]), noise_scale)[0] == 0


def test_tables_too_large_to_draw_are_compared_class_by_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fisher's exact test of a class at a client against the others, doubled, times classes and clients."""
    monkeypatch.setattr("fedscout.detectors.label_skew.MAX_DRAWN_CELLS", 0)
    generator = np.random.default_rng(0)
    p_values, _ = label_skew.label_p_values(np.array([[9, 1], [5, 5], [6, 4]]), RATE, generator)
    one_sided = fisher_exact([[9, 1], [11, 9]], alternative="greater").pvalue
    assert p_values[0] == pytest.approx(min(1.0, 3 * 2 * 2 * one_sided))
    assert label_skew.label_p_values(np.array([[9, 1], [0, 9], [0, 9]]), RATE, generator, noise_scale=1.0)[0].min() == 1
    counts = like_clients(generator, 10, 200, 30)
    assert not decide(counts).detected
    counts[2] = counts[2][::-1]
    assert decide(counts).flagged_clients == (2,)


def test_the_reference_is_what_most_clients_share() -> None:
    shares = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0]])
    np.testing.assert_allclose(label_skew.reference_shares(shares, np.array([0.66, 0.34])), [0.5, 0.5])
    disjoint, pooled = np.eye(4), np.full(4, 0.25)
    np.testing.assert_allclose(label_skew.reference_shares(disjoint, pooled), pooled)
    uneven = np.array([[0.6, 0.3, 0.1], [0.5, 0.2, 0.3], [0.1, 0.3, 0.6]])  # medians 0.5, 0.3 and 0.3
    np.testing.assert_allclose(label_skew.reference_shares(uneven, np.ones(3) / 3), np.array([5, 3, 3]) / 11)
    # Clients of one class each have no median in common; all their rows together have a quarter of each class.
    effects = [evidence.effect for evidence in decide(100_000 * np.eye(4, 5, dtype=int)).clients.values()]
    assert effects == pytest.approx([0.75] * 4, abs=1e-3)


def test_one_class_or_one_client_is_no_skew() -> None:
    assert decide(np.array([[10, 0], [20, 0]])).p_value == decide(np.array([[1000, 0], [2000, 0]])).p_value == 1
    assert not decide(np.array([[10, 5]])).measured
    assert decide(np.array([[10, 5], [5, 10]])).measured
    _, method = label_skew.label_p_values(np.array([[5, 1], [5, 0], [5, 0]]), RATE, np.random.default_rng(0))
    assert method != "one class only"


# -- The label-skew detector: closed forms, orderings and its client half ----------------------------------------------


def published_decision(counts: Mapping[int, np.ndarray], threshold: float) -> Finding:
    return label_skew.decide_label_skew(label_skew.ReleasedCounts.exact(counts), threshold)


def counts_of(shares: Sequence[float]) -> dict[int, np.ndarray]:
    return {client: np.array([round(1000 * s), round(1000 * (1 - s))]) for client, s in enumerate(shares)}


def test_published_shares() -> None:
    """The global share is 0.55 and JS(s ‖ 0.55) = H((s + 0.55)/2) − (H(s) + H(0.55))/2.

    That is 0.118, 0.017, 0.002 and 0.179: the first and the last client lie above 0.1.
    """

    def h(x: np.ndarray | float) -> np.ndarray:
        return np.asarray(-x * np.log2(x) - (1 - x) * np.log2(1 - x))

    shares = np.array([0.9, 0.7, 0.5, 0.1])
    finding = published_decision(counts_of(shares), threshold=0.1)
    assert finding.value == pytest.approx(0.1789, abs=5e-5)
    assert list(finding.client_values.values()) == pytest.approx(h((shares + 0.55) / 2) - (h(shares) + h(0.55)) / 2)
    assert (finding.detected, finding.flagged_clients) == (True, (0, 3))


def test_a_client_at_the_threshold_is_not_above_it() -> None:
    counts = counts_of((0.9, 0.1))
    value = published_decision(counts, threshold=0.1).value
    at, below = (published_decision(counts, threshold) for threshold in (value, np.nextafter(value, 0)))
    assert (at.detected, at.flagged_clients) == (False, ())
    assert (below.detected, below.flagged_clients) == (True, (0, 1))


def test_larger_clients_weigh_more_and_one_client_can_not_be_compared() -> None:
    assert published_decision({0: np.array([10_000, 0]), 1: np.array([0, 10])}, threshold=0.1).flagged_clients == (1,)
    alone = published_decision({3: np.array([5, 5])}, threshold=0.1)
    assert (alone.measured, alone.detected) == (False, False)


def test_client_counts_its_own_rows_and_absent_classes() -> None:
    everyone = samples(np.zeros((6, 1)), np.array([0, 1, 2, 2, 1, 1]))
    own = Samples(everyone.features, everyone.labels, np.array([5, 2, 3, 1]))
    assert label_skew.label_counts(inputs(own, num_classes=4))["counts"].values.tolist() == [0, 2, 2, 0]


# -- Label counts of clients that leave small classes out: hiding creates no evidence ----------------------------------


TABLES = arrays(np.int64, st.tuples(st.integers(1, 5), st.integers(2, 6)), elements=st.integers(0, 30)).filter(
    lambda table: (table.sum(axis=1) > 0).all()
)


def released(table: np.ndarray, min_release: int = 5) -> label_skew.ReleasedCounts:
    """Return what clients of these counts tell, those left out that hold too few rows to answer."""
    table = table[table.sum(axis=1) >= min_release]
    least = np.full(len(table), min_release)
    told = release_counts(table, min_release)
    return label_skew.ReleasedCounts(tuple(range(len(table))), told, table.sum(axis=1), least)


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
@example(np.array([[2, 0, 2], [1, 0, 1]]), 2)  # converges slowly
def test_no_table_that_agrees_with_what_is_told_makes_clients_more_alike(table: np.ndarray, min_release: int) -> None:
    """The clients' own table is one that agrees."""
    counts = released(table, min_release)
    if len(counts.clients):
        table = table[table.sum(axis=1) >= min_release]
        assert information(counts.completed()) <= information(table) + 1e-4


def test_a_completion_is_a_fixed_point() -> None:
    generator = np.random.default_rng(1)
    counts = released(np.stack([generator.multinomial(60, generator.dirichlet(np.ones(6))) for _ in range(5)]), 9)
    whole = counts.completed()
    assert (whole > counts.by_class).any()
    np.testing.assert_allclose(counts.completed(whole.sum(axis=0)), whole, rtol=0, atol=1e-5)


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
    finding = label_skew.decide_label_skew(counts, 0.1)
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
    counts = label_skew.ReleasedCounts((0,), np.array([told]), np.array([rows]), np.array([5]))
    assert [limit[0].tolist() for limit in counts.limits()] == [low, high]


def test_a_client_that_does_not_keep_to_the_release_is_completed_all_the_same() -> None:
    counts = label_skew.ReleasedCounts((0, 1), np.array([[10, 0], [6, 6]]), np.array([40, 20]), np.array([5, 5]))
    np.testing.assert_allclose(counts.completed().sum(axis=1), [40, 20])
    assert counts.completed()[0].tolist() == [10, 30]


def test_one_row_of_another_class_is_no_evidence() -> None:
    """20 clients of 30 rows, one with a single row of class 1: whoever holds it, no table is likelier."""
    table = np.tile([30, 0], (20, 1))
    table[0] = [29, 1]
    counts = released(table)
    assert counts.by_class[0].tolist() == [25, 0]
    np.testing.assert_allclose(counts.completed(), table, atol=1e-6)
    assert label_skew.decide_label_skew_calibrated(counts, RATE, 0.0, 0).p_value == 1.0
    divergence = js_divergence(distribution(table), distribution(table.sum(axis=0))).max()
    assert label_skew.decide_label_skew(counts, 0.1).value == pytest.approx(divergence, rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("min_release", [2, 5, 20])
@pytest.mark.parametrize("margins", [(0.98, 0.02), (0.6, 0.3, 0.05, 0.03, 0.02), tuple(np.full(8, 1 / 8))])
def test_alarms_keep_to_the_rate(margins: tuple[float, ...], min_release: int) -> None:
    """Eight clients of 40 rows from one distribution."""
    generator, federations, alarms = np.random.default_rng(0), 25, 0
    for index in range(federations):
        counts = released(generator.multinomial(40, margins, size=8), min_release)
        alarms += label_skew.decide_label_skew_calibrated(counts, RATE, 0.0, index).detected
    assert alarms <= most_alarms(federations, RATE)


def clients_of(counts: list[list[int]]) -> list[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    return [(generator.normal(size=(sum(own), 3)), np.repeat(np.arange(len(own)), own)) for own in counts]


def test_a_report_tells_what_clients_tell() -> None:
    counts = np.array([[30, 3, 7], [40, 40, 40], [38, 42, 40]])
    report = report_of(federation(clients_of(counts.tolist()), num_classes=3))
    first = report.clients[0]
    assert (first.num_rows, first.label_counts, first.min_release) == (40, (28, 0, 7), 5)
    assert (first.heterogeneity_index, report.withheld_rows) == (0.0, {0: 5})
    assert "5 of 280 rows" in report.withholding
    assert report.label_skew == label_skew.decide_label_skew(released(counts), report.label_skew.threshold)
    whole = report_of(federation(clients_of([[40, 40, 40], [38, 42, 40]]), num_classes=3))
    assert (whole.withheld_rows, whole.withholding) == ({}, "")


def test_where_nothing_is_told_label_skew_is_not_measured() -> None:
    clients = clients_of([[4, 3, 2], [2, 4, 4], [3, 3, 3]])
    for min_release, is_told in ((5, False), (1, True)):
        report = report_of(federation(clients, num_classes=3, min_release=min_release))
        assert report.label_skew.measured == report.calibrated[0].measured == is_told
