"""Ray for the time of one command: started here or connected to, and ended as it was found.

Ray puts the driver's working directory first on its workers' import path, where a user's `search.py` would win over
ours. So Ray is started with the package's parent as working directory; the user's own directory comes last, and only
in processes that may have to import a strategy of the user's.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from fedscout.engine.engine_config import EngineConfig
from fedscout.engine.errors import ConfigurationError, EngineError, Fault, first_line
from fedscout.engine.runtime.orphan_processes import mark_children
from fedscout.engine.runtime.ray_internals import address_found, forget_token
from fedscout.engine.runtime.raylet_watch import raylet_watched
from fedscout.engine.runtime.signals import children_apart, children_ended_by, signals_held_back
from fedscout.engine.runtime.single_node_ray import own_token, single_node_ray

PLACE = Path(__file__).absolute().parents[3]
"""Where `fedscout` lies. Ray starts there, as it puts the folder that it starts in first on the workers' import path,
where any file of the user's could stand in for a library's."""

WORKER_ENVIRONMENT = {
    "FLWR_LOG_LEVEL": "ERROR",
    "FLWR_TELEMETRY_ENABLED": "0",
    "MKL_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_idle_worker_killing_time_threshold_ms": "600000",
    "RAY_max_direct_call_object_size": str(2**20),
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""One thread everywhere, which the bits of sums depend on; processes of trials stay for the next one; answers of up to
1 MiB come straight back instead of through the object store, which costs milliseconds; no chatter, no statistics."""


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
def _results_alone_on_standard_output(verbose: bool) -> Iterator[None]:
    """Keep standard output clear: Ray prints there when a process of its dies, whatever its options say."""
    if verbose:
        with redirect_stdout(sys.stderr):
            yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere):
        yield


_ADDRESS = "engine.address must be that of a running Ray, host:port, or auto"
_HINT = "; if that cluster demands a token, set RAY_AUTH_MODE=token and have the token here"
"""Ray says no more than that it failed to connect."""

CONNECT_SECONDS = 10.0


def _check_reachable(address: str) -> None:
    """Refuse an address where nothing listens; Ray itself would try for minutes."""
    _check_listening(_found_by_ray() if address == "auto" else address, given=address)


def _check_listening(address: str, given: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        which = "" if address == given else f", which is {address}"
        raise ConfigurationError(f"{_ADDRESS}, got {given!r}{which}: {error}") from error


def _found_by_ray() -> str:
    """Return what `auto` means here and now; another study's own Ray may be found, but not reached."""
    try:
        found = address_found()
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(f"{_ADDRESS}, got 'auto': {first_line(error)}") from error
    if found is None:
        raise ConfigurationError(f"{_ADDRESS}, got 'auto', but RAY_ADDRESS is {os.environ.get('RAY_ADDRESS')!r}")
    return found


@contextmanager
def ray_runtime(config: EngineConfig, verbose: bool = False) -> Iterator[Any]:
    """Connect to the configured Ray, and leave nothing of it behind.

    A process that is connected already keeps its connection, and its Ray.

    Raises:
        ConfigurationError: If there is no Ray at the given address.
    """
    import ray

    if config.address is not None:
        _check_reachable(config.address)
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {
        "log_to_driver": verbose,
        "logging_level": logging.INFO if verbose else logging.ERROR,
    }
    if config.address is None:
        # Without "local" Ray would join whatever cluster runs on this machine, or that RAY_ADDRESS names.
        options |= {
            "address": "local",
            "include_dashboard": False,
            "object_store_memory": config.object_store_bytes,
        }
    else:
        options |= {"address": config.address, "runtime_env": {"env_vars": WORKER_ENVIRONMENT}}

    def end() -> None:
        ray.shutdown()
        forget_token()

    with _results_alone_on_standard_output(verbose), children_ended_by(end):
        _start(ray, config, options, verbose)
        with raylet_watched():
            yield ray


def _start(ray: Any, config: EngineConfig, options: Mapping[str, Any], verbose: bool) -> None:
    try:
        with ExitStack() as here:
            here.enter_context(chdir(PLACE))
            here.enter_context(signals_held_back())
            here.enter_context(children_apart())
            here.enter_context(_quiet_standard_error(quiet=not verbose))
            if config.address is None:
                here.enter_context(own_token())
                here.enter_context(single_node_ray(log_monitor=verbose))
            mark_children()
            ray.init(**options)
    except (ConnectionError, ValueError) as error:
        reason = first_line(error)
        if config.address is None:
            raise ConfigurationError(Fault("Ray", "be able to start here", hint=f"it says: {reason}")) from error
        raise ConfigurationError(f"{_ADDRESS}, got {config.address!r}: {reason}{_HINT}") from error
    except Exception as error:  # a bare one, if its start takes too long
        raise EngineError(f"Ray did not start: {first_line(error)}") from error
