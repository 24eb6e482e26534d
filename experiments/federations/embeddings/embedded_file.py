"""Pictures embedded into a file that is a data set itself: `x`, `y` and `client` of `datasets/tables/array_file.py`.

Beside it lies its record, of the same name and `.json`: of what pictures, by which weights, or by random ones, which
tell nothing that pixels do not, and the digest of what was written. What is there already, whole, and rests on the same
is not computed again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import ConfigurationError, EngineError
from fedscout.engine.runtime.atomic_file import json_text, not_written, write_atomically
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.tables.array_file import CLIENT, LABEL, ROWS
from fedscout.experiments.federations.embeddings.resnet18_features import NUM_FEATURES, ResNet18Features, standardised
from fedscout.experiments.federations.embeddings.weight_file import load_weights

BATCH_ROWS = 64
METHOD = "ResNet-18, 512 features"
RECORD = ".json"
"""Of the record's name, behind the file's."""


@dataclass(frozen=True)
class Embedder:
    """A network with its weights.

    Attributes:
        network: In the mode of evaluation.
        weights: What they are, for the record: a file's name and SHA-256, or the seed of random ones.
        size: Pixels to which pictures are resized.
    """

    network: ResNet18Features
    weights: dict[str, Any]
    size: int


def embedder(weights: Path | None, seed: int | None, size: int) -> Embedder:
    """Return a network with the weights of a file, or random ones by a seed; just one of the two must be given.

    Raises:
        ConfigurationError: If both or none are.
        DataError: If the file can't be used.
    """
    if (weights is None) == (seed is None):
        raise ConfigurationError(
            "--weights must name a file of a trained network's weights, or --random the seed of random ones, not both"
        )
    torch.manual_seed(seed or 0)
    network = ResNet18Features().eval()
    if weights is None:
        return Embedder(network, {"random_seed": seed}, size)
    return Embedder(network, {"file": weights.name, "sha256": load_weights(network, weights)}, size)


def embedded(pictures: FloatArray, by: Embedder) -> FloatArray:
    """Return the features of pictures, float32, shape `(num_rows, 512)`.

    Args:
        pictures: In `[0, 1]`, float32, shape `(num_rows, 1 or 3, height, width)`.
        by: The network.
    """
    found = np.empty((len(pictures), NUM_FEATURES), np.float32)
    with torch.inference_mode():
        for start in range(0, len(pictures), BATCH_ROWS):
            block = torch.from_numpy(pictures[start : start + BATCH_ROWS])
            found[start : start + BATCH_ROWS] = by.network(standardised(block, by.size)).numpy()
    return found


def write_embedded(dataset: Dataset, by: Embedder, out: Path) -> bool:
    """Write the embedded data set, unless it is there; return whether anything was computed.

    Raises:
        ConfigurationError: If the rows are no pictures.
        EngineError: If the file can't be written.
    """
    if dataset.kind != "image":
        raise ConfigurationError(f"federation.dataset must be one of pictures, got {dataset.name!r}")
    record = {
        "method": METHOD,
        "weights": by.weights,
        "size": by.size,
        "dataset": dataset.name,
        "source": dataset.source,
        "rows": dataset.num_rows,
        "sha256": _digest(dataset),
    }
    told = out.with_name(out.name + RECORD)
    if _recorded(told) == {**record, "file_sha256": _file_digest(out)}:
        return False
    arrays = {ROWS: embedded(dataset.features, by), LABEL: np.array(dataset.class_names)[dataset.labels]}
    if dataset.client_ids is not None:
        arrays[CLIENT] = dataset.client_ids
    _write(out, lambda file: _save(file, arrays))
    _write(told, lambda file: file.write_text(json_text({**record, "file_sha256": _file_digest(out)})))
    return True


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write_atomically(path, write)
    except OSError as error:
        raise EngineError(not_written(path, error)) from error


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _recorded(path: Path) -> dict[str, Any] | None:
    """Return a record; None if there is none that can be read."""
    try:
        return read_json_object(path)
    except (OSError, ValueError):
        return None


def _file_digest(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None


def _digest(dataset: Dataset) -> str:
    digest = hashlib.sha256()
    for array in (dataset.features, dataset.labels, dataset.client_ids):
        if array is not None:
            digest.update(f"{array.dtype} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
