"""Rows that lack a label, a client or a group: nobody can learn from them, so they are left out, with a note."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import listed
from fedscout.experiments.federations.datasets.tables.column_kinds import MISSING, is_text
from fedscout.experiments.federations.datasets.tables.column_roles import NO_NAMES, ColumnRoles
from fedscout.experiments.federations.datasets.tables.row_names import file_of_rows

if TYPE_CHECKING:
    import pyarrow as pa

MOST_NAMED = 5

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class LabelledRows:
    """What stays of a table.

    Attributes:
        rows: Those with a label, a client and a group.
        kept: Their places in the whole table; None where all stay.
        facts: How many were left out, and of which clients.
    """

    rows: pa.Table
    kept: IntArray | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def labelled_rows(name: str, table: pa.Table, roles: ColumnRoles) -> LabelledRows:
    """Return the rows that have what their roles ask for.

    Args:
        name: The data set's name, for messages.
        table: Plain cells.
        roles: Which columns are label, client and group.

    Raises:
        DataError: If no row has.
    """
    columns = {"label": roles.label, "client": roles.client, "group": roles.group}
    lacking = {
        role: _lacks(table[column], MISSING if role == "label" and roles.quantity else NO_NAMES)
        for role, column in columns.items()
        if column is not None
    }
    without = np.logical_or.reduce([*lacking.values()])
    if not without.any():
        return LabelledRows(table)
    counts = {role: int(rows.sum()) for role, rows in lacking.items() if rows.any()}
    if without.all():
        raise DataError(
            Fault(
                f"data set {name!r}",
                (
                    f"have a row with all of {listed(filter(None, columns.values()))}, but each of its "
                    f"{len(table):,} rows lacks one"
                ),
            )
        )
    kept, gone = np.flatnonzero(~without), np.flatnonzero(without)
    facts: dict[str, Any] = {"num_rows_unlabelled": len(gone)}
    whose = ""
    if roles.client is not None:
        clients = np.array(table[roles.client].cast("string").to_pylist(), dtype=object)
        named = ~lacking["client"]
        facts["rows_unlabelled_by_client"] = Counter(clients[gone[named[gone]]].tolist())
        facts["clients_without_labelled_rows"] = sorted({*clients[gone[named[gone]]]} - {*clients[kept]})
        whose = _of("clients", facts["rows_unlabelled_by_client"])
        if empty := facts["clients_without_labelled_rows"]:
            whose += f"; no row is left of {listed(empty, MOST_NAMED)}"
    reasons = ", ".join(f"{count:,} without a {role} ({columns[role]})" for role, count in counts.items())
    logger.warning(
        "%s: %s of %s rows are left out: %s%s%s; federation.unlabelled_rows=fail refuses them",
        name,
        f"{len(gone):,}",
        f"{len(table):,}",
        reasons,
        whose,
        _of("files", Counter(file_of_rows(gone))),
    )
    return LabelledRows(table.take(kept), kept, facts)


def _of(what: str, counts: Counter[str]) -> str:
    most: Sequence[tuple[str, int]] = counts.most_common(MOST_NAMED)
    more = f" and {len(counts) - len(most)} more" if len(counts) > len(most) else ""
    return f", of {what} {', '.join(f'{name} ({count:,})' for name, count in most)}{more}" if most else ""


def _lacks(cells: pa.ChunkedArray, words: Sequence[str] | set[str]) -> npt.NDArray[np.bool_]:
    """Return where a cell holds nothing, or a word for it, shape `(num_rows,)`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = cells.is_null()
    if is_text(cells.type):
        found = pc.or_kleene(found, pc.is_in(pc.utf8_lower(cells), pa.array(sorted(words), cells.type)))
    return np.asarray(found.to_numpy(), dtype=np.bool_)
