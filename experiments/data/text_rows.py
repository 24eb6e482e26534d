"""Tables of formats that give row after row of Python's values: each cell becomes text, as in a CSV file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import DataError, Fault
from fedscout.engine.text import shown
from fedscout.experiments.data.columns import column_key
from fedscout.experiments.data.files import MAX_CELL_LENGTH, ReadLimits
from fedscout.experiments.data.table_files import KeptRows, collected, name_faults

if TYPE_CHECKING:
    import pyarrow as pa

NUM_CELLS_AT_ONCE = 200_000


def table_of_rows(
    source: str, names: Sequence[str], rows: Iterable[Sequence[Any]], limits: ReadLimits, kept: KeptRows | None
) -> pa.Table:
    """Return rows as a table of texts.

    Args:
        source: Where they are from, for messages.
        names: Of the columns.
        rows: Each with a value a column: None, text, a number, a truth value, or a moment in time.
        limits: How much is read; bytes are those of the texts.
        kept: Takes the rows in place of the table, which comes back empty.

    Raises:
        DataError: If a column has no name or the name of another, a cell holds anything else, or there is too much, or
            nothing.
    """
    return table_of_blocks(source, names, text_blocks(source, names, rows, limits), limits, kept)


def table_of_blocks(
    source: str, names: Sequence[str], texts: Iterable[pa.RecordBatch], limits: ReadLimits, kept: KeptRows | None
) -> pa.Table:
    """Return blocks of texts as a table.

    Raises:
        DataError: As `table_of_rows`.
    """
    import pyarrow as pa

    nameless = [f"every column of {source} must have a name, but one has none"] if not all(names) else []
    if faults := [*nameless, *name_faults(source, [*names])]:
        raise DataError(faults)
    blocks = collected(source, texts, limits, kept=kept)
    if not blocks:
        raise DataError(Fault(source, "hold rows, but it has none"))
    return pa.Table.from_batches(blocks)


def text_blocks(
    source: str, names: Sequence[str], rows: Iterable[Sequence[Any]], limits: ReadLimits
) -> Iterator[pa.RecordBatch]:
    """Yield rows of Python's values as blocks of texts; a DataError names a cell that holds anything else."""
    import pyarrow as pa

    waiting: list[list[str | None]] = []
    num_bytes = 0

    def block() -> pa.RecordBatch:
        return pa.record_batch([pa.array(cells, pa.string()) for cells in zip(*waiting, strict=True)], [*names])

    for number, row in enumerate(rows, start=1):
        texts = [
            None if value is None else _text(source, name, number, value)
            for name, value in zip(names, row, strict=True)
        ]
        num_bytes += sum(len(text) for text in texts if text)
        limits.check_bytes(source, num_bytes)
        waiting.append(texts)
        if len(waiting) * len(names) >= NUM_CELLS_AT_ONCE:
            yield block()
            waiting.clear()
    if waiting:
        yield block()


def _text(source: str, name: str, row: int, value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case datetime():
            return value.isoformat(sep=" ")
        case str():
            text = value
        case int() | float() | Decimal() | date() | time():
            text = str(value)
        case _:
            raise DataError(
                Fault(
                    f"column {name!r} of {source}",
                    "hold a number, text, truth value or date a cell",
                    f"{shown(value)} in row {row}",
                    f"{column_key(name, 'drop')} leaves it out",
                )
            )
    if len(text) > MAX_CELL_LENGTH:
        raise DataError(
            Fault(f"every cell of {source}", f"have at most {MAX_CELL_LENGTH} characters, but one has more")
        )
    try:
        text.encode()
    except UnicodeEncodeError:
        raise DataError(
            Fault(f"column {name!r} of {source}", "hold Unicode text", f"half a character in row {row}")
        ) from None
    return text
