"""Sweeps on clusters of several raylets: every node drives its share of the studies, and their folders come back.

The table is that of one process, whatever dies.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fedscout.experiments.sweeps.sweep import read_sweep
from tests.experiments.cli.conftest import without_progress
from tests.experiments.cli.processes import Command
from tests.experiments.sweeps.clusters import Raylets, raylets
from tests.experiments.sweeps.sweeps import sweep_here, written

pytestmark = [pytest.mark.stress, pytest.mark.ray, pytest.mark.timeout(300)]

SHORT = (
    "federation.dataset=wine",
    "federation.partition.alpha=0.5",
    "search.budget=2",
    "search.generation_size=2",
    "search.confirmation_seeds=0",
    "detection.outlier_repetitions=2",
    "detection.outlier_min_flags=2",
    "engine.checkpoint_every_rounds=1",
)
ONE_FAILS = (*SHORT, "training.num_rounds=2", "federation.num_clients=4,500", "seed=0,1")
"""178 rows are too few for 500 clients."""

LONGER = (*SHORT, "training.num_rounds=60", "federation.num_clients=4,500", "seed=0,1,2,3,4,5")
NUM_NODES = 4


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
    with (
        raylets(2) as cluster,
        Command(
            tmp_path, "sweep", *ONE_FAILS, f"engine.address={cluster.address}", "--out", "out", "--json"
        ) as command,
    ):
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
    with Command(
        tmp_path,
        *("sweep", *ONE_FAILS, f"engine.address={cluster.address}", "engine.num_hosts=2", "--out", "out", "--json"),
    ) as command:
        code, _, _ = command.end()
    assert code == 0
    assert written(tmp_path / "out") == expected


def test_a_killed_study_harms_no_other(tmp_path: Path, cluster: Raylets, longer: list[dict[str, Any]]) -> None:
    with Command(tmp_path, *arguments(cluster)) as command:
        command.wait_until(under_way(cluster, tmp_path / "out"))
        cluster.workers()[0].kill()
        code, _, _ = command.end()
    assert code == 0  # with a study that is lost it is 1
    assert written(tmp_path / "out") == longer


def test_a_killed_command_goes_on_where_it_was(tmp_path: Path, cluster: Raylets, longer: list[dict[str, Any]]) -> None:
    out = tmp_path / "out"
    with Command(tmp_path, *arguments(cluster)) as command:
        command.wait_until(under_way(cluster, out))
        command.process.send_signal(signal.SIGKILL)
        command.end()
    done = trials(out)
    assert not (out / "table.parquet").exists()

    with Command(tmp_path, *arguments(cluster)) as command:  # at once: what was killed may still be ending
        code, _, _ = command.end()

    assert code == 0
    assert written(out) == longer
    assert {path: path.stat().st_mtime_ns for path in done} == done


UNSHARED = """
from fedscout.experiments.sweeps import workers

def storage_for(pool, folder, witness):
    pool._folders = pool._start(pool._ray.remote(workers.FolderActor), pool._own)
    return workers.NodeStorage(pool._folders, folder)

workers.StudyWorkerPool.storage_for = storage_for
"""
"""As where no other node sees the command's folder: the raylets of one machine do."""


@pytest.mark.parametrize("is_lost", [False, True], ids=["all live", "one is lost"])
def test_nodes_without_a_shared_folder_hand_their_rows_to_the_command(
    tmp_path: Path, longer: list[dict[str, Any]], is_lost: bool
) -> None:
    out = tmp_path / "out"
    with raylets(3) as nodes, Command(tmp_path, *arguments(nodes), before=UNSHARED) as command:
        command.wait_until(under_way(nodes, out))
        lost = nodes.all()[-1]
        for process in [lost, *lost.children(recursive=True)] if is_lost else []:
            process.kill()
        code, _, err = command.end()
    assert code == 0, err
    assert written(out) == longer


def seconds_of_studies(tmp_path: Path, num_nodes: int) -> float:
    """Return what sixteen short studies take from the first trial that is written to the last."""
    out = tmp_path / f"out{num_nodes}"
    sweep = (*SHORT, "training.num_rounds=40", "federation.num_clients=4", f"seed={','.join(map(str, range(16)))}")
    with raylets(num_nodes) as nodes:
        with Command(tmp_path, "sweep", *sweep, f"engine.address={nodes.address}", "--out", str(out)) as command:
            code, _, err = command.end()
        assert code == 0, err
    times = sorted(trials(out).values())
    return (times[-1] - times[0]) / 1e9


def test_two_nodes_take_hardly_more_than_half_the_time_of_one(tmp_path: Path) -> None:
    one, two = (seconds_of_studies(tmp_path, num_nodes) for num_nodes in (1, 2))
    assert two < 1.3 * one / 2


def test_a_lost_node_costs_nothing_that_came_back(
    tmp_path: Path, cluster: Raylets, longer: list[dict[str, Any]]
) -> None:
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
