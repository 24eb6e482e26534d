"""From columns to a data set: complete numbers, mixed columns, and a quantity to predict.

From a table of complete numbers to a data set of standardised features.

Columns get zero mean and unit variance, computed once over all rows when the data set is loaded, hence before they are
dealt to clients: real clients would need one exchange of sums and sums of squares for it, which gives the same numbers.
It puts the scenarios' noise, stated in units of the standardised feature, on one scale for every column.

From a table of numbers, categories and gaps to a data set.

Which column is what, and what is refused, is in `columns.py`; the statistics come from clients
(`encoding.py`), which are the natural clients, or one that holds the whole table where none are known.

A column of quantities as what is predicted: the numbers, and tenths of them where classes are asked for.

Models learn the numbers. Where rows need classes, as for stratified splits, partitions by label and the detection of
label skew, the tenths of the target over all rows are classes, cut at its deciles; equal values stay together, so there
may be fewer. Real clients would need one exchange of counts for the deciles.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import shown
from fedscout.experiments.data.columns import (
    MAX_CATEGORIES,
    CategoryColumn,
    Column,
    ColumnRoles,
    NumberColumn,
    as_numbers,
    check_roles,
    classes,
    column_key,
    discrete,
    first_faults,
    groups_of,
    row_name,
    text_argument,
    typed_columns,
)
from fedscout.experiments.data.dataset import Dataset, TextArray, distinct_texts, usual_facts
from fedscout.experiments.data.encoding import (
    TableStatistics,
    client_statistics,
    encode_features,
    encoding_document,
    merge_statistics,
)

if TYPE_CHECKING:
    import pyarrow as pa


def dataset_from_table(
    name: str, table: pa.Table, roles: ColumnRoles, source: str, facts: Mapping[str, Any]
) -> Dataset:
    """Turn a table into a data set with standardised features.

    Classes are the distinct labels, whole numbers in numeric order, names in alphabetical order.

    Args:
        name: The data set's name.
        table: Plain cells (`table_files.py`), one row a sample.
        roles: What each column is for.
        source: Citation.
        facts: Further facts for the record.

    Raises:
        DataError: With all faults found: a column that does not exist, an empty or a non-numeric cell, a label that
            is no class, fewer than two classes.
    """
    check_roles(name, table, roles)
    columns = roles.features(name, table)
    values = _numbers(name, table, columns)
    labels, class_names = classes(name, table, roles)
    client_ids = None if roles.client is None else discrete(name, table, roles.client)
    return dataset_of_numbers(name, values, labels, class_names, columns, roles.label, source, facts, client_ids)


def dataset_of_numbers(
    name: str,
    values: npt.NDArray[np.float64],
    labels: IntArray,
    class_names: Sequence[str],
    columns: Sequence[str],
    label: str,
    source: str,
    facts: Mapping[str, Any] | None = None,
    client_ids: TextArray | None = None,
) -> Dataset:
    """Return the data set of some columns, standardised.

    Args:
        name: The data set's name.
        values: Finite, shape `(num_rows, num_columns)`.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: One name a class.
        columns: One name a column.
        label: What is predicted.
        source: Citation.
        facts: Further facts for the record.
        client_ids: The natural client of each row, or None.
    """
    return Dataset(
        name=name,
        features=standardise(values),
        labels=labels,
        class_names=tuple(class_names),
        feature_names=tuple(columns),
        source=source,
        deviations=values.std(axis=0),
        client_ids=client_ids,
        facts={
            **usual_facts(label, values, labels),
            "num_constant_columns": int((values.max(axis=0) == values.min(axis=0)).sum()),
            **(facts or {}),
        },
    )


def standardise(values: npt.NDArray[np.float64]) -> FloatArray:
    """Return `(values - mean) / standard deviation` by column; a constant column becomes zero.

    The variance is the population's (divided by the number of rows). Columns are first divided by their largest
    magnitude, so that no square overflows.

    Args:
        values: Finite numbers, shape `(num_rows, num_columns)`, at least one row.
    """
    constant = values.max(axis=0) == values.min(axis=0)
    magnitude = np.abs(values).max(axis=0)
    scaled = values / np.where(magnitude > 0, magnitude, 1.0)
    centred = np.where(constant, 0.0, scaled - scaled.mean(axis=0))
    # A second centring removes the rounding error of the first mean, which counts where the mean dwarfs the spread.
    centred -= centred.mean(axis=0)
    deviation = np.sqrt(np.mean(centred**2, axis=0))
    return (centred / np.where(constant | (deviation == 0), 1.0, deviation)).astype(np.float32)


def _numbers(name: str, table: pa.Table, columns: list[str]) -> npt.NDArray[np.float64]:
    """Return the columns as finite numbers, shape `(rows, columns)`."""
    values = np.empty((len(table), len(columns)))
    faults: list[str] = []
    for index, column in enumerate(columns):
        values[:, index] = as_numbers(table[column])
        wrong = np.flatnonzero(~np.isfinite(values[:, index])).tolist()
        if wrong:
            cell = table[column][wrong[0]]
            given = str(cell) if cell.is_valid else "nothing"
            others = f" and in {len(wrong) - 1} more" if len(wrong) > 1 else ""
            faults.append(
                Fault(
                    f"column {column!r} of data set {name!r}",
                    "hold finite numbers",
                    f"{shown(given)} in {row_name(wrong[0])}{others}",
                )
            )
    if faults:
        raise DataError(first_faults(faults))
    return values


NUM_TENTHS = 10


@dataclass(frozen=True)
class QuantityTarget:
    """What is predicted.

    Attributes:
        numbers: Finite, float64, shape `(num_rows,)`.
        labels: The tenth of each, int64 in `[0, len(class_names))`, every one present, shape `(num_rows,)`.
        class_names: One a tenth, such as `77 to 94`.
    """

    numbers: npt.NDArray[np.float64]
    labels: IntArray
    class_names: tuple[str, ...]


def quantity_target(name: str, column: str, values: npt.NDArray[np.float64]) -> QuantityTarget:
    """Return a column of numbers as what is predicted.

    Args:
        name: The data set's name, for messages.
        column: The column's name.
        values: Its numbers, NaN where a cell holds none.

    Raises:
        DataError: If one is not finite, or all are equal.
    """
    wrong = np.flatnonzero(~np.isfinite(values))
    if len(wrong):
        raise DataError(
            Fault(
                f"column {column!r} of data set {name!r}",
                "hold a finite number in every row to be predicted as a quantity",
                f"something else in {row_name(wrong[0])}"
                + (f" and in {len(wrong) - 1} more" if len(wrong) > 1 else ""),
                "federation.task=classification predicts classes",
            )
        )
    if len(np.unique(values)) < 2:
        raise DataError(
            Fault(f"column {column!r} of data set {name!r}", "hold at least two different numbers to predict")
        )
    deciles = np.unique(np.quantile(values, np.arange(1, NUM_TENTHS) / NUM_TENTHS))
    tenths = np.searchsorted(deciles, values, side="right")
    present, labels = np.unique(tenths, return_inverse=True)
    return QuantityTarget(values.astype(np.float64), labels.astype(np.int64), _names(deciles, present))


def _names(deciles: npt.NDArray[np.float64], present: IntArray) -> tuple[str, ...]:
    bounds = [*(f"{decile:.6g}" for decile in deciles)]
    every = [f"below {bounds[0]}", *(f"{low} to {high}" for low, high in pairwise(bounds))]
    return tuple([*every, f"from {bounds[-1]}"][tenth] for tenth in present)


LARGEST_SHARE = 0.5  # of values that differ, and of values too rare to tell, in a column of categories
MOST_ROWS_EACH = 10  # of a text or an identifier, on average
STANDS_FOR_MISSING = 1e200  # beyond any number of a column
ROWS_AT_ONCE = 10_000


def dataset_from_mixed_table(
    name: str, table: pa.Table, roles: ColumnRoles, min_release: int, source: str, facts: Mapping[str, Any]
) -> Dataset:
    """Turn a table into a data set.

    Args:
        name: The data set's name.
        table: Plain cells (`table_files.py`), one row a sample.
        roles: What each column is for.
        min_release: Fewest values behind a figure that leaves a client.
        source: Citation, or path.
        facts: Further facts for the record.

    Raises:
        DataError: With all faults found in the columns, the label or the clients.
    """
    check_roles(name, table, roles)
    predicted = predicted_of(name, table, roles)
    client_ids = None if roles.client is None else discrete(name, table, roles.client)
    columns = typed_columns(name, table, roles.features(name, table), roles.categories)
    told = told_statistics(name, columns, client_ids, min_release)
    faults = [
        Fault(
            f"column {column!r} of data set {name!r}",
            f"hold {fault}",
            hint=f"{column_key(column, 'drop')} leaves it out",
        )
        for column, fault in figure_faults(columns, told.statistics, min_release).items()
    ]
    if faults:
        raise DataError(faults)
    facts = {"columns_left_out": (*roles.never_features, *roles.dropped), **facts}
    return dataset_of_columns(name, table, roles, columns, predicted, client_ids, told, source, facts)


@dataclass(frozen=True)
class Predicted:
    """What a table's label gives: classes, and the quantity if it is one.

    Attributes:
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: In order.
        targets: The quantity, shape `(num_rows,)`, or None.
    """

    labels: IntArray
    class_names: tuple[str, ...]
    targets: npt.NDArray[np.float64] | None = None


@dataclass(frozen=True)
class ColumnAnswers:
    """What clients tell of columns.

    Attributes:
        statistics: Of the federation.
        num_silent: Clients that are too small to tell anything.
    """

    statistics: TableStatistics
    num_silent: int


def predicted_of(name: str, table: pa.Table, roles: ColumnRoles) -> Predicted:
    """Return what is predicted.

    Raises:
        DataError: If the label is neither classes nor a quantity, as is asked for.
    """
    if roles.quantity:
        target = quantity_target(name, roles.label, as_numbers(table[roles.label]))
        return Predicted(target.labels, target.class_names, target.numbers)
    return Predicted(*classes(name, table, roles))


def dataset_of_columns(
    name: str,
    table: pa.Table,
    roles: ColumnRoles,
    columns: Sequence[Column],
    predicted: Predicted,
    client_ids: TextArray | None,
    told: ColumnAnswers,
    source: str,
    facts: Mapping[str, Any],
) -> Dataset:
    """Return the data set of columns that can all be used.

    Args:
        name: The data set's name.
        table: Plain cells.
        roles: What its columns are for.
        columns: Those that become features, at least one.
        predicted: What its label gives.
        client_ids: The natural client of each row, or None.
        told: What clients tell of the columns.
        source: Citation, or path.
        facts: Further facts for the record.
    """
    encoded = encode_features(columns, told.statistics)
    return Dataset(
        name=name,
        features=encoded.features,
        labels=predicted.labels,
        class_names=predicted.class_names,
        feature_names=encoded.names,
        source=source,
        client_ids=client_ids,
        groups=groups_of(name, table, roles.group),
        deviations=encoded.deviations,
        targets=predicted.targets,
        encoding=encoding_document(columns, told.statistics),
        facts={
            **usual_facts(roles.label, _comparable(columns), predicted.labels),
            "num_constant_columns": int((encoded.features.max(axis=0) == encoded.features.min(axis=0)).sum()),
            "num_missing_cells": sum(int(column.missing.sum()) for column in columns),
            "columns_of_categories": tuple(column.name for column in columns if isinstance(column, CategoryColumn)),
            "num_clients_silent_on_statistics": told.num_silent,
            "features_of_columns": {column: len(names) for column, names in encoded.by_column.items()},
            **facts,
        },
    )


def told_statistics(
    name: str, columns: Sequence[Column], client_ids: TextArray | None, min_release: int
) -> ColumnAnswers:
    """Ask every client.

    Raises:
        DataError: If all are too small to tell anything.
    """
    answers = [client_statistics(columns, rows, min_release) for rows in _rows_of_clients(columns, client_ids)]
    heard = [answer for answer in answers if answer is not None]
    if not heard:
        raise DataError(
            Fault(
                f"data set {name!r}",
                (
                    f"have a client with at least federation.min_release={min_release} rows, as means "
                    f"and categories come from clients, but none of {len(answers)} has"
                ),
            )
        )
    return ColumnAnswers(merge_statistics(heard), len(answers) - len(heard))


def _rows_of_clients(columns: Sequence[Column], client_ids: TextArray | None) -> Iterator[IntArray]:
    if client_ids is None:
        yield np.arange(len(columns[0].missing))
        return
    names, owners = distinct_texts(client_ids)
    order = np.argsort(owners, kind="stable")
    ends = np.searchsorted(owners[order], np.arange(len(names) + 1))
    for start, end in pairwise(ends.tolist()):
        yield order[start:end]


def figure_faults(columns: Sequence[Column], statistics: TableStatistics, min_release: int) -> dict[str, str]:
    """Return by column what must hold, of which the federation knows too little or which rather name rows."""
    faults = {
        column.name: _number_fault(column, statistics, min_release)
        if isinstance(column, NumberColumn)
        else _category_fault(column, statistics, min_release)
        for column in columns
    }
    return {name: fault for name, fault in faults.items() if fault}


def _number_fault(column: NumberColumn, statistics: TableStatistics, min_release: int) -> str:
    if statistics.moments[column.name].count:
        return ""
    return f"at least federation.min_release={min_release} values at some client, but no client has as many"


def _category_fault(column: CategoryColumn, statistics: TableStatistics, min_release: int) -> str:
    known = statistics.tallies[column.name]
    num_present = max(1, statistics.num_rows - known.num_missing)
    untold = next((category for category in column.categories if category not in known.counts), "")[:40]
    if names_rows(column, statistics):
        return (
            f"categories that repeat, but its clients hold {known.num_distinct} different values in {num_present} "
            f"rows, such as {untold!r}, as identifiers and texts do ({text_argument('text_column', column.name)} reads "
            "texts)"
        )
    if not known.counts:
        return (
            f"a category that occurs in at least federation.min_release={min_release} rows of some client, as rarer "
            f"ones are not told, but {untold!r} and all others are rarer"
        )
    if len(known.counts) > MAX_CATEGORIES:
        return f"at most {MAX_CATEGORIES} categories, got {len(known.counts)}"
    return ""


def names_rows(column: CategoryColumn, statistics: TableStatistics) -> bool:
    """Whether categories hardly repeat, as identifiers and texts do."""
    known, num_other = statistics.tallies[column.name], statistics.num_other(column.name)
    num_present = max(1, statistics.num_rows - known.num_missing)
    if MOST_ROWS_EACH * len(column.categories) < np.count_nonzero(column.codes >= 0):
        return False  # over all clients they do repeat, though each may be too small to see it
    return known.num_distinct > LARGEST_SHARE * num_present and num_other > LARGEST_SHARE * num_present


def _comparable(columns: Sequence[Column]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield blocks of all cells as numbers, equal where the cells are, shape `(rows_of_block, num_columns)`."""
    for start in range(0, len(columns[0].missing), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        yield np.column_stack(
            [
                np.nan_to_num(column.numbers[block], nan=STANDS_FOR_MISSING)
                if isinstance(column, NumberColumn)
                else column.codes[block].astype(np.float64)
                for column in columns
            ]
        )
