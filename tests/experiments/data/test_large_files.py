"""Files that are large once unpacked: signals are heard while they are read, too little memory is one line."""

from __future__ import annotations

import gzip
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError
from fedscout.experiments.config import load_config
from fedscout.experiments.federation import build_federation
from tests.experiments.cli.processes import REPOSITORY, Command

pytestmark = pytest.mark.slow

NUM_ROWS = 1_000_000
MOST_SECONDS = 1 / 3
"""Of silence with so many rows, as it may be a second with three times as many."""


def save_parquet(path: Path, num_rows: int) -> Path:
    """Write few bytes that stand for many rows."""
    rows = np.arange(num_rows)
    sites = pa.DictionaryArray.from_arrays(pa.array(rows % 40), [f"site {number}" for number in range(40)])
    labels = pa.DictionaryArray.from_arrays(pa.array(rows % 2), ["a", "b"])
    pq.write_table(pa.table({"x": rows % 1000 / 8, "site": sites, "y": labels}), path)
    return path


def save_csv(path: Path, num_rows: int) -> Path:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"x,site,y\n")
        for _ in range(num_rows // 10_000):
            file.write(b"".join(b"%d,%d,%d\n" % (row, row % 40, row % 2) for row in range(10_000)))
    return path


def load(path: Path, *settings: str) -> Federation:
    config = load_config([f"federation.dataset={path}", "federation.label=y", *settings])
    return build_federation(config.federation, config.model)


def longest_silence(work: Callable[[], object]) -> float:
    """Return the most seconds of computing between two moments at which a signal would be heard."""
    heard = [time.process_time()]

    def listen(number: int, frame: FrameType | None) -> None:
        heard.append(time.process_time())

    kept = signal.signal(signal.SIGPROF, listen)
    signal.setitimer(signal.ITIMER_PROF, 0.02, 0.02)
    try:
        work()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, kept)
    assert len(heard) > 20
    return float(np.diff(heard).max())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("save", [save_parquet, save_csv])
def test_signals_are_heard_while_rows_are_read_and_dealt(tmp_path: Path, save: Callable[[Path, int], Path]) -> None:
    path = save(tmp_path / ("t.parquet" if save is save_parquet else "t.csv.gz"), NUM_ROWS)
    assert longest_silence(lambda: load(path, "federation.client_column=site")) < MOST_SECONDS


@pytest.mark.stress
@pytest.mark.parametrize("key", ["client_column", "group_column"])
def test_signals_are_heard_where_every_row_has_a_name_of_its_own(tmp_path: Path, key: str) -> None:
    rows = np.arange(NUM_ROWS)
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"x": rows / 8, "own": rows, "y": rows % 2}), path)

    def read() -> None:
        with suppress(DataError):  # clients of one row are too small
            load(path, f"federation.{key}=own")

    assert longest_silence(read) < MOST_SECONDS


@pytest.mark.stress
def test_a_command_ends_soon_after_a_signal(tmp_path: Path) -> None:
    save_csv(tmp_path / "t.csv.gz", 5_000_000)
    with Command(tmp_path, "describe", "federation.dataset=./t.csv.gz", "federation.label=y") as command:
        started = time.monotonic()
        command.wait_until(lambda: time.monotonic() - started > 4)
        command.process.send_signal(signal.SIGTERM)
        sent = time.monotonic()
        code, out, err = command.end()
    assert (code, out) == (143, "")
    assert err.startswith("fedscout: ended by SIGTERM")
    assert time.monotonic() - sent < 5  # one second, on a machine that does nothing else


@pytest.mark.stress
@pytest.mark.parametrize("num_rows", [9_000_000, 11_000_000])
def test_too_little_memory_is_told_in_one_line(tmp_path: Path, num_rows: int) -> None:
    """Rows that do not fit, and rows that are refused before any of them is read."""
    save_parquet(tmp_path / "t.parquet", num_rows)
    limit = 7 * 2**28
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "fedscout.experiments.cli.main",
            "describe",
            "federation.dataset=t.parquet",
            "federation.label=y",
        ],
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(REPOSITORY / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=240,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert ("must fit into memory" if num_rows < 10_000_000 else "federation.max_file_rows=10000000") in line
