"""Codes that stand for a missing value beside plausible ones: -9999, 999, `unknown`. They are suspected, not replaced.

A number of the list is suspected if three cells hold it or more, and it lies farther from all other values than these
spread, or is negative where no other value is. What it is meant for is said by `federation.missing_values`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from fedscout.experiments.federations.datasets.tables.column_kinds import CategoryColumn, Column

NUMBERS: Final = (-99999.0, -9999.0, -999.0, -99.0, -9.0, 99.0, 999.0, 9999.0, 99999.0)
WORDS: Final = frozenset(
    ("unknown", "unspecified", "undefined", "missing", "not available", "not known", "no data", "-", "--", ".")
)
FEWEST_CELLS: Final = 3


def missing_codes(column: Column) -> dict[str, int]:
    """Return the suspected codes of a column, as its cells write them, and the number of cells that hold each."""
    if isinstance(column, CategoryColumn):
        counts = np.bincount(column.codes[column.codes >= 0], minlength=len(column.categories))
        held = zip(column.categories, counts.tolist(), strict=True)
        found = {name: count for name, count in held if name.lower() in WORDS and count >= FEWEST_CELLS}
        return found if len(found) < len(column.categories) else {}
    present = column.numbers[~column.missing]
    others = present[~np.isin(present, NUMBERS)]
    if not len(others):
        return {}
    low, high = others.min(), others.max()
    far = [
        code
        for code in NUMBERS
        if (code < 0 <= low) or (code < low and low - code > high - low) or (code > high and code - high > high - low)
    ]
    counts_of_codes = {f"{code:.0f}": int(np.count_nonzero(present == code)) for code in far}
    return {code: count for code, count in counts_of_codes.items() if count >= FEWEST_CELLS}
