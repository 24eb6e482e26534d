"""Small files in the formats in which image data sets are published."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
from PIL import Image


def random_images(num_rows: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (num_rows, *shape)).astype(np.uint8)


def idx_bytes(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def write_idx(folder: Path, images: np.ndarray, labels: np.ndarray, start: str = "train", packed: bool = False) -> None:
    for kind, values in (("images-idx3", images), ("labels-idx1", labels)):
        content = idx_bytes(values.astype(np.uint8))
        name = f"{start}-{kind}-ubyte" + (".gz" if packed else "")
        write(folder / name, gzip.compress(content) if packed else content)


def picture(path: Path, colour: int | tuple[int, ...] = 0, size: int = 4, mode: str | None = None) -> Path:
    """Write a picture of one colour: grey for a number, else red, green and blue, or with alpha."""
    path.parent.mkdir(parents=True, exist_ok=True)
    usual = "L" if isinstance(colour, int) else {3: "RGB", 4: "RGBA"}[len(colour)]
    Image.new(mode or usual, (size, size), colour).save(path)
    return path
