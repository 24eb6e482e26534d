"""Pictures or texts embedded into a file that is a data set itself: the arrays of `datasets/tables/array_file.py`.

Beside it lies its record, of the same name and `.json`: of what rows, by which files, or by random weights, which tell
nothing that pixels do not, and the digest of what was written. What is there already, whole, and rests on the same is
not computed again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import ConfigurationError, EngineError, Fault
from fedscout.engine.runtime.atomic_file import json_text, not_written, write_atomically
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.loaders.dataset_table import load_dataset
from fedscout.experiments.federations.datasets.tables.array_file import CLIENT, LABEL, ROWS
from fedscout.experiments.federations.datasets.texts.words import KeptTexts
from fedscout.experiments.federations.embeddings.embedder import Embedder
from fedscout.experiments.federations.embeddings.weight_file import file_digest

RECORD = ".json"
"""Of the record's name, behind the file's."""


def load_to_embed(request: DatasetRequest) -> tuple[Dataset, FloatArray | list[str]]:
    """Load a data set and what of it is embedded: its pictures, or its texts.

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
    raise ConfigurationError(Fault("federation.dataset", "be one of pictures or texts", repr(dataset.name)))


def write_embedded(dataset: Dataset, rows: FloatArray | list[str], by: Embedder, out: Path) -> bool:
    """Write the embedded data set, unless it is there; return whether anything was computed.

    Args:
        dataset: Its labels and clients.
        rows: What is embedded.
        by: The network.
        out: The file.

    Raises:
        ConfigurationError: If the network takes other rows.
        DataError: If it can't take these.
        EngineError: If the file can't be written.
    """
    if by.of == "pictures" and isinstance(rows, list):
        raise ConfigurationError(
            Fault("--tokenizer", "name the tokenizer.json of the texts' network, whose --weights are")
        )
    if by.of == "texts" and not isinstance(rows, list):
        raise ConfigurationError(Fault("--tokenizer", f"be left out, as data set {dataset.name!r} has pictures"))
    record = {
        **by.record,
        "dataset": dataset.name,
        "source": dataset.source,
        "rows": dataset.num_rows,
        "rows_sha256": _digest(dataset, rows),
    }
    told = out.with_name(out.name + RECORD)
    if _recorded(told) == {**record, "file_sha256": _digest_of_what_is_there(out)}:
        return False
    arrays = {ROWS: by.embedded(rows), LABEL: np.array(dataset.class_names)[dataset.labels]}
    if dataset.client_ids is not None:
        arrays[CLIENT] = dataset.client_ids
    _write(out, lambda file: _save(file, arrays))
    _write(told, lambda file: file.write_text(json_text({**record, "file_sha256": file_digest(out)})))
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


def _digest_of_what_is_there(path: Path) -> str | None:
    try:
        return file_digest(path)
    except OSError:
        return None


def _digest(dataset: Dataset, rows: FloatArray | list[str]) -> str:
    """Return a digest of what is embedded, and of labels and clients."""
    digest = hashlib.sha256()
    for array in (rows, dataset.labels, dataset.client_ids):
        if isinstance(array, list):
            digest.update(json.dumps(array).encode())
        elif array is not None:
            digest.update(f"{array.dtype} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
