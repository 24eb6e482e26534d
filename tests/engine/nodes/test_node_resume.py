"""A driver that was killed goes on over nodes with the same bits, as long as clients have what they kept."""

from __future__ import annotations

import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ArrayRecord, RecordDict

from fedscout.engine.data.federation import Federation
from fedscout.engine.nodes.client import TRIALS_KEPT, KeptStates, LostStateError, mark
from fedscout.engine.nodes.grid import NodeRoster
from fedscout.engine.nodes.policy import OwnerPolicy
from fedscout.engine.nodes.wire import Wire, algorithms_of
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine.federations import QUERIES, normalised, uneven_federation
from tests.engine.nodes.node_link import SIZES, TRUSTING, NodeLink, linked, node_grid
from tests.engine.nodes.test_node_grid import model_of, settings_of
from tests.engine.trials.test_resume import Interruption, interrupt_in

ALGORITHMS = algorithms_of("fedscout.strategies")
Nodes = tuple[NodeLink, NodeRoster, Wire]


@pytest.fixture
def federation() -> Federation:
    """Four clients of some rows each."""
    return uneven_federation(normalised, sizes=SIZES)


def nodes_with(federation: Federation, folder: Path | None) -> Nodes:
    """Return nodes whose owners have a folder each."""
    link, roster, wire = linked(federation, QUERIES, ALGORITHMS)
    for client, node in enumerate([member.node for member in roster.members]):
        own = None if folder is None else folder / str(client)
        owner = OwnerPolicy(**{**TRUSTING.model_dump(), "folder": own})
        link.connect(node or 0, federation, client, QUERIES, wire, owner)
    return link, roster, wire


def run(
    federation: Federation, nodes: Nodes, settings: TrialSettings, store: Path | None = None, stop_in: int | None = None
) -> Trial:
    """Run a trial as a driver that was just started, up to a round."""
    _, roster, wire = nodes
    grid = node_grid(federation, roster, wire, settings.session, settings.checkpoint)
    stop = None if stop_in is None else interrupt_in(stop_in)
    return run_trial(settings, grid, CheckpointStore(store, every_rounds=1), stop)


def forget_runs(nodes: Nodes) -> None:
    """Have Flower forget what it kept for the clients, as when a run ends."""
    for _, context in nodes[0].apps.values():
        context.state = RecordDict()


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "lost"), [("scaffold", "nothing"), ("fedbn", "nothing"), ("scaffold", "the run's"), ("ditto", "the run's")]
)
def test_a_killed_driver_has_the_same_bits(kind: str, lost: str, federation: Federation, tmp_path: Path) -> None:
    settings = replace(settings_of(kind, federation), num_rounds=4)
    expected = run(federation, nodes_with(federation, None), settings)
    nodes = nodes_with(federation, tmp_path / "owners" if lost != "nothing" else None)
    with pytest.raises(Interruption):
        run(federation, nodes, settings, tmp_path / "store", stop_in=3)
    if lost == "the run's":
        forget_runs(nodes)
    resumed = run(federation, nodes, settings, tmp_path / "store")
    assert np.array_equal(model_of(resumed), model_of(expected))
    assert (resumed.round_accuracy, resumed.dropped_clients) == (expected.round_accuracy, {})


@pytest.mark.parametrize("kind", ["ditto"])
def test_what_is_lost_for_good_costs_a_round_and_is_told_in_one_line(
    kind: str, federation: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = replace(settings_of(kind, federation), num_rounds=5)
    nodes = nodes_with(federation, tmp_path / "owners")
    with pytest.raises(Interruption):
        run(federation, nodes, settings, tmp_path / "store", stop_in=2)
    _, context = nodes[0].apps[nodes[1].members[1].node or 0]
    context.state = RecordDict()
    shutil.rmtree(tmp_path / "owners" / "1")
    with caplog.at_level(logging.WARNING, "fedscout"):
        trial = run(federation, nodes, settings, tmp_path / "store")
    assert trial.status == "completed", trial.error
    assert set(trial.dropped_clients) == {"2:1"}
    assert sum("lost its state" in record.message for record in caplog.records) == 1


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    trial = "a" * 64
    kept = KeptStates(RecordDict(), tmp_path)
    kept.keep(trial, 1, {"x": np.ones(3, np.float32)})
    (file,) = tmp_path.rglob("*.npz")
    for content in (b"", b"PK\x03\x04 and no more", file.read_bytes()[:-40]):
        file.write_bytes(content)
        with pytest.raises(LostStateError):
            KeptStates(RecordDict(), tmp_path).find(trial, mark(1))


@pytest.mark.parametrize("told", [[], [np.nan], [np.inf], [1.5], [1.0, 2.0]])
def test_a_mark_that_is_none_stands_for_nothing(told: list[float]) -> None:
    kept = KeptStates(RecordDict())
    kept.keep("t", 1, {"x": np.ones(3, np.float32)})
    with pytest.raises(LostStateError):
        kept.find("t", {"kept-after-round": np.array(told, np.float32)})


@pytest.mark.slow
def test_two_trials_in_turns_do_not_mix_their_states(federation: Federation, tmp_path: Path) -> None:
    both = [replace(settings_of("scaffold", federation), num_rounds=4).on_seed(seed) for seed in (3, 11)]
    alone = [run(federation, nodes_with(federation, None), settings) for settings in both]
    nodes = nodes_with(federation, None)
    for stop in (2, 3):
        for settings in both:
            with pytest.raises(Interruption):
                run(federation, nodes, settings, tmp_path, stop)
    for settings, expected in zip(both, alone, strict=True):
        assert np.array_equal(model_of(run(federation, nodes, settings, tmp_path)), model_of(expected))


def test_an_earlier_run_of_a_trial_does_not_outlive_its_next_one(tmp_path: Path) -> None:
    """The state after the first round of a new run must not be taken for an older one than the last run's."""
    memory, trial = RecordDict(), "b" * 64
    kept = KeptStates(memory, tmp_path)
    for server_round in (8, 9):
        kept.keep(trial, server_round, {"x": np.full(2, server_round, np.float32)}, mark(8))
    kept.keep(trial, 1, {"x": np.zeros(2, np.float32)})
    for again in (kept, KeptStates(RecordDict(), tmp_path)):
        assert again.find(trial, mark(1))["x"].tolist() == [0, 0]
        with pytest.raises(LostStateError):
            again.find(trial, mark(9))


def test_a_client_keeps_what_the_driver_has_however_often_it_was_late(tmp_path: Path) -> None:
    kept, trial = KeptStates(RecordDict(), tmp_path), "c" * 64
    kept.keep(trial, 1, {"x": np.ones(1, np.float32)})
    for late in (2, 3, 4):
        kept.keep(trial, late, {"x": np.zeros(1, np.float32)}, mark(1))
        assert kept.find(trial, mark(1))["x"] == 1


def test_what_is_kept_does_not_grow_without_end(tmp_path: Path) -> None:
    memory = RecordDict()
    kept = KeptStates(memory, tmp_path)
    for trial in range(2 * TRIALS_KEPT):
        for server_round in (1, 2, 3):
            marked = mark(server_round - 1) if server_round > 1 else None
            kept.keep(f"{trial:x}".ljust(64, "0"), server_round, {"x": np.zeros(1, np.float32)}, marked)
    kept_arrays = [name for record in memory.values() if isinstance(record, ArrayRecord) for name in record]
    assert len(kept_arrays) == 2 * TRIALS_KEPT
    assert len([*tmp_path.rglob("*.npz")]) == TRIALS_KEPT
