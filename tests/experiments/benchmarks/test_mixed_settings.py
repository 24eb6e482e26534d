"""Settings of clients' own beside one setting of as many steps."""

from __future__ import annotations

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.timings.engine import (
    BATCHES,
    EPOCHS,
    MixedTurn,
    drawn_settings,
    mixed_lines,
    mixed_turns,
    num_steps,
    uniform_setting,
)
from fedscout.experiments.timings.peers.work import Task
from tests.kits.refusals import refused


def test_one_setting_has_as_many_steps_as_clients_own() -> None:
    """Two clients of 30 rows: 3 epochs of 3 batches and 1 of 1 are 10 steps; 5 of 1 for both are as many."""
    own = [LocalTraining(batch_size=10, local_epochs=3), LocalTraining(batch_size=64, local_epochs=1)]
    assert num_steps(own, 30) == 10
    one = uniform_setting(own, 30)
    assert 2 * num_steps([one], 30) == 10
    for num_clients, num_rows in ((48, 30), (100, 250)):
        own = drawn_settings(num_clients, turn=1)
        assert all(BATCHES[0] <= each.batch_size <= BATCHES[1] for each in own)
        assert all(EPOCHS[0] <= each.local_epochs <= EPOCHS[1] for each in own)
        steps, same = num_steps(own, num_rows), num_clients * num_steps([uniform_setting(own, num_rows)], num_rows)
        assert abs(same - steps) <= num_clients / 2, "the nearest multiple of the clients"


def test_turns_are_measured_and_told() -> None:
    task = Task("tiny", 4, 12, 1, workers=1)
    turns = mixed_turns(task, 2)
    assert len(turns) == 2
    assert turns[0].steps != turns[1].steps, "each turn draws"
    assert all(turn.ratio > 0 for turn in turns)
    told = [MixedTurn(steps=9, uniform_steps=8, seconds=3.0, uniform_seconds=2.0)]
    lines = mixed_lines(task, [*told, MixedTurn(steps=9, uniform_steps=8, seconds=1.0, uniform_seconds=2.0)])
    assert "take 1.00 (0.50 … 1.50) times as long" in lines[1]


def test_what_is_not_trained_many_at_once_is_refused() -> None:
    with refused(ConfigurationError, key="--mixed"):
        mixed_turns(Task("lenet", 2, 4, 1, workers=1), 1)
