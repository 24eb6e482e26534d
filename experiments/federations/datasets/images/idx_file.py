"""Files of the IDX format, plain or packed: arrays of bytes with their shape in front.

Y. LeCun, C. Cortes and C. Burges, "The MNIST database of handwritten digits", whose page defines the format: two zero
bytes, the type (8: unsigned byte), the number of axes, each axis as a big-endian 32-bit number, then the values.
"""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.images.pixels import PixelArray
from fedscout.experiments.federations.datasets.read_limits import ReadLimits

UNSIGNED_BYTE = 8
BLOCK_BYTES = 2**20
GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path, num_axes: int, limits: ReadLimits) -> PixelArray:
    """Read a file of unsigned bytes.

    Args:
        path: An existing file, packed by gzip or not; its content decides, not its name.
        num_axes: Axes that it must have: 1 for labels, 3 for images.
        limits: The most that it may hold.

    Raises:
        DataError: If it is not such a file, is too large, or holds fewer or more bytes than its header says.
    """
    try:
        with path.open("rb") as plain:
            packed = plain.read(len(GZIP_MAGIC)) == GZIP_MAGIC
            plain.seek(0)
            if not packed:
                return _read(path, plain, num_axes, limits)
            with gzip.open(plain) as unpacked:
                return _read(path, unpacked, num_axes, limits)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} can't be read: {error}") from None


def _read(path: Path, file: IO[bytes] | gzip.GzipFile, num_axes: int, limits: ReadLimits) -> PixelArray:
    header = file.read(4)
    expected = bytes([0, 0, UNSIGNED_BYTE, num_axes])
    if header != expected:
        raise DataError(
            Fault(
                path,
                (
                    f"be an IDX file of unsigned bytes with {num_axes} axes, which starts with the "
                    f"bytes {expected.hex(' ')}"
                ),
                header.hex(" ") or "an empty file",
            )
        )
    sizes = file.read(4 * num_axes)
    if len(sizes) < 4 * num_axes:
        raise DataError(Fault(path, f"name {num_axes} sizes in its header, but it ends there"))
    shape = tuple(int(size) for size in np.frombuffer(sizes, ">u4"))
    if 0 in shape:
        raise DataError(Fault(path, f"hold values, but its header says shape {shape}"))
    num_bytes = int(np.prod(shape, dtype=object))
    values = _read_at_most(file, min(num_bytes, limits.max_bytes) + 1)
    limits.check_bytes(path, len(values))
    if len(values) != num_bytes:
        held = f"{len(values)}" if len(values) < num_bytes else "more"
        raise DataError(Fault(path, f"hold {num_bytes} values after its header, of shape {shape}", held))
    return np.frombuffer(values, np.uint8).reshape(shape)


def _read_at_most(file: IO[bytes] | gzip.GzipFile, num_bytes: int) -> bytearray:
    """Read by blocks: a header can claim a size for which there is no memory."""
    values = bytearray()
    while len(values) < num_bytes and (block := file.read(min(BLOCK_BYTES, num_bytes - len(values)))):
        values += block
    return values
