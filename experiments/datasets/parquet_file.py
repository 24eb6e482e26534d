"""Reading of one Parquet file as a flat table."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engine.errors import DataError

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

SAVED_INDEX = "__index_level_0__"


def read_parquet(path: Path, dropped: Collection[str] = ()) -> pd.DataFrame:
    """Read a file whose columns are numbers, texts, truth values or moments in time.

    Args:
        path: An existing file.
        dropped: Columns that may be of any type, as nobody looks at them; they come back empty.

    Returns:
        Numbers as they are, truth values as the texts `true` and `false`, all else as text; NaN or the empty text
        where a cell is null. The index that pandas saves is left out.

    Raises:
        DataError: If the file can't be read, has columns of other types, repeated column names, or no rows.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            faults = list(_schema_faults(path, file.schema_arrow, dropped))
            if file.metadata.num_rows == 0:
                faults.append(f"{path} must hold rows, but it has none")
            if faults:
                raise DataError(faults)
            names = file.schema_arrow.names
            table = file.read([name for name in names if name not in dropped and name != SAVED_INDEX])
    except (pa.ArrowException, OSError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(f"{path} can't be read as Parquet: {reason}") from None
    rows = _plain(table)
    for name in names:
        if name in dropped:
            rows[name] = ""
    return rows


def _schema_faults(path: Path, schema: pa.Schema, dropped: Collection[str]) -> Iterator[str]:
    import pyarrow as pa

    repeated = sorted({name for name in schema.names if schema.names.count(name) > 1})
    if repeated:
        yield f"the column names of {path} must differ, but {', '.join(map(repr, repeated))} occurs repeatedly"
    for field in schema:
        kind = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
        if field.name not in dropped and (pa.types.is_nested(kind) or _is_bytes(kind)):
            yield (
                f"column {field.name!r} of {path} must hold a number, text, truth value or date a cell, "
                f"got {field.type}; federation.drop_columns=[{field.name}] leaves it out"
            )


def _is_bytes(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _becomes_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_boolean(kind) or types.is_null(kind) or types.is_time(kind) or types.is_duration(kind))


def _plain(table: pa.Table) -> pd.DataFrame:
    """Return the columns as float64, int64, datetime or text."""
    import pandas as pd
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: dict[str, pd.Series] = {}
    for name in table.column_names:
        column = table.column(name)
        kind = column.type
        if pa.types.is_dictionary(kind):
            column = pc.cast(column, kind.value_type)
            kind = column.type
        if pa.types.is_decimal(kind) or pa.types.is_float16(kind):
            column = pc.cast(column, pa.float64())
        elif (
            pa.types.is_boolean(kind) or pa.types.is_null(kind) or pa.types.is_time(kind) or pa.types.is_duration(kind)
        ):
            column = pc.cast(column, pa.string())
        elif pa.types.is_date(kind):
            column = pc.cast(column, pa.timestamp("s"))
        cells = column.to_pandas()
        is_text = not (pd.api.types.is_numeric_dtype(cells) or pd.api.types.is_datetime64_any_dtype(cells))
        columns[name] = cells.astype("str").fillna("").str.strip() if is_text else cells
    return pd.DataFrame(columns)
