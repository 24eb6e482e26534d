"""Start of the trial runner that the engine's configuration specifies: in this process or on Ray.

With `engine.grid=auto`, `local_host_if_faster` estimates whether the work finishes sooner in this process or on Ray.
Ray takes seconds to start and some milliseconds per round, but distributes the rounds over processors. The smallest
client trains one local epoch in this process, twice; then, if that was quick or this process may be faster, all clients
do, or up to a thousand of them. The measured time is scaled to all rows and rounds. It is the CPU time of this process,
which other load on the machine affects little. Seconds are logged only if all clients were timed, because the smallest
client alone gives no good estimate. Results are bit-identical in both places, so a wrong estimate costs only time.
Configured hosts, and time limits, which stop clients that hang, require Ray.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import dataclass, replace
from functools import partial
from time import process_time
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.arrays import IntArray
from fedscout.engine.config import CPU, EngineConfig, HostDevice, torch_settings_kept
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.replies import timed_round
from fedscout.engine.messages.calls import Session
from fedscout.engine.runtime.ray import ray_runtime, readable_memory_errors, warn_of_memory_shortage
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import LocalRunner, Progress, TrialRunner
from fedscout.experiments.studies.run_folder import RunFolder

if TYPE_CHECKING:
    from fedscout.engine.client.host import ClientHost


WARM_TRIALS = 5
"""A generation of four and the baseline."""


class LazyRunner:
    """A runner that starts on first use, so that a finished study is read from its log at once."""

    def __init__(self, start: Callable[[], TrialRunner], store: CheckpointStore) -> None:
        self._start = start
        self._store = store
        self._runner: TrialRunner | None = None
        self.start_seconds = 0.0

    def started(self) -> TrialRunner:
        """Return the underlying runner, started."""
        if self._runner is None:
            began = time.perf_counter()
            self._runner = self._start()
            self.start_seconds = time.perf_counter() - began
        return self._runner

    @property
    def ran_on(self) -> str | None:
        """The value of `engine.grid` that was used; None if the runner was never started."""
        if self._runner is None:
            return None
        return "local" if isinstance(self._runner, LocalRunner) else "ray"

    @property
    def trained_on(self) -> str | None:
        """Description of the device and training backend; None if the runner was never started."""
        return None if self._runner is None else self._runner.facts.trained_on

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a grid for messages outside a trial."""
        return self.started().grid(session)

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Run trials; an empty batch starts nothing."""
        return self.started().run(batch, progress) if batch else iter(())

    def forget(self, key: str) -> None:
        """Remove the trial's checkpoint."""
        self._store.discard(key)


@contextmanager
def open_runner(
    federation: Federation,
    config: EngineConfig,
    folder: RunFolder | None,
    parallel: int,
    search_path: tuple[str, ...] = (),
    verbose: bool = False,
    work: ExpectedWork | None = None,
) -> Iterator[LazyRunner]:
    """Yield a federation's trial runner; everything that it starts, on first use, ends with the block.

    Once the hosts have the rows, this function drops its reference; if the caller does so as well, they are in memory
    once. Running trials write checkpoints to the study's folder, if one is given.
    `engine.grid=auto` chooses by `work`, and is Ray without it.
    """
    store = CheckpointStore(None if folder is None else folder.checkpoints, config.checkpoint_every_rounds)
    with ExitStack() as stack:

        def start() -> TrialRunner:
            nonlocal federation
            placed, federation = federation, federation.without_rows()
            host = _local_host(placed, config, work, stack)
            if host is not None:
                stack.enter_context(redirect_stdout(sys.stderr))  # which is for results, not for what a strategy prints
                return LocalRunner(host, store)
            session = Session() if work is None else work.session
            return stack.enter_context(_on_ray(placed, config, store, parallel, search_path, verbose, session))

        yield LazyRunner(start, store)


def device_for(federation: Federation, config: EngineConfig, has_gpu: bool) -> HostDevice:
    """Return the hosts' training device; always the CPU for reinforcement-learning clients.

    Raises:
        ConfigurationError: If it is not available.
    """
    if federation.task is None:
        return config.host_device(has_gpu)
    if config.device == "cuda":
        raise ConfigurationError.of("engine.device", "be cpu for reinforcement learning, which runs on the CPU")
    return CPU


def _local_host(
    federation: Federation, config: EngineConfig, work: ExpectedWork | None, stack: ExitStack
) -> ClientHost | None:
    """Return the host of all clients if they run in this process, else None; the stack restores PyTorch's settings."""
    estimates = work if config.allows_in_process else None
    if config.grid != "local" and estimates is None:
        return None
    import torch

    from fedscout.engine.client.host import ClientHost

    device = device_for(federation, config, torch.cuda.is_available())
    if estimates is None:
        stack.enter_context(torch_settings_kept())
        return ClientHost(federation, CLIENT_QUERIES, device)
    if device.on_gpu:  # of what a GPU takes nothing is known here
        return None
    stack.enter_context(torch_settings_kept())
    return local_host_if_faster(federation, estimates)


@contextmanager
def _on_ray(
    federation: Federation,
    config: EngineConfig,
    store: CheckpointStore,
    parallel: int,
    search_path: tuple[str, ...],
    verbose: bool,
    session: Session,
) -> Iterator[TrialRunner]:
    with ray_runtime(config, verbose) as ray, readable_memory_errors(), warn_of_memory_shortage():
        from fedscout.engine.grid.ray_grid import hosts_on_gpus, start_hosts
        from fedscout.engine.trials.ray_runner import RayRunner, warm_up

        resources = ray.cluster_resources()
        cpus, gpus = max(1, int(resources.get("CPU", 1))), int(resources.get("GPU", 0))
        device, gpu_share, host_slots = device_for(federation, config, gpus > 0), 0.0, cpus
        if device.on_gpu:
            measured = partial(hosts_on_gpus, federation, CLIENT_QUERIES, device, session, cpus / gpus)
            hosts_each = config.hosts_each_gpu(gpus, measured)
            gpu_share, host_slots = 1 / hosts_each, gpus * hosts_each
            device = replace(device, share=gpu_share)
        num_hosts = min(config.num_hosts or host_slots, federation.num_clients)
        warm: list[Any] = []  # processes for trials, which start while the hosts do
        hosts = start_hosts(
            federation,
            CLIENT_QUERIES,
            num_hosts,
            lambda: warm.extend(warm_up(min(parallel, WARM_TRIALS))),
            device,
            gpu_share,
        )
        del federation  # the hosts read it from the object store
        runner = RayRunner(hosts, store, parallel, search_path)
        try:
            yield runner
        finally:
            runner.close()


RAY_START_SECONDS = 5.0
RAY_ROUND_SECONDS = 0.015
"""Both measured on two cores, without imports that this process needs too; a round's covers calls and replies."""
LOCAL_ROUND_SECONDS = 0.006
"""Overhead of a round in this process: strategy, messages, scores and log."""
SHORT_SECONDS = 0.5
"""A shorter round is timed again, twice and with all its epochs, as its fixed part is significant."""
FASTEST_FLOPS_PER_SECOND = 1e11
"""More than a core reaches in training; work that is long even at this speed is not timed."""
MOST_BATCHING_GAINS = 20
"""Largest assumed speed-up of a round over an extrapolation from the smallest client's time.

That client is timed alone, while small clients train batched: 14 to 21 times faster on two cores with 10 and 30 clients
of wine and 100 of digits, and 81 times with 50 of digits, which have 5 to 95 rows. If the speed-up is larger than this,
Ray may be chosen although this process is faster, which only costs time.
"""
TRIED_SECONDS = 2.0
"""All clients are timed if that takes no longer by the smallest client, whose few rows say little on a busy machine."""
MOST_TRIED = 1000
"""Of more clients, every n-th by its number of rows is timed."""

logger = logging.getLogger("fedscout")


@dataclass(frozen=True)
class ExpectedWork:
    """The work expected of the clients.

    Attributes:
        session: The session of the training.
        num_rounds: Rounds of all trials together, and of a detection.
        fraction_train: Share of the clients that train per round.
    """

    session: Session
    num_rounds: int
    fraction_train: float = 1.0


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds of the same work in this process and on Ray."""

    local: float
    ray: float

    @classmethod
    def of(cls, round_seconds: float, num_rounds: int, num_hosts: int) -> Estimate:
        """Return the estimate for `num_rounds` rounds that each take `round_seconds` on one processor."""
        shared = num_rounds * (RAY_ROUND_SECONDS + round_seconds / num_hosts)
        return cls(num_rounds * (LOCAL_ROUND_SECONDS + round_seconds), RAY_START_SECONDS + shared)

    @property
    def is_local(self) -> bool:
        """Whether this process is estimated to be faster."""
        return self.local <= self.ray

    def description(self, num_rounds: int) -> str:
        """Return the choice as one line of text, for at most `num_rounds` rounds."""
        seconds = "less than 1 s" if self.local < 1 else f"about {self.local:.0f} s"
        local_text, ray_text = f"{seconds} in this process", f"about {self.ray:.0f} s on Ray"
        chosen, other, grid = (local_text, ray_text, "ray") if self.is_local else (ray_text, local_text, "local")
        return f"up to {num_rounds} rounds take {chosen}, versus {other}; engine.grid={grid} overrides this choice"


UNTRIED = "rounds are long enough to benefit from Ray; engine.grid=local overrides this choice"


def local_host_if_faster(federation: Federation, work: ExpectedWork) -> ClientHost | None:
    """Return a host for all clients in this process, and log the choice; None if Ray is faster.

    Args:
        federation: The federation with its rows.
        work: The expected work.
    """
    from fedscout.engine.client.host import ClientHost  # torch, which a driver of Ray's hosts does without

    host = ClientHost(federation, CLIENT_QUERIES)
    num_hosts = min(num_processors(), federation.num_clients)
    for round_seconds, was_tried in _round_seconds(host, federation, work):
        estimate = Estimate.of(round_seconds, work.num_rounds, num_hosts)
        if was_tried or not estimate.is_local:
            logger.info("%s", estimate.description(work.num_rounds) if was_tried else UNTRIED)
            break
    return host if estimate.is_local else None


def num_processors() -> int:
    """Return the number of processors available to this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _round_seconds(host: ClientHost, federation: Federation, work: ExpectedWork) -> Iterator[tuple[float, bool]]:
    """Yield increasingly accurate lower bounds of a round's seconds on one processor, then the measured time.

    The pair's second value is True for the last one. The first bound is from the minimal number of operations, the
    second from the smallest client, timed twice because a process's first work is slow, unless all are timed quickly;
    the last value times all clients, which may train batched. So a long round is timed only if Ray may not be faster.
    """
    sizes = federation.partition.sizes if federation.task is None else np.ones(federation.num_clients, dtype=int)
    if federation.task is None:
        operations = 6.0 * host.facts().layout.size * int(sizes.sum()) * work.session.training.local_epochs
        yield work.fraction_train * operations / FASTEST_FLOPS_PER_SECOND, False
    by_size = np.argsort(sizes, kind="stable")
    order = by_size[~np.isin(by_size, [*federation.unseen])] if federation.unseen else by_size
    smallest_seconds = min(_seconds(host, work, sizes, order[:1].tolist()) for _ in range(2))
    if smallest_seconds > TRIED_SECONDS:
        yield smallest_seconds / MOST_BATCHING_GAINS, False
    timed_clients = sorted(order[:: -(-len(order) // MOST_TRIED)].tolist())
    seconds = _seconds(host, work, sizes, timed_clients)
    if seconds < SHORT_SECONDS:
        epochs = work.session.training.local_epochs
        seconds = min(_seconds(host, work, sizes, timed_clients, epochs) for _ in range(2))
    yield seconds, True


def _seconds(host: ClientHost, work: ExpectedWork, sizes: IntArray, clients: list[int], tried_epochs: int = 1) -> float:
    """Return a round's seconds, extrapolated from some clients' local epochs and scoring."""
    session, began = work.session, process_time()
    results = timed_round(host, session, clients, tried_epochs)
    spent = process_time() - began
    scoring = 0.0 if results.evaluation is None else spent * results.evaluation.seconds / results.seconds
    training = (spent - scoring) * session.training.local_epochs / tried_epochs * work.fraction_train
    if session.num_scored is not None:
        scoring *= min(1.0, session.num_scored / len(sizes))
    return (training + scoring) * float(sizes.sum()) / max(1, int(sizes[clients].sum()))
