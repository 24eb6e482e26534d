"""Any bytes in place of a table: a federation, or an error that names what is wrong, in bounded time."""

from __future__ import annotations

import gzip
import io
import re
import resource
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any

import duckdb
import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import UserError
from fedscout.experiments.config import load_config
from fedscout.experiments.data.loaders.table import load_dataset
from fedscout.experiments.federation import build_federation
from tests.commands import REPOSITORY, ran

NAMES = ("y", "x", "z", "site", "note", "id")
ENDS = ("\n", "\r\n", "\r", "\n\n", "\n \n")
DELIMITERS = (";", "\t", "|", " ", "\0")
ENCODINGS = ("utf-8", "utf-8-sig", "latin-1", "utf-16", "utf-32")

any_text = st.text(max_size=6)
quoted = st.builds(
    lambda text, before, after: f'{before}"{text}"{after}', any_text, st.sampled_from(["", " ", "q"]), any_text
)
ODD_CELLS = (
    *("", " ", '"', '""', "'", "\0", "\ufeff", "\x1a", "\u2028", "\x85", "\ud7ff", "\x1b[2J", "=1+1"),
    *("NA", "none", "nan", "inf", "-0", "1e999", "1e300", "9" * 400, "1_000", "0x1f", "1,5", "١٢", "²", "−1"),
    *("2024-01-31", "10:30", "true", "False", "5", "5.0", str(2**63), str(2**64), "i" * 201, "z" * 131_073),
)
odd = st.sampled_from(ODD_CELLS)
cell = st.one_of(st.sampled_from(["a", "b", "1", "2", "2.5"]), odd, quoted, any_text)
letter = st.sampled_from(["a", "b"])
number = st.integers(-9, 9).map(str)


def one_in(number: int) -> st.SearchStrategy[bool]:
    """Return a truth value that is rarely true, so that most files get past the first check that they meet."""
    return st.integers(1, number).map(lambda drawn: drawn == number // 2 + 1)


@st.composite
def tables(draw: st.DrawFn) -> list[list[str]]:
    """Return a header and rows: a label, columns of which some are odd, and now and then an odd cell or line."""
    height = draw(st.integers(6, 24))
    names = ["y", *draw(st.lists(st.sampled_from(NAMES[1:]), min_size=1, max_size=4, unique=True))]
    kinds = [letter, *(draw(st.sampled_from([letter, number, number, cell])) for _ in names[1:])]
    lines = [names, *([draw(kind) for kind in kinds] for _ in range(height))]
    for _ in range(draw(st.sampled_from([0, 0, 0, 1, 2]))):
        line = lines[draw(st.integers(0, height))]
        match draw(st.sampled_from(["cell", "cell", "more", "less", "none"])):
            case "cell" if line:
                line[draw(st.integers(0, len(line) - 1))] = draw(cell)
            case "more":
                line.append(draw(cell))
            case "less" if line:
                line.pop()
            case _:
                line.clear()
    return lines


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Return a file's content, now and then with other bytes somewhere, or without its end."""
    if draw(one_in(10)):
        place = draw(st.integers(0, len(content)))
        content = content[:place] + draw(st.binary(max_size=4)) + content[place + draw(st.integers(0, 4)) :]
    return content[: draw(st.integers(0, len(content)))] if draw(one_in(20)) else content


@st.composite
def text_files(draw: st.DrawFn) -> tuple[str, bytes]:
    """Return a name and its content, which may be in another encoding, or packed, or not although its name says so."""
    delimiter = draw(st.sampled_from(DELIMITERS)) if draw(one_in(10)) else ","
    end = draw(st.sampled_from(ENDS))
    text = end.join(delimiter.join(line) for line in draw(tables())) + draw(st.sampled_from(["", end, end]))
    encoding = draw(st.sampled_from(ENCODINGS)) if draw(one_in(10)) else "utf-8"
    content = draw(damaged(text.encode(encoding, "replace")))
    suffix = draw(st.sampled_from([".csv", ".csv", ".tsv", ".csv.gz", ".csv.zip"]))
    return f"t{suffix}", content if draw(one_in(20)) else draw(damaged(packed(content, suffix)))


def packed(content: bytes, kind: str) -> bytes:
    if kind == ".csv.gz":
        return gzip.compress(content)
    if kind != ".csv.zip":
        return content
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("t.csv", content)
    return file.getvalue()


CELLS = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.int8(): st.integers(-128, 127),
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.bool_(): st.booleans(),
    pa.string(): cell,
    pa.large_string(): letter,
    pa.binary(): st.binary(max_size=3),
    pa.timestamp("us"): st.integers(-(2**60), 2**60),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.time64("us"): st.integers(0, 86_399_999_999),
    pa.duration("ns"): st.integers(-(2**63) + 1, 2**63 - 1),
    pa.decimal128(38, 3): st.decimals(-(10**20), 10**20, places=3),
    pa.list_(pa.int64()): st.lists(st.integers(0, 9), max_size=2),
    pa.null(): st.none(),
}


@st.composite
def parquet_files(draw: st.DrawFn) -> bytes:
    """Return a file of columns of any type, coded or not, in several groups of rows."""
    height = draw(st.integers(6, 16))
    columns = {"y": pa.array([draw(letter) for _ in range(height)])}
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(list(CELLS)))
        cells = draw(st.sampled_from([CELLS[kind], st.one_of(CELLS[kind], st.none())]))
        array = pa.array([draw(cells) for _ in range(height)], kind)
        codable = not pa.types.is_nested(kind) and not pa.types.is_null(kind)
        name = any_text.map(lambda text: text.encode("utf-8", "replace").decode())
        name = draw(name if draw(one_in(10)) else st.sampled_from(NAMES[1:]))
        columns[name] = array.dictionary_encode() if codable and draw(st.booleans()) else array
    table = pa.table({name: columns[name] for name in draw(st.permutations(list(columns)))})
    if draw(one_in(20)):
        table = table.append_column(draw(st.sampled_from(NAMES)), pa.array(range(height)))
    file = io.BytesIO()
    pq.write_table(
        table.slice(height if draw(one_in(20)) else 0), file, row_group_size=draw(st.sampled_from([2, 5, 100]))
    )
    return draw(damaged(file.getvalue()))


choices = st.just({}) | st.fixed_dictionaries(
    {},
    optional={
        "client_column": st.sampled_from(NAMES),
        "text_column": st.sampled_from(NAMES),
        "drop_columns": st.lists(st.sampled_from(NAMES), max_size=2).map(lambda names: f"[{','.join(names)}]"),
        "min_release": st.integers(1, 3),
        "max_rows": st.integers(2, 9),
        "min_client_rows": st.integers(1, 9),
    },
)


def federation_or_user_error(path: Path, content: bytes, given_choices: dict[str, object]) -> None:
    path.write_bytes(content)
    keys = {"dataset": path, "label": "y", "num_clients": 1, "partition.kind": "iid", **given_choices}
    config = load_config([f"federation.{key}={value}" for key, value in keys.items()])
    try:
        federation = build_federation(config.federation, config.model)
    except UserError as error:
        faults = error.faults
    else:
        assert federation.partition.sizes.min() >= 1
        return
    assert all(fault and len(fault) < 2000 for fault in faults)


hostile = settings(
    max_examples=80,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.slow
@hostile
@given(text_files(), choices)
def test_any_text_file(tmp_path: Path, file: tuple[str, bytes], given_choices: dict[str, object]) -> None:
    federation_or_user_error(tmp_path / file[0], file[1], given_choices)


@pytest.mark.slow
@hostile
@given(parquet_files(), choices)
def test_any_parquet_file(tmp_path: Path, content: bytes, given_choices: dict[str, object]) -> None:
    federation_or_user_error(tmp_path / "t.parquet", content, given_choices)


# Every argument that a refusal of a table proposes leads on: to a data set, or to a last word that proposes none.


ARGUMENT = re.compile(r"'federation\.(?:[^']|'\"'\"')*'|(?<!')federation\.[\w.]+=(?:\[[^\]]*\]|[\w.+-]+)")
LIMITS = re.compile(r"federation\.(max_\w+|min_release)=")
DEEPEST = 5
NUM_ROWS = 40
GOOD = {
    "site": ["north", "south"] * (NUM_ROWS // 2),
    "age": [str(row / 8) for row in range(NUM_ROWS)],
    "grade": [("well", "ill")[row // 2 % 2] for row in range(NUM_ROWS)],
}
MIXED = ["1", "2", "three", "4"] * (NUM_ROWS // 4)
NUMERALS = [f"{row + 1},{row + 100}" for row in range(NUM_ROWS)]  # thousands, or decimals
WORDS = [str(row) if row != 7 else "seven" for row in range(NUM_ROWS)]
TEXTS = [f"row {row} was quite a day" for row in range(NUM_ROWS)]


def table(name: str, cells: list[Any], **columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame({**GOOD, name: cells, **columns})


def written(frame: pd.DataFrame, separator: str = ",") -> Callable[[Path], Path]:
    return raw(frame.to_csv(index=False, sep=separator))


def raw(text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "t.csv").write_text(text)
        return folder / "t.csv"

    return write


def sheet(folder: Path) -> Path:
    book = openpyxl.Workbook()
    book.active.append(["the sum", "y", "z"])
    for row in range(NUM_ROWS):
        book.active.append([f"=B{row + 2}+1", "ab"[row % 2], row / 8])
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx"


def nested(folder: Path) -> Path:
    table("a list", [[1, 2]] * NUM_ROWS, yes=[[1]] * NUM_ROWS).to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


NO_HEADER = "\n".join(f"{row / 8},{'ab'[row % 2]},{row % 7}" for row in range(NUM_ROWS))

OF_TEXTS = table("Churn Reason", TEXTS, other=TEXTS[::-1]).drop(columns=["age", "site"])
FAULTY: dict[str, Callable[[Path], Path]] = {
    "commas": written(table("It's", NUMERALS), ";"),
    "several columns": written(table("numero", WORDS, yes=NUMERALS, **{"a b": MIXED})),
    "identifiers as categories": written(table("note", TEXTS)),
    "texts of two columns": written(OF_TEXTS),
    "no header": raw(NO_HEADER),
    "two separators": raw("a;b,c\n" + "1;2,p\n3;4,q\n" * 20),
    "a formula": sheet,
    "lists": nested,
}
ASKED = {
    "identifiers as categories": ("label=grade", "columns.note=category"),
    "texts of two columns": ("label=grade", "task=regression"),
    "no header": ("label=column2",),
    "two separators": ("label=c",),
    "a formula": ("label=y",),
}
"""What is asked of some; of the others that `grade` be the label."""


def proposed(message: str) -> list[str]:
    found = [shlex.split(argument)[0] for argument in ARGUMENT.findall(message)]
    return [argument for argument in dict.fromkeys(found) if not LIMITS.match(argument)]


def followed(arguments: tuple[str, ...]) -> bool:
    """Return whether some proposed arguments lead to a data set."""
    assert len(arguments) <= DEEPEST + 4, f"no end: {arguments}"
    try:
        return load_dataset(load_config(arguments).federation).num_rows > 0
    except UserError as error:
        arguments_proposed = proposed(str(error))
    assert not set(arguments_proposed) & set(arguments), "what is taken is proposed"
    outcomes = [followed((*arguments, argument)) for argument in arguments_proposed]
    return any(outcomes)


@pytest.mark.parametrize("fault", FAULTY)
def test_what_a_refusal_proposes_leads_on(tmp_path: Path, fault: str) -> None:
    asked = (f"dataset={FAULTY[fault](tmp_path)}", *ASKED.get(fault, ("label=grade",)))
    first = tuple(f"federation.{choice}" for choice in asked)
    with pytest.raises(UserError):
        load_dataset(load_config(first).federation)
    assert followed(first)


@pytest.mark.parametrize("label", ["1", "yes", "007", "a b"])
def test_a_column_is_named_by_the_text_that_is_typed(tmp_path: Path, label: str) -> None:
    frame = pd.DataFrame(GOOD).rename(columns={"grade": label})
    config = load_config([f"federation.dataset={written(frame)(tmp_path)}", f"federation.label={label}"])
    assert load_dataset(config.federation).facts["label"] == label
    np.testing.assert_array_equal(np.bincount(load_dataset(config.federation).labels), [20, 20])


# Tables that would take hours or all memory, each in a process of its own: a data set or one line, within bounds.


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


def far_sheet(path: Path, cell: str) -> None:
    book = openpyxl.Workbook()
    book.active.append(["x", "y"])
    for row in range(40):
        book.active.append([row / 8, "ab"[row % 2]])
    book.active[cell] = 1
    book.save(path)


def empty_base(path: Path) -> None:
    with closing(sqlite3.connect(path) if path.suffix == ".db" else duckdb.connect(str(path))) as base:
        base.execute("CREATE TABLE t (x INT, y INT)")


SPARSE = "\n".join(f'{{"k{row % 19_000}": 1, "y": {row % 2}}}' for row in range(200_000))
ONE_LINE = "{" + ",".join(f'"k{key}":1' for key in range(100_000)) + "}"
COLUMNS = ",".join(f"k{key}" for key in range(100_000)) + "\n" + "1," * 99_999 + "1"
COUNTING = "WITH RECURSIVE t(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM t) SELECT max(x) AS x, 1 AS y FROM t"
ENDLESS: dict[str, tuple[str, str, str]] = {  # a file, its text, a cell far from the others or a query, and the end
    "Excel: a far cell": ("t.xlsx", "XFD1048576", "rows 40"),
    "Excel: a far column": ("t.xlsx", "XFD1", "refused"),
    "SQLite: never a row": ("t.db", COUNTING, "refused"),
    "SQLite: long texts": ("t.db", "SELECT hex(zeroblob(900000000)) AS x, 1 AS y", "refused"),
    "DuckDB: a sum": ("t.duckdb", "SELECT sum(sin(range)) AS x, 1 AS y FROM range(100000000000)", "refused"),
    "JSON lines: sparse keys": ("t.jsonl", SPARSE, "refused"),
    "JSON lines: keys of one line": ("t.jsonl", ONE_LINE, "refused"),
    "CSV: columns": ("t.csv", COLUMNS, "refused"),
}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", ENDLESS)
def test_it_ends(tmp_path: Path, name: str) -> None:
    file, content, wanted = ENDLESS[name]
    path, arguments = tmp_path / file, [f"federation.dataset={tmp_path / file}", "federation.label=y"]
    if path.suffix in {".db", ".duckdb"}:
        empty_base(path)
        arguments.append(f"federation.query={content}")
    else:
        far_sheet(path, content) if path.suffix == ".xlsx" else path.write_text(content)
    began = time.monotonic()
    arguments += ["federation.min_release=2", "federation.max_query_seconds=5"]
    done = ran(sys.executable, "-c", READ, *arguments, timeout=100)
    seconds = time.monotonic() - began
    told, *_, last = done.stdout.splitlines()
    assert told.startswith(wanted), told
    assert not done.stderr.count("Traceback")
    used_seconds, *sizes = map(float, last.split())
    assert (1 if sys.platform == "darwin" else 1024) * max(sizes) < MOST_BYTES
    assert min(seconds, used_seconds) < MOST_SECONDS  # by the clock, or, on a machine that does other things, by work


# Files that are large once unpacked: signals are heard while they are read, too little memory is one line.


MANY_ROWS = 1_000_000
MANY_KEYS = ("federation.dataset=t.parquet", "federation.label=y")
MOST_SILENCE = 1 / 3
"""Of silence with so many rows, as it may be a second with three times as many."""


def save_parquet(path: Path, num_rows: int) -> Path:
    """Write few bytes that stand for many rows."""
    rows = np.arange(num_rows)
    sites = pa.DictionaryArray.from_arrays(pa.array(rows % 40), [f"site {number}" for number in range(40)])
    labels = pa.DictionaryArray.from_arrays(pa.array(rows % 2), ["a", "b"])
    pq.write_table(pa.table({"x": rows % 1000 / 8, "site": sites, "y": labels}), path)
    return path


def built(path: Path, *settings: str) -> Federation:
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


@pytest.mark.slow
@pytest.mark.parametrize("key", ["client_column", "group_column"])
def test_signals_are_heard_while_rows_are_read_and_dealt(tmp_path: Path, key: str) -> None:
    path = save_parquet(tmp_path / "t.parquet", MANY_ROWS)
    assert longest_silence(lambda: built(path, f"federation.{key}=site")) < MOST_SILENCE


@pytest.mark.stress
@pytest.mark.slow
@pytest.mark.parametrize("num_rows", [9_000_000, 11_000_000])
def test_too_little_memory_is_told_in_one_line(tmp_path: Path, num_rows: int) -> None:
    """Rows that do not fit, and rows that are refused before any of them is read."""
    save_parquet(tmp_path / "t.parquet", num_rows)
    limit = 7 * 2**28
    done = subprocess.run(
        [sys.executable, "-m", "fedscout.experiments.cli.main", "describe", *MANY_KEYS],
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
