"""What cells mean, and what is refused rather than guessed."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from fedscout.engine.errors import DataError
from fedscout.experiments.data.columns import CategoryColumn, Column, NumberColumn, typed_columns
from fedscout.experiments.data.table_files import plain_cells

NAN = float("nan")


def typed(cells: list[object], categories: tuple[str, ...] = ()) -> Column:
    (column,) = typed_columns("t.csv", pa.table({"x": plain_cells(pa.array(cells))}), ["x"], categories)
    return column


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        (["1", "-2.5", "+3", "1e3", ".5"], [1, -2.5, 3, 1000, 0.5]),
        (["1", "", "NA", "nan", "?", "null", "N/A", "None", "2"], [1, *[NAN] * 7, 2]),
        (["true", "False", "TRUE", ""], [1, 0, 1, NAN]),
        ([1, 2, 3], [1, 2, 3]),
        ([1.5, NAN], [1.5, NAN]),
        (["1e150", "-1e150"], [1e150, -1e150]),
    ],
)
def test_numbers(cells: list[object], expected: list[float]) -> None:
    column = typed(cells)
    assert isinstance(column, NumberColumn)
    np.testing.assert_array_equal(column.numbers, expected)
    np.testing.assert_array_equal(column.missing, np.isnan(expected))


@pytest.mark.parametrize(
    ("cells", "codes", "categories"),
    [
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        (["b", "", "NA", "a"], [1, -1, -1, 0], ("a", "b")),
        (["yes", "no"], [1, 0], ("no", "yes")),
        (["A", "a"], [0, 1], ("A", "a")),
        (["7", "x", "y"], [0, 1, 2], ("7", "x", "y")),  # most are names
        (["true", "maybe"], [1, 0], ("maybe", "true")),
        (["é", "-"], [1, 0], ("-", "é")),
    ],
)
def test_categories(cells: list[object], codes: list[int], categories: tuple[str, ...]) -> None:
    column = typed(cells)
    assert isinstance(column, CategoryColumn)
    assert column.codes.tolist() == codes
    assert column.categories == categories


@pytest.mark.parametrize(
    ("cells", "codes", "categories"),
    [
        (["6.0", "3", "", "6"], [2, 0, -1, 1], ("3", "6", "6.0")),  # a text is its own name
        (["7.178", "7"], [1, 0], ("7", "7.178")),
        (["007", "7"], [0, 1], ("007", "7")),
        ([6.0, 3.0, NAN], [1, 0, -1], ("3", "6")),  # of a type in which gaps make whole numbers fractions
        ([6.5, 3.0], [1, 0], ("3.0", "6.5")),
        ([2**63 - 1, 7], [1, 0], ("7", "9223372036854775807")),
    ],
)
def test_numbers_that_are_declared_categories(
    cells: list[object], codes: list[int], categories: tuple[str, ...]
) -> None:
    column = typed(cells, categories=("x",))
    assert isinstance(column, CategoryColumn)
    assert (column.codes.tolist(), column.categories) == (codes, categories)


@pytest.mark.parametrize(
    ("cells", "named"),
    [
        (["", "NA", "?"], "none in 3 rows"),
        ([NAN, NAN], "none in 2 rows"),
        (["1", "2", "x"], "'x' in row 3"),
        (["1", "2", "1.2.3"], "'1.2.3' in row 3"),
        (["9,4", "1,5"], "point, got '9,4' in row 1"),
        (["9", "1,5", "", "2,5"], "point, got '1,5' in row 2"),
        (["1", "inf"], "'inf' in row 2"),
        (["1", "1e999", "-inf"], "'1e999' in row 2 and in 1 more"),
        ([1.0, float("inf")], "'inf' in row 2"),
        (["1e151", "2"], "'1e151' in row 1"),
        (["2024-01-31", "2024-02-01"], "date such as '2024-01-31' in row 1"),
        (["", "31.01.2024", "1.2.24"], "date such as '31.01.2024' in row 2"),
        (["2024-01-31 10:00", "2024-01-31T10:00:00Z"], "date such as '2024-01-31 10:00'"),
        (["10:30", "11:45:10"], "date such as '10:30'"),
        ([pd.Timestamp("2024-01-31"), pd.Timestamp("2024-02-01")], "date such as 2024-01-31"),
    ],
)
def test_what_is_neither_is_refused_with_the_way_out(cells: list[object], named: str) -> None:
    with pytest.raises(DataError) as caught:
        typed(cells)
    for part in ("column 'x' of data set 't.csv'", named, "federation.drop_columns=[x]"):
        assert part in str(caught.value)


def test_all_faulty_columns_are_named_or_counted() -> None:
    table = pa.table({f"x{index}": ["1", "2", "x"] for index in range(8)})
    with pytest.raises(DataError) as caught:
        typed_columns("t.csv", table, table.column_names)
    assert len(caught.value.faults) == 6
    assert "3 more" in caught.value.faults[-1]
