"""From typed columns and the federation's statistics to features: each client can do it alone.

A column of numbers becomes (value - mean) / deviation; a missing value becomes the mean, hence 0, and a second feature
`<column> missing` is 1 there, in columns where the federation knows of missing values. A column of categories becomes
one feature `<column>=<category>` for each category that some client told, 1 or 0; `<column> missing` where some cells
are, and `<column> other` for categories that no client told. These features keep the scale 0 and 1: divided by its
deviation, a category of ten rows in a million would become a feature of 300.

The statistics that encode a table, obtained as a federation obtains them: from aggregates of each client.

Client half: for each column of numbers the count, the mean and the sum of squared deviations of the values that are not
missing; for each column of categories how often each one occurs. A client says nothing of a column of which it holds
fewer than `min_release` values, nothing of a category that it holds less often, and nothing at all if it has fewer
rows. Server half: the sums over all clients, by

    mean = Σ n_k mean_k / n,    S = Σ (S_k + n_k (mean_k - mean)²),    variance = S / n,

T. Chan, G. Golub and R. LeVeque, "Algorithms for computing the sample variance: analysis and recommendations", The
American Statistician 37(3), 1983, eq. 2.1 for any number of parts. Count, mean and S carry what count, sum and sum of
squares carry, but do not cancel where the mean dwarfs the spread. Deviation from the text: the mean is taken as an
offset from the smallest `mean_k`, so that a constant column has S = 0 exactly. Sums over clients are exact
(`math.fsum`), so the order of clients does not matter.

How the columns of a table become features, as a document that every client can read and follow alone.

It holds the federation's statistics (`encoding.py`) and which column is of numbers and which of categories,
so that rows of a client that no one else sees become what they would be in the federation's own table.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
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
    form_of_agreement,
    lenient_numbers,
    parts_of_time,
    present_cells,
    typed_column,
    written_numbers,
)
from fedscout.experiments.data.texts import known_text_rows

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Moments:
    """What is known of a column of numbers.

    Attributes:
        count: Values that are not missing; of a client, 0 stands for too few to be told.
        mean: Their mean; 0 where count is.
        squares: The sum of their squared deviations from it.
    """

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation (divided by the count); 0 for a constant column."""
        return math.sqrt(self.squares / self.count) if self.count else 0.0


@dataclass(frozen=True)
class Tally:
    """What is known of a column of categories.

    Attributes:
        counts: How often a category occurs, of those that a client holds often enough to tell, in alphabetical order.
        num_missing: Cells without a category.
        num_distinct: Different categories of each client, told or not, summed over clients.
    """

    counts: Mapping[str, int]
    num_missing: int
    num_distinct: int


@dataclass(frozen=True)
class TableStatistics:
    """What leaves one client, or what the federation knows.

    Attributes:
        num_rows: Rows of the client, at least `min_release`, or of all clients that took part.
        moments: By column of numbers.
        tallies: By column of categories.
    """

    num_rows: int
    moments: Mapping[str, Moments]
    tallies: Mapping[str, Tally]

    def has_missing(self, column: str) -> bool:
        """Whether some client has rows beyond the values on which a column's moments rest."""
        return self.moments[column].count < self.num_rows

    def num_other(self, column: str) -> int:
        """Return the number of cells with a category that their client holds too rarely to tell it."""
        known = self.tallies[column]
        return self.num_rows - known.num_missing - sum(known.counts.values())


def client_statistics(columns: Sequence[Column], rows: IntArray, min_release: int) -> TableStatistics | None:
    """Return what a client says of its rows: nothing if they are fewer than `min_release`.

    Args:
        columns: The table.
        rows: The client's rows in it.
        min_release: Fewest values behind a figure that leaves the client, >= 1.
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
    """Return the federation's figures; the order of clients does not matter.

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
    told = np.flatnonzero(counts >= min_release)
    return Tally(
        counts={column.categories[code]: int(counts[code]) for code in told},
        num_missing=int((codes < 0).sum()),
        num_distinct=int(np.count_nonzero(counts)),
    )


def _merged_moments(clients: Sequence[Moments]) -> Moments:
    told = [client for client in clients if client.count]
    if not told:
        return Moments()
    count = sum(client.count for client in told)
    offset = min(client.mean for client in told)
    mean = offset + math.fsum(client.count * (client.mean - offset) for client in told) / count
    return Moments(count, mean, math.fsum(client.squares + client.count * (client.mean - mean) ** 2 for client in told))


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
ROWS_AT_ONCE = 100_000


@dataclass(frozen=True)
class EncodedFeatures:
    """A table as a model sees it.

    Attributes:
        features: float32, finite, shape `(num_rows, num_features)`.
        by_column: Names of the features that each column becomes, in the order of the features.
        deviations: Each feature's standard deviation before it was standardised, shape `(num_features,)`.
    """

    features: FloatArray
    by_column: Mapping[str, tuple[str, ...]]
    deviations: npt.NDArray[np.float64]

    @property
    def names(self) -> tuple[str, ...]:
        """One a feature."""
        return tuple(name for names in self.by_column.values() for name in names)


def encode_features(columns: Sequence[Column], statistics: TableStatistics) -> EncodedFeatures:
    """Encode all rows of a table.

    Args:
        columns: The table, in order.
        statistics: Of the federation, over the same columns.
    """
    features_of = {column.name: [*_encoded(column, statistics)] for column in columns}
    encoded = [feature for made in features_of.values() for feature in made]
    features = np.empty((len(columns[0].missing), len(encoded)), np.float32)
    for start in range(0, len(features), ROWS_AT_ONCE):  # between two blocks signals are heard
        for index, feature in enumerate(encoded):
            features[start : start + ROWS_AT_ONCE, index] = feature.cells[start : start + ROWS_AT_ONCE]
    deviations = [
        _deviation_of_shares(feature.cells) if feature.deviation is None else feature.deviation for feature in encoded
    ]
    names = {column: tuple(feature.name for feature in made) for column, made in features_of.items()}
    return EncodedFeatures(features, names, np.array(deviations))


@dataclass(frozen=True)
class _Feature:
    name: str
    cells: npt.NDArray[Any]
    deviation: float | None = None


def _deviation_of_shares(cells: npt.NDArray[Any]) -> float:
    """Return the standard deviation of zeros and ones: the root of p (1 - p)."""
    share = float(np.mean(cells))
    return float(np.sqrt(share * (1.0 - share)))


def _encoded(column: Column, statistics: TableStatistics) -> Iterator[_Feature]:
    if isinstance(column, NumberColumn):
        return _encoded_numbers(column, statistics)
    return _encoded_categories(column, statistics)


def _encoded_numbers(column: NumberColumn, statistics: TableStatistics) -> Iterator[_Feature]:
    known = statistics.moments[column.name]
    missing = column.missing
    centred = np.where(missing, 0.0, column.numbers - known.mean)
    scores = centred / known.deviation if known.deviation > 0 else np.zeros_like(centred)
    # A value behind the statistics scores at most the square root of their count; only a client too small to be heard
    # can hold one beyond this bound.
    yield _Feature(column.name, np.clip(scores, -LARGEST_SCORE, LARGEST_SCORE), known.deviation)
    if statistics.has_missing(column.name):
        yield _Feature(f"{column.name} missing", missing)


def _encoded_categories(column: CategoryColumn, statistics: TableStatistics) -> Iterator[_Feature]:
    known = statistics.tallies[column.name]
    positions = {value: code for code, value in enumerate(column.categories)}
    for category in known.counts:
        yield _Feature(f"{column.name}={category}", column.codes == positions.get(category, len(column.categories)))
    if statistics.num_other(column.name):
        untold = np.array([value not in known.counts for value in column.categories], dtype=np.bool_)
        is_other = np.zeros(len(column.codes), dtype=np.bool_)
        is_other[column.codes >= 0] = untold[column.codes[column.codes >= 0]]
        yield _Feature(f"{column.name} other", is_other)
    if known.num_missing:
        yield _Feature(f"{column.name} missing", column.missing)


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
            faults.append(Fault(f"column {column!r} of table {name!r}", problem=str(error)))
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
