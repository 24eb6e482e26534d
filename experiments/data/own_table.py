"""Conversion of the user's table to a data set, as numbers and categories or as texts.

A column called `id`, `index`, `row`, `row_id` or `uuid` names rows: it is never a feature. The kinds of other columns
are inferred (`own_columns.py`). With `federation.text_column`, or if the only usable column besides dates is a text, a
row is the text alone, as numbered words; other columns are ignored.

Rows without a label, a client or a group cannot be used for training; they are dropped, with a warning.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import did_you_mean, listed
from fedscout.experiments.data.columns import (
    MAX_CATEGORIES,
    MISSING,
    NO_NAMES,
    CategoryColumn,
    ColumnFate,
    ColumnRoles,
    all_fates,
    are_quantities,
    as_numbers,
    check_roles,
    classes,
    column_key,
    discrete,
    documents,
    file_of_rows,
    groups_of,
    is_text,
    present_cells,
    refuse_table,
    rows_kept,
    with_missing,
)
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, distinct_texts
from fedscout.experiments.data.encoding import TableStatistics
from fedscout.experiments.data.own_columns import OwnColumn, as_text_or_identifier, own_columns, suspected
from fedscout.experiments.data.tables import (
    dataset_of_columns,
    figure_faults,
    is_identifier_like,
    merged_statistics,
    predicted_of,
)
from fedscout.experiments.data.texts import text_dataset, text_rows

if TYPE_CHECKING:
    import pyarrow as pa


MOST_NAMED = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelledRows:
    """The usable rows of a table.

    Attributes:
        rows: Rows with a label, a client and a group.
        kept: Their positions in the whole table; None if no row was dropped.
        facts: Number of dropped rows, and their clients.
    """

    rows: pa.Table
    kept: IntArray | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def labelled_rows(name: str, table: pa.Table, roles: ColumnRoles) -> LabelledRows:
    """Return the rows with a value in the label, client and group columns.

    Args:
        name: Name of the data set, for messages.
        table: Plain cells.
        roles: Label, client and group columns.

    Raises:
        DataError: If there is none.
    """
    columns = {"label": roles.label, "client": roles.client, "group": roles.group}
    is_lacking = {
        role: _is_missing(table[column], MISSING if role == "label" and roles.quantity else NO_NAMES)
        for role, column in columns.items()
        if column is not None
    }
    is_removed = np.logical_or.reduce([*is_lacking.values()])
    if not is_removed.any():
        return LabelledRows(table)
    counts = {role: int(rows.sum()) for role, rows in is_lacking.items() if rows.any()}
    if is_removed.all():
        raise DataError.of(
            f"data set {name!r}",
            f"have a row with values in all of {listed(filter(None, columns.values()))}, but each of its "
            f"{len(table):,} rows lacks one",
        )
    kept, removed = np.flatnonzero(~is_removed), np.flatnonzero(is_removed)
    facts: dict[str, Any] = {"num_rows_unlabelled": len(removed)}
    affected = ""
    if roles.client is not None:
        clients = np.array(table[roles.client].cast("string").to_pylist(), dtype=object)
        has_client = ~is_lacking["client"]
        facts["rows_unlabelled_by_client"] = Counter(clients[removed[has_client[removed]]].tolist())
        facts["clients_without_labelled_rows"] = sorted({*clients[removed[has_client[removed]]]} - {*clients[kept]})
        affected = _counts_text("clients", facts["rows_unlabelled_by_client"])
        if empty := facts["clients_without_labelled_rows"]:
            affected += f"; no rows are left of {listed(empty, MOST_NAMED)}"
    reasons = ", ".join(f"{count:,} without a {role} ({columns[role]})" for role, count in counts.items())
    logger.warning(
        "%s: %s of %s rows are left out: %s%s%s; federation.unlabelled_rows=fail rejects them",
        name,
        f"{len(removed):,}",
        f"{len(table):,}",
        reasons,
        affected,
        _counts_text("files", Counter(file_of_rows(removed))),
    )
    return LabelledRows(table.take(kept), kept, facts)


def _counts_text(what: str, counts: Counter[str]) -> str:
    largest: Sequence[tuple[str, int]] = counts.most_common(MOST_NAMED)
    remainder = f" and {len(counts) - len(largest)} more" if len(counts) > len(largest) else ""
    return f", of {what} {', '.join(f'{name} ({count:,})' for name, count in largest)}{remainder}" if largest else ""


def _is_missing(cells: pa.ChunkedArray, words: Sequence[str] | set[str]) -> npt.NDArray[np.bool_]:
    """Return the mask of cells that are null or hold a word for a missing value, shape `(num_rows,)`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_missing = cells.is_null()
    if is_text(cells.type):
        is_missing = pc.or_kleene(is_missing, pc.is_in(pc.utf8_lower(cells), pa.array(sorted(words), cells.type)))
    return np.asarray(is_missing.to_numpy(), dtype=np.bool_)


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


ROW_NAMES = ("id", "index", "row", "row_id", "uuid", "unnamed: 0")


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
    columns_in_use = {label, request.client_column, request.group_column, request.text_column, *request.drop_columns}
    columns_in_use |= request.columns.keys()
    row_name_columns = tuple(
        column for column in table.column_names if column.lower() in ROW_NAMES and column not in columns_in_use
    )
    roles = ColumnRoles(
        label,
        request.client_column,
        never_features=row_name_columns,
        dropped=request.drop_columns,
        group=request.group_column,
        quantity=request.predicts_quantity,
        classes=request.task == "classification",
    )
    check_roles(name, table, roles)
    _check_kinds(name, table, roles, request)
    table = with_missing(table, request.missing_values, {request.client_column, request.group_column})
    labelled = labelled_rows(name, table, roles) if request.unlabelled_rows == "drop" else LabelledRows(table)
    with rows_kept(labelled.kept):
        if request.text_column is not None:
            _reject_regression(request)
            dataset = _texts(name, labelled.rows, request, roles, source)
        else:
            dataset = _mixed(name, labelled.rows, request, roles, source)
    return replace(dataset, facts={**dataset.facts, **labelled.facts})


def _mixed(name: str, table: pa.Table, request: DatasetRequest, roles: ColumnRoles, source: str) -> Dataset:
    """Read numbers, categories and dates; if there are only dates and a text, read the text."""
    predicted = predicted_of(name, table, roles)
    client_ids = None if roles.client is None else discrete(name, table, roles.client)
    clients = None if client_ids is None else distinct_texts(client_ids)[1]
    columns = [*roles.never_features, *roles.features(name, table)]
    results = own_columns(name, table, columns, roles, request, clients)
    feature_columns = [column for result in results for column in result.columns]
    if feature_columns:
        answers = merged_statistics(name, feature_columns, client_ids, request.min_release)
        results = _without_unusable(name, results, answers.statistics, request)
        feature_columns = [column for result in results for column in result.columns]
    results = suspected(results, predicted)
    fates = all_fates(table, roles, [result.fate for result in results], predicted.class_names)
    texts = [fate for fate in fates if fate.kind == "text"]
    if (
        texts
        and not roles.quantity
        and _are_only_inferred_dates([result.fate for result in results if result.columns], request)
    ):
        return _texts(name, table, request.model_copy(update={"text_column": texts[0].name}), roles, source, fates)
    if not feature_columns:
        refuse_table(name, fates)
    unused = [result.fate.name for result in results if not result.columns]
    left_out = dict.fromkeys([*roles.never_features, *roles.dropped, *unused])
    facts = {"columns_left_out": tuple(left_out)}
    dataset = dataset_of_columns(name, table, roles, feature_columns, predicted, client_ids, answers, source, facts)
    features = dataset.facts["features_of_columns"]
    num_features_by_column = {
        result.fate.name: sum(features[column.name] for column in result.columns) for result in results
    }
    fates = [replace(fate, num_features=num_features_by_column.get(fate.name, 0)) for fate in fates]
    agreements = {column: reading for result in results for column, reading in (result.agreement or {}).items()}
    encoding = {**(dataset.encoding or {}), **({"agreed": agreements} if agreements else {})}
    return replace(dataset, encoding=encoding, facts={**dataset.facts, "columns": documents(fates)})


def _are_only_inferred_dates(fates: Sequence[ColumnFate], request: DatasetRequest) -> bool:
    """Return whether all columns are dates not requested by the user, so that a text is preferred to them."""
    return all(fate.kind == "date" and fate.name not in request.columns for fate in fates)


def _without_unusable(
    name: str, columns: list[OwnColumn], statistics: TableStatistics, request: DatasetRequest
) -> list[OwnColumn]:
    """Leave out columns with too little information from clients; those whose kind the user sets are rejected.

    Raises:
        DataError: Lists all rejected columns.
    """
    used_columns = [column for own_column in columns for column in own_column.columns]
    faults = figure_faults(used_columns, statistics, request.min_release)
    refused = [column for column in faults if column in request.columns]
    if refused:
        raise DataError(
            [
                Fault(
                    f"column {column!r} of data set {name!r}",
                    f"hold {faults[column]}",
                    hint=f"{column_key(column, 'drop')} leaves it out",
                )
                for column in refused
            ]
        )
    return [_left_out_if_unusable(own_column, faults, statistics) for own_column in columns]


def _left_out_if_unusable(own: OwnColumn, faults: Mapping[str, str], statistics: TableStatistics) -> OwnColumn:
    """Return a column, left out if clients report too little information about it."""
    faulty = [column for column in own.columns if column.name in faults]
    if not faulty:
        return own
    column = faulty[0]
    if isinstance(column, CategoryColumn):
        tally = statistics.tallies[column.name]
        if is_identifier_like(column, statistics):
            return as_text_or_identifier(own, len(column.categories))
        if tally.counts:
            reason = f"{len(tally.counts):,} categories, more than the maximum of {MAX_CATEGORIES}"
            return own.left_out("category", reason, "federation.min_release")
        return own.left_out("category", "each category is too rare to be released", "federation.min_release")
    return own.left_out("empty", "no client has enough values to be released", "federation.min_release")


def _check_kinds(name: str, table: pa.Table, roles: ColumnRoles, request: DatasetRequest) -> None:
    """Check the columns in `federation.columns`.

    Raises:
        DataError: Lists each that does not exist or already has a role.
    """
    column_by_key = {
        "federation.label": roles.label,
        "federation.client_column": roles.client,
        "federation.group_column": roles.group,
        "federation.text_column": request.text_column,
    }
    faults = [
        Fault(
            "federation.columns",
            f"name columns of data set {name!r}",
            repr(column),
            f"its columns are: {listed(table.column_names)}{did_you_mean(column, table.column_names)}",
        )
        for column in request.columns
        if column not in table.column_names
    ]
    faults += [
        Fault("federation.columns", f"not name {key}", repr(role_column))
        for key, role_column in column_by_key.items()
        if role_column in request.columns
    ]
    faults += [
        Fault("federation.columns", "not name a column in federation.drop_columns", repr(column))
        for column in roles.dropped
        if column in request.columns
    ]
    if faults:
        raise DataError(faults)


def _reject_regression(request: DatasetRequest) -> None:
    if request.predicts_quantity:
        raise DataError.of(
            "federation.task", "be classification or left out where federation.text_column is given", "regression"
        )


def _texts(
    name: str,
    table: pa.Table,
    request: DatasetRequest,
    roles: ColumnRoles,
    source: str,
    fates: Sequence[ColumnFate] = (),
) -> Dataset:
    """Read one column as texts; all columns except label, client and group are ignored."""
    column = request.text_column
    if column not in table.column_names:
        raise DataError.of(
            "federation.text_column",
            f"name a column of data set {name!r}",
            repr(column),
            f"its columns are: {listed(table.column_names)}",
        )
    if column in {roles.label, roles.client, roles.group, *roles.dropped}:
        raise DataError.of(
            "federation.text_column", "not be the label, client or group column, nor be left out", repr(column)
        )
    labels, class_names = classes(name, table, roles)
    rows = text_rows(("" if cell is None else str(cell) for cell in table[column].to_pylist()), request)
    if rows.facts["num_texts_without_words"] == len(labels):
        raise DataError.of(f"column {column!r} of data set {name!r}", "hold texts, but no cell contains a word")
    unused = [name for name in table.column_names if name not in {column, roles.label, roles.client, roles.group}]
    text_fate = ColumnFate(str(column), "text", "the only feature of a row", "federation.text_column")
    left_out = f"left out: {column} is the only feature"
    dates = [replace(fate, became=left_out, key=column_key(fate.name, "date")) for fate in fates if fate.kind == "date"]
    fate_by_column = {fate.name: fate for fate in (*fates, *dates, text_fate)}
    others = [ColumnFate(name, "", "not examined") for name in unused]
    shown_fates = all_fates(table, roles, [*others, *fate_by_column.values()])
    dataset = text_dataset(
        name,
        rows,
        labels,
        class_names,
        roles.label,
        source,
        client_ids=None if roles.client is None else discrete(name, table, roles.client),
        facts={"text_column": column, "columns_left_out": tuple(unused), "columns": documents(shown_fates)},
    )
    encoding = {"text": column, "words": rows.words, "length": rows.features.shape[1]} if rows.words else None
    return replace(dataset, groups=groups_of(name, table, roles.group), encoding=encoding)
