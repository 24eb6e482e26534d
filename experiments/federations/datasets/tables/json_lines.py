"""JSON lines (https://jsonlines.org): one object a line, packed or not. Numbers keep the digits that are written."""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedscout.engine.errors import DataError
from fedscout.engine.fault_text import shown
from fedscout.experiments.federations.datasets.read_limits import USUAL_LIMITS, ReadLimits
from fedscout.experiments.federations.datasets.tables.kept_rows import KeptRows
from fedscout.experiments.federations.datasets.tables.text_file import ENCODING, opened
from fedscout.experiments.federations.datasets.tables.text_rows import table_of_rows

if TYPE_CHECKING:
    import pyarrow as pa


def read_json_lines(
    path: Path, dropped: Collection[str] = (), limits: ReadLimits = USUAL_LIMITS, kept: KeptRows | None = None
) -> pa.Table:
    """Read a file of objects; a key that one lacks is a missing cell.

    Args:
        path: An existing file; `.gz`, and `.zip` with one file in it, are unpacked on the fly.
        dropped: Keys whose values may be anything; they come back empty.
        limits: How much is read.
        kept: Takes the rows in place of the table, which comes back empty.

    Raises:
        DataError: If a line is no object, or holds an object or a list, or the file is too large or no text.
    """
    names = dict.fromkeys(key for _, line in _objects(path, limits) for key in line)
    if not names:
        raise DataError(f"{path} must hold one object of keys and values a line, but it is empty")
    rows = ([None if name in dropped else line.get(name) for name in names] for _, line in _objects(path, limits))
    return table_of_rows(str(path), [*names], rows, limits, kept)


def _objects(path: Path, limits: ReadLimits) -> Iterator[tuple[int, dict[str, Any]]]:
    with opened(path, limits) as file, io.TextIOWrapper(file, ENCODING, newline="\n") as text:
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
                    f"every line of {path} must be a JSON object, got {shown(line.strip()[:60])} in line {number}{hint}"
                )
            yield number, found
