"""What a sheet shows is what is read: merged cells in all their places, formulas by their stored values, or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openpyxl
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.table_formats import read_excel
from tests.kits.refusals import refused


def book(folder: Path, rows: list[list[Any]], *merged: str) -> Path:
    made = openpyxl.Workbook()
    page = made.active
    assert page is not None
    for row in rows:
        page.append(row)
    for area in merged:
        page.merge_cells(area)
    made.save(folder / "t.xlsx")
    return folder / "t.xlsx"


@pytest.mark.parametrize(
    ("merged", "column_a", "column_b"),
    [
        (("A2:A4",), ["north", "north", "north", "east"], ["1", "2", "3", "4"]),
        (("A2:A3", "A4:A5"), ["north", "north", "west", "west"], ["1", "2", "3", "4"]),
        (("A3:B4",), ["north", "south", "south", "east"], ["1", "south", "south", "4"]),
        (("B2:D5",), ["north", "south", "west", "east"], ["1", "1", "1", "1"]),
    ],
)
def test_merged_cells_hold_what_the_sheet_shows(
    tmp_path: Path, merged: tuple[str, ...], column_a: list[str], column_b: list[str]
) -> None:
    rows = [["a", "b"], ["north", 1], ["south", 2], ["west", 3], ["east", 4]]
    assert read_excel(book(tmp_path, rows, *merged)).to_pydict() == {"a": column_a, "b": column_b}


def test_a_formula_without_its_value_is_refused(tmp_path: Path) -> None:
    path = book(tmp_path, [["a", "b"], [1, 2], [3, "=A2+1"]])
    with refused(DataError, key="column 'b' of t.xlsx", names="federation.columns.b=drop"):
        read_excel(path)
    assert read_excel(path, dropped={"b"}).to_pydict() == {"a": ["1", "3"], "b": [None, None]}


def test_a_text_that_begins_as_a_formula_does_is_a_text(tmp_path: Path) -> None:
    made = openpyxl.Workbook()
    page = made.active
    assert page is not None
    page.append(["a", "b"])
    page.append([1, "x"])
    page["B2"].value, page["B2"].data_type = "=x", "s"
    made.save(tmp_path / "t.xlsx")
    assert read_excel(tmp_path / "t.xlsx").to_pydict() == {"a": ["1"], "b": ["=x"]}
