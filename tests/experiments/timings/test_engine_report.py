"""A benchmark's report: what is joined, what is compared with what, and what it looks like."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedscout.engine.config import EngineConfig
from fedscout.experiments.timings import engine
from fedscout.experiments.timings.engine import (
    PEERS,
    EngineReport,
    EngineTiming,
    MissingPeer,
    Peer,
    PeerResult,
    PeerTiming,
    joined,
    measure_engine,
)
from fedscout.experiments.timings.peers.work import Task
from fedscout.strategies import StrategySpec, parse_strategy


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


def test_a_timing_gives_mean_median_and_least() -> None:
    figures = (FEDAVG.seconds_per_round, FEDAVG.median_seconds_per_round, FEDAVG.min_seconds_per_round)
    assert figures == (3.0, 2.0, 1.0)


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
    assert not {"peers", "timings", "compared"} & set(document)
    assert document["processor"].endswith(f", {torch.backends.cpu.get_cpu_capability()}")


def test_strategies_are_told_from_fedavg_where_it_is_among_them() -> None:
    first, second = EngineReport(timings=(MEDIAN, FEDAVG)).document()["timings"]
    assert first["over_fedavg_seconds"] == 3.0
    assert first["times_fedavg"] == 2.5
    assert "over_fedavg_seconds" not in second
    (alone,) = (EngineReport(timings=(MEDIAN,)).document(),)
    assert "over_fedavg_seconds" not in alone


def test_peers_are_compared_with_our_fedavg_and_the_missing_say_why() -> None:
    peers: dict[str, PeerResult] = {
        "bare-loop": peer(3.0, 4.0),
        "flower": MissingPeer(missing="not installed: do this"),
    }
    report = EngineReport(timings=(MEDIAN, FEDAVG), peers=peers)
    document = report.document()
    assert document["compared"] == "fedavg"
    assert document["peers"]["flower"] == {"missing": "not installed: do this"}
    assert document["peers"]["bare-loop"]["seconds_per_round"] == 3.5
    assert document["peers"]["bare-loop"]["times_ours"] == 3.5 / 2.0
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
    turns = Turns({"bare-loop": [peer(1.0), peer(2.0), failed], "flower": [failed]})
    monkeypatch.setattr(engine, "time_engine", turns.ours)
    monkeypatch.setattr(engine, "run_peer", turns.peer)
    told: list[str] = []
    specs: list[StrategySpec] = [parse_strategy("fedavg"), parse_strategy("fedmedian")]

    task = Task("dense", 4, 8, 1, workers=1)
    report = measure_engine(task, specs, EngineConfig(), repeats=3, peers=PEERS, peer_seconds=5.0, note=told.append)

    assert turns.order == ["ours", "bare-loop", "flower", "ours", "bare-loop", "ours", "bare-loop"]
    assert told[0] == "repetition 1 of 3: fedscout"
    assert set(turns.tasks) == {Task("dense", 4, 8, 1, workers=2)}
    assert [each.round_seconds for each in report.timings] == [(1.0, 4.0, 6.0)] * 2
    assert report.peers == {"bare-loop": failed, "flower": failed}
