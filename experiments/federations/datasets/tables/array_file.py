"""Arrays of NumPy in one file (`.npz`), by documented names; nothing that could carry code or objects is read.

`x` and `y`, and `client` if each row names its client; or the parts `x_train`, `y_train`, `x_test` and `y_test`, as in
Keras' `mnist.npz`, which are joined. Rows of numbers are a table of the columns `x0`, `x1`, …, `y` and `client`. Rows
of two or three axes are pictures (`loaders/own_arrays.py`).

What an array says of its shape is read first (NumPy enhancement proposal 1), so that what is too large or holds objects
is refused before it is in memory.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.engine.fault_text import listed
from fedscout.experiments.federations.datasets.read_limits import ReadLimits
from fedscout.experiments.federations.datasets.tables.table_file import plain_cells

if TYPE_CHECKING:
    import pyarrow as pa

ARRAY_SUFFIX = ".npz"
ROWS, LABEL, CLIENT = "x", "y", "client"
PARTS = ("_train", "_test")
Arrays = dict[str, npt.NDArray[Any]]


def read_array_table(path: Path, limits: ReadLimits) -> pa.Table:
    """Read arrays as a table of plain cells.

    Raises:
        DataError: If the file can't be read, holds other arrays, objects, pictures, or too much.
    """
    import pyarrow as pa

    arrays = read_arrays(path, limits)
    if arrays[ROWS].ndim != 2:
        raise DataError(
            Fault(f"the rows of {path}", "be rows of numbers to be a table", f"the shape {arrays[ROWS].shape}")
        )
    columns = {f"{ROWS}{number}": arrays[ROWS][:, number] for number in range(arrays[ROWS].shape[1])}
    columns |= {name: arrays[name] for name in (LABEL, CLIENT) if name in arrays}
    return pa.table({name: plain_cells(pa.array(cells)) for name, cells in columns.items()})


def read_arrays(path: Path, limits: ReadLimits) -> Arrays:
    """Return the arrays by name, parts joined.

    Raises:
        DataError: If the file can't be read, holds other arrays, objects, or too much.
    """
    limits.check_file(path)
    try:
        with zipfile.ZipFile(path) as archive:
            told = {name.removesuffix(".npy"): _header(archive, name) for name in archive.namelist()}
        wanted = _wanted(path, told)
        _check(path, {name: told[name] for names in wanted.values() for name in names}, limits)
        with np.load(path, allow_pickle=False) as file:
            found = {name: np.concatenate([file[part] for part in parts]) for name, parts in wanted.items()}
    except (OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:
        raise DataError(f"{path} can't be read as arrays of NumPy: {first_line(error)}") from None
    _check_lengths(path, found)
    return found


def _header(archive: zipfile.ZipFile, name: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return what an array says of its shape and type."""
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


def _wanted(path: Path, told: Any) -> dict[str, list[str]]:
    """Return the parts of each array."""
    if {ROWS, LABEL} <= told.keys():
        return {name: [name] for name in (ROWS, LABEL, CLIENT) if name in told}
    parts = [part for part in PARTS if ROWS + part in told and LABEL + part in told]
    if not parts:
        raise DataError(
            Fault(
                path,
                (
                    f"hold the arrays {ROWS!r} and {LABEL!r}, or {ROWS}_train, {LABEL}_train, "
                    f"{ROWS}_test and {LABEL}_test"
                ),
                listed(told) or "none",
            )
        )
    return {name: [name + part for part in parts] for name in (ROWS, LABEL)}


def _check(path: Path, told: dict[str, tuple[tuple[int, ...], np.dtype[Any]]], limits: ReadLimits) -> None:
    """Refuse arrays of objects or of an odd shape, and what is too large, before any of it is read."""
    faults = []
    for name, (shape, dtype) in told.items():
        is_rows = name.startswith(ROWS)
        if dtype.hasobject or dtype.kind not in ("fiub" if is_rows else "fiubU"):
            faults.append(
                Fault(f"the array {name!r} of {path}", f"hold numbers{('' if is_rows else ' or texts')}", dtype)
            )
        elif len(shape) not in ((2, 3, 4) if is_rows else (1,)) or not all(shape):
            faults.append(Fault(f"the array {name!r} of {path}", f"have another shape than {shape}"))
    if faults:
        raise DataError(faults)
    limits.check_bytes(path, sum(math.prod(shape) * dtype.itemsize for shape, dtype in told.values()))
    limits.check_rows(path, sum(shape[0] for name, (shape, _) in told.items() if name.startswith(ROWS)))


def _check_lengths(path: Path, arrays: Arrays) -> None:
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(Fault(f"the arrays of {path}", "have as many rows each", lengths))
