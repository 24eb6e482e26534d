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

from tests.commands import REPOSITORY, environment_without
from tests.experiments.deployment.forked_clientapp import with_forked_clients
from tests.marked_processes import MarkedProcesses

LOOPBACK = "127.0.0.1"
START_SECONDS = 90.0
"""Processes that import Flower take some two seconds to start, and many times that on a busy machine."""

RUN_SECONDS = 240.0
COMMAND_SECONDS = 60.0
LOOK_SECONDS = 0.1
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

        def found() -> re.Match[str] | None:
            ended = self.process.poll() is not None
            match = re.search(pattern, self.text())
            if match is None and ended:
                pytest.fail(f"{self.log.name} ended before it wrote {pattern!r}:\n{self.text()}")
            return match

        return wait_until(found, seconds, lambda: f"{self.log.name} did not write {pattern!r}:\n{self.text()}")

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
    """A SuperLink and SuperNodes on free ports of the loopback, whose clients are forks (`forked_clientapp`).

    Args:
        folder: For what Flower writes; each process works in one of its own below it.
        tls: Whether the SuperLink has a certificate and admits only nodes whose keys it was told.
    """

    def __init__(self, folder: Path, tls: bool = False) -> None:
        self.folder = folder
        self._nodes: list[Started] = []
        self._certificate = server_certificate(folder) if tls else None
        self._port = free_port()
        self._started: list[Started] = []

    def begin(self, node_configs: Sequence[Mapping[str, Value]]) -> None:
        """Start the SuperLink, and a SuperNode for each configuration."""
        command = ["flower-superlink", "--disable-runtime-dependency-installation", "--port", str(self._port)]
        if self._certificate is None:
            secured, options = "insecure = true", ["--insecure"]
        else:
            secured = f'root-certificates = "{self._certificate}"'
            options = ["--ssl-ca-certfile", str(self._certificate), "--enable-supernode-auth"]
            options += ["--ssl-certfile", str(self._certificate)]
            options += ["--ssl-keyfile", str(self._certificate.with_suffix(".key"))]
        (self.folder / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "{LOOPBACK}:{self._port}"\n{secured}\n'
        )
        self._superlink = self._start("superlink", [*command, *options])
        self._superlink.wait_for(r"Uvicorn running")
        for config in node_configs:
            self.add_node(config)

    def end(self) -> None:
        """Kill whatever was started here."""
        for started in reversed(self._started):
            started.kill()

    def add_node(self, config: Mapping[str, Value]) -> None:
        """Start one more SuperNode and wait until it is admitted; with TLS its new key is registered first."""
        number = len(self._nodes)
        command = ["flower-supernode", "--superlink", f"{LOOPBACK}:{self._port}", "--port", str(free_port())]
        command += ["--node-config", toml_values(config)]
        if self._certificate is None:
            command += ["--insecure"]
        else:
            key = node_key(self.folder / f"node-{number}-key")
            self.flwr("supernode", "register", f"{key}.pub", "local")
            command += ["--root-certificates", str(self._certificate)]
            command += ["--auth-supernode-private-key", str(key)]
        self._nodes.append(self._start(f"node-{number}", command, forked_clients=True))
        self._nodes[number].wait_for(r"SuperNode ID: \d+")

    def kill_node(self, number: int) -> None:
        """Kill a SuperNode and what it runs."""
        self._nodes[number].kill()

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
        self._superlink.process_named("flwr-serverapp").kill()

    def flwr(self, *arguments: str) -> str:
        """Run a command of Flower's command line, which must succeed, and return what it printed."""
        command = self._start("flwr", ["flwr", *arguments])
        assert command.wait(COMMAND_SECONDS) == 0, command.text()
        return command.text()

    def _start(self, name: str, command: list[str], forked_clients: bool = False) -> Started:
        folder = self.folder / f"{len(self._started):03d}-{name}"
        folder.mkdir()
        if forked_clients:
            command = with_forked_clients(command, self._environment(), folder)
        started = Started(command, self._environment(), folder / f"{name}.log")
        self._started.append(started)
        return started

    def _environment(self) -> dict[str, str]:
        return flower_environment() | {"FLWR_HOME": str(self.folder), "PYTHONUNBUFFERED": "1"}


def flower_environment() -> dict[str, str]:
    """Return that of a process that asks nothing of the network, without the home of Flower's files."""
    return environment_without("FLWR_HOME", "RAY_ADDRESS") | {
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_LOG_LEVEL": "INFO",  # which a command that ran in this process may have silenced
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY)]),
    }


def wait_until(look: Callable[[], Found | None], seconds: float, fault: Callable[[], str]) -> Found:
    """Return what is found as soon as it is; the test fails with the fault where it is not in time."""
    deadline = time.monotonic() + seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            pytest.fail(f"{fault()}\n(after {seconds:.0f} s)")
        time.sleep(LOOK_SECONDS)
    return found


def server_certificate(folder: Path) -> Path:
    """Write a certificate of the loopback alone, which signs itself and holds for a day, and its key beside it."""
    path = folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:secp384r1", "-nodes"]
    command += ["-days", "1", "-subj", "/CN=localhost", "-addext", f"subjectAltName=DNS:localhost,IP:{LOOPBACK}"]
    command += ["-keyout", str(path.with_suffix(".key")), "-out", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


def node_key(path: Path) -> Path:
    """Write a SuperNode's new key pair, of a curve and in the form that Flower asks for: `path` and `path.pub`."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(path)], check=True)
    return path


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
    """Start real federations of nodes with these configurations; they end with the test."""
    with contextlib.ExitStack() as stack:

        def started(node_configs: Sequence[Mapping[str, Value]], tls: bool = False) -> RealFederation:
            folder = tmp_path / f"federation-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            federation = RealFederation(folder, tls)
            stack.callback(federation.end)
            federation.begin(node_configs)
            return federation

        yield started
