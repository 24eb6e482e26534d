"""Which column of a table is the label, which the client, and what these two tell."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.federation import PLAIN_NUMBER
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import did_you_mean, listed, shown
from fedscout.experiments.federations.datasets.dataset import TextArray, distinct_texts
from fedscout.experiments.federations.datasets.tables.column_kinds import MISSING, distinct_names, numbers_of_texts
from fedscout.experiments.federations.datasets.tables.row_names import row_name

if TYPE_CHECKING:
    import pyarrow as pa

NO_NAMES = {*MISSING} - {"none"}  # which a class may be called
MAX_DISCRETE_LENGTH = 200
MANY_CLASSES = 100
FEWEST_QUANTITIES = 20  # different fractions, or numbers of few rows each, beyond which they are no classes
FEWEST_ROWS_A_CLASS = 5
FEW_ROWS_A_CLASS = 20
MOST_CLASSES = 100_000
ROWS_AT_ONCE = 1_000_000  # between two of which signals are heard


@dataclass(frozen=True)
class ColumnRoles:
    """What the columns of a table are for.

    Attributes:
        label: The column to predict.
        client: The column that names each row's natural client, or None.
        never_features: Columns that describe a row without being a feature; all others become features, apart from
            the label, the client and the group.
        categories: Columns whose cells are categories even if they are numbers.
        dropped: Columns that the user leaves out; each must exist.
        group: The column that names what each row belongs to, or None.
        quantity: Whether the label is a quantity, and no class.
        classes: Whether somebody says that the label's values are classes, even if they look like a quantity.
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
            name: The data set's name, for messages.
            table: The table.

        Raises:
            DataError: If there is none.
        """
        reserved = {self.label, self.client, self.group, *self.never_features, *self.dropped}
        names = [column for column in table.column_names if column not in reserved]
        if not names:
            raise DataError(Fault(f"data set {name!r}", "have a column of features beside the label, but it has none"))
        return names


def check_roles(name: str, table: pa.Table, roles: ColumnRoles) -> None:
    """Check that label, client, group and dropped ones are columns of the table, and different ones.

    Raises:
        DataError: With all faults found.
    """
    available = listed(table.column_names)
    named = {
        "federation.label": roles.label,
        "federation.client_column": roles.client,
        "federation.group_column": roles.group,
    }
    faults = [
        Fault(
            key,
            f"name {('columns' if key.endswith('s') else 'a column')} of data set {name!r}",
            repr(column),
            f"its columns are: {available}{did_you_mean(column, table.column_names)}",
        )
        for key, column in [*named.items(), *(("federation.drop_columns", column) for column in roles.dropped)]
        if column is not None and column not in table.column_names
    ]
    if roles.label == roles.client:
        faults.append(Fault("federation.label and federation.client_column", "differ", f"{roles.label!r} for both"))
    faults += [
        Fault(f"{key} and federation.group_column", f"differ, as {reason}", f"{roles.group!r} for both")
        for key, column, reason in (
            ("federation.label", roles.label, "a group's rows may be of any class"),
            ("federation.client_column", roles.client, "a client of one group would have nothing to test on"),
        )
        if roles.group is not None and roles.group == column
    ]
    faults += [
        Fault("federation.drop_columns", f"not name {key}", repr(column))
        for key, column in named.items()
        if column in roles.dropped
    ]
    if faults:
        raise DataError(faults)


def discrete(name: str, table: pa.Table, column: str) -> TextArray:
    """Return a column of names as text (`distinct_names`).

    Args:
        name: The data set's name, for messages.
        table: The table.
        column: One of its columns.

    Raises:
        DataError: If a cell is missing or longer than `MAX_DISCRETE_LENGTH`.
    """
    positions, values = _distinct(name, table, column)
    return np.array(values)[positions]


def _distinct(name: str, table: pa.Table, column: str) -> tuple[IntArray, list[str]]:
    """Return for each row a position in a list of texts that differ."""
    positions, values = distinct_names(table[column])

    def refuse(wrong: npt.NDArray[np.bool_], must: str, hint: str = "") -> None:
        if wrong.any():
            row = int(np.argmax(wrong))
            given = values[positions[row]] if positions[row] >= 0 else "nothing"
            raise DataError(
                Fault(f"column {column!r} of data set {name!r}", f"{must}", f"{shown(given)} in {row_name(row)}{hint}")
            )

    nameless = np.array([*(value.lower() in NO_NAMES for value in values), True])
    way = "; federation.unlabelled_rows=drop leaves such rows out"
    refuse(nameless[positions], "name a class or client or group in every row", way)
    long = np.array([len(value) > MAX_DISCRETE_LENGTH for value in values])
    refuse(long[positions], f"hold names of at most {MAX_DISCRETE_LENGTH} characters")
    return positions, values


def groups_of(name: str, table: pa.Table, column: str | None) -> IntArray | None:
    """Return the group of each row, in `[0, num_groups)`; None without a column.

    Raises:
        DataError: As `discrete`.
    """
    return None if column is None else distinct_texts(discrete(name, table, column))[1]


def classes(name: str, table: pa.Table, roles: ColumnRoles) -> tuple[IntArray, tuple[str, ...]]:
    """Return labels in `[0, num_classes)` and the names of the classes, in their order (`in_order`).

    Raises:
        DataError: If a cell names no class, there are fewer than two classes or more than `MOST_CLASSES`, or the
            column looks like a quantity (`are_quantities`) and nobody says that it holds classes.
    """
    column = roles.label
    blocks = (table[column].slice(start, ROWS_AT_ONCE) for start in range(0, len(table), ROWS_AT_ONCE))
    _refuse_too_many(name, column, len(table), map(_num_distinct, blocks))  # before each of them is looked at
    positions, values = _distinct(name, table, column)
    _refuse_too_many(name, column, len(table), [len(values)])
    names = in_order(values)
    if not roles.classes and are_quantities(numbers_of_texts(names), len(positions)):
        raise DataError(
            f"column {column!r} of data set {name!r} must hold classes, got {len(names)} different numbers in "
            f"{len(positions)} rows, which looks like a quantity: federation.task=regression predicts it, and "
            "federation.task=classification takes the numbers as classes"
        )
    if len(names) < 2 or len(names) > len(positions) // 2:
        raise DataError(
            f"column {column!r} of data set {name!r} must hold at least two classes and at most half as many as there "
            f"are rows ({len(positions)}), got {len(names)}" + (f": {names[0]}" if len(names) == 1 else "")
        )
    place = {value: number for number, value in enumerate(names)}
    return np.array([place[value] for value in values], dtype=np.int64)[positions], tuple(names)


def are_quantities(different: npt.NDArray[np.float64], num_rows: int) -> bool:
    """Whether the different values of a label are too many numbers for the rows that there are to be classes.

    Args:
        different: NaN where a value is no number.
        num_rows: That hold them.
    """
    if not len(different) or not np.isfinite(different).all():
        return False
    if (different == np.rint(different)).all():
        most = MANY_CLASSES if len(different) * FEWEST_ROWS_A_CLASS <= num_rows else FEWEST_QUANTITIES
        return len(different) > max(most, num_rows // FEW_ROWS_A_CLASS)
    return len(different) > min(FEWEST_QUANTITIES, num_rows // 2)


def _num_distinct(cells: pa.ChunkedArray) -> int:
    import pyarrow.compute as pc

    return int(pc.count_distinct(cells).as_py())


def _refuse_too_many(name: str, column: str, num_rows: int, counts: Iterable[int]) -> None:
    """Refuse a label of which one of these numbers of values is more than there may be classes."""
    if any(count > MOST_CLASSES for count in counts):
        raise DataError(
            Fault(
                f"column {column!r} of data set {name!r}",
                f"hold at most {MOST_CLASSES:,} classes",
                f"more in {num_rows:,} rows, as identifiers and quantities have",
                "federation.task=regression predicts a quantity",
            )
        )


def in_order(names: Collection[str]) -> list[str]:
    """Return numbers in numeric order, then the other names in alphabetical order."""
    return sorted(names, key=lambda name: (0, Decimal(name), name) if PLAIN_NUMBER.fullmatch(name) else (1, 0, name))


def are_numbers(names: Collection[str]) -> bool:
    """Whether all names are plain numbers, whose order means something."""
    return all(PLAIN_NUMBER.fullmatch(name) for name in names)
