"""The commands of `cluster.yaml` bring up a cluster that demands its token; a submitted job gives a laptop's result."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from tests.code_size import PACKAGES, REPOSITORY
from tests.commands import environment_without, ran
from tests.experiments.cli.conftest import SMALL, without_progress
from tests.experiments.cli.processes import Command, lasting_result
from tests.experiments.deployment.superlink import free_port
from tests.marked_processes import MarkedProcesses, short_folder
from tests.test_cluster_yaml import LOOPBACK, load, prepared, start_command

START_SECONDS = 90
RAY = str(Path(sys.executable).with_name("ray"))
"""That of this environment, which need not be active."""

DRIVER_SECONDS = 150
NOT_INHERITED = ("RAY_", "PYTHONPATH")

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(300)]


def on_this_machine(command: str, folder: Path, ports: dict[str, int], worker_ports: tuple[int, int]) -> str:
    """Replace what two nodes on this machine can't share, the ports of a node's command and the folder of its files.

    Its traffic is kept on loopback.

    Args:
        command: The command of cluster.yaml.
        folder: Where this node keeps sockets, logs and what jobs bring along.
        ports: The port to use in place of each one in the command; ports met for the first time are added.
        worker_ports: The first and last port of this node's workers.
    """

    def replace(match: re.Match[str]) -> str:
        option, port = match.groups()
        if option.endswith("-worker-port"):
            return f"--{option}={worker_ports[option.startswith('max')]}"
        return f"--{option}={ports.setdefault(port, free_port())}"

    command = re.sub(r"--([a-z-]*port)=(\d+)", replace, command)
    command = re.sub(r'"\$RAY_HEAD_IP:(\d+)"', lambda match: f'"$RAY_HEAD_IP:{ports[match[1]]}"', command)
    return f"{command} --node-ip-address={LOOPBACK} --temp-dir={folder} --block"


@dataclass(frozen=True)
class RunningCluster:
    """A head and a worker of `cluster.yaml` on this machine.

    Attributes:
        home: The home directory that both share: the checkout, its environment and the token.
        address: Of the head.
        dashboard: Its URL.
        token: What the nodes demand.
    """

    home: Path
    address: str
    dashboard: str
    token: str

    def environment(self, **settings: str) -> dict[str, str]:
        """Return that of a process on the head; without settings it is one that knows nothing of tokens."""
        own = {"HOME": str(self.home), "RAY_TMPDIR": str(self.home / "head"), "RAY_USAGE_STATS_ENABLED": "0"}
        # The number of attempts to connect, one a second; the last one says no as the first one does.
        return {**environment_without(*NOT_INHERITED), **own, "RAY_NUM_REDIS_GET_RETRIES": "2", **settings}

    def run(self, *command: str, cwd: Path = REPOSITORY, **settings: str) -> subprocess.CompletedProcess[str]:
        """Run a command on the head to its end."""
        own = self.environment(**settings)
        return ran(*command, cwd=cwd, timeout=DRIVER_SECONDS, without=NOT_INHERITED, **own)


def wait_for_text(file: Path, text: str, starter: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while text not in file.read_text(errors="replace"):
        assert starter.poll() is None and time.monotonic() < deadline, file.read_text(errors="replace")  # noqa: PT018
        time.sleep(0.2)


def prepared_home(folder: Path, token: str) -> None:
    """Make a home directory as the setup commands and the file mounts leave it."""
    (folder / "fedscout").mkdir()
    for entry in REPOSITORY.iterdir():
        if entry.name != ".venv":
            (folder / "fedscout" / entry.name).symlink_to(entry)
    (folder / "fedscout" / ".venv").symlink_to(sys.prefix)
    (folder / ".ray").mkdir()
    (folder / ".ray" / "auth_token").write_text(token)


@pytest.fixture(scope="module")
def processes() -> Iterator[MarkedProcesses]:
    with MarkedProcesses() as started:
        yield started


@pytest.fixture(scope="module")
def cluster(processes: MarkedProcesses) -> Iterator[RunningCluster]:
    nobody = {"type": "local", "head_ip": LOOPBACK, "worker_ips": []}  # whom the head's autoscaler would call by ssh
    filled = prepared({**load(), "provider": nobody, "max_workers": 0, "file_mounts": {}})
    token, ports = uuid.uuid4().hex, {"6379": free_port(), "8265": free_port()}
    with short_folder() as home:
        prepared_home(home, token)
        (home / "ray_bootstrap_config.yaml").write_text(yaml.safe_dump(filled))
        running = RunningCluster(home, f"{LOOPBACK}:{ports['6379']}", f"http://{LOOPBACK}:{ports['8265']}", token)
        for first, kind in ((20002, "head"), (20402, "worker")):
            node = start_command(filled, kind)
            command = on_this_machine(node, home / kind / "ray", dict(ports), (first, first + 300))
            environment = running.environment(RAY_HEAD_IP=LOOPBACK)
            del environment["RAY_NUM_REDIS_GET_RETRIES"], environment["RAY_TMPDIR"]
            log = home / f"{kind}.log"
            starter = processes.start(["bash", "-c", command], environment, log, cwd=home)
            wait_for_text(log, "Ray runtime started.", starter)
        yield running
        processes.end()


COUNT_NODES = """
import sys, time, ray
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
deadline = time.monotonic() + float(sys.argv[2])
while True:
    alive = [node for node in ray.nodes() if node["Alive"]]
    if len(alive) == 2 or time.monotonic() > deadline:
        break
    time.sleep(0.5)

@ray.remote(num_cpus=1)
def where():
    from fedscout import engine
    return ray.get_runtime_context().get_node_id(), engine.__file__

node, file = ray.get(where.remote())
heads = [n for n in alive if "node:__internal_head__" in n["Resources"]]
print("ALIVE", len(alive), "HEADS", len(heads), "ON_HEAD", node == heads[0]["NodeID"], "ENGINE", file)
"""


def test_the_start_commands_bring_up_a_head_without_work_and_a_worker(cluster: RunningCluster) -> None:
    command = (sys.executable, "-c", COUNT_NODES, cluster.address, str(START_SECONDS))

    done = cluster.run(*command, RAY_AUTH_MODE="token")

    engine = REPOSITORY / "src" / "fedscout" / "engine" / "__init__.py"
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == f"ALIVE 2 HEADS 1 ON_HEAD False ENGINE {engine}"


def test_a_study_without_the_token_is_refused(cluster: RunningCluster) -> None:
    study = ("train", "federation.dataset=wine", f"engine.address={cluster.address}", "--out", str(cluster.home / "no"))

    done = cluster.run(sys.executable, "-m", "fedscout.experiments.cli.main", *study)

    assert (done.returncode, done.stdout) == (2, "")
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("fedscout: engine.address ")
    assert f"got '{LOOPBACK}" in line
    assert "RAY_AUTH_MODE=token" in line


def test_a_node_without_the_token_is_refused(cluster: RunningCluster) -> None:
    folder = str(cluster.home / "stranger")

    done = cluster.run(RAY, "start", f"--address={cluster.address}", f"--temp-dir={folder}")

    assert done.returncode != 0
    assert "Ray runtime started." not in done.stdout + done.stderr


def test_the_dashboard_answers_to_the_token_only(cluster: RunningCluster) -> None:
    for token, status in (None, 401), ("0" * 32, 403), (cluster.token, 200):
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        assert requests.get(f"{cluster.dashboard}/api/version", headers=headers, timeout=30).status_code == status


STUDY = (*SMALL[1:], "training.num_rounds=3", "search.budget=2", "search.confirmation_seeds=0")

PROBE = """
import json, os, sys, ray
from pathlib import Path

from fedscout import engine
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")

@ray.remote(num_cpus=1)
def worker_file():
    from fedscout import engine
    return engine.__file__

def beside(file):
    return Path(file).is_relative_to(Path.cwd())

files = sorted(str(file.relative_to(".")) for file in Path().rglob("*") if file.is_file())
seen = {"files": files, "driver": beside(engine.__file__), "worker": beside(ray.get(worker_file.remote()))}
Path(sys.argv[1]).write_text(json.dumps(seen))
"""

LEFT_OUT = [
    ".git/HEAD",
    ".venv/lib/module.py",
    "runs/old/trials/0.parquet",
    "engine/__pycache__/trial.pyc",
    "src/fedscout/engine/__pycache__/trial.pyc",
    "tests/test_layers.py",
]


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with all that one collects, and a probe."""
    folder, ignored = tmp_path / "checkout", shutil.ignore_patterns("__pycache__")
    for part in ("src", *PACKAGES):
        shutil.copytree(REPOSITORY / part, folder / part, symlinks=True, ignore=ignored)
    for file in ("pyproject.toml", ".gitignore"):
        shutil.copy(REPOSITORY / file, folder / file)
    for name in LEFT_OUT:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("not for the cluster")
    (folder / "src" / "probe.py").write_text(PROBE)
    return folder


def submit(cluster: RunningCluster, checkout: Path, *command: str, **settings: str) -> subprocess.CompletedProcess[str]:
    job = (RAY, "job", "submit", "--address", cluster.dashboard, "--working-dir", "src", "--", *command)
    return cluster.run(*job, cwd=checkout, **settings)


def test_a_job_ends_with_a_laptop_s_result(cluster: RunningCluster, checkout: Path, tmp_path: Path) -> None:
    """Without the token it is refused."""
    refused = submit(cluster, checkout, "touch", f"{tmp_path}/ran")
    assert refused.returncode != 0
    assert "authentication token" in refused.stderr
    assert not (tmp_path / "ran").exists()
    study = ("fedscout", "run", *STUDY, "engine.address=auto", "--out", "~/job")  # of the head's shell

    done = submit(cluster, checkout, "python", "probe.py", "~/seen", "&&", *study, RAY_AUTH_MODE="token")
    assert done.returncode == 0, done.stdout + done.stderr

    seen: dict[str, Any] = json.loads((cluster.home / "seen").read_text())
    assert (seen["driver"], seen["worker"]) == (True, True)
    assert "fedscout/engine/trials/trial.py" in seen["files"]
    assert not {file.removeprefix("src/") for file in LEFT_OUT} & set(seen["files"])
    with Command(tmp_path, "run", *STUDY, "engine.grid=local", "--out", "local") as local:
        code, _, err = local.end()
    assert (code, without_progress(err)) == (0, "")
    assert lasting_result(cluster.home / "job") == lasting_result(tmp_path / "local")


def test_the_cluster_ends_as_it_is_asked_to(cluster: RunningCluster, processes: MarkedProcesses) -> None:
    """The last test of these nodes."""
    assert len(processes.alive()) > 4
    processes.end()
    assert processes.stubborn == []
    assert processes.alive() == []
