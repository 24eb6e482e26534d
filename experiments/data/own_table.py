"""Conversion of the user's table to a data set, as numbers and categories or as texts.

The kinds of columns are inferred (`own_columns.py`). With `federation.text_column`, or if the only usable column
besides dates is a text, a row is the text alone, as numbered words; other columns are ignored.

Rows without a label, a client or a group cannot be used for training; they are dropped, with a warning.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError
from fedscout.engine.text import listed
from fedscout.experiments.data.columns import (
    MISSING,
    NO_NAMES,
    ColumnRoles,
    ColumnUse,
    all_uses,
    are_quantities,
    as_numbers,
    check_roles,
    classes,
    column_key,
    discrete,
    groups_of,
    present_cells,
    refuse_table,
    with_missing,
)
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, distinct_texts
from fedscout.experiments.data.encoding import TableStatistics
from fedscout.experiments.data.own_columns import as_text_or_identifier, own_columns, suspected
from fedscout.experiments.data.tables import (
    dataset_of_columns,
    merged_statistics,
    predicted_of,
    statistics_faults,
    unusable_reason,
)
from fedscout.experiments.data.texts import text_dataset, text_rows

if TYPE_CHECKING:
    import pyarrow as pa


MOST_NAMED = 5

logger = logging.getLogger(__name__)


def labelled_rows(name: str, table: pa.Table, roles: ColumnRoles) -> tuple[pa.Table, IntArray]:
    """Return the rows with a value in the label, client and group columns, and their positions in the table.

    Args:
        name: Name of the data set, for messages.
        table: Plain cells.
        roles: Label, client and group columns.

    Raises:
        DataError: If there is none.
    """
    columns = {"label": roles.label, "client": roles.client, "group": roles.group}
    words = {"label": MISSING if roles.quantity else NO_NAMES}
    is_lacking = {
        role: present_cells(table[column], words.get(role, NO_NAMES)).is_null().to_numpy()
        for role, column in columns.items()
        if column is not None
    }
    is_removed = np.logical_or.reduce([*is_lacking.values()])
    if not is_removed.any():
        return table, np.arange(len(table))
    if is_removed.all():
        raise DataError.of(
            f"data set {name!r}",
            f"have a row with values in all of {listed(filter(None, columns.values()))}, but each of its "
            f"{len(table):,} rows lacks one",
        )
    kept = np.flatnonzero(~is_removed)
    counts = {role: int(mask.sum()) for role, mask in is_lacking.items() if mask.any()}
    reasons = ", ".join(f"{count:,} without a {role} ({columns[role]})" for role, count in counts.items())
    if roles.client is not None:
        clients = np.array(table[roles.client].cast("string").to_pylist(), dtype=object)
        if lost := {*clients[is_removed]} - {*clients[kept], None}:
            reasons += f"; no rows are left of {listed(sorted(lost), MOST_NAMED)}"
    num_removed = len(table) - len(kept)
    logger.warning("%s: %s of %s rows are left out: %s", name, f"{num_removed:,}", f"{len(table):,}", reasons)
    return table.take(kept), kept


NUM_ROWS_EXAMINED = 10_000


def _with_task(request: DatasetRequest, table: pa.Table, label: str) -> DatasetRequest:
    """Return the request, with regression as its task if none is set and the label is a quantity.

    It is if all filled cells among the first `NUM_ROWS_EXAMINED` rows are numbers, with more than twenty distinct
    values (or more than half, in a small table), some of which are fractions. Whole numbers are a quantity if the table
    has no more rows and they have too many distinct values to be classes (`are_quantities`).
    """
    if request.task is not None or request.text_column is not None or label not in table.column_names:
        return request
    cells = with_missing(table.slice(0, NUM_ROWS_EXAMINED).select([label]), request.missing_values)[label]
    present = present_cells(cells).drop_null()
    numbers = np.unique(as_numbers(present))
    is_whole = bool(np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all())
    if (is_whole and len(table) >= NUM_ROWS_EXAMINED) or not are_quantities(numbers, len(present)):
        return request
    return request.model_copy(update={"task": "regression"})


def dataset_from_own_table(
    name: str, table: pa.Table, request: DatasetRequest, label: str | None, source: str
) -> Dataset:
    """Return a table with unknown column kinds as a data set, whose task is found if none is set.

    Args:
        name: Name of the data set.
        table: Plain cells (`table_files.py`), one row per sample.
        request: User settings.
        label: Column to predict.
        source: Source of the table.

    Raises:
        DataError: Lists faults of the table, or settings that do not apply to it.
    """
    if label is None:
        raise DataError.of(
            "federation.label",
            f"name the column of data set {name!r} to predict",
            "nothing",
            f"its columns are: {listed(table.column_names)}",
        )
    request = _with_task(request, table, label)
    roles = ColumnRoles(
        label,
        request.client_column,
        dropped=request.drop_columns,
        group=request.group_column,
        quantity=request.predicts_quantity,
        classes=request.task == "classification",
    )
    check_roles(name, table, roles, request.text_column, request.columns)
    table = with_missing(table, request.missing_values, {request.client_column, request.group_column})
    rows, _ = labelled_rows(name, table, roles)
    dataset = (_mixed if request.text_column is None else _texts)(name, rows, request, roles, source)
    return replace(dataset, facts={**dataset.facts, "num_rows_unlabelled": len(table) - len(rows)})


def _mixed(name: str, table: pa.Table, request: DatasetRequest, roles: ColumnRoles, source: str) -> Dataset:
    """Read numbers, categories and dates; if there are only dates and a text, read the text."""
    predicted = predicted_of(name, table, roles)
    client_ids = None if roles.client is None else discrete(name, table, roles.client)
    clients = None if client_ids is None else distinct_texts(client_ids)[1]
    uses = own_columns(name, table, roles.features(name, table), roles, request, clients)
    columns = [column for use in uses for column in use.columns]
    if columns:
        statistics = merged_statistics(name, columns, client_ids, request.min_release)
        uses = _without_unusable(name, uses, statistics, request)
        columns = [column for use in uses for column in use.columns]
    uses = suspected(uses, predicted)
    text = next((use.name for use in uses if use.kind == "text"), None)
    used = [use for use in uses if use.columns]
    are_found_dates = all(use.kind == "date" and use.name not in request.columns for use in used)
    if text is not None and not roles.quantity and are_found_dates:  # a text is preferred to dates nobody asked for
        return _texts(name, table, request.model_copy(update={"text_column": text}), roles, source, uses)
    if not columns:
        refuse_table(name, all_uses(table, roles, uses, predicted.class_names))
    unused = [use.name for use in uses if not use.columns]
    facts = {"columns_left_out": (*roles.dropped, *unused)}
    dataset = dataset_of_columns(name, table, roles, columns, predicted, client_ids, statistics, source, facts)
    features = dataset.facts["features_of_columns"]
    uses = [replace(use, num_features=sum(features[column.name] for column in use.columns)) for use in uses]
    readings = {column: reading for use in uses for column, reading in use.readings.items()}
    documents = tuple(use.document() for use in all_uses(table, roles, uses, predicted.class_names))
    encoding = {**(dataset.encoding or {}), **({"agreed": readings} if readings else {})}
    return replace(dataset, encoding=encoding, facts={**dataset.facts, "columns": documents})


def _without_unusable(
    name: str, uses: list[ColumnUse], statistics: TableStatistics, request: DatasetRequest
) -> list[ColumnUse]:
    """Leave out columns with too little information from clients; those whose kind the user sets are rejected.

    Raises:
        DataError: Lists all rejected columns.
    """
    columns = [column for use in uses for column in use.columns]
    faults = statistics_faults(name, columns, statistics, request.min_release)
    if refused := [fault for column, fault in faults.items() if column in request.columns]:
        raise DataError(refused)
    return [_left_out_if_unusable(use, faults.keys(), statistics) for use in uses]


def _left_out_if_unusable(use: ColumnUse, unusable: Collection[str], statistics: TableStatistics) -> ColumnUse:
    """Return a column, left out if clients report too little information about it."""
    column = next((column for column in use.columns if column.name in unusable), None)
    if column is None:
        return use
    kind, reason = unusable_reason(column, statistics)
    return as_text_or_identifier(use) if kind == "identifier" else use.left_out(kind, reason, "federation.min_release")


def _texts(
    name: str,
    table: pa.Table,
    request: DatasetRequest,
    roles: ColumnRoles,
    source: str,
    uses: Sequence[ColumnUse] = (),
) -> Dataset:
    """Read one column as texts; all columns except label, client and group are ignored."""
    if request.predicts_quantity:
        raise DataError.of(
            "federation.task", "be classification or left out where federation.text_column is given", "regression"
        )
    column = str(request.text_column)
    labels, class_names = classes(name, table, roles)
    rows = text_rows(("" if cell is None else str(cell) for cell in table[column].to_pylist()), request)
    if rows.facts["num_texts_without_words"] == len(labels):
        raise DataError.of(f"column {column!r} of data set {name!r}", "hold texts, but no cell contains a word")
    unused = [name for name in table.column_names if name not in {column, roles.label, roles.client, roles.group}]
    use_by_column = {name: ColumnUse(name, "", "not examined") for name in unused} | {use.name: use for use in uses}
    for use in uses:
        if use.kind == "date":
            use_by_column[use.name] = use.left_out(
                "date", f"{column} is the only feature", column_key(use.name, "date")
            )
    use_by_column[column] = ColumnUse(column, "text", "the only feature of a row", "federation.text_column")
    documents = tuple(use.document() for use in all_uses(table, roles, [*use_by_column.values()]))
    dataset = text_dataset(
        name,
        rows,
        labels,
        class_names,
        roles.label,
        source,
        client_ids=None if roles.client is None else discrete(name, table, roles.client),
        facts={"text_column": column, "columns_left_out": tuple(unused), "columns": documents},
    )
    encoding = {"text": column, "words": rows.words, "length": rows.features.shape[1]} if rows.words else None
    return replace(dataset, groups=groups_of(name, table, roles.group), encoding=encoding)
