"""The study that is disturbed, and what must be the same afterwards."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import pyarrow.parquet as pq

from tests.experiments.cli.conftest import SMALL, Done
from tests.experiments.cli.processes import lasting_result

LOCAL = "engine.grid=local"
STUDY = (*SMALL[1:], "training.num_rounds=4", "engine.checkpoint_every_rounds=1")
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
