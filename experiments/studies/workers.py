"""Execution of grids of studies or cells, in this process or by workers on one Ray, with failures contained.

A worker is an actor without a CPU slot that does one piece of work after the other: a study of a sweep, a cell of an
experiment, or a cell of a table of client settings. The hosts that it starts belong to it and end with it. So a piece
whose process or node dies affects no other; it is retried once, a study from its log and checkpoints, and reported as
lost if it dies again.

A round waits for the slowest of its hosts, and hosts must be started for every study. So if there are at least as many
studies as CPUs, whole studies run in parallel: one per CPU, each in its own process without hosts. If there are fewer,
each gets an equal share of the CPUs as hosts. None of this changes a study's result.

A study that needs one CPU needs no hosts, and the command's node could drive only as many as it has CPUs. So every node
whose data, code and versions equal those of the command's node drives as many as it has CPUs; each node is queried
once. Studies that read files known to be only on the command's node, or query a language model, are driven there.

A worker writes to the sweep's folder: on storage that every node sees, as a path or by its own connection to an object
store. If other nodes drive studies and do not see the folder, whole files are transferred as Ray objects
(`NodeStorage`). An actor on the command's node (`FolderActor`) writes them, and holds the lock of each study's folder
until the study ends. A process that was given up but still writes is harmless: it does the same work, so its files
equal those of its successor.
"""

from __future__ import annotations

import fcntl
import gc
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedscout.engine.config import EngineConfig
from fedscout.engine.errors import ConfigurationError, UnreachableModelError, UserError
from fedscout.engine.runtime.files import LOCK, folder_lock, folder_made
from fedscout.engine.runtime.ray import ray_runtime
from fedscout.engine.trials.state import cheap_collections
from fedscout.experiments.config import StudyConfig
from fedscout.experiments.data.dataset import FOLDER_VARIABLE, START_VARIABLE
from fedscout.experiments.studies.run_folder import GridFolder, federation_code, strategy_code, versions
from fedscout.experiments.studies.runner import num_processors
from fedscout.search.config import ONE_SHOT

ANSWER_SECONDS = 120.0
RELEASE_SECONDS = 60.0
RELEASE_POLL_SECONDS = 0.1

Status = Literal["completed", "failed", "lost"]

logger = logging.getLogger("fedscout")


@dataclass(frozen=True)
class End:
    """How a study or a cell ended.

    Attributes:
        status: `completed`; `failed` by an error of its own that would recur, such as more clients than rows; `lost` by
            an infrastructure failure, so that it resumes when the command is run again.
        error: The reason; None if completed.
        details: The traceback of a study that a defect ended.
        warnings: The warnings that were logged.
        result: What was computed, if it is not written to files.
    """

    status: Status
    error: str | None = None
    details: str | None = None
    warnings: tuple[str, ...] = ()
    result: Any = None

    def with_stored_paths(self, here: Path, there: str) -> End:
        """Return the end with paths of the folder where it ran replaced by where it is stored."""
        error, details = (text and text.replace(str(here), there) for text in (self.error, self.details))
        warnings = tuple(text.replace(str(here), there) for text in self.warnings)
        return replace(self, error=error, details=details, warnings=warnings)


class Piece(NamedTuple):
    """A study or a cell as progress shows it.

    Attributes:
        name: Its name.
        folder: The folder with the log of its trials.
        num_trials: Its planned trials.
        weight: Its share of the work of all pieces, in any unit.
    """

    name: str
    folder: Path
    num_trials: int
    weight: float


@dataclass(frozen=True)
class Display:
    """Optional progress callbacks of a grid.

    Attributes:
        known: Called once with all pieces, and the positions of those that need not be run.
        begun: Called with the position of a piece that starts or restarts.
        ended: Called with the position of a piece that ended.
        tick: Called about twice a second while pieces run in workers.
    """

    known: Callable[[Sequence[Piece], Collection[int]], None] = lambda _pieces, _finished: None
    begun: Callable[[int], None] = lambda _: None
    ended: Callable[[int], None] = lambda _: None
    tick: Callable[[], None] = lambda: None


Ends = Iterator[tuple[int, "End"]]
"""The position of each piece with its end, as they end."""


def reported(ends: Ends, pieces: Sequence[Piece], display: Display) -> Ends:
    """Yield ends, log the warnings of each piece, and report it to the display once its end has been used."""
    for position, end in ends:
        for warning in end.warnings:
            logger.warning("%s: %s", pieces[position].name, warning)
        yield position, end
        display.ended(position)


def end_of(work: Callable[..., Any], *arguments: Any) -> End:
    """Do a piece of work, and return how it ended; only an interruption raises an exception."""
    with _collected_warnings() as warnings, cheap_collections():
        try:
            end = End("completed", result=work(*arguments))
        except Exception as error:  # one piece's end is not the grid's
            end = end_by(error)
        gc.collect()  # federation, hosts and strategies hold each other in cycles
    return replace(end, warnings=tuple(warnings))


@contextmanager
def _collected_warnings() -> Iterator[list[str]]:
    """Yield a list that collects the program's own warnings in place of logging them."""
    warnings: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    previous = logger.handlers[:], logger.propagate
    logger.handlers[:], logger.propagate = [handler], False
    try:
        yield warnings
    finally:
        logger.handlers[:], logger.propagate = previous


def end_by(error: Exception) -> End:
    """Return the end of work that raised an exception; called in the `except` block."""
    if isinstance(error, UserError) and not isinstance(error, UnreachableModelError):  # which may pass
        return End("failed", str(error))
    return End("lost", one_line(error), traceback.format_exc())


def one_line(defect: Exception) -> str:
    """Return an unexpected exception as one line."""
    reason = next(iter(str(defect).strip().splitlines()), "")
    return f"{type(defect).__name__}: {reason}" if reason else type(defect).__name__


def await_release(study: Path, seconds: float = RELEASE_SECONDS) -> None:
    """Wait until no process locks a study's folder; a worker of a killed command takes a moment to exit."""
    if not (study / LOCK).exists():
        return
    deadline = time.monotonic() + seconds
    with (study / LOCK).open("a") as lock:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(RELEASE_POLL_SECONDS)
            else:
                return


def driver_nodes(ray: Any, configs: Sequence[StudyConfig]) -> dict[str, int]:
    """Return the CPUs, by node id, of the nodes that may drive these studies: all with CPUs, or only the own."""
    own = own_node(ray)
    if any(rests_on_this_machine(config) for config in configs):
        return own
    return {node: number for node, number in _living_nodes(ray).items() if number} or own


def _living_nodes(ray: Any) -> dict[str, int]:
    """Return the CPUs by node id."""
    return {node["NodeID"]: int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]}


def own_node(ray: Any) -> dict[str, int]:
    """Return the id and CPUs of the command's node; its processors if Ray has no CPU slots there."""
    own = ray.get_runtime_context().get_node_id()
    (offered,) = (node["Resources"].get("CPU", 0) for node in ray.nodes() if node["NodeID"] == own)
    return {own: int(offered) or num_processors()}


def rests_on_this_machine(config: StudyConfig) -> bool:
    """Whether a study needs configured files or servers that other nodes may lack."""
    from fedscout.search.study import ASKS_A_LANGUAGE_MODEL

    asks = config.search.kind in {*ASKS_A_LANGUAGE_MODEL, ONE_SHOT}
    return asks or bool(config.search.warm_start) or config.client_settings.kind is not None


def differing(configs: Sequence[StudyConfig]) -> list[StudyConfig]:
    """Return one study for each distinct combination of data set, model and strategies."""
    distinct: dict[str, StudyConfig] = {}
    for config in configs:
        code = [config.model.kind, config.federation.embedding, config.strategy, *config.search.customs]
        distinct.setdefault(json.dumps([config.federation.dataset, *code], default=str), config)
    return list(distinct.values())


def what_studies_rest_on(configs: Sequence[StudyConfig]) -> list[Any]:
    """Return the versions, and for each study digests of data and user code, or why it can't run here."""
    from fedscout.experiments.federation import build_federation, data_digest

    dependencies: list[Any] = [versions()]
    for config in configs:
        try:
            data = data_digest(build_federation(config.federation, config.model))
        except UserError as mistake:
            data = str(mistake)
        dependencies.append([data, dict(federation_code(config)), dict(strategy_code(config))])
    return dependencies


def matching_nodes(ray: Any, own: str, workers: Mapping[str, Any], configs: Sequence[StudyConfig]) -> set[str]:
    """Return the nodes whose workers reply in time with the same result as the command's own node."""
    from ray.exceptions import RayError

    calls = {worker.run.remote(what_studies_rest_on, differing(configs)): node for node, worker in workers.items()}
    ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_SECONDS)
    answers: dict[str, Any] = {}
    for call in ready:
        with suppress(RayError):
            answers[calls[call]] = ray.get(call)
    return {node for node, answer in answers.items() if answer == answers.get(own)}


def sees(path: Path, content: bytes) -> bool:
    """Return whether this node sees the same file."""
    with suppress(OSError):
        return path.read_bytes() == content
    return False


class FolderActor:
    """An actor that reads and writes folders of studies on its node."""

    def __init__(self) -> None:
        self._held: dict[Path, ExitStack] = {}

    def names(self, folder: Path) -> list[str]:
        """Lock a folder, and return the names of its files.

        Raises:
            LogError: If it can't be locked.
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
        GridFolder(folder).write(name, lambda path: path.write_bytes(content))

    def remove(self, folder: Path, name: str) -> None:
        """Remove a file, if it exists."""
        (folder / name).unlink(missing_ok=True)

    def release(self, folder: Path) -> None:
        """Unlock a folder, and remove it if it holds nothing else."""
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
        actor: The actor's handle.
        folder: Absolute path.
    """

    actor: Any
    folder: Path

    def __str__(self) -> str:
        return str(self.folder)

    def below(self, name: str) -> NodeStorage:
        """Return the storage of a subfolder."""
        return replace(self, folder=self.folder / name)

    def names(self) -> Sequence[str]:
        """Return the names of all files."""
        return [*self._call("names")]

    def read(self, name: str) -> bytes:
        """Return a file's content."""
        return bytes(self._call("read", name))

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""
        self._call("write", name, content)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""
        self._call("remove", name)

    def release(self) -> None:
        """Unlock the folder."""
        self._call("release")

    def _call(self, method: str, *arguments: Any) -> Any:
        return _answer(getattr(self.actor, method).remote(self.folder, *arguments))


def _answer(call: Any) -> Any:
    import ray
    from ray.exceptions import RayTaskError

    try:
        return ray.get(call)
    except RayTaskError as error:
        raise error.cause or error from None


ATTEMPTS = 2
POLL_SECONDS = 0.5


class ClusterCpus(NamedTuple):
    """CPUs of a Ray cluster: of all nodes, of driver nodes, and whether all of these have CPU slots."""

    cpus: int
    driver_cpus: int
    driver_nodes_have_cpus: bool


class Share(NamedTuple):
    """The number of parallel studies, and the hosts of each.

    Attributes:
        parallel: At least one.
        num_hosts: 0 runs a study's trials in the process that drives it; None uses as many as for a single study.
    """

    parallel: int
    num_hosts: int | None


def cluster_cpus(ray: Any, driving: Mapping[str, int] | None = None) -> ClusterCpus:
    """Return the CPUs of the connected cluster, with these driver nodes or only the command's own.

    Args:
        ray: The connected Ray module.
        driving: CPUs by node id, as of a pool.
    """
    cpus = _living_nodes(ray)
    driving = driving or own_node(ray)
    return ClusterCpus(
        max(1, sum(cpus.values())), max(1, sum(driving.values())), all(cpus.get(node) for node in driving)
    )


def share_out(
    there: ClusterCpus, num_studies: int, num_hosts: int | None, parallel: int | None, timed: bool = False
) -> Share:
    """Divide the CPUs among the studies so that no host waits for a CPU that another study uses.

    Args:
        there: The CPUs.
        num_studies: Studies to run, at least one.
        num_hosts: Configured hosts of a study; None chooses them automatically.
        parallel: Requested number of parallel studies; None chooses it automatically.
        timed: Whether trials have a time limit, which can only be enforced on separate hosts.

    Raises:
        ConfigurationError: If the requested parallel studies need more CPUs than there are.
    """
    if num_hosts is None:
        num_parallel = min(num_studies, parallel or there.driver_cpus)
        hosts = there.cpus // num_parallel
        if not timed and there.driver_nodes_have_cpus and hosts < 2:
            return Share(num_parallel, 0)
        needed = hosts = max(1, hosts)
    else:
        hosts, needed = num_hosts, min(num_hosts, there.cpus)  # more hosts than CPUs share them
        num_parallel = min(num_studies, parallel or max(1, min(there.cpus // needed, there.driver_cpus)))
    if num_parallel * needed > there.cpus:
        must = f"be at most {max(1, there.cpus // needed)} for studies on {hosts} of {there.cpus} CPUs each"
        raise ConfigurationError.of("--parallel", must, parallel)
    return Share(num_parallel, hosts)


def check_sequential(parallel: int | None, where: str) -> None:
    """Check that no parallel studies are requested where they can only run one after the other.

    Raises:
        ConfigurationError: If they are.
    """
    if parallel not in (None, 1):
        raise ConfigurationError.of("--parallel", f"be left out or 1 {where}", parallel)


def share_gpus(parallel: int | None) -> Share:
    """Return the share on GPUs: studies run sequentially, each with all GPUs and as many hosts as fill them.

    Raises:
        ConfigurationError: If parallel studies are requested.
    """
    check_sequential(parallel, "on GPUs, as each study uses all of them; engine.device=cpu uses none")
    return Share(1, None)


def with_share(config: StudyConfig, num_hosts: int | None) -> StudyConfig:
    """Return a study's configuration with its hosts, for a worker with another working directory."""
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
    """Return the environment variables that a cluster's processes need to find the data."""
    folder = os.environ.get(FOLDER_VARIABLE)
    return {START_VARIABLE: str(Path.cwd())} | ({FOLDER_VARIABLE: str(Path(folder).absolute())} if folder else {})


class Worker:
    """A process of its own that does one piece of work after the other.

    Args:
        environment: Environment variables to set in the process.
        search_path: Folders for a user's own code.
    """

    def __init__(self, environment: Mapping[str, str], search_path: tuple[str, ...]) -> None:
        os.environ.update(environment)
        sys.path.extend(folder for folder in search_path if folder not in sys.path)
        with suppress(OSError):  # another node may lack the command's working directory
            os.chdir(environment[START_VARIABLE])

    def run(self, work: Callable[..., Any], *arguments: Any) -> Any:
        """Return the result of a function of a module, such as the end of a piece of work."""
        return work(*arguments)


class PoolWorker(NamedTuple):
    """A worker and its node."""

    actor: Any
    node: str


class WorkerPool:
    """A pool of workers on a connected Ray.

    Args:
        ray: The connected Ray module.
        search_path: Folders for a user's own code.
        nodes: CPUs by node id, over which workers are distributed proportionally; None uses only the command's own.
    """

    def __init__(self, ray: Any, search_path: tuple[str, ...] = (), nodes: Mapping[str, int] | None = None) -> None:
        self._ray = ray
        self._settings = worker_environment(), search_path
        self._worker = ray.remote(Worker)  # once: Ray's head keeps each class that is made
        self._own = ray.get_runtime_context().get_node_id()
        self.nodes = dict(nodes or own_node(ray))
        self._folders: Any = None
        self._idle: list[PoolWorker] = []
        self._running: dict[Any, tuple[int, PoolWorker]] = {}

    def drop_differing_nodes(self, configs: Sequence[StudyConfig]) -> None:
        """Start a worker on each node, and drop nodes whose data, code or versions differ."""
        if {*self.nodes} == {self._own}:
            return
        workers = {node: self._start(self._worker, node, *self._settings) for node in {*self.nodes, self._own}}
        equal_nodes = matching_nodes(self._ray, self._own, workers, configs)
        kept = {node: cpus for node, cpus in self.nodes.items() if node in equal_nodes}
        if len(kept) < len(self.nodes):
            text = "no studies run on %d of %d nodes, as their data, code or versions differ from those of this node"
            logger.warning(text, len(self.nodes) - len(kept), len(self.nodes))
        self.nodes = kept or own_node(self._ray)
        for node, worker in workers.items():
            if node in self.nodes:
                self._idle.append(PoolWorker(worker, node))
            else:
                self._ray.kill(worker)

    def share(self, configs: Sequence[StudyConfig], parallel: int | None, on_gpus: bool) -> Share:
        """Return how many of these studies run in parallel, and on how many hosts each.

        Raises:
            ConfigurationError: If more parallel studies are requested than there are CPUs or GPUs for.
        """
        if on_gpus:
            return share_gpus(parallel)
        timed = any(config.training.has_time_limit for config in configs)
        there, num_hosts = cluster_cpus(self._ray, self.nodes), configs[0].engine.num_hosts
        return share_out(there, len(configs), num_hosts, parallel, timed)

    def storage_for(self, folder: Path, witness: Path) -> NodeStorage | None:
        """Return the storage of a folder of the command's node; None if all nodes see the folder.

        Args:
            folder: Absolute path.
            witness: A file in it whose content identifies the folder.
        """
        if {*self.nodes} == {self._own}:
            return None
        content = witness.read_bytes()
        if all(self._ray.get([worker.actor.run.remote(sees, witness, content) for worker in self._idle])):
            return None
        self._folders = self._start(self._ray.remote(FolderActor), self._own)
        return NodeStorage(self._folders, folder)

    def run(
        self,
        work: Callable[..., End],
        pieces: Mapping[int, tuple[Any, ...]],
        parallel: int,
        display: Display,
        after: Sequence[Collection[int]] = (),
    ) -> Ends:
        """Do all pieces of work and yield `(position, end)` as they end.

        Args:
            work: A function of a module, which returns how a piece ended.
            pieces: By position, its arguments for each piece, such as configuration and folder.
            parallel: Maximum number of parallel pieces.
            display: Its `begun` and `tick` are called.
            after: For each position, those that must end before it starts; empty lets all start at once.
        """
        for spare in self._idle[parallel:]:
            self._ray.kill(spare.actor)
        del self._idle[parallel:]
        waiting, attempts = [*pieces], dict.fromkeys(pieces, 0)
        unfinished = {*waiting}
        while waiting or self._running:
            ready = [candidate for candidate in waiting if not after or unfinished.isdisjoint(after[candidate])]
            while ready and len(self._running) < parallel:
                position = ready.pop(0)
                waiting.remove(position)
                attempts[position] += 1
                worker = self._idle.pop() if self._idle else self._start_worker()
                self._running[worker.actor.run.remote(work, *pieces[position])] = (position, worker)
                display.begun(position)
            done, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_SECONDS)
            for reference in done:
                position, worker = self._running.pop(reference)
                end = self._end(reference, worker)
                if end.status == "lost" and attempts[position] < ATTEMPTS:
                    waiting.append(position)
                else:
                    unfinished.discard(position)
                    yield position, end
            display.tick()

    def close(self) -> None:
        """Stop the workers, and thereby their hosts."""
        for worker in self._workers():
            self._ray.kill(worker.actor)
        if self._folders is not None:
            self._ray.kill(self._folders)
        self._idle, self._running = [], {}

    def _workers(self) -> list[PoolWorker]:
        return [*self._idle, *(worker for _, worker in self._running.values())]

    def _start_worker(self) -> PoolWorker:
        """Start a worker on the node with the fewest workers per CPU."""
        alive, nodes_in_use = self._alive(), [worker.node for worker in self._workers()]
        node = min(alive, key=lambda one: nodes_in_use.count(one) / self.nodes[one])
        return PoolWorker(self._start(self._worker, node, *self._settings), node)

    def _alive(self) -> list[str]:
        if len(self.nodes) == 1:
            return [*self.nodes]
        alive = _living_nodes(self._ray)
        return [node for node in self.nodes if node in alive] or [*self.nodes]

    def _start(self, kind: Any, node: str, *settings: Any) -> Any:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        actor = kind.options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=False))
        return actor.remote(*settings)

    def _end(self, reference: Any, worker: PoolWorker) -> End:
        """Return the end of a study; a dead worker is replaced when the next one is needed."""
        from ray.exceptions import RayActorError, RayError

        try:
            end: End = self._ray.get(reference)
        except RayError as error:
            self._ray.kill(worker.actor)
            alive = self._alive()  # a node takes its idle workers along
            self._idle = [one for one in self._idle if one.node in alive]
            died = isinstance(error, RayActorError)
            return End("lost", f"its process died: {_cause(error)}" if died else one_line(error))
        self._idle.append(worker)
        return end


def run_pieces(
    engine: EngineConfig,
    work: Callable[..., End],
    pieces: Mapping[int, tuple[Any, ...]],
    parallel: int | None,
    display: Display,
    after: Sequence[Collection[int]] = (),
    verbose: bool = False,
    search_path: tuple[str, ...] = (),
    shared: Sequence[Any] = (),
) -> Ends:
    """Do pieces of work on the command's node and yield `(position, end)` as they end.

    Args:
        engine: `grid=local` does one piece after the other in this process; else they run in parallel on Ray.
        work: A function of a module, which returns how a piece ended.
        pieces: By position, its arguments for each piece.
        parallel: Maximum number of parallel pieces; None is the number of CPUs.
        display: Its `begun` and `tick` are called.
        after: As for `WorkerPool.run`.
        verbose: Whether Ray's and Flower's own messages are shown.
        search_path: Folders for a user's own code.
        shared: Arguments that precede each piece's; they are serialised once.

    Raises:
        UserError: If Ray can't be reached, or parallel pieces are requested of this process.
    """
    if not pieces:
        return
    if engine.grid == "local":
        check_sequential(parallel, "with engine.grid=local, which uses only this process")
        for position, piece in pieces.items():
            display.begun(position)
            yield position, work(*shared, *piece)
        return
    with ray_runtime(engine, verbose) as ray, closing(WorkerPool(ray, search_path)) as pool:
        num_parallel = min(len(pieces), parallel or cluster_cpus(ray).driver_cpus)
        stored = [ray.put(argument) for argument in shared]
        with_stored = {position: (*stored, *piece) for position, piece in pieces.items()}
        yield from pool.run(work, with_stored, num_parallel, display, after)


def _cause(death: Exception) -> str:
    """Return the line of Ray's message that states why a process died."""
    lines = [line.strip() for line in str(death).splitlines() if line.strip()]
    matches = (line for line in lines if "exit" in line.lower() or "memory" in line.lower())
    return next(matches, lines[0] if lines else "")
