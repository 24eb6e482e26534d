"""Ray for the time of one command: started here or connected to, and ended as it was found.

Ray puts the driver's working directory first on its workers' import path, where a user's `search.py` would win over
ours. So Ray is started with the package's parent as working directory; the user's own directory comes last, and only
in processes that may have to import a strategy of the user's.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import ConfigurationError
from experiments.engine_config import EngineConfig
from experiments.package_roots import OWN_ROOT

WORKER_ENVIRONMENT = {
    "FLWR_LOG_LEVEL": "ERROR",
    "FLWR_TELEMETRY_ENABLED": "0",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""One thread everywhere, which the bits of sums depend on; no chatter, no usage statistics."""


def prepare_environment(verbose: bool) -> None:
    """Set this process's environment before numpy, Ray or Flower are imported; a user's own settings win."""
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if verbose:
        os.environ["FLWR_LOG_LEVEL"] = "INFO"
        return
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("flwr").propagate = False


@contextmanager
def _quiet_standard_error(quiet: bool) -> Iterator[None]:
    """Keep what Ray's C++ code writes to file descriptor 2 out of sight; Python's exceptions are not affected."""
    if not quiet:
        yield
        return
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


@contextmanager
def ray_runtime(config: EngineConfig, verbose: bool = False) -> Iterator[Any]:
    """Connect to the configured Ray, and leave nothing of it behind.

    Raises:
        ConfigurationError: If there is no Ray at the given address.
    """
    import ray

    options: dict[str, Any] = {
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    if config.address is None:
        options |= {"include_dashboard": False, "object_store_memory": config.object_store_bytes}
    else:
        options |= {"address": config.address, "runtime_env": {"env_vars": WORKER_ENVIRONMENT}}
    started_from = Path.cwd()
    os.chdir(OWN_ROOT)
    try:
        with _quiet_standard_error(quiet=not verbose):
            ray.init(**options)
    except (ConnectionError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise ConfigurationError(f"engine.address must be a running Ray, got {config.address!r}: {first}") from error
    finally:
        os.chdir(started_from)
    try:
        yield ray
    finally:
        ray.shutdown()
