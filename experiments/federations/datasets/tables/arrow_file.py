"""Feather and other files of Arrow's IPC format (https://arrow.apache.org/docs/format/Columnar.html), by blocks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.experiments.federations.datasets.read_limits import USUAL_LIMITS, ReadLimits
from fedscout.experiments.federations.datasets.tables.kept_rows import KeptRows
from fedscout.experiments.federations.datasets.tables.table_file import (
    SAVED_INDEX,
    bytes_of_cells,
    collected,
    name_faults,
    type_faults,
    with_empty,
)

if TYPE_CHECKING:
    import pyarrow as pa


def read_arrow(
    path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS, kept: KeptRows | None = None
) -> pa.Table:
    """Read a file whose columns are numbers, texts, truth values or moments in time.

    Args:
        path: An existing file.
        dropped: Columns that may be of any type; they come back empty.
        limits: How much is read; bytes are counted as the cells take them in memory, once a block is unpacked.
        kept: Takes the rows in place of the table, which comes back empty.

    Raises:
        DataError: If the file can't be read, is too large, has columns of other types, or no rows.
    """
    import pyarrow as pa

    limits.check_file(path)
    try:
        with pa.OSFile(str(path)) as file:
            reader = _opened(file)
            faults = [*name_faults(path, reader.schema.names), *type_faults(path, reader.schema, dropped)]
            if faults:
                raise DataError(faults)
            names = [name for name in reader.schema.names if name not in dropped and not SAVED_INDEX.fullmatch(name)]
            blocks = collected(path, _blocks(path, reader, names, limits), limits, kept=kept)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, MemoryError):
            raise
        raise DataError(f"{path} can't be read as an Arrow file: {first_line(error)}") from None
    if not blocks:
        raise DataError(Fault(path, "hold rows, but it has none"))
    return with_empty(pa.Table.from_batches(blocks), [name for name in reader.schema.names if name in dropped])


def _opened(file: pa.NativeFile) -> pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader:
    """Open a file, or what was written as a stream."""
    import pyarrow as pa

    try:
        return pa.ipc.open_file(file)
    except pa.ArrowInvalid:
        file.seek(0)
        return pa.ipc.open_stream(file)


def _blocks(
    path: Path,
    reader: pa.ipc.RecordBatchFileReader | pa.ipc.RecordBatchStreamReader,
    names: list[str],
    limits: ReadLimits,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    total = 0
    is_file = isinstance(reader, pa.ipc.RecordBatchFileReader)
    for block in (reader.get_batch(number) for number in range(reader.num_record_batches)) if is_file else reader:
        if len(block):
            block.validate(full=True)
            total += sum(bytes_of_cells(block[name]) for name in names)
            limits.check_bytes(path, total)
            yield block.select(names)
