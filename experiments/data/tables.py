"""Conversion of table columns to data sets, for complete numeric tables, mixed tables and regression targets.

`dataset_from_table`: columns of complete numbers get zero mean and unit variance, computed once over all rows when the
data set is loaded, before partitioning. Real clients would need one exchange of sums and sums of squares, which yields
the same numbers. It puts the noise of scenarios, stated in units of the standardised feature, on one scale for every
column.

`dataset_from_mixed_table`: columns are numbers or categories, with missing values. `columns.py` determines column types
and rejects unusable columns; the statistics come from clients (`encoding.py`), which are the natural clients, or a
single client with the whole table if there are none.

`quantity_target`: models learn the numbers of a regression target. Where rows need classes, as for stratified splits,
partitions by label and the detection of label skew, the classes are the deciles of the target over all rows; equal
values stay together, so there may be fewer than ten. Real clients would need one exchange of counts for the deciles.
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
from fedscout.experiments.data.columns import (
    MAX_CATEGORIES,
    CategoryColumn,
    Column,
    ColumnRoles,
    NumberColumn,
    as_numbers,
    cells_named,
    check_roles,
    classes,
    column_key,
    discrete,
    first_faults,
    groups_of,
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
    """Return a table as a data set with standardised features.

    Classes are the distinct labels: numbers in numeric order, then names in alphabetical order.

    Args:
        name: Name of the data set.
        table: Plain cells (`table_files.py`), one row per sample.
        roles: Roles of its columns.
        source: Citation.
        facts: Additional facts to record.

    Raises:
        DataError: Lists all faults: a column that does not exist, an empty or non-numeric cell, a label that is not a
            class, fewer than two classes.
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
    """Return the data set of numeric columns, standardised.

    Args:
        name: Name of the data set.
        values: Finite, shape `(num_rows, num_columns)`.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: One name per class.
        columns: One name per column.
        label: Name of the label.
        source: Citation.
        facts: Additional facts to record.
        client_ids: Natural client of each row, or None.
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

    The variance is the population variance (divided by the number of rows). Columns are first divided by their largest
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
        is_invalid = ~np.isfinite(values[:, index])
        if is_invalid.any():
            given = cells_named(table[column], is_invalid)
            faults.append(Fault(f"column {column!r} of data set {name!r}", "hold finite numbers", given))
    if faults:
        raise DataError(first_faults(faults))
    return values


NUM_TENTHS = 10


@dataclass(frozen=True)
class Predicted:
    """Classes of a table's label and, for regression, the target.

    Attributes:
        labels: Class of each row or decile of its target, int64 in `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: Class names in label order, or one per decile, such as `77 to 94`.
        targets: Regression target, finite, float64, shape `(num_rows,)`, or None.
    """

    labels: IntArray
    class_names: tuple[str, ...]
    targets: npt.NDArray[np.float64] | None = None


def quantity_target(name: str, column: str, values: npt.NDArray[np.float64]) -> Predicted:
    """Return a numeric column as a regression target, with its deciles as classes.

    Args:
        name: Name of the data set, for messages.
        column: Name of the column.
        values: Its numbers, NaN where a cell holds none.

    Raises:
        DataError: If one is not finite, or all are equal.
    """
    is_invalid = ~np.isfinite(values)
    if is_invalid.any():
        raise DataError.of(
            f"column {column!r} of data set {name!r}",
            "hold a finite number in every row to be a regression target",
            f"something else in {np.count_nonzero(is_invalid)} of {len(values)} rows",
            "federation.task=classification predicts classes",
        )
    if len(np.unique(values)) < 2:
        raise DataError.of(f"column {column!r} of data set {name!r}", "hold at least two different numbers to predict")
    deciles = np.unique(np.quantile(values, np.arange(1, NUM_TENTHS) / NUM_TENTHS))
    tenths = np.searchsorted(deciles, values, side="right")
    present, labels = np.unique(tenths, return_inverse=True)
    bounds = [*(f"{decile:.6g}" for decile in deciles)]
    names = [f"below {bounds[0]}", *(f"{low} to {high}" for low, high in pairwise(bounds)), f"from {bounds[-1]}"]
    return Predicted(labels.astype(np.int64), tuple(names[tenth] for tenth in present), values.astype(np.float64))


LARGEST_SHARE = 0.5  # of values that differ, and of values too rare to tell, in a column of categories
MOST_ROWS_EACH = 10  # of a text or an identifier, on average
MISSING_SENTINEL = 1e200  # beyond any number of a column
ROWS_AT_ONCE = 10_000


def dataset_from_mixed_table(
    name: str, table: pa.Table, roles: ColumnRoles, min_release: int, source: str, facts: Mapping[str, Any]
) -> Dataset:
    """Return a table of numbers and categories as a data set.

    Args:
        name: Name of the data set.
        table: Plain cells (`table_files.py`), one row per sample.
        roles: Roles of its columns.
        min_release: Minimum number of values behind a statistic that leaves a client.
        source: Citation, or path.
        facts: Additional facts to record.

    Raises:
        DataError: Lists all faults of the columns, the label or the clients.
    """
    check_roles(name, table, roles)
    predicted = predicted_of(name, table, roles)
    client_ids = None if roles.client is None else discrete(name, table, roles.client)
    columns = typed_columns(name, table, roles.features(name, table), roles.categories)
    statistics = merged_statistics(name, columns, client_ids, min_release)
    faults = statistics_faults(name, columns, statistics, min_release)
    if faults:
        raise DataError([*faults.values()])
    facts = {"columns_left_out": (*roles.never_features, *roles.dropped), **facts}
    return dataset_of_columns(name, table, roles, columns, predicted, client_ids, statistics, source, facts)


def predicted_of(name: str, table: pa.Table, roles: ColumnRoles) -> Predicted:
    """Return the classes or the regression target of a table's label.

    Raises:
        DataError: If the label is not of the kind that the task needs.
    """
    if roles.quantity:
        return quantity_target(name, roles.label, as_numbers(table[roles.label]))
    return Predicted(*classes(name, table, roles))


def dataset_of_columns(
    name: str,
    table: pa.Table,
    roles: ColumnRoles,
    columns: Sequence[Column],
    predicted: Predicted,
    client_ids: TextArray | None,
    statistics: TableStatistics,
    source: str,
    facts: Mapping[str, Any],
) -> Dataset:
    """Return the data set of usable columns.

    Args:
        name: Name of the data set.
        table: Plain cells.
        roles: Roles of its columns.
        columns: Columns that become features, at least one.
        predicted: Classes or regression target of its label.
        client_ids: Natural client of each row, or None.
        statistics: Column statistics reported by the clients.
        source: Citation, or path.
        facts: Additional facts to record.
    """
    encoded = encode_features(columns, statistics)
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
        encoding=encoding_document(columns, statistics),
        facts={
            **usual_facts(roles.label, _comparable(columns), predicted.labels),
            "num_constant_columns": int((encoded.features.max(axis=0) == encoded.features.min(axis=0)).sum()),
            "num_missing_cells": sum(int(column.missing.sum()) for column in columns),
            "columns_of_categories": tuple(column.name for column in columns if isinstance(column, CategoryColumn)),
            "features_of_columns": {column: len(names) for column, names in encoded.by_column.items()},
            **facts,
        },
    )


def merged_statistics(
    name: str, columns: Sequence[Column], client_ids: TextArray | None, min_release: int
) -> TableStatistics:
    """Return the column statistics reported by all clients, merged.

    Raises:
        DataError: If all clients are too small to report.
    """
    answers = [client_statistics(columns, rows, min_release) for rows in _rows_of_clients(columns, client_ids)]
    reported = [answer for answer in answers if answer is not None]
    if not reported:
        raise DataError.of(
            f"data set {name!r}",
            f"have a client with at least federation.min_release={min_release} rows, as means "
            f"and categories are reported by clients, but none of {len(answers)} has as many",
        )
    return merge_statistics(reported)


def _rows_of_clients(columns: Sequence[Column], client_ids: TextArray | None) -> list[IntArray]:
    if client_ids is None:
        return [np.arange(len(columns[0].missing))]
    _, owners = distinct_texts(client_ids)
    return np.split(np.argsort(owners, kind="stable"), np.cumsum(np.bincount(owners))[:-1])


def statistics_faults(
    name: str, columns: Sequence[Column], statistics: TableStatistics, min_release: int
) -> dict[str, Fault]:
    """Return faults by column, if clients report too little about it or its values rarely repeat."""
    conditions = {column.name: _unmet_condition(column, statistics, min_release) for column in columns}
    return {
        column: Fault(
            f"column {column!r} of data set {name!r}",
            f"hold {condition}",
            hint=f"{column_key(column, 'drop')} leaves it out",
        )
        for column, condition in conditions.items()
        if condition
    }


def _unmet_condition(column: Column, statistics: TableStatistics, min_release: int) -> str:
    if isinstance(column, NumberColumn):
        if statistics.moments[column.name].count:
            return ""
        return f"at least federation.min_release={min_release} values at some client, but no client has as many"
    tally = statistics.tallies[column.name]
    num_present = max(1, statistics.num_rows - tally.num_missing)
    sample = next((category for category in column.categories if category not in tally.counts), "")[:40]
    if is_identifier_like(column, statistics):
        return (
            f"categories that repeat, but its clients hold {tally.num_distinct} different values in {num_present} "
            f"rows, such as {sample!r}, as identifiers and texts do ({text_argument('text_column', column.name)} reads "
            "texts)"
        )
    if not tally.counts:
        return (
            f"a category that occurs in at least federation.min_release={min_release} rows of some client, as rarer "
            f"ones are not released, but {sample!r} and all others are rarer"
        )
    if len(tally.counts) > MAX_CATEGORIES:
        return f"at most {MAX_CATEGORIES} categories, got {len(tally.counts)}"
    return ""


def is_identifier_like(column: CategoryColumn, statistics: TableStatistics) -> bool:
    """Return whether categories hardly repeat, as in identifiers and texts."""
    tally, num_other = statistics.tallies[column.name], statistics.num_other(column.name)
    num_present = max(1, statistics.num_rows - tally.num_missing)
    if MOST_ROWS_EACH * len(column.categories) < np.count_nonzero(column.codes >= 0):
        return False  # over all clients they do repeat, though each may be too small to see it
    return tally.num_distinct > LARGEST_SHARE * num_present and num_other > LARGEST_SHARE * num_present


def _comparable(columns: Sequence[Column]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield blocks of all cells as numbers, equal for equal cells, shape `(rows_of_block, num_columns)`."""
    for start in range(0, len(columns[0].missing), ROWS_AT_ONCE):
        block = slice(start, start + ROWS_AT_ONCE)
        yield np.column_stack(
            [
                np.nan_to_num(column.numbers[block], nan=MISSING_SENTINEL)
                if isinstance(column, NumberColumn)
                else column.codes[block].astype(np.float64)
                for column in columns
            ]
        )
