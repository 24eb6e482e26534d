"""Sweeps on clusters of several raylets: every node drives its share of the studies, and their folders come back.

The table is that of one process, whatever dies.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from pyarrow.fs import FileSelector, FileType, S3FileSystem, copy_files

from fedscout.experiments.sweeps.sweep import read_sweep
from tests.commands import REPOSITORY
from tests.experiments.cli.conftest import without_progress
from tests.experiments.cli.processes import Command
from tests.experiments.cli.test_ray_runs import STUDY
from tests.experiments.sweeps.conftest import sweep_here, written

# Sweeps on several raylets of one machine: a cluster that another process keeps, and what of it can be seen.


ZOMBIE = psutil.STATUS_ZOMBIE
WORKER = "ray::Worker"
"""Beginning of the name of a worker, busy or not."""


@dataclass(frozen=True)
class Raylets:
    """A cluster of raylets of one CPU.

    Attributes:
        address: By which a sweep connects.
        keeper: The process that keeps it.
    """

    address: str
    keeper: psutil.Process

    def all(self) -> list[psutil.Process]:
        """Return the raylets that live."""
        return [one for one in self.keeper.children() if one.name() == "raylet" and one.status() != ZOMBIE]

    def workers_a_raylet(self) -> list[int]:
        """Return how many workers each raylet has."""
        return [len(_workers_of(raylet)) for raylet in self.all()]


def _workers_of(raylet: psutil.Process) -> list[psutil.Process]:
    found = []
    with suppress(psutil.NoSuchProcess):
        for child in raylet.children():
            with suppress(psutil.NoSuchProcess):
                if child.name().startswith(WORKER):
                    found.append(child)
    return found


@contextmanager
def raylets(number: int) -> Iterator[Raylets]:
    """Keep a cluster for the time of a block, and end all that it has started."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.faults.raylets", str(number)],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "src"),
            "RAY_prestart_worker_first_driver": "0",  # a process a CPU that nobody needs here
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        keeper, started = psutil.Process(process.pid), []
        try:
            yield Raylets(process.stdout.readline().strip(), keeper)
            started = keeper.children(recursive=True)
            process.stdin.close()
            process.wait(60)
        finally:
            with suppress(psutil.NoSuchProcess):
                started += keeper.children(recursive=True)
            for one in [*started, keeper]:
                with suppress(psutil.NoSuchProcess):
                    one.kill()


# Sweeps on clusters of several raylets: every node drives its share of the studies, and their folders come back.


pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(300)]

SHORT = (
    *("federation.dataset=wine", "federation.partition.alpha=0.5", "engine.checkpoint_every_rounds=1"),
    *("search.budget=2", "search.generation_size=2", "search.confirmation_seeds=0"),
    *("detection.outlier_repetitions=2", "detection.outlier_min_flags=2"),
)
ONE_FAILS = (*SHORT, "training.num_rounds=2", "federation.num_clients=4,500", "seed=0,1")
"""178 rows are too few for 500 clients."""

LONGER = (*SHORT, "training.num_rounds=60", "federation.num_clients=4,500", "seed=0,1,2,3,4,5")
NUM_NODES = 4


def finish(folder: Path, *arguments: str) -> None:
    """Run a command to its end, with success."""
    with Command(folder, *arguments) as command:
        code, _, err = command.end()
    assert code == 0, err


def kill_when(begun: Callable[[], bool], folder: Path, *arguments: str) -> None:
    """Start a command, and kill it as soon as something has begun."""
    with Command(folder, *arguments) as command:
        command.wait_until(begun)
        command.process.send_signal(signal.SIGKILL)
        command.end()


def expected_of(folder: Path, sweep: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the rows of a sweep in one process."""
    sweep_here(read_sweep([*sweep, "engine.grid=local"]), folder)
    return written(folder)


def trials(out: Path) -> dict[Path, int]:
    """Return when each trial of a sweep was written."""
    return {path: path.stat().st_mtime_ns for path in sorted(out.glob("studies/*/trials/*.parquet"))}


def files_of(out: Path) -> list[Path]:
    """Return the names of all files of a sweep's studies."""
    return sorted(path.relative_to(out) for path in out.glob("studies/**/*") if path.is_file())


def test_two_raylets_give_the_table_of_one_process(tmp_path: Path) -> None:
    expected = expected_of(tmp_path / "here", ONE_FAILS)
    with raylets(2) as cluster:
        sweep = ("sweep", *ONE_FAILS, f"engine.address={cluster.address}", "--out", "out", "--json")
        with Command(tmp_path, *sweep) as command:
            command.wait_until(lambda: cluster.workers_a_raylet() == [1, 1])
            code, _, err = command.end()
    assert code == 0
    assert all("num_clients=500" in line for line in without_progress(err).splitlines())
    assert written(tmp_path / "out") == expected
    assert {row["status"] for row in expected} == {"completed", "failed"}
    assert files_of(tmp_path / "out") == files_of(tmp_path / "here")


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return expected_of(tmp_path_factory.mktemp("longer") / "out", LONGER)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Raylets]:
    with raylets(NUM_NODES) as kept:
        yield kept


def arguments(cluster: Raylets) -> tuple[str, ...]:
    return ("sweep", *LONGER, f"engine.address={cluster.address}", "--out", "out", "--json")


def under_way(cluster: Raylets, out: Path) -> Callable[[], bool]:
    """Return whether all nodes work and something, but not all, has come back."""
    return lambda: cluster.workers_a_raylet() == [1] * len(cluster.all()) and 1 <= len(trials(out)) < 9


def test_no_node_drives_more_than_its_share(tmp_path: Path, cluster: Raylets, longer: list[dict[str, Any]]) -> None:
    """Of studies that wait, one begins as soon as a node is free: while there are any, each node drives one."""
    with Command(tmp_path, *arguments(cluster)) as command:
        command.wait_until(under_way(cluster, tmp_path / "out"))
        seen = []
        while command.process.poll() is None:
            seen.append(cluster.workers_a_raylet())
            time.sleep(0.2)
        code, _, _ = command.end()
    assert code == 0
    assert written(tmp_path / "out") == longer
    assert [1] * NUM_NODES in seen
    assert max(max(each) for each in seen) == 1


def test_studies_with_hosts_give_the_same_table(tmp_path: Path, cluster: Raylets) -> None:
    """Two studies at once, each with hosts on two nodes, driven from two nodes."""
    expected = expected_of(tmp_path / "here", ONE_FAILS)
    hosts = (f"engine.address={cluster.address}", "engine.num_hosts=2")
    finish(tmp_path, "sweep", *ONE_FAILS, *hosts, "--out", "out", "--json")
    assert written(tmp_path / "out") == expected


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path, cluster: Raylets, longer: list[dict[str, Any]]) -> None:
    out = tmp_path / "out"
    kill_when(under_way(cluster, out), tmp_path, *arguments(cluster))
    done = trials(out)
    assert not (out / "table.parquet").exists()

    finish(tmp_path, *arguments(cluster))  # at once: what was killed may still be ending

    assert written(out) == longer
    assert {path: path.stat().st_mtime_ns for path in done} == done


UNSHARED = """
from fedscout.experiments.studies import workers

def storage_for(pool, folder, witness):
    pool._folders = pool._start(pool._ray.remote(workers.FolderActor), pool._own)
    return workers.NodeStorage(pool._folders, folder)

workers.WorkerPool.storage_for = storage_for
"""
"""As where no other node sees the command's folder: the raylets of one machine do."""


@pytest.mark.parametrize("is_lost", [False, True], ids=["all live", "one is lost"])
def test_nodes_without_a_shared_folder(tmp_path: Path, longer: list[dict[str, Any]], is_lost: bool) -> None:
    out = tmp_path / "out"
    with raylets(3) as nodes, Command(tmp_path, *arguments(nodes), before=UNSHARED) as command:
        command.wait_until(under_way(nodes, out))
        lost = nodes.all()[-1]
        for process in [lost, *lost.children(recursive=True)] if is_lost else []:
            process.kill()
        code, _, err = command.end()
    assert code == 0, err
    assert written(out) == longer


def test_a_lost_node_loses_no_result(tmp_path: Path, cluster: Raylets, longer: list[dict[str, Any]]) -> None:
    """The last test of these nodes: the head, where the sweep's folder is, is the first."""
    with Command(tmp_path, *arguments(cluster)) as command:
        command.wait_until(under_way(cluster, tmp_path / "out"))
        lost = cluster.all()[-1]
        for process in [lost, *lost.children(recursive=True)]:
            process.kill()
        code, _, _ = command.end()
    assert code == 0  # with a study that is lost it is 1
    assert written(tmp_path / "out") == longer
    assert len(cluster.all()) == NUM_NODES - 1


# A sweep of two raylets into an object store: its command is killed, and goes on from what is in the store.


SWEEP = (*SHORT, "training.num_rounds=20", "federation.num_clients=4", "seed=0,1,2,3,4,5")


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Return where a stand-in for S3 listens, whose keys are in the environment, as nodes have them."""
    from moto.server import ThreadedMotoServer

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        yield f"http://127.0.0.1:{server.get_host_and_port()[1]}"
    finally:
        server.stop()


def test_a_killed_command_goes_on_from_the_store(tmp_path: Path, address: str) -> None:
    expected = expected_of(tmp_path / "here", SWEEP)
    store = S3FileSystem(endpoint_override=address, region="us-east-1", allow_bucket_creation=True)
    store.create_dir("bucket")

    def trials() -> dict[str, int]:
        found = store.get_file_info(FileSelector("bucket/out/studies", recursive=True, allow_not_found=True))
        return {entry.path: entry.mtime_ns for entry in found if entry.path.endswith(".parquet")}

    uri = f"s3://bucket/out?endpoint_override={address}&region=us-east-1"
    with raylets(2) as cluster:
        arguments = ("sweep", *SWEEP, f"engine.address={cluster.address}", "--out", uri, "--json")
        kill_when(lambda: len(trials()) >= 3, tmp_path, *arguments)
        done = trials()
        assert store.get_file_info("bucket/out/table.parquet").type == FileType.NotFound
        finish(tmp_path, *arguments)
    assert {*done} <= {*trials()}
    copy_files("bucket/out", str(tmp_path / "out"), source_filesystem=store)
    assert written(tmp_path / "out") == expected


# Sweeps on a shared Ray: the table does not depend on it, nor on processes that are killed.


RAY_SWEEP = (*STUDY, "search.budget=2", "search.confirmation_seeds=0", "seed=0,1,2", "federation.partition.alpha=0.5")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of the sweep in one process."""
    out = tmp_path_factory.mktemp("local") / "out"
    assert len(sweep_here(read_sweep([*RAY_SWEEP, "engine.grid=local"]), out).with_status("completed")) == 3
    return written(out)


def test_a_killed_worker_harms_no_other_study(tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    with Command(tmp_path, "sweep", *RAY_SWEEP, "--parallel", "2", "--out", "out", "--json") as command:
        command.wait_until(lambda: len(trials(tmp_path / "out")) >= 1)
        workers = [process for process in command.alive() if process.name().startswith(WORKER)]
        assert len(workers) >= 1
        workers[0].kill()
        command.succeeds()
        left = command.left_over()
    assert written(tmp_path / "out") == expected
    assert left == []


def test_after_a_kill_hosts_run_the_rest(tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    out = tmp_path / "out"
    arguments = ("sweep", *RAY_SWEEP, "engine.num_hosts=2", "--out", "out", "--json")
    kill_when(lambda: len(trials(out)) >= 1, tmp_path, *arguments)
    done = trials(out)
    assert not (out / "table.parquet").exists()

    with Command(tmp_path, *arguments) as command:  # at once: what was killed may still be ending
        command.succeeds()

    assert written(out) == expected
    assert {path: path.stat().st_mtime_ns for path in done} == done
