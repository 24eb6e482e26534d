"""Workers of a sweep on Ray: placement, storage of files, and the pool.

Studies on one shared Ray: long-lived worker processes, each of which runs one study after the other.

A worker is an actor that takes no CPU slot. It writes where the sweep is: on storage that every node sees, as a path or
by its own connection to an object store. Where other nodes drive studies and don't see the folder, its files go to the
command's node as values (`node_storage`). The hosts that a worker starts belong to it and end with it. So a study whose
process or node dies harms no other; it is begun once more, from its log and its checkpoints, and reported if it dies
again.

A round waits for the slowest of its hosts, and hosts must be started for every study. So where there are at least as
many studies as CPUs, whole studies run side by side: one a CPU, each in its own process without any hosts. Where there
are fewer, each gets an equal share of the CPUs as hosts. None of this changes what a study finds.

The nodes of a cluster that drive a sweep's studies: those on which a study rests on what it rests on here.

A study that needs one CPU needs no hosts, and the command's node could drive only as many as it has CPUs. So every node
drives as many as it has, if its data, code and versions are those of the command's node: each is asked, once. Studies
that read files which only the command's node is known to have, or ask a language model there, are driven there.

A folder on the command's node as the storage of a study on another: whole files go there and back as values of Ray.

An actor on the command's node writes them, and holds the lock of each study's folder until the study ends. A process
that was given up and still writes harms nothing: it does the same work, and its files are those of the next one.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from fedscout.engine.errors import ConfigurationError, EngineError, Fault, UserError
from fedscout.engine.runtime.files import LOCK, folder_lock, folder_made, not_written, write_atomically
from fedscout.engine.runtime.storage import Storage, mounted
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.files import FOLDER_VARIABLE, START_VARIABLE
from fedscout.experiments.studies.checks import num_processors
from fedscout.experiments.sweeps.sweep import StudyEnd, await_release, end_by, one_line, run_one
from fedscout.search.config import ONE_SHOT

ANSWER_SECONDS = 120.0


def possible_nodes(ray: Any, configs: Sequence[StudyConfig]) -> dict[str, int]:
    """Return the CPUs of the nodes that may drive these studies, by the nodes' ids: all that have any, or the own."""
    own = own_node(ray)
    if any(rests_on_this_machine(config) for config in configs):
        return own
    cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    return {node: number for node, number in cpus.items() if number} or own


def own_node(ray: Any) -> dict[str, int]:
    """Return the id and the CPUs of the node where the command runs: those that it has if it offers none to tasks."""
    own = ray.get_runtime_context().get_node_id()
    (offered,) = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["NodeID"] == own)
    return {own: int(offered) or num_processors()}


def rests_on_this_machine(config: StudyConfig) -> bool:
    """Whether a study reads files, or asks a server, that its configuration names and other nodes may lack."""
    from fedscout.search.study import ASKS_A_LANGUAGE_MODEL

    asks = config.search.kind in {*ASKS_A_LANGUAGE_MODEL, ONE_SHOT}
    return asks or bool(config.search.warm_start) or config.client_settings.kind is not None


def differing(configs: Sequence[StudyConfig]) -> list[StudyConfig]:
    """Return one of the studies for each data set, model and strategy."""
    found: dict[str, StudyConfig] = {}
    for config in configs:
        named = [config.model.kind, config.federation.embedding, config.strategy, *config.search.customs]
        found.setdefault(json.dumps([config.federation.dataset, *named], default=str), config)
    return list(found.values())


def what_studies_rest_on(configs: Sequence[StudyConfig]) -> list[Any]:
    """Return versions, and of each study digests of data and of a user's own code, or why it can't be done here."""
    from fedscout.experiments.federation import build_federation, data_digest
    from fedscout.experiments.studies.run_folder import federation_code, strategy_code, versions

    found: list[Any] = [versions()]
    for config in configs:
        try:
            data = data_digest(build_federation(config.federation, config.model))
        except UserError as mistake:
            data = str(mistake)
        found.append([data, dict(federation_code(config)), dict(strategy_code(config))])
    return found


def nodes_like(ray: Any, own: str, workers: Mapping[str, Any], configs: Sequence[StudyConfig]) -> set[str]:
    """Return the nodes whose workers answer in time, and as that of the command's own node does."""
    from ray.exceptions import RayError

    calls = {worker.rests_on.remote(differing(configs)): node for node, worker in workers.items()}
    ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_SECONDS)
    answers: dict[str, Any] = {}
    for call in ready:
        with suppress(RayError):
            answers[calls[call]] = ray.get(call)
    return {node for node, answer in answers.items() if answer == answers.get(own)}


class FolderActor:
    """Reads and writes folders of studies on its node."""

    def __init__(self) -> None:
        self._held: dict[Path, ExitStack] = {}

    def names(self, folder: Path) -> list[str]:
        """Hold a folder, and return the names of its files.

        Raises:
            LogError: If it can't be had.
        """
        if folder not in self._held:
            await_release(folder)
            with ExitStack() as stack:
                stack.enter_context(folder_made(folder))
                stack.enter_context(folder_lock(folder))
                self._held[folder] = stack.pop_all()
        files = (path for path in sorted(folder.rglob("*")) if path.is_file())
        return [path.relative_to(folder).as_posix() for path in files]

    def read(self, folder: Path, name: str) -> bytes:
        """Return a file's content."""
        return (folder / name).read_bytes()

    def write(self, folder: Path, name: str, content: bytes) -> None:
        """Write a file.

        Raises:
            EngineError: If it can't be written.
        """
        path = folder / name
        try:
            write_atomically(path, partial(Path.write_bytes, data=content))
        except OSError as error:
            raise EngineError(not_written(path, error)) from error

    def remove(self, folder: Path, name: str) -> None:
        """Remove a file, if it is there."""
        (folder / name).unlink(missing_ok=True)

    def release(self, folder: Path) -> None:
        """Let a folder go, and remove it if nothing was found out in it."""
        held = self._held.pop(folder, None)
        if held is not None:
            if {entry.name for entry in folder.iterdir()} <= {LOCK}:
                (folder / LOCK).unlink(missing_ok=True)
                folder.rmdir()
            held.close()


@dataclass(frozen=True)
class NodeStorage:
    """A study's folder on the node of a `FolderActor`.

    Attributes:
        actor: Its handle.
        folder: Absolute.
    """

    actor: Any
    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def below(self, name: str) -> NodeStorage:
        """Return the storage of a folder in this one."""
        return replace(self, folder=self.folder / name)

    def names(self) -> Sequence[str]:
        """Return the names of all files."""
        found: list[str] = _answer(self.actor.names.remote(self.folder))
        return found

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        content: bytes = _answer(self.actor.read.remote(self.folder, name))
        return content

    def write(self, name: str, content: bytes) -> None:
        """Write a file; its readers see all of it or nothing."""
        _answer(self.actor.write.remote(self.folder, name, content))

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        _answer(self.actor.remove.remote(self.folder, name))

    def release(self) -> None:
        """Let others have the folder."""
        _answer(self.actor.release.remote(self.folder))


def _answer(call: Any) -> Any:
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(call)
    except RayTaskError as error:
        raise error.cause or error from None


ATTEMPTS = 2
POLL_SECONDS = 0.5

logger = logging.getLogger("fedscout")


class ClusterCpus(NamedTuple):
    """The CPUs of a Ray cluster: of all nodes, of those that drive studies; and whether these offer theirs for work."""

    cpus: int
    driver_cpus: int
    drivers_work: bool


class Share(NamedTuple):
    """Studies at once, and hosts of each.

    Attributes:
        parallel: At least one.
        num_hosts: 0 runs a study's trials in the process that drives it; None has as many as a study by itself.
    """

    parallel: int
    num_hosts: int | None


def cluster_cpus(ray: Any, driving: Mapping[str, int] | None = None) -> ClusterCpus:
    """Return the CPUs of the connected cluster where these nodes drive studies, or only the command's own.

    Args:
        ray: Connected.
        driving: CPUs by a node's id, as of a pool.
    """
    cpus = {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}
    driving = driving or own_node(ray)
    return ClusterCpus(
        max(1, sum(cpus.values())), max(1, sum(driving.values())), all(cpus.get(node) for node in driving)
    )


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
        if not timed and there.drivers_work and hosts < 2:
            return Share(at_once, 0)
        needed = hosts = max(1, hosts)
    else:
        hosts, needed = num_hosts, min(num_hosts, there.cpus)  # more hosts than CPUs share them
        at_once = min(num_studies, parallel or max(1, min(there.cpus // needed, there.driver_cpus)))
    if at_once * needed > there.cpus:
        raise ConfigurationError(
            Fault(
                "--parallel",
                (
                    f"be at most {max(1, there.cpus // needed)} with {hosts} "
                    f"host{('s' if hosts > 1 else '')} a study on {there.cpus} CPUs"
                ),
                parallel,
            )
        )
    return Share(at_once, hosts)


def share_gpus(parallel: int | None) -> Share:
    """Return that studies on GPUs run one after the other: each has all of them, and as many hosts as keep them busy.

    Raises:
        ConfigurationError: If several at once are asked for.
    """
    if parallel not in (None, 1):
        raise ConfigurationError(
            Fault(
                "--parallel",
                "be left out or 1 on GPUs, all of which a study has; engine.device=cpu leaves them alone",
                parallel,
            )
        )
    return Share(1, None)


def with_share(config: StudyConfig, num_hosts: int | None) -> StudyConfig:
    """Return a study's configuration with its share of the hosts, for a worker, which has another working directory."""
    engine: dict[str, Any] = {"grid": "local"}
    if num_hosts is None:
        engine = {"grid": "ray", "address": None}
    elif num_hosts:
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
    """Runs studies, one after the other, in a process of its own, whose environment lacks these variables.

    Args:
        environment: The variables.
        verbose: Whether Ray's and Flower's own messages are shown.
        search_path: Folders for a user's own strategies.
    """

    def __init__(self, environment: Mapping[str, str], verbose: bool, search_path: tuple[str, ...]) -> None:
        os.environ.update(environment)
        sys.path.extend(folder for folder in search_path if folder not in sys.path)
        self._verbose, self._search_path = verbose, search_path

    def run(self, config: StudyConfig, out: Path, storage: Storage | None = None) -> StudyEnd:
        """Run one study to its end, in a folder that is absolute and seen from here, or in a storage."""
        if storage is None:
            return run_one(config, out, self._verbose, self._search_path)
        try:
            with mounted(storage, out.name) as here:
                end = run_one(config, here, self._verbose, self._search_path)
            if isinstance(storage, NodeStorage):
                storage.release()
        except Exception as error:  # the storage's
            return end_by(error)
        return end.told_of(here, str(storage))

    def sees(self, path: Path, content: bytes) -> bool:
        """Return whether a file is here as well."""
        try:
            return path.read_bytes() == content
        except OSError:
            return False

    def rests_on(self, configs: Sequence[StudyConfig]) -> list[Any]:
        """Return what must be the same where studies are to be driven."""
        return what_studies_rest_on(configs)


class PoolWorker(NamedTuple):
    """A worker and its node."""

    actor: Any
    node: str


class StudyWorkerPool:
    """Workers of a sweep on a connected Ray, each a `StudyWorker`, or another class, with these settings.

    Args:
        ray: Connected.
        settings: What a worker is made from.
        worker: Its class.
        nodes: CPUs by node's id, over which workers are spread in proportion; nothing keeps them on the command's own.
    """

    def __init__(
        self, ray: Any, *settings: Any, worker: type[Any] = StudyWorker, nodes: Mapping[str, int] | None = None
    ) -> None:
        self._ray = ray
        self._settings = settings
        self._worker = ray.remote(worker)  # once: Ray's head keeps each class that is made
        self._own = ray.get_runtime_context().get_node_id()
        self.nodes = dict(nodes or own_node(ray))
        self._folders: Any = None
        self._idle: list[PoolWorker] = []
        self._running: dict[Any, tuple[int, PoolWorker]] = {}

    def keep_nodes_like_here(self, configs: Sequence[StudyConfig]) -> None:
        """Start a worker on each node, and leave out the nodes where studies rest on anything else than here."""
        if {*self.nodes} == {self._own}:
            return
        workers = {node: self._start_study_worker(node) for node in {*self.nodes, self._own}}
        alike = nodes_like(self._ray, self._own, workers, configs)
        kept = {node: cpus for node, cpus in self.nodes.items() if node in alike}
        if len(kept) < len(self.nodes):
            logger.warning(
                "no studies are driven on %d of %d nodes: data, code and versions must be there as they are here",
                len(self.nodes) - len(kept),
                len(self.nodes),
            )
        self.nodes = kept or own_node(self._ray)
        for node, worker in workers.items():
            if node in self.nodes:
                self._idle.append(PoolWorker(worker, node))
            else:
                self._ray.kill(worker)

    def storage_for(self, folder: Path, witness: Path) -> NodeStorage | None:
        """Return the storage of a folder of the command's node; None if all nodes see it.

        Args:
            folder: Absolute.
            witness: A file in it, as no other folder of this name holds it.
        """
        if {*self.nodes} == {self._own}:
            return None
        content = witness.read_bytes()
        if all(self._ray.get([hired.actor.sees.remote(witness, content) for hired in self._idle])):
            return None
        self._folders = self._start(self._ray.remote(FolderActor), self._own)
        return NodeStorage(self._folders, folder)

    def run(
        self,
        studies: Sequence[tuple[Any, ...]],
        parallel: int,
        begun: Callable[[int], None],
        tick: Callable[[], None],
        after: Sequence[Collection[int]] = (),
    ) -> Iterator[tuple[int, StudyEnd]]:
        """Run all studies and yield `(position, end)` as they end.

        Args:
            studies: What the workers' `run` takes of each, such as configuration and folder.
            parallel: Studies at once at most.
            begun: Told the position of each study that begins, or begins again.
            tick: Called about twice a second.
            after: Positions before each study that must have ended when it begins; nothing lets all begin at once.
        """
        for spare in self._idle[parallel:]:
            self._ray.kill(spare.actor)
        del self._idle[parallel:]
        waiting = list(range(len(studies)))
        attempts = [0] * len(studies)
        unfinished = {*waiting}
        while waiting or self._running:
            ready = [one for one in waiting if not after or unfinished.isdisjoint(after[one])]
            while ready and len(self._running) < parallel:
                position = ready.pop(0)
                waiting.remove(position)
                attempts[position] += 1
                worker = self._idle.pop() if self._idle else self._hire()
                self._running[worker.actor.run.remote(*studies[position])] = (position, worker)
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
        for worker in self._hired():
            self._ray.kill(worker.actor)
        if self._folders is not None:
            self._ray.kill(self._folders)
        self._idle, self._running = [], {}

    def _hired(self) -> list[PoolWorker]:
        return [*self._idle, *(worker for _, worker in self._running.values())]

    def _hire(self) -> PoolWorker:
        """Hire a worker for the node that has the fewest for its CPUs."""
        alive, hired = self._alive(), [worker.node for worker in self._hired()]
        node = min(alive, key=lambda one: hired.count(one) / self.nodes[one])
        return PoolWorker(self._start_study_worker(node), node)

    def _alive(self) -> list[str]:
        if len(self.nodes) == 1:
            return [*self.nodes]
        alive = {node["NodeID"] for node in self._ray.nodes() if node["Alive"]}
        return [node for node in self.nodes if node in alive] or [*self.nodes]

    def _start_study_worker(self, node: str) -> Any:
        return self._start(self._worker, node, *self._settings)

    def _start(self, kind: Any, node: str, *settings: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = kind.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False))
        return actor.remote(*settings)

    def _end(self, reference: Any, worker: PoolWorker) -> StudyEnd:
        """Return how a study ended; a worker that died is replaced when the next one is needed."""
        from ray.exceptions import RayActorError, RayError

        try:
            end: StudyEnd = self._ray.get(reference)
        except RayError as error:
            self._ray.kill(worker.actor)
            alive = self._alive()  # a node takes its idle workers along
            self._idle = [one for one in self._idle if one.node in alive]
            died = isinstance(error, RayActorError)
            return StudyEnd("lost", f"its process died: {_cause(error)}" if died else one_line(error))
        self._idle.append(worker)
        return end


def _cause(death: Exception) -> str:
    """Return the line of Ray's many that tells why a process died."""
    lines = [line.strip() for line in str(death).splitlines() if line.strip()]
    telling = (line for line in lines if "exit" in line.lower() or "memory" in line.lower())
    return next(telling, lines[0] if lines else "")
