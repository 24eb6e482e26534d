"""Racing: its laws and arithmetic, and races on hosts in this process that are cut off, killed and continued."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from fedscout.engine.client.host import ClientHost
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.runner import LocalRunner
from fedscout.search.config import RacingConfig, SearchConfig
from fedscout.search.ledger import StudyEvents, best_of
from fedscout.search.searchers.racing import RacingSearcher, Rung, most_trials, race, rung_rounds, total_rounds_of
from fedscout.search.study import StudyOutcome, run_study
from fedscout.strategies import FedAdamSpec, FedAvgSpec, SearchSpace, StrategySpec
from tests.search import searcher_conformance as kit
from tests.search.studies import document, open_ledger, tiny_federation

NUM_ROUNDS = 30
SPACE = kit.space_with()
ALL = 10**6


def racer(seed: int = 0, space: SearchSpace = SPACE, first: Any = (), **racing: float) -> RacingSearcher:
    return kit.searcher_of(space, seed, first, kind="racing", racing=racing)


def whole_race(searcher: RacingSearcher, evaluate: Any = kit.some_fitness) -> list[Trial]:
    return list(kit.trials(searcher, evaluate, ALL, ALL))


def starters(searcher: RacingSearcher) -> list[StrategySpec]:
    return searcher.ask(ALL)


class TestRacingSearcher(kit.SearcherLaws, kind="racing"):
    num_trials = 15 + 3 + 1


@pytest.mark.parametrize("config", [{}, {"trainings": 7.3}, {"reduction_factor": 2}])
def test_a_race_costs_what_it_says_and_no_more_than_allowed(config: dict[str, float]) -> None:
    searcher = racer(1, **config)
    longest: Counter[str] = Counter()
    for trial in whole_race(searcher):
        longest[SPACE.digest(trial.spec)] = trial.asked_rounds or NUM_ROUNDS  # each rung is longer than the one before
    assert sum(longest.values()) == total_rounds_of(searcher.rungs)
    assert sum(longest.values()) <= NUM_ROUNDS * RacingConfig.model_validate(config).trainings


def test_every_strategy_starts_at_its_defaults() -> None:
    defaults = {SPACE.digest(SPACE.default(kind)) for kind in SPACE.kinds if kind != "fedavg"}
    first = starters(racer())
    assert defaults <= {SPACE.digest(spec) for spec in first}
    assert SPACE.digest(FedAdamSpec()) in defaults  # what the documentation calls good is what is tried
    assert len(first) == 15


def test_what_is_given_and_in_the_space_starts_first_and_no_strategy_twice_before_each_has_started_once() -> None:
    given = [FedAdamSpec(eta=0.02), FedAdamSpec(eta=0.2), FedAdamSpec(eta=5.0), FedAvgSpec()]
    first = starters(racer(first=given, trainings=4))
    others = {*SPACE.kinds} - {"fedavg", "fedadam"}
    assert first[:2] == given[:2]
    assert {spec.kind for spec in first[2 : 2 + len(others)]} == others
    assert given[2] not in first


def test_a_race_tells_how_many_strategies_never_started() -> None:
    """But one that is the reference needs no start, as the trimmed mean that trims nobody."""
    small = racer(trainings=1)
    left_out = {*SPACE.kinds} - {"fedavg"} - {spec.kind for spec in starters(small)}
    (note,) = small.notes()
    assert f"{len(left_out)} of {len(SPACE.kinds)} strategies" in note
    two = kit.space_with(
        "fedavg", "fedtrimmedavg", "fedmedian", cohort=replace(kit.FOUR_CLIENTS, num_clients=2, num_sampled=2)
    )
    assert racer().notes() == racer(space=two, trainings=1).notes() == []


@pytest.mark.parametrize("seed", range(3))
def test_the_best_survive_each_rung_and_the_best_of_all_wins_whatever_the_order_of_results(seed: int) -> None:
    searcher, backwards = racer(seed), racer(seed)
    stages = [searcher.rungs[0].size, searcher.rungs[0].size + searcher.rungs[1].size]
    told = whole_race(searcher)
    rungs = [told[: stages[0]], told[stages[0] : stages[1]], told[stages[1] :]]
    for rung, survivors in pairwise(rungs):
        best = sorted(rung, key=lambda trial: -trial.fitness)[: len(survivors)]
        assert [trial.spec for trial in survivors] == [trial.spec for trial in best]
        backwards.tell(rung[::-1])
        assert starters(backwards) == [trial.spec for trial in survivors]
    assert [{trial.asked_rounds for trial in rung} for rung in rungs] == [{2}, {8}, {None}]
    assert told[-1].fitness == max(trial.fitness for trial in told)
    assert best_of(told) == told[-1]


def test_failed_configurations_drop_out() -> None:
    *_, final = told = whole_race(racer(5), kit.some_failures)
    assert (final.status, final.asked_rounds) == ("completed", None)
    assert final.fitness == max(trial.fitness for trial in told)


def test_where_all_of_a_rung_fail_the_next_best_take_their_place() -> None:
    """Everything fails beyond two rounds but the worst of the first rung."""
    searcher = racer(5)
    worst = min(starters(searcher), key=lambda spec: kit.some_fitness(spec).fitness)
    while planned := searcher.plan(ALL):
        for each in planned:
            evaluate = kit.some_fitness if each.num_rounds == 2 or each.spec == worst else kit.failing
            searcher.tell([replace(evaluate(each.spec), asked_rounds=each.num_rounds)])
        final = planned
    assert [(each.spec, each.num_rounds) for each in final] == [(worst, None)]


def test_a_race_in_which_all_fail_ends() -> None:
    assert [trial.asked_rounds for trial in whole_race(racer(5), kit.failing)] == [2] * 15


def test_a_small_space_is_raced_through() -> None:
    """Krum among four, of f = 0 or 1, and the median."""
    told = whole_race(racer(space=kit.space_with("fedavg", "fedmedian", "krum", cohort=kit.FOUR_CLIENTS)))
    assert Counter(trial.asked_rounds for trial in told) == {2: 3, 8: 3, None: 1}


# -- The arithmetic of races -------------------------------------------------------------------------------------------


def test_rungs_end_at_shares_of_a_full_training() -> None:
    """By Li et al. 2018, table 1; 30/4 = 7.5, 30/16 = 1.875, 30/64 < 1."""
    published = {(81, 3, 1): [1, 3, 9, 27, 81], (81, 3, 9): [9, 27, 81]}
    expected = {**published, (30, 4, 2): [2, 8, 30], (1, 4, 2): [1], (10, 4, 11): [10], (2, 2, 1): [1, 2]}
    assert {case: rung_rounds(*case) for case in expected} == expected


def test_the_default_race_sees_every_strategy_for_two_and_a_half_trainings() -> None:
    """⌊15/4⌋ = 3 go on, and 1: 30 + 18 + 22 = 70 rounds; 16 would be 32 + 24 + 22 = 78, more than 75.

    A display expects 19 trials of 15·2 + 3·8 + 30 = 84 rounds, where as many full ones had 570.
    """
    assert race(RacingConfig(), 30) == [Rung(2, 15), Rung(8, 3), Rung(30, 1)]
    assert total_rounds_of(race(RacingConfig(), 30)) == 70
    assert most_trials(SearchConfig(kind="racing"), 30) == (19, 486)
    assert most_trials(SearchConfig(budget=5), 30) == (5, 0)


@given(
    num_rounds=st.integers(1, 200), trainings=st.floats(1, 40), factor=st.integers(2, 10), min_rounds=st.integers(1, 20)
)
def test_races_keep_to_their_budget_and_use_it(num_rounds: int, trainings: float, factor: int, min_rounds: int) -> None:
    rungs = race(RacingConfig(trainings=trainings, reduction_factor=factor, min_rounds=min_rounds), num_rounds)
    ends, sizes = [rung.num_rounds for rung in rungs], [rung.size for rung in rungs]
    assert ends == sorted({*ends})
    assert ends[-1] == num_rounds
    assert all(end >= min(min_rounds, num_rounds) for end in ends)
    assert all(smaller == max(1, larger // factor) for larger, smaller in pairwise(sizes))
    assert total_rounds_of(rungs) <= trainings * num_rounds
    one_more = [sizes[0] + 1]
    for _ in ends[1:]:
        one_more.append(max(1, one_more[-1] // factor))
    assert total_rounds_of([Rung(end, size) for end, size in zip(ends, one_more, strict=True)]) > trainings * num_rounds


# -- Races on hosts in this process: cut off, killed, continued --------------------------------------------------------


RACE_ROUNDS = 6
CONFIG = SearchConfig(
    kind="racing",
    strategies=("fedavg", "fedmedian", "fedadam", "krum", "fedtrimmedavg", "fedavgm"),
    racing=RacingConfig(trainings=3.5, reduction_factor=3, min_rounds=2),
    confirmation_seeds=2,
    tuned_baseline=False,
)
"""Rungs of 2 and 6 rounds: 6 start and 2 go on, 6·2 + 2·4 = 20 rounds; 7 would cost 7·2 + 2·4 = 22."""
NUM_TRIALS = 1 + 6 + 2 + 2 * 2


def run_race(folder: Path, rounds: Any = None) -> StudyOutcome:
    runner = LocalRunner(ClientHost(tiny_federation(), {}), CheckpointStore(folder / "checkpoints", 1))
    events = StudyEvents(on_rounds=rounds)
    return run_study(CONFIG, open_ledger(folder, runner, events, num_rounds=RACE_ROUNDS, searcher="racing"))


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyOutcome, int]:
    """A whole study, and the rounds that were trained in it."""
    folder = tmp_path_factory.mktemp("raced")
    rounds: list[Mapping[str, int]] = []
    return folder, run_race(folder, rounds.append), len(rounds)


@pytest.mark.slow
def test_a_study_of_rungs(raced: tuple[Path, StudyOutcome, int]) -> None:
    folder, outcome, num_trained = raced
    assert [(entry.num_rounds, entry.generation) for entry in outcome.trials] == [(2, 1)] * 6 + [(RACE_ROUNDS, 2)] * 2
    assert outcome.trainings == (6 * 2 + 2 * 4) / RACE_ROUNDS
    # FedAvg, the race, and two contestants on two fresh seeds.
    assert num_trained == RACE_ROUNDS + 20 + 4 * RACE_ROUNDS
    assert list((folder / "checkpoints").iterdir()) == []
    table = read_trials(folder).sort_values("trial")
    assert list(table["num_rounds"]) == [6, 2, 2, 2, 2, 2, 2, 6, 6, 6, 6, 6, 6]
    assert table["key"].is_unique
    assert outcome.best.fitness == max(entry.fitness for entry in [outcome.baseline, *outcome.trials[6:]])


def comparable(record: Trial) -> Trial:
    """All of a record but its place in the study and the time it took."""
    return replace(record, trial=0, generation=0, seconds={}, finished_at=None)


def test_survivors_have_the_bits_of_straight_trainings(raced: tuple[Path, StudyOutcome, int], tmp_path: Path) -> None:
    _, outcome, _ = raced
    runner = LocalRunner(ClientHost(tiny_federation(), {}))
    ledger = open_ledger(tmp_path, runner, num_rounds=RACE_ROUNDS, searcher="racing")
    straight = ledger.run([ledger.facts.trial("search", entry.spec) for entry in outcome.full_trials])
    assert [comparable(entry) for entry in outcome.full_trials] == [comparable(record) for record in straight]
    for survivor in outcome.full_trials:
        (start,) = [entry for entry in outcome.trials[:6] if entry.spec == survivor.spec]
        assert survivor.rounds["accuracy"][:2] == start.rounds["accuracy"]


class Killed(BaseException):
    """What ends a run in the middle of a round."""


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("round_of_death", [1, 7, 8, 16, 17, 20, 25, 30])
def test_a_race_killed_in_any_round_goes_on_without_repeating_what_it_kept(
    tmp_path: Path, raced: tuple[Path, StudyOutcome, int], round_of_death: int
) -> None:
    _, outcome, num_trained = raced
    done: list[Mapping[str, int]] = []

    def kill(rounds: Mapping[str, int]) -> None:
        done.append(rounds)
        if len(done) == round_of_death:
            raise Killed

    with pytest.raises(Killed):
        run_race(tmp_path, kill)
    again: list[Mapping[str, int]] = []

    assert document(run_race(tmp_path, again.append)) == document(outcome)
    assert len(again) == num_trained - (round_of_death - 1)  # the round of its death was not kept
    assert list(tmp_path.glob("checkpoints/*")) == []
