"""Encoding of typed columns as features, from statistics aggregated over clients; each client can apply it alone.

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
from dataclasses import asdict, dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import listed
from fedscout.experiments.data.columns import (
    CategoryColumn,
    Column,
    DateOrder,
    NumberColumn,
    lenient_numbers,
    parts_of_time,
    present_cells,
    typed_column,
)
from fedscout.experiments.data.texts import known_text_rows

if TYPE_CHECKING:
    import pyarrow as pa


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


@dataclass(frozen=True)
class TableStatistics:
    """Statistics released by one client, or merged over the federation.

    Attributes:
        num_rows: Rows of the client, at least `min_release`, or of all clients that took part.
        moments: Statistics by numeric column.
        tallies: Statistics by categorical column.
    """

    num_rows: int
    moments: Mapping[str, Moments]
    tallies: Mapping[str, Tally]

    def has_missing(self, column: str) -> bool:
        """Return whether some client has rows that do not contribute to a column's moments."""
        return self.moments[column].count < self.num_rows

    def num_other(self, column: str) -> int:
        """Return the number of cells with a category that is too rare at its client to be reported."""
        tally = self.tallies[column]
        return self.num_rows - tally.num_missing - sum(tally.counts.values())


def client_statistics(columns: Sequence[Column], rows: IntArray, min_release: int) -> TableStatistics | None:
    """Return the statistics a client reports about its rows; None if they are fewer than `min_release`.

    Args:
        columns: The table.
        rows: The client's rows in it.
        min_release: Minimum number of values behind a reported statistic, >= 1.
    """
    if len(rows) < min_release:
        return None
    numbers = [column for column in columns if isinstance(column, NumberColumn)]
    categories = [column for column in columns if isinstance(column, CategoryColumn)]
    return TableStatistics(
        num_rows=len(rows),
        moments={column.name: _moments(column, rows, min_release) for column in numbers},
        tallies={column.name: _tally(column, rows, min_release) for column in categories},
    )


def merge_statistics(clients: Sequence[TableStatistics]) -> TableStatistics:
    """Return the merged statistics of the federation; the order of clients does not matter.

    Args:
        clients: At least one, all over the same columns.
    """
    return TableStatistics(
        num_rows=sum(client.num_rows for client in clients),
        moments={name: _merged_moments([client.moments[name] for client in clients]) for name in clients[0].moments},
        tallies={name: _merged_tallies([client.tallies[name] for client in clients]) for name in clients[0].tallies},
    )


def _moments(column: NumberColumn, rows: IntArray, min_release: int) -> Moments:
    values = column.numbers[rows]
    values = values[~np.isnan(values)]
    if len(values) < min_release:
        return Moments()
    # The offset makes the mean of equal values exactly that value. Reductions are called directly, as thousands of
    # small clients spend their time in what surrounds them.
    offset = np.minimum.reduce(values)
    mean = float(offset + np.add.reduce(values - offset) / len(values))
    return Moments(len(values), mean, float(np.add.reduce(np.square(values - mean))))


def _tally(column: CategoryColumn, rows: IntArray, min_release: int) -> Tally:
    codes = column.codes[rows]
    counts = np.bincount(codes[codes >= 0], minlength=len(column.categories))
    reported = np.flatnonzero(counts >= min_release)
    return Tally(
        counts={column.categories[code]: int(counts[code]) for code in reported},
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
    if isinstance(column, NumberColumn):
        moments = statistics.moments[column.name]
        centred = np.where(column.missing, 0.0, column.numbers - moments.mean)
        scores = centred / moments.deviation if moments.deviation > 0 else np.zeros_like(centred)
        # A value behind the statistics scores at most the square root of their count; only a client too small to be
        # heard can hold one beyond this bound.
        yield column.name, np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE), moments.deviation
        has_missing = statistics.has_missing(column.name)
    else:
        tally = statistics.tallies[column.name]
        positions = {value: code for code, value in enumerate(column.categories)}
        for category in tally.counts:
            is_category = column.codes == positions.get(category, len(positions))
            yield _mark(f"{column.name}={category}", is_category)
        if statistics.num_other(column.name):
            unreported = [code for value, code in positions.items() if value not in tally.counts]
            yield _mark(f"{column.name} other", np.isin(column.codes, unreported))
        has_missing = tally.num_missing > 0
    if has_missing:
        yield _mark(f"{column.name} missing", column.missing)


def encoding_document(columns: Sequence[Column], statistics: TableStatistics) -> dict[str, Any]:
    """Return the encoding of a table as JSON-serializable values.

    Args:
        columns: Columns of the table, in the order of its features.
        statistics: Statistics of the federation.
    """
    statistics_by_column: dict[str, Moments | Tally] = {**statistics.moments, **statistics.tallies}
    return {
        "num_rows": statistics.num_rows,
        "columns": {column.name: asdict(statistics_by_column[column.name]) for column in columns},
    }


def encoded_rows(name: str, table: pa.Table, encoding: Mapping[str, Any]) -> FloatArray:
    """Return a client's rows as features, float32, shape `(num_rows, num_features)`.

    Args:
        name: Name of the table, for messages.
        table: Plain cells; columns that are not in the encoding are ignored.
        encoding: As returned by `encoding_document`.

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
    moments = {column: Moments(**values) for column, values in agreed.items() if "mean" in values}
    tallies = {column: Tally(**values) for column, values in agreed.items() if column not in moments}
    columns: list[Column] = []
    faults: dict[str, str] = {}
    for column in agreed:
        try:
            columns.append(_column(table, column, column in tallies, readings.get(column, {})))
        except ValueError as error:
            faults[sources[column]] = Fault(f"column {sources[column]!r} of table {name!r}", problem=str(error))
    if faults:
        raise DataError([*faults.values()])
    return encode_features(columns, TableStatistics(encoding["num_rows"], moments, tallies)).features


def _column(table: pa.Table, column: str, is_category: bool, reading: Mapping[str, str]) -> Column:
    """Return one column as specified by the encoding; a client may have no value in it.

    Raises:
        ValueError: If it holds other values; the message is to follow the column's name.
    """
    if "part" in reading:
        parts = parts_of_time(table[reading["of"]], cast(DateOrder, reading["order"]))
        return NumberColumn(column, parts[reading["part"]])
    cells = present_cells(table[column])
    if cells.null_count == len(cells):
        if is_category:
            return CategoryColumn(column, np.full(len(cells), -1), ())
        return NumberColumn(column, np.full(len(cells), np.nan))
    if reading:
        return lenient_numbers(column, cells)
    typed = typed_column(column, cells, is_category)
    if not is_category and not isinstance(typed, NumberColumn):
        raise ValueError("must hold numbers, as agreed")
    return typed
