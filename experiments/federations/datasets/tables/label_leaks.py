"""Whether one column alone tells the label nearly exactly, as a copy of it does, or what was written down after it.

A row is told by the other rows of its cell in the column: by the most frequent class among those with the same value,
or, where most values differ, among its neighbours when rows are sorted by the column, five at a time. With R of n rows
told rightly and m rows of the most frequent class, the measure is

    λ = (R - m) / (n - m),

the share of the mistakes of a constant guess that the column saves (L. Goodman and W. Kruskal, "Measures of association
for cross classifications", Journal of the American Statistical Association 49(268), 1954, section 5). Deviation: a row
does not vote on itself, so that a column of names that all differ tells nothing. Suspected is λ >= 0.95 where at least
20 of the rows looked at are of another class than the most frequent one.

False alarms: of a column that is independent of the label, R is at most about binomial with n draws and chance m/n, and
the chance of λ >= 0.95 is below one in ten million a column. A column that is not independent may well be an honest and
very good feature: a suspicion is told and nothing is left out for it.

Of categories, and of whether a number is missing, each class against the others is looked at as well: the reason for a
complaint, given only with complaints, tells that class alone. So are the rows alone in which a column holds something
else than a missing value or a code for one (`missing_codes.py`), and whether it holds something only where the label is
of one class: suspected if all of at least 20 such rows are, of which the chance, were it independent of the label, is
below one in ten million. Numbers whose weighted sum is the label, to a thousandth of its deviation, are suspected
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.seeds import stream
from fedscout.experiments.federations.datasets.tables.column_kinds import CategoryColumn, Column, NumberColumn
from fedscout.experiments.federations.datasets.tables.missing_codes import missing_codes

SUSPECTED = 0.95
FEWEST_OTHERS = 20
LOOKED_AT = 10_000
NEIGHBOURS = 5
MOST_CLASSES_ALONE = 20
CHANCE = 1e-7
EXACT = 1e-3


def sample_of_rows(num_rows: int) -> IntArray:
    """Return the rows that are looked at: all, or a random sample of them."""
    return np.sort(stream(0, "label-leaks").permutation(num_rows)[:LOOKED_AT])


def suspicion(column: Column, labels: IntArray, class_names: tuple[str, ...], rows: IntArray) -> str:
    """Return what a column tells of the label that it should not; nothing if it is not suspected.

    Args:
        column: Of a table.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: In order.
        rows: Those that are looked at.
    """
    looked = labels[rows]
    for codes, alone in _codes(column, rows):
        if share_told(codes, looked) >= SUSPECTED:
            return "tells the label nearly exactly"
        for label in np.argsort(-np.bincount(looked), kind="stable")[:MOST_CLASSES_ALONE] if alone else ():
            if share_told(codes, (looked == label).astype(np.int64)) >= SUSPECTED:
                return f"tells class {class_names[label]} from the others nearly exactly"
    holds = ~_holds_nothing(column)[rows]
    if holds.all() or np.count_nonzero(holds) < FEWEST_OTHERS:
        return ""
    codes, _ = next(_codes(column, rows[holds]))
    if share_told(codes, looked[holds]) >= SUSPECTED:
        return "tells the label nearly exactly where it holds something"
    if len(np.unique(looked[holds])) == 1:
        label = looked[holds][0]
        if np.mean(looked == label) ** np.count_nonzero(holds) < CHANCE:
            return f"holds something only where the label is {class_names[label]}"
    return ""


def parts_of_sum(columns: Sequence[NumberColumn], values: npt.NDArray[np.float64], rows: IntArray) -> list[str]:
    """Return the names of two columns or more whose weighted sum is the label; nothing if there are none.

    Args:
        columns: Of numbers.
        values: The label as a number, shape `(num_rows,)`.
        rows: Those that are looked at.
    """
    complete = [column for column in columns if not column.missing[rows].any() and np.ptp(column.numbers[rows]) > 0]
    if len(complete) < 2 or len(rows) < FEWEST_OTHERS + 2 * len(complete):
        return []
    numbers = np.column_stack([column.numbers[rows] for column in complete])
    scores = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    label = (values[rows] - values[rows].mean()) / values[rows].std()
    weights = np.linalg.lstsq(scores, label, rcond=None)[0]
    if np.sqrt(np.mean((label - scores @ weights) ** 2)) > EXACT:
        return []
    parts = [column.name for column, weight in zip(complete, weights, strict=True) if abs(weight) > 10 * EXACT]
    return parts if len(parts) > 1 else []


def _holds_nothing(column: Column) -> npt.NDArray[np.bool_]:
    """Return where a cell is missing or holds a code for that, shape `(num_rows,)`."""
    codes = missing_codes(column)
    if isinstance(column, NumberColumn):
        return column.missing | np.isin(column.numbers, [float(code) for code in codes])
    return column.missing | np.isin(column.codes, [column.categories.index(code) for code in codes])


def share_told(codes: IntArray, labels: IntArray) -> float:
    """Return λ, at most 1; minus infinity where too few rows are of another class than the most frequent one.

    Args:
        codes: The cell of each row in the column, >= 0, shape `(num_rows,)`.
        labels: >= 0, same shape.
    """
    counts = np.bincount(labels)
    usual = int(counts.argmax())
    num_others = len(labels) - int(counts[usual])
    if num_others < FEWEST_OTHERS:
        return -np.inf
    pairs, sizes = np.unique(codes.astype(np.int64) * len(counts) + labels, return_counts=True)
    cells = pairs // len(counts)
    order = np.lexsort((sizes, cells))
    cells, sizes, classes = cells[order], sizes[order], (pairs % len(counts))[order]
    is_last = np.append(cells[1:] != cells[:-1], True)
    is_first = np.append(True, cells[1:] != cells[:-1])
    runner_up = np.where(is_first, 0, np.append(0, sizes[:-1]))
    is_told = is_last & (sizes - 1 > runner_up)
    is_single = is_last & is_first & (sizes == 1) & (classes == usual)
    told = int(sizes[is_told].sum()) + int(np.count_nonzero(is_single))
    return (told - int(counts[usual])) / num_others


def _codes(column: Column, rows: IntArray) -> Iterator[tuple[IntArray, bool]]:
    """Yield for each row its cell, and whether each class alone may be told by it."""
    if isinstance(column, CategoryColumn):
        yield column.codes[rows] + 1, True
        return
    assert isinstance(column, NumberColumn)
    numbers = column.numbers[rows]
    yield _neighbourhoods(numbers), False
    if np.isnan(numbers).any():
        yield np.isnan(numbers).astype(np.int64), True


def _neighbourhoods(numbers: npt.NDArray[np.float64]) -> IntArray:
    """Return equal cells for equal numbers; where most differ, for five that follow each other as well."""
    _, codes, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    if len(counts) * NEIGHBOURS <= len(numbers):
        return codes.astype(np.int64)
    ranks = np.cumsum(counts) - counts
    return (ranks // NEIGHBOURS)[codes].astype(np.int64)
