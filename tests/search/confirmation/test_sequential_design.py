"""Looking at a confirmation while it runs: what each look may cost, and that all of them together stay within 5 %."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from pydantic import ValidationError
from scipy import stats

from fedscout.search.confirmation.confirmation import assess
from fedscout.search.confirmation.intervals import SequentialDesign, paired_difference, spent_error

NUM_STUDIES = 2000


@pytest.mark.parametrize(
    ("max_seeds", "batch", "looks"),
    [
        (5, None, (5,)),
        (20, 4, (4, 8, 12, 16, 20)),
        (10, 4, (4, 8, 10)),
        (5, 1, (2, 3, 4, 5)),
        (4, 9, (4,)),
        (1, 1, (1,)),
        (0, 3, ()),
        (0, None, ()),
    ],
)
def test_looks_come_after_each_batch_with_two_seeds_at_least_and_at_the_end(
    max_seeds: int, batch: int | None, looks: tuple[int, ...]
) -> None:
    assert SequentialDesign(max_seeds=max_seeds, batch=batch).looks == looks


@pytest.mark.parametrize("fault", [{"max_seeds": -1}, {"batch": 0}, {"num_challengers": 0}, {"resolution": -0.01}])
def test_a_plan_without_sense_is_refused(fault: dict[str, float]) -> None:
    SequentialDesign(max_seeds=0, batch=1, num_challengers=1, resolution=0.01)
    with pytest.raises(ValidationError, match=f"{next(iter(fault))}\n"):
        SequentialDesign.model_validate({"max_seeds": 4, **fault})


@pytest.mark.parametrize(("max_seeds", "batch"), [(5, None), (20, 4), (7, 1), (30, 11), (1000, 1)])
def test_the_looks_spend_five_percent_in_all_and_later_ones_more(max_seeds: int, batch: int | None) -> None:
    """More for each seed, as the last batch may be short: the slope of α(t) rises up to t = z²/3 > 1."""
    design = SequentialDesign(max_seeds=max_seeds, batch=batch)
    errors = np.array([design.error_at(look) for look in design.looks])
    assert errors.sum() == pytest.approx(0.05)
    assert errors.min() >= 0
    per_seed = errors / np.diff([0, *design.looks])
    assert (np.diff(per_seed[per_seed > 0]) > 0).all()  # of many looks the first cost less than the smallest number


@pytest.mark.parametrize(
    # Lan and DeMets' function at 5 %: 2 − 2Φ(1.95996/√t), by tables of the normal distribution.
    ("share", "expected"),
    [(0.25, 8.9e-5), (0.5, 0.00557), (0.75, 0.02363), (1.0, 0.05), (0.0, 0.0)],
)
def test_the_spending_function(share: float, expected: float) -> None:
    assert spent_error(share) == pytest.approx(expected, abs=6e-6)


def test_a_single_look_at_one_challenger_is_the_ordinary_t_interval() -> None:
    ours, baseline = [0.7, 0.8, 0.9, 0.75], [0.6, 0.72, 0.88, 0.7]
    design = SequentialDesign(max_seeds=4)
    assert design.against_baseline(ours, baseline) == paired_difference(ours, baseline)


def test_the_error_is_shared_among_challengers_and_among_their_pairs() -> None:
    # Four challengers: 4 comparisons with FedAvg, 6 with each other.
    generator = np.random.default_rng(3)
    ours, others = generator.uniform(size=(2, 5)).tolist()
    design = SequentialDesign(max_seeds=5, num_challengers=4)
    assert design.against_baseline(ours, others) == paired_difference(ours, others, 0.05 / 4)
    assert design.against_challenger(ours, others) == paired_difference(ours, others, 0.05 / 6)
    assert SequentialDesign(max_seeds=5).against_challenger(ours, others) == paired_difference(ours, others)


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


def test_ordinary_intervals_looked_at_again_and_again_would_find_differences_that_are_not_there() -> None:
    generator = np.random.default_rng(20260101)
    num_wrong = 0
    for _ in range(NUM_STUDIES // 4):
        ours, fedavg = scores_of(generator, [0.0, 0.0], 12).tolist()
        num_wrong += any(paired_difference(ours[:look], fedavg[:look]).verdict for look in range(2, 13))
    assert too_many(num_wrong, NUM_STUDIES // 4)


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


def test_a_large_difference_stops_early_and_a_small_one_does_not() -> None:
    design = SequentialDesign(max_seeds=20, batch=4)
    generator = np.random.default_rng(8)
    looks = {
        shift: [decide(design, scores_of(generator, [shift, 0.0], 20))[2] for _ in range(100)] for shift in (0.1, 0.001)
    }
    assert np.mean(looks[0.1]) < 10
    assert np.mean(looks[0.001]) > 18


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
    assert not design.is_futile(some * 5, nothing * 5)


def test_the_last_look_of_many_challengers_asks_for_more_and_three_differences_are_too_few_to_give_up() -> None:
    one, many = (SequentialDesign(max_seeds=5, batch=1, num_challengers=n, test_to_train=0.25) for n in (1, 10))
    four, nothing = [0.01, 0.02, 0.02, 0.03], [0.0] * 4
    assert many.is_futile(four, nothing)
    assert not one.is_futile(four, nothing)
    assert not many.is_futile([-0.01, 0.0, 0.01], nothing)  # their interval is narrower than the last one, likewise
