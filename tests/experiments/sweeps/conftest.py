"""Small sweeps, one that tests share, and what of their tables does not depend on the machine's speed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.experiments.studies.workers import Display
from fedscout.experiments.sweeps.run import SweepOutcome, run_sweep
from fedscout.experiments.sweeps.sweep import GridConfiguration, Sweep, read_sweep
from tests.experiments.cli.conftest import SMALL, cli

__all__ = ["cli"]

AXES = ("federation.partition.alpha=0.1,1", "federation.num_clients=4,6", "seed=0,1")
NUM_TRIALS = 1 + 3 + 2 * 2
TIMES = ["seconds", "trial_seconds"]


def small(*arguments: str) -> Sweep:
    return read_sweep([*(one for one in SMALL if not one.startswith("federation.num_clients")), *arguments])


def sweep_here(sweep: Sweep, out: Path, begun: list[GridConfiguration] | None = None) -> SweepOutcome:
    """Run a sweep in this process; the studies that begin are added to `begun`."""
    told = [] if begun is None else begun
    display = Display(begun=lambda position: told.append(sweep.configurations[position]))
    return run_sweep(sweep, out, display)


def lasting(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows without times."""
    rows: list[dict[str, Any]] = table.drop_columns(TIMES).to_pylist()
    return rows


def written(out: Path) -> list[dict[str, Any]]:
    """Return the rows that a sweep wrote, without times."""
    with pq.ParquetFile(out / "table.parquet") as file:
        return lasting(file.read())


@pytest.fixture(scope="session")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> SweepOutcome:
    """The sweep of `AXES`, to its end. Not to be written into."""
    out: Path = tmp_path_factory.mktemp("sweep") / "out"
    return sweep_here(small(*AXES), out)
