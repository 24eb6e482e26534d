"""Embedding of images or texts by a pretrained network, into a data set file in the array format of `table_formats.py`.

A record of the same name and `.json` lies beside the file: the source rows, the network's files or the seed of random
weights (whose embeddings carry no more information than pixels), and the digest of the file. A complete file with an
equal record is not computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import ConfigurationError, EngineError
from fedscout.engine.runtime.files import json_text, not_written, read_json_object, write_atomically
from fedscout.experiments.data.dataset import Dataset, DatasetRequest
from fedscout.experiments.data.loaders.table import load_dataset
from fedscout.experiments.data.table_formats import CLIENT, LABEL, ROWS
from fedscout.experiments.data.texts import KeptTexts
from fedscout.experiments.embeddings.networks import (
    OnnxPictures,
    OnnxTexts,
    ResNet18Features,
    Tokens,
    file_digest,
    load_weights,
    standardised,
)

BATCH_ROWS = 64
ONNX = ".onnx"

Rows = Literal["pictures", "texts"]


@dataclass(frozen=True)
class Embedder:
    """A network that maps rows to vectors.

    Attributes:
        of: Kind of rows: images in `[0, 1]`, float32, shape `(rows, 1 or 3, height, width)`, or texts.
        record: Method, files by name and SHA-256, or the seed of random weights.
        vectors: Function from rows to their embeddings, float32, shape `(rows, features)`.
    """

    of: Rows
    record: dict[str, Any]
    vectors: Callable[[Any], FloatArray]

    def embedded(self, rows: FloatArray | Sequence[str]) -> FloatArray:
        """Return the embeddings of all rows, shape `(num_rows, features)`."""
        starts = range(0, len(rows), BATCH_ROWS)
        return np.concatenate([self.vectors(rows[start : start + BATCH_ROWS]) for start in starts])


def embedder(weights: Path | None, tokenizer: Path | None, seed: int | None, size: int) -> Embedder:
    """Return a network with weights from a file, or random ones from a seed; exactly one of the two must be given.

    Args:
        weights: For images, a ResNet-18 with torchvision's names or any ONNX network; for texts, any ONNX network.
        tokenizer: Tokenizer of the network, for texts.
        seed: Seed of a random ResNet-18.
        size: Height and width in pixels to which images are resized.

    Raises:
        ConfigurationError: If both or neither are given, or random weights are requested for texts.
        DataError: If a file can't be used.
    """
    if (weights is None) == (seed is None):
        raise ConfigurationError.of(
            "--weights", "name a file of a trained network's weights, or --random the seed of random ones, not both"
        )
    if weights is None:
        if tokenizer is not None:
            raise ConfigurationError.of("--weights", "name a file with --tokenizer: random networks are for pictures")
        torch.manual_seed(seed or 0)
        return _resnet18(ResNet18Features().eval(), {"random_seed": seed}, size)
    if tokenizer is not None:
        return _of_texts(weights, tokenizer)
    if weights.suffix.lower() == ONNX:
        network = OnnxPictures(weights, size)
        return Embedder("pictures", {"method": "ONNX", "size": size, **_file(weights)}, network.vectors)
    resnet18 = ResNet18Features().eval()
    load_weights(resnet18, weights)
    return _resnet18(resnet18, _file(weights), size)


def _of_texts(weights: Path, tokenizer: Path) -> Embedder:
    network = OnnxTexts(weights, Tokens(tokenizer))
    return Embedder("texts", {"method": "ONNX", **_file(weights), "tokenizer": _file(tokenizer)}, network.vectors)


def _resnet18(network: ResNet18Features, weights: dict[str, Any], size: int) -> Embedder:
    def vectors(pictures: FloatArray) -> FloatArray:
        with torch.inference_mode():
            features: FloatArray = network(standardised(torch.from_numpy(pictures), size)).numpy()
        return features

    return Embedder("pictures", {"method": "ResNet-18", "size": size, **weights}, vectors)


def _file(path: Path) -> dict[str, str]:
    return {"file": path.name, "sha256": file_digest(path)}


RECORD = ".json"
"""Suffix of the record's file name."""


def load_to_embed(request: DatasetRequest) -> tuple[Dataset, FloatArray | list[str]]:
    """Return a data set with the images or texts to embed.

    Raises:
        ConfigurationError: If its rows are neither.
        DataError: If it can't be loaded.
    """
    texts = KeptTexts(**request.text.model_dump())
    dataset = load_dataset(request.model_copy(update={"text": texts}))
    if dataset.kind == "image":
        return dataset, dataset.features
    if dataset.kind == "embedding" and len(texts.kept) == dataset.num_rows:
        return dataset, texts.kept
    raise ConfigurationError.of("federation.dataset", "be one of pictures or texts", repr(dataset.name))


def write_embedded(dataset: Dataset, rows: FloatArray | list[str], by: Embedder, out: Path) -> bool:
    """Write the embedded data set unless it is up to date; return whether anything was computed.

    Args:
        dataset: Data set with labels and clients.
        rows: Rows to embed.
        by: The network.
        out: Output file.

    Raises:
        ConfigurationError: If the network is for other kinds of rows.
        DataError: If it can't embed these rows.
        EngineError: If the file can't be written.
    """
    if by.of == "pictures" and isinstance(rows, list):
        raise ConfigurationError.of("--tokenizer", "name the tokenizer.json of the text network in --weights")
    if by.of == "texts" and not isinstance(rows, list):
        raise ConfigurationError.of("--tokenizer", f"be left out, as data set {dataset.name!r} has pictures")
    record = {
        **by.record,
        "dataset": dataset.name,
        "source": dataset.source,
        "rows": dataset.num_rows,
        "rows_sha256": _digest(dataset, rows),
    }
    record_file = out.with_name(out.name + RECORD)
    if _read_record(record_file) == {**record, "file_sha256": _digest_of_existing(out)}:
        return False
    arrays = {ROWS: by.embedded(rows), LABEL: np.array(dataset.class_names)[dataset.labels]}
    if dataset.client_ids is not None:
        arrays[CLIENT] = dataset.client_ids
    _write(out, lambda file: _save(file, arrays))
    _write(record_file, lambda file: file.write_text(json_text({**record, "file_sha256": file_digest(out)})))
    return True


def _write(path: Path, write: Callable[[Path], object]) -> None:
    try:
        write_atomically(path, write)
    except OSError as error:
        raise EngineError(not_written(path, error)) from error


def _save(path: Path, arrays: dict[str, Any]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _read_record(path: Path) -> dict[str, Any] | None:
    """Return a record, or None if it is missing or unreadable."""
    try:
        return read_json_object(path)
    except (OSError, ValueError):
        return None


def _digest_of_existing(path: Path) -> str | None:
    try:
        return file_digest(path)
    except OSError:
        return None


def _digest(dataset: Dataset, rows: FloatArray | list[str]) -> str:
    """Return a digest of the rows, labels and clients."""
    digest = hashlib.sha256()
    for array in (rows, dataset.labels, dataset.client_ids):
        if isinstance(array, list):
            digest.update(json.dumps(array).encode())
        elif array is not None:
            digest.update(f"{array.dtype} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
