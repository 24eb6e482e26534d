"""The ledger: numbers, keys, resuming, records, repeated trainings; client settings that are searched or in a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.client_table import SettingsCell, SettingsTable
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.log import read_trials
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import LocalRunner
from fedscout.experiments.config import load_config
from fedscout.search.client_settings import MOST_CELLS, read_settings_table, write_settings_table
from fedscout.search.config import ClientRanges, IntegerInterval, SearchConfig
from fedscout.search.ledger import StudyEvents, trainings_of
from fedscout.search.objective import Objective
from fedscout.strategies import FedAvgSpec, parse_strategy
from fedscout.strategies.methods.averaging import QFedAvgSpec
from tests.engine.trials.test_resume import assert_same
from tests.kits.refusals import refused
from tests.search import studies
from tests.search.studies import FACTS, SEED, Measured, ScriptedRunner, completed, failed, open_ledger, open_log, study

KINDS = ("fedavg", "fedmedian", "fedadam", "krum")


PLANS = [FACTS.trial("search", parse_strategy(kind), generation=1) for kind in KINDS]


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


@pytest.mark.parametrize(
    "changes",
    [{"phase": "confirmation"}, {"seed": SEED + 1}, {"learning_rate": 0.3}, {"strategy": parse_strategy("fedyogi")}],
)
def test_keys_tell_trials_apart(changes: dict[str, Any]) -> None:
    given = {"phase": "search", "strategy": parse_strategy("fedadam"), **changes}
    assert FACTS.trial(**given).key != FACTS.trial("search", parse_strategy("fedadam")).key


def test_a_rate_of_its_own_reaches_the_clients_and_the_log_and_a_plan_s_comes_first(tmp_path: Path) -> None:
    """Before that of the strategy, which comes before that of the study."""
    runner, spec = ScriptedRunner(lambda _: completed(0.5)), QFedAvgSpec(q=1.0, client_learning_rate=0.05)
    plans = [FACTS.trial("x", spec), FACTS.trial("x", spec, learning_rate=0.6), PLANS[0]]
    records = open_ledger(tmp_path, runner).run(plans)
    rates = [0.05, 0.6, FACTS.session.training.learning_rate]
    assert [spec.session.training.learning_rate for spec in runner.ran] == rates
    assert [record.learning_rate for record in records] == rates
    assert runner.ran[0].session.training.model_copy(update={"learning_rate": 0.2}) == FACTS.session.training


def test_failed_trials_keep_their_reason_and_are_not_run_twice(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda spec: failed("round 2: diverged"))
    (fresh,) = open_ledger(tmp_path, runner).run(PLANS[:1])
    (read,) = open_ledger(tmp_path, runner).run(PLANS[:1])
    for record in (fresh, read):
        assert (record.status, record.error) == ("failed", "round 2: diverged")
        assert (record.fitness, record.own_fitness, record.clean_fitness) == (0, 0, 0)
        assert record.rounds["accuracy"] == (0.9,)  # what it did reach
    assert len(runner.ran) == 1


@pytest.mark.parametrize(("view", "fitness"), [("own", 0.25), ("clean", 0.75)])
def test_fitness_is_the_accuracy_in_the_view(tmp_path: Path, view: str, fitness: float) -> None:
    runner = ScriptedRunner(lambda spec: completed(own=0.25, clean=0.75))
    (record,) = open_ledger(tmp_path, runner, view=view).run(PLANS[:1])
    assert (record.fitness, record.own_fitness, record.clean_fitness) == (fitness, 0.25, 0.75)


def test_a_checkpoint_is_forgotten_once_its_trial_is_in_the_log(tmp_path: Path) -> None:
    runner, logged = scripted(), list[bool]()
    runner.forget = lambda key: logged.append(open_log(tmp_path).read()[-1].key == key)  # type: ignore[method-assign]
    open_ledger(tmp_path, runner).run(PLANS)
    assert logged == [True] * len(PLANS)


def test_a_display_is_told_what_was_known_and_what_is_new(tmp_path: Path) -> None:
    open_ledger(tmp_path, scripted()).run(PLANS[:2])
    told: list[tuple[int, bool]] = []
    events = StudyEvents(on_record=lambda record, known: told.append((record.trial, known)))
    open_ledger(tmp_path, scripted(), events).run(PLANS)
    assert told == [(0, True), (1, True), (2, False), (3, False)]


# -- A trial of several trainings: the median of what each would have been alone, and nothing trained twice ------------


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
    assert replace(trainings_of(PLAN, 3)[1], is_full=True).on_seed(SEED) == PLAN  # all else is the trial's
    assert trainings_of(PLAN, 1) == [PLAN]


def test_a_trial_is_the_median_of_its_trainings_and_tells_of_each(tmp_path: Path) -> None:
    trial = only_trial(tmp_path, by_seed([completed(0.9, 0.2), completed(0.3, 0.8), completed(0.5, 0.6)]))
    assert (trial.fitness, trial.own_fitness, trial.clean_fitness) == (0.5, 0.5, pytest.approx(0.6))
    assert (trial.repetition_fitness, trial.num_trainings) == ((0.9, 0.3, 0.5), 3)
    assert (trial.seed, trial.key, trial.is_full, trial.status) == (SEED, PLAN.key, True, "completed")
    (logged,) = open_log(tmp_path).read()
    assert (logged.fitness, logged.repetition_fitness) == (0.5, (0.9, 0.3, 0.5))


def test_the_median_is_of_the_objective_and_curves_have_theirs_round_by_round(tmp_path: Path) -> None:
    curves = [(0.9, 0.9), (0.8, 0.9), (0.1, 0.2)]
    outcomes = [{**completed(0.5), "round_worst_clients": curve} for curve in curves]
    outcomes[0]["round_accuracy"] = (0.1, 0.9)
    trial = only_trial(tmp_path, by_seed(outcomes), objective=Objective("worst_clients", 2))
    assert trial.repetition_fitness == pytest.approx((0.9, 0.85, 0.15))
    assert trial.fitness == pytest.approx(0.85)
    assert (trial.rounds["worst_clients"], trial.rounds["accuracy"]) == ((0.8, 0.9), (0.5, 0.5))


@pytest.mark.parametrize("place", range(3))
def test_a_training_that_fails_is_worse_than_any(tmp_path: Path, place: int) -> None:
    outcomes = [completed(0.9), completed(0.5)]
    outcomes.insert(place, failed("diverged"))
    trial = only_trial(tmp_path, by_seed(outcomes))
    assert (trial.status, trial.fitness) == ("completed", 0.5)
    assert trial.rounds["accuracy"] == (0.7, 0.7)
    (note,) = trial.notes
    assert f"seed {SEEDS[place]}: diverged" in note


def test_a_trial_fails_where_most_of_its_trainings_do(tmp_path: Path) -> None:
    trial = only_trial(tmp_path, by_seed([failed("diverged"), completed(0.9), failed("timeout")]))
    assert (trial.status, trial.fitness, trial.own_fitness) == ("failed", 0.0, 0.0)
    assert f"seed {SEED}: diverged" in str(trial.error)
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
    assert (trial.is_full, trial.asked_rounds, trial.key) == (False, 1, short.key)
    assert runner.forgotten == []
    ledger.release()
    assert sorted(runner.forgotten) == sorted(each.checkpoint for each in trainings_of(short, 3))


@pytest.mark.parametrize("stopped_after", [2, 3, 5, 6])
def test_a_study_that_was_cut_off_repeats_no_training_that_ended(tmp_path: Path, stopped_after: int) -> None:
    """Two rounds a training: after so many of six, the process ends."""
    host = ClientHost(studies.tiny_federation(), {})
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
    assert_same(resumed, expected)
    assert (resumed.fitness, resumed.repetition_fitness) == (expected.fitness, expected.repetition_fitness)
    assert len(counted) - before <= 6 - stopped_after + 1  # the round that was cut off is done again
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_progress_is_told_by_trials(tmp_path: Path) -> None:
    told: list[Mapping[str, int]] = []
    runner = LocalRunner(ClientHost(studies.tiny_federation(), {}))
    open_ledger(tmp_path, runner, StudyEvents(on_rounds=told.append), repetitions=3).run([PLAN])
    assert [dict(each) for each in told] == [{PLAN.key: done} for done in (0, 0, 1, 1, 1, 2)]


def test_the_number_is_odd_and_part_of_the_identity_where_it_is_not_one() -> None:
    assert load_config(["training.repetitions=5"]).identity()["training"]["repetitions"] == 5
    with refused(ConfigurationError, key="training.repetitions"):
        load_config(["training.repetitions=4"])


# -- Client parameters in a search: configured, applied, logged, confirmed; the reference stays ------------------------


RANGES = {
    "learning_rate": {"low": 0.05, "high": 0.8, "log": True},
    "local_epochs": {"low": 1, "high": 3},
    "batch_size": {"low": 4, "high": 16},
}


@pytest.mark.parametrize(
    ("ranges", "key", "named"),
    [
        ("learning_rate: {low: 1, high: 0.1}", "learning_rate", "[1.0, 0.1]"),
        ("learning_rate: {low: 0, high: 1}", "learning_rate.low", "got 0.0"),
        ("local_epochs: {low: 1, high: 9999}", "local_epochs.high", "got 9999"),
        ("momentum: {low: 0, high: 1}", "momentum", "training.momentum"),
    ],
)
def test_ranges_that_cannot_be_trained_with_are_refused(ranges: str, key: str, named: str) -> None:
    with refused(ConfigurationError, key=f"search.client_ranges.{key}", names=named):
        load_config([f"search.client_ranges={{{ranges}}}"])


def test_a_joint_search_has_the_ranges_of_the_priors_unless_others_are_given() -> None:
    usual = load_config(["search.joint=true"]).search
    ranges = "learning_rate: {low: 0.02, high: 1, log: true}, local_epochs: {low: 1, high: 3}"
    joint = load_config([f"search.client_ranges={{{ranges}, batch_size: {{low: 8, high: 32, log: true}}}}"])
    joint = joint.search.client_ranges
    assert usual.client_ranges == joint
    other = load_config(["search.joint=true", "search.client_ranges.batch_size={low: 16, high: 64}"]).search
    assert other.client_ranges == joint.model_copy(update={"batch_size": IntegerInterval(low=16, high=64)})
    fixed = load_config(["search.joint=true", "search.client_ranges.local_epochs=null"]).search
    assert fixed.client_ranges == joint.model_copy(update={"local_epochs": None})
    assert SearchConfig.model_validate(fixed.model_dump()) == fixed


def by_rate(spec: TrialSettings) -> Measured:
    return completed(1 - abs(spec.session.training.learning_rate - 0.4))


def test_a_study_trains_logs_and_confirms_with_them_and_fedavg_stays(tmp_path: Path) -> None:
    runner, ranges = ScriptedRunner(by_rate), ClientRanges.model_validate(RANGES)
    settings = {"strategies": ("fedavg", "fedadam"), "confirmation_seeds": 2, "tuned_baseline": False}
    outcome = study(tmp_path, runner, SearchConfig(client_ranges=ranges, **settings))

    assert runner.ran[0].session.training == FACTS.session.training
    table = read_trials(tmp_path).sort_values("trial").reset_index(drop=True)
    searched = table[table["phase"] == "search"]
    for spec, (_, row) in zip(runner.ran[1:9], searched.iterrows(), strict=True):
        assert spec.session.training.learning_rate == row["learning_rate"] == row["param_client_learning_rate"]
        assert spec.session.training.local_epochs == row["param_client_local_epochs"]
        assert spec.session.training.batch_size == row["param_client_batch_size"]
    assert searched["param_client_local_epochs"].isin([1, 2, 3]).all()
    assert table["param_client_learning_rate"].isna()[0]
    assert "fedavg" in set(searched["strategy"])  # at other client parameters it is a candidate
    rates = [candidate_of.learning_rate for candidate_of in outcome.confirmation.candidates]
    assert rates == [min(searched["learning_rate"], key=lambda rate: abs(rate - 0.4)), outcome.baseline.learning_rate]


def test_a_candidate_at_the_study_s_own_values_is_the_reference(tmp_path: Path) -> None:
    ranges = ClientRanges.model_validate({"local_epochs": {"low": 1, "high": 2}})
    config = SearchConfig(client_ranges=ranges, strategies=("fedavg",), confirmation_seeds=0)
    outcome = study(tmp_path, ScriptedRunner(by_rate), config)
    assert FACTS.session.training.local_epochs == 1
    assert [entry.spec for entry in outcome.trials] == [FedAvgSpec(client_local_epochs=2)]


# -- A table of client settings comes back as it was written, and what is none is told in one line ---------------------


TABLE = SettingsTable(
    tuple(SettingsCell(h, q, 1e-5 * q / (1 + h), 8, 1 + q // 100) for h in (0.2, 0.8) for q in (100, 1000)), 0.5
)
PROVENANCE = {"dataset": "digits", "model": "dense", "num_classes": 10, "metric": "heterogeneity"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.json"
    beside = [{"score": 0.1 * number, "trials": number} for number in range(4)]

    write_settings_table(path, TABLE, {**PROVENANCE, "cells": beside})

    assert read_settings_table(path) == (TABLE, {**PROVENANCE, "cells": beside})
    assert list(path.parent.iterdir()) == [path]


def with_values(name: str, *values: Any) -> Callable[[list[Any]], list[Any]]:
    """Return a change of the first cells' values."""
    return lambda cells: (
        [{**cell, name: value} for cell, value in zip(cells, values, strict=False)] + cells[len(values) :]
    )


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda cells: [{"heterogeneity": 0.2, "quantity": 100}], "cells.0.learning_rate"),
        (lambda cells: cells[:3], "heterogeneity 0.8, quantity 1000"),
        (lambda cells: [*cells, cells[0]], "heterogeneity 0.2, quantity 100 2 times"),
        (lambda cells: [], "cells"),
        (lambda cells: cells * (MOST_CELLS // 4 + 1), f"{MOST_CELLS}"),
        (lambda cells: "cells", "got 'cells'"),
        (with_values("learning_rate", math.nan), "got nan"),
        (with_values("heterogeneity", math.inf), "got inf"),
        (with_values("learning_rate", True), "got True"),
        (with_values("learning_rate", 0.1, 0.1, 0.0), "cells.2.learning_rate"),
        (with_values("local_epochs", 1001), "got 1001"),
        (with_values("quantity", 0, 1000, 0, 1000), "got 0"),
        (with_values("heterogeneity", 0.2, 0.2, 1.5, 1.5), "got 1.5"),
    ],
)
def test_a_table_that_cannot_serve_is_refused(
    tmp_path: Path, change: Callable[[list[Any]], list[Any]], named: str
) -> None:
    path = tmp_path / "table.json"
    write_settings_table(path, TABLE, PROVENANCE)
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "cells": change(document["cells"])}))
    with refused(ConfigurationError, key=path.name, names=named):
        read_settings_table(path)


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged.json", tmp_path / "other.json"
    damaged.write_bytes(b"\xffPAR1 and then nothing")
    other.write_text('{"a": [1]}')
    for path in (tmp_path / "none", damaged, other, tmp_path):
        with refused(ConfigurationError, key=path.name):
            read_settings_table(path)


@pytest.mark.parametrize(
    "cells", [(), TABLE.cells[:3], TABLE.cells + TABLE.cells[:1], (replace(TABLE.cells[0], quantity=0),)]
)
def test_nothing_is_written_that_could_not_be_read(tmp_path: Path, cells: Any) -> None:
    with pytest.raises(ConfigurationError):
        write_settings_table(tmp_path / "table.json", SettingsTable(cells), PROVENANCE)

    assert list(tmp_path.iterdir()) == []


def test_a_metric_of_ones_own_may_have_any_values(tmp_path: Path) -> None:
    path, table = tmp_path / "table.json", SettingsTable((replace(TABLE.cells[0], heterogeneity=-7.0),))

    write_settings_table(path, table, {**PROVENANCE, "metric": "mine:spread"})

    assert read_settings_table(path)[0] == table
