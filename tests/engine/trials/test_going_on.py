"""A trial that goes on where a shorter one ended gives the bits of one that was never cut."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.trials.checkpoint import CheckpointStore, read_checkpoint
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.runner import LocalRunner
from tests.engine.choices import FEDADAM, FEDAVG, FLOWER_CHOICES, Choice, Variates, rounds_of, spec_of
from tests.engine.contracts.test_client_task import federation as playing_federation
from tests.engine.trials.test_resume import Interruption, assert_same, run
from tests.engine.trials.test_trial import Whole

CHOICES = {
    "merged": FEDADAM,
    "merged with momentum": FLOWER_CHOICES["fedavgm"],
    "individual": FLOWER_CHOICES["multikrum"],
    "individual with loss": FLOWER_CHOICES["qfedavg"],
    "named, with its own evaluation": replace(
        FLOWER_CHOICES["fedmedian"], wants=replace(FLOWER_CHOICES["fedmedian"].wants, sees_evaluation=True)
    ),
    "with client states": replace(FEDAVG, algorithm=Variates()),
}
NUM_ROUNDS = 6


def rung(choice: Choice, num_rounds: int) -> TrialSettings:
    """Return a trial of fewer rounds that leaves its end behind."""
    return spec_of(choice, num_rounds=num_rounds, num_sampled=5, whole=False)


def whole(choice: Choice) -> TrialSettings:
    return spec_of(choice, num_rounds=NUM_ROUNDS, num_sampled=5)


@pytest.mark.parametrize("name", CHOICES)
def test_rungs_add_up_to_a_straight_training(host: ClientHost, tmp_path: Path, name: str) -> None:
    choice = CHOICES[name]
    store = CheckpointStore(tmp_path)

    first, trained_first = run(rung(choice, 2), host, store)
    second, trained_second = run(rung(choice, 3), host, store)
    third, trained_third = run(whole(choice), host, store)

    assert (trained_first, trained_second, trained_third) == ([1, 2], [3], [4, 5, 6])
    straight, _ = run(whole(choice), host)
    assert_same(third, straight)
    assert rounds_of(first) == rounds_of(straight)[:2]
    assert_same(second, run(spec_of(choice, num_rounds=3, num_sampled=5), host)[0])


@pytest.mark.parametrize("damage", ["lost", "unreadable", "too far"])
def test_without_the_end_of_the_shorter_one_it_starts_anew(host: ClientHost, tmp_path: Path, damage: str) -> None:
    store = CheckpointStore(tmp_path)
    run(rung(FEDADAM, 4), host, store)
    path = store.path(whole(FEDADAM).checkpoint)
    wanted = rung(FEDADAM, 5)
    if damage == "lost":
        path.unlink()
    elif damage == "unreadable":
        path.write_bytes(path.read_bytes()[:50])
    else:
        wanted = rung(FEDADAM, 3)

    result, trained = run(wanted, host, store)

    assert trained == list(range(1, wanted.num_rounds + 1))
    straight, _ = run(spec_of(FEDADAM, num_rounds=wanted.num_rounds, num_sampled=5), host)
    assert rounds_of(result) == rounds_of(straight)


def test_a_rung_that_was_interrupted_goes_on_from_its_last_checkpoint(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, every_rounds=2)
    run(rung(FEDADAM, 1), host, store)
    with pytest.raises(Interruption):
        run(rung(FEDADAM, 5), host, store, stop_in=5)

    resumed, trained = run(rung(FEDADAM, 5), host, store)

    assert trained == [5]
    assert rounds_of(resumed) == rounds_of(run(spec_of(FEDADAM, num_rounds=5, num_sampled=5), host)[0])


def test_a_rung_that_ended_but_was_not_logged_is_repeated_without_training(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    first, _ = run(rung(FEDADAM, 3), host, store)

    again, trained = run(rung(FEDADAM, 3), host, store)

    assert trained == []
    assert rounds_of(again) == rounds_of(first)


def test_a_failed_rung_and_a_whole_trial_leave_nothing(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    diverging = Choice(FEDADAM.flower, {"eta": 1e38})
    failed, _ = run(rung(diverging, 3), host, store)
    assert failed.status == "failed"
    run(whole(FEDAVG), host, store)
    assert list(tmp_path.iterdir()) == []


def test_a_strategy_with_a_start_of_its_own_keeps_none_and_runs_whole(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    run(rung(Choice(Whole), 2), host, store)
    assert list(tmp_path.iterdir()) == []
    result, _ = run(whole(Choice(Whole)), host, store)
    straight, _ = run(whole(Choice(Whole)), host)
    assert np.array_equal(result.vector, straight.vector)
    assert list(result.round_accuracy) == list(straight.round_accuracy)


def test_the_runner_forgets_by_the_name_of_the_state(host: ClientHost, tmp_path: Path) -> None:
    runner = LocalRunner(host, CheckpointStore(tmp_path))
    ((_, first),) = runner.run([rung(FEDAVG, 2)])
    ((_, second),) = runner.run([whole(FEDAVG)])
    assert rounds_of(first) == rounds_of(second)[:2]
    runner.forget(whole(FEDAVG).checkpoint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("choice", [FEDAVG, FLOWER_CHOICES["fedavg-individual"]])
def test_clients_that_play_carry_on_with_what_they_keep(tmp_path: Path, choice: Choice) -> None:
    host = ClientHost(playing_federation(), {})
    store = CheckpointStore(tmp_path)
    run(rung(choice, 3), host, store)
    result, trained = run(whole(choice), host, store)
    assert trained == [4, 5, 6]
    assert_same(result, run(whole(choice), host)[0])


def test_each_counts_its_own_time(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    first, _ = run(rung(FEDADAM, 3), host, store)
    assert first.seconds["total"] > 0
    document, _ = read_checkpoint(tmp_path / f"{whole(FEDADAM).checkpoint}.checkpoint")
    kept = document["state"]
    assert (kept["server_round"], kept["seconds"]) == (3, {})
