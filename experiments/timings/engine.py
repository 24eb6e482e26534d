"""Benchmarks of the engine: time of a round per strategy, compared with FedAvg and peer frameworks, and memory.

On a machine with other load, timings from different hours are not comparable. Measurements are therefore interleaved:
in each repetition fedscout runs first and then each peer, and Ray is shut down before a peer starts. The benchmark task
is defined in `peers/work.py`, also for the peers.

Memory is the proportional set size (PSS) of this process and all its descendants, sampled while they run. PSS counts a
page that n processes share as 1/n of it, so that the sum counts every page once, including those of libraries and of
the object store, which all Ray processes map.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import numpy as np
import psutil  # type: ignore[import-untyped]
from pydantic import BaseModel

from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation, ServerData
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import dense, lenet, resnet18, textcnn
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.timings.peer_runs import (
    MissingPeer,
    Peer,
    PeerResult,
    PeerTiming,
    RoundTimes,
    run_peer,
    run_rounds,
)
from fedscout.experiments.timings.peers.work import (
    BATCH_SIZE,
    FEATURE_SHAPES,
    HIDDEN,
    LEARNING_RATE,
    NUM_CLASSES,
    VOCABULARY_SIZES,
    WARM_UP_ROUNDS,
    Task,
    WorkName,
    client_rows,
    data_bytes,
)
from fedscout.strategies import StrategySpec

TRAINING = LocalTraining(local_epochs=1, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE)

SERVER_ROWS = 100


def work_federation(name: WorkName, num_clients: int, num_samples: int) -> Federation:
    """Return the federation of a benchmark task, with `num_samples` rows per client.

    The server holds some labeled rows, for strategies that require them.
    """
    shape = FEATURE_SHAPES[name]
    settings = ModelSettings(hidden=HIDDEN.get(name), dropout=0.0 if name == "textcnn" else None)
    build = {"lenet": lenet, "resnet18": resnet18, "resnet18-32": resnet18, "textcnn": textcnn}.get(name, dense)
    num_tokens = VOCABULARY_SIZES.get(name, 0)
    features = np.empty((num_clients, num_samples, *shape), np.float32)
    labels = np.empty((num_clients, num_samples), np.int64)
    for client in range(num_clients):
        features[client], labels[client] = client_rows(name, client, num_samples)
    return Federation(
        name=f"{name}, {num_clients} clients of {num_samples}",
        features=features.reshape(-1, *shape),
        labels=labels.reshape(-1),
        num_classes=NUM_CLASSES[name],
        partition=Partition(np.arange(num_clients * num_samples), num_samples * np.arange(num_clients + 1)),
        model=build(ModelRequest(shape, NUM_CLASSES[name], settings, "tokens" if num_tokens else "table", num_tokens)),
        server=ServerData(*client_rows(name, num_clients, SERVER_ROWS)),
    )


SAMPLE_SECONDS = 0.25

HOST_TITLE = "ray::HostActor"
"""Ray titles an actor's process by its class."""

Part = Literal["driver", "hosts", "ray"]


class MemoryPeak(BaseModel, frozen=True):
    """The memory sample with the largest total.

    Attributes:
        pss_bytes: Total proportional set size.
        parts: Size of the driver, of the hosts, and of all other processes, which are Ray's.
        samples: Number of samples taken.
        data_bytes: Size of the clients' rows, which the total includes; 0 if unknown.
    """

    pss_bytes: int = 0
    parts: dict[Part, int] = {"driver": 0, "hosts": 0, "ray": 0}
    samples: int = 0
    data_bytes: int = 0

    def joined(self, other: MemoryPeak) -> MemoryPeak:
        """Return the larger of two peaks, with the sample counts added."""
        larger = max(self, other, key=lambda each: each.pss_bytes)
        return larger.model_copy(update={"samples": self.samples + other.samples})


class MemoryWatch:
    """Records the peak of the samples taken so far."""

    def __init__(self) -> None:
        self.peak = MemoryPeak()

    def sample(self) -> None:
        """Take a sample of all processes."""
        parts = memory_by_part()
        self.peak = self.peak.joined(MemoryPeak(pss_bytes=sum(parts.values()), parts=parts, samples=1))


@contextmanager
def watched_memory() -> Iterator[MemoryWatch]:
    """Sample memory from a thread while the block runs, at least at its beginning and its end.

    Raises:
        ConfigurationError: If the system does not report proportional set sizes.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise ConfigurationError.of(
            "/proc/PID/smaps_rollup", "exist, as memory is measured with it", "a system other than Linux"
        )
    watch, ended = MemoryWatch(), threading.Event()

    def run() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            watch.sample()

    thread = threading.Thread(target=run, name="memory-watch", daemon=True)
    watch.sample()
    thread.start()
    try:
        yield watch
    finally:
        ended.set()
        thread.join()
        watch.sample()


def memory_by_part(pid: int | None = None) -> dict[Part, int]:
    """Return the proportional set sizes in bytes, by part, of a process (default: this one) and its descendants."""
    driver = psutil.Process(pid)
    parts: dict[Part, int] = {"driver": _pss_bytes(driver), "hosts": 0, "ray": 0}
    for process in driver.children(recursive=True):
        with suppress(psutil.Error):  # one that has just ended holds nothing
            is_host = "".join(process.cmdline()[:1]).startswith(HOST_TITLE)
            parts["hosts" if is_host else "ray"] += _pss_bytes(process)
    return parts


def _pss_bytes(process: psutil.Process) -> int:
    return int(process.memory_full_info().pss)


Note = Callable[[str], None]

BASELINE = "fedavg"
HEADING = "milliseconds per round"


class EngineTiming(RoundTimes):
    """One measurement, from one run or several.

    Attributes:
        sampled: Clients that train and are scored in a round.
        samples: Rows per client.
        rounds: Measured rounds of a run, after the warm-up rounds.
        strategy: Display name of the strategy; `kind` is its kind.
        phases: Mean seconds of each part of a round; `hosts` is the summed compute time of the hosts.
        start_seconds: Time until the hosts respond, in the first run.
        driver_seconds_per_client_round: The driver's own time per round and training client. On Ray it is the CPU time
            of the driving thread, which excludes waiting for hosts; in one process it is all time except the host's.
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
    """Return the timings of strategies, measured one after the other on the same hosts.

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
    """Return the duration of each round; the sum is the wall time.

    A round's model is scored along with the next round, so the first round has no scoring; the scoring of the last
    model, which follows all rounds, is added to it. A strategy that drives its own rounds may not report each of them;
    then all have the same duration.

    Args:
        times: Time of the start, of the end of each round, and of the end of the run.
        rounds: Number of rounds.
    """
    if len(times) != rounds + 2:
        return ((times[-1] - times[0]) / rounds,) * rounds
    first, *others, scoring = (after - before for before, after in pairwise(times))
    return (first + scoring, *others)


def joined(runs: Sequence[EngineTiming]) -> EngineTiming:
    """Return several runs of one measurement merged into one."""
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
    """Configuration of the benchmark besides the strategies.

    Attributes:
        repeats: Repetitions, each with newly started hosts.
        peers: Peer frameworks to compare with.
        peer_seconds: Time limit of a peer.
        memory: Whether fedscout's memory is sampled, which slows down the rounds slightly.
        training: Local training of fedscout's clients; peers train in float32.
    """

    repeats: int = 1
    peers: tuple[Peer, ...] = ()
    peer_seconds: float = 600.0
    memory: bool = False
    training: LocalTraining = TRAINING


class EngineReport(BaseModel, frozen=True):
    """Benchmark results: timings by strategy, and optionally those of peers and memory."""

    timings: tuple[EngineTiming, ...]
    peers: dict[str, PeerResult] | None = None
    memory: MemoryPeak | None = None

    @property
    def baseline(self) -> EngineTiming | None:
        """FedAvg's timing, or None."""
        return next((timing for timing in self.timings if timing.kind == BASELINE), None)

    @property
    def compared(self) -> EngineTiming:
        """The timing that peers are compared with: FedAvg, which peers run, or else the first."""
        return self.baseline or self.timings[0]

    def document(self) -> dict[str, Any]:
        """Return the report as JSON, with the timing at the top level if there is only one."""
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
    """Return the benchmark results of strategies on the same task, with peers and memory as configured.

    `note` is called with a line of progress.

    Raises:
        RuntimeError: If a strategy's trial fails.
    """
    runs: list[list[EngineTiming]] = []
    peers: dict[str, PeerResult] = {}
    memory = MemoryPeak()
    for turn in range(bench_config.repeats):
        note(f"repetition {turn + 1} of {bench_config.repeats}: fedscout")
        with ExitStack() as stack:
            watch = stack.enter_context(watched_memory()) if bench_config.memory else None
            runs.append(time_engine(task, strategies, engine, bench_config.training))
        memory = memory if watch is None else memory.joined(watch.peak)
        for peer in bench_config.peers:
            previous = peers.get(peer.name)
            if isinstance(previous, MissingPeer):
                continue
            note(f"repetition {turn + 1} of {bench_config.repeats}: {peer.name}")
            peers[peer.name] = _add_run(
                previous, run_peer(peer, replace(task, workers=runs[-1][0].hosts), bench_config.peer_seconds)
            )
    return EngineReport(
        timings=tuple(joined(strategy_runs) for strategy_runs in zip(*runs, strict=True)),
        peers=peers if bench_config.peers else None,
        memory=memory.model_copy(update={"data_bytes": data_bytes(task)}) if bench_config.memory else None,
    )


def _add_run(known: PeerTiming | None, result: PeerResult) -> PeerResult:
    """Return the previous runs with one added; a peer that failed once has no result."""
    if known is None or isinstance(result, MissingPeer):
        return result
    return result.model_copy(update={"round_seconds": known.round_seconds + result.round_seconds})


def report_lines(report: EngineReport) -> list[str]:
    """Return the report as lines of text, with all times in milliseconds."""
    first, peers = report.timings[0], report.peers or {}
    width = max(len(name) for name in [HEADING, *peers, *(_name(timing) for timing in report.timings)]) + 2
    sampled = "" if first.sampled == first.clients else f"{first.sampled} per round, "
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
    """Return lines on the time of each phase, and on memory."""
    lines = []
    for timing in report.timings:
        parts = ", ".join(f"{phase} {1000 * spent:.1f}" for phase, spent in timing.phases.items())
        driver_microseconds = 1e6 * timing.driver_seconds_per_client_round
        lines.append(f"{timing.strategy}: {parts}; driver {driver_microseconds:.1f} µs per client and round")
    if report.memory is not None:
        parts = ", ".join(f"{part} {_mib(size)}" for part, size in report.memory.parts.items())
        total, data = _mib(report.memory.pss_bytes), _mib(report.memory.data_bytes)
        lines.append(f"memory: {total} MiB at most ({parts}), for {data} MiB of data")
    return lines


def _mib(size_bytes: int) -> str:
    return f"{size_bytes / 2**20:.0f}"
