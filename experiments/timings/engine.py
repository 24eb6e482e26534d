"""Benchmarks of the engine on this machine: rounds beside other programs, what one core can do, and scaling.

On a machine with other load, timings from different hours are not comparable. Measurements are therefore interleaved:
in each repetition fedscout runs first and then each peer, and Ray is shut down before a peer starts. The benchmark task
is defined in `peers/work.py`, also for the peers.

Each peer is a program that prints one line of JSON; it and its child processes are killed afterwards.

- `bare-loop`: plain PyTorch, one process, one thread: the cost of a loop over clients without any framework.
- `flower`: Flower's simulation, with as many actors as fedscout has hosts.

On one core, training and scoring are compared with matrix products alone. For the larger models of the model table,
operations are those of the model's layers, with a multiplication and an addition counted as two, forward and backward
without the gradient with respect to the rows. A step includes everything a client does: gathering rows, forward,
backward, update. For a block of small dense networks, operations are those of the matrix products: every weight once
forward, once for its gradient, and once for the gradient with respect to the rows except in the first layer. Times are
the minimum over repetitions, as other load only lengthens them.

Scaling: a round's overhead with nodes, clients and model size, on clusters of many raylets on this machine. Local
training is almost free (a few rows per client), so a round's time is the engine's overhead: sending the model, calls,
partial sums, aggregation, evaluation. Every raylet has one CPU and one host. All raylets share the cores of this
machine, so work that nodes of a real cluster do in parallel is serialized. Hence three quantities:

- `wall`: time of the fastest round, an overestimate for nodes with their own cores, more so under other load.
- `driver`: CPU time of the driver, which does not shrink with more nodes.
- `hosts`: CPU time of all hosts together, which is parallel on real nodes.

CPU times hardly depend on other load. A round on real nodes is estimated as the driver's CPU time plus that of one
host. The network adds its round trip, and the time of all megabytes over the driver's link in the worst case.

A round's cost is fitted as a linear function of hosts, clients and bytes:

    seconds = constant + per_host * hosts + per_client * clients + per_megabyte * megabytes

The coefficients are >= 0 and minimize the sum of squared *relative* errors, since sizes span two decades (non-negative
least squares: Lawson & Hanson, Solving Least Squares Problems, 1974, ch. 23).

Hosts are reused across sizes and given one federation after the other, as starting a process takes longer than
measuring it.
"""

from __future__ import annotations

import os
import platform
import secrets
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import torch
from pydantic import BaseModel, Field, ValidationError, computed_field
from torch import nn

from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.algorithm import TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition, Samples
from fedscout.engine.data.federation import Federation, ServerData
from fedscout.engine.messages.calls import DoubleArray, Session
from fedscout.engine.models.dense import DenseStack
from fedscout.engine.models.flat import new_model
from fedscout.engine.runtime.processes import MARK, end_children_with, end_marked, keep_freed_memory
from fedscout.engine.runtime.ray import forget_token, memory_in_use, own_token, ray_runtime
from fedscout.engine.training.algorithm_runs import train_block
from fedscout.engine.training.backends import score_clients
from fedscout.engine.training.loop import RowsWork, descend, score_client
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import build_model
from fedscout.experiments.reports.console import markdown_table
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.timings.peers import work
from fedscout.experiments.timings.peers.work import Task, WorkName
from fedscout.strategies import FedAvgSpec, StrategySpec

TRAINING = LocalTraining(local_epochs=1, batch_size=work.BATCH_SIZE, learning_rate=work.LEARNING_RATE)

SERVER_ROWS = 100


def work_federation(name: WorkName, num_clients: int, num_samples: int) -> Federation:
    """Return the federation of a benchmark task, with `num_samples` rows per client.

    The server holds some labeled rows, for strategies that require them.
    """
    shape, num_classes = work.FEATURE_SHAPES[name], work.NUM_CLASSES[name]
    kind = {"tiny": "dense", "resnet18-32": "resnet18"}.get(name, name)
    settings = ModelSettings(kind=kind, hidden=work.HIDDEN.get(name), dropout=0.0 if name == "textcnn" else None)
    num_tokens = work.VOCABULARY_SIZES.get(name, 0)
    features = np.empty((num_clients, num_samples, *shape), np.float32)
    labels = np.empty((num_clients, num_samples), np.int64)
    for client in range(num_clients):
        features[client], labels[client] = work.client_rows(name, client, num_samples)
    return Federation(
        name=f"{name}, {num_clients} clients of {num_samples}",
        features=features.reshape(-1, *shape),
        labels=labels.reshape(-1),
        num_classes=num_classes,
        partition=Partition(np.arange(num_clients * num_samples), num_samples * np.arange(num_clients + 1)),
        model=build_model(ModelRequest(shape, num_classes, settings, "tokens" if num_tokens else "table", num_tokens)),
        server=ServerData(*work.client_rows(name, num_clients, SERVER_ROWS)),
    )


def run_rounds(
    grid: Callable[[Session], Any],
    strategy: StrategySpec,
    num_clients: int,
    training: LocalTraining,
    num_rounds: int,
    on_round: Callable[[int], None],
    num_scored: int | None = None,
) -> Trial:
    """Return one trial, scored on training rows and driven from this process like a trial task.

    Args:
        grid: Returns the grid of a session.
        strategy: The strategy.
        num_clients: Clients that train in a round.
        training: Local training of the clients.
        num_rounds: Number of rounds.
        on_round: Called after each round.
        num_scored: Clients that score each model; None for all.

    Raises:
        RuntimeError: If the trial fails.
    """
    settings = TrialSettings(
        strategy=strategy,
        num_rounds=num_rounds,
        num_sampled=num_clients,
        session=Session(training=training, evaluate_on="train", test_fraction=0.0, num_scored=num_scored),
    )
    trial = run_trial(settings, grid(settings.session), on_round=on_round)
    if trial.status == "failed":
        raise RuntimeError(f"{strategy} failed: {trial.error}")
    return trial


class RoundTimes(BaseModel, frozen=True):
    """Round times of one program on one task.

    Attributes:
        round_seconds: Duration of every round. Under other load, the minimum is the least affected.
        accuracy: After the last round, as evidence that the work was done.
        versions: Of a peer's libraries.
        phases: Of fedscout: mean seconds of each part of a round; `hosts` is the summed compute time of the hosts.
    """

    round_seconds: tuple[float, ...] = Field(min_length=1)
    accuracy: float
    versions: dict[str, str] = {}
    phases: dict[str, float] = {}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def median_seconds(self) -> float:
        """Median duration of a round."""
        return median(self.round_seconds)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def min_seconds(self) -> float:
        """Minimum duration of a round."""
        return min(self.round_seconds)


PROGRAMS = Path(__file__).parent / "peers"

ENVIRONMENT = {
    "FLWR_LOG_LEVEL": "ERROR",
    "FLWR_TELEMETRY_ENABLED": "0",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONWARNINGS": "ignore",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # so that Ray listens on loopback alone, as it does there
    "RAY_USAGE_STATS_ENABLED": "0",
    "SPT_NOENV": "1",  # or Ray's agents would write their title over their environment, and the mark in it
}
"""One thread per process, no GPU, no log messages, no usage statistics."""

NOT_INHERITED = ("PYTHON", "RAY_", "VIRTUAL_ENV")
"""Prefixes of variables that configure this program; a peer runs with its own defaults."""

PEER_SECONDS = 600.0
LIBRARY_MISSING = ("ModuleNotFoundError:", "ImportError:")
PEERS = ("bare-loop", "flower")
"""Programs of these names in the folder of peers."""


def run_peer(peer: str, task: Task, seconds: float = PEER_SECONDS) -> RoundTimes | str:
    """Return the times of a peer, or why it has none; it is killed with its child processes after the time limit."""
    with tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / PROGRAMS.name).symlink_to(PROGRAMS)  # so that it finds the peers, and nothing else of ours
        command = [sys.executable, "-m", f"{PROGRAMS.name}.{peer.replace('-', '_')}", task.text()]
        out, err, mark = folder / "out", folder / "err", secrets.token_hex(16)
        with out.open("wb") as output, err.open("wb") as errors:
            try:
                code = subprocess.run(  # noqa: S603  # one of the programs beside this file
                    command,
                    cwd=folder,
                    env=_environment(folder, mark, on_gpu=task.device == "cuda"),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=errors,
                    start_new_session=True,
                    timeout=seconds,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                return f"no result within {seconds:g} s"
            finally:
                end_marked(mark)  # Ray's daemons are in groups of their own
        last_line = next((line for line in reversed(err.read_text(errors="replace").splitlines()) if line.strip()), "")
        if code != 0:
            if last_line.startswith(LIBRARY_MISSING):
                return f"not installed ({last_line}): pip install 'fedscout[peers]'"
            return f"it exited with code {code}: {last_line or 'nothing'}"
        lines = out.read_text(errors="replace").splitlines()
    answer = next((line for line in reversed(lines) if line.startswith("{")), "{}")
    try:
        return RoundTimes.model_validate_json(answer)
    except ValidationError:
        return f"its output contains no round times: {answer}"


def _environment(folder: Path, mark: str, on_gpu: bool) -> dict[str, str]:
    """Return the environment of a peer: all its files lie in the folder, and GPUs are hidden unless it uses them."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(NOT_INHERITED)}
    folders = {"PYTHONPATH": str(folder), "RAY_TMPDIR": str(folder), "TMPDIR": str(folder), MARK: mark}
    return inherited | ENVIRONMENT | folders | ({} if on_gpu else {"CUDA_VISIBLE_DEVICES": ""})


class EngineReport(BaseModel, frozen=True):
    """Benchmark results.

    Attributes:
        processor: Of fedscout and its peers.
        hosts: Of fedscout.
        reference: The program that others are compared with: fedscout's FedAvg, which peers run, or else the first.
        programs: Round times by name.
        ratios: Of the median round to that of the reference.
        missing: Why a peer has no times.
    """

    processor: str
    hosts: int
    reference: str
    programs: dict[str, RoundTimes]
    ratios: dict[str, float]
    missing: dict[str, str]


def time_engine(
    task: Task, strategies: Sequence[StrategySpec], engine: EngineConfig, training: LocalTraining = TRAINING
) -> tuple[int, dict[str, RoundTimes]]:
    """Return the number of hosts, and the times of strategies, measured one after the other on these.

    Raises:
        RuntimeError: If a strategy's trial fails.
    """
    federation = work_federation(task.name, task.clients, task.samples)
    num_sampled, times = task.sampled or task.clients, {}
    with open_runner(federation, engine, None, parallel=1) as runner:
        del federation  # the hosts have it
        runner.started()
        for strategy in strategies:
            run = partial(run_rounds, runner.grid, strategy, num_sampled, training, num_scored=task.sampled)
            run(work.WARM_UP_ROUNDS, lambda _: None)
            ends = [time.perf_counter()]
            result = run(task.rounds, lambda _: ends.append(time.perf_counter()))  # noqa: B023  # called before the next
            ends.append(time.perf_counter())
            times[f"fedscout, {strategy}"] = RoundTimes(
                round_seconds=whole_rounds(ends, task.rounds),
                accuracy=result.rounds["accuracy"][-1],
                phases={phase: spent / task.rounds for phase, spent in result.seconds.items() if phase != "total"},
            )
        return runner.started().num_hosts, times


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


def processor_text() -> str:
    """Return the processor's name and the instruction set of PyTorch's kernels, such as `AMD EPYC, AVX512`."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"


def measure_engine(
    task: Task,
    strategies: Sequence[StrategySpec],
    engine: EngineConfig,
    training: LocalTraining = TRAINING,
    repeats: int = 1,
    peers: Sequence[str] = (),
    note: Callable[[str], None] = lambda _: None,
) -> EngineReport:
    """Return the benchmark results of strategies and of peers on the same task.

    Args:
        task: The task.
        strategies: fedscout's strategies.
        engine: Of fedscout.
        training: Local training of fedscout's clients; peers train in float32.
        repeats: Repetitions, each with newly started hosts.
        peers: Programs to compare with.
        note: Called with a line of progress.

    Raises:
        RuntimeError: If a strategy's trial fails.
    """
    programs: dict[str, RoundTimes] = {}
    missing: dict[str, str] = {}
    for turn in range(repeats):
        note(f"repetition {turn + 1} of {repeats}: fedscout")
        hosts, times = time_engine(task, strategies, engine, training)
        results: dict[str, RoundTimes | str] = {**times}
        for peer in peers:
            if peer not in missing:
                note(f"repetition {turn + 1} of {repeats}: {peer}")
                results[peer] = run_peer(peer, replace(task, workers=hosts))
        for name, result in results.items():
            if isinstance(result, str):  # one that failed once has no times
                missing[name] = result
                programs.pop(name, None)
            else:
                earlier = programs[name].round_seconds if name in programs else ()
                programs[name] = result.model_copy(update={"round_seconds": earlier + result.round_seconds})
    reference = next((name for name in programs if name == "fedscout, fedavg"), next(iter(programs)))
    return EngineReport(
        processor=processor_text(),
        hosts=hosts,
        reference=reference,
        programs=programs,
        ratios={name: times.median_seconds / programs[reference].median_seconds for name, times in programs.items()},
        missing=missing,
    )


def report_lines(report: EngineReport) -> list[str]:
    """Return the report as lines of text, with all times in milliseconds."""
    rows = []
    for name, times in report.programs.items():
        parts = ", ".join(f"{phase} {1000 * spent:.1f}" for phase, spent in times.phases.items())
        figures = (f"{1000 * seconds:.2f}" for seconds in (times.median_seconds, times.min_seconds))
        rows.append([name, *figures, f"{report.ratios[name]:.2f}", parts])
    headings = ("milliseconds per round", "median", "minimum", f"times {report.reference}", "parts")
    missing = [f"{name}: {reason}" for name, reason in report.missing.items()]
    return [f"{report.hosts} hosts; {report.processor}", "", *markdown_table(headings, rows), *missing]


NUM_BATCHES = 4
STEPS = LocalTraining(batch_size=work.BATCH_SIZE, learning_rate=1e-3)
LARGER: tuple[WorkName, ...] = ("lenet", "textcnn", "resnet18", "resnet18-32")

Row = dict[str, Any]
"""A row of a printed table, by heading."""


def product_rates(turns: int) -> list[Row]:
    """Return the rate of a large matrix product and a large convolution."""
    torch.set_num_threads(1)
    side, channels = 512, 128
    left, right, product = torch.ones(side, side), torch.ones(side, side), torch.empty(side, side)
    images = torch.ones(work.BATCH_SIZE, channels, 16, 16).contiguous(memory_format=torch.channels_last)
    kernel = torch.ones(channels, channels, 3, 3)
    multiplied = shortest(lambda: torch.mm(left, right, out=product), 10 * turns)
    convolved = shortest(lambda: nn.functional.conv2d(images, kernel, padding=1), 10 * turns)
    operations = 2 * images.numel() * kernel[0].numel()
    return [
        {"library": f"matrix product of side {side}", "GFLOP/s": 2 * side**3 / multiplied / 1e9},
        {"library": f"3 x 3 convolution of {channels} channels", "GFLOP/s": operations / convolved / 1e9},
    ]


def kernel_timings(turns: int) -> Iterator[Row]:
    """Yield the times of each model on one core, and the operations of its layers in a step, forward and backward."""
    torch.set_num_threads(1)
    keep_freed_memory()
    for name in LARGER:
        federation = work_federation(name, 1, NUM_BATCHES * work.BATCH_SIZE)
        factory, data = federation.model, federation.client_data(0).own
        model = new_model(factory, seed=0)
        scored = shortest(partial(score_client, model, data), turns)
        epoch = shortest(partial(descend, new_model(factory, seed=0), data, STEPS, np.random.default_rng(0)), turns)
        step_seconds, operations = epoch / NUM_BATCHES, _operations(factory(), data)
        yield {
            "model": name,
            "step of 32 rows, ms": 1e3 * step_seconds,
            "GFLOP": operations / 1e9,
            "GFLOP/s": operations / step_seconds / 1e9,
            "scoring, µs per row": 1e6 * scored / len(data),
        }


def _operations(module: nn.Module, data: Samples) -> int:
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter:
        module(torch.from_numpy(data.features[: work.BATCH_SIZE])).sum().backward()
    return int(counter.get_total_flops())


def shortest(function: Callable[[], object], turns: int) -> float:
    """Return the minimum seconds over `turns` repetitions, after a warm-up."""
    return min(timeit.repeat(function, number=1, repeat=turns + 1)[1:])


CLIENTS, ROWS = 20, 256


def block_timings(turns: int) -> list[Row]:
    """Return the times of an epoch and of a scoring of 20 dense clients of 256 rows."""
    torch.set_num_threads(1)
    keep_freed_memory()
    federation = work_federation("dense", CLIENTS, ROWS)
    model = new_model(federation.model, seed=0)
    stack = DenseStack.of(model.module, model.layout)
    assert stack is not None
    rows = [federation.client_data(client).own for client in range(CLIENTS)]
    request = TrainRequest(model.vector.clone(), TRAINING)

    def train() -> None:
        works = [RowsWork(client, np.random.default_rng(client), {}, data) for client, data in enumerate(rows)]
        train_block(stack, model.layout, request, works)

    def score() -> None:
        score_clients(model, stack, request.received[None], rows)

    weights = [layer.num_inputs * layer.num_outputs for layer in stack.layers]
    products = {"training": 3 * sum(weights) - weights[0], "scoring": sum(weights)}
    rows_of_table: list[Row] = []
    for name, epoch in (("training", train), ("scoring", score)):
        seconds, operations = shortest(epoch, turns), 2 * CLIENTS * ROWS * products[name]
        figures = {"ms": 1e3 * seconds, "GFLOP": operations / 1e9, "GFLOP/s": operations / seconds / 1e9}
        rows_of_table.append({"20 dense clients of 256 rows": name, **figures})
    return rows_of_table


NODE_BYTES = 500 * 2**20
"""Memory of a raylet, its agents and a host with torch."""

SPARE_BYTES = 2**30
"""Memory that must stay free."""

STORE_BYTES = 100 * 2**20
START_SECONDS = 300.0
WARM_UP_ROUNDS = 3
PASSES = 3
"""Repetitions of all tasks of a size, so that a temporary disturbance does not affect all measurements of one."""

BYTES_PER_PARAMETER = 12
"""Sent by and to a host in a round: the model (4), which is evaluated and trained, and the partial sum (8)."""

TERMS = ("constant", "per host", "per client", "per megabyte")
QUANTITIES = ("wall", "driver", "hosts")


class RoundSize(NamedTuple):
    """The variables of a round's cost: hosts (one per node), training and scored clients, model parameters."""

    hosts: int
    clients: int
    parameters: int

    @property
    def megabytes(self) -> float:
        """Traffic to and from all hosts in a round, in 10^6 bytes."""
        return self.hosts * self.parameters * BYTES_PER_PARAMETER / 1e6

    @property
    def terms(self) -> list[float]:
        """The factors of the coefficients, in the order of `TERMS`."""
        return [1.0, self.hosts, self.clients, self.megabytes]


def fit(sizes: Sequence[RoundSize], seconds: Sequence[float]) -> DoubleArray:
    """Return the coefficients, in the order of `TERMS`, fitted to measured rounds, whose seconds must be > 0."""
    from scipy.optimize import nnls

    matrix = np.array([size.terms for size in sizes], dtype=np.float64)
    largest = matrix.max(axis=0)
    solution, _ = nnls(matrix / largest / np.asarray(seconds)[:, None], np.ones(len(seconds)))
    return np.asarray(solution / largest)


FEATURES, CLASSES, CLIENT_ROWS = 8, 2, 4
SMALL, LARGE = (4,), (512, 512)
"""Hidden layers: 46 parameters, or 268,290 (1.07 MB), which go through the object store."""


@dataclass(frozen=True)
class _Work:
    """A task: number of clients, and hidden layers of the model."""

    clients: int
    hidden: tuple[int, ...]

    def size(self, num_hosts: int) -> RoundSize:
        """Return the size of a round, with the weights and biases of all layers."""
        widths = (FEATURES, *self.hidden, CLASSES)
        return RoundSize(num_hosts, self.clients, sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths)))

    def federation(self) -> Federation:
        model = build_model(ModelRequest((FEATURES,), CLASSES, ModelSettings(kind="dense", hidden=self.hidden)))
        return replace(work_federation("tiny", self.clients, CLIENT_ROWS), model=model)


def measure_scaling(
    nodes: Sequence[int], clients: int, rounds: int, note: Callable[[str], None] = lambda _: None
) -> dict[str, list[Row]]:
    """Return tables of measured rounds on growing clusters and of fitted costs.

    Costs need two numbers of nodes. Sizes for which memory is missing are left out with a note.

    Args:
        nodes: Numbers of raylets, ascending.
        clients: Clients of the task with many clients.
        rounds: Measured rounds per size.
        note: Called with a line of progress.
    """
    measured: list[tuple[RoundSize, DoubleArray]] = []
    with _growing_hosts() as grow:
        for current, num_nodes in zip([0, *nodes], nodes, strict=False):
            used, total = memory_in_use()
            needed = (num_nodes - current) * NODE_BYTES + SPARE_BYTES
            if needed > total - used:
                sizes = f"{needed / 2**30:.1f} GiB of memory, {(total - used) / 2**30:.1f} are available"
                note(f"stopped before {num_nodes} nodes: {num_nodes - current} more need {sizes}")
                break
            note(f"starting {num_nodes} nodes")
            actors, tasks = grow(num_nodes), [_Work(num_nodes, SMALL), _Work(clients, SMALL), _Work(num_nodes, LARGE)]
            passes = [[_measured(work, actors, rounds) for work in tasks] for _ in range(PASSES)]
            least = np.min(passes, axis=0)
            measured += zip([work.size(num_nodes) for work in tasks], least, strict=True)
            note(f"{num_nodes} nodes: {', '.join(f'{1000 * wall:.1f}' for wall in least[:, 0])} ms per round")
    rows: list[Row] = [
        {"nodes": size.hosts, "clients": size.clients, "parameters": size.parameters}
        | dict(zip(QUANTITIES, 1000 * seconds, strict=True))
        for size, seconds in measured
    ]
    measured_sizes = [size for size, _ in measured]
    if len({size.hosts for size in measured_sizes}) < 2:
        return {"rounds": rows, "costs": []}
    times = zip(QUANTITIES, zip(*(seconds for _, seconds in measured), strict=True), strict=True)
    costs: list[Row] = [
        {"cost": name, **dict(zip(TERMS, (1000 * fit(measured_sizes, own)).tolist(), strict=True))}
        for name, own in times
    ]
    return {"rounds": rows, "costs": costs}


@contextmanager
def _growing_hosts() -> Iterator[Callable[[int], list[Any]]]:
    """Yield a function that grows a cluster to a number of nodes and returns its hosts, one per node.

    The cluster is shut down when the block ends. Ray records the address of the latest cluster below RAY_TMPDIR, for
    others to join, so the cluster uses a temporary RAY_TMPDIR.
    """
    from ray.cluster_utils import Cluster

    from fedscout.engine.grid.ray_grid import start_hosts

    settings = {"RAY_prestart_worker_first_driver": "0"}
    node: dict[str, Any] = {"num_cpus": 1, "object_store_memory": STORE_BYTES, "include_dashboard": False}
    actors: list[Any] = []
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="fs-", ignore_cleanup_errors=True))
        stack.enter_context(patch.dict(os.environ, {**settings, "RAY_TMPDIR": folder}))
        stack.callback(forget_token)
        stack.enter_context(own_token())  # a cluster's nodes listen to other machines
        cluster = Cluster(shutdown_at_exit=False)
        stack.enter_context(end_children_with(cluster.shutdown))
        cluster.add_node(**node)
        stack.enter_context(ray_runtime(EngineConfig(address=cluster.address)))

        def grow(num_nodes: int) -> list[Any]:
            for _ in range(num_nodes - len(cluster.worker_nodes) - 1):
                cluster.add_node(wait=False, **node)
            cluster.wait_for_nodes(timeout=START_SECONDS)
            # The nodes that were there before have no CPU to spare, so that each new one gets a host.
            actors.extend(start_hosts(_Work(1, SMALL).federation(), {}, num_nodes - len(actors)).actors)
            return actors

        yield grow


def _measured(work: _Work, actors: list[Any], rounds: int) -> list[float]:
    """Return the seconds of a round of one trial by quantity, after assigning a federation to the hosts."""
    import ray

    from fedscout.engine.grid.ray_grid import RayGrid, RayHosts

    federation = ray.put(work.federation())
    ray.get([actor.__ray_call__.remote(_reinitialize, [federation]) for actor in actors])
    hosts = RayHosts(tuple(actors), ray.get(actors[0].facts.remote()), federation, num_nodes=len(actors))
    ends: list[tuple[float, float]] = []
    before = _cpu_seconds(actors)
    run_rounds(
        lambda session: RayGrid(hosts, session),
        FedAvgSpec(),
        work.clients,
        LocalTraining(),
        WARM_UP_ROUNDS + rounds,
        lambda _: ends.append((time.perf_counter(), time.process_time())),
    )
    hosts_seconds = _cpu_seconds(actors) - before
    times = np.diff(ends[WARM_UP_ROUNDS - 1 :], axis=0)
    return [float(times[:, 0].min()), float(np.median(times[:, 1])), hosts_seconds / (WARM_UP_ROUNDS + rounds)]


def _cpu_seconds(actors: list[Any]) -> float:
    """Return the total CPU time used by all hosts."""
    import ray

    return float(sum(ray.get([actor.__ray_call__.remote(lambda _: time.process_time()) for actor in actors])))


def _reinitialize(host: Any, federation: list[Any]) -> None:
    """Reinitialize a running host with another federation."""
    type(host).__init__(host, federation, {})
