"""One's own data by path or address: a table, arrays, or pictures in a folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedscout.engine.errors import DataError
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.images.image_folder import load_image_folder
from fedscout.experiments.federations.datasets.loaders.own_arrays import load_arrays
from fedscout.experiments.federations.datasets.loaders.own_place import own_place
from fedscout.experiments.federations.datasets.tables.array_file import LABEL
from fedscout.experiments.federations.datasets.tables.own_table import dataset_from_own_table
from fedscout.experiments.federations.datasets.tables.table_formats import ReadTable, is_array_file, read_table

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
    if isinstance(place, list):
        read, request = _files_of_clients(place, request)
    else:
        read = read_table(place, request)
    name = place.name if isinstance(place, Path) else request.name
    source = str(place) if isinstance(place, Path) and "://" not in request.name else request.name
    dataset = dataset_from_own_table(name, read.rows, request, label, source)
    left = {"num_rows_not_sampled": read.num_left} if read.num_left else {}
    return replace(dataset, facts={**dataset.facts, **left})


def _files_of_clients(paths: list[Path], request: DatasetRequest) -> tuple[ReadTable, DatasetRequest]:
    """Return the rows of all files, and which column names their client: the given one, or one of the files' names.

    Raises:
        DataError: If files of one name, or of different columns, are among them, or there is too much.
    """
    import pyarrow as pa

    names = [path.name.partition(".")[0] for path in paths]
    if len(set(names)) < len(names):
        repeated = next(name for name in names if names.count(name) > 1)
        raise DataError(
            f"the files of {request.name} must have different names, as they name clients, got {repeated!r} twice"
        )
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
                f"the files of {request.name} must not have a column {column!r}, as their names are the clients; "
                "federation.client_column names one of theirs, or what the new one is called"
            )
        tables = [
            table.append_column(column, pa.array([name] * len(table), pa.string()))
            for name, table in zip(names, tables, strict=True)
        ]
    _check_columns(paths, tables)
    whole = pa.concat_tables([table.select(tables[0].column_names) for table in tables], promote_options="permissive")
    return ReadTable(whole), request.model_copy(update={"client_column": column})


def _check_columns(paths: list[Path], tables: list[pa.Table]) -> None:
    for path, table in zip(paths, tables, strict=True):
        if {*table.column_names} != {*tables[0].column_names}:
            differing = sorted({*table.column_names} ^ {*tables[0].column_names})
            raise DataError(f"{path} must have the columns of {paths[0]}, they differ in {', '.join(differing[:5])}")


def _refuse_choices_of_tables(request: DatasetRequest) -> None:
    faults = [
        f"federation.{key} must be left out where federation.dataset is a folder of pictures, got {value!r}"
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
