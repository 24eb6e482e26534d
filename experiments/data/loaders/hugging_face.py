"""Data sets of the Hugging Face hub: `hf:owner/name`, or `hf:owner/name:subset`.

Q. Lhoest et al., "Datasets: a community library for natural language processing", EMNLP (system demonstrations), 2021.
The first load needs a network; later ones use the local cache. Only data are loaded: no code from the hub is run.

Rows with a column of images are images, of one size, decoded as those of a folder (`images.py`). All other rows are
read like the user's own table (`own_table.py`), with class names as values; the hub marks a hidden label by -1.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from fedscout.engine.errors import DataError
from fedscout.experiments.data.columns import ColumnRoles, check_roles, classes, discrete
from fedscout.experiments.data.dataset import Dataset, DatasetRequest
from fedscout.experiments.data.images import PixelArray, image_dataset, plain_picture
from fedscout.experiments.data.own import reject_table_settings
from fedscout.experiments.data.own_table import dataset_from_own_table, labelled_rows
from fedscout.experiments.data.table_files import plain_table

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

PREFIX = "hf:"
LABEL_NAMES = ("label", "labels", "target", "class", "fine_label")
USUAL_SPLIT = "train"


def is_hugging_face(name: str) -> bool:
    """Return whether `federation.dataset` is an address on the hub."""
    return name.startswith(PREFIX)


def load_hugging_face(request: DatasetRequest) -> Dataset:
    """Load one split, `train` or the one in `federation.split`, such as `test` or `train+test`.

    Raises:
        DataError: If the address is invalid or unreachable, or the columns do not form a data set.
    """
    owner_and_name, _, subset = request.name.removeprefix(PREFIX).partition(":")
    owner, _, name = owner_and_name.partition("/")
    if not owner or not name or "/" in name or owner.startswith("."):
        raise DataError.of("federation.dataset", "be hf:owner/name or hf:owner/name:subset", repr(request.name))
    rows = _fetch(request, owner_and_name, subset or None)
    source = f"Hugging Face hub, https://huggingface.co/datasets/{owner_and_name}"
    return dataset_of_rows(request.name, rows, request, source)


def _fetch(request: DatasetRequest, address: str, subset: str | None) -> datasets.Dataset:
    """Return the rows from the hub or the cache.

    Raises:
        DataError: If they are unavailable.
    """
    import datasets

    split = request.part or USUAL_SPLIT
    key = f"data set {request.name!r}, split {split!r},"
    try:
        with _quiet_hub_client():
            rows = datasets.load_dataset(address, subset, split=split)
    except Exception as error:  # the library passes on errors of its network, its file formats and its own
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        advice = "download it once with a network, or set federation.dataset to your own file"
        hint = advice if isinstance(error, ConnectionError) else None
        problem = f"can't be loaded from the Hugging Face hub or the local cache: {reason}"
        raise DataError.of(key, problem=problem, hint=hint) from None
    if not len(rows):
        raise DataError.of(key, "hold rows, but it has none")
    return rows


@contextmanager
def _quiet_hub_client() -> Iterator[None]:
    """Suppress the hub client's messages for each retry: the final error includes the reason."""
    from huggingface_hub.utils import logging as hub_logging

    verbosity = hub_logging.get_verbosity()
    hub_logging.set_verbosity(logging.ERROR)
    try:
        yield
    finally:
        hub_logging.set_verbosity(verbosity)


def dataset_of_rows(name: str, rows: datasets.Dataset, request: DatasetRequest, source: str) -> Dataset:
    """Return rows of the `datasets` library as a data set.

    Args:
        name: Name of the data set.
        rows: One split.
        request: Roles of the columns; without a label, the only column of classes or of a usual name is it.
        source: Citation.

    Raises:
        DataError: If the columns do not form a data set.
    """
    import datasets

    images = [column for column, kind in rows.features.items() if isinstance(kind, datasets.Image)]
    label = request.label or _usual_label(rows)
    if len(images) != 1 or label is None:
        return dataset_from_own_table(name, _cells(rows, {*request.dropped, *images}), request, label, source)
    reject_table_settings(request)
    roles = ColumnRoles(label, request.client_column, classes=True)
    check_roles(name, rows.data.table, roles)
    cells = _cells(rows.select_columns([column for column in (label, request.client_column) if column]))
    labelled, kept = labelled_rows(name, cells, roles)
    labels, class_names = classes(name, labelled, roles)
    clients = None if roles.client is None else discrete(name, labelled, roles.client)
    pixels = _pixels(name, rows if len(kept) == len(rows) else rows.select(kept), images[0])
    facts = {"num_rows_unlabelled": len(rows) - len(kept)}
    return image_dataset(name, pixels, labels, class_names, label, source, facts, clients)


def _usual_label(rows: datasets.Dataset) -> str | None:
    """Return the only column of classes, or else the first usual name of a label, or None."""
    import datasets

    of_classes = [name for name, kind in rows.features.items() if isinstance(kind, datasets.ClassLabel)]
    named = [name for name in LABEL_NAMES if name in rows.features]
    return next(iter(of_classes if len(of_classes) == 1 else named), None)


def _cells(rows: datasets.Dataset, dropped: Collection[str] = ()) -> pa.Table:
    """Return rows as a table of plain cells, with class names as values.

    Args:
        rows: One split.
        dropped: Columns that may be of any type; they are returned empty.

    Raises:
        DataError: If a column holds other values than plain cells.
    """
    import datasets
    import pyarrow as pa

    table = rows.with_format("arrow")[:]
    for index, name in enumerate(table.column_names):
        kind = rows.features[name]
        if isinstance(kind, datasets.ClassLabel):
            numbers = table[name].to_pylist()
            names = [None if number is None or number < 0 else kind.int2str(number) for number in numbers]
            table = table.set_column(index, name, pa.array(names, pa.string()))
    return plain_table("the Dataset", table, dropped)


def _pixels(name: str, rows: datasets.Dataset, column: str) -> PixelArray:
    """Return images, shape `(num_rows, channels, height, width)`: one channel if all are grey, else three."""
    if rows.data[column].null_count:
        raise DataError.of(f"column {column!r} of data set {name!r}", "hold an image in every row")
    planes = [np.asarray(plain_picture(f"an image of data set {name!r}", image), np.uint8) for image in rows[column]]
    sizes = sorted({plane.shape[:2] for plane in planes})
    if len(sizes) > 1:
        raise DataError.of(f"the images of data set {name!r}", "be of one size", f"{sizes[0]} and {sizes[-1]} pixels")
    if all(plane.ndim == 2 for plane in planes):
        return np.stack(planes)[:, None]
    pixels = np.empty((len(planes), *sizes[0], 3), np.uint8)
    for row, plane in zip(pixels, planes, strict=True):
        row[:] = plane if plane.ndim == 3 else plane[..., None]
    return pixels.transpose(0, 3, 1, 2)
