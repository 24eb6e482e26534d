"""A benchmark's report: what is joined, and what is compared with what."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedscout.engine.config import EngineConfig
from fedscout.experiments.timings import engine
from fedscout.experiments.timings.engine import PEERS, EngineReport, Peer, RoundTimes, measure_engine, report_lines
from fedscout.experiments.timings.peers.work import Task
from fedscout.strategies import parse_strategy

FAILED = "no result within 5 s"


def times(*round_seconds: float) -> RoundTimes:
    return RoundTimes(round_seconds=round_seconds, accuracy=0.75)


class Turns:
    """Stands in for what takes time, and notes its order."""

    def __init__(self, results: dict[str, list[RoundTimes | str]]) -> None:
        self.order: list[str] = []
        self.tasks: list[Task] = []
        self._results = results

    def ours(self, *arguments: Any) -> tuple[int, dict[str, RoundTimes]]:
        self.order.append("ours")
        seconds = {"fedavg": (1.0, 2.0, 6.0), "fedmedian": (2.0, 5.0, 11.0)}
        return 2, {f"fedscout, {spec.kind}": times(*seconds[spec.kind]) for spec in arguments[1]}

    def peer(self, one: Peer, task: Task) -> RoundTimes | str:
        self.order.append(one.name)
        self.tasks.append(task)
        return self._results[one.name].pop(0)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    stand_in = Turns({"bare-loop": [times(3.0, 4.0), times(5.0), FAILED], "flower": [FAILED]})
    monkeypatch.setattr(engine, "time_engine", stand_in.ours)
    monkeypatch.setattr(engine, "run_peer", stand_in.peer)
    return stand_in


def measured(*kinds: str, repeats: int, peers: tuple[Peer, ...] = PEERS) -> EngineReport:
    task = Task("dense", 4, 8, 1, workers=1)
    return measure_engine(task, [parse_strategy(kind) for kind in kinds], EngineConfig(), repeats=repeats, peers=peers)


def test_ours_and_peers_take_turns_and_one_without_a_result_has_no_other(turns: Turns) -> None:
    report = measured("fedavg", repeats=3)
    assert turns.order == ["ours", "bare-loop", "flower", "ours", "bare-loop", "ours", "bare-loop"]
    assert set(turns.tasks) == {Task("dense", 4, 8, 1, workers=2)}
    assert report.programs["fedscout, fedavg"].round_seconds == (1.0, 2.0, 6.0) * 3
    assert {*report.programs} == {"fedscout, fedavg"}
    assert report.missing == {"bare-loop": FAILED, "flower": FAILED}
    assert report.processor.endswith(f", {torch.backends.cpu.get_cpu_capability()}")


def test_all_are_compared_by_medians_with_our_fedavg_or_else_the_first(turns: Turns) -> None:
    report = measured("fedmedian", "fedavg", repeats=2)
    assert report.programs["bare-loop"].round_seconds == (3.0, 4.0, 5.0)
    assert report.reference == "fedscout, fedavg"
    assert report.ratios == {"fedscout, fedmedian": 2.5, "fedscout, fedavg": 1.0, "bare-loop": 2.0}
    assert (report.programs["bare-loop"].median_seconds, report.programs["bare-loop"].min_seconds) == (4.0, 3.0)
    assert all(any(name in line for line in report_lines(report)) for name in (*report.ratios, FAILED))
    assert measured("fedmedian", repeats=1, peers=()).reference == "fedscout, fedmedian"
