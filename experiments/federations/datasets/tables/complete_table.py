"""From a table of complete numbers to a data set of standardised features.

Columns get zero mean and unit variance, computed once over all rows when the data set is loaded, hence before they are
dealt to clients: real clients would need one exchange of sums and sums of squares for it, which gives the same numbers.
It puts the scenarios' noise, stated in units of the standardised feature, on one scale for every column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import shown
from fedscout.experiments.federations.datasets.dataset import Dataset, TextArray, usual_facts
from fedscout.experiments.federations.datasets.tables.column_kinds import as_numbers, first_faults
from fedscout.experiments.federations.datasets.tables.column_roles import ColumnRoles, check_roles, classes, discrete
from fedscout.experiments.federations.datasets.tables.row_names import row_name

if TYPE_CHECKING:
    import pyarrow as pa


def dataset_from_table(
    name: str, table: pa.Table, roles: ColumnRoles, source: str, facts: Mapping[str, Any]
) -> Dataset:
    """Turn a table into a data set with standardised features.

    Classes are the distinct labels, whole numbers in numeric order, names in alphabetical order.

    Args:
        name: The data set's name.
        table: Plain cells (`table_file.py`), one row a sample.
        roles: What each column is for.
        source: Citation.
        facts: Further facts for the record.

    Raises:
        DataError: With all faults found: a column that does not exist, an empty or a non-numeric cell, a label that
            is no class, fewer than two classes.
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
    """Return the data set of some columns, standardised.

    Args:
        name: The data set's name.
        values: Finite, shape `(num_rows, num_columns)`.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: One name a class.
        columns: One name a column.
        label: What is predicted.
        source: Citation.
        facts: Further facts for the record.
        client_ids: The natural client of each row, or None.
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

    The variance is the population's (divided by the number of rows). Columns are first divided by their largest
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
        wrong = np.flatnonzero(~np.isfinite(values[:, index])).tolist()
        if wrong:
            cell = table[column][wrong[0]]
            given = str(cell) if cell.is_valid else "nothing"
            others = f" and in {len(wrong) - 1} more" if len(wrong) > 1 else ""
            faults.append(
                Fault(
                    f"column {column!r} of data set {name!r}",
                    "hold finite numbers",
                    f"{shown(given)} in {row_name(wrong[0])}{others}",
                )
            )
    if faults:
        raise DataError(first_faults(faults))
    return values
