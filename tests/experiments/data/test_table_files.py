"""Tables in text and Parquet files: one idea of a missing cell, and what is no table is named."""

from __future__ import annotations

import csv
import datetime
import gzip
import io
import os
import pickle
import zipfile
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.errors import DataError
from fedscout.experiments.data.dataset import MAX_CELL_LENGTH, ReadLimits
from fedscout.experiments.data.table_files import (
    DELIMITERS,
    MAX_NAME_LENGTH,
    read_csv,
    read_frame,
    read_parquet,
    sniff_delimiter,
)
from fedscout.experiments.data.table_formats import read_excel
from tests.experiments.data.image_files import random_images, write_idx
from tests.experiments.data.loading import assert_refused, load_dataset
from tests.kits.refusals import refused


def write(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def zipped(files: dict[str, str]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return packed.getvalue()


@pytest.mark.parametrize("delimiter", DELIMITERS)
def test_the_delimiter_is_found(tmp_path: Path, delimiter: str) -> None:
    rows = [["a", "b c", "d"], ["1.5", '"x,;|\ty"', "z"], ["", "", "2"]]
    path = write(tmp_path, "\n".join(delimiter.join(row) for row in rows))
    assert sniff_delimiter(path, path.read_text()) == delimiter
    assert list(read_csv(path, delimiter).to_pylist()[0].values()) == ["1.5", "x,;|\ty", "z"]


@pytest.mark.parametrize(
    ("content", "delimiter"),
    [
        ("a;b\n1,5;2\n", ";"),  # a decimal comma does not split the header
        ("a,b;c,d\n1,2;3,4\n", ","),  # three fields rather than two
        ("a;b;c\n1,1;2;3,2\n", ";"),
        ("note,x\nfirst; second,1\n", ","),
        ("a,b,c\n1,2\n", ","),  # ragged: the header decides, and reading names the line
        ("\n\na\tb\n\n1\t2\n", "\t"),
    ],
)
def test_of_several_characters_the_one_that_fits(tmp_path: Path, content: str, delimiter: str) -> None:
    assert sniff_delimiter(tmp_path, content) == delimiter


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("label\n1\n", "'label'"),
        ("a b c\n1 2\n", "'a b c'"),
        ("a;b,c\n1;2,3\n", "federation.separator=comma or federation.separator=semicolon"),
    ],
)
def test_no_delimiter(content: str, names: str) -> None:
    with refused(DataError, key="the columns of t.csv", names=names):
        sniff_delimiter(Path("t.csv"), content)


@pytest.mark.parametrize(
    ("content", "name", "named"),
    [
        (b"", "t.csv", "empty"),
        (b"\n \n", "t.csv", "empty"),
        (pickle.dumps({"a": [1]}, protocol=5), "t.csv", "UTF-8"),
        (b"a,b\n1,\x00\n", "t.csv", "zero byte at character 6"),
        (b"a,b\n1,2\n", "t.csv.gz", "gzipped"),
        (gzip.compress(b"a,b\n1,2\n" * 99)[:-9], "t.csv.gz", "end-of-stream"),
        (zipped({}), "t.zip", "got 0"),
        (zipped({"a.csv": "a,b\n", "b.csv": "a,b\n"}), "t.zip", "got 2: a.csv, b.csv"),
        (zipped({"a.csv": "a,b\n1,2\n" * 99})[:80], "t.zip", "can't be read"),
    ],
    ids=lambda value: "file" if isinstance(value, bytes) else None,  # packed ones hold the time
)
def test_what_is_no_text(tmp_path: Path, content: bytes, name: str, named: str) -> None:
    path = write(tmp_path, content, name)
    with refused(DataError, key=name, names=named) as caught:
        read_csv(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    ["a,b,c\n1,2,3\n1,2\n", "a,b,c\n\n1,2,3\n1\n", "a,b\n1,2,3\n", "a,b\n1,2\n1,2,3\n", 'a,b\n1,2\n"3,4\n5,6\n'],
)
def test_ragged_rows(tmp_path: Path, content: str) -> None:
    with refused(DataError, key="every row of table.csv"):
        read_csv(write(tmp_path, content), ",")


def test_empty_last_cells_and_blank_lines_are_not_ragged(tmp_path: Path) -> None:
    rows = read_csv(write(tmp_path, 'a,b\n1,\n\n"",""\n  \n"x\ny",\n'), ",")
    assert rows.to_pydict() == {"a": ["1", None, "x\ny"], "b": [None, None, None]}


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('a, b ,"c, d"\n1, 2 ,"p, q"\n 3,4,  r\n', [["1", "2", "p, q"], ["3", "4", "r"]]),
        ('a,b,c\n5" tall,"say ""x""","l1\nl2"\n', [['5" tall', 'say "x"', "l1\nl2"]]),
        ('"a\n1",b,c\r\n1,"x"z,\r\n', [["1", "xz", None]]),
        ("a,b,c\r1,2,3\r4,5,6", [["1", "2", "3"], ["4", "5", "6"]]),
    ],
    ids=["spaces", "quotes in cells", "a name of two lines", "old line ends"],
)
def test_the_standard_library_reads_the_same(tmp_path: Path, text: str, rows: list[list[str | None]]) -> None:
    first, *others = csv.reader(io.StringIO(text, newline=""))
    assert [[cell.strip() or None for cell in row] for row in others] == rows
    table = read_csv(write(tmp_path, text), ",")
    assert table.column_names == [name.strip() for name in first]
    assert [list(row.values()) for row in table.to_pylist()] == rows


@given(st.lists(st.lists(st.text("ab \n\"',;1.", max_size=5), min_size=2, max_size=2), min_size=1, max_size=20))
def test_what_the_standard_library_writes_is_read(rows: list[list[str]]) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "table.csv"
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["x", "y"], *rows])
        table = read_csv(path, ",")
    assert [list(row.values()) for row in table.to_pylist()] == [[cell.strip() or None for cell in row] for row in rows]


TOWNS = "name,town\nMüller,Köln\nJosé,Zürich\nGrün,Genève\n"
CYRILLIC = "имя,город\nИван,Москва\nПётр,Казань\n"


@pytest.mark.parametrize("packing", ["", ".gz"])
@pytest.mark.parametrize(
    ("text", "encoding"), [(TOWNS, "cp1252"), (TOWNS, "latin-1"), (TOWNS, "utf-16"), (CYRILLIC, "cp1251")]
)
def test_the_encoding_is_found(
    tmp_path: Path, text: str, encoding: str, packing: str, caplog: pytest.LogCaptureFixture
) -> None:
    wanted = read_csv(write(tmp_path, text, "wanted.csv"))
    content = text.encode(encoding)
    path = write(tmp_path, gzip.compress(content) if packing else content, f"table.csv{packing}")
    assert not caplog.records
    assert read_csv(path, encoding=None).equals(wanted)
    assert len(caplog.records) == 1
    assert "federation.encoding" in caplog.text
    caplog.clear()
    assert read_csv(path, encoding=encoding).equals(wanted)
    assert not caplog.records


def test_an_encoding_is_found_far_from_the_beginning(tmp_path: Path) -> None:
    lines = ["a,b", *["1,2"] * 400_000, "3,é"]
    table = read_csv(write(tmp_path, "\n".join(lines).encode("cp1252")), encoding=None)
    assert (len(table), table["b"][400_000].as_py()) == (400_001, "é")


@pytest.mark.parametrize("separator", ["^", " ", ":"])
def test_a_given_separator(tmp_path: Path, separator: str) -> None:
    rows = [["a", "b", "c"], ["1", '"x  y"', "z"], ["2", "3", "4"]]
    path = write(tmp_path, "\n".join(separator.join(row) for row in rows))
    assert read_csv(path, separator).to_pydict() == {"a": ["1", "2"], "b": ["x  y", "3"], "c": ["z", "4"]}


@pytest.mark.parametrize(
    "first", ["5.1,3.5,setosa", "34,20,berlin", "2024-01-31,a,b", "7,7,x"], ids=["fractions", "whole", "date", "equal"]
)
def test_a_first_line_of_data_is_said_to_be_no_header(tmp_path: Path, first: str) -> None:
    path = write(tmp_path, f"{first}\n5.1,3.5,ill\n")
    with refused(DataError, key="the first line of table.csv", names="federation.header=false"):
        read_csv(path, has_header=None)
    table = read_csv(path, has_header=False)
    assert (table.column_names, len(table)) == (["column1", "column2", "column3"], 2)
    if len(set(first.split(","))) == 3:
        assert read_csv(path, has_header=True).column_names == first.split(",")


@pytest.mark.parametrize("first", ["country,2001,2002", "label,0,1,2", "a,b,7"], ids=["years", "pixels", "one"])
def test_numbers_that_rise_name_columns(tmp_path: Path, first: str) -> None:
    assert read_csv(write(tmp_path, f"{first}\n{first}\n"), has_header=None).column_names == first.split(",")


def test_a_file_without_a_header(tmp_path: Path) -> None:
    path = write(tmp_path, "1,2\n3,4\n")
    assert read_csv(path, ",", columns=("a", "b")).to_pydict() == {"a": ["1", "3"], "b": ["2", "4"]}
    with pytest.raises(DataError, match="a, b, c, got 2"):
        read_csv(path, ",", columns=("a", "b", "c"))


def test_a_saved_index_may_lack_a_name(tmp_path: Path) -> None:
    assert read_csv(write(tmp_path, ",a\n0,5\n1,6\n"), ",").column_names == ["index", "a"]
    with refused(DataError, key="the column names of table.csv", given="''"):
        read_csv(write(tmp_path, "a,\n0,5\n1,6\n"), ",")


# Parquet.


@pytest.mark.parametrize(
    "index",
    [
        pd.Index([7, 8, 9], name="person"),
        pd.Index([7, 8, 9]),
        pd.RangeIndex(3, name="person"),
        pd.MultiIndex.from_arrays([[7, 8, 9], ["x", "y", "z"]], names=["person", None]),
    ],
    ids=["named", "nameless", "a named range", "two levels"],
)
def test_an_index_is_alike_in_parquet_and_frame(tmp_path: Path, index: pd.Index) -> None:
    frame = pd.DataFrame({"a": [1, 2, 3]}, index=index)
    frame.to_parquet(tmp_path / "t.parquet")
    assert read_frame(frame).equals(read_parquet(tmp_path / "t.parquet"))


def write_parquet(folder: Path, **columns: pa.Array) -> Path:
    path = folder / "table.parquet"
    pq.write_table(pa.table(columns), path)
    return path


DAY = datetime.date(2024, 1, 31)
NOON = datetime.datetime(2024, 1, 31, 12, tzinfo=datetime.UTC)
CELLS: dict[str, tuple[pa.Array, list[Any]]] = {
    "whole": (pa.array([1, 2, 3]), [1, 2, 3]),
    "gap": (pa.array([1, None, 3]), [1, None, 3]),
    "half": (pa.array([0.5, None, -1], pa.float32()), [0.5, None, -1]),
    "wrong": (pa.array([0.5, float("nan"), None]), [0.5, None, None]),
    "decimal": (pa.array([Decimal("1.25"), None, Decimal("2.50")]), [1.25, None, 2.5]),
    "text": (pa.array([" a", None, "b"]), ["a", None, "b"]),
    "code": (pa.array(["x", None, "x"]).dictionary_encode(), ["x", None, "x"]),
    "truth": (pa.array([True, None, False]), ["true", None, "false"]),
    "nothing": (pa.nulls(3), [None, None, None]),
    "day": (pa.array([DAY] * 3), [datetime.datetime(2024, 1, 31)] * 3),
    "moment": (pa.array([NOON] * 3), [NOON] * 3),
    "clock": (pa.array([NOON.time()] * 3), ["12:00:00.000000"] * 3),
}


def test_plain_types(tmp_path: Path) -> None:
    rows = read_parquet(write_parquet(tmp_path, **{name: cells for name, (cells, _) in CELLS.items()}))
    assert rows.to_pydict() == {name: expected for name, (_, expected) in CELLS.items()}


@pytest.mark.parametrize("cells", [pa.array([[1], [2]]), pa.array([{"a": 1}, {"a": 2}]), pa.array([b"1", b"2"])])
def test_nested_and_binary_columns_are_refused_unless_left_out(tmp_path: Path, cells: pa.Array) -> None:
    path = write_parquet(tmp_path, x=pa.array([1, 2]), odd=cells)
    with refused(DataError, key="column 'odd' of table.parquet", names="federation.columns.odd=drop"):
        read_parquet(path)
    assert read_parquet(path, dropped=("odd",))["x"].to_pylist() == [1, 2]


def faulty_parquet(folder: Path) -> dict[str, bytes | pa.Table]:
    content = write_parquet(folder, a=pa.array(range(1000))).read_bytes()
    damaged = {"empty": b"", "text": b"a,b\n1,2\n", "truncated": content[:99], "tail lost": content[:-3]}
    repeated = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    return {**damaged, "repeated names": repeated, "no rows": pa.table({"a": pa.array([], pa.int64())})}


@pytest.mark.parametrize("fault", ["empty", "text", "truncated", "tail lost", "repeated names", "no rows"])
def test_what_is_no_parquet(tmp_path: Path, fault: str) -> None:
    path, content = tmp_path / "table.parquet", faulty_parquet(tmp_path)[fault]
    path.write_bytes(content) if isinstance(content, bytes) else pq.write_table(content, path)
    key = "the column names of table.parquet" if fault == "repeated names" else "table.parquet"
    with refused(DataError, key=key) as caught:
        read_parquet(path)
    assert "\n" not in str(caught.value)


# Files larger than what is to be read, and what only looks like a file: one fault, after little time and memory.


ROWS = "x,y\n" + "1,a\n2,b\n" * 50


def test_a_zip_archive_with_a_password(tmp_path: Path) -> None:
    path = tmp_path / "t.csv.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("t.csv", ROWS)
    content = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag "encrypted" of the file and its entry
        content[content.index(mark) + offset] |= 1
    path.write_bytes(content)
    with refused(DataError, key="t.csv.zip"):
        read_csv(path)


def test_unpacking_ends_where_the_limit_is_passed(tmp_path: Path) -> None:
    """A gigabyte of packed zeros is refused after the first ten kilobytes: what follows is damaged and never seen."""
    path = tmp_path / "t.csv.gz"
    path.write_bytes(gzip.compress(b"x,y\n" + b"1,a\n" * 500_000)[:-1000])
    with refused(DataError, key="t.csv.gz"):
        read_csv(path, ",", limits=ReadLimits(max_bytes=10_000))
    with refused(DataError, key="t.csv.gz"):
        read_csv(path, ",")


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.zip", "t.parquet"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert_refused(str(tmp_path / name), label="y", key=name, names="pipe")


def test_a_name_that_no_file_system_takes(tmp_path: Path) -> None:
    assert_refused(str(tmp_path / f"{'n' * 300}.csv"), label="y", key="federation.dataset")


@pytest.mark.parametrize("row", [1, 60])
def test_a_cell_of_ten_megabytes(tmp_path: Path, row: int) -> None:
    lines = ROWS.splitlines()
    path = tmp_path / "t.csv"
    for length, fits in ((MAX_CELL_LENGTH, True), (MAX_CELL_LENGTH + 1, False), (10_000_000, False)):
        lines[row] = f"{'z' * length},a"
        path.write_text("\n".join(lines))
        if fits:
            assert len(read_csv(path)) == 100
            continue
        with refused(DataError, key="every cell of t.csv"):
            read_csv(path)


@pytest.mark.parametrize("length", [MAX_NAME_LENGTH + 1, 10_000_000])
def test_a_column_name_without_end(tmp_path: Path, length: int) -> None:
    path = write(tmp_path, f"x,{'n' * length}\n1,a\n2,b\n")
    with pytest.raises(DataError, match=r"columns of .*t|column names of .*t") as caught:
        read_csv(path)
    assert len(str(caught.value)) < 400


def test_a_header_of_many_columns_is_read_though_no_other_delimiter_fits_it(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    names = [f"column_{number:043}" for number in range(3000)]
    path.write_text("\n".join((",".join(names), ",".join("1" * 3000), ",".join("2" * 3000))))
    assert len(names[0]) * len(names) > MAX_CELL_LENGTH
    rows = read_csv(path)
    assert rows.column_names == names
    assert [column[1].as_py() for column in rows.columns] == ["2"] * 3000


# Files of published data sets obey the same keys.


def test_images_in_arrays(tmp_path: Path) -> None:
    labels = np.arange(20, dtype=np.uint8) % 10
    write_idx(tmp_path / "mnist", random_images(20, 28, 28), labels, packed=True)
    assert load_dataset("mnist", folder=tmp_path, limits=ReadLimits(max_bytes=20 * 28 * 28)).num_rows == 20
    with refused(DataError, key="train-images-idx3-ubyte.gz", names="max_file_bytes"):
        load_dataset("mnist", folder=tmp_path, limits=ReadLimits(max_bytes=20 * 28 * 28 - 1))
    (tmp_path / "cifar10").mkdir()
    np.savez_compressed(tmp_path / "cifar10" / "train.npz", x=np.zeros((20, 32, 32, 3), np.uint8), y=labels)
    assert load_dataset("cifar10", folder=tmp_path).num_rows == 20
    with refused(DataError, key="train.npz", names="max_file_bytes"):
        load_dataset("cifar10", folder=tmp_path, limits=ReadLimits(max_bytes=60_000))


# What a sheet shows is what is read: merged cells in all their places, formulas by their stored values, or not.


def book(folder: Path, rows: list[list[Any]], *merged: str) -> Path:
    made = openpyxl.Workbook()
    page = made.active
    for row in rows:
        page.append(row)
    for area in merged:
        page.merge_cells(area)
    made.save(folder / "t.xlsx")
    return folder / "t.xlsx"


@pytest.mark.parametrize(
    ("merged", "column_a", "column_b"),
    [
        (("A2:A3", "A4:A5"), ["north", "north", "west", "west"], [1, 2, 3, 4]),
        (("A3:B4",), ["north", "south", "south", "east"], ["1", "south", "south", "4"]),
        (("B2:D5",), ["north", "south", "west", "east"], [1, 1, 1, 1]),
    ],
)
def test_merged_cells_hold_what_the_sheet_shows(
    tmp_path: Path, merged: tuple[str, ...], column_a: list[Any], column_b: list[Any]
) -> None:
    rows = [["a", "b"], ["north", 1], ["south", 2], ["west", 3], ["east", 4]]
    assert read_excel(book(tmp_path, rows, *merged)).to_pydict() == {"a": column_a, "b": column_b}


def test_a_text_that_begins_as_a_formula_does_is_a_text(tmp_path: Path) -> None:
    made = openpyxl.Workbook()
    page = made.active
    page.append(["a", "b"])
    page.append([1, "x"])
    page["B2"].value, page["B2"].data_type = "=x", "s"
    made.save(tmp_path / "t.xlsx")
    assert read_excel(tmp_path / "t.xlsx").to_pydict() == {"a": [1], "b": ["=x"]}
