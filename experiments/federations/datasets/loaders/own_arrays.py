"""Pictures in a file of arrays (`tables/array_file.py`), channels first or last: bytes, or numbers from 0 to 1."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.errors import DataError, Fault
from fedscout.engine.fault_text import listed
from fedscout.experiments.federations.datasets.dataset import Dataset, distinct_texts, usual_facts
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.images.pixels import image_dataset, value_deviation
from fedscout.experiments.federations.datasets.tables.array_file import CLIENT, LABEL, ROWS, read_arrays

CHANNELS = (1, 3)


def load_arrays(path: Path, request: DatasetRequest) -> Dataset | None:
    """Return the data set of a file of pictures; None if its rows are rows of numbers.

    Raises:
        DataError: As `read_array_table`.
    """
    arrays = read_arrays(path, request.limits)
    if arrays[ROWS].ndim == 2:
        return None
    faults = [
        Fault(f"federation.{key} of {path}", f"be {allowed!r} or left out", repr(given))
        for key, given, allowed in (("label", request.label, LABEL), ("client_column", request.client_column, CLIENT))
        if given not in {None, allowed} or (given == CLIENT and CLIENT not in arrays)
    ]
    if faults:
        raise DataError(faults)
    if arrays[LABEL].dtype.kind in "iu":
        numbers, labels = np.unique(arrays[LABEL], return_inverse=True)
        names = numbers.astype(np.str_)
    else:
        names, labels = distinct_texts(arrays[LABEL].astype(np.str_))
    clients = arrays[CLIENT].astype(np.str_) if request.client_column else None
    source, pixels = f"own arrays in {path}", _channels_first(arrays[ROWS])
    if pixels.dtype == np.uint8:
        return image_dataset(path.name, pixels, labels, names.tolist(), LABEL, source, client_ids=clients)
    return _picture_numbers(path, pixels, labels.astype(np.int64), tuple(names.tolist()), source, clients)


def _picture_numbers(path: Path, given: Any, labels: Any, names: tuple[str, ...], source: str, clients: Any) -> Dataset:
    pixels = given.astype(np.float32)
    if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
        raise DataError(Fault(f"the pictures of {path}", "be bytes, or numbers from 0 to 1"))
    if len(names) < 2:
        raise DataError(Fault(f"the labels {LABEL!r} of {path}", "be of at least two classes", listed(names)))
    return Dataset(
        name=path.name,
        features=pixels,
        labels=labels,
        class_names=names,
        feature_names=(),
        source=source,
        feature_unit=value_deviation(pixels) or 1.0,
        client_ids=clients,
        facts=usual_facts(LABEL, pixels, labels),
        kind="image",
    )


def _channels_first(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return pictures as `(num_rows, channels, height, width)`."""
    if rows.ndim == 3:
        return rows[:, None]
    is_last = rows.shape[3] in CHANNELS and rows.shape[1] not in CHANNELS
    return rows.transpose(0, 3, 1, 2) if is_last else rows
