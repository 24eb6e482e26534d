"""Loading of the user's own data, by path or address, or of the Hugging Face hub: a table, arrays, or images.

The data may be a path relative to the working directory or the data folder, several files with one client each, or the
address of a file or database. Files on the web or in an object store are downloaded through fsspec
(https://filesystem-spec.readthedocs.io) once per process, up to `federation.max_file_bytes` bytes, and deleted when it
ends.

Images in array files (`table_formats.py`) have their channels first or last, and are bytes or numbers from 0 to 1.

The hub: `hf:owner/name`, or `hf:owner/name:subset` (Q. Lhoest et al., "Datasets: a community library for natural
language processing", EMNLP (system demonstrations), 2021). The first load needs a network; later ones use the local
cache. Only data are loaded: no code from the hub is run. Rows with a column of images are images, of one size, decoded
as those of a folder (`images.py`). All other rows are read like the user's own table, with class names as values; the
hub marks a hidden label by -1.

A table: the kinds of columns are inferred (`own_columns.py`). With `federation.text_column`, or if the only usable
column besides dates is a text, a row is the text alone, as numbered words; other columns are ignored.

Rows without a label, a client or a group cannot be used for training; they are dropped, with a warning.
"""

from __future__ import annotations

import logging
import os
import re
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from glob import glob
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import unquote, urlsplit

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from fedscout.engine.errors import ConfigurationError, DataError, Fault, UserError, first_line
from fedscout.engine.text import did_you_mean, listed
from fedscout.experiments.data.columns import ColumnRoles, hold_quantities, with_missing
from fedscout.experiments.data.dataset import (
    FOLDER_VARIABLE,
    HUB,
    START_VARIABLE,
    Dataset,
    DatasetRequest,
    PixelArray,
    ReadLimits,
    column_key,
    distinct_texts,
    names_files_of_clients,
)
from fedscout.experiments.data.images import image_dataset, load_image_folder, plain_picture, stacked
from fedscout.experiments.data.own_columns import ColumnUse, all_uses, as_text_or_identifier, own_columns, suspected
from fedscout.experiments.data.table_files import concatenated, plain_table
from fedscout.experiments.data.table_formats import CLIENT, LABEL, ROWS, is_array_file, read_arrays, read_table, stem
from fedscout.experiments.data.tables import dataset_of_columns, merged_statistics, predicted_of, unusable_columns
from fedscout.experiments.data.texts import text_dataset, text_rows

if TYPE_CHECKING:
    import datasets


NUM_ROWS_EXAMINED = 10_000
MOST_SHOWN = 5


def _with_task(request: DatasetRequest, table: pa.Table, label: str) -> DatasetRequest:
    """Return the request, with regression as its task if none is set and the label is a quantity.

    It is if all filled cells among the first `NUM_ROWS_EXAMINED` rows are numbers, with more than twenty distinct
    values (or more than half, in a small table), some of which are fractions. Whole numbers are a quantity if the table
    has no more rows and they have too many distinct values to be classes (`are_quantities`).
    """
    if request.task is not None or request.text_column is not None or label not in table.column_names:
        return request
    cells = with_missing(table.slice(0, NUM_ROWS_EXAMINED).select([label]), request.missing_values)[label]
    if not hold_quantities(cells, len(table) < NUM_ROWS_EXAMINED):
        return request
    return request.model_copy(update={"task": "regression"})


def dataset_from_own_table(
    name: str, table: pa.Table, request: DatasetRequest, label: str | None, source: str
) -> Dataset:
    """Return a table with unknown column kinds as a data set, whose task is found if none is set.

    Args:
        name: Name of the data set.
        table: Plain cells (`table_files.py`), one row per sample.
        request: User settings.
        label: Column to predict.
        source: Source of the table.

    Raises:
        DataError: Lists faults of the table, or settings that do not apply to it.
    """
    if label is None:
        raise DataError.of(
            "federation.label",
            f"name the column of data set {name!r} to predict",
            "nothing",
            f"its columns are: {listed(table.column_names)}",
        )
    request = _with_task(request, table, label)
    roles = ColumnRoles(
        label,
        request.client_column,
        dropped=request.drop_columns,
        group=request.group_column,
        quantity=request.predicts_quantity,
        classes=request.task == "classification",
    )
    roles.check(name, table, request.text_column, request.columns)
    table = with_missing(table, request.missing_values, {request.client_column, request.group_column})
    rows, _ = roles.labelled_rows(name, table)
    dataset = (_mixed if request.text_column is None else _texts)(name, rows, request, roles, source)
    return replace(dataset, facts={**dataset.facts, "num_rows_unlabelled": len(table) - len(rows)})


def _mixed(name: str, table: pa.Table, request: DatasetRequest, roles: ColumnRoles, source: str) -> Dataset:
    """Read numbers, categories and dates; if there are only dates and a text, read the text."""
    predicted = predicted_of(name, table, roles)
    client_ids = roles.clients(name, table)
    clients = None if client_ids is None else distinct_texts(client_ids)[1]
    uses = own_columns(name, table, roles.features(name, table), roles, request, clients)
    columns = [column for use in uses for column in use.columns]
    if columns:
        statistics = merged_statistics(name, columns, client_ids, request.min_release)
        unusable = unusable_columns(name, columns, statistics, request.min_release)
        uses = [*_without_unusable(uses, unusable, request)]
        columns = [column for use in uses for column in use.columns]
    uses = suspected(uses, predicted)
    text = next((use.name for use in uses if use.kind == "text"), None)
    used = [use for use in uses if use.columns]
    are_found_dates = all(use.kind == "date" and use.name not in request.columns for use in used)
    if text is not None and not roles.quantity and are_found_dates:  # a text is preferred to dates nobody asked for
        return _texts(name, table, request.model_copy(update={"text_column": text}), roles, source, uses)
    if not columns:
        _refuse_table(name, all_uses(table, roles, uses, predicted.class_names))
    unused = [use.name for use in uses if not use.columns]
    facts = {"columns_left_out": (*roles.dropped, *unused)}
    dataset = dataset_of_columns(name, table, roles, columns, predicted, client_ids, statistics, source, facts)
    features = dataset.facts["features_of_columns"]
    uses = [replace(use, num_features=sum(features[column.name] for column in use.columns)) for use in uses]
    readings = {column: reading for use in uses for column, reading in use.readings.items()}
    documents = tuple(use.document() for use in all_uses(table, roles, uses, predicted.class_names))
    encoding = {**(dataset.encoding or {}), **({"agreed": readings} if readings else {})}
    return replace(dataset, encoding=encoding, facts={**dataset.facts, "columns": documents})


def _refuse_table(name: str, uses: Sequence[ColumnUse]) -> NoReturn:
    """Reject a table without a usable feature column.

    Raises:
        DataError: Lists how the first columns are used.
    """
    unused = [use for use in uses if use.kind not in {"label", "client", "group"}][:MOST_SHOWN]
    reasons = [f"{use.name[:60]!r} is {use.became}" + (f" ({use.key[:100]})" if use.key else "") for use in unused]
    raise DataError.of(
        f"data set {name!r}",
        "have a feature column in addition to the label",
        f"none that can be used: {'; '.join(reasons)}" if unused else "none",
    )


def _without_unusable(
    uses: list[ColumnUse], unusable: Mapping[str, tuple[str, str, Fault]], request: DatasetRequest
) -> Iterator[ColumnUse]:
    """Leave out columns with too little information from clients; those whose kind the user sets are rejected.

    Raises:
        DataError: Lists all rejected columns.
    """
    if refused := [fault for column, (_, _, fault) in unusable.items() if column in request.columns]:
        raise DataError(refused)
    for use in uses:
        named = [column.name for column in use.columns if column.name in unusable]
        kind, reason, _ = unusable[named[0]] if named else ("", "", None)
        if kind == "identifier":
            yield as_text_or_identifier(use)
        else:
            yield use.left_out(kind, reason, "federation.min_release") if named else use


def _texts(
    name: str, table: pa.Table, request: DatasetRequest, roles: ColumnRoles, source: str, uses: Sequence[ColumnUse] = ()
) -> Dataset:
    """Read one column as texts; all columns except label, client and group are ignored."""
    if request.predicts_quantity:
        raise DataError.of(
            "federation.task", "be classification or left out where federation.text_column is given", "regression"
        )
    column = str(request.text_column)
    labels, class_names = roles.labels(name, table)
    rows = text_rows(("" if cell is None else str(cell) for cell in table[column].to_pylist()), request)
    if rows.facts["num_texts_without_words"] == len(labels):
        raise DataError.of(f"column {column!r} of data set {name!r}", "hold texts, but no cell contains a word")
    unused = [name for name in table.column_names if name not in {column, roles.label, roles.client, roles.group}]
    use_by_column = {name: ColumnUse(name, "", "not examined") for name in unused} | {use.name: use for use in uses}
    for use in uses:
        if use.kind == "date":
            use_by_column[use.name] = use.left_out(
                "date", f"{column} is the only feature", column_key(use.name, "date")
            )
    use_by_column[column] = ColumnUse(column, "text", "the only feature of a row", "federation.text_column")
    documents = tuple(use.document() for use in all_uses(table, roles, [*use_by_column.values()]))
    dataset = text_dataset(
        name,
        rows,
        labels,
        class_names,
        roles.label,
        source,
        client_ids=roles.clients(name, table),
        facts={"text_column": column, "columns_left_out": tuple(unused), "columns": documents},
    )
    encoding = {"text": column, "words": rows.words, "length": rows.features.shape[1]} if rows.words else None
    return replace(dataset, groups=roles.groups(name, table), encoding=encoding)


CHANNELS = (1, 3)


def load_arrays(path: Path, request: DatasetRequest) -> Dataset | None:
    """Return the data set of an array file of images; None if its rows are numbers.

    Raises:
        DataError: As `read_array_table`.
    """
    arrays = read_arrays(path, request.limits)
    if arrays[ROWS].ndim == 2:
        return None
    faults = [
        Fault(f"federation.{key} of {path}", f"be {allowed!r} or left out", repr(value))
        for key, value, allowed in (("label", request.label, LABEL), ("client_column", request.client_column, CLIENT))
        if value not in {None, allowed} or (value == CLIENT and CLIENT not in arrays)
    ]
    if faults:
        raise DataError(faults)
    if arrays[LABEL].dtype.kind in "iu":
        numbers, labels = np.unique(arrays[LABEL], return_inverse=True)
        names = numbers.astype(np.str_)
    else:
        names, labels = distinct_texts(arrays[LABEL].astype(np.str_))
    pixels = _channels_first(arrays[ROWS])
    if pixels.dtype != np.uint8:
        pixels = pixels.astype(np.float32)
        if not (np.isfinite(pixels).all() and pixels.min() >= 0 and pixels.max() <= 1):
            raise DataError.of(f"the pictures of {path}", "be bytes, or numbers from 0 to 1")
    clients = arrays[CLIENT].astype(np.str_) if request.client_column else None
    source = f"own arrays in {path}"
    return image_dataset(path.name, pixels, labels, names.tolist(), LABEL, source, client_ids=clients)


def _channels_first(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return images as `(num_rows, channels, height, width)`."""
    if rows.ndim == 3:
        return rows[:, None]
    is_last = rows.shape[3] in CHANNELS and rows.shape[1] not in CHANNELS
    return rows.transpose(0, 3, 1, 2) if is_last else rows


ADDRESS = re.compile(r"[a-z][a-z0-9+]*://")
STORES = ("http", "https", "s3", "gs", "gcs", "az", "abfs")
"""Schemes of addresses of files, which fsspec fetches; others are those of databases."""

FILES_OF_DATABASES = ("sqlite:///", "duckdb:///")
BLOCK_BYTES = 2**20


def own_place(request: DatasetRequest) -> Path | str | list[Path]:
    """Return the location of the user's data: a file or folder, the files of clients, or a database address.

    Args:
        request: `name` is the path or address. A relative path starts at the working directory; a process started
            elsewhere on behalf of a command finds the command's in the environment variable `FEDSCOUT_START`. If a
            relative path does not exist there, it is resolved against the data folder.

    Raises:
        ConfigurationError: If a package for an address is missing.
        DataError: If nothing exists there, or it can't be fetched.
    """
    name = request.dataset
    for start in FILES_OF_DATABASES:
        name = name.removeprefix(start)
    if ADDRESS.match(name):
        return _fetched(name, request.limits) if name.partition(":")[0] in STORES else name
    path, folder = Path(name).expanduser(), request.folder or os.environ.get(FOLDER_VARIABLE)
    are_files_of_clients = names_files_of_clients(request.dataset)
    candidates = [Path(os.environ.get(START_VARIABLE, "")) / path]
    if folder and not path.is_absolute():
        candidates.append(Path(folder).expanduser() / path)
    for candidate in candidates:
        with suppress(OSError):  # a name that no file system takes
            if not are_files_of_clients and candidate.exists():
                return candidate
            if are_files_of_clients and (paths := [path for path in map(Path, glob(str(candidate))) if path.is_file()]):
                return sorted(paths)
    must = "be the name of a data set, or the path of an existing file or folder"
    raise DataError.of(
        "federation.dataset",
        "match one file per client" if are_files_of_clients else must,
        repr(name),
        f"looked for {' and '.join(map(str, candidates))}{_suggestion(candidates[0])}",
    )


def _suggestion(place: Path) -> str:
    """Return a suggestion of a similarly named file, to end a sentence; empty if there is none."""
    with suppress(OSError):
        return did_you_mean(place.name, os.listdir(place.parent))
    return ""


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Return the folder of downloads, which is deleted when the process ends."""
    return tempfile.TemporaryDirectory(prefix="fedscout-")


@cache
def _fetched(address: str, limits: ReadLimits) -> Path:
    import fsspec

    try:
        parts = urlsplit(address)
        if parts.password is not None:
            given = f"one for {parts.scheme}://{parts.hostname}"
            raise ConfigurationError.of("federation.dataset", "hold no password, as it is logged", given)
        place = Path(tempfile.mkdtemp(dir=_folder().name)) / (PurePosixPath(unquote(parts.path)).name or "table")
        with fsspec.open(address, "rb") as source, place.open("wb") as target:
            num_bytes = 0
            while block := source.read(BLOCK_BYTES):
                num_bytes += len(block)
                limits.check_bytes(address, num_bytes)
                target.write(block)
    except (UserError, MemoryError):
        raise
    except ImportError as error:
        problem = f"needs a package that is not installed: {first_line(error)}"
        raise ConfigurationError.of(address, problem=problem) from None
    except Exception as error:  # what the clients of stores raise has no class in common
        raise DataError.of(address, problem=f"can't be read: {first_line(error)}") from None
    return place


CLIENT_OF_FILE = "client"


def load_own_data(request: DatasetRequest) -> Dataset:
    """Load the data at the path or address in `federation.dataset`.

    Raises:
        ConfigurationError: If a required library or key is missing.
        DataError: If nothing exists there, the format is unsupported, or the contents are invalid.
    """
    place = own_place(request)
    if isinstance(place, Path) and place.is_dir():
        reject_table_settings(request)
        return load_image_folder(request.model_copy(update={"dataset": str(place)}))
    label = request.label
    if isinstance(place, Path) and is_array_file(place):
        if (pictures := load_arrays(place, request)) is not None:
            reject_table_settings(request)
            return pictures
        label = label or LABEL
    if isinstance(place, list):
        rows, request = _files_of_clients(place, request)
    else:
        rows = read_table(place, request)
    name = place.name if isinstance(place, Path) else request.dataset
    source = str(place) if isinstance(place, Path) and "://" not in request.dataset else request.dataset
    return dataset_from_own_table(name, rows, request, label, source)


def client_names(paths: Sequence[Path]) -> list[str]:
    """Return the client name of each file: its name without suffix, or else the part of the path that differs.

    Args:
        paths: Distinct paths.
    """
    stems = [stem(path.name) for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    start = os.path.commonpath(paths)
    places = [Path(os.path.relpath(path, start)) for path in paths]
    same_stem = len(set(stems)) == 1
    names = [place.parent if same_stem else place.with_name(stem) for place, stem in zip(places, stems, strict=True)]
    return [str(name) for name in (names if len(set(names)) == len(names) else places)]


def _files_of_clients(paths: list[Path], request: DatasetRequest) -> tuple[pa.Table, DatasetRequest]:
    """Return the rows of all files, and the request with their client column.

    The client column is the requested one, or a new one with the names of the files.

    Raises:
        DataError: If the files have different columns, or are too large.
    """
    names = client_names(paths)
    limits = request.limits
    tables: list[pa.Table] = []
    for path in paths:
        rows = read_table(path, request)
        differing = {*rows.column_names} ^ {*(tables[0] if tables else rows).column_names}
        if differing:
            must = f"have the columns of {paths[0]}, but they differ in {', '.join(sorted(differing)[:5])}"
            raise DataError.of(path, must)
        limits.check_rows(request.dataset, sum(map(len, tables)) + len(rows))
        limits.check_bytes(request.dataset, sum(table.nbytes for table in tables) + rows.nbytes)
        tables.append(rows)
    column = request.client_column
    if column is None or column not in tables[0].column_names:
        column = column or CLIENT_OF_FILE
        if any(column in table.column_names for table in tables):
            raise DataError.of(
                f"the files of {request.dataset}",
                f"not have a column {column!r}, as the file names are the clients",
                hint="federation.client_column names one of their columns, or the new column",
            )
        tables = [
            table.append_column(column, pa.array([name] * len(table), pa.string()))
            for name, table in zip(names, tables, strict=True)
        ]
    return concatenated(tables), request.model_copy(update={"client_column": column})


def reject_table_settings(request: DatasetRequest) -> None:
    """Check that no setting of tables is given where rows are images.

    Raises:
        DataError: Lists each of these keys.
    """
    keys = ("text_column", "drop_columns", "columns", "missing_values", "query", "group_column", "task")
    must = "be left out where federation.dataset holds pictures"
    faults = [Fault(f"federation.{key}", must, repr(value)) for key in keys if (value := getattr(request, key))]
    if faults:
        raise DataError(faults)


LABEL_NAMES = ("label", "labels", "target", "class", "fine_label")
USUAL_SPLIT = "train"


def load_hugging_face(request: DatasetRequest) -> Dataset:
    """Load one split, `train` or the one in `federation.split`, such as `test` or `train+test`.

    Raises:
        DataError: If the address is invalid or unreachable, or the columns do not form a data set.
    """
    owner_and_name, _, subset = request.dataset.removeprefix(HUB).partition(":")
    owner, _, name = owner_and_name.partition("/")
    if not owner or not name or "/" in name or owner.startswith("."):
        raise DataError.of("federation.dataset", "be hf:owner/name or hf:owner/name:subset", repr(request.dataset))
    rows = _fetch(request, owner_and_name, subset or None)
    source = f"Hugging Face hub, https://huggingface.co/datasets/{owner_and_name}"
    return dataset_of_rows(request.dataset, rows, request, source)


def _fetch(request: DatasetRequest, address: str, subset: str | None) -> datasets.Dataset:
    """Return the rows from the hub or the cache.

    Raises:
        DataError: If they are unavailable.
    """
    import datasets

    split = request.part or USUAL_SPLIT
    key = f"data set {request.dataset!r}, split {split!r},"
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
    roles.check(name, rows.data.table)
    cells = _cells(rows.select_columns([column for column in (label, request.client_column) if column]))
    labelled, kept = roles.labelled_rows(name, cells)
    labels, class_names = roles.labels(name, labelled)
    clients = roles.clients(name, labelled)
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
    return stacked(planes)
