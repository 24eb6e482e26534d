"""Conversion of table columns to data sets, and their encoding as features, which each client can apply alone.

`dataset_from_table`: columns of complete numbers get zero mean and unit variance, computed once over all rows when the
data set is loaded, before partitioning. Real clients would need one exchange of sums and sums of squares, which yields
the same numbers. It puts the noise of scenarios, stated in units of the standardised feature, on one scale for every
column.

`dataset_from_mixed_table`: columns are numbers or categories, with missing values. `columns.py` determines column types
and rejects unusable columns; the statistics come from clients, which are the natural clients, or a single client
with the whole table if there are none.

`quantity_target`: models learn the numbers of a regression target. Where rows need classes, as for stratified splits,
partitions by label and the detection of label skew, the classes are the deciles of the target over all rows; equal
values stay together, so there may be fewer than ten. Real clients would need one exchange of counts for the deciles.

Features. A numeric column becomes (value - mean) / deviation; a missing value becomes the mean, hence 0, and a second
feature `<column> missing` is 1 there, in columns with missing values in the federation. A categorical column becomes
one 0/1 feature `<column>=<category>` for each category that some client reported, `<column> missing` if some cells are
missing, and `<column> other` for categories that no client reported. These features keep the scale 0 and 1: divided by
its deviation, a category of ten rows in a million would become a feature of 300.

Statistics, computed as in a federation. Client side: for each numeric column the count, the mean and the sum of squared
deviations of the non-missing values; for each categorical column the count of each category. A client does not report a
column with fewer than `min_release` values, a category that occurs less often, or anything if it has fewer rows. Server
side: the sums over all clients, by

    mean = Σ n_k mean_k / n,    S = Σ (S_k + n_k (mean_k - mean)²),    variance = S / n,

T. Chan, G. Golub and R. LeVeque, "Algorithms for computing the sample variance: analysis and recommendations", The
American Statistician 37(3), 1983, eq. 2.1 for any number of parts. Count, mean and S contain the same information as
count, sum and sum of squares, but do not cancel if the mean is much larger than the spread. Deviation from the text:
the mean is computed as an offset from the smallest `mean_k`, so that a constant column has S = 0 exactly. Sums over
clients are exact (`math.fsum`), so the order of clients does not matter.

The encoding is also written as a JSON document with the federation's statistics and column types, so that a client's
private rows are encoded as in the federation's own table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import listed
from fedscout.experiments.data.columns import (
    MAX_CATEGORIES,
    Column,
    ColumnRoles,
    DateOrder,
    NumberFormat,
    as_numbers,
    cells_named,
    first_faults,
    parts_of_time,
    present_cells,
    typed_column,
    typed_columns,
)
from fedscout.experiments.data.dataset import Dataset, TextArray, blocks, column_key, distinct_texts, usual_facts
from fedscout.experiments.data.texts import known_text_rows


@dataclass(frozen=True)
class Moments:
    """Statistics of a numeric column.

    Attributes:
        count: Number of non-missing values; 0 for a client with too few values to report.
        mean: Their mean; 0 if count is 0.
        squares: Sum of their squared deviations from the mean.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def deviation(self) -> float:
        """Standard deviation (divided by the count); 0 for a constant column."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


@dataclass(frozen=True)
class Tally:
    """Statistics of a categorical column.

    Attributes:
        counts: Counts of the categories that clients hold often enough to report, in alphabetical order.
        num_missing: Number of cells without a category.
        num_distinct: Number of distinct categories of each client, reported or not, summed over clients.
    """

    counts: Mapping[str, int]
    num_missing: int
    num_distinct: int

    def num_other(self, num_rows: int) -> int:
        """Return the number of cells, of these rows, whose category is too rare at its client to be reported."""
        return num_rows - self.num_missing - sum(self.counts.values())


@dataclass(frozen=True)
class TableStatistics:
    """Statistics released by one client, or merged over the federation; `asdict` of it is JSON-serializable.

    Attributes:
        num_rows: Rows of the client, at least `min_release`, or of all clients that took part.
        columns: Statistics of each column, in the order of the features.
    """

    num_rows: int
    columns: Mapping[str, Moments | Tally]


def client_statistics(columns: Sequence[Column], rows: IntArray, min_release: int) -> TableStatistics | None:
    """Return the statistics a client reports about its rows; None if they are fewer than `min_release`.

    Args:
        columns: The table.
        rows: The client's rows in it.
        min_release: Minimum number of values behind a reported statistic, >= 1.
    """
    if len(rows) < min_release:
        return None
    return TableStatistics(
        len(rows),
        {
            column.name: (_moments if column.categories is None else _tally)(column, rows, min_release)
            for column in columns
        },
    )


def merge_statistics(clients: Sequence[TableStatistics]) -> TableStatistics:
    """Return the merged statistics of the federation; the order of clients does not matter.

    Args:
        clients: At least one, all over the same columns.
    """
    columns: dict[str, Moments | Tally] = {}
    for name in clients[0].columns:
        reported = [client.columns[name] for client in clients]
        moments = [part for part in reported if isinstance(part, Moments)]
        tallies = [part for part in reported if isinstance(part, Tally)]
        columns[name] = _merged_moments(moments) if moments else _merged_tallies(tallies)
    return TableStatistics(sum(client.num_rows for client in clients), columns)


def _moments(column: Column, rows: IntArray, min_release: int) -> Moments:
    values = column.cells[rows]
    values = values[~np.isnan(values)]
    if len(values) < min_release:
        return Moments()
    # The offset makes the mean of equal values exactly that value. Reductions are called directly, as thousands of
    # small clients spend their time in what surrounds them.
    offset = np.minimum.reduce(values)
    mean = float(offset + np.add.reduce(values - offset) / len(values))
    return Moments(len(values), mean, float(np.add.reduce(np.square(values - mean))))


def _tally(column: Column, rows: IntArray, min_release: int) -> Tally:
    codes = column.cells[rows]
    counts = np.bincount(codes[codes >= 0], minlength=len(column.categories or ()))
    return Tally(
        counts={
            category: count
            for category, count in zip(column.categories or (), counts.tolist(), strict=True)
            if count >= min_release
        },
        num_missing=int((codes < 0).sum()),
        num_distinct=int(np.count_nonzero(counts)),
    )


def _merged_moments(clients: Sequence[Moments]) -> Moments:
    reported = [client for client in clients if client.count]
    if not reported:
        return Moments()
    count = sum(client.count for client in reported)
    offset = min(client.mean for client in reported)
    mean = offset + math.fsum(client.count * (client.mean - offset) for client in reported) / count
    return Moments(
        count, mean, math.fsum(client.squares + client.count * (client.mean - mean) ** 2 for client in reported)
    )


def _merged_tallies(clients: Sequence[Tally]) -> Tally:
    counts: Counter[str] = Counter()
    for client in clients:
        counts.update(client.counts)
    return Tally(
        counts=dict(sorted(counts.items())),
        num_missing=sum(client.num_missing for client in clients),
        num_distinct=sum(client.num_distinct for client in clients),
    )


LARGEST_SCORE = 1e6


@dataclass(frozen=True)
class EncodedFeatures:
    """A table encoded for a model.

    Attributes:
        features: float32, finite, shape `(num_rows, num_features)`.
        by_column: Names of the features of each column, in the order of the features.
        deviations: Each feature's standard deviation before it was standardised, shape `(num_features,)`.
    """

    features: FloatArray
    by_column: Mapping[str, tuple[str, ...]]
    deviations: npt.NDArray[np.float64]

    @property
    def names(self) -> tuple[str, ...]:
        """Feature names, in order."""
        return tuple(name for names in self.by_column.values() for name in names)


def encode_features(columns: Sequence[Column], statistics: TableStatistics) -> EncodedFeatures:
    """Return all rows of a table, encoded.

    Args:
        columns: The table, in order.
        statistics: Statistics of the federation, over the same columns.
    """
    encoded = {column.name: [*_encoded(column, statistics)] for column in columns}
    features = np.empty((len(columns[0].missing), sum(map(len, encoded.values()))), np.float32)
    for index, (_, cells, _) in enumerate(chain.from_iterable(encoded.values())):
        features[:, index] = cells
    names = {column: tuple(name for name, _, _ in parts) for column, parts in encoded.items()}
    deviations = [deviation for _, _, deviation in chain.from_iterable(encoded.values())]
    return EncodedFeatures(features, names, np.array(deviations))


Feature = tuple[str, npt.NDArray[Any], float]
"""Name, cells, and standard deviation before the feature was standardised."""


def _mark(name: str, cells: npt.NDArray[np.bool_]) -> Feature:
    """Return a feature of zeros and ones, of share p of ones and standard deviation √(p (1 - p))."""
    share = float(np.mean(cells))
    return name, cells, float(np.sqrt(share * (1.0 - share)))


def _encoded(column: Column, statistics: TableStatistics) -> Iterator[Feature]:
    reported = statistics.columns[column.name]
    if isinstance(reported, Moments):
        centred = np.where(column.missing, 0.0, column.cells - reported.mean)
        scores = centred / reported.deviation if reported.deviation > 0 else np.zeros_like(centred)
        # A value behind the statistics scores at most the square root of their count; only a client too small to be
        # heard can hold one beyond this bound.
        yield column.name, np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE), reported.deviation
        has_missing = reported.count < statistics.num_rows
    else:
        positions = {value: code for code, value in enumerate(column.categories or ())}
        for category in reported.counts:
            is_category = column.cells == positions.get(category, len(positions))
            yield _mark(f"{column.name}={category}", is_category)
        if reported.num_other(statistics.num_rows):
            unreported = [code for value, code in positions.items() if value not in reported.counts]
            yield _mark(f"{column.name} other", np.isin(column.cells, unreported))
        has_missing = reported.num_missing > 0
    if has_missing:
        yield _mark(f"{column.name} missing", column.missing)


def encoded_rows(name: str, table: pa.Table, encoding: Mapping[str, Any]) -> FloatArray:
    """Return a client's rows as features, float32, shape `(num_rows, num_features)`.

    Args:
        name: Name of the table, for messages.
        table: Plain cells; columns that are not in the encoding are ignored.
        encoding: `asdict` of the `TableStatistics`, or the words of a text, and how columns are read.

    Raises:
        DataError: If a column is missing, or does not match the encoding.
    """
    readings: Mapping[str, Mapping[str, str]] = encoding.get("agreed", {})
    is_text = "words" in encoding
    agreed: Mapping[str, Any] = {encoding["text"]: {}} if is_text else encoding["columns"]
    sources = {column: readings.get(column, {}).get("of", column) for column in agreed}
    if lacking := [source for source in dict.fromkeys(sources.values()) if source not in table.column_names]:
        raise DataError.of(f"table {name!r}", f"have the agreed columns, but lacks {listed(lacking)}")
    if is_text:
        texts = ("" if cell is None else str(cell) for cell in table[encoding["text"]].to_pylist())
        return known_text_rows(texts, encoding["words"], encoding["length"])
    statistics = {column: (Moments if "mean" in values else Tally)(**values) for column, values in agreed.items()}
    columns: list[Column] = []
    faults: dict[str, str] = {}
    for column, reported in statistics.items():
        try:
            columns.append(_column(table, column, isinstance(reported, Tally), readings.get(column, {})))
        except ValueError as error:
            faults[sources[column]] = Fault(f"column {sources[column]!r} of table {name!r}", problem=str(error))
    if faults:
        raise DataError([*faults.values()])
    return encode_features(columns, TableStatistics(encoding["num_rows"], statistics)).features


def _column(table: pa.Table, column: str, is_category: bool, reading: Mapping[str, str]) -> Column:
    """Return one column as specified by the encoding; a client may have no value in it.

    Raises:
        ValueError: If it holds other values; the message is to follow the column's name.
    """
    if "part" in reading:
        parts = parts_of_time(table[reading["of"]], cast(DateOrder, reading["order"]))
        return Column(column, parts[reading["part"]])
    cells = present_cells(table[column])
    if cells.null_count == len(cells):
        return (
            Column(column, np.full(len(cells), -1), ()) if is_category else Column(column, np.full(len(cells), np.nan))
        )
    if reading:
        return NumberFormat(**reading).column(column, cells)
    typed = typed_column(column, cells, is_category)
    if not is_category and typed.categories is not None:
        raise ValueError("must hold numbers, as agreed")
    return typed


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
    roles.check(name, table)
    columns = roles.features(name, table)
    values = _numbers(name, table, columns)
    labels, class_names = roles.labels(name, table)
    client_ids = roles.clients(name, table)
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
    roles.check(name, table)
    predicted = predicted_of(name, table, roles)
    client_ids = roles.clients(name, table)
    columns = typed_columns(name, table, roles.features(name, table), roles.categories)
    statistics = merged_statistics(name, columns, client_ids, min_release)
    if unusable := unusable_columns(name, columns, statistics, min_release):
        raise DataError([fault for _, _, fault in unusable.values()])
    facts = {"columns_left_out": (*roles.never_features, *roles.dropped), **facts}
    return dataset_of_columns(name, table, roles, columns, predicted, client_ids, statistics, source, facts)


def predicted_of(name: str, table: pa.Table, roles: ColumnRoles) -> Predicted:
    """Return the classes or the regression target of a table's label.

    Raises:
        DataError: If the label is not of the kind that the task needs.
    """
    if roles.quantity:
        return quantity_target(name, roles.label, as_numbers(table[roles.label]))
    return Predicted(*roles.labels(name, table))


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
    of_columns = {column.name: statistics.columns[column.name] for column in columns}
    return Dataset(
        name=name,
        features=encoded.features,
        labels=predicted.labels,
        class_names=predicted.class_names,
        feature_names=encoded.names,
        source=source,
        client_ids=client_ids,
        groups=roles.groups(name, table),
        deviations=encoded.deviations,
        targets=predicted.targets,
        encoding=asdict(replace(statistics, columns=of_columns)),
        facts={
            **usual_facts(roles.label, _comparable(columns), predicted.labels),
            "num_constant_columns": int((encoded.features.max(axis=0) == encoded.features.min(axis=0)).sum()),
            "num_missing_cells": sum(int(column.missing.sum()) for column in columns),
            "columns_of_categories": tuple(column.name for column in columns if column.categories is not None),
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


def unusable_columns(
    name: str, columns: Sequence[Column], statistics: TableStatistics, min_release: int
) -> dict[str, tuple[str, str, Fault]]:
    """Return kind, reason and fault of columns of which clients report too little, or whose values rarely repeat."""
    found = {}
    for column in columns:
        if unusable := _unusable(column, statistics):
            kind, reason = unusable
            must = f"be usable with federation.min_release={min_release}, but {reason}"
            hint = f"{column_key(column.name, 'drop')} leaves it out"
            found[column.name] = kind, reason, Fault(f"column {column.name!r} of data set {name!r}", must, hint=hint)
    return found


def _unusable(column: Column, statistics: TableStatistics) -> tuple[str, str] | None:
    reported = statistics.columns[column.name]
    if isinstance(reported, Moments):
        return None if reported.count else ("empty", "no client has enough values to be released")
    categories = column.categories or ()
    if is_identifier_like(column, reported, statistics.num_rows):
        sample = next((name for name in categories if name not in reported.counts), "")
        return "identifier", f"{len(categories):,} different values rarely repeat, such as {sample[:40]!r}"
    num_categories = len(reported.counts)
    if not num_categories:
        return "category", "each category is too rare to be released"
    if num_categories > MAX_CATEGORIES:
        return "category", f"{num_categories:,} categories, more than the maximum of {MAX_CATEGORIES}"
    return None


def is_identifier_like(column: Column, tally: Tally, num_rows: int) -> bool:
    """Return whether categories hardly repeat, as in identifiers and texts."""
    num_present = max(1, num_rows - tally.num_missing)
    if MOST_ROWS_EACH * len(column.categories or ()) < len(column.present):
        return False  # over all clients they do repeat, though each may be too small to see it
    return min(tally.num_distinct, tally.num_other(num_rows)) > LARGEST_SHARE * num_present


def _comparable(columns: Sequence[Column]) -> Iterator[npt.NDArray[np.float64]]:
    """Yield blocks of all cells as numbers, equal for equal cells, shape `(rows_of_block, num_columns)`."""
    for block in blocks(len(columns[0].missing)):
        cells = [np.nan_to_num(column.cells[block].astype(np.float64), nan=MISSING_SENTINEL) for column in columns]
        yield np.column_stack(cells)
