"""One's own data by path or address: a table, arrays, or pictures in a folder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from fedscout.engine.errors import DataError, Fault
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.images.image_folder import load_image_folder
from fedscout.experiments.federations.datasets.loaders.own_arrays import load_arrays
from fedscout.experiments.federations.datasets.loaders.own_place import own_place
from fedscout.experiments.federations.datasets.tables.array_file import LABEL
from fedscout.experiments.federations.datasets.tables.own_table import dataset_from_own_table
from fedscout.experiments.federations.datasets.tables.row_names import rows_of_files
from fedscout.experiments.federations.datasets.tables.table_file import CATEGORY_FIELD
from fedscout.experiments.federations.datasets.tables.table_formats import (
    SUFFIXES,
    ReadTable,
    is_array_file,
    read_table,
)

if TYPE_CHECKING:
    import pyarrow as pa

CLIENT_OF_FILE = "client"


def load_own_data(request: DatasetRequest) -> Dataset:
    """Load what lies at the path or address that the user gave as `federation.dataset`.

    Raises:
        ConfigurationError: If a library or a key for it is missing.
        DataError: If nothing lies there, the format is not read, or the contents are at fault.
    """
    place = own_place(request)
    if isinstance(place, Path) and place.is_dir():
        _refuse_choices_of_tables(request)
        return load_image_folder(request.model_copy(update={"dataset": str(place)}))
    label = request.label
    if isinstance(place, Path) and is_array_file(place):
        if (pictures := load_arrays(place, request)) is not None:
            _refuse_choices_of_tables(request)
            return pictures
        label = label or LABEL
    files: list[tuple[str, int]] = []
    if isinstance(place, list):
        read, request, files = _files_of_clients(place, request)
    else:
        read = read_table(place, request)
    name = place.name if isinstance(place, Path) else request.name
    source = str(place) if isinstance(place, Path) and "://" not in request.name else request.name
    with rows_of_files(files):
        dataset = dataset_from_own_table(name, read.rows, request, label, source)
    left = {"num_rows_not_sampled": read.num_left} if read.num_left else {}
    return replace(dataset, facts={**dataset.facts, **left})


def client_names(paths: Sequence[Path]) -> list[str]:
    """Return the name of each file's client: the file's without its ending, or else the part of the path that differs.

    Args:
        paths: All different.
    """
    stems = [_stem(path.name) for path in paths]
    if len(set(stems)) == len(stems):
        return stems
    places = [(*path.parts[:-1], stem) for path, stem in zip(paths, stems, strict=True)]
    if len(set(places)) < len(places):  # endings differ alone
        places = [path.parts for path in paths]
    start = _num_equal(places)
    end = _num_equal([place[start:][::-1] for place in places])
    return ["/".join(place[start : len(place) - end]) or stem for place, stem in zip(places, stems, strict=True)]


def _num_equal(places: Sequence[tuple[str, ...]]) -> int:
    """Return how many parts of paths are equal from the beginning."""
    return sum(1 for _ in takewhile(lambda parts: len(set(parts)) == 1, zip(*places, strict=False)))


def _stem(name: str) -> str:
    """Return the name of a file without the ending that tells its format."""
    endings = [ending for ending in SUFFIXES if name.lower().endswith(ending)]
    return name[: len(name) - len(max(endings, key=len, default=PurePath(name).suffix))]


def _files_of_clients(
    paths: list[Path], request: DatasetRequest
) -> tuple[ReadTable, DatasetRequest, list[tuple[str, int]]]:
    """Return the rows of all files, and which column names their client: the given one, or one of the files' names.

    The third are the files and how many rows each has.

    Raises:
        DataError: If files of different columns are among them, or there is too much.
    """
    import pyarrow as pa

    names = client_names(paths)
    limits = request.limits
    tables: list[pa.Table] = []
    for path in paths:
        rows = read_table(path, request.model_copy(update={"max_rows": None})).rows
        limits.check_rows(request.name, sum(map(len, tables)) + len(rows))
        limits.check_bytes(request.name, sum(table.nbytes for table in tables) + rows.nbytes)
        tables.append(rows)
    column = request.client_column
    if column is None or column not in tables[0].column_names:
        column = column or CLIENT_OF_FILE
        if any(column in table.column_names for table in tables):
            raise DataError(
                Fault(
                    f"the files of {request.name}",
                    f"not have a column {column!r}, as their names are the clients",
                    hint="federation.client_column names one of theirs, or what the new one is called",
                )
            )
        tables = [
            table.append_column(column, pa.array([name] * len(table), pa.string()))
            for name, table in zip(names, tables, strict=True)
        ]
    _check_columns(paths, tables)
    files = [(str(path), len(table)) for path, table in zip(paths, tables, strict=True)]
    return ReadTable(_joined(tables)), request.model_copy(update={"client_column": column}), files


def _joined(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables below each other; a column of types that have none in common becomes text, as in a CSV file."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns: list[pa.ChunkedArray] = []
    fields: list[pa.Field] = []
    for name in tables[0].column_names:
        parts = [table[name] for table in tables]
        kind = next((part.type for part in parts if part.null_count < len(part)), parts[0].type)
        parts = [
            part if part.null_count < len(part) else pa.chunked_array([pa.nulls(len(part), kind)]) for part in parts
        ]
        try:
            joined = pa.concat_tables([pa.table({name: part}) for part in parts], promote_options="permissive")
        except pa.ArrowException:
            joined = pa.concat_tables([pa.table({name: pc.cast(part, pa.string())}) for part in parts])
        columns.append(joined[name])
        is_category = any(table.schema.field(name).metadata for table in tables)
        fields.append(pa.field(name, joined[name].type, metadata=CATEGORY_FIELD if is_category else None))
    return pa.table(columns, schema=pa.schema(fields))


def _check_columns(paths: list[Path], tables: list[pa.Table]) -> None:
    for path, table in zip(paths, tables, strict=True):
        if {*table.column_names} != {*tables[0].column_names}:
            differing = sorted({*table.column_names} ^ {*tables[0].column_names})
            raise DataError(Fault(path, f"have the columns of {paths[0]}, they differ in {', '.join(differing[:5])}"))


def _refuse_choices_of_tables(request: DatasetRequest) -> None:
    faults = [
        Fault(f"federation.{key}", "be left out where federation.dataset is a folder of pictures", repr(value))
        for key, value in (
            ("text_column", request.text_column),
            ("drop_columns", request.drop_columns),
            ("columns", dict(request.columns)),
            ("missing_values", list(request.missing_values)),
            ("query", request.query),
            ("group_column", request.group_column),
            ("task", request.task),
        )
        if value
    ]
    if faults:
        raise DataError(faults)
