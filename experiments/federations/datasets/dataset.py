"""A data set as the rest of the program sees it: numbers, classes, and where they come from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.errors import DataError

TextArray = npt.NDArray[np.str_]
DataKind = Literal["table", "image", "tokens", "embedding"]
"""What a row is: a line of columns; `(channels, height, width)`; `(length,)` token numbers; a text's own vector."""

BLOCK_ROWS = 4096
DIGEST_BYTES = 16
TEXTS_AT_ONCE = 100_000


@dataclass(frozen=True)
class Dataset:
    """All rows of one data set, ready to be dealt to clients.

    Attributes:
        name: The name under which it is chosen.
        features: float32, finite, shape `(num_rows, *feature_shape)`.
        labels: int64 in `[0, len(class_names))`, every class present, shape `(num_rows,)`.
        class_names: One name per class, in label order.
        feature_names: One name per column for tabular data, else empty.
        source: Citation: who published the data, and where.
        feature_unit: One standard deviation of a feature, in the stored scale; a scenario's noise is given in it.
        client_ids: The natural client of each row, shape `(num_rows,)`, or None.
        groups: The group of each row, such as a subject, in `[0, num_groups)`, int64, shape `(num_rows,)`; None where
            rows are independent.
        series: What its rows are a series of, in the order of time, or empty: neighbours are no independent rows.
        facts: Counts for the record: rows, duplicates, what was dropped.
        kind: What a row is; models and detectors depend on it.
        vocabulary_size: For tokens: they are whole numbers in `[0, vocabulary_size)`, stored as float32; 0 is padding.
        deviations: For standardised tables: each column's standard deviation before, shape `(num_columns,)`.
        targets: The quantity to predict, float64, shape `(num_rows,)`; None where classes are. Labels are its tenths.
        encoding: How a table's columns became features (`tables/agreed_encoding.py`); None where no others could.
    """

    name: str
    features: FloatArray
    labels: IntArray
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...]
    source: str
    feature_unit: float = 1.0
    client_ids: TextArray | None = None
    groups: IntArray | None = None
    series: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    kind: DataKind = "table"
    vocabulary_size: int = 0
    deviations: npt.NDArray[np.float64] | None = None
    targets: npt.NDArray[np.float64] | None = None
    encoding: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        assert self.features.dtype == np.float32
        assert self.labels.dtype == np.int64
        assert len(self.features) == len(self.labels)
        blocks = range(0, len(self.features), BLOCK_ROWS)  # a whole mask is a quarter of the features' memory
        assert all(np.isfinite(self.features[start : start + BLOCK_ROWS]).all() for start in blocks)
        assert (np.bincount(self.labels, minlength=len(self.class_names)) > 0).all()
        assert not self.feature_names or self.features.shape[1:] == (len(self.feature_names),)
        assert self.client_ids is None or len(self.client_ids) == len(self.labels)
        assert self.targets is None or self.targets.shape == self.labels.shape
        assert self.groups is None or self.groups.shape == self.labels.shape
        assert self.deviations is None or self.deviations.shape == self.features.shape[1:]
        assert (self.vocabulary_size > 0) == (self.kind == "tokens")

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.labels)

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)


def distinct_texts(texts: TextArray) -> tuple[TextArray, IntArray]:
    """Return the distinct texts in alphabetical order, and the position of each text in them, shape `(num_texts,)`.

    What `np.unique` returns, but sorted in blocks: one sort of many texts hears no signal until its end.
    """
    blocks = [texts[start : start + TEXTS_AT_ONCE] for start in range(0, len(texts), TEXTS_AT_ONCE)]
    found = [np.unique(block, return_inverse=True) for block in blocks]
    names = _merged([block for block, _ in found])
    return names, np.concatenate([np.searchsorted(names, block)[positions] for block, positions in found])


def _merged(blocks: list[TextArray]) -> TextArray:
    """Return the distinct texts of sorted blocks: as many ranges as there are blocks, each sorted by itself."""
    samples = np.sort(np.concatenate([block[:: len(blocks)] for block in blocks]))
    bounds = samples[np.arange(1, len(blocks)) * len(samples) // len(blocks)]
    cuts = [[0, *np.searchsorted(block, bounds), len(block)] for block in blocks]
    parts = [
        [block[cut[part] : cut[part + 1]] for block, cut in zip(blocks, cuts, strict=True)]
        for part in range(len(blocks))
    ]
    return np.concatenate([np.unique(np.concatenate(part)) for part in parts])


def usual_facts(
    label: str, rows: npt.NDArray[np.number] | Iterator[npt.NDArray[np.number]], labels: IntArray
) -> dict[str, Any]:
    """Return what is on record of every data set: what is predicted, and how many rows there are and repeat another.

    Args:
        label: What is predicted.
        rows: What is compared, as for `duplicate_rows`.
        labels: Shape `(num_rows,)`.
    """
    return {"label": label, "num_rows": len(labels), "num_duplicate_rows": duplicate_rows(rows, labels)}


def duplicate_rows(rows: npt.NDArray[np.number] | Iterator[npt.NDArray[np.number]], labels: IntArray) -> int:
    """Count the rows that repeat an earlier row, label included.

    They are kept, as the publisher has them, but the count goes on record: copies of a row can end up on both sides
    of a client's train and test split. Rows are compared by 128-bit digests, block by block, as sorting whole rows
    takes minutes for 60,000 images.

    Args:
        rows: Shape `(num_rows, *row_shape)`, finite; or blocks of such rows, one after the other.
        labels: Shape `(num_rows,)`.
    """
    blocks = rows
    if isinstance(rows, np.ndarray):
        blocks = (rows[start : start + BLOCK_ROWS] for start in range(0, len(rows), BLOCK_ROWS))
    seen = set()
    end = 0
    for part in blocks:
        block = np.ascontiguousarray(part)
        if block.dtype.kind == "f":
            block = block + 0.0  # a negative zero equals zero, but not bit for bit
        end += len(block)
        for row, label in zip(block, labels[end - len(block) : end].tolist(), strict=True):
            digest = hashlib.blake2b(row.data, digest_size=DIGEST_BYTES)
            digest.update(label.to_bytes(8, "little", signed=True))
            seen.add(digest.digest())
    return len(labels) - len(seen)


def present_classes(
    name: str, labels: npt.NDArray[np.integer], class_names: Sequence[str]
) -> tuple[IntArray, tuple[str, ...]]:
    """Return labels numbered over the classes that occur, in the order of all, and the names of these.

    A part of the files, or a sample of rows, may lack some.

    Args:
        name: The data set's name, for messages.
        labels: In `[0, len(class_names))`, shape `(num_rows,)`.
        class_names: One name a class.

    Raises:
        DataError: If there are fewer than two.
    """
    numbers = labels.astype(np.int64)
    occurs = np.bincount(numbers, minlength=len(class_names)) > 0
    names = tuple(class_names[index] for index in np.flatnonzero(occurs).tolist())
    if len(names) < 2:
        raise DataError(f"data set {name!r} must hold at least two classes, got {len(names)}: {', '.join(names)}")
    return (np.cumsum(occurs) - 1)[numbers].astype(np.int64), names
