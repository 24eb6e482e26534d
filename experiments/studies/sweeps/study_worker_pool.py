"""Studies on one shared Ray: long-lived worker processes, each of which runs one study after the other.

A worker is an actor that takes no CPU slot and sits on the sweep's own node, where the studies' folders are. The hosts
that it starts belong to it and end with it. So a study whose process dies harms no other; it is begun once more, from
its log and its checkpoints, and reported if it dies again.

A round waits for the slowest of its hosts, and hosts must be started for every study. So where there are at least as
many studies as CPUs, whole studies run side by side: one a CPU, each in its own process without any hosts. Where there
are fewer, each gets an equal share of the CPUs as hosts. None of this changes what a study finds.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.datasets.publication import FOLDER_VARIABLE, START_VARIABLE
from fedscout.experiments.studies.grid_choice import num_processors
from fedscout.experiments.studies.sweeps.study_run import StudyEnd, one_line, run_one

ATTEMPTS = 2
POLL_SECONDS = 0.5


class ClusterCpus(NamedTuple):
    """The CPUs of a Ray cluster: of all nodes, of the node where the sweep runs, which drives all studies."""

    cpus: int
    driver_cpus: int
    num_nodes: int


class Share(NamedTuple):
    """Studies at once, and hosts of each; 0 runs a study's trials in the process that drives it."""

    parallel: int
    num_hosts: int


def cluster_cpus(ray: Any) -> ClusterCpus:
    """Return the CPUs of the connected cluster."""
    alive = [node for node in ray.nodes() if node["Alive"]]
    own = ray.get_runtime_context().get_node_id()
    cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in alive}
    driver_cpus = cpus.get(own) or num_processors()  # a head node may offer none of its CPUs to tasks
    return ClusterCpus(max(1, sum(cpus.values())), driver_cpus, len(alive))


def share_out(
    there: ClusterCpus, num_studies: int, num_hosts: int | None, parallel: int | None, timed: bool = False
) -> Share:
    """Divide the CPUs among the studies so that no host ever waits for the CPU of another study's.

    Args:
        there: The CPUs.
        num_studies: Studies to run, at least one.
        num_hosts: Hosts a study as configured; None leaves it to this rule.
        parallel: Studies at once as asked for; None leaves it to this rule.
        timed: Whether trials have a time limit, which only a host of its own can be held to.

    Raises:
        ConfigurationError: If the studies asked for at once need more CPUs than there are.
    """
    if num_hosts is None:
        at_once = min(num_studies, parallel or there.driver_cpus)
        hosts = there.cpus // at_once
        if not timed and there.num_nodes == 1 and hosts < 2 and (at_once > 1 or there.cpus < 2):
            return Share(at_once, 0)
        needed = hosts = max(1, hosts)
    else:
        hosts, needed = num_hosts, min(num_hosts, there.cpus)  # more hosts than CPUs share them
        at_once = min(num_studies, parallel or max(1, min(there.cpus // needed, there.driver_cpus)))
    if at_once * needed > there.cpus:
        raise ConfigurationError(
            f"--parallel must be at most {max(1, there.cpus // needed)} with {hosts} host{'s' if hosts > 1 else ''} a "
            f"study on {there.cpus} CPUs, got {parallel}"
        )
    return Share(at_once, hosts)


def with_share(config: StudyConfig, num_hosts: int) -> StudyConfig:
    """Return a study's configuration with its share of the hosts, for a worker, which has another working directory."""
    engine: dict[str, Any] = {"grid": "local"}
    if num_hosts:
        clients = config.federation.num_clients or num_hosts
        engine = {"grid": "ray", "num_hosts": min(num_hosts, clients), "address": None}
    federation = config.federation
    if federation.folder is not None:
        federation = federation.model_copy(update={"folder": federation.folder.absolute()})
    return config.model_copy(update={"engine": config.engine.model_copy(update=engine), "federation": federation})


def worker_environment() -> dict[str, str]:
    """Return the variables that a cluster's processes lack to find the data."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return {START_VARIABLE: str(Path.cwd())} | ({FOLDER_VARIABLE: str(Path(folder).absolute())} if folder else {})


class StudyWorker:
    """Runs studies, one after the other, in a process of its own, whose environment lacks these variables."""

    def __init__(self, environment: Mapping[str, str], verbose: bool, search_path: tuple[str, ...]) -> None:
        os.environ.update(environment)
        sys.path.extend(folder for folder in search_path if folder not in sys.path)
        self._verbose, self._search_path = verbose, search_path

    def run(self, config: StudyConfig, out: Path) -> StudyEnd:
        """Run one study to its end, in an absolute folder."""
        return run_one(config, out, self._verbose, self._search_path)


class StudyWorkerPool:
    """So many workers of a sweep on a connected Ray, each a `StudyWorker`, or another class, with these settings."""

    def __init__(self, ray: Any, parallel: int, *settings: Any, worker: type[Any] = StudyWorker) -> None:
        self._ray = ray
        self._parallel = parallel
        self._settings = settings
        self._worker = worker
        self._idle: list[Any] = []
        self._running: dict[Any, tuple[int, Any]] = {}

    def run(
        self,
        studies: Sequence[tuple[Any, ...]],
        begun: Callable[[int], None],
        tick: Callable[[], None],
        after: Sequence[Collection[int]] = (),
    ) -> Iterator[tuple[int, StudyEnd]]:
        """Run all studies and yield `(position, end)` as they end.

        Args:
            studies: What the workers' `run` takes of each, such as configuration and folder.
            begun: Told the position of each study that begins, or begins again.
            tick: Called about twice a second.
            after: Positions before each study that must have ended when it begins; nothing lets all begin at once.
        """
        waiting = list(range(len(studies)))
        attempts = [0] * len(studies)
        unfinished = {*waiting}
        while waiting or self._running:
            ready = [one for one in waiting if not after or unfinished.isdisjoint(after[one])]
            while ready and len(self._running) < self._parallel:
                position = ready.pop(0)
                waiting.remove(position)
                attempts[position] += 1
                worker = self._idle.pop() if self._idle else self._hire()
                self._running[worker.run.remote(*studies[position])] = (position, worker)
                begun(position)
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_SECONDS)
            for reference in done:
                position, worker = self._running.pop(reference)
                end = self._end(reference, worker)
                if end.status == "lost" and attempts[position] < ATTEMPTS:
                    waiting.append(position)
                else:
                    unfinished.discard(position)
                    yield position, end
            tick()

    def close(self) -> None:
        """End the workers, and with them their hosts."""
        for worker in [*self._idle, *(worker for _, worker in self._running.values())]:
            self._ray.kill(worker)
        self._idle, self._running = [], {}

    def _hire(self) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node = self._ray.get_runtime_context().get_node_id()
        actor = self._ray.remote(self._worker).options(
            num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False)
        )
        return actor.remote(*self._settings)

    def _end(self, reference: Any, worker: Any) -> StudyEnd:
        """Return how a study ended; a worker that died is replaced when the next one is needed."""
        from ray.exceptions import RayActorError, RayError

        try:
            end: StudyEnd = self._ray.get(reference)
        except RayError as error:
            self._ray.kill(worker)
            died = isinstance(error, RayActorError)
            return StudyEnd("lost", f"its process died: {_cause(error)}" if died else one_line(error))
        self._idle.append(worker)
        return end


def _cause(death: Exception) -> str:
    """Return the line of Ray's many that tells why a process died."""
    lines = [line.strip() for line in str(death).splitlines() if line.strip()]
    telling = (line for line in lines if "exit" in line.lower() or "memory" in line.lower())
    return next(telling, lines[0] if lines else "")
