"""One's own table: what its columns are, and whether it is read as numbers and categories, or as texts.

A column called `id`, `index`, `row`, `row_id` or `uuid` names rows: it is never a feature. What other columns are is
found out (`own_columns.py`). With `federation.text_column`, or where a text is all that there is but for dates, a row
is the text alone, as numbered words; other columns are not looked at.

Rows that lack a label, a client or a group: nobody can learn from them, so they are left out, with a note.
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
    check_roles,
    classes,
    column_key,
    discrete,
    documents,
    file_of_rows,
    groups_of,
    is_text,
    refuse_table,
    rows_kept,
    with_missing,
)
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, distinct_texts
from fedscout.experiments.data.encoding import TableStatistics
from fedscout.experiments.data.own_columns import OwnColumn, hardly_repeats, own_columns, suspected
from fedscout.experiments.data.tables import (
    dataset_of_columns,
    figure_faults,
    names_rows,
    predicted_of,
    told_statistics,
)
from fedscout.experiments.data.texts import text_dataset, text_rows

if TYPE_CHECKING:
    import pyarrow as pa


MOST_NAMED = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelledRows:
    """What stays of a table.

    Attributes:
        rows: Those with a label, a client and a group.
        kept: Their places in the whole table; None where all stay.
        facts: How many were left out, and of which clients.
    """

    rows: pa.Table
    kept: IntArray | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def labelled_rows(name: str, table: pa.Table, roles: ColumnRoles) -> LabelledRows:
    """Return the rows that have what their roles ask for.

    Args:
        name: The data set's name, for messages.
        table: Plain cells.
        roles: Which columns are label, client and group.

    Raises:
        DataError: If no row has.
    """
    columns = {"label": roles.label, "client": roles.client, "group": roles.group}
    lacking = {
        role: _lacks(table[column], MISSING if role == "label" and roles.quantity else NO_NAMES)
        for role, column in columns.items()
        if column is not None
    }
    without = np.logical_or.reduce([*lacking.values()])
    if not without.any():
        return LabelledRows(table)
    counts = {role: int(rows.sum()) for role, rows in lacking.items() if rows.any()}
    if without.all():
        raise DataError(
            Fault(
                f"data set {name!r}",
                (
                    f"have a row with all of {listed(filter(None, columns.values()))}, but each of its "
                    f"{len(table):,} rows lacks one"
                ),
            )
        )
    kept, gone = np.flatnonzero(~without), np.flatnonzero(without)
    facts: dict[str, Any] = {"num_rows_unlabelled": len(gone)}
    whose = ""
    if roles.client is not None:
        clients = np.array(table[roles.client].cast("string").to_pylist(), dtype=object)
        named = ~lacking["client"]
        facts["rows_unlabelled_by_client"] = Counter(clients[gone[named[gone]]].tolist())
        facts["clients_without_labelled_rows"] = sorted({*clients[gone[named[gone]]]} - {*clients[kept]})
        whose = _of("clients", facts["rows_unlabelled_by_client"])
        if empty := facts["clients_without_labelled_rows"]:
            whose += f"; no row is left of {listed(empty, MOST_NAMED)}"
    reasons = ", ".join(f"{count:,} without a {role} ({columns[role]})" for role, count in counts.items())
    logger.warning(
        "%s: %s of %s rows are left out: %s%s%s; federation.unlabelled_rows=fail refuses them",
        name,
        f"{len(gone):,}",
        f"{len(table):,}",
        reasons,
        whose,
        _of("files", Counter(file_of_rows(gone))),
    )
    return LabelledRows(table.take(kept), kept, facts)


def _of(what: str, counts: Counter[str]) -> str:
    most: Sequence[tuple[str, int]] = counts.most_common(MOST_NAMED)
    more = f" and {len(counts) - len(most)} more" if len(counts) > len(most) else ""
    return f", of {what} {', '.join(f'{name} ({count:,})' for name, count in most)}{more}" if most else ""


def _lacks(cells: pa.ChunkedArray, words: Sequence[str] | set[str]) -> npt.NDArray[np.bool_]:
    """Return where a cell holds nothing, or a word for it, shape `(num_rows,)`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = cells.is_null()
    if is_text(cells.type):
        found = pc.or_kleene(found, pc.is_in(pc.utf8_lower(cells), pa.array(sorted(words), cells.type)))
    return np.asarray(found.to_numpy(), dtype=np.bool_)


ROW_NAMES = ("id", "index", "row", "row_id", "uuid", "unnamed: 0")


def dataset_from_own_table(
    name: str, table: pa.Table, request: DatasetRequest, label: str | None, source: str
) -> Dataset:
    """Turn a table of unknown columns into a data set.

    Args:
        name: The data set's name.
        table: Plain cells (`table_files.py`), one row a sample.
        request: The user's choices.
        label: The column to predict.
        source: Where the table is from.

    Raises:
        DataError: With what is wrong with the table, or does not fit it.
    """
    if label is None:
        raise DataError(
            Fault(
                "federation.label",
                f"name the column of data set {name!r} to predict",
                "nothing",
                f"its columns are: {listed(table.column_names)}",
            )
        )
    used = {label, request.client_column, request.group_column, request.text_column, *request.drop_columns}
    used |= request.columns.keys()
    naming = tuple(column for column in table.column_names if column.lower() in ROW_NAMES and column not in used)
    roles = ColumnRoles(
        label,
        request.client_column,
        never_features=naming,
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
            _refuse_quantity(request)
            dataset = _texts(name, labelled.rows, request, roles, source)
        else:
            dataset = _mixed(name, labelled.rows, request, roles, source)
    return replace(dataset, facts={**dataset.facts, **labelled.facts})


def _mixed(name: str, table: pa.Table, request: DatasetRequest, roles: ColumnRoles, source: str) -> Dataset:
    """Read numbers, categories and dates; if there are none, but for dates, and a text, that."""
    predicted = predicted_of(name, table, roles)
    client_ids = None if roles.client is None else discrete(name, table, roles.client)
    clients = None if client_ids is None else distinct_texts(client_ids)[1]
    columns = [*roles.never_features, *roles.features(name, table)]
    found = own_columns(name, table, columns, roles, request, clients)
    seen = [column for own in found for column in own.columns]
    if seen:
        told = told_statistics(name, seen, client_ids, request.min_release)
        found = _with_figures(name, found, told.statistics, request)
        seen = [column for own in found for column in own.columns]
    found = suspected(found, predicted)
    fates = all_fates(table, roles, [own.fate for own in found], predicted.class_names)
    texts = [fate for fate in fates if fate.kind == "text"]
    if texts and not roles.quantity and _are_dates_unasked([own.fate for own in found if own.columns], request):
        return _texts(name, table, request.model_copy(update={"text_column": texts[0].name}), roles, source, fates)
    if not seen:
        refuse_table(name, fates)
    unused = [own.fate.name for own in found if not own.columns]
    left_out = dict.fromkeys([*roles.never_features, *roles.dropped, *unused])
    facts = {"columns_left_out": tuple(left_out)}
    dataset = dataset_of_columns(name, table, roles, seen, predicted, client_ids, told, source, facts)
    features = dataset.facts["features_of_columns"]
    widths = {own.fate.name: sum(features[column.name] for column in own.columns) for own in found}
    fates = [replace(fate, num_features=widths.get(fate.name, 0)) for fate in fates]
    agreed = {column: said for own in found for column, said in (own.agreement or {}).items()}
    encoding = {**(dataset.encoding or {}), **({"agreed": agreed} if agreed else {})}
    return replace(dataset, encoding=encoding, facts={**dataset.facts, "columns": documents(fates)})


def _are_dates_unasked(fates: Sequence[ColumnFate], request: DatasetRequest) -> bool:
    """Whether all columns are dates that nobody asked for, beside which a text is what a row is about."""
    return all(fate.kind == "date" and fate.name not in request.columns for fate in fates)


def _with_figures(
    name: str, columns: list[OwnColumn], statistics: TableStatistics, request: DatasetRequest
) -> list[OwnColumn]:
    """Leave out the columns of which the federation knows too little; those that the user calls usable are refused.

    Raises:
        DataError: With all of these.
    """
    known = [column for own in columns for column in own.columns]
    faults = figure_faults(known, statistics, request.min_release)
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
    return [_with_known(own, faults, statistics) for own in columns]


def _with_known(own: OwnColumn, faults: Mapping[str, str], statistics: TableStatistics) -> OwnColumn:
    """Return a column without what the federation knows too little of."""
    wrong = [column for column in own.columns if column.name in faults]
    if not wrong:
        return own
    column = wrong[0]
    if isinstance(column, CategoryColumn):
        tally = statistics.tallies[column.name]
        if names_rows(column, statistics):
            return hardly_repeats(own, len(column.categories))
        if tally.counts:
            reason = f"{len(tally.counts):,} categories, of which at most {MAX_CATEGORIES} can be told apart"
            return own.left_out("category", reason, "federation.min_release")
        return own.left_out("category", "each category is too rare to be told by a client", "federation.min_release")
    return own.left_out("empty", "no client has enough values to tell of", "federation.min_release")


def _check_kinds(name: str, table: pa.Table, roles: ColumnRoles, request: DatasetRequest) -> None:
    """Check what `federation.columns` names.

    Raises:
        DataError: With each that is no column, or has a role already.
    """
    used = {
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
            (f"its columns are: {listed(table.column_names)}{did_you_mean(column, table.column_names)}"),
        )
        for column in request.columns
        if column not in table.column_names
    ]
    faults += [
        Fault("federation.columns", f"not name {key}", repr(one)) for key, one in used.items() if one in request.columns
    ]
    faults += [
        Fault("federation.columns", "not name what federation.drop_columns leaves out", repr(column))
        for column in roles.dropped
        if column in request.columns
    ]
    if faults:
        raise DataError(faults)


def _refuse_quantity(request: DatasetRequest) -> None:
    if request.predicts_quantity:
        raise DataError(
            Fault(
                "federation.task", "be classification or left out where federation.text_column is given", "regression"
            )
        )


def _texts(
    name: str,
    table: pa.Table,
    request: DatasetRequest,
    roles: ColumnRoles,
    source: str,
    fates: Sequence[ColumnFate] = (),
) -> Dataset:
    """Read one column as texts; the others beside label and client are not looked at."""
    column = request.text_column
    if column not in table.column_names:
        raise DataError(
            Fault(
                "federation.text_column",
                f"name a column of data set {name!r}",
                repr(column),
                f"its columns are: {listed(table.column_names)}",
            )
        )
    if column in {roles.label, roles.client, roles.group, *roles.dropped}:
        raise DataError(
            Fault(
                "federation.text_column",
                "be neither the label, nor the client or group column, nor left out",
                repr(column),
            )
        )
    labels, class_names = classes(name, table, roles)
    rows = text_rows(("" if cell is None else str(cell) for cell in table[column].to_pylist()), request)
    if rows.facts["num_texts_without_words"] == len(labels):
        raise DataError(Fault(f"column {column!r} of data set {name!r}", "hold texts, but no cell has a word"))
    unused = [name for name in table.column_names if name not in {column, roles.label, roles.client, roles.group}]
    read = ColumnFate(str(column), "text", "the words are what a row is", "federation.text_column")
    left_out = f"left out: {column} is what a row is"
    dates = [replace(fate, became=left_out, key=column_key(fate.name, "date")) for fate in fates if fate.kind == "date"]
    known = {fate.name: fate for fate in (*fates, *dates, read)}
    others = [ColumnFate(name, "", "not looked at") for name in unused]
    shown_fates = all_fates(table, roles, [*others, *known.values()])
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
