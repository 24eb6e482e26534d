"""Tables that would take hours or all memory, each in a process of its own: a data set or one line, within bounds."""

from __future__ import annotations

import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.data.federation import Federation
from fedscout.experiments.config import load_config
from fedscout.experiments.federation import build_federation
from tests.experiments.cli.processes import REPOSITORY

MOST_SECONDS = 20
MOST_BYTES = 2e9
READ = """
import sys
from fedscout.engine.errors import UserError
from fedscout.experiments.config import load_config
from fedscout.experiments.data.loaders.table import load_dataset
import resource
try:
    print("rows", load_dataset(load_config(sys.argv[1:]).federation).num_rows)
except UserError as error:
    print("refused", error)
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
sizes = [one.ru_maxrss for one in used]
if sys.platform == "linux":  # where a process begins with the peak of the one that has started it
    with open("/proc/self/status") as status:
        sizes[0] = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
print(sum(one.ru_utime + one.ru_stime for one in used), *sizes)
"""


def sheet(*cells: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        import openpyxl

        book = openpyxl.Workbook()
        assert book.active is not None
        book.active.append(["x", "y"])
        for row in range(40):
            book.active.append([row / 8, "ab"[row % 2]])
        for cell in cells:
            book.active[cell] = 1
        book.save(folder / "t.xlsx")
        return [f"federation.dataset={folder}/t.xlsx", "federation.label=y", "federation.min_release=2"]

    return write


def sqlite(query: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        with sqlite3.connect(folder / "t.db") as base:
            base.execute("CREATE TABLE t (x, y)")
        base.close()
        return [f"federation.dataset={folder}/t.db", f"federation.query={query}", "federation.label=y"]

    return write


def duckdb(query: str) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        import duckdb

        with duckdb.connect(str(folder / "t.duckdb")) as base:
            base.execute("CREATE TABLE t (x INT, y INT)")
        return [f"federation.dataset={folder}/t.duckdb", f"federation.query={query}", "federation.label=y"]

    return write


def text(name: str, lines: Callable[[], list[str]]) -> Callable[[Path], list[str]]:
    def write(folder: Path) -> list[str]:
        (folder / name).write_text("\n".join(lines()))
        return [f"federation.dataset={folder}/{name}", "federation.label=y"]

    return write


COUNTING = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t)"
ENDLESS: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "Excel: a far cell": (sheet("XFD1048576"), "rows 40"),
    "Excel: a far column": (sheet("XFD1"), "refused"),
    "SQLite: never a row": (sqlite(f"{COUNTING} SELECT max(x) AS x, 1 AS y FROM t"), "refused"),
    "SQLite: long texts": (sqlite("SELECT hex(zeroblob(900000000)) AS x, 1 AS y"), "refused"),
    "DuckDB: a sum": (duckdb("SELECT sum(sin(range)) AS x, 1 AS y FROM range(100000000000)"), "refused"),
    "JSON lines: sparse keys": (
        text("t.jsonl", lambda: [f'{{"k{row % 19_000}": 1, "y": {row % 2}}}' for row in range(200_000)]),
        "refused",
    ),
    "JSON lines: keys of one line": (
        text("t.jsonl", lambda: ["{" + ",".join(f'"k{key}":1' for key in range(100_000)) + "}"]),
        "refused",
    ),
    "CSV: columns": (
        text("t.csv", lambda: [",".join(f"k{key}" for key in range(100_000)), "1," * 99_999 + "1"]),
        "refused",
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ENDLESS)
def test_it_ends(tmp_path: Path, name: str) -> None:
    write, wanted = ENDLESS[name]
    arguments = write(tmp_path)
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", READ, *arguments, "federation.max_query_seconds=5"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    seconds = time.monotonic() - began
    told, *_, last = done.stdout.splitlines()
    assert told.startswith(wanted), told
    assert not done.stderr.count("Traceback")
    used_seconds, *sizes = map(float, last.split())
    assert (1 if sys.platform == "darwin" else 1024) * max(sizes) < MOST_BYTES
    assert min(seconds, used_seconds) < MOST_SECONDS  # by the clock, or, on a machine that does other things, by work


# Files that are large once unpacked: signals are heard while they are read, too little memory is one line.


pytestmark = pytest.mark.slow

NUM_ROWS = 1_000_000
MOST_SILENCE = 1 / 3
"""Of silence with so many rows, as it may be a second with three times as many."""


def save_parquet(path: Path, num_rows: int) -> Path:
    """Write few bytes that stand for many rows."""
    rows = np.arange(num_rows)
    sites = pa.DictionaryArray.from_arrays(pa.array(rows % 40), [f"site {number}" for number in range(40)])
    labels = pa.DictionaryArray.from_arrays(pa.array(rows % 2), ["a", "b"])
    pq.write_table(pa.table({"x": rows % 1000 / 8, "site": sites, "y": labels}), path)
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


@pytest.mark.parametrize("key", ["client_column", "group_column"])
def test_signals_are_heard_while_rows_are_read_and_dealt(tmp_path: Path, key: str) -> None:
    path = save_parquet(tmp_path / "t.parquet", NUM_ROWS)
    assert longest_silence(lambda: load(path, f"federation.{key}=site")) < MOST_SILENCE


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
