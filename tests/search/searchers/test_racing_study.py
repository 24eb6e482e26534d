"""Whole studies with each kind of searcher, on hosts in this process: cut off, continued, the same; and races."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.runner import LocalRunner
from fedscout.search.config import RacingConfig, SearchConfig
from fedscout.search.ledger import StudyEvents
from fedscout.search.study import StudyOutcome, run_study
from tests.kits.refusals import refused
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

NUM_ROUNDS = 6
CONFIG = SearchConfig(
    kind="racing",
    strategies=("fedavg", "fedmedian", "fedadam", "krum", "fedtrimmedavg", "fedavgm"),
    racing=RacingConfig(trainings=3.5, reduction_factor=3, min_rounds=2),
    confirmation_seeds=2,
    tuned_baseline=False,
)
"""Rungs of 2 and 6 rounds: 6 start and 2 go on, 6·2 + 2·4 = 20 rounds; 7 would cost 7·2 + 2·4 = 22."""
RUNGS = [(2, 6), (NUM_ROUNDS, 2)]
NUM_TRIALS = 1 + 6 + 2 + 2 * 2


def runner_in(folder: Path, every_rounds: int = 1) -> LocalRunner:
    return LocalRunner(ClientHost(tiny_federation(), {}), CheckpointStore(folder / "checkpoints", every_rounds))


def race(folder: Path, runner: LocalRunner | ScriptedRunner, events: StudyEvents | None = None) -> StudyOutcome:
    return run_study(CONFIG, open_ledger(folder, runner, events, num_rounds=NUM_ROUNDS, searcher="racing"))


@pytest.fixture(scope="module")
def raced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyOutcome, int]:
    """A whole study, and the rounds that were trained in it."""
    folder = tmp_path_factory.mktemp("raced")
    rounds: list[Mapping[str, int]] = []
    outcome = race(folder, runner_in(folder), StudyEvents(on_rounds=rounds.append))
    return folder, outcome, len(rounds)


@pytest.mark.slow
def test_a_study_of_rungs(raced: tuple[Path, StudyOutcome, int]) -> None:
    folder, outcome, num_trained = raced
    rungs = [(entry.num_rounds, entry.generation) for entry in outcome.trials]
    assert rungs == [(rounds, number) for number, (rounds, size) in enumerate(RUNGS, start=1) for _ in range(size)]
    assert outcome.trainings == (6 * 2 + 2 * 4) / NUM_ROUNDS
    # FedAvg, the race, and two contestants on two fresh seeds.
    assert num_trained == NUM_ROUNDS + 20 + 4 * NUM_ROUNDS
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
    ledger = open_ledger(tmp_path, runner_in(tmp_path), num_rounds=NUM_ROUNDS, searcher="racing")
    straight = ledger.run([ledger.facts.trial("search", entry.spec) for entry in outcome.whole_trials])
    assert [comparable(e) for e in outcome.whole_trials] == [comparable(record) for record in straight]
    for entry in outcome.trials[:6]:
        for survivor in outcome.whole_trials:
            if survivor.spec == entry.spec:
                assert survivor.round_accuracy[:2] == entry.round_accuracy


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

    assert document(race(tmp_path, runner_in(tmp_path))) == document(outcome)

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
        race(tmp_path, runner_in(tmp_path), StudyEvents(on_rounds=kill))
    again: list[Mapping[str, int]] = []
    resumed = race(tmp_path, runner_in(tmp_path), StudyEvents(on_rounds=again.append))

    assert document(resumed) == document(outcome)
    assert len(again) == num_trained - (round_of_death - 1)  # the round of its death was not kept
    assert list(tmp_path.glob("checkpoints/*")) == []


def test_rungs_share_the_name_of_their_checkpoint_until_the_race_is_over(tmp_path: Path) -> None:
    forgotten_when: list[tuple[int, str]] = []
    runner = ScriptedRunner(lambda spec: completed(0.5, num_rounds=spec.num_rounds))
    runner.forget = lambda key: forgotten_when.append((len(runner.batches), key))  # type: ignore[method-assign]
    race(tmp_path, runner)
    baseline, *rung = runner.batches[0]
    assert baseline.whole
    assert {(spec.num_rounds, spec.whole) for spec in rung} == {(2, False)}
    assert len({spec.checkpoint for spec in rung}) == len({spec.key for spec in rung}) == 6
    final = runner.batches[1]
    assert {spec.checkpoint for spec in final} <= {spec.checkpoint for spec in rung}
    assert {(spec.num_rounds, spec.whole) for spec in final} == {(NUM_ROUNDS, True)}
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
