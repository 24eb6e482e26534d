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
            with contextlib.suppress(psutil.NoSuchProcess):
                return next((one for one in self._processes.alive() if name in " ".join(one.cmdline()[:2])), None)

        return wait_until(found, START_SECONDS, lambda: f"{self.log.name} started no {name}:\n{self.text()}")

    def kill(self) -> None:
        """End it and all that it has started at once, as a power cut does."""
        self._processes.kill()


class RealFederation:
    """A SuperLink and SuperNodes on free ports of the loopback, whose clients are forks (`forked_clientapp`).

    The SuperLink has a certificate and admits only nodes whose keys it was told.

    Args:
        folder: For what Flower writes; each process works in one of its own below it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._nodes: list[Started] = []
        self._certificate = server_certificate(folder)
        self._port = free_port()
        self._started: list[Started] = []

    def begin(self, node_configs: Sequence[Mapping[str, Value]]) -> None:
        """Start the SuperLink, and a SuperNode for each configuration."""
        command = ["flower-superlink", "--disable-runtime-dependency-installation", "--port", str(self._port)]
        command += ["--ssl-ca-certfile", str(self._certificate), "--ssl-certfile", str(self._certificate)]
        command += ["--ssl-keyfile", str(self._certificate.with_suffix(".key")), "--enable-supernode-auth"]
        (self.folder / "config.toml").write_text(
            f'[superlink]\ndefault = "local"\n[superlink.local]\naddress = "{LOOPBACK}:{self._port}"\n'
            f'root-certificates = "{self._certificate}"\n'
        )
        self._superlink = self._start("superlink", command)
        self._superlink.wait_for(r"Uvicorn running")
        for config in node_configs:
            self.add_node(config)

    def end(self) -> None:
        """Kill whatever was started here."""
        for started in reversed(self._started):
            started.kill()

    def add_node(self, config: Mapping[str, Value]) -> None:
        """Register the key of one more SuperNode, start it and wait until it is admitted."""
        number = len(self._nodes)
        command = ["flower-supernode", "--superlink", f"{LOOPBACK}:{self._port}", "--port", str(free_port())]
        key = str(self.folder / f"node-{number}-key")  # of a curve and in the form that Flower asks for
        subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", key], check=True)
        self.flwr("supernode", "register", f"{key}.pub", "local")
        command += ["--node-config", toml_values(config), "--root-certificates", str(self._certificate)]
        command += ["--auth-supernode-private-key", key]
        self._nodes.append(self._start(f"node-{number}", command, forked_clients=True))
        self._nodes[number].wait_for(r"SuperNode ID: \d+")

    def kill_node(self, number: int) -> None:
        """Kill a SuperNode and what it runs."""
        self._nodes[number].kill()

    def start(self, app: Path, run_config: Mapping[str, Value]) -> Started:
        """Start a run of an app's folder; return the command that prints what its server app prints."""
        command = ["flwr", "run", str(app), "local", "--stream", "--run-config", toml_values(run_config)]
        return self._start("run", command)

    def end_of(self, run: Started) -> str:
        """Wait until a run has ended, and return how: `finished:completed`, `finished:failed` or `finished:stopped`."""
        run_id = run.wait_for(r"started run (\d+)")[1]
        run.wait(RUN_SECONDS)
        listed = self.flwr("list", "--run-id", run_id, "--format", "json")
        (found,) = json.loads(listed[listed.index("{") :])["runs"]
        return str(found["status"])

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


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def toml_values(values: Mapping[str, Value]) -> str:
    """Return settings as Flower's command line takes them."""
    return " ".join(f"{name}={json.dumps(value)}" for name, value in values.items())


@pytest.fixture
def real_federation(tmp_path: Path) -> Iterator[Callable[..., RealFederation]]:
    """Start real federations of nodes with these configurations; they end with the test."""
    with contextlib.ExitStack() as stack:

        def started(node_configs: Sequence[Mapping[str, Value]]) -> RealFederation:
            folder = tmp_path / f"federation-{len(list(tmp_path.iterdir()))}"
            folder.mkdir()
            federation = RealFederation(folder)
            stack.callback(federation.end)
            federation.begin(node_configs)
            return federation

        yield started
