"""Shared trials: a short one is the beginning of a long one, nothing is trained twice, and files may be damaged."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.contracts.client_table import SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import Session
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.trials.log import read_columns
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.experiments.grids.federation_runner import NoLog, SharedTrials, trial_digest
from fedscout.search.ledger import Ledger
from fedscout.strategies import parse_strategy
from tests.search import studies

SETTINGS = TrialSettings(
    strategy=parse_strategy({"kind": "fedadam"}),
    num_rounds=7,
    num_sampled=studies.NUM_CLIENTS,
    session=Session(seed=3, training=LocalTraining(learning_rate=0.2, batch_size=8)),
)


TABLE = SettingsLookup(SettingsTable((SettingsCell(0.5, 10, 0.1, 8, 1),)))


@pytest.fixture(autouse=True)
def _identity() -> None:
    """Let trials in this process make Flower messages."""
    claim_task_identity()


def sharing(folder: Path, runner: Any) -> SharedTrials:
    """Return what a measurement that begins in a folder trains by."""
    return SharedTrials(runner, folder, studies.FACTS)


def run(runner: SharedTrials, asked: Sequence[Mapping[str, Any]], **facts: Any) -> list[Trial]:
    """Run trials of FedAdam in a study of seven rounds, on seed 3 unless asked otherwise."""
    ledger = Ledger(replace(studies.FACTS, **{"num_rounds": 7, **facts}), runner, NoLog())
    usual = {"phase": "search", "strategy": parse_strategy({"kind": "fedadam"}), "seed": 3}
    return ledger.run([ledger.facts.trial(**{**usual, **each}) for each in asked])


def test_a_short_trial_is_the_beginning_of_a_long_one(tmp_path: Path) -> None:
    short = {"num_rounds": 3}
    (alone,) = run(sharing(tmp_path / "alone", studies.local_runner(studies.tiny_federation(corrupted=True))), [short])
    runner = sharing(tmp_path / "shared", studies.local_runner(studies.tiny_federation(corrupted=True)))
    run(runner, [{}])
    (found,) = run(runner, [short], config_hash="of another study")
    assert len(list((tmp_path / "shared" / "trials").iterdir())) == 1
    for name in ("rounds", "fitness", "clean_fitness", "status"):
        assert getattr(found, name) == getattr(alone, name)
    assert found.clients["num_examples"] == alone.clients["num_examples"]


def test_a_long_trial_after_a_short_one_is_trained_and_takes_its_place(tmp_path: Path) -> None:
    script = studies.ScriptedRunner(lambda spec: studies.completed(0.5, num_rounds=spec.num_rounds))
    runner = sharing(tmp_path, script)
    for rounds in (3, 7, 3, 7):
        (record,) = run(runner, [{"num_rounds": rounds}])
        assert len(record.rounds["accuracy"]) == rounds
    assert [spec.num_rounds for spec in script.ran] == [3, 7]


def test_who_picks_the_same_shares_its_trial(tmp_path: Path) -> None:
    script = studies.ScriptedRunner(lambda _: studies.completed(0.5, num_rounds=7))
    records = run(sharing(tmp_path, script), [{}, {"phase": "confirmation"}, {}])
    assert len(script.ran) == 1
    assert [record.fitness for record in records] == [0.5] * 3


@pytest.mark.parametrize("kind", ["fedprox", "scaffold"])
def test_a_trial_whose_clients_do_more_than_train_is_found_again(tmp_path: Path, kind: str) -> None:
    script = studies.ScriptedRunner(lambda _: studies.completed(0.5, num_rounds=7))
    asked = [{"strategy": parse_strategy(kind)}]
    (trained,), (found,) = (run(sharing(tmp_path, script), asked) for _ in range(2))
    assert len(script.ran) == 1
    assert (found.strategy, found.parameters, found.fitness) == (kind, trained.parameters, 0.5)


def test_trials_are_rows_of_an_ordinary_log(tmp_path: Path) -> None:
    run(sharing(tmp_path, studies.ScriptedRunner(lambda _: studies.completed(0.5, num_rounds=7))), [{}, {"seed": 4}])
    rows, faults = read_columns(tmp_path / "trials", ["trial", "strategy", "seed", "num_rounds"])
    shared = {"trial": 7, "strategy": "fedadam", "num_rounds": 7}
    assert sorted(rows, key=lambda row: row["seed"]) == [{**shared, "seed": seed} for seed in (3, 4)]
    assert faults == {}


def test_what_finished_before_a_fault_is_kept(tmp_path: Path) -> None:
    def outcome(settings: TrialSettings) -> studies.Measured:
        if settings.session.seed == 2:
            raise KeyboardInterrupt
        return studies.completed(0.5, num_rounds=7)

    with pytest.raises(KeyboardInterrupt):
        run(sharing(tmp_path, studies.ScriptedRunner(outcome)), [{"seed": seed} for seed in range(4)])
    assert len(list((tmp_path / "trials").iterdir())) == 2


def test_a_failed_trial_fails_again_but_its_finished_rounds_count(tmp_path: Path) -> None:
    script = studies.ScriptedRunner(lambda _: studies.failed("round 2: diverged"))
    run(sharing(tmp_path, script), [{}])
    whole, begun = run(sharing(tmp_path, script), [{}, {"num_rounds": 1}])
    assert (whole.status, whole.error, whole.fitness) == ("failed", "round 2: diverged", 0.0)
    assert (begun.status, begun.error, begun.fitness) == ("completed", None, 0.9)
    assert len(script.ran) == 1


@pytest.mark.parametrize(
    "change",
    [
        {"session": replace(SETTINGS.session, seed=4)},
        {"strategy": parse_strategy({"kind": "fedadam", "eta": 0.5})},
        {"session": replace(SETTINGS.session, training=LocalTraining(learning_rate=0.1, batch_size=8))},
        {"session": replace(SETTINGS.session, evaluate_on="validation")},
        {"num_sampled": 2},
        {"session": replace(SETTINGS.session, test_fraction=0.3)},
        {"session": replace(SETTINGS.session, client_table=TABLE)},
        {"strategy": parse_strategy({"kind": "fedprox", "proximal_mu": 0.5})},
    ],
)
def test_what_decides_a_trial_is_in_its_digest(change: dict[str, Any]) -> None:
    assert trial_digest(replace(SETTINGS, **change)) != trial_digest(SETTINGS)


def test_names_and_rounds_are_not() -> None:
    other = replace(SETTINGS, phase="confirmation", num_rounds=2, is_full=False, keep_model=True)
    assert trial_digest(other) == trial_digest(SETTINGS)


def test_a_damaged_file_is_said_and_its_trial_is_run_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("fedscout"), "propagate", True)
    script = studies.ScriptedRunner(lambda _: studies.completed(0.5, num_rounds=7))
    run(sharing(tmp_path, script), [{}])
    (path,) = (tmp_path / "trials").iterdir()
    path.write_bytes(path.read_bytes()[:-20])
    run(sharing(tmp_path, script), [{}])
    assert len(script.ran) == 2
    assert path.name in caplog.text
