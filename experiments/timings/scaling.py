"""Scaling of a round's overhead with nodes, clients and model size, on clusters of many raylets on one machine.

Local training is almost free (a few rows per client), so a round's time is the engine's overhead: sending the model,
calls, partial sums, aggregation, evaluation. Every raylet has one CPU and one host. All raylets share the cores of this
machine, so work that nodes of a real cluster do in parallel is serialized. Hence three quantities:

- `wall`: time of the fastest round, an overestimate for nodes with their own cores, more so under other load.
- `driver`: CPU time of the driver, which does not shrink with more nodes.
- `hosts`: CPU time of all hosts together, which is parallel on real nodes.

CPU times hardly depend on other load. A round on real nodes is estimated as the driver's CPU time plus that of one host
plus the network's time, which is computed (see `Network`), not measured.

A round's cost is fitted as a linear function of hosts, clients and bytes:

    seconds = constant + per_host * hosts + per_client * clients + per_megabyte * megabytes

The coefficients are >= 0 and minimize the sum of squared *relative* errors, since sizes span two decades (non-negative
least squares: Lawson & Hanson, Solving Least Squares Problems, 1974, ch. 23). A fit is checked by leaving out the
largest number of hosts, fitting the rest, and predicting what was left out.

Hosts are reused across sizes and given one federation after the other, as starting a process takes longer than
measuring it.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
from pydantic import BaseModel, Field

from fedscout.engine.config import EngineConfig
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.processes import end_children_with
from fedscout.engine.runtime.ray import forget_token, memory_in_use, own_token, ray_runtime
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import dense
from fedscout.experiments.reports.console import markdown_table
from fedscout.experiments.timings.engine import run_rounds
from fedscout.strategies import FedAvgSpec

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

ROUND_TRIPS = 1
"""Of a round: the evaluation of its model travels with the next round's training."""

TERMS = 4


class RoundSize(BaseModel, frozen=True):
    """The variables of a round's cost: hosts (one per node), training and scored clients, model parameters."""

    hosts: int = Field(ge=1)
    clients: int = Field(ge=1)
    parameters: int = Field(ge=1)

    @property
    def megabytes(self) -> float:
        """Traffic to and from all hosts in a round, in 10^6 bytes."""
        return self.hosts * self.parameters * BYTES_PER_PARAMETER / 1e6


class Network(BaseModel, frozen=True):
    """A network between the driver's node and the others.

    All traffic is counted as if it passed through the driver's link sequentially, host by host. This is the worst case:
    a model that is too large for a call is forwarded between nodes, and sent only once to a node with several hosts.

    Attributes:
        gigabits_per_second: Bandwidth of the driver's link.
        latency_seconds: Round-trip time of a call, without the work.
    """

    gigabits_per_second: float = Field(default=10.0, gt=0)
    latency_seconds: float = Field(default=0.0005, ge=0)

    def seconds(self, size: RoundSize) -> float:
        """Return the network time of a round."""
        return size.megabytes * 8e-3 / self.gigabits_per_second + ROUND_TRIPS * self.latency_seconds


class CostModel(BaseModel, frozen=True):
    """Linear model of the seconds of a round; see the module."""

    constant: float
    per_host: float
    per_client: float
    per_megabyte: float

    def seconds(self, size: RoundSize) -> float:
        """Return the predicted time of a round."""
        return float(np.dot(_terms(size), list(self.model_dump().values())))


class Prediction(BaseModel, frozen=True):
    """Predicted and measured seconds of a round that was left out of the fit."""

    size: RoundSize
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Relative error; 0.1 is 10 % too much."""
        return self.predicted / self.measured - 1.0


def _terms(size: RoundSize) -> list[float]:
    return [1.0, size.hosts, size.clients, size.megabytes]


def fit(sizes: Sequence[RoundSize], seconds: Sequence[float]) -> CostModel:
    """Return the cost model fitted to measured rounds, whose seconds must be > 0.

    Raises:
        ConfigurationError: If the sizes do not determine all coefficients.
    """
    from scipy.optimize import nnls

    matrix = np.array([_terms(size) for size in sizes], dtype=np.float64).reshape(-1, TERMS)
    scaled = matrix / np.abs(matrix).max(axis=0, initial=1e-300)
    rank = int(np.linalg.matrix_rank(scaled)) if len(sizes) else 0
    if rank < TERMS:
        raise ConfigurationError.of(
            "the sizes",
            f"determine the costs of hosts, clients, bytes and a constant (rank {TERMS})",
            f"{len(sizes)} of rank {rank}",
            "name at least two numbers of nodes",
        )
    times = np.asarray(seconds, dtype=np.float64)
    largest = matrix.max(axis=0)
    solution, _ = nnls(matrix / largest / times[:, None], np.ones(len(times)))
    return CostModel(**dict(zip(CostModel.model_fields, (solution / largest).tolist(), strict=True)))


def check(sizes: Sequence[RoundSize], seconds: Sequence[float]) -> list[Prediction]:
    """Return predictions for the largest number of hosts, fitted without it; empty below three numbers."""
    largest = max(size.hosts for size in sizes)
    if len({size.hosts for size in sizes}) < 3:
        return []
    smaller = [index for index, size in enumerate(sizes) if size.hosts < largest]
    model = fit([sizes[index] for index in smaller], [seconds[index] for index in smaller])
    return [
        Prediction(size=size, predicted=model.seconds(size), measured=measured)
        for size, measured in zip(sizes, seconds, strict=True)
        if size.hosts == largest
    ]


FEATURES, CLASSES, CLIENT_ROWS = 8, 2, 4
SMALL, LARGE = (4,), (512, 512)
"""Hidden layers: 46 parameters, or 268,290 (1.07 MB), which go through the object store."""

Note = Callable[[str], None]
Quantity = Literal["wall", "driver", "hosts"]
QUANTITIES: tuple[Quantity, ...] = ("wall", "driver", "hosts")


class MeasuredRounds(BaseModel, frozen=True):
    """Measured seconds of a round of one size, by quantity; see the module."""

    size: RoundSize
    seconds: dict[Quantity, float]


class Forecast(BaseModel, frozen=True):
    """Estimated seconds of a round that was not measured.

    Attributes:
        size: Size of the round.
        shared_cores: Wall time if all nodes shared the cores of this machine: an upper bound without a network.
        driver: CPU time of the driver.
        host: CPU time of one host, as hosts work in parallel.
        network: Network time.
    """

    size: RoundSize
    shared_cores: float
    driver: float
    host: float
    network: float

    @property
    def own_cores(self) -> float:
        """The estimate for nodes with their own cores."""
        return self.driver + self.host + self.network


class ScalingReport(BaseModel, frozen=True):
    """Measurements, fitted models and forecasts.

    Attributes:
        measurements: One per task and number of nodes.
        stopped: Why requested sizes are missing, or None.
        cores: Cores of this machine, shared by all nodes.
        models: By quantity; empty with fewer than two numbers of nodes.
        checked: By quantity, predictions of the largest number of nodes from the others; empty with fewer than three.
        network: Network of the forecasts.
        forecasts: For the target number of nodes, over this network.
    """

    measurements: tuple[MeasuredRounds, ...]
    stopped: str | None
    cores: int
    models: dict[Quantity, CostModel]
    checked: dict[Quantity, tuple[Prediction, ...]]
    network: Network
    forecasts: tuple[Forecast, ...]


@dataclass(frozen=True)
class _Work:
    """A task: number of clients, and hidden layers of the model."""

    clients: int
    hidden: tuple[int, ...]

    @property
    def parameters(self) -> int:
        """Weights and biases of all layers."""
        widths = (FEATURES, *self.hidden, CLASSES)
        return sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))

    def federation(self) -> Federation:
        generator = np.random.default_rng(0)
        features = generator.normal(size=(self.clients * CLIENT_ROWS, FEATURES)).astype(np.float32)
        return Federation(
            name="scaling",
            features=features,
            labels=np.arange(len(features)) % CLASSES,
            num_classes=CLASSES,
            partition=Partition.from_lists(np.split(np.arange(len(features)), self.clients)),
            model=dense(ModelRequest((FEATURES,), CLASSES, ModelSettings(hidden=self.hidden))),
        )


def works(nodes: int, clients: int) -> list[_Work]:
    """Return the tasks for a number of nodes: one client per host, many clients, and a large model."""
    return [_Work(nodes, SMALL), _Work(clients, SMALL), _Work(nodes, LARGE)]


def memory_fault(more_nodes: int, available_bytes: int) -> str | None:
    """Return why this many additional nodes can't be started, or None."""
    needed = more_nodes * NODE_BYTES + SPARE_BYTES
    if needed <= available_bytes:
        return None
    return (
        f"{more_nodes} more nodes need {needed / 2**30:.1f} GiB of memory, {available_bytes / 2**30:.1f} are available"
    )


def measure_scaling(
    nodes: Sequence[int], clients: int, rounds: int, target: int, network: Network, note: Note = lambda _: None
) -> ScalingReport:
    """Return measurements of rounds on growing clusters and a forecast for a larger one.

    Args:
        nodes: Numbers of raylets, ascending.
        clients: Clients of the task with many clients.
        rounds: Measured rounds per size.
        target: Number of nodes of the forecast.
        network: Assumed network of the forecast.
        note: Called with a line of progress.
    """
    measurements: list[MeasuredRounds] = []
    stopped = None
    with _growing_hosts() as grow:
        for current, num_nodes in zip([0, *nodes], nodes, strict=False):
            used, total = memory_in_use()
            fault = memory_fault(num_nodes - current, total - used)
            if fault is not None:
                stopped = f"stopped before {num_nodes} nodes: {fault}"
                note(stopped)
                break
            note(f"starting {num_nodes} nodes")
            actors = grow(num_nodes)
            passes = [[_measured(work, actors, rounds) for work in works(num_nodes, clients)] for _ in range(PASSES)]
            measurements += [_minimum_times(repeated) for repeated in zip(*passes, strict=True)]
            walls = ", ".join(
                f"{1000 * measurement.seconds['wall']:.1f}" for measurement in measurements[-len(passes[0]) :]
            )
            note(f"{num_nodes} nodes: {walls} ms per round")
    return _report(measurements, stopped, clients, target, network)


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


def _measured(work: _Work, actors: list[Any], rounds: int) -> MeasuredRounds:
    """Return the round times of one trial, after assigning a federation to the hosts."""
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
    return MeasuredRounds(
        size=RoundSize(hosts=len(actors), clients=work.clients, parameters=hosts.facts.layout.size),
        seconds={
            "wall": float(times[:, 0].min()),
            "driver": float(np.median(times[:, 1])),
            "hosts": hosts_seconds / (WARM_UP_ROUNDS + rounds),
        },
    )


def _minimum_times(measurements: Sequence[MeasuredRounds]) -> MeasuredRounds:
    """Return the minimum of each quantity over the measurements of one size."""
    minimum = {quantity: min(measurement.seconds[quantity] for measurement in measurements) for quantity in QUANTITIES}
    return MeasuredRounds(size=measurements[0].size, seconds=minimum)


def _cpu_seconds(actors: list[Any]) -> float:
    """Return the total CPU time used by all hosts."""
    import ray

    return float(sum(ray.get([actor.__ray_call__.remote(lambda _: time.process_time()) for actor in actors])))


def _reinitialize(host: Any, federation: list[Any]) -> None:
    """Reinitialize a running host with another federation."""
    type(host).__init__(host, federation, {})


def _report(
    measurements: list[MeasuredRounds], stopped: str | None, clients: int, target: int, network: Network
) -> ScalingReport:
    sizes = [measurement.size for measurement in measurements]
    models: dict[Quantity, CostModel] = {}
    checked: dict[Quantity, tuple[Prediction, ...]] = {}
    if len({size.hosts for size in sizes}) > 1:
        for quantity in QUANTITIES:
            times = [measurement.seconds[quantity] for measurement in measurements]
            models[quantity] = fit(sizes, times)
            checked[quantity] = tuple(check(sizes, times))
    larger = [
        RoundSize(hosts=target, clients=work.clients, parameters=work.parameters) for work in works(target, clients)
    ]
    forecasts = tuple(
        Forecast(
            size=size,
            shared_cores=models["wall"].seconds(size),
            driver=models["driver"].seconds(size),
            host=models["hosts"].seconds(size) / target,
            network=network.seconds(size),
        )
        for size in (larger if models else ())
    )
    return ScalingReport(
        measurements=tuple(measurements),
        stopped=stopped,
        cores=os.cpu_count() or 1,
        models=models,
        checked=checked,
        network=network,
        forecasts=forecasts,
    )


def report_lines(report: ScalingReport) -> list[str]:
    """Return the report as lines of text, with all times in milliseconds."""
    headings = ("nodes", "clients", "parameters")
    rows = [
        (*_variables(each.size), *(_times(report, each, quantity) for quantity in QUANTITIES))
        for each in report.measurements
    ]
    title = "milliseconds per round: wall time, CPU time of the driver, CPU time of all hosts; (predicted by the model)"
    lines = [title, "", *markdown_table([*headings, *QUANTITIES], rows)]
    if report.stopped:
        lines += ["", report.stopped]
    if not report.models:
        return [*lines, "", "a model needs at least two numbers of nodes"]
    lines += ["", *(f"{quantity} = {_formula(model)}" for quantity, model in report.models.items())]
    for quantity, predictions in report.checked.items():
        if predictions:
            errors = ", ".join(f"{100 * prediction.error:+.0f} %" for prediction in predictions)
            hosts = predictions[0].size.hosts
            lines.append(f"check of {quantity}: a fit without {hosts} nodes has errors of {errors} there")
    link = f"{report.network.gigabits_per_second:g} Gbit/s, {1000 * report.network.latency_seconds:g} ms"
    parts = ("own_cores", "driver", "host", "network", "shared_cores")
    forecasts = [
        (*_variables(forecast.size), *(_ms(getattr(forecast, part)) for part in parts)) for forecast in report.forecasts
    ]
    part_headings = ("estimate", "driver", "one host", "network", "all on these cores")
    return [
        *lines,
        "",
        f"Estimate for nodes with cores of their own = driver + one host + network ({link}):",
        "",
        *markdown_table([*headings, *part_headings], forecasts),
        "",
        f"Measured with all nodes on the {report.cores} cores of this machine, without a network.",
    ]


def _variables(size: RoundSize) -> tuple[int, int, int]:
    return size.hosts, size.clients, size.parameters


def _times(report: ScalingReport, measurement: MeasuredRounds, quantity: Quantity) -> str:
    predicted = f" ({_ms(report.models[quantity].seconds(measurement.size))})" if report.models else ""
    return f"{_ms(measurement.seconds[quantity])}{predicted}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def _formula(model: CostModel) -> str:
    constant, *slopes = (f"{1000 * value:.3g}" for value in model.model_dump().values())
    return " + ".join([constant, *map(" ".join, zip(slopes, ("per host", "per client", "per MB"), strict=True))])
