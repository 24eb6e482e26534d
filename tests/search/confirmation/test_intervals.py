"""The paired t interval: equal to SciPy's, degenerate where it must be, and covering as often as it says."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from scipy import stats

from fedscout.search.confirmation import intervals
from fedscout.search.confirmation.confirmation import assess
from fedscout.search.confirmation.intervals import SequentialDesign, critical_value, paired_difference, seeds_to_decide


@pytest.mark.parametrize(("num_pairs", "error"), [*((n, 0.05) for n in (2, 3, 5, 30)), (6, 0.2), (6, 1e-3), (6, 1e-9)])
def test_interval_is_that_of_the_paired_t_test_and_misses_as_often_as_allowed(num_pairs: int, error: float) -> None:
    ours, baseline = np.random.default_rng(num_pairs).uniform(size=(2, num_pairs))
    expected = stats.ttest_rel(ours, baseline).confidence_interval(1 - error)
    found = paired_difference(ours, baseline, error)
    assert found.mean == pytest.approx(np.mean(ours) - np.mean(baseline))
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))
    assert found.differences == pytest.approx(tuple(ours - baseline))


@pytest.mark.parametrize(("num_seeds", "test_to_train"), [(2, 0.25), (3, 0.1), (5, 0.25), (20, 1.0)])
def test_the_interval_for_new_data_is_of_the_published_variance(num_seeds: int, test_to_train: float) -> None:
    """And the one for another run on these rows is of the seeds' alone."""
    ours, baseline = np.random.default_rng(num_seeds).uniform(size=(2, num_seeds))
    found = paired_difference(ours.tolist(), baseline.tolist(), test_to_train=test_to_train)
    for ends, shared in (((found.low, found.high), test_to_train), ((found.here_low, found.here_high), 0.0)):
        variance = (1 / num_seeds + shared) * np.var(ours - baseline, ddof=1)
        assert ends == pytest.approx(stats.t.interval(0.95, num_seeds - 1, found.mean, np.sqrt(variance)))


def test_validation_rows_neither_train_nor_test() -> None:
    assert [intervals.tested_to_trained(0.2, held) for held in (0.0, 0.25)] == pytest.approx([20 / 80, 20 / 60])


@pytest.mark.parametrize(
    ("ours", "error"), [([0.8], 0.05), ([0.25, 0.25, 0.25], 0.05), ([0.1, 0.1, 0.1], 0.05), ([0.1, 0.3], 0.0)]
)
def test_one_pair_equal_differences_or_no_allowed_error_have_no_interval(ours: list[float], error: float) -> None:
    """Equal ones on a scale whose step is not known."""
    found = paired_difference(ours, [0.0] * len(ours), error)
    assert (found.mean, found.low, found.high, found.verdict) == (pytest.approx(np.mean(ours)), None, None, 0)
    alone = intervals.mean_score([0.25, 0.25])
    assert (alone.mean, alone.low, alone.high) == (0.25, None, None)


@pytest.mark.parametrize("num_seeds", [2, 3, 5])
@pytest.mark.parametrize("step", [0.25, 0.01])
@pytest.mark.parametrize("mean", [0.0, 0.5, 1.0])
def test_an_interval_of_scores_has_a_width_and_holds_only_scores_that_there_can_be(
    num_seeds: int, step: float, mean: float
) -> None:
    scattered = np.random.default_rng(num_seeds).uniform(0.9, 1.0, num_seeds)
    for values in ([mean] * num_seeds, scattered.tolist()):
        found = intervals.mean_score(values, step, test_to_train=0.25, bounds=(0.0, 1.0))
        for low, high in ((found.low, found.high), (found.here_low, found.here_high)):
            assert 0 <= low < high <= 1
        difference = paired_difference(values, [0.0] * num_seeds, resolution=step, span=1.0)
        assert -1 <= (difference.low or 0) < (difference.high or 0) <= 1
    # one score's uncertainty is step/√12 by itself, a difference of two has √2 times as much
    wide = intervals.mean_score([0.5, 0.5], 0.001)
    narrow = paired_difference([0.5, 0.5], [0.0, 0.0], resolution=0.001)
    assert (narrow.high or 0) - 0.5 == pytest.approx(math.sqrt(2) * ((wide.high or 0) - 0.5))


NULL_STUDIES = 200_000


def wrongly_better(count: int, shared: float, num_tried: int, quantile: float) -> int:
    """Count null studies, by the module's model, in which the best of several equal candidates exceeds a quantile."""
    generator = np.random.default_rng([count, num_tried, int(100 * shared)])
    common = generator.normal(0, math.sqrt(shared), (NULL_STUDIES, num_tried))
    searched = common + generator.normal(size=common.shape)
    picked = np.take_along_axis(common, searched.argmax(axis=1)[:, None], axis=1)
    fresh = picked + generator.normal(size=(NULL_STUDIES, count))
    statistic = fresh.mean(axis=1) / (fresh.std(axis=1, ddof=1) * math.sqrt(1 / count + shared))
    return int((statistic > quantile).sum())


@pytest.mark.sampled(12)
@pytest.mark.parametrize(
    ("count", "num_tried", "shared"),
    [
        (5, 8, 0.25),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in product([2, 5, 20], [1, 2, 8, 50], [0.1, 0.25, 1.0])),
    ],
)
def test_the_best_of_equal_candidates_is_wrongly_better_as_often_as_is_said(
    count: int, num_tried: int, shared: float
) -> None:
    num_wrong = wrongly_better(count, shared, num_tried, critical_value(count, 0.05, shared, num_tried))
    assert stats.binomtest(num_wrong, NULL_STUDIES, 0.025).pvalue > 1e-5


@pytest.mark.parametrize("error", [0.05, 0.01, 1e-4, 1e-7, 1e-12])
@pytest.mark.parametrize("count", [2, 5, 50])
def test_more_candidates_ask_for_more_and_for_no_more_than_bonferroni(error: float, count: int) -> None:
    found = [critical_value(count, error, 0.25, num_tried) for num_tried in (1, 2, 8, 100)]
    assert found == sorted(found)
    assert found[0] == critical_value(count, error) == critical_value(count, error, 0.25)
    assert found[3] <= -stats.t.ppf(error / 200, count - 1) * (1 + 1e-6)
    assert critical_value(count, error, 0.0, 8) == critical_value(count, error)  # seeds that share no rows


def test_only_the_lower_end_for_new_data_allows_for_the_choice() -> None:
    ours, baseline = np.random.default_rng(4).uniform(size=(2, 5)).tolist()
    alone = paired_difference(ours, baseline, test_to_train=0.25)
    best = paired_difference(ours, baseline, test_to_train=0.25, num_tried=8)
    assert (best.low or 0) < (alone.low or 0)
    assert best.model_copy(update={"low": alone.low}) == alone


@pytest.mark.parametrize("resolution", [0.0, 0.01, 0.5])
def test_the_ends_are_as_far_from_the_mean_as_spread_or_scale_are_wide(resolution: float) -> None:
    """Where the scale is coarse, and where it is not."""
    ours, nothing, ratio = [0.1, 0.2, 0.25], [0.0] * 3, 0.25
    found = paired_difference(ours, nothing, 0.05, resolution, ratio, num_tried=4)
    deviation = max(np.std(ours, ddof=1), resolution / np.sqrt(6)) * np.sqrt(1 / 3 + ratio)
    below, above = (deviation * critical_value(3, 0.05, ratio, num_tried) for num_tried in (4, 1))
    assert (found.low, found.high) == pytest.approx((found.mean - below, found.mean + above))


@pytest.mark.parametrize("error", [0.0, 1e-12, 0.001, 0.05, 0.5])
@pytest.mark.parametrize("span", [0.3, 1.0])
def test_an_interval_ends_where_differences_do_and_says_the_same(error: float, span: float) -> None:
    """What is cut off holds no difference that there can be, and zero never lies there."""
    ours, baseline = np.random.default_rng(2).uniform(size=(2, 6)) * [[span], [span]]
    wide = paired_difference(ours, baseline, error, test_to_train=0.25)
    cut = paired_difference(ours, baseline, error, test_to_train=0.25, span=span)
    for low, high, cut_low, cut_high in (
        (wide.low, wide.high, cut.low, cut.high),
        (wide.here_low, wide.here_high, cut.here_low, cut.here_high),
    ):
        assert cut_low == max(-span, -np.inf if low is None else low)
        assert cut_high == min(span, np.inf if high is None else high)
    assert (cut.mean, cut.verdict) == (wide.mean, wide.verdict)


def test_swapping_the_sides_mirrors_everything() -> None:
    ours, baseline = [0.7, 0.9, 0.8], [0.5, 0.69, 0.61]
    forth, back = paired_difference(ours, baseline), paired_difference(baseline, ours)
    assert (back.mean, back.low, back.high) == pytest.approx((-forth.mean, -forth.high, -forth.low))
    assert (forth.verdict, back.verdict) == (1, -1)
    at_zero = (forth.model_copy(update={"low": 0.0}), back.model_copy(update={"high": 0.0}))
    assert [each.verdict for each in at_zero] == [0, 0]


# -- Looking at a confirmation while it runs: what each look may cost, and that all of them together stay within 5 %


NUM_STUDIES = 2000


def test_looks_come_after_each_batch_with_two_seeds_at_least_and_at_the_end() -> None:
    looks = {(5, None): (5,), (10, 4): (4, 8, 10), (5, 1): (2, 3, 4, 5), (4, 9): (4,), (1, 1): (1,)}
    assert {case: SequentialDesign(max_seeds=case[0], batch=case[1]).looks for case in looks} == looks


@pytest.mark.parametrize(("max_seeds", "batch"), [(5, None), (20, 4), (7, 1), (30, 11), (1000, 1)])
def test_the_looks_spend_five_percent_in_all_and_later_ones_more(max_seeds: int, batch: int | None) -> None:
    """More for each seed, as the last batch may be short: the slope of α(t) rises up to t = z²/3 > 1."""
    design = SequentialDesign(max_seeds=max_seeds, batch=batch)
    errors = np.array([design.error_at(look) for look in design.looks])
    assert errors.sum() == pytest.approx(0.05)
    assert errors.min() >= 0
    per_seed = errors / np.diff([0, *design.looks])
    assert (np.diff(per_seed[per_seed > 0]) > 0).all()  # of many looks the first cost less than the smallest number


def test_the_spending_function() -> None:
    """Lan and DeMets' function at 5 %: 2 − 2Φ(1.95996/√t), by tables of the normal distribution."""
    expected = {0.25: 8.9e-5, 0.5: 0.00557, 0.75: 0.02363, 1.0: 0.05}
    assert {share: intervals.spent_error(share) for share in expected} == pytest.approx(expected, abs=6e-6)


def test_the_error_is_shared_among_challengers_and_among_their_pairs() -> None:
    # Four challengers: 4 comparisons with FedAvg, 6 with each other.
    generator = np.random.default_rng(3)
    ours, others = generator.uniform(size=(2, 5)).tolist()
    design = SequentialDesign(max_seeds=5, num_challengers=4)
    assert design.against_baseline(ours, others) == paired_difference(ours, others, 0.05 / 4)
    assert design.against_challenger(ours, others) == paired_difference(ours, others, 0.05 / 6)
    alone = SequentialDesign(max_seeds=5, test_to_train=0.25)
    assert alone.against_baseline(ours, others) == alone.against_challenger(ours, others)
    assert alone.against_baseline(ours, others) == paired_difference(ours, others, test_to_train=0.25)


def test_who_was_dropped_is_compared_on_the_seeds_that_it_has() -> None:
    design = SequentialDesign(max_seeds=4, batch=2, num_challengers=2)
    leader, dropped = [0.9, 0.8, 0.1, 0.1], [0.5, 0.3]
    assert design.against_challenger(leader, dropped).differences == pytest.approx((0.4, 0.5))


# Errors under optional stopping, on normal scores whose seeds matter to all alike.


def scores_of(generator: np.random.Generator, means: Sequence[float], num_seeds: int) -> np.ndarray:
    """Return scores, shape `(configurations, seeds)`: what a seed does to all, and noise of 2 points each."""
    shared = generator.normal(0, 0.05, num_seeds)
    return np.asarray(means)[:, None] + 0.7 + shared + generator.normal(0, 0.02, (len(means), num_seeds))


def decide(design: SequentialDesign, scores: np.ndarray) -> tuple[int, int, int, tuple[int, ...]]:
    """Go through the looks; FedAvg is the last row. Return pick, verdict, seeds and who remains."""
    remaining: tuple[int, ...] = tuple(range(len(scores) - 1))
    pick, look = 0, 0
    for look in design.looks:
        fedavg = scores[-1, :look].tolist()
        standing = assess(design, {place: scores[place, :look].tolist() for place in remaining}, fedavg)
        pick, remaining = standing.pick, standing.remaining
        if standing.settled:
            break
    verdict = design.against_baseline(scores[pick, :look].tolist(), scores[-1, :look].tolist()).verdict
    return pick, verdict, look, remaining


def too_many(count: int, studies: int = NUM_STUDIES, share: float = 0.05) -> bool:
    """Whether a count of errors speaks against an error rate of at most `share`."""
    return bool(stats.binomtest(count, studies, share, alternative="greater").pvalue < 1e-4)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize(("num_challengers", "batch"), [(1, 1), (1, 4), (3, 4)])
def test_without_a_difference_none_is_found_in_19_of_20_studies_however_often_one_looks(
    num_challengers: int, batch: int
) -> None:
    design = SequentialDesign(max_seeds=12, batch=batch, num_challengers=num_challengers)
    generator = np.random.default_rng(20260101)
    found = [decide(design, scores_of(generator, [0.0] * (num_challengers + 1), 12))[1] for _ in range(NUM_STUDIES)]
    assert not too_many(sum(verdict != 0 for verdict in found))


@pytest.mark.slow
def test_the_best_challenger_is_seldom_dropped_and_bad_ones_are() -> None:
    design = SequentialDesign(max_seeds=16, batch=4, num_challengers=3)
    generator = np.random.default_rng(7)
    means = [0.05, 0.04, -0.10, 0.0]
    found = [decide(design, scores_of(generator, means, 16)) for _ in range(NUM_STUDIES // 4)]
    assert not too_many(sum(0 not in remaining for _, _, _, remaining in found), NUM_STUDIES // 4)
    # Fifteen points at noise of 2·√2 points are 5 standard deviations: gone long before the end.
    assert all(2 not in remaining for _, _, _, remaining in found)
    assert np.mean([verdict == 1 for _, verdict, _, _ in found]) > 0.9


def test_a_challenger_that_is_clearly_worse_than_fedavg_ends_it() -> None:
    design = SequentialDesign(max_seeds=9, batch=3)
    baseline = [0.8, 0.81, 0.79, 0.8, 0.82, 0.8]
    ours = [score - 0.3 + 0.001 * seed for seed, score in enumerate(baseline)]
    standing = assess(design, {0: ours}, baseline)
    assert (standing.pick, standing.remaining, standing.settled) == (0, (), True)


def test_it_is_hopeless_where_the_best_mean_that_is_left_would_not_do() -> None:
    """Differences of 1 ± 1 points: with √(1/100 + 1/4) twice their deviation is no end that leaves zero out."""
    design = SequentialDesign(max_seeds=100, batch=20, test_to_train=0.25)
    nothing, some = [0.0] * 20, [0.0, 0.02] * 10
    assert not design.is_futile(some, nothing)
    assert design.is_futile([score - 0.009 for score in some], nothing)
    assert not design.is_futile(some[:2], nothing)
    assert not design.is_futile([0.01] * 20, nothing)  # equal differences on a scale of unknown step
    assert not design.is_futile(some * 5, nothing * 5)
    assert not design.is_futile([0.01, -0.01] * 50, nothing * 5)  # the last look has been


def test_the_last_look_of_many_challengers_asks_for_more_and_three_differences_are_too_few_to_give_up() -> None:
    one, many = (SequentialDesign(max_seeds=5, batch=1, num_challengers=n, test_to_train=0.25) for n in (1, 10))
    four, nothing = [0.01, 0.02, 0.02, 0.03], [0.0] * 4
    assert many.is_futile(four, nothing)
    assert not one.is_futile(four, nothing)
    assert not many.is_futile([-0.01, 0.0, 0.01], nothing)  # their interval is narrower than the last one, likewise


def simulated_power(effect: float, num_seeds: int, test_to_train: float, num_studies: int = 20_000) -> float:
    """Return the share of studies whose interval is above zero; a seed's difference is the effect + C + e, as there."""
    generator = np.random.default_rng(num_seeds)
    common = math.sqrt(test_to_train) * generator.standard_normal((num_studies, 1))
    studies = effect + common + generator.standard_normal((num_studies, num_seeds))
    half = stats.t.ppf(0.975, num_seeds - 1) * studies.std(axis=1, ddof=1) * math.sqrt(1 / num_seeds + test_to_train)
    return float((studies.mean(axis=1) > half).mean())


@pytest.mark.parametrize(
    ("effect", "test_to_train"), [(0.3, 0.0), (0.5, 0.0), (1.0, 0.0), (3.0, 0.0), (2.0, 0.25), (3.0, 0.25), (1.0, 0.1)]
)
def test_the_seeds_that_decide_are_the_fewest_that_show_the_difference_in_four_of_five_studies(
    effect: float, test_to_train: float
) -> None:
    seeds = seeds_to_decide(effect, 1.0, test_to_train)
    assert seeds is not None
    assert simulated_power(effect, seeds, test_to_train) > 0.79
    assert simulated_power(effect, seeds - 1, test_to_train) < 0.81
    assert seeds_to_decide(-10 * effect, 10.0, test_to_train) == seeds


def test_known_numbers_of_seeds_and_differences_that_no_number_shows() -> None:
    """A paired t test needs 34 pairs for half a deviation (J. Cohen, Statistical Power Analysis, 1988, table 2.4.1)."""
    assert seeds_to_decide(0.5, 1.0) == 34
    assert seeds_to_decide(1e-9, 1.0) is None
    assert seeds_to_decide(0.0, 1.0) is None
    assert seeds_to_decide(1e9, 1.0) == 2
    # Its limit of many seeds is the normal test of the common error: 0.5 z(0.975) + 0.5 z(0.8) = 1.40.
    assert seeds_to_decide(1.39, 1.0, 0.25) is None
    assert seeds_to_decide(1.42, 1.0, 0.25) is not None
