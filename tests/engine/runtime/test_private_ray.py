"""A Ray that is started here listens on loopback alone and answers to its own token only; strangers really try."""

from __future__ import annotations

import ipaddress
import os
import sys
from pathlib import Path

import grpc
import psutil
import pytest

from fedscout.engine.runtime.ray import MODE, TOKEN, own_token
from tests.commands import ran

pytestmark = [pytest.mark.ray, pytest.mark.timeout(240)]

METHODS = (
    "ray.rpc.InternalKVGcsService/InternalKVPut",
    "ray.rpc.InternalKVGcsService/InternalKVGet",
    "ray.rpc.JobInfoGcsService/AddJob",
    "ray.rpc.NodeManagerService/RequestWorkerLease",
    "ray.rpc.ObjectManagerService/Push",
    "ray.rpc.CoreWorkerService/PushTask",
)
"""Of the gcs server, the raylet, its object manager, and each worker and driver: they write, or run code."""


def listening() -> dict[tuple[str, int], str]:
    """Return where this process and those that it has started accept connections, and which process it is."""
    own = psutil.Process()
    return {where: name for process in (own, *own.children(recursive=True)) for where, name in places_of(process)}


def places_of(process: psutil.Process) -> list[tuple[tuple[str, int], str]]:
    """Return where a process accepts connections, and its name; one that has ended meanwhile listens to nothing."""
    try:
        name = process.name()
        connections = process.net_connections("inet")
    except psutil.NoSuchProcess:
        return []
    return [((each.laddr.ip, each.laddr.port), name) for each in connections if each.status == psutil.CONN_LISTEN]


def is_loopback(address: str) -> bool:
    ip = ipaddress.ip_address(address)
    return (getattr(ip, "ipv4_mapped", None) or ip).is_loopback


def answers(port: int, token: str | None = None) -> dict[str, grpc.StatusCode]:
    """Call each method with an empty request; return what each answers."""
    metadata = () if token is None else (("authorization", f"Bearer {token}"),)
    found = {}
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        for method in METHODS:
            try:
                channel.unary_unary(f"/{method}")(b"", timeout=5, metadata=metadata)
                found[method] = grpc.StatusCode.OK
            except grpc.RpcError as error:
                found[method] = error.code()
    return found


def token_of_ray() -> str:
    """Return what its processes know, as their own user may."""
    (raylet,) = [child for child in psutil.Process().children() if is_raylet(child)]
    return raylet.environ()[TOKEN]


def is_raylet(process: psutil.Process) -> bool:
    """Return whether a process is one; what has ended meanwhile is nothing."""
    try:
        return process.name() == "raylet"
    except psutil.NoSuchProcess:
        return False


@pytest.fixture(scope="module")
def ports(ray_session: None) -> dict[int, str]:
    """What listens once a worker has worked."""
    import ray

    ray.get(ray.remote(num_cpus=0.1)(lambda: None).remote())
    return {port: name for (_, port), name in listening().items()}


@pytest.mark.slow
@pytest.mark.usefixtures("ports")
def test_no_process_listens_to_other_machines() -> None:
    found = listening()
    assert {"gcs_server", "raylet"} <= set(found.values())
    assert [where for where in found if not is_loopback(where[0])] == []


def test_strangers_are_refused_by_every_service(ports: dict[int, str]) -> None:
    for token in (None, "0" * 64):
        refused = set()
        for port, name in ports.items():
            told = answers(port, token)
            assert grpc.StatusCode.OK not in told.values(), (name, told)
            refused |= {method for method, code in told.items() if code == grpc.StatusCode.UNAUTHENTICATED}
        assert refused == set(METHODS)


def test_with_the_token_the_store_answers(ports: dict[int, str]) -> None:
    (port,) = [port for port, name in ports.items() if name == "gcs_server"]
    assert answers(port, token_of_ray())["ray.rpc.InternalKVGcsService/InternalKVPut"] == grpc.StatusCode.OK


@pytest.mark.usefixtures("ports")
def test_the_token_stands_on_no_command_line_and_not_in_this_process(tmp_path: Path) -> None:
    assert MODE not in os.environ
    assert TOKEN not in os.environ
    token = token_of_ray()
    assert len(token) == 64
    for process in psutil.process_iter(["cmdline"]):  # passes over what ends meanwhile
        assert token not in " ".join(process.info["cmdline"] or [])


def test_a_mode_of_the_user_s_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODE, "disabled")
    monkeypatch.delenv(TOKEN, raising=False)
    with own_token():
        assert os.environ[MODE] == "disabled"
        assert TOKEN not in os.environ


TWO_STARTS = """
import json, os
from fedscout.engine.config import EngineConfig
from fedscout.engine.runtime.ray import prepare_environment, ray_runtime

prepare_environment(verbose=False)
import psutil
from ray._raylet import AuthenticationMode, get_authentication_mode
from tests.engine.runtime.test_private_ray import answers, is_loopback, listening, token_of_ray

os.environ["RAY_AUTH_TOKEN"] = "that of a cluster"
tokens = []
for _ in range(2):
    with ray_runtime(EngineConfig()) as ray:
        work = ray.remote(num_cpus=0.1)(lambda: os.environ["RAY_AUTH_TOKEN"])
        tokens.append(token_of_ray())
        assert set(ray.get([work.remote() for _ in range(4)])) == {tokens[-1]}
        while not {"ray::DashboardAgent", "ray::RuntimeEnvAgent"} <= set(listening().values()):
            pass
        assert all(is_loopback(ip) for ip, _ in listening()), listening()
        (gcs,) = [port for (_, port), name in listening().items() if name == "gcs_server"]
        assert answers(gcs)["ray.rpc.InternalKVGcsService/InternalKVPut"].name == "UNAUTHENTICATED"
    assert os.environ["RAY_AUTH_TOKEN"] == "that of a cluster"
    assert "RAY_AUTH_MODE" not in os.environ
    assert get_authentication_mode() == AuthenticationMode.DISABLED
assert len({*tokens, os.environ["RAY_AUTH_TOKEN"]}) == 3
"""


@pytest.mark.stress
def test_each_start_of_the_program_s_has_a_token_of_its_own_and_leaves_none() -> None:
    done = ran(sys.executable, "-c", TWO_STARTS, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
