"""Faulty tables on the command line: one clear line each on standard error, exit code 2, and nothing else."""

from __future__ import annotations

import gzip
import pickle
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


LABEL, COLUMN, SEPARATED = "column 'grade'", "column 'x'", "the columns of t.csv"
FIELDS, FEATURES = "every line of t.csv", "data set 't.csv' must have a feature column"
MALFORMED: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "empty file": ("", ("t.csv", "empty")),
    "header alone": (HEADER + "\n", ("t.csv", "rows", "none")),
    "one column": ("grade\na\nb\n", (SEPARATED, ": 'grade'")),
    "another delimiter": (GOOD.replace(",", "#"), (SEPARATED, ": 'site#x#y#note#grade'", "federation.separator")),
    "two delimiters": (GOOD.replace("x,", "x;").replace(",y", ";y"), (FIELDS, "line 2", "5 fields", "header 4")),
    "label missing": (GOOD.replace("grade", "mark"), ("federation.label", "got 'grade'", "mark")),
    "one class": (GOOD.replace(",b\n", ",a\n"), (LABEL, "(20)", "got 1: a")),
    "a class a row": ("site,grade\n" + "".join(f"n,c{n}\n" for n in range(9)), (LABEL, "(9)", "got 9")),
    "client missing": (GOOD.replace("site", "place"), ("federation.client_column", "got 'site'", "place")),
    "clients all small": (
        "\n".join([HEADER, *(f"s{row},1,{row},w,{'ab'[row % 2]}" for row in range(20))]),
        ("data set 't.csv'", "federation.min_release=5", "none of 20"),
    ),
    "column name twice": (GOOD.replace("x,y", "x,x"), ("the column names", "'x'")),
    "column without name": (GOOD.replace("x,y", "x,"), ("every column", "column 3")),
    "short row": (changed(3, "n,1,1"), (FIELDS, "line 4", "3 fields", "header 5")),
    "long row": (changed(3, "n,1,1,w,a,7"), (FIELDS, "line 4", "6 fields", "header 5")),
    "quote left open": (changed(3, 'n,1,1,"w,a'), (FIELDS, "header 5", "quote")),
    "word among numbers": (changed(5, "n,many,1,w,a"), (COLUMN, "got 'many' in row 5")),
    "infinity": (changed(5, "n,inf,1,w,a"), (COLUMN, "1e+150", "got 'inf' in row 5")),
    "huge number": (changed(5, "n,1e300,1,w,a"), (COLUMN, "got '1e300' in row 5")),
    "dates": (GOOD.replace(".5,", "-02-2024,"), ("column 'y'", "got '0-02-2024' in row 1")),
    "identifiers": (
        "site,note,grade\n" + "".join(f"{'ns'[row % 2]},word{row},{'ab'[row % 2]}\n" for row in range(20)),
        (FEATURES, "'note'", "20 different"),
    ),
    "column of nothing": ("site,x,grade\n" + "n,,a\ns,,b\n" * 9, (FEATURES, "'x'", "0 of 18 cells")),
    "no features": ("site,grade\n" + "n,a\ns,b\n" * 9, (FEATURES, "none")),
    "binary": (bytes(range(256)) * 9, ("t.csv", "UTF-8")),
    "pickle": (pickle.dumps(Harm()), ("t.csv", "pickle")),
    "Parquet": (b"PAR1" + bytes(40), ("t.csv", ".parquet")),
    "packed under a plain name": (gzip.compress(GOOD.encode()), ("t.csv", ".gz")),
}
FILES: dict[str, tuple[str | bytes, tuple[str, ...]]] = {
    "t.parquet": (pickle.dumps(Harm()), ("t.parquet", "Parquet")),
    "text.parquet": (GOOD, ("text.parquet", "Parquet")),
    "t.pkl": (pickle.dumps(Harm()), ("the file of a table", "got t.pkl", "never opened")),
    "t.npy": (b"\x93NUMPY\x01\x00", ("the file of a table", "got t.npy", "never opened")),
    "t.xlsx": (b"PK\x03\x04", ("t.xlsx", "Excel")),
    "t.ods": (b"PK\x03\x04", ("the file of a table", "got t.ods", ".parquet, .csv")),
    "t.csv.gz": (GOOD, ("t.csv.gz",)),
}


def refuses(cli: Cli, settings: tuple[str, ...], subject: str, *names: str) -> None:
    cli("detect", "engine.grid=local", *(f"federation.{setting}" for setting in settings)).refuses(subject, *names)


@pytest.mark.parametrize("case", [*MALFORMED, *FILES])
def test_a_faulty_table_is_one_clear_line(cli: Cli, tmp_path: Path, case: str) -> None:
    content, names = (MALFORMED | FILES)[case]
    path = tmp_path / (case if case in FILES else "t.csv")
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    refuses(cli, (f"dataset={path.name}", "label=grade", "client_column=site"), *names)
    assert not (tmp_path / "harm-was-done").exists()


def test_a_nested_column_of_parquet_is_one_clear_line(cli: Cli, tmp_path: Path) -> None:
    pd.DataFrame({"x": [[1], [2]] * 6, "grade": ["a", "b"] * 6}).to_parquet(tmp_path / "t.parquet")
    refuses(cli, ("dataset=t.parquet", "label=grade"), "column 'x' of t.parquet", "got list")


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ((), ("federation.label", "'t.csv'", "got nothing", "site, x, y, note, grade")),
        (("label=grade", "drop_columns=[z]"), ("federation.drop_columns", "got 'z'")),
        (("label=grade", "drop_columns=[grade]"), ("federation.drop_columns", "federation.label", "got 'grade'")),
        (("label=grade", "drop_columns=note"), ("federation.drop_columns", "got 'note'")),
        (("label=grade", "client_column=grade"), ("federation.label and federation.client_column", "got 'grade'")),
        (("label=grade", "text_column=z"), ("federation.text_column", "got 'z'")),
        (("label=grade", "text_column=grade"), ("federation.text_column", "got 'grade'")),
        (("label=site", "client_column=x"), ("data set 't.csv'", "federation.min_release=5", "none of 20")),
        (("label=grad",), ("federation.label", "got 'grad'", "site, x, y, note, grade;", "grade?")),
    ],
)
def test_a_choice_that_does_not_fit_is_one_clear_line(
    cli: Cli, tmp_path: Path, settings: tuple[str, ...], names: tuple[str, ...]
) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    refuses(cli, ("dataset=t.csv", *settings), *names)


def test_a_path_that_leads_nowhere_is_answered_by_what_is_like_it(cli: Cli, tmp_path: Path) -> None:
    refuses(cli, ("dataset=none.csv",), "federation.dataset", "got 'none.csv'")
    (tmp_path / "Tweets.csv").write_text(GOOD)
    refuses(cli, ("dataset=Twets.csv", "label=grade"), "federation.dataset", "got 'Twets.csv'", "Tweets.csv?")


def test_a_sound_table_is_studied(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(GOOD)
    choices = ["federation.label=grade", "federation.client_column=site", "federation.drop_columns=[note]"]
    shown = cli("detect", "engine.grid=local", "federation.dataset=t.csv", *choices).ok.out
    assert "t.csv, natural, 2 clients: 20 rows, 2 classes, 10 to 10 each" in shown
