"""One's own data by path: a table in a file, or pictures in a folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fedscout.engine.errors import DataError
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.images.image_folder import load_image_folder
from fedscout.experiments.federations.datasets.publication import FOLDER_VARIABLE, START_VARIABLE
from fedscout.experiments.federations.datasets.tables.own_table import dataset_from_own_table
from fedscout.experiments.federations.datasets.tables.table_file import read_csv, read_parquet

if TYPE_CHECKING:
    import pyarrow as pa

PARQUET_SUFFIXES = (".parquet", ".pq")
TEXT_SUFFIXES = tuple(kind + packing for kind in (".csv", ".tsv", ".txt") for packing in ("", ".gz", ".zip"))
UNSAFE_SUFFIXES = (".pkl", ".pickle", ".p", ".joblib", ".npy", ".npz", ".pt", ".pth", ".h5", ".hdf5", ".mat", ".rds")


def load_own_data(request: DatasetRequest) -> Dataset:
    """Load what lies at the path that the user gave as `federation.dataset`.

    Args:
        request: `name` is the path. A relative one starts at the working directory; a process that was started
            elsewhere on behalf of a command finds that command's in the environment variable `FEDSCOUT_START`. A
            relative path that leads nowhere from there is looked for in the data folder.

    Raises:
        DataError: If nothing lies there, the format is not read, or the contents are at fault.
    """
    path = _existing(request)
    if path.is_dir():
        _refuse_choices_of_tables(request)
        return load_image_folder(request.model_copy(update={"dataset": str(path)}))
    rows = read_table(path, request)
    return dataset_from_own_table(path.name, rows, request, request.label, source=str(path))


def _existing(request: DatasetRequest) -> Path:
    given = Path(request.name).expanduser()
    start = os.environ.get(START_VARIABLE, "")
    folder = request.folder or os.environ.get(FOLDER_VARIABLE)
    places = [Path(start) / given]
    if folder and not given.is_absolute():
        places.append(Path(folder).expanduser() / given)
    for place in places:
        with suppress(OSError):  # a name that no file system takes
            if place.exists():
                return place
    raise DataError(
        f"federation.dataset must be the name of a data set, or the path of an existing file or folder, "
        f"got {request.name!r}; looked for {' and '.join(map(str, places))}"
    )


def _refuse_choices_of_tables(request: DatasetRequest) -> None:
    faults = [
        f"federation.{key} must be left out where federation.dataset is a folder of pictures, got {value!r}"
        for key, value in (
            ("text_column", request.text_column),
            ("drop_columns", request.drop_columns),
            ("columns", dict(request.columns)),
            ("group_column", request.group_column),
            ("task", request.task),
        )
        if value
    ]
    if faults:
        raise DataError(faults)


def read_table(path: Path, request: DatasetRequest) -> pa.Table:
    """Read a table of one's own, whose name tells its format.

    Raises:
        DataError: If it can't be read, or is of a format that is not read.
    """
    name = path.name.lower()
    if name.endswith(PARQUET_SUFFIXES):
        return read_parquet(path, request.drop_columns, request.limits)
    if name.endswith(TEXT_SUFFIXES):
        return read_csv(path, nameless_index=True, limits=request.limits)
    allowed = f"one's own table must end in {', '.join((*PARQUET_SUFFIXES[:1], *TEXT_SUFFIXES[:4]))} or similar"
    if name.endswith(UNSAFE_SUFFIXES):
        raise DataError(f"{allowed}, got {path}: {path.suffix} can carry code or objects, so it is never opened")
    raise DataError(f"{allowed}, got {path}")
