"""How a round's overhead grows with nodes, clients and the model: clusters of many raylets on this machine.

Local work is next to nothing (a few rows a client), so that a round's time is what the engine spends: sending the
model, calls, partial sums, folding, evaluation. Every raylet has one CPU and one host. All of them share this machine's
cores, so what nodes do side by side in a real cluster is done here one after the other. Hence three quantities:

- `wall`, the time of the fastest round: more than nodes with cores of their own need, and more still if other work
  keeps the machine busy.
- `driver`, CPU time of the driver, which no number of nodes takes off it.
- `hosts`, CPU time of all hosts together, which on real nodes is spent side by side.

CPU times hardly depend on what else runs. A round on real nodes is estimated by the driver's and one host's, plus the
network's, which is not measured but added by a formula.

What a round costs beyond its local work is a linear function of hosts, clients and bytes, fitted and checked:

    seconds = constant + per_host * hosts + per_client * clients + per_megabyte * megabytes

The coefficients are >= 0 and minimise the sum of squared *relative* errors, since sizes span two decades (non-negative
least squares: Lawson & Hanson, Solving Least Squares Problems, 1974, ch. 23). A model is checked by leaving out the
largest number of hosts, fitting the rest, and predicting what was left out.

A network is not measured here, but added by a formula: see `Network`.

Hosts stay from size to size and are given one federation after the other, as to start a process takes longer than to
measure it.
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
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.runtime.processes import children_ended_by
from fedscout.engine.runtime.ray import forget_token, memory_in_use, own_token, ray_runtime
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import dense
from fedscout.experiments.timings.peer_runs import run_rounds
from fedscout.strategies import FedAvgSpec

NODE_BYTES = 500 * 2**20
"""Of memory for a raylet, its agents and a host with torch."""

SPARE_BYTES = 2**30
"""Which must stay free."""

STORE_BYTES = 100 * 2**20
START_SECONDS = 300.0
WARM_UP_ROUNDS = 3
PASSES = 3
"""Over the works of a size, so that what disturbs one of them for a while is not its only measurement."""


BYTES_PER_PARAMETER = 12
"""Of a host in a round: the model (4), which is evaluated and trained on, and the partial sum (8)."""

ROUND_TRIPS = 1
"""Of a round: the evaluation of its model travels with the next round's training."""

TERMS = 4


class RoundSize(BaseModel, frozen=True):
    """What a round's cost depends on: hosts, one a node, clients that train and are scored, the model's parameters."""

    hosts: int = Field(ge=1)
    clients: int = Field(ge=1)
    parameters: int = Field(ge=1)

    @property
    def megabytes(self) -> float:
        """What goes to and comes from all hosts in a round, in 10^6 bytes."""
        return self.hosts * self.parameters * BYTES_PER_PARAMETER / 1e6


class Network(BaseModel, frozen=True):
    """A network between the driver's node and the others.

    Everything is counted as if it passed the driver's link, one host after the other. That is the worst case: a model
    larger than a call carries is passed on between the nodes, and once to a node with several hosts.

    Attributes:
        gigabits_per_second: Of the driver's link.
        latency_seconds: From a call to its answer, without the work.
    """

    gigabits_per_second: float = Field(default=10.0, gt=0)
    latency_seconds: float = Field(default=0.0005, ge=0)

    def seconds(self, size: RoundSize) -> float:
        """Return what the network adds to a round."""
        return size.megabytes * 8e-3 / self.gigabits_per_second + ROUND_TRIPS * self.latency_seconds


class CostModel(BaseModel, frozen=True):
    """Seconds of a round by its size; see the module."""

    constant: float
    per_host: float
    per_client: float
    per_megabyte: float

    def seconds(self, size: RoundSize) -> float:
        """Return the predicted time of a round."""
        return float(np.dot(_terms(size), list(self.model_dump().values())))


class Prediction(BaseModel, frozen=True):
    """Seconds of a round that were predicted from others, and that were measured."""

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
    """Return the model of measured rounds, which took so many seconds > 0.

    Raises:
        ConfigurationError: If the sizes do not tell the terms apart.
    """
    from scipy.optimize import nnls

    matrix = np.array([_terms(size) for size in sizes], dtype=np.float64).reshape(-1, TERMS)
    scaled = matrix / np.abs(matrix).max(axis=0, initial=1e-300)
    rank = int(np.linalg.matrix_rank(scaled)) if len(sizes) else 0
    if rank < TERMS:
        raise ConfigurationError(
            Fault(
                "the sizes",
                f"tell hosts, clients, bytes and a constant apart (rank {TERMS})",
                f"{len(sizes)} of rank {rank}",
                "name at least two numbers of nodes",
            )
        )
    times = np.asarray(seconds, dtype=np.float64)
    largest = matrix.max(axis=0)
    solution, _ = nnls(matrix / largest / times[:, None], np.ones(len(times)))
    return CostModel(**dict(zip(CostModel.model_fields, (solution / largest).tolist(), strict=True)))


def check(sizes: Sequence[RoundSize], seconds: Sequence[float]) -> list[Prediction]:
    """Return predictions for the largest number of hosts by the model of all others; none below three numbers."""
    largest = max(size.hosts for size in sizes)
    if len({size.hosts for size in sizes}) < 3:
        return []
    known = [index for index, size in enumerate(sizes) if size.hosts < largest]
    model = fit([sizes[index] for index in known], [seconds[index] for index in known])
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
    """Seconds of a round of one size, by quantity; see the module."""

    size: RoundSize
    seconds: dict[Quantity, float]


class Forecast(BaseModel, frozen=True):
    """A round that was not measured, in seconds.

    Attributes:
        size: Of the round.
        shared_cores: Wall time if all nodes shared the cores of this machine: an upper bound without a network.
        driver: CPU time of the driver.
        host: CPU time of one host, as all work side by side.
        network: What the network adds.
    """

    size: RoundSize
    shared_cores: float
    driver: float
    host: float
    network: float

    @property
    def own_cores(self) -> float:
        """The estimate for nodes with cores of their own."""
        return self.driver + self.host + self.network


class ScalingReport(BaseModel, frozen=True):
    """What was measured, and what follows from it.

    Attributes:
        stopped: Why sizes that were asked for are missing, or None.
        cores: Of this machine, shared by all nodes.
        models: By quantity; empty below two numbers of nodes.
        checked: By quantity, the largest number of nodes predicted from the others; empty below three numbers.
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
    """Clients, and the hidden layers of the model."""

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
    """Return what is measured on a number of nodes: one client a host, many clients, and a large model."""
    return [_Work(nodes, SMALL), _Work(clients, SMALL), _Work(nodes, LARGE)]


def memory_fault(more_nodes: int, available_bytes: int) -> str | None:
    """Return why so many more nodes can't be started, or None if they can."""
    needed = more_nodes * NODE_BYTES + SPARE_BYTES
    if needed <= available_bytes:
        return None
    return (
        f"{more_nodes} more nodes need {needed / 2**30:.1f} GiB of memory, {available_bytes / 2**30:.1f} are available"
    )


def measure_scaling(
    nodes: Sequence[int], clients: int, rounds: int, target: int, network: Network, note: Note = lambda _: None
) -> ScalingReport:
    """Measure rounds on growing clusters and forecast those of a larger one.

    Args:
        nodes: Numbers of raylets, ascending.
        clients: Of the work with many clients.
        rounds: Measured of each size.
        target: Nodes to forecast.
        network: Assumed there.
        note: Told in a line what is being done.
    """
    measurements: list[MeasuredRounds] = []
    stopped = None
    with _growing_hosts() as grow:
        for earlier, wanted in zip([0, *nodes], nodes, strict=False):
            used, total = memory_in_use()
            fault = memory_fault(wanted - earlier, total - used)
            if fault is not None:
                stopped = f"stopped before {wanted} nodes: {fault}"
                note(stopped)
                break
            note(f"starting {wanted} nodes")
            actors = grow(wanted)
            passes = [[_measured(work, actors, rounds) for work in works(wanted, clients)] for _ in range(PASSES)]
            measurements += [_undisturbed(of_one_work) for of_one_work in zip(*passes, strict=True)]
            walls = ", ".join(f"{1000 * each.seconds['wall']:.1f}" for each in measurements[-len(passes[0]) :])
            note(f"{wanted} nodes: {walls} ms a round")
    return _report(measurements, stopped, clients, target, network)


@contextmanager
def _growing_hosts() -> Iterator[Callable[[int], list[Any]]]:
    """Give what makes a cluster as large as asked for and returns its hosts, one a node; all ends with the block.

    Ray notes the address of the latest cluster below RAY_TMPDIR, for others to join; so it has one of its own here.
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
        stack.enter_context(children_ended_by(cluster.shutdown))
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
    """Give the hosts a federation, run one trial and time its rounds."""
    import ray

    from fedscout.engine.grid.ray_grid import RayGrid, RayHosts

    federation = ray.put(work.federation())
    ray.get([actor.__ray_call__.remote(_begin_anew, [federation]) for actor in actors])
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


def _undisturbed(measurements: Sequence[MeasuredRounds]) -> MeasuredRounds:
    """Return the least of the times of one size."""
    least = {quantity: min(each.seconds[quantity] for each in measurements) for quantity in QUANTITIES}
    return MeasuredRounds(size=measurements[0].size, seconds=least)


def _cpu_seconds(actors: list[Any]) -> float:
    """Return the CPU time that all hosts have used."""
    import ray

    return float(sum(ray.get([actor.__ray_call__.remote(lambda _: time.process_time()) for actor in actors])))


def _begin_anew(host: Any, federation: list[Any]) -> None:
    """Make a running host serve another federation."""
    type(host).__init__(host, federation, {})


def _report(
    measurements: list[MeasuredRounds], stopped: str | None, clients: int, target: int, network: Network
) -> ScalingReport:
    sizes = [each.size for each in measurements]
    models: dict[Quantity, CostModel] = {}
    checked: dict[Quantity, tuple[Prediction, ...]] = {}
    if len({size.hosts for size in sizes}) > 1:
        for quantity in QUANTITIES:
            times = [each.seconds[quantity] for each in measurements]
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
    """Return the report for people; all times in milliseconds."""
    lines = [
        "milliseconds a round: wall time, CPU time of the driver and of all hosts together; (by the model)",
        "",
        "nodes  clients  parameters               wall             driver              hosts",
    ]
    for each in report.measurements:
        cells = []
        for quantity in QUANTITIES:
            by_model = f"({_ms(report.models[quantity].seconds(each.size))})" if report.models else "(-)"
            cells.append(f"{_ms(each.seconds[quantity]):>8} {by_model:>10}")
        lines.append("".join([_columns(each.size), *cells]))
    if report.stopped:
        lines += ["", report.stopped]
    if not report.models:
        return [*lines, "", "a model needs at least two numbers of nodes"]
    lines += ["", *(f"{quantity:6} = {_formula(model)}" for quantity, model in report.models.items())]
    for quantity, predictions in report.checked.items():
        if predictions:
            errors = ", ".join(f"{100 * each.error:+.0f} %" for each in predictions)
            hosts = predictions[0].size.hosts
            lines.append(f"check of {quantity}: fitted without {hosts} nodes, its rounds are missed by {errors}")
    link = f"{report.network.gigabits_per_second:g} Gbit/s, {1000 * report.network.latency_seconds:g} ms"
    lines += [
        "",
        f"Estimate for nodes with cores of their own = driver + one host + network ({link}):",
        "nodes  clients  parameters  estimate    driver  one host   network  all on these cores",
    ]
    for one in report.forecasts:
        parts = "".join(f"{_ms(part):>10}" for part in (one.own_cores, one.driver, one.host, one.network))
        lines.append(f"{_columns(one.size)}{parts}{_ms(one.shared_cores):>20}")
    return [*lines, "", f"Measured with all nodes on the {report.cores} cores of this machine and no network between."]


def _columns(size: RoundSize) -> str:
    return f"{size.hosts:5d}  {size.clients:7d}  {size.parameters:10d}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.1f}"


def _formula(model: CostModel) -> str:
    constant, *slopes = (f"{1000 * value:.3g}" for value in model.model_dump().values())
    return " + ".join([constant, *map(" ".join, zip(slopes, ("a host", "a client", "a MB"), strict=True))])
