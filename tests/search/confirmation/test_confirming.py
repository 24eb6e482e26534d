"""Confirming a search: several challengers, seeds in batches, who is dropped, and going on after an interruption."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.search.config import SearchConfig
from fedscout.search.confirmation.confirmation import Confirmation, confirmation_seeds, contestant, fresh_seeds
from fedscout.search.confirmation.intervals import NEW_DATA
from fedscout.search.confirmation.runs import num_tuning_trials, resolution
from fedscout.search.objective import MEASURES, Objective
from fedscout.search.study import StudyOutcome
from tests.search.studies import (
    FACTS,
    SEED,
    Measured,
    ScriptedRunner,
    completed,
    document,
    failed,
    generator_of,
    keep_trials,
    local_runner,
    study,
    tiny_federation,
)

KINDS = ("fedmedian", "fedadam", "fedadagrad", "krum")
BATCHES = {"strategies": KINDS, "budget": 8, "confirmation_seeds": 12, "confirmation_batch": 4, "tuned_baseline": False}


def jitter(spec: TrialSettings, size: float) -> float:
    return float(generator_of(spec).normal(0, size))


def by_kind(noise: float = 0.004, **means: float) -> Callable[[TrialSettings], Measured]:
    """Return trials whose accuracy is that of their kind, 0.5 if none is given, and noise."""
    return lambda spec: completed(means.get(spec.strategy.kind, 0.5) + jitter(spec, noise))


def scripted(folder: Path, outcome: Callable[[TrialSettings], Measured], **config: Any) -> tuple[StudyOutcome, int]:
    """Return a study, and how many trials its confirmation took."""
    runner = ScriptedRunner(outcome)
    found = study(folder, runner, SearchConfig(**{**BATCHES, **config}))
    return found, sum(spec.session.seed != SEED for spec in runner.ran)


def confirmation_of(outcome: StudyOutcome) -> Confirmation:
    assert outcome.confirmation is not None
    return outcome.confirmation


def test_a_clear_winner_takes_few_seeds(tmp_path: Path) -> None:
    outcome, num_trials = scripted(tmp_path, by_kind(fedadam=0.8))
    found = confirmation_of(outcome)
    assert found.verdict == "better"
    assert len(found.seeds) < 12
    assert num_trials == 2 * len(found.seeds)
    assert found.seeds == confirmation_seeds(SEED, 12)[: len(found.seeds)]
    assert not found.stopped_for_futility


def test_where_nothing_differs_it_gives_up_and_fedavg_is_kept(tmp_path: Path) -> None:
    outcome, num_trials = scripted(tmp_path, by_kind())
    found = confirmation_of(outcome)
    assert (found.verdict, len(found.seeds), num_trials) == ("no difference", 8, 16)
    assert found.stopped_for_futility
    assert found.advised == "FedAvg"


def test_an_early_look_says_no_more_than_what_is_possible(tmp_path: Path) -> None:
    """Of 48 seeds an early look may cost next to no error: its interval is all differences that accuracy has."""
    outcome, _ = scripted(tmp_path, by_kind(noise=0.15), confirmation_seeds=48)
    found = confirmation_of(outcome)
    ends = [end for one in found.versus["fedavg"].values() for end in (one.low, one.high)]
    assert found.stopped_for_futility
    assert ends == [-1.0, 1.0] * 2


@pytest.mark.parametrize("at_four_times_the_rate", [0.9, 0.8])
def test_where_fedavg_alone_is_the_front_the_search_is_confirmed_and_the_tuned_rate_is_not_lost(
    tmp_path: Path, at_four_times_the_rate: float
) -> None:
    """No strategy of the search is as good as FedAvg by either objective; at four times the rate it is better yet."""

    def measured(spec: TrialSettings) -> Measured:
        tuned = spec.session.training.learning_rate == 0.8
        score = at_four_times_the_rate if tuned else 0.8 if spec.strategy.kind == "fedavg" else 0.7
        return {**completed(score), "round_worst_clients": (score / 2,) * 2}

    two = tuple(Objective(name, 2) for name in ("accuracy", "worst_clients"))
    asked = SearchConfig(strategies=KINDS, budget=4, tuned_baseline=True, objective=("accuracy", "worst_clients"))
    second = two[1].measure(MEASURES["accuracy"])
    outcome = study(tmp_path, ScriptedRunner(measured), asked, objectives=two, second_measure=second)
    assert outcome.front == [outcome.baseline]
    found = confirmation_of(outcome)
    better = at_four_times_the_rate > 0.8
    assert found.advised == ("FedAvg at its tuned client rate 0.8" if better else "FedAvg")
    assert found.verdict == "worse"


@pytest.mark.parametrize("guessing", [0.0, 0.4])
def test_a_failed_trial_counts_as_guessing_and_is_told_of(make_record: Callable[..., Trial], guessing: float) -> None:
    trials = [make_record(seed=1, own=0.9, clean=0.7), make_record(seed=2, own=0.0, error="diverged")]
    one = contestant("challenger", trials, guessing=guessing)
    assert (one.own, one.clean, one.failures) == ((0.9, guessing), (0.7, guessing), {2: "diverged"})


@pytest.mark.slow
@pytest.mark.parametrize("num_rounds", [2, 7])
def test_fedavg_under_another_name_does_not_beat_itself(tmp_path: Path, num_rounds: int) -> None:
    """It drives its own rounds and returns its model at the end; still every trial is measured by its last five."""
    own = {"path": "tests.strategies.flower_programs:DrivesItself"}
    config = SearchConfig(strategies=(), customs=(own,), budget=1, confirmation_seeds=5, tuned_baseline=False)
    outcome = study(tmp_path, local_runner(tiny_federation()), config, num_rounds=num_rounds)
    assert outcome.best.round_accuracy == outcome.baseline.round_accuracy
    found = confirmation_of(outcome)
    assert found.verdict == "no difference"
    challenger, fedavg = found.contestants
    assert challenger.own == fedavg.own


@pytest.mark.slow
def test_the_best_few_are_confirmed_and_the_lucky_one_does_not_win(tmp_path: Path) -> None:
    """The search is fooled by one configuration, which is much worse on all other seeds."""
    best: list[TrialSettings] = []

    def outcome(spec: TrialSettings) -> Measured:
        if spec.strategy.kind == "krum":
            return completed(0.9 if spec.session.seed == SEED else 0.4 + jitter(spec, 0.01))
        best.append(spec)
        return by_kind(fedadam=0.8)(spec)

    alone, _ = scripted(tmp_path / "one", outcome, kind="random", budget=24)
    assert confirmation_of(alone).verdict == "worse"

    several, _ = scripted(tmp_path / "three", outcome, kind="random", budget=24, confirmation_top=24)
    found = confirmation_of(several)
    assert found.contestants[0].strategy == "fedadam"
    assert found.verdict == "better"
    lucky = [rival for rival in found.rivals if rival.name.startswith("krum")]
    assert lucky
    assert all(rival.dropped for rival in lucky)


@pytest.mark.slow
def test_who_is_dropped_gets_no_more_seeds(tmp_path: Path) -> None:
    runner = ScriptedRunner(by_kind(0.01, fedadam=0.51, krum=0.2))
    config = SearchConfig(**{**BATCHES, "kind": "random", "confirmation_top": 24, "budget": 24})
    found = confirmation_of(study(tmp_path, runner, config))
    seeds = Counter(str(spec.strategy) for spec in runner.ran if spec.session.seed != SEED)
    dropped = [rival for rival in found.rivals if rival.name.startswith("krum")]
    assert dropped
    assert all(rival.dropped and seeds[rival.name] < len(found.seeds) for rival in dropped)
    assert {len(one.own) for one in found.contestants} == set(seeds.values())


@pytest.mark.slow
@pytest.mark.parametrize(("top", "step"), [(1, 4), (3, 12)])
def test_a_confirmation_cut_off_anywhere_ends_with_the_same_result(tmp_path: Path, top: int, step: int) -> None:
    outcome = by_kind(0.03, fedadam=0.56, krum=0.3)
    config = SearchConfig(**{**BATCHES, "confirmation_top": top})
    whole = ScriptedRunner(outcome)
    expected = document(study(tmp_path / "whole", whole, config))
    num_trials = len(list((tmp_path / "whole" / "trials").iterdir()))
    first = next(number for number, spec in enumerate(whole.ran) if spec.session.seed != SEED)
    assert num_trials - first > 8  # more than one batch
    for num_kept in range(first, num_trials + 1, step):
        folder, rest = tmp_path / str(num_kept), ScriptedRunner(outcome)
        keep_trials(tmp_path / "whole", folder, range(num_kept).__contains__)
        assert document(study(folder, rest, config)) == expected
        assert len(rest.ran) == num_trials - num_kept


def test_the_scale_s_step_is_one_test_row_of_the_smallest_test(make_record: Callable[..., Trial]) -> None:
    records = [
        replace(make_record(seed=1, own=0.5), client_num_examples=(10, 30)),
        replace(make_record(seed=2, own=0.5), client_num_examples=(20, 30)),
        make_record(seed=3, error="round 1: diverged"),
    ]
    assert resolution([records[:1], records[1:]]) == 1 / 40
    assert resolution([records[2:]]) == 0


# -- The tuned reference: which rate is taken, on how many seeds, and what becomes of the study's own ------------------


CONFIG = SearchConfig(tuning_factors=(0.5, 1.0, 2.0, 4.0), confirmation_seeds=2)


def by_rate(fedavg: Callable[[float, int], Measured | None]) -> Callable[[TrialSettings], Measured]:
    """Return trials of which FedAvg's are by rate and seed, 1 less their distance to 0.4 where nothing is said."""

    def outcome(spec: TrialSettings) -> Measured:
        if spec.strategy.kind != "fedavg":
            return completed(0.1)
        rate = spec.session.training.learning_rate
        return fedavg(rate, spec.session.seed) or completed(1 - abs(rate - 0.4))

    return outcome


def tuned(folder: Path, fedavg: Callable[[float, int], Measured | None], config: SearchConfig = CONFIG) -> StudyOutcome:
    return study(folder, ScriptedRunner(by_rate(fedavg)), config)


def cost(folder: Path, config: SearchConfig, best: float) -> int:
    """Return how many trainings a study tunes FedAvg with, whose accuracy at the study's own rate is given."""
    runner = ScriptedRunner(
        by_rate(lambda rate, seed: completed(best) if rate == FACTS.session.training.learning_rate else None)
    )
    study(folder, runner, config)
    return sum(spec.phase == "tuned-baseline" for spec in runner.ran)


def test_the_best_rate_is_the_reference(tmp_path: Path) -> None:
    """1.0 is trial 0 itself and not run again; the study's rate is 0.2, and the fitness peaks at twice that."""
    found = tuned(tmp_path, lambda rate, seed: None)
    assert [rate.learning_rate for rate in found.tuned] == pytest.approx([0.4, 0.2, 0.1, 0.8])
    assert [len(rate.trials) for rate in found.tuned] == [2, 2, 1, 1]
    assert {trial.phase for rate in found.tuned for trial in rate.trials} == {"baseline", "tuned-baseline"}
    assert found.best is found.baseline  # it competes in the confirmation, not in the search
    roles = {one.role: one.learning_rate for one in found.confirmation.contestants}
    assert roles == pytest.approx({"challenger": 0.2, "fedavg": 0.2, "tuned-fedavg": 0.4})
    assert found.confirmation.versus["tuned-fedavg"]["own"].mean == pytest.approx(0.1 - 1.0)
    assert found.confirmation.reference == "tuned-fedavg"


@pytest.mark.parametrize("collapse", [failed("diverged"), completed(0.2)])
def test_a_rate_that_is_best_where_it_works_loses(tmp_path: Path, collapse: Measured) -> None:
    """Of 0.8, which is best on the search's seed: it fails, or collapses, on another one."""

    def fedavg(rate: float, seed: int) -> Measured | None:
        if rate != pytest.approx(0.8):
            return None
        return completed(1.0) if seed == SEED else collapse

    first, second, *_ = tuned(tmp_path, fedavg).tuned
    assert (first.learning_rate, second.learning_rate) == pytest.approx((0.4, 0.8))


def test_a_failure_weighs_more_than_any_mean(tmp_path: Path) -> None:
    """One failure of three, a perfect score on the others, and guessing is nearly as good."""
    last = fresh_seeds("tuning-seed", SEED, 2)[-1]

    def fedavg(rate: float, seed: int) -> Measured | None:
        if rate != pytest.approx(0.8):
            return completed(0.5 if rate == pytest.approx(0.4) else 0.1)
        return failed("diverged") if seed == last else completed(1.0)

    config = CONFIG.model_copy(update={"tuning_seeds": 3})
    first, second, *_ = study(tmp_path, ScriptedRunner(by_rate(fedavg)), config, guessing=0.49).tuned
    assert (first.learning_rate, first.num_failures) == (pytest.approx(0.4), 0)
    assert (second.learning_rate, second.num_failures) == (pytest.approx(0.8), 1)
    assert second.scores == (1.0, 1.0, 0.49)


def test_a_single_rate_that_works_is_not_trained_again(tmp_path: Path) -> None:
    """There is nothing to tell it from: further seeds would decide nothing."""
    found = tuned(tmp_path, lambda rate, seed: None if rate == pytest.approx(0.4) else failed("diverged"))
    assert found.tuned[0].learning_rate == pytest.approx(0.4)
    assert [(len(rate.trials), rate.num_failures) for rate in found.tuned] == [(1, 0), (1, 1), (1, 1), (1, 1)]


def test_the_study_s_own_rate_is_no_second_reference(tmp_path: Path) -> None:
    """Of equals the study's own rate is taken, and FedAvg is trained once a seed in the confirmation."""
    runner = ScriptedRunner(by_rate(lambda rate, seed: completed(0.5)))
    found = study(tmp_path, runner, CONFIG)
    assert found.tuned[0].learning_rate == found.baseline.learning_rate
    assert [one.role for one in found.confirmation.contestants] == ["challenger", "fedavg"]
    confirming = Counter(spec.session.seed for spec in runner.ran if spec.phase == "confirmation")
    assert set(confirming.values()) == {2}


def test_it_is_tuned_on_other_seeds_than_those_of_the_confirmation(tmp_path: Path) -> None:
    runner = ScriptedRunner(by_rate(lambda rate, seed: None))
    study(tmp_path, runner, CONFIG)
    tuning = {spec.session.seed for spec in runner.ran if spec.phase == "tuned-baseline"} - {SEED}
    assert len(tuning) == 1
    assert not tuning & {*confirmation_seeds(SEED, 1000)}


@pytest.mark.parametrize(("factors", "num_seeds"), [((0.5, 2.0), 1), ((0.25, 0.5, 2.0, 4.0), 3), ((2.0,), 5)])
def test_what_it_costs(tmp_path: Path, factors: tuple[float, ...], num_seeds: int) -> None:
    config = SearchConfig(tuning_factors=factors, tuning_seeds=num_seeds, confirmation_seeds=2)
    assert cost(tmp_path, config, best=0.9) == num_tuning_trials(config) == len(factors) + 2 * (num_seeds - 1)


def test_with_the_defaults_it_costs_six_trainings(tmp_path: Path) -> None:
    assert cost(tmp_path, SearchConfig(), best=0.9) == num_tuning_trials(SearchConfig()) == 6


@pytest.mark.parametrize("without", [{"tuned_baseline": False}, {"confirmation_seeds": 0}])
def test_without_a_confirmation_there_is_no_use_for_it(tmp_path: Path, without: dict[str, Any]) -> None:
    config = SearchConfig(**without)
    assert cost(tmp_path, config, best=0.9) == num_tuning_trials(config) == 0


def test_a_fedavg_that_is_right_on_every_row_is_not_tuned(tmp_path: Path) -> None:
    assert cost(tmp_path, SearchConfig(), best=1.0) == 0


def test_where_every_seed_tests_on_the_same_rows_no_interval_is_called_one_for_new_data(tmp_path: Path) -> None:
    config = SearchConfig(**{**BATCHES, "confirmation_batch": None})
    drawn, same = (
        confirmation_of(study(tmp_path / str(is_same), ScriptedRunner(by_kind()), config, same_test_rows=is_same))
        for is_same in (False, True)
    )
    assert drawn.versus == same.versus
    assert [NEW_DATA in found.sentence for found in (drawn, same)] == [True, False]
    assert "another run" in same.sentence
