"""Data sets of the Hugging Face hub: `hf:owner/name`, or `hf:owner/name:subset`.

Q. Lhoest et al., "Datasets: a community library for natural language processing", EMNLP (system demonstrations), 2021.
The first load needs a network; later ones use the local cache. Only data are loaded: no code from the hub is run.

The columns determine the type of a row, in this order: a column of images; `federation.text_column` or the only column
of texts that hardly repeat; if there are categories, a table as in a file; all numeric columns. Images must be of one
size, and are decoded as those of a folder (`images.py`). Texts become word numbers (`texts.py`), numbers are
standardised.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.data.columns import ColumnRoles, in_order, row_name, rows_from
from fedscout.experiments.data.dataset import Dataset, DatasetRequest, TextArray, present_classes
from fedscout.experiments.data.images import PixelArray, image_dataset, plain_picture
from fedscout.experiments.data.own_table import dataset_from_own_table, labelled_rows
from fedscout.experiments.data.table_files import TableRows, plain_cells, plain_table
from fedscout.experiments.data.tables import MOST_ROWS_EACH, dataset_from_table
from fedscout.experiments.data.texts import text_dataset, text_rows

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa

PREFIX = "hf:"
LABEL_NAMES = ("label", "labels", "target", "class", "fine_label")
USUAL_SPLIT = "train"


@dataclass(frozen=True)
class Roles:
    """Roles of the columns.

    Attributes:
        label: Column to predict.
        client: Column of natural clients, or None.
        images: Column of images, or None.
        texts: Column of texts, or None.
        numbers: Numeric columns, if there are neither images nor texts.
        has_categories: Whether there are also categorical columns.
    """

    label: str
    client: str | None
    images: str | None = None
    texts: str | None = None
    numbers: tuple[str, ...] = ()
    has_categories: bool = False


def is_hugging_face(name: str) -> bool:
    """Return whether `federation.dataset` is an address on the hub."""
    return name.startswith(PREFIX)


def load_hugging_face(request: DatasetRequest) -> Dataset:
    """Load one split, `train` or the one in `federation.split`, such as `test` or `train+test`.

    Raises:
        DataError: If the address is invalid or unreachable, or the columns do not form a data set.
    """
    source = f"Hugging Face hub, https://huggingface.co/datasets/{_address(request)[0]}"
    return dataset_of_rows(_fetch(request), request, source)


def dataset_of_rows(rows: datasets.Dataset, request: DatasetRequest, source: str) -> Dataset:
    """Return rows of the `datasets` library as a data set.

    Args:
        rows: One split.
        request: Roles of the columns.
        source: Citation.

    Raises:
        DataError: If the columns do not form a data set.
    """
    roles = _roles(request, rows)
    labelled = _labelled(request, rows, roles) if request.unlabelled_rows == "drop" else TableRows(rows.data.table)
    if labelled.kept is not None:
        rows = rows.select(labelled.kept)
    with rows_from(kept=labelled.kept):
        dataset = _dataset(rows, request, roles, source)
    return replace(dataset, facts={**dataset.facts, **labelled.facts})


def _labelled(request: DatasetRequest, rows: datasets.Dataset, roles: Roles) -> TableRows:
    """Return the rows with a label and a client; the hub marks a hidden label by -1."""
    import datasets
    import pyarrow as pa

    cells = {}
    for column in filter(None, (roles.label, roles.client)):
        is_class = isinstance(rows.features[column], datasets.ClassLabel)
        texts = [
            None if value is None or (is_class and value < 0) else f"class {value}" if is_class else str(value)
            for value in rows[column]
        ]
        cells[column] = plain_cells(pa.chunked_array([pa.array(texts, pa.string())]))
    return labelled_rows(request.name, pa.table(cells), ColumnRoles(roles.label, roles.client))


def _dataset(rows: datasets.Dataset, request: DatasetRequest, roles: Roles, source: str) -> Dataset:
    """Return rows with known column roles as a data set."""
    labels, class_names = _labels(request, rows, roles.label)
    clients = None if roles.client is None else _names(request, rows, roles.client)
    if roles.images is not None:
        pixels = _pixels(request, rows, roles.images)
        return image_dataset(request.name, pixels, labels, class_names, roles.label, source, client_ids=clients)
    if roles.texts is None and roles.has_categories:
        cells = cells_of_rows(rows, request.drop_columns)
        return dataset_from_own_table(request.name, cells, request, roles.label, source)
    if roles.texts is None:
        return _table(request, rows, roles, source)
    texts = text_rows(_texts(request, rows, roles.texts), request)
    return text_dataset(request.name, texts, labels, class_names, roles.label, source, clients)


def _address(request: DatasetRequest) -> tuple[str, str | None]:
    owner_and_name, _, subset = request.name.removeprefix(PREFIX).partition(":")
    owner, _, name = owner_and_name.partition("/")
    if not owner or not name or "/" in name or owner.startswith("."):
        raise DataError.of("federation.dataset", "be hf:owner/name or hf:owner/name:subset", repr(request.name))
    return owner_and_name, subset or None


def _fetch(request: DatasetRequest) -> datasets.Dataset:
    """Return the rows from the hub or the cache.

    Raises:
        DataError: If they are unavailable.
    """
    import datasets

    address, subset = _address(request)
    split = request.part or USUAL_SPLIT
    try:
        with _quiet_hub_client():
            rows = datasets.load_dataset(address, subset, split=split)
    except Exception as error:  # the library passes on errors of its network, its file formats and its own
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        advice = (
            "; there is neither a network nor a copy in the local cache: download it once with a network, or set "
            "federation.dataset to your own file"
            if isinstance(error, ConnectionError)
            else ""
        )
        raise DataError.of(
            f"data set {request.name!r}, split {split!r},",
            problem=f"can't be loaded from the Hugging Face hub: {reason}{advice}",
        ) from None
    if not len(rows):
        raise DataError.of(f"data set {request.name!r}, split {split!r},", "hold rows, but it has none")
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


def _roles(request: DatasetRequest, rows: datasets.Dataset) -> Roles:
    import datasets

    columns = rows.features
    available = ", ".join(columns)
    column_by_key = {
        "federation.label": request.label,
        "federation.client_column": request.client_column,
        "federation.text_column": request.text_column,
    }
    faults = [
        Fault(key, f"name a column of data set {request.name!r}", repr(column), f"its columns are: {available}")
        for key, column in column_by_key.items()
        if column is not None and column not in columns
    ]
    configured = [column for column in column_by_key.values() if column is not None]
    if len(set(configured)) < len(configured):
        faults.append(Fault(", ".join(column_by_key), "name different columns", ", ".join(configured)))
    if faults:
        raise DataError(faults)
    label = request.label or _usual_label(request, columns)
    others = {name: kind for name, kind in columns.items() if name not in {label, request.client_column}}
    images = [name for name, kind in others.items() if isinstance(kind, datasets.Image)]
    words = [name for name, kind in others.items() if _is_value(kind, "string")]
    texts = [name for name in words if MOST_ROWS_EACH * len(set(rows[name])) > len(rows)]
    if request.text_column is not None:
        return Roles(label, request.client_column, texts=request.text_column)
    if len(images) == 1:
        return Roles(label, request.client_column, images=images[0])
    if len(texts) == 1:
        return Roles(label, request.client_column, texts=texts[0])
    numbers = tuple(name for name, kind in others.items() if _is_value(kind, "int", "uint", "float", "bool"))
    has_categories = len(words) > len(texts)
    if images or not (numbers or has_categories):
        raise DataError.of(
            f"data set {request.name!r}",
            "have one column of images, one of texts (federation.text_column names it), or "
            f"columns of numbers in addition to the label {label!r}",
            hint=f"its columns are: {available}",
        )
    return Roles(label, request.client_column, numbers=numbers, has_categories=has_categories)


def _usual_label(request: DatasetRequest, columns: Any) -> str:
    import datasets

    classes = [name for name, kind in columns.items() if isinstance(kind, datasets.ClassLabel)]
    named = [name for name in LABEL_NAMES if name in columns]
    candidates = classes if len(classes) == 1 else named
    if not candidates:
        raise DataError.of(
            "federation.label",
            f"name the column to predict of data set {request.name!r}",
            "nothing",
            f"its columns are: {', '.join(columns)}",
        )
    return candidates[0]


def _is_value(kind: Any, *starts: str) -> bool:
    import datasets

    return isinstance(kind, datasets.Value) and kind.dtype.removeprefix("large_").startswith(starts)


def _labels(request: DatasetRequest, rows: datasets.Dataset, column: str) -> tuple[IntArray, tuple[str, ...]]:
    import datasets

    kind = rows.features[column]
    if isinstance(kind, datasets.ClassLabel):
        numbers = np.array([-1 if value is None else value for value in rows[column]], np.int64)
        unlabelled_rows = np.flatnonzero(numbers < 0)  # the hub's mark of rows whose label is kept secret
        if len(unlabelled_rows):
            raise DataError.of(
                f"column {column!r} of data set {request.name!r}",
                "name a class in every row",
                f"none in {row_name(unlabelled_rows[0])}",
            )
        return present_classes(request.name, numbers, kind.names)
    text = _names(request, rows, column)
    names = in_order(set(text.tolist()))
    if len(names) < 2 or len(names) > len(text) // 2:
        raise DataError.of(
            f"column {column!r} of data set {request.name!r}",
            f"hold at least two classes and at most half as many as there are rows ({len(text)})",
            len(names),
        )
    index = {name: number for number, name in enumerate(names)}
    return np.array([index[name] for name in text.tolist()], np.int64), tuple(names)


def _names(request: DatasetRequest, rows: datasets.Dataset, column: str) -> TextArray:
    import datasets

    kind = rows.features[column]
    if not _is_value(kind, "string", "int", "uint", "bool") and not isinstance(kind, datasets.ClassLabel):
        raise DataError.of(f"column {column!r} of data set {request.name!r}", "hold names or whole numbers", kind)
    values = rows[column]
    for number, value in enumerate(values):
        if value is None or value == "":
            raise DataError.of(
                f"column {column!r} of data set {request.name!r}",
                "name a class or client in every row",
                f"nothing in {row_name(number)}",
            )
    return np.array([str(value) for value in values])


def _pixels(request: DatasetRequest, rows: datasets.Dataset, column: str) -> PixelArray:
    """Return images, shape `(num_rows, channels, height, width)`: one channel if all are grey, else three."""
    planes: list[PixelArray] = []
    for number, image in enumerate(rows[column]):
        source = f"the image in {row_name(number)} of data set {request.name!r}"
        if image is None:
            raise DataError.of(source, "not be missing")
        plane = np.asarray(plain_picture(source, image), np.uint8)
        if planes and plane.shape[:2] != planes[0].shape[:2]:
            (height, width), (first_height, first_width) = plane.shape[:2], planes[0].shape[:2]
            raise DataError.of(
                f"the images of data set {request.name!r}",
                "be of one size",
                f"{width} × {height} in {row_name(number)} and {first_width} × {first_height} in {row_name(0)}",
            )
        planes.append(plane)
    if all(plane.ndim == 2 for plane in planes):
        return np.stack(planes)[:, None]
    pixels = np.empty((len(planes), *planes[0].shape[:2], 3), np.uint8)
    for row, plane in zip(pixels, planes, strict=True):
        row[:] = plane if plane.ndim == 3 else plane[..., None]
    return pixels.transpose(0, 3, 1, 2)


def _texts(request: DatasetRequest, rows: datasets.Dataset, column: str) -> list[str]:
    values = rows[column]
    for number, value in enumerate(values):
        if not isinstance(value, str):
            raise DataError.of(
                f"column {column!r} of data set {request.name!r}",
                "hold a text in every row",
                f"{('nothing' if value is None else repr(value)[:50])} in {row_name(number)}",
            )
    return list(values)


def has_pictures(rows: datasets.Dataset) -> bool:
    """Return whether a column holds images."""
    import datasets

    return any(isinstance(kind, datasets.Image) for kind in rows.features.values())


def cells_of_rows(rows: datasets.Dataset, dropped: Collection[str]) -> pa.Table:
    """Return rows without images as a table, with class names as values.

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


def _table(request: DatasetRequest, rows: datasets.Dataset, roles: Roles, source: str) -> Dataset:
    import pyarrow as pa

    names = [*roles.numbers, roles.label, *([roles.client] if roles.client else [])]
    cells = rows.select_columns(names).with_format("arrow")[:]
    table = pa.table({name: plain_cells(cells[name]) for name in names})
    return dataset_from_table(request.name, table, ColumnRoles(roles.label, roles.client), source=source, facts={})
