"""Sweeps on a shared Ray: the table does not depend on it, nor on processes that are killed."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest

from fedscout.experiments.sweeps.sweep import read_sweep
from tests.experiments.cli.processes import Command
from tests.experiments.cli.test_ray_runs import STUDY
from tests.experiments.sweeps.sweeps import sweep_here, written

pytestmark = [pytest.mark.stress, pytest.mark.ray]

SWEEP = (*STUDY, "search.budget=2", "search.confirmation_seeds=0", "seed=0,1,2", "federation.partition.alpha=0.5")
WORKER = "ray::StudyWork"
"""As much of a worker's name as the kernel keeps."""


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The rows of the sweep in one process."""
    out = tmp_path_factory.mktemp("local") / "out"
    assert len(sweep_here(read_sweep([*SWEEP, "engine.grid=local"]), out).with_status("completed")) == 3
    return written(out)


def trials(out: Path) -> list[Path]:
    return sorted(out.glob("studies/*/trials/*.parquet"))


def test_a_killed_worker_harms_no_other_study(tmp_path: Path, expected: list[dict[str, Any]]) -> None:
    with Command(tmp_path, "sweep", *SWEEP, "--parallel", "2", "--out", "out", "--json") as command:
        command.wait_until(lambda: len(trials(tmp_path / "out")) >= 1)
        workers = [process for process in command.alive() if process.name().startswith(WORKER)]
        assert len(workers) >= 1
        workers[0].kill()
        code, _, err = command.end()
        left = command.left_over()
    assert (code, err) == (0, "")
    assert written(tmp_path / "out") == expected
    assert left == []


def test_after_a_kill_the_rest_is_run_on_hosts_and_the_table_is_the_same(
    tmp_path: Path, expected: list[dict[str, Any]]
) -> None:
    out = tmp_path / "out"
    arguments = ("sweep", *SWEEP, "engine.num_hosts=2", "--out", "out", "--json")
    with Command(tmp_path, *arguments) as command:
        command.wait_until(lambda: len(trials(out)) >= 1)
        command.process.send_signal(signal.SIGKILL)
        command.end()
    done = {path: path.stat().st_mtime_ns for path in trials(out)}
    assert not (out / "table.parquet").exists()

    with Command(tmp_path, *arguments) as command:  # at once: what was killed may still be ending
        code, _, err = command.end()

    assert (code, err) == (0, "")
    assert written(out) == expected
    assert {path: path.stat().st_mtime_ns for path in done} == done
