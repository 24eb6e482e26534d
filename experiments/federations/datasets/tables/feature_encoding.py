"""From typed columns and the federation's statistics to features: each client can do it alone.

A column of numbers becomes (value - mean) / deviation; a missing value becomes the mean, hence 0, and a second feature
`<column> missing` is 1 there, in columns where the federation knows of missing values. A column of categories becomes
one feature `<column>=<category>` for each category that some client told, 1 or 0; `<column> missing` where some cells
are, and `<column> other` for categories that no client told. These features keep the scale 0 and 1: divided by its
deviation, a category of ten rows in a million would become a feature of 300.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray
from fedscout.experiments.federations.datasets.tables.column_kinds import CategoryColumn, Column, NumberColumn
from fedscout.experiments.federations.datasets.tables.federated_statistics import TableStatistics

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
