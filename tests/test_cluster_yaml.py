"""`cluster.yaml` is a file that Ray accepts, and the commands it issues bring up the cluster it describes."""

from __future__ import annotations

import contextlib
import copy
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
START_SECONDS = 60
STOP_SECONDS = 30
LOOPBACK = "127.0.0.1"

Config = dict[str, Any]


def load() -> Config:
    return yaml.safe_load((REPOSITORY / "cluster.yaml").read_text())


def prepared(config: Config) -> Config:
    """Fill in Ray's defaults and validate, in the order in which `ray up` does both."""
    from ray.autoscaler._private.util import prepare_config, validate_config

    filled = prepare_config(copy.deepcopy(config))
    validate_config(filled)
    return filled


def start_command(config: Config, kind: str) -> str:
    (command,) = [command for command in config[f"{kind}_start_ray_commands"] if "ray start" in command]
    return command


def test_ray_validates_the_file() -> None:
    config = prepared(load())

    assert config["cluster_name"] == "fedscout"
    assert "constraints.txt" in " ".join(config["head_setup_commands"])
    assert config["head_setup_commands"] == config["worker_setup_commands"]


@pytest.mark.parametrize("num_nodes", [1, 2, 20, 100])
def test_ray_validates_one_to_a_hundred_nodes_and_keeps_them_all(num_nodes: int) -> None:
    config = load()
    config["provider"]["worker_ips"] = [f"192.0.2.{100 + node}" for node in range(num_nodes - 1)]
    config["max_workers"] = num_nodes - 1

    (node_type,) = prepared(config)["available_node_types"].values()

    assert node_type["min_workers"] == node_type["max_workers"] == num_nodes - 1


def test_the_cloud_example_in_the_comments_validates() -> None:
    lines = (REPOSITORY / "cluster.yaml").read_text().splitlines()
    example = "\n".join(
        line.removeprefix("#   ") for line in lines if re.match(r"#   (provider|head_node|avail|  )", line)
    )
    config = {**load(), **yaml.safe_load(example.partition("provider:")[1] + example.partition("provider:")[2])}
    config["max_workers"] = 99

    filled = prepared(config)

    assert filled["provider"]["type"] == "aws"
    assert filled["available_node_types"]["worker"]["max_workers"] == 99


def test_a_broken_file_is_refused() -> None:
    import jsonschema

    with pytest.raises(jsonschema.ValidationError, match="head_start_ray_command'"):
        prepared({**load(), "head_start_ray_command": ["ray start"]})


def test_the_dashboard_listens_on_loopback_only() -> None:
    config = prepared(load())

    assert re.findall(r"--dashboard-host[= ](\S+)", start_command(config, "head")) == [LOOPBACK]
    assert "--dashboard-host" not in start_command(config, "worker")


@pytest.mark.parametrize("kind", ["head", "worker"])
def test_a_node_starts_where_the_packages_are_demands_the_token_and_reports_nothing(kind: str) -> None:
    command = start_command(prepared(load()), kind)

    assert command.startswith("cd ~/fedscout && ")
    assert "RAY_AUTH_MODE=token" in command
    assert "RAY_USAGE_STATS_ENABLED=0" in command
    assert "--object-store-memory=" in command


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])


def on_this_machine(command: str, ports: dict[str, int], worker_ports: tuple[int, int]) -> str:
    """Replace the ports of one node's command, as two nodes share this machine, and keep its traffic on loopback.

    Args:
        command: The command of cluster.yaml.
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
    return f"{command} --node-ip-address={LOOPBACK} --block"


def processes_with(marker: str) -> list[psutil.Process]:
    """Return every process whose environment holds the marker: those that this test started, however deep."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            if process.environ().get("FEDSCOUT_TEST_CLUSTER") == marker:
                found.append(process)
    return found


def stop(starters: list[subprocess.Popen[bytes]], marker: str) -> list[str]:
    """End the given commands and what they started; return the names of those that had to be killed."""
    for starter in reversed(starters):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(starter.pid, signal.SIGTERM)  # the session that the command was started in
    for starter in starters:
        with contextlib.suppress(subprocess.TimeoutExpired):
            starter.wait(STOP_SECONDS)
    _, alive = psutil.wait_procs(processes_with(marker), timeout=STOP_SECONDS)
    stubborn = []
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            stubborn.append(process.name())
            process.kill()
    psutil.wait_procs(alive, timeout=STOP_SECONDS)
    for starter in starters:
        starter.wait(STOP_SECONDS)
    return stubborn


@pytest.fixture
def home() -> Iterator[Path]:
    """A home directory as the setup commands leave it: the checkout, its environment and the token."""
    folder = Path(tempfile.mkdtemp(prefix="fs-", dir="/tmp"))  # short: sockets lie below it, 107 bytes at most
    try:
        (folder / "fedscout").mkdir()
        for entry in REPOSITORY.iterdir():
            if entry.name != ".venv":
                (folder / "fedscout" / entry.name).symlink_to(entry)
        (folder / "fedscout" / ".venv").symlink_to(sys.prefix)
        (folder / ".ray").mkdir()
        (folder / ".ray" / "auth_token").write_text(uuid.uuid4().hex)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
    import engine
    return ray.get_runtime_context().get_node_id(), engine.__file__

node, file = ray.get(where.remote())
heads = [n for n in alive if "node:__internal_head__" in n["Resources"]]
print("ALIVE", len(alive), "HEADS", len(heads), "ON_HEAD", node == heads[0]["NodeID"], "ENGINE", file)
"""


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(240)
def test_the_start_commands_bring_up_a_cluster(home: Path) -> None:
    config = load()
    config["provider"].update(head_ip=LOOPBACK, worker_ips=[])  # the head's autoscaler has nobody to call by ssh
    config["max_workers"] = 0
    config["file_mounts"] = {}
    filled = prepared(config)
    (home / "ray_bootstrap_config.yaml").write_text(yaml.safe_dump(filled))

    marker = uuid.uuid4().hex
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "PYTHONPATH"))}
    environment |= {"HOME": str(home), "RAY_HEAD_IP": LOOPBACK, "FEDSCOUT_TEST_CLUSTER": marker}
    ports: dict[str, int] = {}
    starters: list[subprocess.Popen[bytes]] = []
    try:
        for number, kind in enumerate(["head", "worker"]):
            if kind == "worker":
                ports = {"6379": ports["6379"]}
            first = 20002 + 400 * number
            command = on_this_machine(start_command(filled, kind), ports, (first, first + 300))
            with (home / f"{kind}.log").open("wb") as log:
                starters.append(
                    subprocess.Popen(
                        ["bash", "-c", f"exec 0</dev/null; {command}"],
                        env=environment | {"RAY_TMPDIR": str(home / kind)},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
            wait_for_text(home / f"{kind}.log", "Ray runtime started.", starters[-1])

        driver = [sys.executable, "-c", COUNT_NODES, f"{LOOPBACK}:{ports['6379']}", str(START_SECONDS)]
        options: dict[str, Any] = {
            "cwd": REPOSITORY,
            "capture_output": True,
            "text": True,
            "timeout": 2 * START_SECONDS,
        }
        admitted = subprocess.run(
            driver,
            env=environment | {"RAY_AUTH_MODE": "token", "RAY_TMPDIR": str(home / "head")},
            check=False,
            **options,
        )
        refused = subprocess.run(driver, env=environment | {"RAY_TMPDIR": str(home / "head")}, check=False, **options)
    finally:
        stubborn = stop(starters, marker)

    engine = REPOSITORY / "engine" / "__init__.py"
    assert admitted.returncode == 0, admitted.stderr
    assert admitted.stdout.strip() == f"ALIVE 2 HEADS 1 ON_HEAD False ENGINE {engine}"
    assert refused.returncode != 0
    assert "ALIVE" not in refused.stdout
    assert stubborn == []
    assert processes_with(marker) == []


def wait_for_text(file: Path, text: str, starter: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while text not in file.read_text(errors="replace"):
        ended = starter.poll() is not None
        if ended or time.monotonic() > deadline:
            pytest.fail(f"ray start {'ended early' if ended else 'took too long'}:\n{file.read_text(errors='replace')}")
        time.sleep(0.2)
