"""From the engine's configuration to a place where trials run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from detectors import CLIENT_QUERIES
from engine.checkpoint import CheckpointStore
from engine.federation import Federation
from engine.trial_runner import LocalRunner, RayRunner, TrialRunner
from experiments.engine_config import EngineConfig
from experiments.ray_runtime import ray_runtime


@contextmanager
def open_runner(
    federation: Federation,
    config: EngineConfig,
    checkpoints: Path | None,
    parallel: int,
    search_path: tuple[str, ...] = (),
    verbose: bool = False,
) -> Iterator[TrialRunner]:
    """Place a federation and return where its trials run; all that was started ends with the block.

    Args:
        federation: Placed once.
        config: Ray or this process, and how many hosts.
        checkpoints: Folder of running trials' checkpoints; None keeps none.
        parallel: Trials at once.
        search_path: Folders for a user's own strategies.
        verbose: Whether Ray's and Flower's own messages are shown.
    """
    store = CheckpointStore(checkpoints, config.checkpoint_every_rounds)
    if config.grid == "local":
        from engine.client_host import ClientHost

        yield LocalRunner(ClientHost(federation, CLIENT_QUERIES), store)
        return
    with ray_runtime(config, verbose) as ray:
        from engine.ray_grid import start_hosts

        cpus = max(1, int(ray.cluster_resources().get("CPU", 1)))
        num_hosts = config.num_hosts or min(cpus, federation.num_clients)
        hosts = start_hosts(federation, CLIENT_QUERIES, num_hosts)
        runner = RayRunner(hosts, store, parallel, search_path)
        try:
            yield runner
        finally:
            runner.close()
