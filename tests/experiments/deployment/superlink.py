"""A Flower federation as users start it: a SuperLink, SuperNodes and `flwr run`, processes of this machine.

Flower's SuperExec, which starts a process for every message, outlives a SuperNode that is killed. So each SuperNode,
the SuperLink and each command bears a mark of its own, by which it is ended together with what it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil
import pytest

from tests.experiments.cli.processes import REPOSITORY
from tests.experiments.deployment.credentials import LOOPBACK, NodeKey, ServerCertificates
from tests.experiments.deployment.forked_clientapp import with_forked_clients
from tests.marked_processes import MarkedProcesses

START_SECONDS = 90.0
"""Processes that import Flower take some two seconds to start, and many times that on a busy machine."""

RUN_SECONDS = 240.0
COMMAND_SECONDS = 60.0
REJOIN_SECONDS = 150.0
LOOK_SECONDS = 0.1
NODE_ADMITTED = r"SuperNode ID: (\d+)"
Value = str | int | float | bool
Found = TypeVar("Found")


@dataclass(frozen=True)
class FinishedRun:
    """What `flwr list` says of a run that ended, and all that `flwr run --stream` printed.

    Attributes:
        status: `finished:completed`, `finished:failed` or `finished:stopped`.
    """

    status: str
    output: str


class Started:
    """A command with a log, and all that it starts."""

    def __init__(self, command: Sequence[str], environment: dict[str, str], log: Path) -> None:
        self.log = log
        self._processes = MarkedProcesses()
        self.process = self._processes.start(command, environment, log, cwd=log.parent)

    def text(self) -> str:
        """Return what it has written so far."""
        return self.log.read_text(errors="replace")

    def wait_for(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        """Wait until its log holds a pattern, and return the match."""
        if not self.comes_to(pattern, seconds):
            pytest.fail(f"{self.log.name} ended before it wrote {pattern!r}:\n{self.text()}")
        match = re.search(pattern, self.text())
        assert match is not None
        return match

    def comes_to(self, pattern: str, seconds: float = START_SECONDS) -> bool:
        """Wait until its log holds a pattern or the command has ended; whether it does."""

        def decided() -> bool | None:
            ended = self.process.poll() is not None
            return bool(re.search(pattern, self.text())) or (False if ended else None)

        return wait_until(decided, seconds, lambda: f"{self.log.name} did not write {pattern!r}:\n{self.text()}")

    def wait(self, seconds: float) -> int:
        """Wait until the command has ended, and return its exit code."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{self.log.name} did not end in {seconds:.0f} s:\n{self.text()}")

    def process_named(self, name: str) -> psutil.Process:
        """Wait for the process of this program that it starts, and return it."""

        def found() -> psutil.Process | None:
            return next((one for one in self._processes.alive() if program(one) == name), None)

        return wait_until(found, START_SECONDS, lambda: f"{self.log.name} started no {name}:\n{self.text()}")

    def alive(self) -> list[psutil.Process]:
        """Return what runs of it."""
        return self._processes.alive()

    def kill(self) -> None:
        """End it and all that it has started at once, as a power cut does."""
        self._processes.kill()


class StartedRun:
    """A run of an app.

    Attributes:
        run_id: As Flower counts.
        stream: `flwr run --stream`.
    """

    def __init__(self, federation: RealFederation, stream: Started) -> None:
        self.stream = stream
        self.run_id = int(stream.wait_for(r"started run (\d+)")[1])
        self._federation = federation

    def wait_for(self, pattern: str, seconds: float = RUN_SECONDS) -> re.Match[str]:
        """Wait until the server app has printed a pattern."""
        return self.stream.wait_for(pattern, seconds)

    def status(self) -> str:
        """Return what `flwr list` says."""
        listed = self._federation.flwr("list", "--run-id", str(self.run_id), "--format", "json")
        (run,) = json.loads(listed[listed.index("{") :])["runs"]
        return str(run["status"])

    def wait(self, seconds: float = RUN_SECONDS) -> FinishedRun:
        """Wait until the run has ended."""
        self.stream.wait(seconds)
        return FinishedRun(self.status(), self.stream.text())


class RealFederation:
    """A SuperLink and SuperNodes on free ports of the loopback; all of it ends with the block.

    Args:
        folder: For what Flower writes; each process works in one of its own below it.
        node_configs: Of the SuperNodes to start with.
        tls: Whether the SuperLink has a certificate and admits only nodes whose keys it was told.
        keeps_state: Whether the SuperLink's state lies in a file, so that runs and nodes outlive it.
        forked_clients: Whether messages to clients are answered by forks of a process that has imported what they need.

    Attributes:
        nodes: Its SuperNodes in order of their start, also those that were killed.
        node_ids: Flower's number of each, by its place among the nodes; the last one of a node that was killed.
    """

    def __init__(
        self,
        folder: Path,
        node_configs: Sequence[Mapping[str, Value]] = (),
        tls: bool = False,
        keeps_state: bool = False,
        forked_clients: bool = False,
    ) -> None:
        self.folder = folder
        self.nodes: list[Started] = []
        self.node_ids: dict[int, int] = {}
        self._first_configs = node_configs
        self._configs: list[Mapping[str, Value]] = []
        self._keys: list[NodeKey | None] = []
        self._certificates = ServerCertificates.made(folder) if tls else None
        self._database = folder / "superlink.db" if keeps_state else None
        self._forked_clients = forked_clients
        self._port = free_port()
        self._started: list[Started] = []
        self.superlink: Started | None = None

    def __enter__(self) -> RealFederation:
        try:
            self._write_connection()
            self.start_superlink()
            for config in self._first_configs:
                self.add_node(config, wait=False)
            self.wait_for_nodes()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Kill whatever was started here."""
        for started in reversed(self._started):
            started.kill()

    def alive(self) -> list[psutil.Process]:
        """Return what runs of all that was started here."""
        return [process for started in self._started for process in started.alive()]

    def start_superlink(self) -> None:
        """Start the SuperLink, on the port of the one before it."""
        command = ["flower-superlink", "--disable-runtime-dependency-installation", "--port", str(self._port)]
        if self._certificates is None:
            command += ["--insecure"]
        else:
            command += ["--ssl-ca-certfile", str(self._certificates.authority), "--enable-supernode-auth"]
            command += ["--ssl-certfile", str(self._certificates.server)]
            command += ["--ssl-keyfile", str(self._certificates.server_key)]
        if self._database is not None:
            command += ["--database", str(self._database)]
        self.superlink = self._start("superlink", command)
        self.superlink.wait_for(r"Uvicorn running")

    def restart_superlink(self) -> None:
        """Kill the SuperLink with its server apps, and start it anew."""
        assert self.superlink is not None
        self.superlink.kill()
        self.start_superlink()

    def add_node(self, config: Mapping[str, Value], wait: bool = True) -> int:
        """Start one more SuperNode, and return its place among them; with TLS its new key is registered first."""
        number = len(self.nodes)
        key = None if self._certificates is None else NodeKey.made(self.folder, f"node-{number}-key")
        if key is not None:
            self.flwr("supernode", "register", str(key.public), "local")
        self._configs.append(config)
        self._keys.append(key)
        self.nodes.append(self._started_node(number))
        if wait:
            self.wait_for_nodes()
        return number

    def kill_node(self, number: int) -> None:
        """Kill a SuperNode and what it runs."""
        self.nodes[number].kill()

    def stop_node(self, number: int) -> None:
        """Ask a SuperNode to end, as Ctrl-C does, upon which it tells the SuperLink; then kill what is left of it."""
        self.nodes[number].process.terminate()
        self.nodes[number].wait(COMMAND_SECONDS)
        self.nodes[number].kill()

    def restart_node(self, number: int) -> None:
        """Start a node that ended anew, with its configuration and its key.

        A SuperNode whose key belongs to a node that counts as online ends at once, and one that was killed counts so
        until its next heartbeats are missed, for a minute; so it is started again until it is admitted.
        """

        def admitted() -> bool | None:
            self.nodes[number] = self._started_node(number)
            return self.nodes[number].comes_to(NODE_ADMITTED) or None

        wait_until(admitted, REJOIN_SECONDS, lambda: f"node {number} was not admitted:\n{self.nodes[number].text()}")
        self.wait_for_nodes()

    def wait_for_nodes(self) -> None:
        """Wait until the SuperLink has admitted every node that runs."""
        for number, node in enumerate(self.nodes):
            if node.alive():
                self.node_ids[number] = int(node.wait_for(NODE_ADMITTED)[1])

    def start(self, app: Path, run_config: Mapping[str, Value] | None = None) -> StartedRun:
        """Start a run of an app's folder."""
        command = ["flwr", "run", str(app), "local", "--stream"]
        if run_config:
            command += ["--run-config", toml_values(run_config)]
        return StartedRun(self, self._start("run", command))

    def run(
        self, app: Path, run_config: Mapping[str, Value] | None = None, seconds: float = RUN_SECONDS
    ) -> FinishedRun:
        """Run an app to its end."""
        return self.start(app, run_config).wait(seconds)

    def kill_server_app(self) -> None:
        """Kill the process of the run's server app; the SuperLink goes on."""
        assert self.superlink is not None
        self.superlink.process_named("flwr-serverapp").kill()

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower's command line, which must succeed, and return what it printed."""
        command = self._start("flwr", ["flwr", *arguments])
        assert command.wait(COMMAND_SECONDS) == 0, command.text()
        return command.text()

    def _started_node(self, number: int) -> Started:
        command = ["flower-supernode", "--superlink", f"{LOOPBACK}:{self._port}", "--port", str(free_port())]
        command += ["--node-config", toml_values(self._configs[number])]
        key = self._keys[number]
        if self._certificates is None or key is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self._certificates.authority)]
            command += ["--auth-supernode-private-key", str(key.private)]
        return self._start(f"node-{number}", command, self._forked_clients)

    def _start(self, name: str, command: list[str], forked_clients: bool = False) -> Started:
        folder = self.folder / f"{len(self._started):03d}-{name}"
        folder.mkdir()
        if forked_clients:
            command = with_forked_clients(command, self._environment(), folder)
        started = Started(command, self._environment(), folder / f"{name}.log")
        self._started.append(started)
        return started

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "FLWR_HOME": str(self.folder),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_LOG_LEVEL": "INFO",  # which a command that ran in this process may have silenced
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]),
            "PYTHONUNBUFFERED": "1",
        }

    def _write_connection(self) -> None:
        secured = (
            "insecure = true" if self._certificates is None else f'root-certificates = "{self._certificates.authority}"'
        )
        lines = [
            "[superlink]",
            'default = "local"',
            "[superlink.local]",
            f'address = "{LOOPBACK}:{self._port}"',
            secured,
        ]
        (self.folder / "config.toml").write_text("\n".join(lines) + "\n")


def wait_until(look: Callable[[], Found | None], seconds: float, fault: Callable[[], str]) -> Found:
    """Return what is found as soon as it is; the test fails with the fault where it is not in time."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            pytest.fail(f"{fault()}\n(after {seconds:.0f} s)")
        time.sleep(LOOK_SECONDS)
    return found


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def program(process: psutil.Process) -> str:
    """Return the name of the script that a Python process runs; an empty name if it has ended."""
    with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
        return next((Path(part).name for part in process.cmdline()[1:2]), "")
    return ""


def toml_values(values: Mapping[str, Value]) -> str:
    """Return settings as Flower's command line takes them."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())


@pytest.fixture
def real_federation(tmp_path: Path) -> Iterator[Callable[..., RealFederation]]:
    """Start real federations, with the arguments of `RealFederation` but the folder; they end with the test."""
    with contextlib.ExitStack() as stack:

        def started(
            node_configs: Sequence[Mapping[str, Value]],
            tls: bool = False,
            keeps_state: bool = False,
            forked_clients: bool = False,
        ) -> RealFederation:
            folder = tmp_path / f"federation-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            return stack.enter_context(RealFederation(folder, node_configs, tls, keeps_state, forked_clients))

        yield started
