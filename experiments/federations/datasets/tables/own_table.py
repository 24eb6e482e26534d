"""One's own table: which columns are features, and whether it is read as numbers and categories, or as texts.

A column called `id`, `index`, `row`, `row_id` or `uuid` names rows: it is never a feature, and each name must occur
once. With `federation.text_column` a row is the text alone, as numbered words; other columns are not looked at.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedscout.engine.errors import DataError
from fedscout.engine.fault_text import listed, shown
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.tables.column_kinds import distinct_cells
from fedscout.experiments.federations.datasets.tables.column_roles import (
    ColumnRoles,
    check_roles,
    classes,
    discrete,
    groups_of,
)
from fedscout.experiments.federations.datasets.tables.mixed_table import dataset_from_mixed_table
from fedscout.experiments.federations.datasets.texts.words import text_dataset, text_rows

if TYPE_CHECKING:
    import pyarrow as pa

ROW_NAMES = ("id", "index", "row", "row_id", "uuid", "unnamed: 0")


def dataset_from_own_table(
    name: str, table: pa.Table, request: DatasetRequest, label: str | None, source: str
) -> Dataset:
    """Turn a table of unknown columns into a data set.

    Args:
        name: The data set's name.
        table: Plain cells (`table_file.py`), one row a sample.
        request: The user's choices.
        label: The column to predict.
        source: Where the table is from.

    Raises:
        DataError: With what is wrong with the table, or does not fit it.
    """
    if label is None:
        raise DataError(
            f"federation.label must name the column of data set {name!r} to predict, got nothing; its columns are: "
            f"{listed(table.column_names)}"
        )
    used = {label, request.client_column, request.group_column, request.text_column, *request.drop_columns}
    naming = tuple(column for column in table.column_names if column.lower() in ROW_NAMES and column not in used)
    roles = ColumnRoles(
        label,
        request.client_column,
        never_features=naming,
        dropped=request.drop_columns,
        group=request.group_column,
        quantity=request.predicts_quantity,
    )
    check_roles(name, table, roles)
    _check_row_names(name, table, naming)
    if request.text_column is not None:
        _refuse_quantity(request)
        return _texts(name, table, request, roles, source)
    return dataset_from_mixed_table(name, table, roles, request.min_release, source, facts={})


def _refuse_quantity(request: DatasetRequest) -> None:
    if request.predicts_quantity:
        raise DataError(
            "federation.task must be classification or left out where federation.text_column is given, got regression"
        )


def _check_row_names(name: str, table: pa.Table, columns: tuple[str, ...]) -> None:
    faults = []
    for column in columns:
        codes, values = distinct_cells(table[column])
        _, firsts, positions = np.unique(codes, return_index=True, return_inverse=True)
        repeats = np.flatnonzero(firsts[positions] < np.arange(len(codes)))
        if len(repeats):
            again = "nothing" if codes[repeats[0]] < 0 else values[codes[repeats[0]]]
            faults.append(
                f"column {column!r} of data set {name!r} must name each row once, got {shown(again)} in rows "
                f"{firsts[positions[repeats[0]]] + 1} and {repeats[0] + 1}; federation.drop_columns=[{column}] leaves "
                "it out"
            )
    if faults:
        raise DataError(faults)


def _texts(name: str, table: pa.Table, request: DatasetRequest, roles: ColumnRoles, source: str) -> Dataset:
    """Read one column as texts; the others beside label and client are not looked at."""
    column = request.text_column
    if column not in table.column_names:
        raise DataError(
            f"federation.text_column must name a column of data set {name!r}, got {column!r}; "
            f"its columns are: {listed(table.column_names)}"
        )
    if column in {roles.label, roles.client, roles.group, *roles.dropped}:
        raise DataError(
            "federation.text_column must be neither the label, nor the client or group column, nor left out, "
            f"got {column!r}"
        )
    labels, class_names = classes(name, table, roles.label)
    rows = text_rows(("" if cell is None else str(cell) for cell in table[column].to_pylist()), request)
    if rows.facts["num_texts_without_words"] == len(labels):
        raise DataError(f"column {column!r} of data set {name!r} must hold texts, but no cell has a word")
    unused = [name for name in table.column_names if name not in {column, roles.label, roles.client, roles.group}]
    dataset = text_dataset(
        name,
        rows,
        labels,
        class_names,
        roles.label,
        source,
        client_ids=None if roles.client is None else discrete(name, table, roles.client),
        facts={"text_column": column, "columns_left_out": tuple(unused)},
    )
    return replace(dataset, groups=groups_of(name, table, roles.group))
