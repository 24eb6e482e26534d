"""The ledger: numbers, keys, resuming, and what a record holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.search.ledger import StudyEvents, StudyFacts
from fedscout.strategies import FedAvgSpec, StrategySpec, parse_strategy
from tests.search.studies import (
    FACTS,
    SEED,
    Measured,
    ScriptedRunner,
    completed,
    facts_of,
    failed,
    local_runner,
    open_ledger,
    open_log,
    tiny_federation,
)

KINDS = ("fedavg", "fedmedian", "fedadam", "krum")


def plans_of(facts: StudyFacts = FACTS) -> list[TrialSettings]:
    return [facts.trial("search", parse_strategy(kind), generation=1) for kind in KINDS]


PLANS = plans_of()


def by_kind(spec: TrialSettings) -> float:
    return 0.2 + 0.1 * KINDS.index(spec.strategy.kind)


def scripted(backwards: bool = False) -> ScriptedRunner:
    return ScriptedRunner(lambda spec: completed(by_kind(spec)), backwards=backwards)


def numbers_and_kinds(records: Sequence[Trial]) -> list[tuple[int, str]]:
    return [(record.trial, record.strategy) for record in records]


@pytest.mark.parametrize("backwards", [False, True])
def test_trials_are_numbered_as_planned_whatever_the_order_in_which_they_end(tmp_path: Path, backwards: bool) -> None:
    ledger = open_ledger(tmp_path, scripted(backwards))
    first, second = ledger.run(PLANS[:3]), ledger.run(PLANS[3:])
    assert numbers_and_kinds([*first, *second]) == list(enumerate(KINDS))
    assert [record.fitness for record in first] == pytest.approx([0.2, 0.3, 0.4])
    assert numbers_and_kinds(open_log(tmp_path).read()) == list(enumerate(KINDS))


@pytest.mark.parametrize("kept", [(), (0,), (3,), (1, 2), (0, 1, 2, 3)])
def test_only_what_the_log_lacks_is_run(tmp_path: Path, kept: tuple[int, ...]) -> None:
    first = open_ledger(tmp_path, scripted()).run(PLANS)
    for path in sorted((tmp_path / "trials").iterdir()):
        if int(path.name[:5]) not in kept:
            path.unlink()
    runner = scripted()

    again = open_ledger(tmp_path, runner).run(PLANS)

    assert [spec.strategy.kind for spec in runner.ran] == [kind for i, kind in enumerate(KINDS) if i not in kept]
    assert [record.key for record in again] == [record.key for record in first]
    assert numbers_and_kinds(again) == numbers_and_kinds(first)


def test_a_logged_trial_of_another_configuration_is_run_again(tmp_path: Path) -> None:
    open_ledger(tmp_path, scripted()).run(PLANS)
    runner = scripted()
    open_ledger(tmp_path, runner, config_hash="another").run(plans_of(facts_of(config_hash="another")))
    assert len(runner.ran) == len(PLANS)


def test_a_trial_that_takes_the_number_of_another_sets_it_aside(tmp_path: Path) -> None:
    """As after an update of the program, when the same command plans other trials: one row a number stays."""
    one, two = (plans_of(facts_of(config_hash=name)) for name in ("one", "two"))
    open_ledger(tmp_path, scripted(), config_hash="one").run(one)
    open_ledger(tmp_path, scripted(), config_hash="two").run(two)
    runner = scripted()
    records = open_ledger(tmp_path, runner, config_hash="two").run(two)
    assert runner.ran == []
    assert {record.config_hash for record in records} == {"two"}
    assert len(list((tmp_path / "trials").iterdir())) == len(PLANS)
    assert len(list((tmp_path / "quarantine").iterdir())) == len(PLANS)


@pytest.mark.parametrize(
    "other",
    [
        replace(PLANS[2], phase="confirmation"),
        PLANS[2].on_seed(SEED + 1),
        FACTS.trial("search", PLANS[2].strategy, learning_rate=0.3),  # type: ignore[arg-type]
        replace(PLANS[2], strategy=parse_strategy({"kind": "fedadam", "eta": 0.0123})),
        replace(PLANS[2], strategy=parse_strategy("fedyogi")),
    ],
)
def test_keys_tell_trials_apart(tmp_path: Path, other: TrialSettings) -> None:
    one, two = open_ledger(tmp_path, scripted_any()).run([PLANS[2], other])
    assert one.key != two.key


def scripted_any() -> ScriptedRunner:
    return ScriptedRunner(lambda spec: completed(0.5))


def test_a_rate_of_its_own_reaches_the_clients_and_the_log(tmp_path: Path) -> None:
    runner = scripted_any()
    own, shared = open_ledger(tmp_path, runner).run([FACTS.trial("x", FedAvgSpec(), learning_rate=0.05), PLANS[0]])
    assert [spec.session.training.learning_rate for spec in runner.ran] == [0.05, FACTS.session.training.learning_rate]
    assert (own.learning_rate, shared.learning_rate) == (0.05, FACTS.session.training.learning_rate)
    assert runner.ran[0].session.training.model_copy(update={"learning_rate": 0.2}) == FACTS.session.training


def test_failed_trials_keep_their_reason_and_are_not_run_twice(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda spec: failed("round 2: diverged"))
    (fresh,) = open_ledger(tmp_path, runner).run(PLANS[:1])
    (read,) = open_ledger(tmp_path, runner).run(PLANS[:1])
    for record in (fresh, read):
        assert (record.status, record.error) == ("failed", "round 2: diverged")
        assert (record.fitness, record.own_fitness, record.clean_fitness) == (0, 0, 0)
        assert record.round_accuracy == (0.9,)  # what it did reach
    assert len(runner.ran) == 1


@pytest.mark.parametrize(("view", "fitness"), [("own", 0.25), ("clean", 0.75)])
def test_fitness_is_the_accuracy_in_the_view(tmp_path: Path, view: str, fitness: float) -> None:
    runner = ScriptedRunner(lambda spec: completed(own=0.25, clean=0.75))
    (record,) = open_ledger(tmp_path, runner, view=view).run(PLANS[:1])
    assert (record.fitness, record.own_fitness, record.clean_fitness) == (fitness, 0.25, 0.75)


def test_a_checkpoint_is_forgotten_once_its_trial_is_in_the_log(tmp_path: Path) -> None:
    runner = scripted()
    logged_when_forgotten: list[int] = []
    forget = runner.forget

    def spy(key: str) -> None:
        logged_when_forgotten.append(sum(record.key == key for record in open_log(tmp_path).read()))
        forget(key)

    runner.forget = spy  # type: ignore[method-assign]
    records = open_ledger(tmp_path, runner).run(PLANS)
    assert runner.forgotten == [record.key for record in records]
    assert logged_when_forgotten == [1] * len(PLANS)


def test_a_checkpoint_left_by_a_kill_between_log_and_removal_is_forgotten_later(tmp_path: Path) -> None:
    records, runner = open_ledger(tmp_path, scripted()).run(PLANS), scripted()
    open_ledger(tmp_path, runner).run(PLANS)
    assert runner.forgotten == [record.key for record in records]


def test_a_cut_off_batch_keeps_what_finished(tmp_path: Path) -> None:
    def outcome(spec: TrialSettings) -> Measured:
        if spec.strategy.kind == "krum":
            raise KeyboardInterrupt
        return completed(by_kind(spec))

    with pytest.raises(KeyboardInterrupt):
        open_ledger(tmp_path, ScriptedRunner(outcome)).run(PLANS)
    runner = scripted()
    records = open_ledger(tmp_path, runner).run(PLANS)
    assert [spec.strategy.kind for spec in runner.ran] == ["krum"]
    assert numbers_and_kinds(records) == list(enumerate(KINDS))


def test_a_display_is_told_what_was_known_and_what_is_new(tmp_path: Path) -> None:
    open_ledger(tmp_path, scripted()).run(PLANS[:2])
    told: list[tuple[int, bool]] = []
    events = StudyEvents(on_record=lambda record, known: told.append((record.trial, known)))
    open_ledger(tmp_path, scripted(), events).run(PLANS)
    assert told == [(0, True), (1, True), (2, False), (3, False)]


@pytest.mark.parametrize(
    "strategy",
    [FedAvgSpec(), parse_strategy({"kind": "fedadam", "eta": 0.1}), parse_strategy({"kind": "fedprox"})],
    ids=str,
)
def test_a_record_is_the_same_fresh_or_read(tmp_path: Path, strategy: StrategySpec) -> None:
    runner = local_runner(tiny_federation(corrupted=True))
    plans = [FACTS.trial("search", strategy, generation=1)]
    (fresh,) = open_ledger(tmp_path, runner).run(plans)
    assert fresh.status == "completed", fresh.error
    (read,) = open_ledger(tmp_path, ScriptedRunner(lambda spec: failed("was run again"))).run(plans)
    # Phases that took no time have no entry in a fresh record.
    assert {name: seconds for name, seconds in read.seconds.items() if seconds} == dict(fresh.seconds)
    assert replace(read, seconds={}) == replace(fresh, seconds={})


def test_the_log_is_one_tidy_table_also_with_failures_and_different_parameters(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda spec: failed("no") if spec.strategy.kind == "krum" else completed(by_kind(spec)))
    open_ledger(tmp_path, runner).run(PLANS)
    table = read_trials(tmp_path).sort_values("trial")
    assert list(table["strategy"]) == list(KINDS)
    assert list(table["status"]) == ["completed"] * 3 + ["failed"]
    assert table["param_eta"].notna().tolist() == [False, False, True, False]
