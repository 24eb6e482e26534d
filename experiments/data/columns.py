"""Columns of a table: types, roles, suspected codes for missing values, and the record of how each is used.

Types. A column is numeric if all its non-missing cells are numbers, or all are `true` or `false` (1 and 0); otherwise
it is categorical. A cell is missing if it is empty (`table_files.py`) or holds one of the words in `MISSING`, whatever
its storage type. Ambiguous columns are rejected rather than guessed: dates, numbers with a decimal comma, columns that
are mostly but not entirely numbers, infinite values, columns without a value. In a real federation, clients agree on
this schema before any computation.

Dates. A column of dates or times of day is split into numeric parts. Each client parses only its own rows, so the
clients must agree in advance that the column holds dates, on the order of day, month and year, and on the parts that
are used. Time zones are not converted: 10:30 stays 10:30. Day-month-year and month-day-year are distinguished by
numbers above 12; without any, dates with slashes start with the month and dates with points or dashes with the day.

Number formats. In a user's table, one format (currency, unit, digit groups, decimal point) applies to a whole column,
so that all clients parse their rows identically.

Codes for missing values, such as -9999, 999 or `unknown`, are reported as suspected, not replaced;
`federation.missing_values` declares them. A number in `NUMBERS` is suspected if at least three cells hold it and it is
farther from all other values than their range, or is negative while no other value is.

Messages show the first faulty cell and the number of such cells, as rows may have been dropped or joined before.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import PLAIN_NUMBER
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import did_you_mean, listed, shown
from fedscout.experiments.data.dataset import TextArray, column_key, distinct_texts, list_argument

Numbers = npt.NDArray[np.float64]

MISSING = ("?", "na", "n/a", "#n/a", "<na>", "nan", "null", "none")
BOOLEANS = {"false": 0.0, "true": 1.0}
DATE = re.compile(
    r"\d{4}[-/.]\d{1,2}[-/.]\d{1,2}([ T].*)?|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4}( .*)?|\d{1,2}:\d{2}(:\d{2}(\.\d+)?)?",
    re.ASCII,
)
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+", re.ASCII)
LARGEST_NUMBER = 1e150
LARGEST_WHOLE = 2**53
NUM_FAULTS_SHOWN = 5
MAX_CATEGORIES = 256


@dataclass(frozen=True)
class Column:
    """A column of numbers or of categories.

    Attributes:
        name: Column name in the file.
        cells: float64 numbers, NaN where missing, at most `LARGEST_NUMBER` in magnitude; or indices into `categories`,
            -1 where missing; shape `(num_rows,)`.
        categories: Distinct values, in alphabetical order; None for numbers.
    """

    name: str
    cells: npt.NDArray[Any]
    categories: tuple[str, ...] | None = None

    @property
    def missing(self) -> npt.NDArray[np.bool_]:
        """Mask of missing cells, shape `(num_rows,)`."""
        return np.isnan(self.cells) if self.categories is None else self.cells < 0

    @property
    def present(self) -> npt.NDArray[Any]:
        """Cells that are not missing."""
        return self.cells[~self.missing]


def typed_columns(dataset: str, table: pa.Table, names: Sequence[str], categories: Sequence[str] = ()) -> list[Column]:
    """Return columns of a table as numeric or categorical columns.

    Args:
        dataset: Name of the data set, for messages.
        table: Plain columns of text, numbers or timestamps.
        names: Columns to return, in order.
        categories: Those of them that are categorical even if their cells are numbers.

    Raises:
        DataError: Lists all unusable columns and how to drop them.
    """
    return read_columns(dataset, names, lambda name: typed_column(name, table[name], name in categories))


Read = TypeVar("Read")


def read_columns(
    dataset: str,
    names: Sequence[str],
    read: Callable[[str], Read],
    dropped: Sequence[str] = (),
    kinds: Callable[[str], Sequence[str]] = lambda _: (),
) -> list[Read]:
    """Return what each column is read as.

    Args:
        dataset: Name of the data set, for messages.
        names: Columns to read, in order.
        read: Reads the column of a name; a `ValueError` describes its fault.
        dropped: Columns that are dropped already.
        kinds: Kinds that would overrule the fault of a column.

    Raises:
        DataError: Lists all unusable columns and how to drop them.
    """
    results: list[Read] = []
    faults: dict[str, str] = {}
    for name in names:
        try:
            results.append(read(name))
        except ValueError as error:
            keys = " or ".join(column_key(name, kind) for kind in kinds(name))
            hint = f"overruled by {keys}" if keys else None
            faults[name] = Fault(f"column {name!r} of data set {dataset!r}", problem=str(error), hint=hint)
    if faults:
        shown_faults = first_faults([*faults.values()])
        shown_faults[-1] += f"; {list_argument('drop_columns', *dropped, *faults)} leaves out these columns"
        raise DataError(shown_faults)
    return results


def first_faults(faults: list[str]) -> list[str]:
    """Return the first `NUM_FAULTS_SHOWN` faults of columns, and the number of remaining ones."""
    num_more = len(faults) - NUM_FAULTS_SHOWN
    return faults if num_more <= 0 else [*faults[:NUM_FAULTS_SHOWN], f"and {num_more} more columns with such a fault"]


def as_numbers(cells: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    """Return cells as numbers, NaN where missing or not numeric; cells that are all truth values become 0 and 1.

    Args:
        cells: Plain cells, texts or numbers.
    """
    try:  # much faster, but all or nothing
        return np.asarray(pc.cast(cells, pa.float64(), safe=False).to_numpy(), dtype=np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        codes, values = distinct_cells(cells)
        lower = [value.lower() for value in values]
        are_truths = all(word in BOOLEANS for word in lower)
        numbers = np.array([BOOLEANS[word] for word in lower]) if are_truths else numbers_of_texts(values)
        return np.append(numbers, np.nan)[codes]


def numbers_of_texts(texts: list[str]) -> npt.NDArray[np.float64]:
    """Return the number that each text represents, NaN if it is not numeric."""
    import pandas as pd

    return np.asarray(pd.to_numeric(pd.Series(texts, dtype="str"), errors="coerce"), np.float64)


_SPACES = " \u00a0\u202f"
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_AFFIXES = (
    rf"^[+-]?(?P<prefix>[$€£¥]?)[{_SPACES}+-]?[.,]?\d[\d.,'{_SPACES}]*{_EXPONENT}"
    r"(?P<suffix>(?:[\pL%°$€£¥]\S{0,11})?)$"
)
_GROUPS_AND_POINTS: Final = (("", "."), ("", ","), (",", "."), (".", ","), ("'", "."), (_SPACES, ","), (_SPACES, "."))
_ENGLISH_CURRENCIES: Final = {"$", "£", "¥"}
FEW_CATEGORIES = 20


@dataclass(frozen=True)
class NumberFormat:
    """Format of all numbers of a column, on which clients agree as `asdict` of it; the default is plain numbers.

    Attributes:
        groups: Characters that separate groups of three digits.
        point: Decimal point.
        prefix: Text before each number, such as `$`.
        suffix: Text after each number, such as `kg` or `%`.
        words: Whether cells of another format are `refused` or count as `missing`.
    """

    groups: str = ""
    point: str = "."
    prefix: str = ""
    suffix: str = ""
    words: str = "refused"

    @property
    def described(self) -> str:
        """Description for users, with an example unless numbers are plain."""
        example = f"{self.prefix}1{self.groups[:1]}234{self.point}5 {self.suffix}".rstrip()
        return "a number" if example == "1234.5" else f"a number, written as in {example}"

    def numbers(self, texts: pa.Array) -> Numbers:
        """Return the number of each text, NaN where it has another format."""
        prefix, point, suffix = map(re.escape, (self.prefix, self.point, self.suffix))
        whole = rf"(?:\d{{1,3}}|[1-9]\d{{0,2}}(?:[{self.groups}]\d{{3}})+)" if self.groups else r"\d+"
        number = rf"[+-]?(?:{whole}(?:{point}\d*)?|{point}\d+){_EXPONENT}"
        fields = pc.extract_regex(
            texts, rf"^(?P<sign>[+-]?){prefix}[{_SPACES}]?(?P<number>{number})[{_SPACES}]?{suffix}$"
        )
        ungrouped = pc.replace_substring_regex(pc.struct_field(fields, "number"), rf"[^\d{point}eE+-]", "")
        pointed = pc.replace_substring(ungrouped, self.point, ".")
        return numbers_of_texts(pc.binary_join_element_wise(pc.struct_field(fields, "sign"), pointed, "").to_pylist())

    def column(self, name: str, cells: pa.ChunkedArray) -> Column:
        """Return a column read in this format.

        Raises:
            ValueError: If no cell is a number, one is too large or refused; the message is to follow the column's name.
        """
        cells = present_cells(cells)
        if is_text(cells.type):
            codes, texts = distinct_cells(cells)
            numbers = np.append(self.numbers(pa.array(texts, pa.string())), np.nan)[codes]
        else:
            numbers = as_numbers(cells)
        is_word = np.isnan(numbers) & cells.is_valid().to_numpy()
        if self.words == "refused" and is_word.any():
            raise ValueError(f"must be {self.described}, in every cell, got {cells_named(cells, is_word)}")
        if np.isnan(numbers).all():
            raise ValueError("must hold a number, as federation.columns says, but it holds none")
        return Column(name, _checked(numbers, cells))


def number_format(cells: pa.ChunkedArray, are_numbers: bool) -> NumberFormat:
    """Return the format of a column's numbers, inferred from all cells; plain if most cells are no numbers.

    It is the currency and unit of most cells, with the digit groups and decimal point that most of their numbers have.
    If every comma has three digits behind it, `1,234` is 1234 beside an English currency or a number without a comma.

    Args:
        cells: Cells, null where missing.
        are_numbers: Whether the user declares the column numeric: an ambiguous `1,234` is 1.234.

    Raises:
        ValueError: If `1,234` is ambiguous; the message is to follow the column's name.
    """
    import pandas as pd

    plain = NumberFormat(words="missing" if are_numbers else "refused")
    num_present = len(cells) - cells.null_count
    if not is_text(cells.type) or np.count_nonzero(~np.isnan(as_numbers(cells))) == num_present:
        return plain
    codes, values = distinct_cells(cells)
    counts = np.bincount(codes[codes >= 0], minlength=len(values))
    texts = pa.array(values, pa.string())
    fields = pc.extract_regex(texts, _AFFIXES)
    affixes = [pc.struct_field(fields, field).to_pandas() for field in ("prefix", "suffix")]
    counts_by_affixes = pd.Series(counts).groupby(affixes).sum()
    if counts_by_affixes.empty:
        return plain
    prefix, suffix = cast(tuple[str, str], counts_by_affixes.idxmax())
    formats = [NumberFormat(*grouping, prefix, suffix, plain.words) for grouping in _GROUPS_AND_POINTS]
    is_other = [np.isnan(candidate.numbers(texts)) for candidate in formats]
    num_others = [int(counts[mask].sum()) for mask in is_other]
    best = int(np.argmin(num_others))
    are_few = bool(prefix or suffix) and num_others[best] and len(values) <= FEW_CATEGORIES
    if not are_numbers and (2 * num_others[best] >= num_present or are_few):
        return plain
    _, decimal, thousands = range(3)
    if best == decimal and num_others[thousands] == num_others[decimal]:
        if {prefix, suffix} & _ENGLISH_CURRENCIES or not is_other[0].all():
            best = thousands
        elif not are_numbers:
            must = "must show by another number whether 1,234 means 1234 or 1.234 (as a number it is 1.234)"
            raise ValueError(f"{must}, got {cells_named(cells, ~np.append(is_other[decimal], True)[codes])}")
    return formats[best]


def is_text(kind: pa.DataType) -> bool:
    """Return whether an Arrow type is a text type."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def distinct_cells(cells: pa.ChunkedArray) -> tuple[IntArray, list[str]]:
    """Return for each cell the index of its text among the distinct texts, -1 where null, and these texts."""
    # The texts that differ may be more than 32-bit offsets reach.
    wide = pc.cast(cells, pa.large_string()) if is_text(cells.type) else cells
    encoded = pc.dictionary_encode(wide).combine_chunks()
    codes = pc.fill_null(pc.cast(encoded.indices, pa.int64()), -1).to_numpy(zero_copy_only=False)
    return codes, [str(value) for value in encoded.dictionary.to_pandas()]


def distinct_names(cells: pa.ChunkedArray) -> tuple[IntArray, list[str]]:
    """Return `distinct_cells` of cells that are names: texts are compared literally, so `007` differs from `7`.

    In a floating-point column 6.0 has the name `6`, as libraries store integers as floats if values are missing.
    """
    if pa.types.is_floating(cells.type):
        is_whole = pc.and_(pc.equal(cells, pc.round(cells)), pc.less(pc.abs(cells), LARGEST_WHOLE))
        if pc.all(is_whole).as_py():
            cells = pc.cast(cells, pa.int64())
    return distinct_cells(cells)


def present_cells(cells: pa.ChunkedArray, words: Collection[str] = MISSING) -> pa.ChunkedArray:
    """Return plain cells with the words for missing values replaced by null, regardless of case."""
    if not is_text(cells.type):
        return cells
    return pc.if_else(pc.is_in(pc.utf8_lower(cells), pa.array([*words], cells.type)), None, cells)


def with_missing(table: pa.Table, values: Sequence[str], kept: Collection[str | None] = ()) -> pa.Table:
    """Return a table with null in the cells that equal one of the values, regardless of type and case.

    Args:
        table: Plain cells.
        values: Texts; a numeric one matches all cells of the same number.
        kept: Columns left unchanged.
    """
    words = {value.lower() for value in values}
    numbers = numbers_of_texts([*values])
    for position, name in enumerate(table.column_names if values else ()):
        if name in kept:
            continue
        codes, texts = distinct_cells(table[name])
        is_missing = np.array([text.lower() in words for text in texts], dtype=np.bool_)
        is_missing |= np.isin(numbers_of_texts(texts), numbers[~np.isnan(numbers)])
        mask = pa.array(np.append(is_missing, False)[codes])
        table = table.set_column(position, table.schema.field(position), pc.if_else(mask, None, table[name]))
    return table


def typed_column(name: str, cells: pa.ChunkedArray, is_category: bool = False) -> Column:
    """Return a column as a numeric or categorical column.

    Args:
        name: Column name in the file.
        cells: Plain cells.
        is_category: Whether the column is categorical even if its cells are numbers.

    Raises:
        ValueError: If the column is unusable; the message is to follow the column's name.
    """
    if pa.types.is_timestamp(cells.type) and cells.null_count < len(cells):
        named = cells_named(cells, cells.is_valid().to_numpy())
        raise ValueError(f"must hold numbers or categories, not dates, got {named}")
    cells = present_cells(cells)
    if cells.null_count == len(cells):
        raise ValueError(f"must hold a value, got none in {len(cells)} rows")
    if is_category:
        return _category_of_codes(name, *distinct_names(cells))
    numbers = as_numbers(cells)
    is_number = ~np.isnan(numbers)
    if np.count_nonzero(is_number) == len(cells) - cells.null_count:
        return Column(name, _checked(numbers, cells))
    codes, values = distinct_cells(cells)
    _reject_ambiguous_cells(cells, codes, values, ~is_number & (codes >= 0))
    return _category_of_codes(name, codes, values)


def _checked(numbers: npt.NDArray[np.float64], cells: pa.ChunkedArray) -> npt.NDArray[np.float64]:
    is_too_large = np.abs(numbers) > LARGEST_NUMBER
    if is_too_large.any():
        must = f"must hold numbers up to {LARGEST_NUMBER:g} in magnitude"
        raise ValueError(f"{must}, got {cells_named(cells, is_too_large)}")
    return numbers


def cells_named(cells: pa.ChunkedArray, mask: npt.NDArray[np.bool_]) -> str:
    """Return the first cell of a mask and the number of its cells, such as `'x' in 3 of 100 cells`."""
    cell = pc.cast(cells.slice(int(np.argmax(mask)), 1), pa.string())[0]
    return f"{shown(str(cell) if cell.is_valid else 'nothing')} in {np.count_nonzero(mask)} of {len(mask)} cells"


def _reject_ambiguous_cells(
    cells: pa.ChunkedArray, codes: IntArray, values: list[str], is_word: npt.NDArray[np.bool_]
) -> None:
    """Reject cells that represent numbers or dates but do not parse as numbers."""
    distinct_words = [values[code] for code in np.unique(codes[is_word]).tolist()]
    must = ""
    if all(map(DECIMAL_COMMA.fullmatch, distinct_words)):
        must = "numbers with a decimal point"
    elif all(map(DATE.fullmatch, distinct_words)):
        must = "numbers or categories, not dates"
    elif 2 * np.count_nonzero(is_word) < np.count_nonzero(codes >= 0):
        must = "only numbers, as most of its cells are numbers"
    if must:
        raise ValueError(f"must hold {must}, got {cells_named(cells, is_word)}")


def _category_of_codes(name: str, codes: IntArray, values: list[str]) -> Column:
    categories = sorted(set(values))
    position = {category: number for number, category in enumerate(categories)}
    return Column(name, np.array([*(position[value] for value in values), -1])[codes], tuple(categories))


NO_NAMES = {*MISSING} - {"none"}  # which a class may be called
MAX_DISCRETE_LENGTH = 200
MANY_CLASSES = 100
FEWEST_QUANTITIES = 20  # different fractions, or numbers of few rows each, beyond which they are no classes
FEWEST_ROWS_A_CLASS = 5
FEW_ROWS_A_CLASS = 20
MOST_CLASSES = 100_000
MOST_NAMED = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ColumnRoles:
    """Roles of the columns of a table.

    Attributes:
        label: Column to predict.
        client: Column with the natural client of each row, or None.
        never_features: Columns that describe a row without being a feature; all others become features, except the
            label, the client and the group.
        categories: Columns that are categorical even if their cells are numbers.
        dropped: Columns excluded by the user; each must exist.
        group: Column with the group of each row, or None.
        quantity: Whether the label is a regression target rather than a class.
        classes: Whether the user declares the label's values to be classes, even if they look like a regression target.
    """

    label: str
    client: str | None = None
    never_features: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    group: str | None = None
    quantity: bool = False
    classes: bool = False

    def features(self, name: str, table: pa.Table) -> list[str]:
        """Return the columns of a table that become features.

        Args:
            name: Name of the data set, for messages.
            table: The table.

        Raises:
            DataError: If there is none.
        """
        reserved = {self.label, self.client, self.group, *self.never_features, *self.dropped}
        names = [column for column in table.column_names if column not in reserved]
        if not names:
            raise DataError.of(f"data set {name!r}", "have a feature column in addition to the label, but it has none")
        return names

    def check(self, name: str, table: pa.Table, text: str | None = None, kinds: Iterable[str] = ()) -> None:
        """Check that the columns that the user names exist in the table, and that each has one role.

        Args:
            name: Name of the data set, for messages.
            table: The table.
            text: Column of texts, or None.
            kinds: Columns whose kind the user sets.

        Raises:
            DataError: Lists all faults.
        """
        named = [
            *(("federation.columns", column) for column in kinds),
            *(("federation.drop_columns", column) for column in self.dropped),
            ("federation.text_column", text),
            ("federation.label", self.label),
            ("federation.client_column", self.client),
            ("federation.group_column", self.group),
        ]
        keys_by_column: dict[str, list[str]] = {}
        for key, column in dict.fromkeys(named):
            if column is not None:
                keys_by_column.setdefault(column, []).append(key)
        available = f"its columns are: {listed(table.column_names)}"
        faults = [
            Fault(
                key,
                f"name columns of data set {name!r}",
                repr(column),
                available + did_you_mean(column, table.column_names),
            )
            for column, keys in keys_by_column.items()
            if column not in table.column_names
            for key in keys
        ]
        faults += [
            Fault(" and ".join(keys), "name different columns", f"{column!r} for each")
            for column, keys in keys_by_column.items()
            if len(keys) > 1
        ]
        if faults:
            raise DataError(faults)

    def labelled_rows(self, name: str, table: pa.Table) -> tuple[pa.Table, IntArray]:
        """Return the rows with a value in the label, client and group columns, and their positions in the table.

        Args:
            name: Name of the data set, for messages.
            table: Plain cells.

        Raises:
            DataError: If there is none.
        """
        columns = {"label": self.label, "client": self.client, "group": self.group}
        words = {"label": MISSING if self.quantity else NO_NAMES}
        is_lacking = {
            role: present_cells(table[column], words.get(role, NO_NAMES)).is_null().to_numpy()
            for role, column in columns.items()
            if column is not None
        }
        is_removed = np.logical_or.reduce([*is_lacking.values()])
        if not is_removed.any():
            return table, np.arange(len(table))
        if is_removed.all():
            raise DataError.of(
                f"data set {name!r}",
                f"have a row with values in all of {listed(filter(None, columns.values()))}, but each of its "
                f"{len(table):,} rows lacks one",
            )
        kept = np.flatnonzero(~is_removed)
        counts = {role: int(mask.sum()) for role, mask in is_lacking.items() if mask.any()}
        reasons = ", ".join(f"{count:,} without a {role} ({columns[role]})" for role, count in counts.items())
        if self.client is not None:
            clients = np.array(table[self.client].cast("string").to_pylist(), dtype=object)
            if lost := {*clients[is_removed]} - {*clients[kept], None}:
                reasons += f"; no rows are left of {listed(sorted(lost), MOST_NAMED)}"
        num_removed = len(table) - len(kept)
        logger.warning("%s: %s of %s rows are left out: %s", name, f"{num_removed:,}", f"{len(table):,}", reasons)
        return table.take(kept), kept

    def labels(self, name: str, table: pa.Table) -> tuple[IntArray, tuple[str, ...]]:
        """Return labels in `[0, num_classes)` and the class names, ordered by `in_order`.

        Raises:
            DataError: If a cell names no class, there are fewer than two classes or more than `MOST_CLASSES`, or the
                column looks like a regression target (`are_quantities`) and is not declared to hold classes.
        """
        column = self.label
        if pc.count_distinct(table[column]).as_py() > MOST_CLASSES:  # before each of them is looked at
            raise DataError.of(
                f"column {column!r} of data set {name!r}",
                f"hold at most {MOST_CLASSES:,} classes",
                f"more in {len(table):,} rows, as for identifiers and regression targets",
                "federation.task=regression predicts numbers",
            )
        positions, values = _distinct(name, table, column)
        names = in_order(values)
        if not self.classes and are_quantities(numbers_of_texts(names), len(positions)):
            raise DataError.of(
                f"column {column!r} of data set {name!r}",
                "hold classes",
                f"{len(names)} different numbers in {len(positions)} rows, which looks like a regression target",
                "federation.task=regression predicts it, federation.task=classification uses the numbers as classes",
            )
        if len(names) < 2 or len(names) > len(positions) // 2:
            raise DataError.of(
                f"column {column!r} of data set {name!r}",
                f"hold at least two classes and at most half as many as there are rows ({len(positions)})",
                f"{len(names)}: {names[0]}" if len(names) == 1 else len(names),
            )
        index_by_name = {value: number for number, value in enumerate(names)}
        return np.array([index_by_name[value] for value in values], dtype=np.int64)[positions], tuple(names)

    def clients(self, name: str, table: pa.Table) -> TextArray | None:
        """Return the natural client of each row; None without a client column.

        Raises:
            DataError: As `discrete`.
        """
        return None if self.client is None else discrete(name, table, self.client)

    def groups(self, name: str, table: pa.Table) -> IntArray | None:
        """Return the group of each row, in `[0, num_groups)`; None without a group column.

        Raises:
            DataError: As `discrete`.
        """
        return None if self.group is None else distinct_texts(discrete(name, table, self.group))[1]


def discrete(name: str, table: pa.Table, column: str) -> TextArray:
    """Return a column of names as text (`distinct_names`).

    Args:
        name: Name of the data set, for messages.
        table: The table.
        column: One of its columns.

    Raises:
        DataError: If a cell is missing or longer than `MAX_DISCRETE_LENGTH`.
    """
    positions, values = _distinct(name, table, column)
    return np.array(values)[positions]


def _distinct(name: str, table: pa.Table, column: str) -> tuple[IntArray, list[str]]:
    """Return for each row an index into the distinct texts, and these texts."""
    positions, values = distinct_names(table[column])
    is_name = [value.lower() not in NO_NAMES and len(value) <= MAX_DISCRETE_LENGTH for value in values]
    is_refused = ~np.array([*is_name, False])[positions]
    if is_refused.any():
        raise DataError.of(
            f"column {column!r} of data set {name!r}",
            f"name a class, client or group in every row, in at most {MAX_DISCRETE_LENGTH} characters",
            cells_named(table[column], is_refused),
        )
    return positions, values


def are_quantities(different: npt.NDArray[np.float64], num_rows: int) -> bool:
    """Return whether a label has too many distinct numbers for its number of rows to be a class label.

    Args:
        different: Distinct values; NaN where a value is not numeric.
        num_rows: Number of rows that hold them.
    """
    if not len(different) or not np.isfinite(different).all():
        return False
    if (different == np.rint(different)).all():
        max_classes = MANY_CLASSES if len(different) * FEWEST_ROWS_A_CLASS <= num_rows else FEWEST_QUANTITIES
        return len(different) > max(max_classes, num_rows // FEW_ROWS_A_CLASS)
    return len(different) > min(FEWEST_QUANTITIES, num_rows // 2)


def hold_quantities(cells: pa.ChunkedArray, are_all: bool) -> bool:
    """Return whether the cells of a label without its missing ones are a regression target (`are_quantities`).

    Args:
        cells: Plain cells.
        are_all: Whether the table has no more; whole numbers of a part of it may be classes.
    """
    present = present_cells(cells).drop_null()
    numbers = np.unique(as_numbers(present))
    is_whole = bool(np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all())
    return (are_all or not is_whole) and are_quantities(numbers, len(present))


def in_order(names: Collection[str]) -> list[str]:
    """Return numbers in numeric order, then the other names in alphabetical order."""
    return sorted(names, key=lambda name: (0, Decimal(name), name) if PLAIN_NUMBER.fullmatch(name) else (1, 0, name))


def are_numbers(names: Collection[str]) -> bool:
    """Return whether all names are plain numbers, so that their order is meaningful."""
    return all(PLAIN_NUMBER.fullmatch(name) for name in names)


DateOrder = Literal["year-month-day", "day-month-year", "month-day-year", "time of day"]

PARTS: Final = ("year", "month", "day", "weekday", "hour", "minute")
"""Weekdays are numbered from Monday, 0."""

_CLOCK = r"(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::\d{2}(?:[.,]\d+)?)? ?(?P<half>[AaPp][Mm])?"
_TIME_SUFFIX = rf"(?:[ T]+{_CLOCK}(?: ?(?:Z|UTC|GMT|[+-]\d{{2}}:?\d{{2}}))?)?"
_FIELDS = {"year": r"(?P<year>\d{4}|\d{2})", "month": r"(?P<month>\d{1,2})", "day": r"(?P<day>\d{1,2})"}
_PATTERNS: Final[dict[DateOrder, str]] = {
    "year-month-day": rf"^(?P<year>\d{{4}})[-/.]{_FIELDS['month']}[-/.]{_FIELDS['day']}{_TIME_SUFFIX}$",
    "day-month-year": rf"^{_FIELDS['day']}[-/.]{_FIELDS['month']}[-/.]{_FIELDS['year']}{_TIME_SUFFIX}$",
    "month-day-year": rf"^{_FIELDS['month']}[-/.]{_FIELDS['day']}[-/.]{_FIELDS['year']}{_TIME_SUFFIX}$",
    "time of day": f"^{_CLOCK}$",
}
_CENTURY_ENDS = 70  # a year of two digits below it is of this century


def date_order(cells: pa.ChunkedArray) -> DateOrder | None:
    """Return the order in which the non-missing cells of a column write dates; None if any is not a date.

    Args:
        cells: Plain cells.
    """
    if not is_text(cells.type) and not pa.types.is_timestamp(cells.type):
        return None
    texts = pa.array(distinct_cells(_as_text(cells))[1], pa.string())
    first = texts[0].as_py() if len(texts) else ""
    if not first[:1].isdigit():
        return None
    orders: list[DateOrder] = [*_PATTERNS]
    if "/" in first:
        orders[1], orders[2] = orders[2], orders[1]
    for order in orders:
        if _is_date(_read(texts.slice(0, 1), order)).all() and _is_date(_read(texts, order)).all():
            return order
    return None


def parts_of_time(cells: pa.ChunkedArray, order: DateOrder) -> dict[str, Numbers]:
    """Return the date and time parts of each cell, NaN where missing, each of shape `(num_rows,)`.

    Args:
        cells: Plain cells.
        order: Order in which the column writes dates.

    Raises:
        ValueError: If a cell is not a date in that order; the message is to follow the column's name.
    """
    codes, texts = distinct_cells(_as_text(cells))
    read = _read(pa.array(texts, pa.string()), order)
    is_wrong = np.append(~_is_date(read), False)[codes]
    if is_wrong.any():
        raise ValueError(f"must hold dates ({order}), got {cells_named(cells, is_wrong)}")
    return {part: np.append(numbers, np.nan)[codes] for part, numbers in read.items()}


def _is_date(parts: Mapping[str, Numbers]) -> npt.NDArray[np.bool_]:
    return ~np.isnan(parts["day" if "day" in parts else "hour"])


def _as_text(cells: pa.ChunkedArray) -> pa.ChunkedArray:

    return present_cells(cells) if is_text(cells.type) else pc.cast(cells, pa.string())


def _read(texts: pa.Array, order: DateOrder) -> dict[str, Numbers]:
    """Return the date and time parts of each text, all NaN where it is not a date in that order."""
    fields = pc.extract_regex(texts, _PATTERNS[order])

    def number(field: str) -> Numbers:
        if fields.type.get_field_index(field) < 0:
            return np.full(len(texts), np.nan)
        digits = pc.struct_field(fields, field)
        cells = pc.cast(pc.if_else(pc.equal(digits, ""), None, digits), pa.float64())
        return np.asarray(cells.to_numpy(zero_copy_only=False), np.float64)

    hours, minutes = number("hour"), number("minute")
    half = np.array(pc.fill_null(pc.utf8_lower(pc.struct_field(fields, "half")), "").to_pylist(), dtype="U2")
    hours = np.where(half == "", hours, hours % 12 + 12 * (half == "pm"))
    is_wrong = (hours > 23) | (minutes > 59) | ~np.asarray(fields.is_valid())
    if order == "time of day":
        return {"hour": np.where(is_wrong, np.nan, hours), "minute": np.where(is_wrong, np.nan, minutes)}
    years, days = number("year"), number("day")
    months = number("month")
    years = np.where(years < 100, years + np.where(years < _CENTURY_ENDS, 2000, 1900), years)
    is_wrong |= ~((months >= 1) & (months <= 12) & (days >= 1) & (days <= 31))
    year, month, day = (np.where(is_wrong, 1, numbers).astype(np.int64) for numbers in (years, months, days))
    date = (year - 1970).astype("M8[Y]").astype("M8[M]") + (month - 1)
    moment = date.astype("M8[D]") + (day - 1)
    is_wrong |= moment.astype("M8[M]") != date  # a 31st of April
    weekday = (moment.astype(np.int64) + 3) % 7
    parts = (year, month, day, weekday, hours, minutes)
    return {part: np.where(is_wrong, np.nan, numbers) for part, numbers in zip(PARTS, parts, strict=True)}


NUMBERS: Final = (-99999.0, -9999.0, -999.0, -99.0, -9.0, 99.0, 999.0, 9999.0, 99999.0)
WORDS: Final = frozenset(
    ("unknown", "unspecified", "undefined", "missing", "not available", "not known", "no data", "-", "--", ".")
)
FEWEST_CELLS: Final = 3


def missing_codes(column: Column) -> dict[str, int]:
    """Return the suspected missing-value codes of a column, as its cells write them, with their cell counts."""
    if column.categories is not None:
        counts = np.bincount(column.present, minlength=len(column.categories))
        category_counts = zip(column.categories, counts.tolist(), strict=True)
        suspected = {name: count for name, count in category_counts if name.lower() in WORDS and count >= FEWEST_CELLS}
        return suspected if len(suspected) < len(column.categories) else {}
    present = column.present
    others = present[~np.isin(present, NUMBERS)]
    if not len(others):
        return {}
    low, high = others.min(), others.max()
    outlying = [
        code
        for code in NUMBERS
        if (code < 0 <= low) or (code < low and low - code > high - low) or (code > high and code - high > high - low)
    ]
    counts_of_codes = {f"{code:.0f}": int(np.count_nonzero(present == code)) for code in outlying}
    return {code: count for code, count in counts_of_codes.items() if count >= FEWEST_CELLS}
