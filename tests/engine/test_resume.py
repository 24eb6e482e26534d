"""A trial interrupted after any round and resumed ends with the same bits."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg

from engine.checkpoint import CheckpointStore
from engine.client_host import ClientHost
from engine.trial import TrialResult, TrialSpec, run_trial
from tests.engine.choices import FEDADAM, FEDAVG, FEDAVGM, FLOWER_CHOICES, Choice, Variates, spec_of
from tests.engine.test_local_grid import WatchedGrid

NUM_ROUNDS = 4
CHOICES = {
    "fedavg": FEDAVG,
    "fedadam": FEDADAM,
    "fedavgm": FEDAVGM,
    "fedmedian": FLOWER_CHOICES["fedmedian"],
    "with client states": replace(FEDAVG, rule=Variates()),
}


class Interruption(BaseException):
    """Like KeyboardInterrupt: not an error of the trial."""


def interrupt_in(server_round: int) -> Callable[[int], None]:
    """Return what stops a trial in a round, after its evaluation and before its checkpoint."""

    def stop(done: int) -> None:
        if done == server_round:
            raise Interruption

    return stop


def run(
    spec: TrialSpec, host: ClientHost, store: CheckpointStore | None = None, stop_in: int | None = None
) -> tuple[TrialResult, list[int]]:
    """Run a trial; return its result and the rounds that were trained."""
    grid = WatchedGrid(host, session=spec.session())
    result = run_trial(spec, grid, store, None if stop_in is None else interrupt_in(stop_in))
    return result, sorted({call.config["server-round"] for method, call in grid.calls_made if method == "train"})


def assert_same(first: TrialResult, second: TrialResult) -> None:
    """Everything but the time it took."""
    assert (first.status, first.error, first.dropped) == (second.status, second.error, second.dropped)
    assert first.rounds == second.rounds
    assert np.array_equal(first.vector, second.vector)
    assert first.last_evaluation is not None
    assert second.last_evaluation is not None
    for each in fields(first.last_evaluation):
        assert np.array_equal(getattr(first.last_evaluation, each.name), getattr(second.last_evaluation, each.name))


@pytest.mark.parametrize("stopped_in", range(1, NUM_ROUNDS + 1))
@pytest.mark.parametrize("name", CHOICES)
def test_a_resumed_trial_is_an_uninterrupted_one(host: ClientHost, tmp_path: Path, name: str, stopped_in: int) -> None:
    spec = spec_of(CHOICES[name], num_rounds=NUM_ROUNDS, num_sampled=5)
    expected, _ = run(spec, host)
    store = CheckpointStore(tmp_path / "checkpoints", every_rounds=1)

    with pytest.raises(Interruption):
        run(spec, host, store, stop_in=stopped_in)
    resumed, trained = run(spec, host, store)

    assert trained == list(range(stopped_in, NUM_ROUNDS + 1))
    assert_same(resumed, expected)


def test_only_the_rounds_since_the_last_checkpoint_are_repeated(host: ClientHost, tmp_path: Path) -> None:
    """Checkpoints after rounds 3 and 6; stopped in round 8."""
    spec = spec_of(FEDADAM, num_rounds=9)
    store = CheckpointStore(tmp_path, every_rounds=3)

    with pytest.raises(Interruption):
        run(spec, host, store, stop_in=8)
    resumed, trained = run(spec, host, store)

    assert trained == [7, 8, 9]
    assert_same(resumed, run(spec, host)[0])


def test_interrupted_twice(host: ClientHost, tmp_path: Path) -> None:
    spec = spec_of(replace(FEDAVGM, rule=Variates()), num_rounds=5)
    store = CheckpointStore(tmp_path, every_rounds=1)

    for stopped_in in (2, 4):
        with pytest.raises(Interruption):
            run(spec, host, store, stop_in=stopped_in)
    resumed, trained = run(spec, host, store)

    assert trained == [4, 5]
    assert_same(resumed, run(spec, host)[0])


def test_a_checkpoint_of_more_rounds_than_asked_for_is_not_used(host: ClientHost, tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, every_rounds=1)
    with pytest.raises(Interruption):
        run(spec_of(FEDAVG, num_rounds=9), host, store, stop_in=6)

    shorter, trained = run(spec_of(FEDAVG, num_rounds=3), host, store)

    assert trained == [1, 2, 3]
    assert_same(shorter, run(spec_of(FEDAVG, num_rounds=3), host)[0])


@pytest.mark.parametrize("damage", ["truncated", "empty", "foreign"])
def test_a_checkpoint_that_can_t_be_read_is_ignored_and_reported(
    host: ClientHost, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of(FEDADAM, num_rounds=3)
    store = CheckpointStore(tmp_path, every_rounds=1)
    with pytest.raises(Interruption):
        run(spec, host, store, stop_in=3)
    path = store.path(spec.key)
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes({"truncated": whole[: len(whole) // 2], "empty": b"", "foreign": b"PAR1 not a pickle"}[damage])

    with caplog.at_level(logging.WARNING, logger="fedscout"):
        result, trained = run(spec, host, store)

    assert trained == [1, 2, 3]
    assert_same(result, run(spec, host)[0])
    assert f"checkpoint {path} can't be read and is ignored" in caplog.text


class Unpicklable(FedAvg):
    """Holds what no pickle can."""

    def __init__(self, **counts: Any) -> None:
        super().__init__(**counts, train_metrics_aggr_fn=lambda records, key: MetricRecord())
        self.records: list[RecordDict] = []


def test_a_strategy_that_can_t_be_pickled_goes_on_without(
    host: ClientHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spec = spec_of(Choice(Unpicklable))

    with caplog.at_level(logging.WARNING, logger="fedscout"):
        result, _ = run(spec, host, CheckpointStore(tmp_path / "checkpoints", every_rounds=1))

    assert result.status == "completed"
    assert_same(result, run(spec_of(FEDAVG), host)[0])
    assert "trial 0123456789ab goes on without a checkpoint" in caplog.text
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_folder_that_can_t_be_written_does_not_end_the_trial(
    host: ClientHost, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")

    result, _ = run(spec_of(FEDAVG), host, CheckpointStore(tmp_path / "file" / "checkpoints", every_rounds=1))

    assert result.status == "completed"
    assert "goes on without a checkpoint" in caplog.text


def test_no_folder_no_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(None)

    store.save("key", 1)
    store.discard("key")

    assert not store.due(10)
    assert store.path("key") is None
    assert store.load("key") is None


def test_what_a_killed_process_was_writing_goes_with_its_checkpoint(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    (tmp_path / ".mine.checkpoint.4711.tmp").write_bytes(b"half")
    (tmp_path / ".other.checkpoint.4712.tmp").write_bytes(b"half")
    store.save("mine", {"round": 1})
    store.discard("mine")
    assert [path.name for path in tmp_path.iterdir()] == [".other.checkpoint.4712.tmp"]


def test_checkpoints_are_due_every_so_many_rounds_and_can_be_discarded(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "new", every_rounds=3)

    assert [server_round for server_round in range(1, 10) if store.due(server_round)] == [3, 6, 9]
    assert store.load("a") is None
    store.save("a", {"round": 3})
    store.save("b", {"round": 6})
    assert (store.load("a"), store.load("b")) == ({"round": 3}, {"round": 6})
    assert pickle.loads((tmp_path / "new" / "a.checkpoint").read_bytes()) == {"round": 3}
    store.discard("a")
    store.discard("a")
    assert (store.load("a"), store.load("b")) == (None, {"round": 6})
