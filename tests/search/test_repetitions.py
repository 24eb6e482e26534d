"""A trial of several trainings: the median of what each would have been alone, and nothing trained twice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.runner import LocalRunner
from fedscout.experiments.config import load_config
from fedscout.search.ledger import StudyEvents, trainings_of
from fedscout.search.objective import Objective
from fedscout.strategies import parse_strategy
from tests.kits.refusals import refused
from tests.search.studies import (
    FACTS,
    SEED,
    Measured,
    ScriptedRunner,
    completed,
    failed,
    open_ledger,
    open_log,
    tiny_federation,
)

PLAN = FACTS.trial("search", parse_strategy("fedavg"), generation=1)
OTHER = FACTS.trial("search", parse_strategy("fedadam"), generation=1)
SEEDS = [training.session.seed for training in trainings_of(PLAN, 3)]


def by_seed(outcomes: list[Measured]) -> ScriptedRunner:
    found = dict(zip(SEEDS, outcomes, strict=True))
    return ScriptedRunner(lambda settings: found[settings.session.seed])


def only_trial(folder: Path, runner: ScriptedRunner, **facts: object) -> Trial:
    (trial,) = open_ledger(folder, runner, repetitions=3, **facts).run([PLAN])
    return trial


def test_seeds_are_the_trial_s_first_distinct_and_the_same_for_all_candidates() -> None:
    assert SEEDS[0] == SEED
    assert len({*SEEDS}) == 3
    assert [training.session.seed for training in trainings_of(OTHER, 3)] == SEEDS
    assert [training.session.seed for training in trainings_of(PLAN, 5)][:3] == SEEDS
    assert {training.session.seed for training in trainings_of(PLAN.on_seed(8), 3)}.isdisjoint(SEEDS)
    assert replace(trainings_of(PLAN, 3)[1], whole=True).on_seed(SEED) == PLAN  # all else is the trial's


def test_a_trial_is_the_median_of_its_trainings_and_tells_of_each(tmp_path: Path) -> None:
    trial = only_trial(tmp_path, by_seed([completed(0.9, 0.2), completed(0.3, 0.8), completed(0.5, 0.6)]))
    assert (trial.fitness, trial.own_fitness, trial.clean_fitness) == (0.5, 0.5, pytest.approx(0.6))
    assert (trial.repetition_fitness, trial.num_trainings) == ((0.9, 0.3, 0.5), 3)
    assert (trial.seed, trial.key, trial.whole, trial.status) == (SEED, PLAN.key, True, "completed")
    (logged,) = open_log(tmp_path).read()
    assert (logged.fitness, logged.repetition_fitness) == (0.5, (0.9, 0.3, 0.5))


def test_one_training_is_the_trial_itself_and_has_no_fitness_of_repetitions(tmp_path: Path) -> None:
    assert trainings_of(PLAN, 1) == [PLAN]
    (trial,) = open_ledger(tmp_path, ScriptedRunner(lambda _: completed(0.5))).run([PLAN])
    assert trial.repetition_fitness is None
    assert "repetition_fitness" not in trial.summary()


def test_curves_are_medians_round_by_round(tmp_path: Path) -> None:
    curves = [(0.1, 0.9), (0.5, 0.2), (0.3, 0.4)]
    trial = only_trial(tmp_path, by_seed([{**completed(0.5), "round_accuracy": curve} for curve in curves]))
    assert trial.round_accuracy == (0.3, 0.4)
    assert trial.fitness == pytest.approx(median(sum(curve) / 2 for curve in curves))


def test_the_median_is_of_the_objective_not_of_the_curves(tmp_path: Path) -> None:
    curves = [(0.9, 0.9), (0.8, 0.9), (0.1, 0.2)]
    objective = Objective("worst_clients", 2)
    outcomes = [{**completed(0.5), "round_worst_clients": curve} for curve in curves]
    trial = only_trial(tmp_path, by_seed(outcomes), objectives=(objective, Objective("accuracy", 2)))
    assert trial.repetition_fitness == pytest.approx((0.9, 0.85, 0.15))
    assert trial.fitness == pytest.approx(0.85)
    assert trial.objectives == pytest.approx((0.85, 0.5))


@pytest.mark.parametrize("place", range(3))
def test_a_training_that_fails_is_worse_than_any(tmp_path: Path, place: int) -> None:
    outcomes = [completed(0.9), completed(0.5)]
    outcomes.insert(place, failed("diverged"))
    trial = only_trial(tmp_path, by_seed(outcomes))
    assert (trial.status, trial.fitness) == ("completed", 0.5)
    assert trial.round_accuracy == (0.7, 0.7)
    (note,) = trial.notes
    assert [value for value in ("1 of 3", f"seed {SEEDS[place]}", "diverged") if value not in note] == []


def test_a_trial_fails_where_most_of_its_trainings_do(tmp_path: Path) -> None:
    trial = only_trial(tmp_path, by_seed([failed("diverged"), completed(0.9), failed("timeout")]))
    assert (trial.status, trial.fitness, trial.own_fitness) == ("failed", 0.0, 0.0)
    assert [value for value in ("2 of 3", f"seed {SEED}", "diverged") if value not in str(trial.error)] == []
    assert trial.repetition_fitness == (0.0, 0.9, 0.0)
    assert open_log(tmp_path).read()[0].status == "failed"


def test_a_logged_trial_is_not_trained_again_and_leaves_no_checkpoints(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda _: completed(0.5), backwards=True)
    first = open_ledger(tmp_path, runner, repetitions=3).run([PLAN, OTHER])
    assert {*runner.forgotten} == {each.checkpoint for plan in (PLAN, OTHER) for each in trainings_of(plan, 3)}
    again = ScriptedRunner(lambda _: completed(0.1))
    found = open_ledger(tmp_path, again, repetitions=3).run([PLAN, OTHER])
    assert [trial.summary() for trial in found] == [trial.summary() for trial in first]
    assert again.ran == []
    assert {*again.forgotten} == {*runner.forgotten}  # the run may have ended between log and checkpoints


def test_ends_of_short_trainings_stay_until_they_are_released(tmp_path: Path) -> None:
    short = FACTS.trial("search", parse_strategy("fedavg"), num_rounds=1)
    runner = ScriptedRunner(lambda _: completed(0.5, num_rounds=1))
    ledger = open_ledger(tmp_path, runner, repetitions=3)
    (trial,) = ledger.run([short])
    assert (trial.whole, trial.asked_rounds, trial.key) == (False, 1, short.key)
    assert runner.forgotten == []
    ledger.release()
    assert sorted(runner.forgotten) == sorted(each.checkpoint for each in trainings_of(short, 3))


def numbers_of(trial: Trial) -> tuple[object, ...]:
    return trial.fitness, trial.repetition_fitness, trial.round_accuracy, trial.round_loss, trial.client_accuracy


def test_a_trial_is_the_median_of_three_that_run_alone(tmp_path: Path) -> None:
    host = ClientHost(tiny_federation(), {})
    alone = open_ledger(tmp_path / "alone", LocalRunner(host)).run([PLAN.on_seed(seed) for seed in SEEDS])
    (trial,) = open_ledger(tmp_path / "together", LocalRunner(host), repetitions=3).run([PLAN])
    assert trial.repetition_fitness == tuple(each.fitness for each in alone)
    assert len({*trial.repetition_fitness}) > 1
    assert trial.fitness == median(trial.repetition_fitness)
    middle = next(each for each in alone if each.fitness == trial.fitness)
    assert trial.client_accuracy == middle.client_accuracy


@pytest.mark.parametrize("stopped_after", [2, 3, 5, 6])
def test_a_study_that_was_cut_off_repeats_no_training_that_ended(tmp_path: Path, stopped_after: int) -> None:
    """Two rounds a training: after so many of six, the process ends."""
    host = ClientHost(tiny_federation(), {})
    (expected,) = open_ledger(tmp_path / "whole", LocalRunner(host), repetitions=3).run([PLAN])
    counted: list[str] = []

    def count(rounds: Mapping[str, int]) -> None:
        counted.extend(rounds)
        if len(counted) == stopped_after:
            raise KeyboardInterrupt

    runner = LocalRunner(host, CheckpointStore(tmp_path / "checkpoints", every_rounds=1))
    with pytest.raises(KeyboardInterrupt):
        open_ledger(tmp_path / "cut", runner, StudyEvents(on_rounds=count), repetitions=3).run([PLAN])
    before = len(counted)
    (resumed,) = open_ledger(tmp_path / "cut", runner, StudyEvents(on_rounds=count), repetitions=3).run([PLAN])
    assert numbers_of(resumed) == numbers_of(expected)
    assert len(counted) - before <= 6 - stopped_after + 1  # the round that was cut off is done again
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_progress_is_told_by_trials(tmp_path: Path) -> None:
    told: list[Mapping[str, int]] = []
    runner = LocalRunner(ClientHost(tiny_federation(), {}))
    open_ledger(tmp_path, runner, StudyEvents(on_rounds=told.append), repetitions=3).run([PLAN])
    assert [dict(each) for each in told] == [{PLAN.key: done} for done in (0, 0, 1, 1, 1, 2)]


def test_the_number_is_odd_and_part_of_the_identity_where_it_is_not_one() -> None:
    assert load_config(["training.repetitions=5"]).identity()["training"]["repetitions"] == 5
    with refused(ConfigurationError, key="training.repetitions"):
        load_config(["training.repetitions=4"])
