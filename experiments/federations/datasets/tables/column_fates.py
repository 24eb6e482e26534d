"""What became of a table's columns, for the record and for people, and the key that overrules it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from fedscout.engine.errors import DataError
from fedscout.experiments.federations.datasets.tables.column_kinds import NUM_FAULTS_SHOWN
from fedscout.experiments.federations.datasets.tables.column_roles import FEWEST_QUANTITIES, ColumnRoles, are_numbers

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class ColumnFate:
    """What became of a column.

    Attributes:
        name: What the file calls it.
        kind: number, category, date, text, identifier, constant, empty, label, client, group, or dropped.
        became: What is done with it.
        key: What overrules that, as it is written on the command line; nothing where nothing does.
        suspicion: What it tells of the label that it should not; nothing if it is not suspected.
        missing_codes: Values that may stand for a missing one.
        num_missing: Its cells without a value.
        num_features: Features that a model sees of it.
    """

    name: str
    kind: str
    became: str
    key: str = ""
    suspicion: str = ""
    missing_codes: tuple[str, ...] = ()
    num_missing: int = 0
    num_features: int = 0


def documents(fates: Sequence[ColumnFate]) -> tuple[dict[str, Any], ...]:
    """Return what became of columns as JSON-able values."""
    return tuple(asdict(fate) for fate in fates)


def all_fates(
    table: pa.Table, roles: ColumnRoles, fates: Sequence[ColumnFate], class_names: Sequence[str] = ()
) -> list[ColumnFate]:
    """Return what became of every column, in the order of the table.

    Args:
        table: Plain cells.
        roles: What its columns are for.
        fates: Of the columns that have no other role.
        class_names: Of the label, where they are known.
    """
    known = {fate.name: fate for fate in fates}
    known |= {column: ColumnFate(column, "dropped", "left out as asked") for column in roles.dropped}
    what = "a quantity to predict" if roles.quantity else "the classes to predict"
    key = "federation.task=classification" if roles.quantity else "federation.label"
    if not roles.quantity and len(class_names) > FEWEST_QUANTITIES and are_numbers(class_names):
        what, key = f"{len(class_names)} classes to predict, all numbers: a quantity?", "federation.task=regression"
    known[roles.label] = ColumnFate(roles.label, "label", what, key)
    if roles.client is not None:
        known[roles.client] = ColumnFate(roles.client, "client", "names the clients", "federation.client_column")
    if roles.group is not None:
        known[roles.group] = ColumnFate(roles.group, "group", "names the groups", "federation.group_column")
    return [replace(known[column], num_missing=table[column].null_count) for column in table.column_names]


def refuse_table(name: str, fates: Sequence[ColumnFate]) -> NoReturn:
    """Refuse a table of which no column can be used.

    Raises:
        DataError: With what became of each.
    """
    told = [fate for fate in fates if fate.kind not in {"label", "client", "group"}][:NUM_FAULTS_SHOWN]
    reasons = [f"{fate.name[:60]!r} is {fate.became}" + (f" ({fate.key[:100]})" if fate.key else "") for fate in told]
    raise DataError(
        f"data set {name!r} must have a column of features beside the label, "
        + (f"but none can be used: {'; '.join(reasons)}" if told else "but it has none")
    )
