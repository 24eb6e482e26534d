"""The engine's benchmarks: the work that is timed, the report, and the models' bits on several hosts."""

from __future__ import annotations

from statistics import fmean
from typing import Any

import pytest
import torch

from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, start_hosts
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.timings import engine
from fedscout.experiments.timings.engine import (
    PEERS,
    EngineReport,
    RoundTimes,
    block_timings,
    kernel_timings,
    measure_engine,
    report_lines,
    time_engine,
    whole_rounds,
    work_federation,
)
from fedscout.experiments.timings.peers.work import Task, WorkName
from fedscout.strategies import FedAvgSpec, parse_strategy
from tests.engine.federations import QUERIES
from tests.engine.trials.test_resume import assert_same

# The benchmark does the work that it claims to time.


@pytest.mark.slow
def test_rounds_are_trained_and_timed() -> None:
    specs = [parse_strategy("fedavg"), parse_strategy("fedmedian")]
    few, many = (
        time_engine(Task("dense", 3, 64, rounds, workers=1), specs, EngineConfig(grid="local"))[1] for rounds in (1, 25)
    )
    improved = many["fedscout, fedavg"].accuracy - few["fedscout, fedavg"].accuracy
    assert improved > 0.05, "labels are linear in the features: more rounds must fit them better"
    hosts, timings = time_engine(Task("dense", 3, 64, 2, workers=1), specs, EngineConfig(grid="local"))
    assert (hosts, [*timings]) == (1, ["fedscout, fedavg", "fedscout, fedmedian"])
    for timing in timings.values():
        assert len(timing.round_seconds) == 2
        seconds = fmean(timing.round_seconds)
        parts = sum(spent for phase, spent in timing.phases.items() if phase != "hosts")
        assert 0 < parts <= seconds


def test_the_last_scoring_belongs_to_the_first_round_and_rounds_that_are_not_told_of_count_the_same() -> None:
    assert whole_rounds([10.0, 11.0, 13.0, 16.0, 16.5], rounds=3) == (1.5, 2.0, 3.0)
    assert whole_rounds([10.0, 15.0, 16.0], rounds=3) == (2.0, 2.0, 2.0)


# A benchmark's report: what is joined, and what is compared with what.


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

    def peer(self, one: str, task: Task) -> RoundTimes | str:
        self.order.append(one)
        self.tasks.append(task)
        return self._results[one].pop(0)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Turns:
    stand_in = Turns({"bare-loop": [times(3.0, 4.0), times(5.0), FAILED], "flower": [FAILED]})
    monkeypatch.setattr(engine, "time_engine", stand_in.ours)
    monkeypatch.setattr(engine, "run_peer", stand_in.peer)
    return stand_in


def measured(*kinds: str, repeats: int, peers: tuple[str, ...] = PEERS) -> EngineReport:
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


# What is counted of a model's step.


LENET_FORWARD = 2 * (28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10)
FIRST_LAYER = 2 * 28 * 28 * 6 * 75


def test_operations_of_lenet_are_those_counted_by_hand() -> None:
    """Backward takes each layer's product twice, by the weights and by what comes in, the first layer's once."""
    timing = next(kernel_timings(turns=1))

    assert timing["GFLOP"] == 32 * (3 * LENET_FORWARD - FIRST_LAYER) / 1e9
    assert timing["GFLOP/s"] == pytest.approx(1e3 * timing["GFLOP"] / timing["step of 32 rows, ms"])  # type: ignore[operator]


WEIGHTS = (254 * 64, 64 * 32, 32 * 2)


def test_operations_of_a_block_are_those_counted_by_hand() -> None:
    """For each row every weight once forward, once by the weights, and once by the rows but for the first layer."""
    training, scoring = block_timings(turns=1)

    assert scoring["GFLOP"] == 20 * 256 * 2 * sum(WEIGHTS) / 1e9
    assert training["GFLOP"] == 20 * 256 * 2 * (3 * sum(WEIGHTS) - WEIGHTS[0]) / 1e9


# The larger models have the same bits on any number of hosts, as small dense nets do.


CLIENTS = 3
TRAINING = LocalTraining(batch_size=32, learning_rate=0.05, momentum=0.9)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.parametrize(("name", "samples"), [("lenet", 75), ("textcnn", 75), ("resnet18", 8)])
def test_two_hosts_give_the_bits_of_one_process(ray_session: None, name: WorkName, samples: int) -> None:
    federation = work_federation(name, CLIENTS, samples)
    settings = TrialSettings(
        strategy=FedAvgSpec(), num_rounds=2, num_sampled=CLIENTS, session=Session(training=TRAINING, seed=1)
    )
    hosts = start_hosts(federation, QUERIES, 2)
    try:
        by_ray = run_trial(settings, RayGrid(hosts, settings.session))
    finally:
        hosts.stop()

    assert by_ray.error is None
    assert len({*by_ray.rounds["loss"]}) == 2
    assert_same(by_ray, run_trial(settings, LocalGrid(federation, QUERIES, session=settings.session)))
