"""Ray for the duration of one command: started here or connected to, and shut down without a trace.

Working directory: Ray puts the driver's working directory first on its workers' import path, where a user's `search.py`
would shadow ours. So Ray is started with the package's parent as working directory; the user's own directory comes
last, and only in processes that may have to import a user's strategy.

Ray internals: this module contains all uses of Ray's non-public interfaces:

| what | public alternative | why it does not suffice |
| --- | --- | --- |
| memory in use | `psutil.virtual_memory` | ignores the container's limit, by which Ray kills processes |
| rereading token and mode | `ray.shutdown`, `ray.init` | Ray reads them once per process, and caches them |
| resolving `auto` | `ray.init(address="auto")` | retries for minutes if nothing answers |
| ports and daemons of a start | arguments of `ray.init` | it does not pass on these settings |
| notes stored by the head | a named actor, an object | they end with the process that holds or owns them |

Death of Ray: Ray ends its driver silently when it dies, at once or after waiting a minute; `exit_with_raylet` prints
one line instead. A driver depends on its machine's raylet, which keeps workers and objects, and which ends itself when
one of its two agents does: the driver may follow within milliseconds, so the agents are watched as well. A Ray started
here also depends on its GCS server; a cluster's server may come back, and Ray waits for it.

Single node: a Ray of one machine runs without the services that only a cluster needs. If a node's address is 127.0.0.1,
all of Ray's processes listen on loopback only; but `ray.init` takes that address for the one by which other machines
reach this one, and opens every port to them. It starts an autoscaler and a log monitor that a study on one machine does
not use, and then waits until two agents, Python programs of a second or two, have reported the ports that they chose.
With fixed ports there is no wait.

Token: loopback excludes other machines, but not the other users of this one, so a Ray started here requires a secret
token. Ray's processes inherit it in the environment of the process that starts them, which only their own user can
read; it is never written, printed or put on a command line. Ray caches mode and token, so the cache is cleared before a
start and after the end, because the next Ray of this process may be a cluster with another token, or with none.

Memory: Ray's memory monitor kills workers when a machine's memory is nearly full, and repeats their work. If that
happens to the same process repeatedly, Ray gives up with a message of two thousand characters; for a host that takes a
quarter of an hour without any output. So the driver watches the memory, too, and warns; the final error says what to
change.
"""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import select
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, chdir, contextmanager, nullcontext, redirect_stdout, suppress
from pathlib import Path
from typing import Any

from fedscout.engine.config import EngineConfig
from fedscout.engine.errors import ConfigurationError, EngineError, Fault, first_line
from fedscout.engine.runtime import processes


def memory_in_use() -> tuple[int, int]:
    """Return used and total bytes, as Ray's monitor counts them: those of the container, if any."""
    from ray._common.utils import get_system_memory
    from ray._private.utils import get_used_memory

    return get_used_memory(), get_system_memory()  # type: ignore[no-untyped-call]


def forget_token() -> None:
    """Make Ray reread mode and token from the current environment."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # its stubs lack it

    AuthenticationTokenLoader.instance().reset_cache()
    Config.initialize("")


def address_found() -> str | None:
    """Return the address to which `auto` resolves here; None if a Ray is yet to be started.

    Raises:
        ConnectionError: If no Ray is found.
        ValueError: If RAY_ADDRESS is no address.
    """
    from ray._private.services import canonicalize_bootstrap_address, find_gcs_addresses

    find_gcs_addresses.cache_clear()  # type: ignore[attr-defined]
    return canonicalize_bootstrap_address("auto")


class HeadNotes:
    """Notes in the key-value store of Ray's head, which survive the death of any other process."""

    NAMESPACE = b"fedscout"

    def __init__(self) -> None:
        from ray.experimental import internal_kv

        self._store: Any = internal_kv

    def read(self, call_id: str) -> bytes | None:
        """Return a call's note."""
        note: bytes | None = self._store._internal_kv_get(call_id.encode(), namespace=self.NAMESPACE)
        return note

    def write(self, call_id: str, note: bytes) -> None:
        """Replace a call's note."""
        self._store._internal_kv_put(call_id.encode(), note, overwrite=True, namespace=self.NAMESPACE)

    def remove(self, call_id: str) -> None:
        """Remove a call's note."""
        self._store._internal_kv_del(call_id.encode(), namespace=self.NAMESPACE)


DIED = "Ray's {name} on this machine died; run the same command again to resume"
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "dashboard/agent.py", "runtime_env/agent/main.py")
"""Titles of the agents, and what they are called before they have given themselves one."""

SERVER = "gcs_server"
"""Name of the server's process, a child of the process that started Ray."""

CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a socket, unix(7)."""


@contextmanager
def exit_with_raylet() -> Iterator[None]:
    """Exit this process with one line and code 1 if a process that its Ray depends on dies in the block."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    raylet = next(node["RayletSocketName"] for node in nodes if node["NodeID"] == node_id)
    over, end = socket.socketpair()
    with over, end:
        watch = threading.Thread(target=_watch, args=(raylet, over), name="raylet-watch", daemon=True)
        watch.start()
        try:
            yield
        finally:
            end.close()
            watch.join()


def _watch(raylet_socket: str, over: socket.socket) -> None:
    with ExitStack() as stack, suppress(OSError):  # a system that can't watch processes
        watched = {os.pidfd_open(process): name for process, name in _required_processes(raylet_socket).items()}
        for file in watched:
            stack.callback(os.close, file)
        ready, _, _ = select.select([over.fileno(), *watched], [], [])
        if over.fileno() not in ready:
            processes.end_at_once(1, DIED.format(name=watched[ready[0]]))


def _required_processes(raylet_socket: str) -> dict[int, str]:
    """Return the processes on which a driver depends, and the name of each; the server if started by this process."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(raylet_socket)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    raylet, _, _ = CREDENTIALS.unpack(credentials)
    name_by_pid = {raylet: "raylet"}
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if child.name() == SERVER:
                name_by_pid[child.pid] = "server"
    with suppress(psutil.Error):
        for child in psutil.Process(raylet).children():
            with suppress(psutil.Error):
                if any(name in part for part in child.cmdline() for name in AGENTS):
                    name_by_pid[child.pid] = "agent"
    return name_by_pid


MODE = "RAY_AUTH_MODE"
TOKEN = "RAY_AUTH_TOKEN"  # noqa: S105  # a name

LOOPBACK = "127.0.0.1"

PORTS = range(20_000, 32_000)
"""Above the ports of Ray's workers, below those that the system gives to outgoing connections."""


def free_ports(count: int) -> list[int]:
    """Return free ports, drawn at random so that two programs hardly ever choose the same."""
    ports: list[int] = []
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as attempt:
            try:
                attempt.bind(("", port))
            except OSError:
                continue
        ports.append(port)
        if len(ports) == count:
            return ports
    raise OSError(f"no free port between {PORTS.start} and {PORTS.stop}")


@contextmanager
def single_node_ray(log_monitor: bool, **settings: Any) -> Iterator[None]:
    """Make `ray.init` start a single-node Ray inside the block, by patching its parameter class.

    Args:
        log_monitor: Whether workers' log messages are shown.
        settings: Further parameters of the start.
    """
    from ray._private import parameter

    metrics, dashboard, runtime_env = free_ports(3)
    settings |= {
        "node_ip_address": LOOPBACK,
        "metrics_agent_port": metrics,
        "dashboard_agent_listen_port": dashboard,
        "runtime_env_agent_port": runtime_env,
        "no_monitor": True,
        "include_log_monitor": log_monitor,
    }
    original = parameter.RayParams
    parameter.RayParams = lambda **given: original(**{**given, **settings})  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        parameter.RayParams = original  # type: ignore[misc]


@contextmanager
def own_token() -> Iterator[None]:
    """Make a Ray started in the block require a new token, set in this process; a mode set by the user wins."""
    if MODE in os.environ:
        yield
        return
    previous_token = os.environ.get(TOKEN)
    os.environ |= {MODE: "token", TOKEN: secrets.token_hex(32)}
    forget_token()
    try:
        yield
    finally:
        del os.environ[MODE], os.environ[TOKEN]
        if previous_token is not None:
            os.environ[TOKEN] = previous_token


PLACE = Path(__file__).absolute().parents[3]
"""The folder that holds the package `fedscout`. Ray starts there, as it puts the folder that it starts in first on the
workers' import path, where any file of the user's could stand in for a library's."""

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
    """Set this process's environment before numpy, Ray or Flower are imported; the user's settings win."""
    for name, value in WORKER_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if verbose:
        os.environ["FLWR_LOG_LEVEL"] = "INFO"
        return
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    logging.getLogger("flwr").propagate = False


@contextmanager
def _quiet_standard_error() -> Iterator[None]:
    """Discard what Ray's C++ code writes to file descriptor 2; Python's exceptions are unaffected."""
    saved_stderr = os.dup(2)
    null_device = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null_device, 2)
    try:
        yield
    finally:
        os.dup2(saved_stderr, 2)
        os.close(saved_stderr)
        os.close(null_device)


@contextmanager
def _ray_output_redirected(verbose: bool) -> Iterator[None]:
    """Redirect standard output, on which Ray prints when a process dies, regardless of its options."""
    with nullcontext(sys.stderr) if verbose else Path(os.devnull).open("w") as target, redirect_stdout(target):
        yield


_HINT = "if that cluster requires a token, set RAY_AUTH_MODE=token and provide the token on this machine"
"""Ray's own message is only that it failed to connect."""

CONNECT_SECONDS = 10.0


def _address_fault(given: str, hint: str | None = None) -> Fault:
    return Fault("engine.address", "be the address of a running Ray cluster, host:port, or auto", given, hint)


def _check_listening(address: str, given: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        which = "" if address == given else f", which is {address}"
        raise ConfigurationError(_address_fault(f"{given!r}{which}: {error}")) from error


def _resolved_auto() -> str:
    """Return the address to which `auto` resolves here; it may be another study's Ray, which is not reachable."""
    try:
        address = address_found()
    except (ConnectionError, ValueError) as error:
        raise ConfigurationError(_address_fault(f"'auto': {first_line(error)}")) from error
    if address is None:
        raise ConfigurationError(_address_fault(f"'auto', but RAY_ADDRESS is {os.environ.get('RAY_ADDRESS')!r}"))
    return address


@contextmanager
def ray_runtime(config: EngineConfig, verbose: bool = False) -> Iterator[Any]:
    """Connect to the configured Ray, and shut it down without leaving anything behind.

    A process that is already connected keeps its connection and its Ray.

    Raises:
        ConfigurationError: If there is no Ray at the given address.
    """
    import ray

    if config.address is not None:
        _check_listening(_resolved_auto() if config.address == "auto" else config.address, given=config.address)
    if ray.is_initialized():
        yield ray
        return
    options: dict[str, Any] = {"log_to_driver": verbose, "logging_level": logging.INFO if verbose else logging.ERROR}
    if config.address is None:
        # Without "local" Ray would join whatever cluster runs on this machine, or that RAY_ADDRESS names.
        options |= {"address": "local", "include_dashboard": False, "object_store_memory": config.object_store_bytes}
    else:
        options |= {"address": config.address, "runtime_env": {"env_vars": WORKER_ENVIRONMENT}}

    def end() -> None:
        ray.shutdown()
        forget_token()

    with _ray_output_redirected(verbose), processes.end_children_with(end):
        _start(ray, config, options, verbose)
        with exit_with_raylet():
            yield ray


def _start(ray: Any, config: EngineConfig, options: Mapping[str, Any], verbose: bool) -> None:
    try:
        with ExitStack() as stack:
            stack.enter_context(chdir(PLACE))
            stack.enter_context(processes.signals_held_back())
            stack.enter_context(processes.own_process_groups())
            if not verbose:
                stack.enter_context(_quiet_standard_error())
            if config.address is None:
                stack.enter_context(own_token())
                stack.enter_context(single_node_ray(log_monitor=verbose))
            processes.mark_children()
            ray.init(**options)
    except (ConnectionError, ValueError) as error:
        reason = first_line(error)
        if config.address is None:
            raise ConfigurationError.of("Ray", "be able to start here", hint=f"its error: {reason}") from error
        raise ConfigurationError(_address_fault(f"{config.address!r}: {reason}", _HINT)) from error
    except Exception as error:  # a bare one, if its start takes too long
        raise EngineError(f"Ray did not start: {first_line(error)}") from error


WATCH_SECONDS = 2.0
THRESHOLD = "RAY_memory_usage_threshold"
REFRESH = "RAY_memory_monitor_refresh_ms"
"""Ray's own settings of its monitor; a refresh of 0 switches it off."""

_ADVICE = "lower engine.num_hosts, run fewer trials at once (search.generation_size), or end other programs"

logger = logging.getLogger("fedscout")

_KILLED = re.compile(
    r"killed due to the node running low on memory.*? was (?P<used>[\d.]+ ?GB) / (?P<total>[\d.]+ ?GB)"
    r".*?threshold of (?P<threshold>[\d.]+)"
    r"(?:.*?task name=(?P<name>[^,]+),.*?actual memory used=(?P<own>[\d.]+ ?GB))?",
    re.DOTALL,
)
_FULL = ("OutOfDiskError", "ObjectStoreFullError", "out of disk space", "object store is full")


def memory_fault(text: str) -> str | None:
    """Return a readable message for Ray's error about memory; None for other errors."""
    killed = _KILLED.search(text)
    if killed is not None:
        found = killed.groupdict()
        who = f"{found['name']}, which used {found['own']}" if found["name"] else "a process"
        return (
            f"Ray ended {who}, because {found['used']} of the machine's {found['total']} of memory were in use, more "
            f"than its limit, a share of {float(found['threshold']):g}; {_ADVICE}"
        )
    if any(sign in text for sign in _FULL):
        return (
            "Ray's object store is full, and so is the disk of its temporary folder; raise engine.object_store_bytes, "
            "or free space on that disk (RAY_TMPDIR sets another folder)"
        )
    return None


@contextmanager
def readable_memory_errors() -> Iterator[None]:
    """Replace the block's memory errors by readable messages, and all other Ray errors by EngineError.

    Raises:
        EngineError: In place of Ray's.
    """
    from ray.exceptions import RayError

    try:
        yield
    except (EngineError, RayError) as error:
        message = memory_fault(f"{type(error).__name__}: {error}")
        if message is None and isinstance(error, EngineError):
            raise
        raise EngineError(message or f"Ray failed: {first_line(error)}") from error


@contextmanager
def warn_of_memory_shortage(in_use: Callable[[], tuple[int, int]] = memory_in_use) -> Iterator[None]:
    """Warn once if memory use in the block exceeds the share at which Ray starts to kill processes."""
    threshold = float(os.environ.get(THRESHOLD, "0.95"))
    over = threading.Event()

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            used, total = in_use()
            if used > threshold * total:
                logger.warning(
                    "memory is running low: %.1f of %.1f GB are in use; above a share of %g, Ray ends this study's "
                    "processes and their work is repeated; %s",
                    used / 2**30,
                    total / 2**30,
                    threshold,
                    _ADVICE,
                )
                return

    watcher = threading.Thread(target=watch, name="memory watch", daemon=True)
    if os.environ.get(REFRESH) != "0":
        watcher.start()
    try:
        yield
    finally:
        over.set()
        if watcher.ident is not None:
            watcher.join()
