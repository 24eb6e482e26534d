"""Start of the trial runner that the engine's configuration specifies: in this process or on Ray."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.config import CPU, EngineConfig, HostDevice, torch_settings_kept
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.calls import FederationFacts, Session
from fedscout.engine.runtime.ray import ray_runtime, readable_memory_errors, warn_of_memory_shortage
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import LocalRunner, Progress, TrialRunner
from fedscout.experiments.studies.grid_choice import ExpectedWork, local_host_if_faster
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

    @property
    def facts(self) -> FederationFacts:
        """The facts of the federation."""
        return self.started().facts

    @property
    def num_hosts(self) -> int:
        """The number of hosts that the clients are distributed over."""
        return self.started().num_hosts

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a grid for messages outside a trial."""
        return self.started().grid(session)

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Run trials; an empty batch starts nothing."""
        return self.started().run(batch, progress) if batch else iter(())

    def forget(self, key: str) -> None:
        """Remove the trial's checkpoint."""
        self._store.discard(key)

    def close(self) -> None:
        """Do nothing, as `open_runner` closes it."""


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
    once. Running trials write checkpoints to the study's folder, if one is given; nothing starts if it is read-only.
    `engine.grid=auto` chooses by `work`, and is Ray without it.
    """
    store = CheckpointStore(None if folder is None else folder.checkpoints, config.checkpoint_every_rounds)
    with ExitStack() as stack:

        def start() -> TrialRunner:
            nonlocal federation
            if folder is not None:
                folder.check_writable()
            placed, federation = federation, federation.without_rows()
            host = stack.enter_context(_local_host(placed, config, work))
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
        raise ConfigurationError.of("engine.device", "be cpu or left out where clients play, which they do on cores")
    return CPU


@contextmanager
def _local_host(federation: Federation, config: EngineConfig, work: ExpectedWork | None) -> Iterator[ClientHost | None]:
    """Yield the host of all clients if they run in this process, else None; PyTorch's settings are restored."""
    estimates = config.allows_in_process and work is not None
    if config.grid != "local" and not estimates:
        yield None
        return
    import torch

    from fedscout.engine.client.host import ClientHost

    device = device_for(federation, config, torch.cuda.is_available())
    if estimates and device.on_gpu:  # of what a GPU takes nothing is known here
        yield None
        return
    with torch_settings_kept():
        yield (
            local_host_if_faster(federation, work)
            if estimates and work
            else ClientHost(federation, CLIENT_QUERIES, device)
        )


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
