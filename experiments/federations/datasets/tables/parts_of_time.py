"""From a column of dates or times of day to its parts, which are numbers.

A client reads its own rows alone: what must be agreed on beforehand is that the column holds dates, the order in which
day, month and year are written, and which parts are told. Zones are not converted: 10:30 is 10:30 wherever it was.
Day-month-year and month-day-year are told apart by the numbers beyond twelve; where there are none, a date with slashes
begins with the month and one with points or dashes with the day. A month may have its English name (`12 Mar 2024`,
`March 12, 2024`); the year then has four digits, as of `12 Mar 24` nobody knows which number is the day.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.tables.column_kinds import DATE, distinct_cells, is_text, present_cells
from fedscout.experiments.federations.datasets.tables.row_names import row_name

if TYPE_CHECKING:
    import pyarrow as pa

Numbers = npt.NDArray[np.float64]
DateOrder = Literal[
    "year-month-day", "day-month-year", "month-day-year", "time of day", "day-month name-year", "month name-day-year"
]

PARTS: Final = ("year", "month", "day", "weekday", "hour", "minute")
"""Weekdays are numbered from Monday, 0."""

MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
"""How the names of months begin."""

_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::\d{2}(?:[.,]\d+)?)? ?(?P<half>[AaPp][Mm])?"
_BEHIND = rf"(?:[ T]+{_CLOCK}(?: ?(?:Z|UTC|GMT|[+-]\d{{2}}:?\d{{2}}))?)?"
_NAME = (
    r"(?P<month>(?i:jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sep(?:t(?:ember)?)?|"
    r"oct(?:ober)?|nov(?:ember)?|dec(?:ember)?))\.?"
)
_DAY, _FULL_YEAR = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?", r"(?P<year>\d{4})"
_FIELDS = {"year": r"(?P<year>\d{4}|\d{2})", "month": r"(?P<month>\d{1,2})", "day": r"(?P<day>\d{1,2})"}
_PATTERNS: Final[dict[DateOrder, str]] = {
    "year-month-day": rf"^(?P<year>\d{{4}})[-/.]{_FIELDS['month']}[-/.]{_FIELDS['day']}{_BEHIND}$",
    "day-month-year": rf"^{_FIELDS['day']}[-/.]{_FIELDS['month']}[-/.]{_FIELDS['year']}{_BEHIND}$",
    "month-day-year": rf"^{_FIELDS['month']}[-/.]{_FIELDS['day']}[-/.]{_FIELDS['year']}{_BEHIND}$",
    "time of day": f"^{_CLOCK}$",
    "day-month name-year": rf"^{_DAY}[-/. ] ?{_NAME}[-/., ] ?{_FULL_YEAR}{_BEHIND}$",
    "month name-day-year": rf"^{_NAME}[-/. ] ?{_DAY}[-/., ] ?{_FULL_YEAR}{_BEHIND}$",
}
_CENTURY_ENDS = 70  # a year of two digits below it is of this century


def date_order(cells: pa.ChunkedArray) -> DateOrder | None:
    """Return how the cells of a column write dates, if each that is not missing does; else None.

    Args:
        cells: Plain.
    """
    texts = _texts(cells)
    first = next((text for text in texts.slice(0, 1).to_pylist() if text), "") if len(texts) else ""
    if not first[:1].isdigit() and first[:3].lower() not in MONTHS:
        return None
    orders: list[DateOrder] = [*_PATTERNS]
    if "/" in first:
        orders[1], orders[2] = orders[2], orders[1]
    for order in orders:
        if not np.isnan(_read(texts.slice(0, 1), order)["hour" if order == "time of day" else "day"]).any():
            read = _read(texts, order)
            if not np.isnan(read["hour" if order == "time of day" else "day"]).any():
                return order
    return None


def date_fault(cells: pa.ChunkedArray) -> str:
    """Return what keeps a column from being one of dates, as it follows the column's name; nothing where it is none.

    A column is meant to be one of dates where each cell looks like a date and more than half are, in one order.

    Args:
        cells: Plain.
    """
    import pyarrow as pa

    codes, values = distinct_cells(_as_text(cells)) if is_text(cells.type) else (np.empty(0, np.int64), [])
    if not values or not all(map(DATE.fullmatch, values)):
        return ""
    texts = pa.array(values, pa.string())
    wrong = {order: np.isnan(_read(texts, order)["day"]) for order in _PATTERNS if order != "time of day"}
    best = min(wrong, key=lambda order: int(wrong[order].sum()))
    if 2 * wrong[best].sum() >= len(values):
        return ""

    def place(cells_of: npt.NDArray[np.bool_]) -> str:
        row = int(np.argmax(np.append(cells_of, False)[codes]))
        return f"{values[codes[row]]!r} in {row_name(row)}"

    day_first, month_first = wrong["day-month-year"], wrong["month-day-year"]
    if (day_first & ~month_first).any() and (month_first & ~day_first).any():
        return (
            f"must write day and month in one order, got {place(month_first & ~day_first)}, which begins with the day, "
            f"beside {place(day_first & ~month_first)}, which begins with the month"
        )
    return f"must hold dates that exist, written alike ({best}), got {place(wrong[best])}"


def parts_of_time(name: str, cells: pa.ChunkedArray, order: DateOrder) -> dict[str, Numbers]:
    """Return the parts of each cell, NaN where it is missing, each of shape `(num_rows,)`.

    Args:
        name: Of the column, for the message.
        cells: Plain.
        order: How it writes dates.

    Raises:
        DataError: If a cell is no date of that order.
    """
    codes, texts = distinct_cells(_as_text(cells))
    import pyarrow as pa

    read = _read(pa.array(texts, pa.string()), order)
    wrong = np.isnan(read["hour" if order == "time of day" else "day"])
    if wrong.any():
        row = int(np.argmax(np.append(wrong, False)[codes]))
        raise DataError(Fault(f"column {name!r}", f"hold dates ({order})", f"{texts[codes[row]]!r} in {row_name(row)}"))
    return {part: np.append(numbers, np.nan)[codes] for part, numbers in read.items()}


def varying(parts: dict[str, Numbers]) -> list[str]:
    """Return the parts of which a column holds more than one value."""
    found = []
    for part, numbers in parts.items():
        present = numbers[~np.isnan(numbers)]
        if len(present) and present.min() < present.max():
            found.append(part)
    return found


def _as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    return present_cells(cells) if is_text(cells.type) else pc.cast(cells, pa.string())


def _numbers_of_months(names: pa.Array) -> Numbers:
    """Return the numbers of months, 1 to 12, NaN where there is none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.index_in(pc.utf8_lower(pc.utf8_slice_codeunits(names, 0, 3)), value_set=pa.array(MONTHS))
    return np.asarray(pc.cast(places, pa.float64()).to_numpy(zero_copy_only=False), np.float64) + 1


def _texts(cells: pa.ChunkedArray) -> pa.Array:
    """Return the texts that differ; none of a column that can hold no dates."""
    import pyarrow as pa

    if not is_text(cells.type) and not pa.types.is_timestamp(cells.type):
        return pa.array([], pa.string())
    return pa.array(distinct_cells(_as_text(cells))[1], pa.string())


def _read(texts: pa.Array, order: DateOrder) -> dict[str, Numbers]:
    """Return the parts of each text, all NaN where it is no date of that order."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.extract_regex(texts, _PATTERNS[order])

    def number(field: str) -> Numbers:
        if found.type.get_field_index(field) < 0:
            return np.full(len(texts), np.nan)
        digits = pc.struct_field(found, field)
        cells = pc.cast(pc.if_else(pc.equal(digits, ""), None, digits), pa.float64())
        return np.asarray(cells.to_numpy(zero_copy_only=False), np.float64)

    hours, minutes = number("hour"), number("minute")
    half = np.array(pc.fill_null(pc.utf8_lower(pc.struct_field(found, "half")), "").to_pylist(), dtype="U2")
    hours = np.where(half == "", hours, hours % 12 + 12 * (half == "pm"))
    is_wrong = (hours > 23) | (minutes > 59) | ~np.asarray(found.is_valid())
    if order == "time of day":
        return {"hour": np.where(is_wrong, np.nan, hours), "minute": np.where(is_wrong, np.nan, minutes)}
    years, days = number("year"), number("day")
    months = _numbers_of_months(pc.struct_field(found, "month")) if "name" in order else number("month")
    years = np.where(years < 100, years + np.where(years < _CENTURY_ENDS, 2000, 1900), years)
    is_wrong |= ~((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31))
    year, month, day = (np.where(is_wrong, 1, numbers).astype(np.int64) for numbers in (years, months, days))
    date = (year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)
    moment = date.astype("M8[D]") + (day - 1)
    is_wrong |= moment.astype("M8[M]") != date  # a 31st of April
    weekday = (moment.astype(np.int64) + 3) % 7
    parts = (year, month, day, weekday, hours, minutes)
    return {part: np.where(is_wrong, np.nan, numbers) for part, numbers in zip(PARTS, parts, strict=True)}
