"""How long a round takes through the Grid: strategies on our engine beside each other and beside peers, in turns.

Where other work comes and goes on a machine, figures of different hours can't be compared. So everything is measured in
turn: ours, each peer, and that as often as asked for. Ray ends before a peer starts.

The bench's work as a federation of ours; what it is, `peers/work.py` says, for our peers as well.

What a round takes under each strategy, as a multiple of FedAvg's, paired in one process.

Each measurement stands right beside one of FedAvg, of as many rounds, and turns go through all strategies again, so
that other work on the machine disturbs both alike. Time is processor time of this process, its threads included, and
what counts is the median of the turns' ratios, each of two medians over rounds. Clients are those of `peers/work.py`,
in this process, without Ray; the server holds labelled rows. Strategies about batch normalisation are compared with
FedAvg on the same net with it.

How much memory this process and all that it started hold together, sampled while they work.

The proportional set size (PSS) of a process counts a page that n processes share as 1/n of it, so a sum over processes
counts every page once: also those of libraries, and of the object store, which all of Ray's processes map.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import numpy as np
import psutil  # type: ignore[import-untyped]
from pydantic import BaseModel

from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation, ServerData
from fedscout.engine.errors import ConfigurationError, Fault, UserError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.runner import TrialRunner
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import dense, lenet, resnet18, textcnn
from fedscout.experiments.reports.console import markdown_table
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
from fedscout.strategies import ALL, BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, FedAvgSpec, StrategySpec, parse_strategy

TRAINING = LocalTraining(local_epochs=1, batch_size=BATCH_SIZE, learning_rate=LEARNING_RATE)

SERVER_ROWS = 100


def work_federation(name: WorkName, num_clients: int, num_samples: int, batch_norm: bool = False) -> Federation:
    """Return the federation of a piece of work, with so many rows a client, and some of the server's own.

    The dense net may have batch norm. The server's rows and labels are for strategies that can't do without.
    """
    shape = FEATURE_SHAPES[name]
    settings = ModelSettings(
        hidden=HIDDEN.get(name), norm="batch" if batch_norm else None, dropout=0.0 if name == "textcnn" else None
    )
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
    """The sample with the largest sum.

    Attributes:
        parts: Of the driver, of the hosts, and of everything else that was started, which is Ray's.
        samples: How many were taken.
        data_bytes: Of the clients' rows, which are somewhere among them; 0 if nobody said.
    """

    pss_bytes: int = 0
    parts: dict[Part, int] = {"driver": 0, "hosts": 0, "ray": 0}
    samples: int = 0
    data_bytes: int = 0

    def joined(self, other: MemoryPeak) -> MemoryPeak:
        """Return the larger of two, with the samples of both."""
        larger = max(self, other, key=lambda each: each.pss_bytes)
        return larger.model_copy(update={"samples": self.samples + other.samples})


class MemoryWatch:
    """Holds the peak of what was sampled so far."""

    def __init__(self) -> None:
        self.peak = MemoryPeak()

    def sample(self) -> None:
        """Take a sample of all processes now."""
        parts = memory_by_part()
        self.peak = self.peak.joined(MemoryPeak(pss_bytes=sum(parts.values()), parts=parts, samples=1))


@contextmanager
def watched_memory() -> Iterator[MemoryWatch]:
    """Sample from a thread as long as the block lasts, at least at its beginning and at its end.

    Raises:
        ConfigurationError: If this system does not tell proportional set sizes.
    """
    if not Path("/proc/self/smaps_rollup").exists():
        raise ConfigurationError(
            Fault("/proc/PID/smaps_rollup", "exist, as memory is measured by it", "a system other than Linux")
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
    """Return the proportional set sizes of a process, by default this one, and all below it, in bytes by part."""
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


HEADINGS = ("strategy", "times FedAvg", "from … to", "ms a round", "FedAvg, ms", "net")


class StrategyCost(BaseModel, frozen=True):
    """One strategy.

    Attributes:
        strategy: For people.
        batch_norm: Whether the net has batch normalisation.
        ratios: Of its round to FedAvg's, a turn each; empty if it can't be trained.
        round_seconds: Processor time, the median of the turns.
        fedavg_seconds: The same of FedAvg's beside it.
        missing: Why it can't be trained.
    """

    strategy: str
    batch_norm: bool
    ratios: tuple[float, ...] = ()
    round_seconds: float = 0.0
    fedavg_seconds: float = 0.0
    missing: str | None = None

    def cells(self) -> tuple[str, ...]:
        """Return its row of the table."""
        net = "batch normalisation" if self.batch_norm else "plain"
        if self.missing is not None:
            return self.strategy, "–", "", "", "", self.missing
        span = f"{min(self.ratios):.2f} … {max(self.ratios):.2f}"
        times = (f"{1000 * seconds:.1f}" for seconds in (self.round_seconds, self.fedavg_seconds))
        return self.strategy, f"{median(self.ratios):.2f}", span, *times, net


def asked_strategies(asked: Sequence[str | Mapping[str, object]] | None) -> list[StrategySpec]:
    """Return the named strategies, or all of the table for `[all]`; FedAvg is beside each anyway.

    Raises:
        StrategyError: If one is unknown.
    """
    named = [*BUILT_IN_KINDS[1:], *CHOSEN_BY_NAME_KINDS] if asked == [ALL] else asked or ()
    return [parse_strategy(each) for each in named]


def strategy_costs(
    task: Task, strategies: Sequence[StrategySpec], turns: int, note: Note = lambda _: None
) -> list[StrategyCost]:
    """Measure strategies in so many turns; `note` is told what is being done."""
    plain = [spec for spec in strategies if not _is_about_batch_norm(spec)]
    normalised = [spec for spec in strategies if _is_about_batch_norm(spec)]
    return [*_costs(task, plain, turns, note), *_costs(task, normalised, turns, note, batch_norm=True)]


def _is_about_batch_norm(spec: StrategySpec) -> bool:
    """Return whether it is possible on a net with batch normalisation alone."""
    possible = [
        spec.unavailable(Cohort(100, 100, 0.1, layers=frozenset(layers), server_rows=None, server_labels=True)) is None
        for layers in ({"Linear"}, {"Linear", "BatchNorm1d"})
    ]
    return possible == [False, True]


def _costs(
    task: Task, strategies: Sequence[StrategySpec], turns: int, note: Note, batch_norm: bool = False
) -> list[StrategyCost]:
    if not strategies:
        return []
    found: dict[StrategySpec, list[tuple[float, float]]] = {spec: [] for spec in strategies}
    missing: dict[StrategySpec, str] = {}
    federation = work_federation(task.name, task.clients, task.samples, batch_norm)
    with open_runner(federation, EngineConfig(grid="local"), None, parallel=1) as lazy:
        runner = lazy.started()
        for turn in range(turns):
            note(f"turn {turn + 1} of {turns}")
            for spec in strategies:
                if spec in missing:
                    continue
                try:
                    found[spec].append((round_seconds(runner, spec, task), round_seconds(runner, FedAvgSpec(), task)))
                except (UserError, RuntimeError) as error:
                    missing[spec] = str(error)
    return [_cost(spec, batch_norm, found[spec], missing.get(spec)) for spec in strategies]


def _cost(
    spec: StrategySpec, batch_norm: bool, times: Sequence[tuple[float, float]], missing: str | None
) -> StrategyCost:
    if missing is not None:
        return StrategyCost(strategy=str(spec), batch_norm=batch_norm, missing=missing)
    own, fedavg = zip(*times, strict=True)
    ratios = tuple(one / other for one, other in times)
    return StrategyCost(
        strategy=str(spec),
        batch_norm=batch_norm,
        ratios=ratios,
        round_seconds=median(own),
        fedavg_seconds=median(fedavg),
    )


def round_seconds(runner: TrialRunner, spec: StrategySpec, task: Task) -> float:
    """Return the median processor time of a strategy's rounds, after a first one that is not counted."""
    ends: list[float] = []
    run_rounds(runner.grid, spec, task.clients, TRAINING, 1 + task.rounds, lambda _: ends.append(time.process_time()))
    return median(after - before for before, after in pairwise(ends))


def cost_lines(task: Task, costs: Sequence[StrategyCost]) -> list[str]:
    """Return the costs for people."""
    return [
        f"{task.name}, {task.clients} clients of {task.samples} rows, one process; processor time",
        "",
        *markdown_table(HEADINGS, [cost.cells() for cost in costs]),
    ]
