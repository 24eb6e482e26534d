"""One line when Ray dies under its driver, which Ray then ends without a word: at once, or after a minute of waiting.

A driver can't do without the raylet of its machine, which keeps workers and objects, and which ends itself when one of
its two agents does: the driver may follow within milliseconds, so the agents are watched as well. Nor can a Ray that
was started here do without its server; that of a cluster may come back, and is Ray's to wait for.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress

from fedscout.engine.runtime.signals import end_at_once

DIED = "Ray's {name} on this machine died; the same command goes on where this one stopped"
AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent", "dashboard/agent.py", "runtime_env/agent/main.py")
"""Titles of the agents, and what they are called before they have given themselves one."""

SERVER = "gcs_server"
"""Name of the server's process, a child of the process that started Ray."""

CREDENTIALS = struct.Struct("3i")
"""Process, user and group at the other end of a socket, unix(7)."""


@contextmanager
def raylet_watched() -> Iterator[None]:
    """End this process with one line and exit code 1 if what its Ray can't do without dies in the block."""
    import ray

    own = ray.get_runtime_context().get_node_id()
    nodes = ray.nodes()  # type: ignore[no-untyped-call]
    raylet = next(node["RayletSocketName"] for node in nodes if node["NodeID"] == own)
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
        watched = {os.pidfd_open(process): name for process, name in _indispensable(raylet_socket).items()}
        for file in watched:
            stack.callback(os.close, file)
        ready, _, _ = select.select([over.fileno(), *watched], [], [])
        if over.fileno() not in ready:
            end_at_once(1, DIED.format(name=watched[ready[0]]))


def _indispensable(raylet_socket: str) -> dict[int, str]:
    """Return the processes without which a driver ends, and what each is; the server if this process has started it."""
    import psutil  # type: ignore[import-untyped]  # Ray brings it along

    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(raylet_socket)
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    raylet, _, _ = CREDENTIALS.unpack(credentials)
    found = {raylet: "raylet"}
    for child in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):
            if child.name() == SERVER:
                found[child.pid] = "server"
    with suppress(psutil.Error):
        for child in psutil.Process(raylet).children():
            with suppress(psutil.Error):
                if any(name in part for part in child.cmdline() for name in AGENTS):
                    found[child.pid] = "agent"
    return found
