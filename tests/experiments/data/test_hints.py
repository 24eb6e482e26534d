"""Every argument that a refusal of a table proposes leads on: to a data set, or to a last word that proposes none."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedscout.engine.errors import UserError
from fedscout.experiments.config import load_config
from fedscout.experiments.data.loaders.table import load_dataset

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
DATES = [f"2024-01-{row % 28 + 1:02}" for row in range(NUM_ROWS - 1)] + ["2024-02-30"]


def table(name: str = "x", cells: list[str] | None = None, **columns: list[str]) -> pd.DataFrame:
    return pd.DataFrame({**GOOD, **({name: cells} if cells else {}), **columns})


def written(frame: pd.DataFrame, separator: str = ",") -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        frame.to_csv(folder / "t.csv", index=False, sep=separator)
        return folder / "t.csv"

    return write


def raw(text: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "t.csv").write_text(text)
        return folder / "t.csv"

    return write


def sheet(folder: Path) -> Path:
    import openpyxl

    book = openpyxl.Workbook()
    assert book.active is not None
    book.active.append(["the sum", "y", "z"])
    for row in range(NUM_ROWS):
        book.active.append([f"=B{row + 2}+1", "ab"[row % 2], row / 8])
    book.save(folder / "t.xlsx")
    return folder / "t.xlsx"


def nested(folder: Path) -> Path:
    frame = table().assign(**{"a list": [[1, 2]] * NUM_ROWS, "yes": [[1]] * NUM_ROWS})
    frame.to_parquet(folder / "t.parquet")
    return folder / "t.parquet"


NO_HEADER = "\n".join(f"{row / 8},{'ab'[row % 2]},{row % 7}" for row in range(NUM_ROWS))

FAULTY: dict[str, tuple[Callable[[Path], Path], tuple[str, ...]]] = {
    "a word among numbers": (written(table("numero", WORDS)), ("federation.label=grade",)),
    "words among numbers": (written(table("a b", MIXED)), ("federation.label=grade",)),
    "commas": (written(table("It's", NUMERALS), ";"), ("federation.label=grade",)),
    "several columns": (written(table("numero", WORDS, yes=NUMERALS, z=MIXED)), ("federation.label=grade",)),
    "an impossible date": (written(table("when", DATES)), ("federation.label=grade",)),
    "beyond numbers": (written(table("x", ["1e200", *WORDS[1:]])), ("federation.label=grade",)),
    "identifiers as categories": (
        written(table("note", TEXTS)),
        ("federation.label=grade", "federation.columns.note=category"),
    ),
    "texts of two columns": (
        written(table("Churn Reason", TEXTS, other=TEXTS[::-1]).drop(columns=["age", "site"])),
        ("federation.label=grade", "federation.task=regression"),
    ),
    "one identifier": (
        written(table("code no", [f"c{row}" for row in range(NUM_ROWS)]).drop(columns=["age", "site"])),
        ("federation.label=grade",),
    ),
    "no label": (
        written(table(grade=["", *GOOD["grade"][1:]])),
        ("federation.label=grade", "federation.unlabelled_rows=fail"),
    ),
    "a quantity": (
        written(table("x", [str(row) for row in range(NUM_ROWS * 4)][:NUM_ROWS])),
        ("federation.label=age", "federation.task=classification"),
    ),
    "no header": (raw(NO_HEADER), ("federation.label=column2",)),
    "two separators": (raw("a;b,c\n" + "1;2,p\n3;4,q\n" * 20), ("federation.label=c",)),
    "one column": (raw("grade\nwell\nill\n"), ("federation.label=grade",)),
    "a formula": (sheet, ("federation.label=y",)),
    "lists": (nested, ("federation.label=grade",)),
}


def proposed(message: str) -> list[str]:
    found = [shlex.split(argument)[0] for argument in ARGUMENT.findall(message)]
    return [argument for argument in dict.fromkeys(found) if not LIMITS.match(argument)]


def followed(arguments: tuple[str, ...]) -> None:
    assert len(arguments) <= DEEPEST + 4, f"no end: {arguments}"
    try:
        assert load_dataset(load_config(arguments).federation).num_rows > 0
    except UserError as error:
        for argument in proposed(str(error)):
            if argument in arguments:
                pytest.fail(f"{argument} is taken, and proposed by: {error}")
            followed((*arguments, argument))


@pytest.mark.parametrize("fault", FAULTY)
def test_what_a_refusal_proposes_leads_on(tmp_path: Path, fault: str) -> None:
    write, arguments = FAULTY[fault]
    first = (f"federation.dataset={write(tmp_path)}", *arguments)
    with pytest.raises(UserError):
        load_dataset(load_config(first).federation)
    followed(first)


@pytest.mark.parametrize(
    "fault", ["a word among numbers", "several columns", "commas", "no header", "a formula", "no label"]
)
def test_one_of_the_arguments_leads_to_a_data_set(tmp_path: Path, fault: str) -> None:
    write, arguments = FAULTY[fault]
    first = (f"federation.dataset={write(tmp_path)}", *arguments)
    with pytest.raises(UserError) as refused:
        load_dataset(load_config(first).federation)
    *_, last = [argument for argument in proposed(str(refused.value)) if argument != "federation.header=true"]
    assert load_dataset(load_config([*first, last]).federation).num_rows in (NUM_ROWS - 1, NUM_ROWS)


@pytest.mark.parametrize("label", ["1", "yes", "007", "a b"])
def test_a_column_is_named_by_the_text_that_is_typed(tmp_path: Path, label: str) -> None:
    frame = table().rename(columns={"grade": label})
    config = load_config([f"federation.dataset={written(frame)(tmp_path)}", f"federation.label={label}"])
    assert load_dataset(config.federation).facts["label"] == label
    np.testing.assert_array_equal(np.bincount(load_dataset(config.federation).labels), [20, 20])
