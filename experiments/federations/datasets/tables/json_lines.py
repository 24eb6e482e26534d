"""JSON lines (https://jsonlines.org): one object a line, packed or not. Numbers keep the digits that are written."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import shown
from fedscout.experiments.federations.datasets.read_limits import MAX_COLUMNS, USUAL_LIMITS, ReadLimits
from fedscout.experiments.federations.datasets.tables.kept_rows import KeptRows
from fedscout.experiments.federations.datasets.tables.text_file import opened, read_text
from fedscout.experiments.federations.datasets.tables.text_rows import table_of_rows

if TYPE_CHECKING:
    import pyarrow as pa

MOST_SPARSE_CELLS = 20_000_000
MOST_CELLS_A_VALUE = 100


def read_json_lines(
    path: Path,
    dropped: Collection[str] = (),
    limits: ReadLimits = USUAL_LIMITS,
    kept: KeptRows | None = None,
    encoding: str | None = "utf-8",
) -> pa.Table:
    """Read a file of objects; a key that one lacks is a missing cell.

    Args:
        path: An existing file; `.gz`, and `.zip` with one file in it, are unpacked on the fly.
        dropped: Keys whose values may be anything; they come back empty.
        limits: How much is read.
        kept: Takes the rows in place of the table, which comes back empty.
        encoding: Of the file; None to find it out.

    Raises:
        DataError: If a line is no object, or holds an object or a list, or the file is too large or no text.
    """

    def read(encoding: str) -> pa.Table:
        names: dict[str, None] = {}
        num_lines = num_values = 0
        for line in _objects(path, limits, encoding):
            num_lines, num_values = num_lines + 1, num_values + len(line)
            names |= dict.fromkeys(line)
            if len(names) > MAX_COLUMNS:
                raise DataError(Fault(path, f"have at most {MAX_COLUMNS:,} columns, but it has more keys"))
        if not names:
            raise DataError(Fault(path, "hold one object of keys and values a line, but it is empty"))
        if num_lines * len(names) > max(MOST_SPARSE_CELLS, MOST_CELLS_A_VALUE * num_values):
            raise DataError(
                Fault(
                    f"the objects of {path}",
                    (
                        f"share their keys, but {num_lines:,} of them have {len(names):,} keys, of which each "
                        f"has {num_values / num_lines:.1f} on average"
                    ),
                )
            )
        rows = ([None if n in dropped else line.get(n) for n in names] for line in _objects(path, limits, encoding))
        return table_of_rows(str(path), [*names], rows, limits, kept)

    return read_text(path, encoding, limits, kept, read)


def _objects(path: Path, limits: ReadLimits, encoding: str) -> Iterator[dict[str, Any]]:
    with opened(path, limits, encoding) as file, io.TextIOWrapper(file, encoding, newline="\n") as text:
        for number, line in enumerate(text, start=1):
            if not line.strip():
                continue
            try:
                found = json.loads(line, parse_float=str, parse_int=str, parse_constant=str)
            except (ValueError, RecursionError):
                found = None
            if not isinstance(found, dict):
                hint = "; a list of objects is no file of lines" if line.lstrip().startswith("[") else ""
                raise DataError(
                    Fault(
                        f"every line of {path}",
                        "be a JSON object",
                        f"{shown(line.strip()[:60])} in line {number}{hint}",
                    )
                )
            yield found
