"""What a study's Ray can't do without is killed: one line says so, and the same command goes on."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.experiments.cli.conftest import Cli, without_progress
from tests.experiments.cli.processes import Command
from tests.faults.undisturbed import LOCAL, NUM_TRIALS, STUDY, Outcome, trial_files

pytestmark = [pytest.mark.stress, pytest.mark.ray]


@pytest.mark.parametrize(
    ("process", "name"), [("raylet", "raylet"), ("ray::DashboardAgent", "agent"), ("gcs_server", "server")]
)
def test_one_line_says_so_and_the_study_goes_on(
    tmp_path: Path, cli: Cli, undisturbed: Outcome, process: str, name: str
) -> None:
    out = tmp_path / "out"

    def victims() -> list[psutil.Process]:
        tree = psutil.Process(command.process.pid).children(recursive=True)
        return [one for one in tree if one.name().startswith(process)]

    with Command(tmp_path, "run", *STUDY, "engine.grid=ray", "--out", "out") as command:
        command.wait_until(lambda: len(trial_files(out)) > 0 and len(victims()) == 1)
        victims()[0].kill()
        code, stdout, stderr = command.end()
        left = command.left_over()

    assert (code, stdout, left) == (1, "", [])
    (line,) = without_progress(stderr).splitlines()
    assert f" Ray's {name} " in line
    assert 0 < len(trial_files(out)) < NUM_TRIALS
    assert cli("run", *STUDY, LOCAL, "--out", out).code == 0
    assert Outcome.of(out) == undisturbed
