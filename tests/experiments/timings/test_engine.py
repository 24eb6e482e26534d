"""The benchmark does the work that it claims to time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedscout.engine.config import EngineConfig
from fedscout.experiments.timings import engine
from fedscout.experiments.timings.engine import (
    EngineBenchConfig,
    EngineReport,
    EngineTiming,
    joined,
    measure_engine,
    time_engine,
    whole_rounds,
    work_federation,
)
from fedscout.experiments.timings.kernels import block_timings, kernel_timings
from fedscout.experiments.timings.peer_runs import PEERS, MissingPeer, Peer, PeerResult, PeerTiming
from fedscout.experiments.timings.peers.work import FEATURE_SHAPES, NUM_CLASSES, Task, WorkName, client_rows
from fedscout.strategies import StrategySpec, parse_strategy


@pytest.mark.parametrize("work", FEATURE_SHAPES)
def test_every_client_has_its_own_rows_and_all_classes_occur(work: WorkName) -> None:
    federation = work_federation(work, num_clients=3, num_samples=60)
    assert federation.features.shape == (180, *FEATURE_SHAPES[work])
    assert sorted(federation.partition.rows) == list(range(180))
    assert federation.partition.sizes.tolist() == [60, 60, 60]
    assert len(np.unique(federation.labels)) == NUM_CLASSES[work]
    again = work_federation(work, num_clients=2, num_samples=60)
    assert np.array_equal(again.features, federation.features[:120])


@pytest.mark.slow
def test_rounds_are_trained_and_timed() -> None:
    specs = [parse_strategy("fedavg"), parse_strategy("fedmedian")]
    few, many = (
        time_engine(Task("dense", 3, 64, rounds, workers=1), specs, EngineConfig(grid="local"))[0].accuracy
        for rounds in (1, 25)
    )
    assert many > few + 0.05, "labels are linear in the features: more rounds must fit them better"
    timings = time_engine(Task("dense", 3, 64, 2, workers=1), specs, EngineConfig(grid="local"))
    assert [timing.strategy for timing in timings] == ["fedavg", "fedmedian"]
    for timing in timings:
        assert timing.hosts == 1
        assert len(timing.round_seconds) == 2
        assert timing.min_seconds_per_round <= timing.median_seconds_per_round
        own = timing.seconds_per_round - timing.phases["hosts"]
        assert timing.driver_seconds_per_client_round == pytest.approx(own / timing.clients)
        parts = sum(seconds for phase, seconds in timing.phases.items() if phase != "hosts")
        assert 0 < parts <= timing.seconds_per_round


def test_rounds_add_up_to_the_wall_time_and_the_last_scoring_belongs_to_the_first() -> None:
    assert whole_rounds([10.0, 11.0, 13.0, 16.0, 16.5], rounds=3) == (1.5, 2.0, 3.0)
    assert whole_rounds([10.0, 12.0, 12.5], rounds=1) == (2.5,)


def test_rounds_that_a_strategy_does_not_tell_of_count_the_same() -> None:
    assert whole_rounds([10.0, 15.0, 16.0], rounds=3) == (2.0, 2.0, 2.0)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_on_ray_the_driver_does_less_than_it_waits() -> None:
    """The hosts' work on LeNet is what takes the time."""
    (timing,) = time_engine(Task("lenet", 2, 200, 3, workers=1), [parse_strategy("fedavg")], EngineConfig(num_hosts=2))
    assert timing.hosts == 2
    assert 0 < timing.driver_seconds_per_client_round * timing.clients < timing.seconds_per_round


# A benchmark's report: what is joined, what is compared with what, and what it looks like.


def timing(kind: str, *round_seconds: float, **changes: Any) -> EngineTiming:
    fields: dict[str, Any] = {
        "work": "dense",
        "clients": 4,
        "samples": 8,
        "sampled": 4,
        "rounds": len(round_seconds),
        "strategy": kind,
        "kind": kind,
        "hosts": 2,
        "round_seconds": round_seconds,
        "phases": {"train": 0.5, "hosts": 0.25},
        "accuracy": 0.75,
        "start_seconds": 1.0,
        "driver_seconds_per_client_round": 1e-5,
    }
    return EngineTiming(**fields | changes)


def peer(*round_seconds: float) -> PeerTiming:
    return PeerTiming(round_seconds=round_seconds, accuracy=0.75, versions={"torch": "1"})


FEDAVG = timing("fedavg", 1.0, 2.0, 6.0)
MEDIAN = timing("fedmedian", 2.0, 5.0, 11.0)


def test_runs_are_joined_round_by_round() -> None:
    later = timing("fedavg", 3.0, 4.0, 5.0, phases={"train": 1.5, "hosts": 0.75}, start_seconds=9.0)
    both = joined([FEDAVG, later])
    assert both.round_seconds == (1.0, 2.0, 6.0, 3.0, 4.0, 5.0)
    assert both.phases == {"train": 1.0, "hosts": 0.5}
    assert (both.rounds, both.start_seconds) == (3, 1.0)


def test_one_strategy_is_a_document_of_its_own() -> None:
    document = EngineReport(timings=(FEDAVG,)).document()
    assert (document["seconds_per_round"], document["median_seconds_per_round"]) == (3.0, 2.0)
    assert document["round_seconds"] == [1.0, 2.0, 6.0]
    assert not {"peers", "memory", "timings", "compared"} & set(document)


def test_strategies_are_told_from_fedavg_where_it_is_among_them() -> None:
    first, second = EngineReport(timings=(MEDIAN, FEDAVG)).document()["timings"]
    assert first["over_fedavg_seconds"] == 3.0
    assert first["times_fedavg"] == {
        "seconds_per_round": 2.0,
        "median_seconds_per_round": 2.5,
        "min_seconds_per_round": 2.0,
    }
    assert "over_fedavg_seconds" not in second
    (alone,) = (EngineReport(timings=(MEDIAN,)).document(),)
    assert "over_fedavg_seconds" not in alone


def test_peers_are_compared_with_our_fedavg_and_the_missing_say_why() -> None:
    peers: dict[str, PeerResult] = {"bare-loop": peer(3.0, 4.0), "pfl": MissingPeer(missing="not installed: do this")}
    report = EngineReport(timings=(MEDIAN, FEDAVG), peers=peers)
    document = report.document()
    assert document["compared"] == "fedavg"
    assert document["peers"]["pfl"] == {"missing": "not installed: do this"}
    assert document["peers"]["bare-loop"]["seconds_per_round"] == 3.5
    assert document["peers"]["bare-loop"]["times_ours"]["median_seconds_per_round"] == 3.5 / 2.0
    assert EngineReport(timings=(MEDIAN,), peers=peers).document()["compared"] == "fedmedian"


class Turns:
    """Stands in for what takes time, and notes its order."""

    def __init__(self, results: dict[str, list[PeerResult]]) -> None:
        self.order: list[str] = []
        self.tasks: list[Task] = []
        self._results = results

    def ours(self, *arguments: Any) -> list[EngineTiming]:
        self.order.append("ours")
        return [timing(spec.kind, float(len(self.order))) for spec in arguments[1]]

    def peer(self, one: Peer, task: Task, seconds: float) -> PeerResult:
        self.order.append(one.name)
        self.tasks.append(task)
        assert seconds == 5.0
        return self._results[one.name].pop(0)


def test_ours_and_peers_take_turns_and_one_without_a_result_has_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = MissingPeer(missing="no result within 5 s")
    turns = Turns({"bare-loop": [peer(1.0), peer(2.0)], "flower": [failed], "pfl": [peer(3.0), failed]})
    monkeypatch.setattr(engine, "time_engine", turns.ours)
    monkeypatch.setattr(engine, "run_peer", turns.peer)
    told: list[str] = []
    specs: list[StrategySpec] = [parse_strategy("fedavg"), parse_strategy("fedmedian")]

    bench_config = EngineBenchConfig(repeats=2, peers=PEERS, peer_seconds=5.0)
    report = measure_engine(Task("dense", 4, 8, 1, workers=1), specs, EngineConfig(), bench_config, told.append)

    assert turns.order == ["ours", "bare-loop", "flower", "pfl", "ours", "bare-loop", "pfl"]
    assert told[0] == "repetition 1 of 2: fedscout"
    assert set(turns.tasks) == {Task("dense", 4, 8, 1, workers=2)}
    assert [each.round_seconds for each in report.timings] == [(1.0, 5.0), (1.0, 5.0)]
    assert report.peers == {"bare-loop": peer(1.0, 2.0), "flower": failed, "pfl": failed}


def test_memory_is_ours_while_we_measure() -> None:
    bench_config = EngineBenchConfig(memory=True)
    report = measure_engine(
        Task("dense", 2, 8, 2, workers=1), [parse_strategy("fedavg")], EngineConfig(grid="local"), bench_config
    )
    assert report.memory is not None
    assert sum(report.memory.parts.values()) == report.memory.pss_bytes > report.memory.data_bytes
    assert report.memory.samples >= 2
    assert report.memory.data_bytes == sum(array.nbytes for array in client_rows("dense", 0, 2 * 8))
    assert report.document()["memory"]["pss_bytes"] == report.memory.pss_bytes


# What is counted of a model's step.


LENET_FORWARD = 2 * (28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10)
FIRST_LAYER = 2 * 28 * 28 * 6 * 75


def test_operations_of_lenet_are_those_counted_by_hand() -> None:
    """Backward takes each layer's product twice, by the weights and by what comes in, the first layer's once."""
    timing = next(kernel_timings(turns=1))

    assert timing.step_operations == 32 * (3 * LENET_FORWARD - FIRST_LAYER)
    assert timing.step_seconds > timing.scored_row_seconds > 0


WEIGHTS = (254 * 64, 64 * 32, 32 * 2)


def test_operations_of_a_block_are_those_counted_by_hand() -> None:
    """For each row every weight once forward, once by the weights, and once by the rows but for the first layer."""
    training, scoring = block_timings(turns=1)

    assert scoring.operations == 20 * 256 * 2 * sum(WEIGHTS)
    assert training.operations == 20 * 256 * 2 * (3 * sum(WEIGHTS) - WEIGHTS[0])
