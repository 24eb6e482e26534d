"""Small files in the formats in which image data sets are published."""

from __future__ import annotations

import gzip
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image


def random_images(num_rows: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num_rows, *shape)).astype(np.uint8)


def idx_bytes(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def write_idx(folder: Path, images: np.ndarray, labels: np.ndarray, start: str = "train", packed: bool = False) -> None:
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        content = idx_bytes(values.astype(np.uint8))
        name = f"{start}-{kind}-ubyte" + (".gz" if packed else "")
        write(folder / name, gzip.compress(content) if packed else content)


def batch_bytes(content: Any, protocol: int = 2) -> bytes:
    return pickle.dumps(content, protocol=protocol)


def python_2_batch(images: np.ndarray, labels: list[int]) -> bytes:
    """Write a batch as Python 2 did for the published files: names of old modules, texts of bytes."""

    def short(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    def number(value: int) -> bytes:
        return b"J" + struct.pack("<i", value)

    rows, columns = images.shape
    dtype = b"cnumpy\ndtype\n" + b"(" + short(b"u1") + number(0) + number(1) + b"tR"
    dtype += b"(" + number(3) + short(b"|") + b"NNN" + number(-1) + number(-1) + number(0) + b"tb"
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\n"
        + b"(cnumpy\nndarray\n"
        + b"("
        + number(0)
        + b"t"
        + short(b"b")
        + b"tR"
    )
    data = images.tobytes()
    array += b"(" + number(1) + b"(" + number(rows) + number(columns) + b"t" + dtype + b"\x89"
    array += b"T" + struct.pack("<i", len(data)) + data + b"tb"
    listed = b"](" + b"".join(number(label) for label in labels) + b"e"
    return b"\x80\x02}(" + short(b"data") + array + short(b"labels") + listed + b"u."


def picture(path: Path, colour: int | tuple[int, ...] = 0, size: int = 4, mode: str | None = None) -> Path:
    """Write a picture of one colour: grey for a number, else red, green and blue, or with alpha."""
    path.parent.mkdir(parents=True, exist_ok=True)
    usual = "L" if isinstance(colour, int) else {3: "RGB", 4: "RGBA"}[len(colour)]
    Image.new(mode or usual, (size, size), colour).save(path)
    return path
