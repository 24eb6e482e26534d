"""Racing: its laws and arithmetic, races on hosts in this process, and whole studies with each kind of searcher."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.runner import LocalRunner
from fedscout.search.config import RacingConfig, SearchConfig
from fedscout.search.ledger import StudyEvents, best_of
from fedscout.search.searcher import Proposal
from fedscout.search.searchers.racing import RacingSearcher, Rung, most_trials, race, rung_rounds, total_rounds_of
from fedscout.search.study import StudyOutcome, run_study
from fedscout.strategies import FedAdamSpec, FedAvgSpec, SearchSpace, StrategySpec, space_of
from fedscout.strategies.methods.averaging import FedProxSpec
from tests.kits.refusals import refused
from tests.search.searcher_conformance import COHORT, krums_and_median, some_fitness, task
from tests.search.studies import (
    ScriptedRunner,
    completed,
    document,
    failed,
    keep_trials,
    local_runner,
    open_ledger,
    study,
    tiny_federation,
)

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
def test_all_is_inside_the_space_and_nothing_is_trained_twice(seed: int) -> None:
    searcher = make(seed)
    told = list(trials(searcher))
    assert all(SPACE.contains(each.spec) for each in told)
    assert len({*places(told)}) == len(told)
    assert SPACE.digest(FedAvgSpec()) not in {digest for digest, _ in places(told)}


@pytest.mark.parametrize("config", [{}, {"trainings": 7.3}, {"reduction_factor": 2}])
def test_a_race_costs_what_it_says_and_no_more_than_allowed(config: dict[str, float]) -> None:
    searcher = make(1, **config)
    rounds: dict[str, int] = {}
    for each in trials(searcher):
        digest = SPACE.digest(each.spec)
        rounds[digest] = max(rounds.get(digest, 0), each.asked_rounds or NUM_ROUNDS)
    spent = sum(rounds.values()) / NUM_ROUNDS
    assert spent * NUM_ROUNDS == pytest.approx(total_rounds_of(searcher.rungs))
    assert spent <= RacingConfig.model_validate(config).trainings


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


def test_a_race_tells_how_many_strategies_never_started() -> None:
    small = make(trainings=1)
    left_out = {*SPACE.kinds} - {"fedavg"} - {proposal.spec.kind for proposal in small.plan(ALL)}
    (note,) = small.notes()
    assert f"{len(left_out)} of {len(SPACE.kinds)} strategies" in note
    assert make().notes() == []


def test_a_strategy_that_is_the_reference_needs_no_start() -> None:
    """FedAvgM at rate 1 without momentum is FedAvg, and so is the trimmed mean that trims nobody."""
    space = space_of(Cohort(2, 2, 0.2), kinds=("fedavg", "fedtrimmedavg", "fedmedian"))
    assert make(space=space, trainings=1).notes() == []


@pytest.mark.parametrize("seed", range(5))
def test_the_best_survive_each_rung_and_the_best_of_all_wins(seed: int) -> None:
    searcher = make(seed)
    told = list(trials(searcher))
    start = 0
    for rung, following in zip(searcher.rungs, [*searcher.rungs[1:], None], strict=True):
        stage = told[start : start + rung.size]
        start += rung.size
        assert {each.asked_rounds or NUM_ROUNDS for each in stage} == {rung.num_rounds}
        if following is not None:
            best = sorted(stage, key=lambda each: -each.fitness)[: following.size]
            assert {each.spec for each in told[start : start + following.size]} == {each.spec for each in best}
    assert quality(best_of(told).spec) == max(quality(each.spec) for each in told)


def test_only_full_trainings_can_be_the_best() -> None:
    """After two rounds everything scores more than anything does after thirty."""
    searcher = make()
    told = list(
        trials(searcher, lambda p: Trial(p.spec, fitness=0.9 if p.num_rounds else 0.1, asked_rounds=p.num_rounds))
    )
    assert best_of(told) == told[-1]
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


def test_a_race_cut_off_anywhere_goes_on_as_if_it_had_not_been() -> None:
    whole = list(trials(make(5)))
    for num_logged in range(len(whole) + 1):
        resumed = make(5)
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
    assert best_of(told).spec == worst
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
    rungs = race(RacingConfig(), 30)
    assert rungs == [Rung(2, 15), Rung(8, 3), Rung(30, 1)]
    assert total_rounds_of(rungs) == 70


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


def test_what_a_display_expects() -> None:
    """15 + 3 + 1 trials of 15·2 + 3·8 + 30 = 84 rounds, where as many full ones had 570."""
    assert most_trials(SearchConfig(kind="racing"), 30) == (19, 486)
    assert most_trials(SearchConfig(budget=5), 30) == (5, 0)


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
RUNGS = [(2, 6), (RACE_ROUNDS, 2)]
NUM_TRIALS = 1 + 6 + 2 + 2 * 2


def runner_in(folder: Path, every_rounds: int = 1) -> LocalRunner:
    return LocalRunner(ClientHost(tiny_federation(), {}), CheckpointStore(folder / "checkpoints", every_rounds))


def run_race(folder: Path, runner: LocalRunner | ScriptedRunner, events: StudyEvents | None = None) -> StudyOutcome:
    return run_study(CONFIG, open_ledger(folder, runner, events, num_rounds=RACE_ROUNDS, searcher="racing"))


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyOutcome, int]:
    """A whole study, and the rounds that were trained in it."""
    folder = tmp_path_factory.mktemp("raced")
    rounds: list[Mapping[str, int]] = []
    outcome = run_race(folder, runner_in(folder), StudyEvents(on_rounds=rounds.append))
    return folder, outcome, len(rounds)


@pytest.mark.slow
def test_a_study_of_rungs(raced: tuple[Path, StudyOutcome, int]) -> None:
    folder, outcome, num_trained = raced
    rungs = [(entry.num_rounds, entry.generation) for entry in outcome.trials]
    assert rungs == [(rounds, number) for number, (rounds, size) in enumerate(RUNGS, start=1) for _ in range(size)]
    assert outcome.trainings == (6 * 2 + 2 * 4) / RACE_ROUNDS
    # FedAvg, the race, and two contestants on two fresh seeds.
    assert num_trained == RACE_ROUNDS + 20 + 4 * RACE_ROUNDS
    assert list((folder / "checkpoints").iterdir()) == []
    table = read_trials(folder).sort_values("trial")
    assert list(table["num_rounds"]) == [6, 2, 2, 2, 2, 2, 2, 6, 6, 6, 6, 6, 6]
    assert table["key"].is_unique


def test_only_full_trainings_win_and_are_confirmed(raced: tuple[Path, StudyOutcome, int]) -> None:
    _, outcome, _ = raced
    whole = [outcome.baseline, *outcome.trials[6:]]
    assert outcome.whole_trials == outcome.trials[6:]
    assert outcome.best.fitness == max(entry.fitness for entry in whole)
    assert outcome.confirmation.contestants[0].strategy in {entry.spec.label for entry in outcome.whole_trials}


def comparable(record: Trial) -> dict[str, Any]:
    """All of a record but its place in the study and the time it took."""
    fields = {name: getattr(record, name) for name in record.__dataclass_fields__}
    return {name: fields[name] for name in sorted({*fields} - {"trial", "generation", "seconds", "finished_at"})}


def test_survivors_have_the_bits_of_straight_trainings(raced: tuple[Path, StudyOutcome, int], tmp_path: Path) -> None:
    _, outcome, _ = raced
    ledger = open_ledger(tmp_path, runner_in(tmp_path), num_rounds=RACE_ROUNDS, searcher="racing")
    straight = ledger.run([ledger.facts.trial("search", entry.spec) for entry in outcome.whole_trials])
    assert [comparable(e) for e in outcome.whole_trials] == [comparable(record) for record in straight]
    for entry in outcome.trials[:6]:
        for survivor in outcome.whole_trials:
            if survivor.spec == entry.spec:
                assert survivor.rounds["accuracy"][:2] == entry.rounds["accuracy"]


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("num_lost", [0, 4, 5, 6, 7, 9, 11, NUM_TRIALS])
def test_a_race_cut_off_anywhere_ends_with_the_same_result(
    tmp_path: Path, raced: tuple[Path, StudyOutcome, int], num_lost: int
) -> None:
    """The log is cut, and with it went all checkpoints."""
    folder, outcome, _ = raced
    files = sorted((folder / "trials").iterdir())
    assert len(files) == NUM_TRIALS
    keep_trials(folder, tmp_path, range(NUM_TRIALS - num_lost).__contains__)

    assert document(run_race(tmp_path, runner_in(tmp_path))) == document(outcome)

    assert sorted(path.name for path in (tmp_path / "trials").iterdir()) == [file.name for file in files]
    assert list(tmp_path.glob("checkpoints/*")) == []


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
        run_race(tmp_path, runner_in(tmp_path), StudyEvents(on_rounds=kill))
    again: list[Mapping[str, int]] = []
    resumed = run_race(tmp_path, runner_in(tmp_path), StudyEvents(on_rounds=again.append))

    assert document(resumed) == document(outcome)
    assert len(again) == num_trained - (round_of_death - 1)  # the round of its death was not kept
    assert list(tmp_path.glob("checkpoints/*")) == []


def test_rungs_share_the_name_of_their_checkpoint_until_the_race_is_over(tmp_path: Path) -> None:
    forgotten_when: list[tuple[int, str]] = []
    runner = ScriptedRunner(lambda spec: completed(0.5, num_rounds=spec.num_rounds))
    runner.forget = lambda key: forgotten_when.append((len(runner.batches), key))  # type: ignore[method-assign]
    run_race(tmp_path, runner)
    baseline, *rung = runner.batches[0]
    assert baseline.whole
    assert {(spec.num_rounds, spec.whole) for spec in rung} == {(2, False)}
    assert len({spec.checkpoint for spec in rung}) == len({spec.key for spec in rung}) == 6
    final = runner.batches[1]
    assert {spec.checkpoint for spec in final} <= {spec.checkpoint for spec in rung}
    assert {(spec.num_rounds, spec.whole) for spec in final} == {(RACE_ROUNDS, True)}
    forgotten = [key for batches, key in forgotten_when if batches == 2]
    assert sorted(forgotten) == sorted(spec.checkpoint for spec in rung)  # finalists when done, then the others
    assert [key for batches, key in forgotten_when if batches == 1] == [baseline.key]


# -- Whole studies with each kind of searcher, on hosts in this process: cut off, continued, the same result -----------


BUDGET = 7
KINDS = ("tpe", "gp", "random", "grid", "cmaes")


def config(kind: Any) -> SearchConfig:
    strategies = ("fedadam",) if kind == "cmaes" else ("fedmedian", "fedadam", "krum", "fedprox")
    return SearchConfig(kind=kind, strategies=strategies, budget=BUDGET, generation_size=3, confirmation_seeds=0)


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", KINDS)
def test_a_study_that_lost_trials_ends_with_the_same_result(tmp_path: Path, kind: str) -> None:
    """Cut within the second generation, after the first, and with holes as a killed parallel run leaves them."""
    federation = tiny_federation()
    expected = document(study(tmp_path / "whole", local_runner(federation), config(kind), searcher=kind))
    assert len(list((tmp_path / "whole" / "trials").iterdir())) == 1 + BUDGET
    for number, kept in enumerate(([0, 1, 2, 3, 4, 5], [0, 1, 2, 3], [2, 4, 5, 7], [])):
        folder = tmp_path / str(number)
        keep_trials(tmp_path / "whole", folder, kept.__contains__)
        assert document(study(folder, local_runner(federation), config(kind), searcher=kind)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_generations_are_of_the_configured_size_and_go_on_where_all_fail(tmp_path: Path, kind: str) -> None:
    runner = ScriptedRunner(lambda spec: completed(0.5))
    outcome = study(tmp_path / "completed", runner, config(kind))
    assert [len(batch) for batch in runner.batches] == [1 + 3, 3, 1]
    assert [entry.generation for entry in outcome.trials] == [1, 1, 1, 2, 2, 2, 3]
    lost = study(tmp_path / "failed", ScriptedRunner(lambda spec: failed("diverged")), config(kind))
    assert (len(lost.trials), lost.best, lost.worst) == (BUDGET, None, None)


def test_the_worst_is_told_beside_the_best(tmp_path: Path) -> None:
    """Fitness rises with FedProx's μ; FedAvg counts, as a trial like others."""

    def outcome(spec: Any) -> Any:
        return completed(0.4) if spec.strategy.kind == "fedavg" else completed(0.1 + spec.strategy.proximal_mu / 2)

    found = study(tmp_path, ScriptedRunner(outcome), SearchConfig(kind="random", strategies=("fedprox",), budget=5))
    fitness = [entry.fitness for entry in (found.baseline, *found.trials)]
    assert (found.best.fitness, found.worst.fitness) == (max(fitness), min(fitness))


def test_cma_es_over_all_strategies_is_refused_before_any_trial(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda spec: completed(0.5))
    with refused(ConfigurationError, key="search.kind"):
        study(tmp_path, runner, SearchConfig(kind="cmaes"))
    assert runner.batches == []
