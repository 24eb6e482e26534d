"""How long a round takes through the Grid: strategies on our engine beside each other and beside peers, in turns.

Where other work comes and goes on a machine, figures of different hours can't be compared. So everything is measured in
turn: ours, each peer, and that as often as asked for. Ray ends before a peer starts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from statistics import fmean
from typing import Any

from pydantic import BaseModel

from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.engine_config import EngineConfig
from fedscout.experiments.benchmarks.engine_work import TRAINING, work_federation
from fedscout.experiments.benchmarks.memory_peak import MemoryPeak, watched_memory
from fedscout.experiments.benchmarks.peer_runs import MissingPeer, Peer, PeerResult, PeerTiming, run_peer
from fedscout.experiments.benchmarks.peers.work import WARM_UP_ROUNDS, Task, WorkName, data_bytes
from fedscout.experiments.benchmarks.round_times import RoundTimes, run_rounds
from fedscout.experiments.studies.open_runner import open_runner
from fedscout.strategies import StrategySpec

Note = Callable[[str], None]

BASELINE = "fedavg"
HEADING = "milliseconds a round"


class EngineTiming(RoundTimes):
    """One measurement, in one run or several.

    Attributes:
        sampled: Clients that train in a round, and score.
        samples: Rows a client.
        rounds: Rounds of a run that are measured, after those to warm up.
        strategy: The strategy for people; `kind` is its name.
        phases: The parts of a round, mean seconds; `hosts` is the summed compute time of the hosts.
        start_seconds: From nothing to hosts that answer, in the first run.
        driver_seconds_per_client_round: The driver's own time, a round and client that trains. On Ray the CPU time of
            the thread that drives the rounds, which is what is left of them without waiting for hosts; in one process
            all time but the host's.
    """

    work: WorkName
    clients: int
    sampled: int
    samples: int
    rounds: int
    strategy: str
    kind: str
    hosts: int
    phases: dict[str, float]
    start_seconds: float
    driver_seconds_per_client_round: float


def time_engine(
    task: Task, strategies: Sequence[StrategySpec], engine: EngineConfig, training: LocalTraining = TRAINING
) -> list[EngineTiming]:
    """Measure strategies on the same hosts, one after the other.

    Raises:
        RuntimeError: If a strategy's trial fails.
    """
    federation = work_federation(task.name, task.clients, task.samples)
    rounds, num_sampled = task.rounds, task.sampled or task.clients
    timings = []
    with open_runner(federation, engine, None, parallel=1) as runner:
        del federation  # the hosts have it
        runner.started()
        for strategy in strategies:
            run = partial(run_rounds, runner.grid, strategy, num_sampled, training, num_scored=task.sampled)
            run(WARM_UP_ROUNDS, lambda _: None)
            ends = [time.perf_counter()]
            driver_seconds = -time.thread_time()
            result = run(rounds, partial(_note_time, ends))
            driver_seconds += time.thread_time()
            ends.append(time.perf_counter())
            if engine.grid == "local":
                driver_seconds = ends[-1] - ends[0] - result.seconds["hosts"]
            timings.append(
                EngineTiming(
                    work=task.name,
                    clients=task.clients,
                    sampled=num_sampled,
                    samples=task.samples,
                    rounds=rounds,
                    strategy=str(strategy),
                    kind=strategy.kind,
                    hosts=runner.num_hosts,
                    round_seconds=whole_rounds(ends, rounds),
                    phases={phase: spent / rounds for phase, spent in result.seconds.items() if phase != "total"},
                    accuracy=result.round_accuracy[-1],
                    start_seconds=runner.start_seconds,
                    driver_seconds_per_client_round=driver_seconds / num_sampled / rounds,
                )
            )
    return timings


def _note_time(times: list[float], _: int) -> None:
    times.append(time.perf_counter())


def whole_rounds(times: Sequence[float], rounds: int) -> tuple[float, ...]:
    """Return how long each round took; the sum is the wall time.

    A round's model is scored on the way of the next one, so the first round lacks a scoring; the last model's, which
    comes after all rounds, is counted there. A strategy that drives its rounds itself may not tell of each; then all
    count the same.

    Args:
        times: The beginning, the end of each round, the end of all.
        rounds: How many there were.
    """
    if len(times) != rounds + 2:
        return ((times[-1] - times[0]) / rounds,) * rounds
    first, *others, scoring = (after - before for before, after in pairwise(times))
    return (first + scoring, *others)


def joined(runs: Sequence[EngineTiming]) -> EngineTiming:
    """Return several runs of one measurement as one."""
    first = runs[0]
    return first.model_copy(
        update={
            "round_seconds": tuple(seconds for run in runs for seconds in run.round_seconds),
            "phases": {phase: fmean(run.phases[phase] for run in runs) for phase in first.phases},
            "driver_seconds_per_client_round": fmean(run.driver_seconds_per_client_round for run in runs),
        }
    )


@dataclass(frozen=True)
class EngineBenchConfig:
    """What is measured besides the strategies themselves.

    Attributes:
        repeats: Turns, each with a start of its own.
        peers: To compare with.
        peer_seconds: After which a peer is given up.
        memory: Whether our memory is sampled, which takes some time from the rounds.
        training: Of our clients; peers train in float32.
    """

    repeats: int = 1
    peers: tuple[Peer, ...] = ()
    peer_seconds: float = 600.0
    memory: bool = False
    training: LocalTraining = TRAINING


class EngineReport(BaseModel, frozen=True):
    """What a benchmark gives: our timings by strategy, and peers and our memory if they were asked for."""

    timings: tuple[EngineTiming, ...]
    peers: dict[str, PeerResult] | None = None
    memory: MemoryPeak | None = None

    @property
    def baseline(self) -> EngineTiming | None:
        """FedAvg, if it is among the strategies."""
        return next((timing for timing in self.timings if timing.kind == BASELINE), None)

    @property
    def compared(self) -> EngineTiming:
        """Ours that peers are compared with: FedAvg, which is what they do, or else the first."""
        return self.baseline or self.timings[0]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON; a single strategy's timing at the top level."""
        timings = [timing.model_dump(mode="json") | self._extra(timing) for timing in self.timings]
        document = timings[0] if len(timings) == 1 else {"timings": timings}
        if self.peers is not None:
            document |= {"compared": self.compared.strategy}
            document |= {"peers": {name: self._peer(result) for name, result in self.peers.items()}}
        return document if self.memory is None else document | {"memory": self.memory.model_dump(mode="json")}

    def _extra(self, timing: EngineTiming) -> dict[str, Any]:
        if self.baseline is None or timing is self.baseline:
            return {}
        return {
            "over_fedavg_seconds": timing.median_seconds_per_round - self.baseline.median_seconds_per_round,
            "times_fedavg": timing.times(self.baseline),
        }

    def _peer(self, result: PeerResult) -> dict[str, Any]:
        compared = {"times_ours": result.times(self.compared)} if isinstance(result, PeerTiming) else {}
        return result.model_dump(mode="json") | compared


def measure_engine(
    task: Task,
    strategies: Sequence[StrategySpec],
    engine: EngineConfig,
    bench_config: EngineBenchConfig,
    note: Note = lambda _: None,
) -> EngineReport:
    """Measure strategies on the same work, and what else the configuration asks for; `note` is told what is being done.

    Raises:
        RuntimeError: If a strategy's trial fails.
    """
    runs: list[list[EngineTiming]] = []
    peers: dict[str, PeerResult] = {}
    memory = MemoryPeak()
    for turn in range(bench_config.repeats):
        note(f"turn {turn + 1} of {bench_config.repeats}: fedscout")
        with ExitStack() as stack:
            watch = stack.enter_context(watched_memory()) if bench_config.memory else None
            runs.append(time_engine(task, strategies, engine, bench_config.training))
        memory = memory if watch is None else memory.joined(watch.peak)
        for peer in bench_config.peers:
            known = peers.get(peer.name)
            if isinstance(known, MissingPeer):
                continue
            note(f"turn {turn + 1} of {bench_config.repeats}: {peer.name}")
            peers[peer.name] = _with_run(
                known, run_peer(peer, replace(task, workers=runs[-1][0].hosts), bench_config.peer_seconds)
            )
    return EngineReport(
        timings=tuple(joined(of_one) for of_one in zip(*runs, strict=True)),
        peers=peers if bench_config.peers else None,
        memory=memory.model_copy(update={"data_bytes": data_bytes(task)}) if bench_config.memory else None,
    )


def _with_run(known: PeerTiming | None, result: PeerResult) -> PeerResult:
    """Add a run to those before; a peer that failed once has no result."""
    if known is None or isinstance(result, MissingPeer):
        return result
    return result.model_copy(update={"round_seconds": known.round_seconds + result.round_seconds})


def report_lines(report: EngineReport) -> list[str]:
    """Return the report for people; all times in milliseconds."""
    first, peers = report.timings[0], report.peers or {}
    width = max(len(name) for name in [HEADING, *peers, *(_name(timing) for timing in report.timings)]) + 2
    sampled = "" if first.sampled == first.clients else f"{first.sampled} a round, "
    lines = [
        f"{first.work}, {first.clients} clients of {first.samples} rows, {sampled}{first.hosts} hosts, "
        f"{len(first.round_seconds)} rounds each",
        "",
        f"{HEADING:{width}}{'median':>10}{'min':>10}{'mean':>10}",
    ]
    for timing in report.timings:
        remark = ""
        if report.baseline is not None and timing is not report.baseline:
            extra = 1000 * (timing.median_seconds_per_round - report.baseline.median_seconds_per_round)
            ratio = timing.times(report.baseline)["median_seconds_per_round"]
            remark = f"   FedAvg {extra:+.1f} ms, x {ratio:.2f}"
        lines.append(f"{_name(timing):{width}}{_figures(timing)}{remark}")
    for name, result in peers.items():
        if isinstance(result, MissingPeer):
            lines.append(f"{name:{width}}{result.missing}")
            continue
        ratio = result.times(report.compared)["median_seconds_per_round"]
        lines.append(f"{name:{width}}{_figures(result)}   {_name(report.compared)} x {ratio:.2f}")
    return [*lines, "", *_details(report)]


def _name(timing: EngineTiming) -> str:
    return f"fedscout, {timing.strategy}"


def _figures(times: RoundTimes) -> str:
    figures = (times.median_seconds_per_round, times.min_seconds_per_round, times.seconds_per_round)
    return "".join(f"{1000 * seconds:10.2f}" for seconds in figures)


def _details(report: EngineReport) -> list[str]:
    """Return where our time goes, and our memory."""
    lines = []
    for timing in report.timings:
        parts = ", ".join(f"{phase} {1000 * spent:.1f}" for phase, spent in timing.phases.items())
        own = 1e6 * timing.driver_seconds_per_client_round
        lines.append(f"{timing.strategy}: {parts}; driver {own:.1f} µs a client and round")
    if report.memory is not None:
        parts = ", ".join(f"{part} {_mib(size)}" for part, size in report.memory.parts.items())
        total, data = _mib(report.memory.pss_bytes), _mib(report.memory.data_bytes)
        lines.append(f"memory: {total} MiB at most ({parts}), for {data} MiB of data")
    return lines


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f}"
