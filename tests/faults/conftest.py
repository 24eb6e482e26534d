"""The study that is disturbed, what must be the same afterwards, and the same study undisturbed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq
import pytest

from fedscout.experiments.config import load_config
from fedscout.experiments.studies.workflow import Display, run_workflow
from tests.experiments.cli.conftest import SMALL, Cli, Done, cli
from tests.experiments.cli.processes import lasting_result

__all__ = ["cli", "goes_on", "undisturbed"]
LOCAL = "engine.grid=local"
STUDY = (*SMALL[1:], "training.num_rounds=4", "engine.checkpoint_every_rounds=1")
RUN = ("run", *STUDY, LOCAL, "--out")
NUM_TRIALS = 1 + 3 + 2 * 2

PASSING = ("finished_at", "versions")
"""Columns that tell of the run, not of its result."""


def trial_files(folder: Path) -> list[Path]:
    """Return the files of a study's log."""
    return sorted((folder / "trials").glob("*.parquet"))


def lasting_rows(folder: Path) -> list[str]:
    """Return all trials of a study's log, without what differs from run to run. As text, in which NaN equals NaN."""
    rows = []
    for path in trial_files(folder):
        (row,) = pq.ParquetFile(path).read().to_pylist()
        rows.append(repr({k: v for k, v in row.items() if k not in PASSING and not k.startswith("seconds")}))
    return rows


def written_at(*paths: Path) -> dict[Path, int]:
    """Return when each path was last written, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in paths}


def line_of(done: Done, code: int) -> str:
    """Return the one line that a command told, which ended with this code and printed nothing."""
    assert (done.code, done.out) == (code, "")
    (line,) = done.warnings.splitlines()
    return line


@dataclass(frozen=True)
class Outcome:
    """What a study leaves: its log and its result, each without timings."""

    rows: list[str]
    result: dict[str, Any]

    @classmethod
    def of(cls, folder: Path) -> Self:
        """Read them from a study's folder; nothing half-written may be there."""
        hidden = [path.name for path in folder.rglob(".*") if path.name != ".lock"]
        assert hidden == [], hidden
        assert list((folder / "checkpoints").glob("*")) == []
        return cls(lasting_rows(folder), lasting_result(folder))


@pytest.fixture(scope="session")
def undisturbed_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the study, run in one process without a fault; to be copied."""
    out = tmp_path_factory.mktemp("undisturbed") / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("flwr"), "level", logging.ERROR)
        run_workflow(load_config([*STUDY, LOCAL]), out, Display())
    return out


@pytest.fixture(scope="session")
def undisturbed(undisturbed_folder: Path) -> Outcome:
    """Its log and its result."""
    return Outcome.of(undisturbed_folder)


GoesOn = Callable[..., list[str]]


@pytest.fixture
def goes_on(cli: Cli, undisturbed: Outcome, tmp_path: Path) -> GoesOn:
    """Return what goes on with the study, holds that it ends as the undisturbed one, and returns what is warned of."""

    def run(out: Path = tmp_path / "out") -> list[str]:
        done = cli(*RUN, out)
        assert done.code == 0
        assert Outcome.of(out) == undisturbed
        return done.warnings.splitlines()

    return run
