"""Faulty tables on the command line: one clear line each on standard error, exit code 2, and nothing else."""

from __future__ import annotations

import gzip
import pickle
import re
from pathlib import Path

import pandas as pd
import pytest

from tests.experiments.cli.conftest import Cli

HEADER = "site,x,y,note,grade"
ROWS = [f"{'ns'[row % 2]},{row},{row % 3}.5,word{row},{'ab'[row % 2]}" for row in range(20)]
GOOD = "\n".join([HEADER, *ROWS, ""])


class Harm:
    """Leaves a trace when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return open, ("harm-was-done", "w")  # type: ignore[return-value]


def changed(row: int, cells: str) -> str:
    """Return the good table with another line in one row, counted from 1."""
    return "\n".join([HEADER, *ROWS[: row - 1], cells, *ROWS[row:], ""])


MALFORMED: dict[str, tuple[str, str | bytes, str]] = {
    "empty file": ("t.csv", "", "must hold a header and rows, but it is empty"),
    "header alone": ("t.csv", HEADER + "\n", "must hold rows"),
    "one column": ("t.csv", "grade\na\nb\n", "its header names one column only: 'grade'"),
    "another delimiter": ("t.csv", GOOD.replace(",", "#"), "must be separated by one of comma, semicolon, tab, bar"),
    "two delimiters": ("t.csv", GOOD.replace("x,", "x;").replace(",y", ";y"), "as many fields as the header"),
    "label missing": ("t.csv", GOOD.replace("grade", "mark"), "federation.label must name a column of"),
    "one class": ("t.csv", GOOD.replace(",b\n", ",a\n"), "at least two classes .* got 1: a"),
    "a class a row": ("t.csv", "site,grade\n" + "".join(f"n,c{n}\n" for n in range(9)), "at most half .* got 9"),
    "client missing": ("t.csv", GOOD.replace("site", "place"), "federation.client_column must name a column"),
    "clients all small": (
        "t.csv",
        "\n".join([HEADER, *(f"s{row},1,{row},w,{'ab'[row % 2]}" for row in range(20))]),
        "federation.min_release=5 rows, .* none of 20 has",
    ),
    "column name twice": ("t.csv", GOOD.replace("x,y", "x,x"), "'x' occurs repeatedly"),
    "column without name": ("t.csv", GOOD.replace("x,y", "x,"), "column 3 has none"),
    "short row": ("t.csv", changed(3, "n,1,1"), "line 4 has 3 fields, the header 5"),
    "long row": ("t.csv", changed(3, "n,1,1,w,a,7"), "as many fields as the header"),
    "quote left open": ("t.csv", changed(3, 'n,1,1,"w,a'), "as many fields as the header"),
    "word among numbers": ("t.csv", changed(5, "n,many,1,w,a"), "got 'many' in row 5"),
    "infinity": ("t.csv", changed(5, "n,inf,1,w,a"), "numbers up to 1e\\+150 in magnitude, got 'inf' in row 5"),
    "huge number": ("t.csv", changed(5, "n,1e300,1,w,a"), "got '1e300' in row 5"),
    "dates": ("t.csv", GOOD.replace(".5,", "-02-2024,"), "got '0-02-2024' in row 1"),
    "identifiers": (
        "t.csv",
        "site,note,grade\n" + "".join(f"{'ns'[row % 2]},word{row},{'ab'[row % 2]}\n" for row in range(20)),
        "'note' is left out: 20 different names hardly repeat",
    ),
    "column of nothing": (
        "t.csv",
        "site,x,grade\n" + "n,,a\ns,,b\n" * 9,
        "a column of features beside the label, got none that can be used: 'x' is left out: 0 of 18 cells",
    ),
    "no features": ("t.csv", "site,grade\n" + "n,a\ns,b\n" * 9, "must have a column of features beside the label"),
    "binary": ("t.csv", bytes(range(256)) * 9, "zero byte|UTF-8"),
    "pickle named csv": ("t.csv", pickle.dumps(Harm()), "a Python pickle, which is never opened"),
    "pickle named parquet": ("t.parquet", pickle.dumps(Harm()), "can't be read as Parquet"),
    "pickle": ("t.pkl", pickle.dumps(Harm()), "never opened"),
    "array": ("t.npy", b"\x93NUMPY\x01\x00", "never opened"),
    "spreadsheet": ("t.xlsx", b"PK\x03\x04", "t.xlsx can't be read as an Excel workbook"),
    "another spreadsheet": ("t.ods", b"PK\x03\x04", "must end in .parquet, .csv"),
    "Parquet named csv": ("t.csv", b"PAR1" + bytes(40), "a Parquet file, whose name must end in .parquet"),
    "text named Parquet": ("t.parquet", GOOD, "can't be read as Parquet"),
    "packed under a plain name": ("t.csv", gzip.compress(GOOD.encode()), "its name must end in .gz"),
    "plain under a packed name": ("t.csv.gz", GOOD, "can't be read"),
}


def refused(cli: Cli, *arguments: str) -> str:
    done = cli("detect", "engine.grid=local", *arguments)
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith("fedscout: ")
    return line


@pytest.mark.parametrize(("name", "content", "reason"), MALFORMED.values(), ids=MALFORMED.keys())
def test_a_faulty_table_is_one_clear_line(
    cli: Cli, tmp_path: Path, name: str, content: str | bytes, reason: str
) -> None:
    (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    line = refused(cli, f"federation.dataset={name}", "federation.label=grade", "federation.client_column=site")
    assert re.search(reason, line), line
    assert not (tmp_path / "harm-was-done").exists()


def test_a_nested_column_of_parquet_is_one_clear_line(cli: Cli, tmp_path: Path) -> None:
    pd.DataFrame({"x": [[1], [2]] * 6, "grade": ["a", "b"] * 6}).to_parquet(tmp_path / "t.parquet")
    line = refused(cli, "federation.dataset=t.parquet", "federation.label=grade")
    assert "column 'x' of t.parquet must hold a number, text, truth value or date a cell, got list" in line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            (),
            "federation.label must name the column of data set 't.csv' to predict, got nothing; its columns are: site",
        ),
        (("federation.label=grade", "federation.drop_columns=[z]"), "federation.drop_columns must name columns"),
        (("federation.label=grade", "federation.drop_columns=[grade]"), "must not name federation.label, got 'grade'"),
        (("federation.label=grade", "federation.drop_columns=note"), "federation.drop_columns must be a list"),
        (("federation.label=grade", "federation.client_column=grade"), "must differ, got 'grade' for both"),
        (("federation.label=grade", "federation.text_column=z"), "federation.text_column must name a column"),
        (("federation.label=grade", "federation.text_column=grade"), "must be neither the label"),
        (("federation.label=site", "federation.client_column=x"), "a client with at least .*min_release=5 rows"),
    ],
)
def test_a_choice_that_does_not_fit_is_one_clear_line(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], reason: str
) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    assert re.search(reason, refused(cli, "federation.dataset=t.csv", *arguments))


def test_a_path_that_leads_nowhere_is_one_clear_line(cli: Cli) -> None:
    assert "or the path of an existing file or folder, got 'none.csv'" in refused(cli, "federation.dataset=none.csv")


def test_a_misspelt_name_is_answered_by_what_is_like_it(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "Tweets.csv").write_text(GOOD)
    assert "; did you mean Tweets.csv?" in refused(cli, "federation.dataset=Twets.csv", "federation.label=grade")
    line = refused(cli, "federation.dataset=Tweets.csv", "federation.label=grad")
    assert "its columns are: site, x, y, note, grade; did you mean grade?" in line


def test_a_sound_table_is_studied(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    choices = ["federation.label=grade", "federation.client_column=site", "federation.drop_columns=[note]"]
    done = cli("detect", "engine.grid=local", "federation.dataset=t.csv", *choices)
    assert done.code == 0, done.err
    assert "t.csv, natural, 2 clients: 20 rows, 2 classes, 10 to 10 each" in done.out
