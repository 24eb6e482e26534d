"""Laws of racing, which trains configurations for different numbers of rounds."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.search.config import RacingConfig, SearchConfig
from fedscout.search.searcher import Proposal
from fedscout.search.searchers.racing import RacingSearcher, Rung, most_trials, race, rung_rounds, total_rounds_of
from fedscout.strategies import FedAdamSpec, FedAvgSpec, FedProxSpec, SearchSpace, StrategySpec, space_of
from tests.search.searcher_conformance import COHORT, krums_and_median, some_fitness, task

NUM_ROUNDS = 30
SPACE = space_of(COHORT)
ALL = 10**6

Evaluate = Callable[[Proposal], Trial]


def make(seed: int = 0, space: SearchSpace = SPACE, **config: float) -> RacingSearcher:
    return RacingSearcher(task(space, seed, racing=config))


def quality(spec: StrategySpec) -> float:
    return some_fitness(spec).fitness


def steady(proposal: Proposal) -> Trial:
    """More rounds are better, and the order of configurations is the same after any number."""
    rounds = proposal.num_rounds or NUM_ROUNDS
    return Trial(proposal.spec, fitness=quality(proposal.spec) * rounds / NUM_ROUNDS, asked_rounds=proposal.num_rounds)


def trials(searcher: RacingSearcher, evaluate: Evaluate = steady, batch: int = ALL) -> Iterator[Trial]:
    """A study's loop."""
    while proposals := searcher.plan(batch):
        evaluations = [evaluate(proposal) for proposal in proposals]
        searcher.tell(evaluations)
        yield from evaluations


def places(evaluations: Iterator[Trial] | list[Trial]) -> list[tuple[str, int | None]]:
    return [(SPACE.digest(each.spec), each.asked_rounds) for each in evaluations]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("brackets", [1, 3])
def test_all_is_inside_the_space_and_nothing_is_trained_twice(seed: int, brackets: int) -> None:
    searcher = make(seed, brackets=brackets)
    told = list(trials(searcher))
    assert all(SPACE.contains(each.spec) for each in told)
    assert len({*places(told)}) == len(told)
    assert SPACE.digest(FedAvgSpec()) not in {digest for digest, _ in places(told)}


@pytest.mark.parametrize(
    "config",
    [{}, {"trainings": 7.3}, {"trainings": 6, "brackets": 3}, {"reduction_factor": 2}, {"trainings": 5, "brackets": 2}],
)
def test_a_race_costs_what_it_says_and_no_more_than_allowed(config: dict[str, float]) -> None:
    searcher = make(1, **config)
    rounds: dict[str, int] = {}
    for each in trials(searcher):
        digest = SPACE.digest(each.spec)
        rounds[digest] = max(rounds.get(digest, 0), each.asked_rounds or NUM_ROUNDS)
    spent = sum(rounds.values()) / NUM_ROUNDS
    assert spent == pytest.approx(searcher.trainings)
    assert spent <= RacingConfig.model_validate(config).trainings
    assert searcher.trainings * NUM_ROUNDS == sum(total_rounds_of(rungs) for rungs in searcher.brackets)


@pytest.mark.parametrize("seed", range(3))
def test_every_strategy_starts_at_its_defaults(seed: int) -> None:
    first = [proposal.spec for proposal in make(seed).plan(ALL)]
    defaults = {SPACE.digest(SPACE.default(kind)) for kind in SPACE.kinds if kind != "fedavg"}
    assert defaults <= {SPACE.digest(spec) for spec in first}
    assert SPACE.digest(FedAdamSpec()) in defaults  # what the documentation calls good is what is tried
    assert len(first) == 15


def test_what_is_given_starts_before_all_others_if_it_is_in_the_space() -> None:
    given = [FedProxSpec(proximal_mu=0.3), FedAdamSpec(eta=0.02), FedAdamSpec(eta=5.0), FedAvgSpec()]
    searcher = RacingSearcher(task(SPACE, first=given, racing={"trainings": 1.5}))
    first = [proposal.spec for proposal in searcher.plan(ALL)]
    assert first[:2] == given[:2]
    assert not {given[2], given[3]} & set(first)


@pytest.mark.parametrize("seed", range(3))
def test_no_strategy_starts_a_second_time_before_each_has_started_once(seed: int) -> None:
    given = [FedAdamSpec(eta=0.02), FedAdamSpec(eta=0.2)]
    searcher = RacingSearcher(task(SPACE, seed, first=given, racing={"trainings": 4}))
    kinds = [proposal.spec.kind for proposal in searcher.plan(ALL)][2:]
    others = {*SPACE.kinds} - {"fedavg", "fedadam"}
    assert {*kinds[: len(others)]} == others


@pytest.mark.parametrize("config", [{}, {"brackets": 2}, {"reduction_factor": 2}, {"min_rounds": 30}])
@pytest.mark.parametrize("given", [[], [FedAdamSpec(eta=0.02), FedAdamSpec(eta=0.2), FedProxSpec(proximal_mu=0.3)]])
def test_a_race_tells_the_least_budget_with_which_each_strategy_starts(
    config: dict[str, float], given: list[StrategySpec]
) -> None:
    def raced(trainings: float) -> RacingSearcher:
        return RacingSearcher(task(SPACE, first=given, racing={**config, "trainings": trainings}))

    small = raced(1)
    started = {proposal.spec.kind for proposal in small.plan(ALL)}
    assert {*small.never_started} == {*SPACE.kinds} - {"fedavg"} - started
    (note,) = small.notes()
    assert f"{len(small.never_started)} of {len(SPACE.kinds)} strategies" in note
    told = re.search(r"search\.racing\.trainings=([\d.]+)", note)
    enough = float(told[1])
    assert (raced(enough).never_started, raced(enough).notes()) == ((), [])
    assert raced(enough - 0.5).never_started


def test_a_strategy_that_is_the_reference_needs_no_start() -> None:
    """FedAvgM at rate 1 without momentum is FedAvg, and so is the trimmed mean that trims nobody."""
    space = space_of(Cohort(2, 2, 0.2), kinds=("fedavg", "fedtrimmedavg", "fedmedian"))
    assert make(space=space, trainings=1).notes() == []


@pytest.mark.parametrize("seed", range(5))
def test_the_best_survive_each_rung_and_the_best_of_all_wins(seed: int) -> None:
    searcher = make(seed)
    told = list(trials(searcher))
    (rungs,) = searcher.brackets
    start = 0
    for rung, following in zip(rungs, [*rungs[1:], None], strict=True):
        stage = told[start : start + rung.size]
        start += rung.size
        assert {each.asked_rounds or NUM_ROUNDS for each in stage} == {rung.num_rounds}
        if following is not None:
            best = sorted(stage, key=lambda each: -each.fitness)[: following.size]
            assert {each.spec for each in told[start : start + following.size]} == {each.spec for each in best}
    assert quality(searcher.archive.best().spec) == max(quality(each.spec) for each in told)


def test_only_full_trainings_can_be_the_best() -> None:
    """After two rounds everything scores more than anything does after thirty."""
    searcher = make()
    told = list(
        trials(searcher, lambda p: Trial(p.spec, fitness=0.9 if p.num_rounds else 0.1, asked_rounds=p.num_rounds))
    )
    assert searcher.archive.best() == told[-1]
    assert told[-1].asked_rounds is None


def test_asking_changes_nothing() -> None:
    asked, untouched = make(3), make(3)
    while proposals := asked.plan(ALL):
        assert asked.plan(ALL) == proposals == untouched.plan(ALL)
        assert asked.plan(2) == proposals[:2]
        assert asked.ask(2) == [proposal.spec for proposal in proposals[:2]]
        for searcher in (asked, untouched):
            searcher.tell([steady(proposal) for proposal in proposals])
    assert untouched.plan(ALL) == []


@pytest.mark.parametrize("brackets", [1, 2])
def test_a_race_cut_off_anywhere_goes_on_as_if_it_had_not_been(brackets: int) -> None:
    whole = list(trials(make(5, brackets=brackets)))
    for num_logged in range(len(whole) + 1):
        resumed = make(5, brackets=brackets)
        resumed.tell([Trial(FedAvgSpec(), fitness=1.0), *whole[:num_logged]])
        rest = list(trials(resumed))
        assert whole[:num_logged] + rest == whole


@pytest.mark.parametrize("batch", [1, 4])
def test_neither_the_size_of_batches_nor_the_order_in_a_rung_matters(batch: int) -> None:
    whole = list(trials(make(5)))
    assert list(trials(make(5), batch=batch)) == whole
    backwards = make(5)
    while proposals := backwards.plan(ALL):
        backwards.tell([steady(proposal) for proposal in reversed(proposals)])
    forwards = make(5)
    assert list(trials(forwards)) == whole
    assert Counter(places([*backwards.archive.searched])) == Counter(places([*forwards.archive.searched]))


def test_telling_the_log_twice_is_telling_it_once() -> None:
    whole = list(trials(make(5)))
    once, twice = make(5), make(5)
    for searcher in (once, twice, twice):
        searcher.tell(whole[:16])
    assert once.plan(ALL) == twice.plan(ALL)
    assert once.archive.searched == twice.archive.searched


def test_failed_configurations_drop_out() -> None:
    def evaluate(proposal: Proposal) -> Trial:
        if quality(proposal.spec) > 0.5:  # the best ones fail
            return Trial(proposal.spec, status="failed", error="no luck", asked_rounds=proposal.num_rounds)
        return steady(proposal)

    told = list(trials(make(5), evaluate))
    (final,) = [each for each in told if each.asked_rounds is None]
    assert final.status == "completed"
    assert quality(final.spec) == max(q for each in told if (q := quality(each.spec)) <= 0.5)


def test_where_all_of_a_rung_fail_the_next_best_take_their_place() -> None:
    """Everything fails beyond two rounds but the worst of the first rung."""
    specs = [proposal.spec for proposal in make(5).plan(ALL)]
    worst = min(specs, key=quality)

    def evaluate(proposal: Proposal) -> Trial:
        if proposal.num_rounds == 2 or proposal.spec == worst:
            return steady(proposal)
        return Trial(proposal.spec, status="failed", error="late", asked_rounds=proposal.num_rounds)

    searcher = make(5)
    told = list(trials(searcher, evaluate))
    assert searcher.archive.best().spec == worst
    assert told[-1].asked_rounds is None


def test_a_race_in_which_all_fail_ends() -> None:
    searcher = make(5)
    told = list(trials(searcher, lambda p: Trial(p.spec, status="failed", error="no", asked_rounds=p.num_rounds)))
    assert len(told) == 15
    assert {each.asked_rounds for each in told} == {2}


def test_a_small_space_is_raced_through() -> None:
    space, size = krums_and_median()
    told = list(trials(make(space=space)))
    assert Counter(each.asked_rounds for each in told) == {2: size, 8: size, None: 1}
    assert make(space=space_of(space.cohort, kinds=("fedavg",))).plan(ALL) == []


# -- The arithmetic of races -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_rounds", "factor", "min_rounds", "expected"),
    [
        (30, 4, 2, [2, 8, 30]),  # 30/4 = 7.5, 30/16 = 1.875, 30/64 < 1
        (81, 3, 1, [1, 3, 9, 27, 81]),  # Li et al. 2018, table 1
        (81, 3, 9, [9, 27, 81]),
        (1, 4, 2, [1]),
        (10, 4, 11, [10]),
        (2, 2, 1, [1, 2]),
    ],
)
def test_rungs_end_at_shares_of_a_full_training(
    num_rounds: int, factor: int, min_rounds: int, expected: list[int]
) -> None:
    assert rung_rounds(num_rounds, factor, min_rounds) == expected


def test_the_default_race_sees_every_strategy_for_two_and_a_half_trainings() -> None:
    """⌊15/4⌋ = 3 go on, and 1: 30 + 18 + 22 = 70 rounds; 16 would be 32 + 24 + 22 = 78, more than 75."""
    (rungs,) = race(RacingConfig(), 30)
    assert rungs == [Rung(2, 15), Rung(8, 3), Rung(30, 1)]
    assert total_rounds_of(rungs) == 70


@given(
    num_rounds=st.integers(1, 200),
    trainings=st.floats(1, 40),
    factor=st.integers(2, 10),
    min_rounds=st.integers(1, 20),
    brackets=st.integers(1, 4),
)
def test_races_keep_to_their_budget_and_use_it(
    num_rounds: int, trainings: float, factor: int, min_rounds: int, brackets: int
) -> None:
    config = RacingConfig(trainings=trainings, reduction_factor=factor, min_rounds=min_rounds, brackets=brackets)
    races = race(config, num_rounds)
    assert 1 <= len(races) <= brackets
    share = trainings * num_rounds / len(races)
    for rungs in races:
        ends, sizes = [rung.num_rounds for rung in rungs], [rung.size for rung in rungs]
        assert ends == sorted({*ends})
        assert ends[-1] == num_rounds
        assert all(end >= min(min_rounds, num_rounds) for end in ends)
        assert all(smaller == max(1, larger // factor) for larger, smaller in pairwise(sizes))
        assert total_rounds_of(rungs) <= share
        one_more = [sizes[0] + 1]
        for _ in ends[1:]:
            one_more.append(max(1, one_more[-1] // factor))
        assert total_rounds_of([Rung(end, size) for end, size in zip(ends, one_more, strict=True)]) > share
    starts = [rungs[0].num_rounds for rungs in races]
    assert starts == sorted({*starts})


def test_what_a_display_expects() -> None:
    """15 + 3 + 1 trials of 15·2 + 3·8 + 30 = 84 rounds, where as many full ones had 570."""
    assert most_trials(SearchConfig(kind="racing"), 30) == (19, 486)
    assert most_trials(SearchConfig(budget=5), 30) == (5, 0)
