"""What an agent may name, and the server as a process with the SDK's own client before it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import anyio
import psutil
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.agents import allowed_config, folder_below
from fedscout.experiments.config import load_config
from fedscout.experiments.studies.workflow import run_detection, run_workflow
from tests.commands import REPOSITORY
from tests.experiments.cli.conftest import SMALL
from tests.kits.refusals import refused


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with links that lead elsewhere, and one to itself; no shell is asked, so `~` is a folder in it."""
    root = tmp_path / "root"
    (root / "~").mkdir(parents=True)
    (tmp_path / "clients.csv").touch()
    os.symlink(tmp_path, root / "out")
    os.symlink(tmp_path / "clients.csv", root / "mine.csv")
    os.symlink(root / "circle.csv", root / "circle.csv")
    return root


def test_settings_and_files_below_the_folder_are_read(root: Path) -> None:
    config = allowed_config(["federation.dataset=wine", "seed=3", "search.strategies=[krum, fedadam+fedprox]"], root)
    assert (config.federation.dataset, config.seed) == ("wine", 3)
    inside = ("hf:owner/name", "./clients.csv", str(root / "clients.csv"), "tables/../clients.csv", "~/clients.csv")
    for path in inside:
        assert allowed_config([f"federation.dataset={path}"], root).federation.dataset == path


ELSEWHERE = ("/etc/passwd", "../clients.csv", "tables/../../clients.csv", "out/clients.csv", "mine.csv", "circle.csv")
ADDRESSES = (
    *(("engine.address", "192.0.2.1:6379"), ("recommender.base_url", "http://192.0.2.1/v1")),
    ("federation.dataset", "https://192.0.2.1/clients.csv"),
)
REFUSED = [
    *(([f"{key}={path}"], key, path) for path in ELSEWHERE for key in ("federation.dataset", "federation.folder")),
    (["client_settings.kind=table", "client_settings.path=/etc/passwd"], "client_settings.path", "/etc/passwd"),
    (["search.warm_start=['hf:/../../runs']"], "search.warm_start", "hf:/../../runs"),  # no data set
    *(([f"{key}={address}"], key, address) for key, address in ADDRESSES),
    *(([words], "a setting", words) for words in ("--out=/tmp/x", "-c", "study.yaml", "", "=1", " seed=1", "SEED=1")),
]


@pytest.mark.parametrize(("settings", "key", "given"), REFUSED)
def test_files_and_servers_elsewhere_and_options_are_refused(
    root: Path, settings: Sequence[str], key: str, given: str
) -> None:
    with refused(ConfigurationError, key=key, given=repr(given)):
        allowed_config(settings, root)


@pytest.mark.parametrize(
    "settings",
    [
        ["strategy.kind=custom", "strategy.path=os:abort"],
        ["search.customs=[{kind: custom, path: 'own.module:Strategy'}]"],
        ["model.kind=own:Net"],
        ["federation.embedding=own:Net"],
    ],
)
def test_code_is_refused_unless_it_is_allowed(tmp_path: Path, settings: list[str]) -> None:
    with pytest.raises(ConfigurationError, match="--own-code"):
        allowed_config(settings, tmp_path)
    allowed_config(settings, tmp_path, own_code=True)


@pytest.mark.parametrize("name", ["", ".", "..", "../out", "/tmp/out", "a/../..", "--json", "a\0b", "a\nb"])
def test_folders_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with refused(ConfigurationError, key="a folder"):
        folder_below(tmp_path, name)
    assert folder_below(tmp_path, "runs/one") == tmp_path.resolve() / "runs" / "one"


# The server as a process, and the SDK's own client before it.


mcp = pytest.importorskip("mcp", reason="the extra mcp is not installed")

LONG = [*SMALL[:3], "training.num_rounds=1000000"]

Calls = Callable[..., Awaitable[Any]]


class RefusedError(AssertionError):
    """A tool that answers with an error."""


def with_server(root: Path, talk: Callable[[Calls], Awaitable[None]]) -> None:
    """Start `fedscout mcp` and talk to it; `call(tool, **arguments)` returns what a tool answers."""
    parameters = mcp.StdioServerParameters(
        command=sys.executable,
        args=["-m", "fedscout.experiments.cli.main", "mcp", "--root", str(root)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "src")},
        cwd=str(root),
    )

    async def session() -> None:
        with anyio.fail_after(120):
            async with mcp.Client(mcp.stdio_client(parameters)) as client:

                async def call(tool: str, **arguments: Any) -> Any:
                    answer = await client.call_tool(tool, arguments)
                    text = "".join(part.text for part in answer.content)
                    if answer.is_error:
                        raise RefusedError(text)
                    return json.loads(text)

                call.tools = (await client.list_tools()).tools  # type: ignore[attr-defined]
                await talk(call)

    anyio.run(session)


@pytest.mark.stress
def test_a_study_from_the_first_question_to_the_verdict(tmp_path: Path) -> None:
    """Every answer is that of the command, which is that of the function."""
    config = load_config(SMALL)
    expected = run_workflow(config, tmp_path / "expected").document
    report = run_detection(config)[1].model_dump(mode="json")
    seen: dict[str, Any] = {}

    async def talk(call: Calls) -> None:
        seen["tools"] = {tool.name: tool.description for tool in call.tools}  # type: ignore[attr-defined]
        assert "federation.num_clients" in await call("keys")
        seen["detect"] = (await call("detect", settings=[*SMALL]))["report"]
        seen["kinds"] = str(await call("strategies", settings=[*SMALL]))
        seen["recommend"] = await call("recommend", settings=[*SMALL])
        started = await call("start_study", settings=[*SMALL], folder="runs/one")
        assert started["state"] in ("running", "finished")
        while (state := await call("follow_study", folder="runs/one"))["state"] == "running":
            await anyio.sleep(0.2)
        seen["state"] = state
        seen["trials"] = (await call("read_trials", folder="runs/one"))["trials"]
        seen["result"] = await call("read_result", folder="runs/one")
        await call("start_study", settings=[*SMALL, "seed=9"], folder="runs/one")  # that of another study
        while (other := await call("follow_study", folder="runs/one"))["state"] == "running":
            await anyio.sleep(0.2)
        seen["other"] = other

    with_server(tmp_path, talk)
    assert (seen["other"]["state"], seen["other"]["exit_code"]) == ("failed", 2)
    assert {"detect", "start_study", "follow_study", "stop_study", "read_result"} <= seen["tools"].keys()
    assert all(seen["tools"].values())
    assert seen["recommend"]["strategy"]["kind"] in seen["kinds"]
    assert {**seen["detect"], "timings": 0} == {**report, "timings": 0}
    assert (seen["state"]["state"], seen["state"]["exit_code"]) == ("finished", 0)
    assert seen["state"]["num_trials"] == len(seen["trials"]) == 4 + 4
    assert seen["state"]["best_so_far"]["fitness"] == pytest.approx(expected["best"]["fitness"])
    for name in ("best", "confirmation", "baseline"):
        assert seen["result"][name] == json.loads(json.dumps(expected[name]))


@pytest.mark.slow
def test_mistakes_are_told_in_the_command_s_words(tmp_path: Path) -> None:
    async def talk(call: Calls) -> None:
        for given in ("federation.dataset=imagenet", "federation.dataset=/etc/passwd", "model.kind=os:abort", "--help"):
            with pytest.raises(RefusedError, match=given.rpartition("=")[2]) as raised:
                await call("detect", settings=[given])
            assert "Traceback" not in str(raised.value)
        with pytest.raises(RefusedError, match="nothing"):
            await call("read_result", folder="nothing")
        for tool, folder, name in (
            ("read_result", "../elsewhere", "elsewhere"),
            ("start_study", "../elsewhere", "elsewhere"),
            *((tool, "x" * 300, "too long") for tool in ("start_study", "follow_study", "stop_study")),
        ):
            with pytest.raises(RefusedError, match=name):
                await call(tool, folder=folder, **({"settings": [*SMALL]} if tool == "start_study" else {}))

    with_server(tmp_path, talk)


@pytest.mark.stress
def test_what_takes_longer_than_the_agent_wants_is_ended(tmp_path: Path) -> None:
    async def talk(call: Calls) -> None:
        for tool in ("describe", "detect", "recommend", "strategies"):
            with pytest.raises(RefusedError, match=rf"{tool} .*max_seconds=0\.1"):
                await call(tool, settings=[*SMALL], max_seconds=0.1)
        assert not [each for each in psutil.Process().children(recursive=True) if is_command(each)]
        with pytest.raises(RefusedError, match="max_seconds"):
            await call("detect", settings=[*SMALL], max_seconds=0)
        assert len((await call("describe", settings=[*SMALL], max_seconds=60))["clients"]) == 4

    with_server(tmp_path, talk)


def is_command(process: psutil.Process) -> bool:
    try:
        return "--end-with-input" in process.cmdline()
    except psutil.NoSuchProcess:
        return False


FOLDERS = ("one", "two")


def running(root: Path) -> list[psutil.Process]:
    marks = {str(root / name) for name in FOLDERS}
    return [each for each in psutil.process_iter(["cmdline"]) if marks & set(each.info["cmdline"] or ())]


def all_end(root: Path) -> bool:
    deadline = time.monotonic() + 30
    while running(root) and time.monotonic() < deadline:
        time.sleep(0.1)
    left = running(root)
    for process in left:
        process.kill()
    return not left


async def start_all(call: Calls, root: Path) -> None:
    """Start studies, and wait until each of them is at work."""
    for name in FOLDERS:
        assert (await call("start_study", settings=LONG, folder=name))["state"] == "running"
    while not all((root / name / "config.json").exists() for name in FOLDERS):
        await anyio.sleep(0.1)
    assert len(running(root)) == len(FOLDERS)  # not before: a process is a copy of the server's until it has begun


@pytest.mark.stress
def test_studies_are_stopped_and_end_with_the_server(tmp_path: Path) -> None:
    """The client waits two seconds for the server, and then ends it."""
    (tmp_path / "one.log").write_text("of another program")

    async def talk(call: Calls) -> None:
        await start_all(call, tmp_path)
        with pytest.raises(RefusedError, match="in one;"):
            await call("start_study", settings=LONG, folder="one")
        stopped = await call("stop_study", folder="one")
        assert stopped["state"] == "stopped"
        assert any("SIGTERM" in line for line in stopped["last_words"])
        assert (await call("start_study", settings=LONG, folder="one"))["state"] == "running"

    with_server(tmp_path, talk)
    assert all_end(tmp_path)
    assert (tmp_path / "one.log").read_text() == "of another program"


@pytest.mark.stress
def test_studies_end_with_a_server_that_is_killed(tmp_path: Path) -> None:
    async def talk(call: Calls) -> None:
        await start_all(call, tmp_path)
        (server,) = (each for each in psutil.Process().children() if "mcp" in each.cmdline())
        server.kill()

    with_server(tmp_path, talk)
    assert all_end(tmp_path)


# `fedscout mcp` whose pipes are closed ends in one line.


COMMAND = f"exec {sys.executable} -m fedscout.experiments.cli.main mcp"
HELLO = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}},
}


@pytest.mark.slow
@pytest.mark.parametrize("closed", ["<&-", ">&- </dev/null"])
def test_a_pipe_that_was_never_open(tmp_path: Path, closed: str) -> None:
    command = ["sh", "-c", f"{COMMAND} {closed}"]
    done = subprocess.run(command, cwd=tmp_path, stderr=subprocess.PIPE, timeout=60, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


@pytest.mark.slow
def test_a_pipe_whose_reader_is_gone(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    server = subprocess.Popen(
        ["sh", "-c", COMMAND], cwd=tmp_path, stdin=subprocess.PIPE, stdout=writer, stderr=subprocess.PIPE
    )
    os.close(writer)
    os.close(reader)
    _, err = server.communicate(json.dumps(HELLO).encode() + b"\n", timeout=60)
    assert (server.returncode, len(err.splitlines())) == (1, 1)
