"""Tables of every format: one idea of a missing cell, the same rows, limits; what is no table is named."""

from __future__ import annotations

import csv
import datetime
import gzip
import http.server
import io
import json
import os
import pickle
import sqlite3
import sys
import threading
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from decimal import Decimal
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given, strategies as st

from fedscout.engine.errors import ConfigurationError, DataError, UserError
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
from fedscout.experiments.federation_config import FederationConfig
from tests.experiments.data import image_files
from tests.experiments.data.awkward_tables import patients
from tests.experiments.data.image_files import random_images, write_idx
from tests.experiments.data.loading import assert_refused, clients_of, load_dataset
from tests.kits.refusals import refused


def write(folder: Path, content: str | bytes, name: str = "table.csv") -> Path:
    return image_files.write(folder / name, content)


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


@given(st.lists(st.lists(st.text("ab \n\"',;1.", max_size=5), min_size=2, max_size=2), min_size=1, max_size=20))
@example([['5" tall', "l1\nl2"], ["", '"']])
def test_what_the_standard_library_writes_is_read(rows: list[list[str]]) -> None:
    text = io.StringIO()
    csv.writer(text).writerows([["x", "y"], *rows])
    with TemporaryDirectory() as folder:
        table = read_csv(write(Path(folder), text.getvalue()), ",")
    assert [list(row.values()) for row in table.to_pylist()] == [[cell.strip() or None for cell in row] for row in rows]


@pytest.mark.parametrize(
    "text",
    ['a, b ,"c, d"\n1, 2 ,"p, q"\n 3,4,  r\n', '"a\n1",b,c\r\n1,"x"z,\r\n5" tall,2,3', "a,b,c\r1,2,3\r4,5,6"],
    ids=["spaces", "quotes in names and within cells", "old line ends"],
)
def test_what_the_standard_library_reads_is_read_the_same(tmp_path: Path, text: str) -> None:
    names, *rows = csv.reader(io.StringIO(text, newline=""))
    table = read_csv(write(tmp_path, text), ",")
    assert table.column_names == [name.strip() for name in names]
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
    assert read_csv(path, encoding=None).equals(wanted)
    assert len(caplog.records) == 1
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


@pytest.mark.parametrize("first", ["5.1,3.5,setosa", "34,20,berlin", "2024-01-31,a,b", "7,7,x"])
def test_a_first_line_of_data_is_said_to_be_no_header(tmp_path: Path, first: str) -> None:
    path = write(tmp_path, f"{first}\n5.1,3.5,ill\n")
    with refused(DataError, key="the first line of table.csv", names="federation.header=false"):
        read_csv(path, has_header=None)
    table = read_csv(path, has_header=False)
    assert (table.column_names, len(table)) == (["column1", "column2", "column3"], 2)
    if len(set(first.split(","))) == 3:
        assert read_csv(path, has_header=True).column_names == first.split(",")


@pytest.mark.parametrize("first", ["country,2001,2002", "label,0,1,2", "a,b,7"])
def test_numbers_that_rise_name_columns(tmp_path: Path, first: str) -> None:
    assert read_csv(write(tmp_path, f"{first}\n{first}\n"), has_header=None).column_names == first.split(",")


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


def test_what_is_no_parquet_or_lacks_rows_or_names_of_its_own(tmp_path: Path) -> None:
    path = write_parquet(tmp_path, a=pa.array(range(1000)))
    for content in (b"", b"a,b\n1,2\n", path.read_bytes()[:-3]):
        path.write_bytes(content)
        with refused(DataError, key="table.parquet") as caught:
            read_parquet(path)
        assert "\n" not in str(caught.value)
    with refused(DataError, key="table.parquet"):
        read_parquet(write_parquet(tmp_path, a=pa.array([], pa.int64())))
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), path)
    with refused(DataError, key="the column names of table.parquet"):
        read_parquet(path)


# Files larger than what is to be read, and what only looks like a file: one fault, after little time and memory.


def test_a_zip_archive_with_a_password(tmp_path: Path) -> None:
    content = bytearray(zipped({"t.csv": "x,y\n1,a\n"}))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):  # the flag "encrypted" of the file and its entry
        content[content.index(mark) + offset] |= 1
    with refused(DataError, key="t.csv.zip"):
        read_csv(write(tmp_path, bytes(content), "t.csv.zip"))


def test_unpacking_ends_where_the_limit_is_passed(tmp_path: Path) -> None:
    """What is packed is refused after the first megabyte: what follows is damaged and never seen."""
    path = write(tmp_path, gzip.compress(b"x,y\n" + b"1,a\n" * 5_000_000)[:-1000], "t.csv.gz")
    with refused(DataError, key="t.csv.gz", names="max_file_bytes"):
        read_csv(path, ",", limits=ReadLimits(max_bytes=10_000))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.csv.zip", "t.parquet"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    assert_refused(str(tmp_path / name), label="y", key=name, names="pipe")


def test_a_name_that_no_file_system_takes(tmp_path: Path) -> None:
    assert_refused(str(tmp_path / f"{'n' * 300}.csv"), label="y", key="federation.dataset")


@pytest.mark.parametrize("row", [1, 60])
def test_a_cell_of_ten_megabytes(tmp_path: Path, row: int) -> None:
    lines = ["x,y", *["1,a", "2,b"] * 50]
    lines[row] = f"{'z' * MAX_CELL_LENGTH},a"
    assert len(read_csv(write(tmp_path, "\n".join(lines)))) == 100
    for length in (MAX_CELL_LENGTH + 1, 10_000_000):
        lines[row] = f"{'z' * length},a"
        with refused(DataError, key="every cell of table.csv"):
            read_csv(write(tmp_path, "\n".join(lines)))


@pytest.mark.parametrize("length", [MAX_NAME_LENGTH + 1, 10_000_000])
def test_a_column_name_without_end(tmp_path: Path, length: int) -> None:
    with pytest.raises(DataError, match=r"columns of .*t|column names of .*t") as caught:
        read_csv(write(tmp_path, f"x,{'n' * length}\n1,a\n2,b\n"))
    assert len(str(caught.value)) < 400


def test_a_header_of_many_columns_is_read_though_no_other_delimiter_fits_it(tmp_path: Path) -> None:
    names = [f"column_{number:043}" for number in range(3000)]
    assert len(names[0]) * len(names) > MAX_CELL_LENGTH
    rows = read_csv(write(tmp_path, "\n".join((",".join(names), ",".join("1" * 3000), ",".join("2" * 3000)))))
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
    path = book(tmp_path, [["a", "b"], [1, "x"]])
    made = openpyxl.load_workbook(path)
    made.active["B2"].value, made.active["B2"].data_type = "=x", "s"
    made.save(path)
    assert read_excel(path).to_pydict() == {"a": [1], "b": ["=x"]}


# Formats by suffix or address: the same rows, the same data; what can carry code is not opened.


ROLES = {"label": "outcome", "client_column": "hospital"}
FORMATS = ("t.csv", "t.parquet", "t.feather", "t.arrow", "t.jsonl", "t.ndjson.gz", "t.xlsx", "t.sqlite", "t.duckdb")


def save(table: pd.DataFrame, path: Path) -> Path:
    """Write a table in the format that the name asks for."""
    match path.suffixes:
        case [".csv" | ".CSV" | ".tsv" | ".txt"] | [".csv", ".gz"]:
            separator = {".tsv": "\t", ".txt": "|", ".gz": ";"}.get(path.suffix, ",")
            table.to_csv(path, index=False, sep=separator)
        case [".parquet"]:
            table.to_parquet(path, index=False)
        case [".feather"]:
            table.to_feather(path)
        case [".arrow"]:
            rows = pa.Table.from_pandas(table, preserve_index=False)
            with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, rows.schema) as stream:
                stream.write_table(rows, max_chunksize=64)
        case [".jsonl"]:
            path.write_text(table.to_json(orient="records", lines=True))
        case [".ndjson", ".gz"]:
            path.write_bytes(gzip.compress(table.to_json(orient="records", lines=True).encode()))
        case [".xlsx"]:
            table.to_excel(path, index=False)
        case [".sqlite"]:
            with sqlite3.connect(path) as connection:
                table.to_sql("visits", connection, index=False)
            connection.close()
        case [".duckdb"]:
            import duckdb

            with duckdb.connect(str(path)) as base:
                base.from_df(table).create("visits")
    return path


@pytest.mark.parametrize("name", [*FORMATS, "t.tsv", "t.txt", "t.csv.gz", "t.CSV"])
def test_every_format_gives_the_same_data(tmp_path: Path, name: str) -> None:
    wanted = load_dataset(str(save(patients(), tmp_path / "wanted.csv")), **ROLES)
    dataset = load_dataset(str(save(patients(), tmp_path / name)), **ROLES)
    assert dataset.feature_names == wanted.feature_names
    np.testing.assert_array_equal(dataset.labels, wanted.labels)
    np.testing.assert_allclose(dataset.features, wanted.features, atol=1e-6)
    assert dataset.facts["columns"] == wanted.facts["columns"]


@pytest.mark.parametrize("name", FORMATS)
def test_limits_hold_in_every_format(tmp_path: Path, name: str) -> None:
    path = str(save(patients(), tmp_path / name))
    assert_refused(path, names=(name, "federation.max_file_rows=199"), limits=ReadLimits(max_rows=199), **ROLES)
    assert load_dataset(path, ReadLimits(max_rows=200), **ROLES).num_rows == 200
    assert_refused(path, key=name, names="federation.max_file_bytes=2000", limits=ReadLimits(max_bytes=2000), **ROLES)


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_any_damage_is_one_clear_fault(tmp_path: Path, name: str) -> None:
    """A byte turned, an end cut off: a data set, or an error that is the user's."""
    content = save(patients(), tmp_path / name).read_bytes()
    generator = np.random.default_rng(0)
    path = tmp_path / f"damaged{''.join(Path(name).suffixes)}"
    for trial in range(25):
        place = int(generator.integers(len(content)))
        damaged = content[:place] + (bytes([content[place] ^ 0xFF]) + content[place + 1 :] if trial % 2 else b"")
        path.write_bytes(damaged)
        with suppress(UserError):
            load_dataset(str(path), **ROLES)


# Databases.


def test_a_query_chooses_the_rows(tmp_path: Path) -> None:
    path = save(patients(), tmp_path / "t.sqlite")
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE other (x)")
    connection.close()
    assert_refused(str(path), names=("federation.query", "t.sqlite", "other, visits"), **ROLES)
    query = "SELECT age, outcome, hospital FROM visits WHERE age > 40;"
    for place in (str(path), f"sqlite:///{path}"):
        dataset = load_dataset(place, query=query, **ROLES)
        assert dataset.num_rows == int((patients()["age"] > 40).sum())
        assert dataset.feature_names == ("age",)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["t.sqlite", "t.duckdb"])
@pytest.mark.parametrize(
    "query",
    [
        "DROP TABLE visits",
        "SELECT 1; DROP TABLE visits",
        "WITH gone AS (SELECT 1) DELETE FROM visits",
        "INSERT INTO visits SELECT * FROM visits",
        "ATTACH 'x.db' AS y",
        "SELECT * INTO copy FROM visits",
        "SELECT * FROM nowhere",
        "SELECT * FROM read_csv('secret.csv')",
    ],
)
def test_nothing_but_one_select_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, query: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("secret.csv").write_text("outcome,hospital,x\na,b,1\nc,b,2\n")
    path = save(patients(), tmp_path / name)
    with pytest.raises(UserError):
        load_dataset(str(path), query=query, **ROLES)
    assert load_dataset(str(path), **ROLES).num_rows == 200


def test_an_address_of_a_database_holds_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    addresses = (
        "postgresql://user:secret@host/name",
        "mysql://host/name?password=secret",
        "https://u:secret@host/t.csv",
    )
    for address in addresses:
        with refused(ConfigurationError, key="federation.dataset") as caught:
            load_dataset(address, query=None if address.startswith("https") else "SELECT 1", label="y")
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("name", "value"), [("encoding", "cp1252"), ("separator", "tab"), ("header", "false")])
def test_how_a_text_is_written_is_for_text_files_alone(tmp_path: Path, name: str, value: str) -> None:
    path = str(save(patients(), tmp_path / "t.parquet"))
    assert_refused(path, key=f"federation.{name}", kind=ConfigurationError, **{name: value}, **ROLES)


# One file a client.


def test_a_file_a_client(tmp_path: Path) -> None:
    table = patients()
    for name, rows in table.groupby("hospital"):
        save(rows.drop(columns="hospital"), tmp_path / f"{name}.csv")
    config = FederationConfig(dataset=f"{tmp_path}/*.csv", label="outcome")
    assert config.partition.kind == "natural"
    dataset = load_dataset(f"{tmp_path}/*.csv", label="outcome")
    assert clients_of(dataset) == sorted(table["hospital"])
    whole = load_dataset(str(save(table.sort_values("hospital", kind="stable"), tmp_path / "t.parquet")), **ROLES)
    np.testing.assert_array_equal(dataset.features, whole.features)
    with refused(DataError, key="*.csv", names="max_file_rows"):
        load_dataset(f"{tmp_path}/*.csv", ReadLimits(max_rows=150), label="outcome")
    (tmp_path / "h3.csv").write_text("age,outcome\n1,died\n")
    assert_refused(f"{tmp_path}/*.csv", label="outcome", key="h3.csv")
    assert_refused(f"{tmp_path}/*.tsv", label="outcome", key="federation.dataset")


# Arrays.


def save_arrays(path: Path, **arrays: Any) -> str:
    np.savez_compressed(path, **arrays)
    return str(path)


def test_arrays_of_numbers_are_a_table(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=(60, 3)), generator.integers(0, 2, 60)
    clients = np.array(["a", "b", "c"] * 20)
    path = save_arrays(tmp_path / "t.npz", x=x, y=y, client=clients)
    dataset = load_dataset(path, client_column="client")
    assert dataset.feature_names == ("x0", "x1", "x2")
    np.testing.assert_array_equal(dataset.labels, y)
    np.testing.assert_allclose(dataset.features, (x - x.mean(axis=0)) / x.std(axis=0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3), (1, 8, 8)])
def test_arrays_of_pictures(tmp_path: Path, shape: tuple[int, ...]) -> None:
    generator = np.random.default_rng(0)
    x, y = generator.integers(0, 256, (40, *shape), dtype=np.uint8), np.array([10, 9] * 20)
    dataset = load_dataset(save_arrays(tmp_path / "mnist.npz", x=x, y=y))
    assert (dataset.kind, dataset.features.shape[1:]) == ("image", (3 if shape[-1] == 3 else 1, 8, 8))
    assert dataset.class_names == ("9", "10")
    assert dataset.labels.tolist() == [1, 0] * 20
    floats = load_dataset(save_arrays(tmp_path / "f.npz", x=x / 255, y=y))
    np.testing.assert_allclose(floats.features, dataset.features, atol=1e-6)


@pytest.mark.parametrize(
    ("arrays", "key", "names"),
    [
        ({"x": np.array([[{}]] * 4, dtype=object), "y": [0, 1, 0, 1]}, "t.npz", "Object arrays"),
        ({"x": np.ones((4, 2))}, "t.npz", "got x"),
        ({"x": np.ones(4), "y": np.ones(4)}, "t.npz", "(4,)"),
        ({"x": np.ones((4, 2)), "y": np.ones(3)}, "t.npz", "(3,)"),
        ({"x": np.ones((4, 2)), "y": np.array(["a", "b"] * 2), "client": np.ones((4, 1))}, "t.npz", "(4, 1)"),
        ({"x": np.array([["a"], ["b"]]), "y": np.ones(2)}, "t.npz", "<U1"),
        ({"x": np.ones((4, 2, 2)) * 7, "y": [0, 1, 0, 1]}, "the pictures of t.npz", "0 to 1"),
        ({"x": np.zeros((1000, 1000)), "y": np.zeros(1000)}, "t.npz", "max_file_bytes=1000000"),
    ],
)
def test_other_arrays_are_refused(tmp_path: Path, arrays: dict[str, Any], key: str, names: str) -> None:
    path = save_arrays(tmp_path / "t.npz", **arrays)
    assert_refused(path, key=key, names=names, limits=ReadLimits(max_bytes=1_000_000))


# The web.


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    class Silent(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *told: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(tmp_path))) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


@pytest.mark.slow
def test_a_table_on_the_web(tmp_path: Path, server: str) -> None:
    wanted = load_dataset(str(save(patients(), tmp_path / "t.parquet")), **ROLES)
    dataset = load_dataset(f"{server}/t.parquet", **ROLES)
    np.testing.assert_array_equal(dataset.features, wanted.features)
    assert (dataset.name, dataset.source) == ("t.parquet", f"{server}/t.parquet")
    assert_refused(f"{server}/t.parquet", names="max_file_bytes=2000", limits=ReadLimits(max_bytes=2000), **ROLES)
    assert_refused(f"{server}/none.csv", names="none.csv", **ROLES)


@pytest.mark.parametrize(
    ("place", "key", "library", "hint"),
    [
        ("s3://b/t.csv", "s3://b/t.csv", "", "s3fs"),
        ("postgresql://user@host/name", "reading postgresql://user@host/name", "", "pip install psycopg"),
        ("t.xlsx", "reading t.xlsx", "openpyxl", "pip install 'fedscout[tables]'"),
        ("t.duckdb", "reading t.duckdb", "duckdb", "pip install 'fedscout[tables]'"),
    ],
)
def test_a_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, key: str, library: str, hint: str
) -> None:
    dataset, query = place, "SELECT 1" if place.startswith("postgresql") else None
    if library:
        dataset = str(save(patients(), tmp_path / place))
        monkeypatch.setitem(sys.modules, library, None)
    with refused(ConfigurationError, key=key, names=hint):
        load_dataset(dataset, query=query, **ROLES)


# JSON lines.


@pytest.mark.parametrize(
    ("lines", "key"),
    [
        ("[1]", "every line of t.jsonl"),
        ('{"a": 1}\n{"a": ', "every line of t.jsonl"),
        ('{"a": 1, "y": 0}\n{"a": "b", "y": 1}', "every line of t.jsonl"),
        ('{"a": {"b": 1}, "y": 0}', "column 'a' of t.jsonl"),
        ("", "t.jsonl"),
        ("[" * 100_000, "every line of t.jsonl"),
        ('{"a": "\\ud800", "y": 1}', "every line of t.jsonl"),
    ],
    ids=["a list", "cut", "two types", "an object in an object", "empty", "nested without end", "half a character"],
)
def test_lines_that_are_no_objects_are_refused(tmp_path: Path, lines: str, key: str) -> None:
    assert_refused(str(write(tmp_path, lines, "t.jsonl")), label="y", key=key)


def test_a_key_that_comes_late_is_missing_before(tmp_path: Path) -> None:
    rows = [{"x": row / 8, "y": "ab"[row % 2], **({"z": 1} if row > 9 else {})} for row in range(20)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    dataset = load_dataset(str(tmp_path / "t.jsonl"), label="y")
    assert dataset.feature_names == ("x", "z", "z missing")
    assert dataset.features[:, 2].sum() == 10
