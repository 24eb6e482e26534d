"""How the columns of a table become features, as a document that every client can read and follow alone.

It holds the federation's statistics (`federated_statistics.py`) and which column is of numbers and which of categories,
so that rows of a client that no one else sees become what they would be in the federation's own table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import listed
from fedscout.experiments.federations.datasets.tables.column_kinds import (
    CategoryColumn,
    Column,
    NumberColumn,
    lenient_numbers,
    present_cells,
    typed_column,
)
from fedscout.experiments.federations.datasets.tables.feature_encoding import encode_features
from fedscout.experiments.federations.datasets.tables.federated_statistics import Moments, TableStatistics, Tally
from fedscout.experiments.federations.datasets.tables.parts_of_time import DateOrder, parts_of_time
from fedscout.experiments.federations.datasets.tables.written_numbers import form_of_agreement, written_numbers
from fedscout.experiments.federations.datasets.texts.words import known_text_rows

if TYPE_CHECKING:
    import pyarrow as pa


def encoding_document(columns: Sequence[Column], statistics: TableStatistics) -> dict[str, Any]:
    """Return the encoding of a table as JSON-able values.

    Args:
        columns: The table's, in the order of its features.
        statistics: Of the federation.
    """
    known: dict[str, Moments | Tally] = {**statistics.moments, **statistics.tallies}
    return {"num_rows": statistics.num_rows, "columns": {column.name: asdict(known[column.name]) for column in columns}}


def encoded_rows(name: str, table: pa.Table, encoding: Mapping[str, Any]) -> FloatArray:
    """Return a client's rows as features, float32, shape `(num_rows, num_features)`.

    Args:
        name: Of the table, for messages.
        table: Plain cells; columns that the encoding does not name are not looked at.
        encoding: As `encoding_document` wrote it.

    Raises:
        DataError: If a column is missing, or holds something else than was agreed on.
    """
    if "words" in encoding:
        return _encoded_texts(name, table, encoding)
    agreed: Mapping[str, Mapping[str, Any]] = encoding["columns"]
    readings: Mapping[str, Mapping[str, str]] = encoding.get("agreed", {})
    sources = dict.fromkeys(readings.get(column, {}).get("of", column) for column in agreed)
    _check_columns(name, table, sources)
    moments = {column: Moments(**told) for column, told in agreed.items() if "mean" in told}
    tallies = {column: Tally(**told) for column, told in agreed.items() if column not in moments}
    columns, faults = [], []
    for column in agreed:
        try:
            columns.append(_column(table, column, column in tallies, readings.get(column, {})))
        except ValueError as error:
            faults.append(f"column {column!r} of table {name!r} {error}")
    if faults:
        raise DataError(faults)
    return encode_features(columns, TableStatistics(encoding["num_rows"], moments, tallies)).features


def _check_columns(name: str, table: pa.Table, columns: Iterable[str]) -> None:
    missing = [column for column in columns if column not in table.column_names]
    if missing:
        raise DataError(Fault(f"table {name!r}", f"have the columns that were agreed on, it lacks {listed(missing)}"))


def _encoded_texts(name: str, table: pa.Table, encoding: Mapping[str, Any]) -> FloatArray:
    _check_columns(name, table, [encoding["text"]])
    texts = ("" if cell is None else str(cell) for cell in table[encoding["text"]].to_pylist())
    return known_text_rows(texts, encoding["words"], encoding["length"])


def _column(table: pa.Table, column: str, is_category: bool, reading: Mapping[str, str]) -> Column:
    """Return one column as it was agreed on; a client may have no value in it.

    Raises:
        ValueError: If it holds something else; the text follows the column's name.
    """
    if "part" in reading:
        parts = parts_of_time(reading["of"], table[reading["of"]], cast(DateOrder, reading["order"]))
        return NumberColumn(column, parts[reading["part"]])
    cells = present_cells(table[column])
    if cells.null_count == len(cells):
        if is_category:
            return CategoryColumn(column, np.full(len(cells), -1), ())
        return NumberColumn(column, np.full(len(cells), np.nan))
    if reading.get("as") == "written":
        return NumberColumn(column, written_numbers(cells, form_of_agreement(reading)))
    if reading:
        return lenient_numbers(column, cells)
    found = typed_column(column, cells, is_category)
    if not is_category and not isinstance(found, NumberColumn):
        raise ValueError("must hold numbers, as was agreed on")
    return found
