"""Registry of data sets: to add one, write its loader and add one line here.

`with_task` infers from the first rows whether the label of the user's own file is a regression target, if
`federation.task` is not set. It is if all filled cells are numbers, with more than twenty distinct values (or more than
half, in a small table), some of which are fractions. Whole numbers are a regression target if the table is small enough
to be read as a whole and holds too many distinct values to be classes (`columns.py`).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from fedscout.engine.errors import ConfigurationError, DataError, Fault, UserError
from fedscout.experiments.data.dataset import QUANTITIES, Dataset, DatasetLoader, DatasetRequest
from fedscout.experiments.data.files import START_VARIABLE, EndlessQueryError
from fedscout.experiments.data.loaders.bearing import (
    load_bearing,
    load_bearing_faults,
    load_bearing_faults_all,
    load_bearing_raw,
    load_bearing_raw_1,
    load_bearing_raw_3,
)
from fedscout.experiments.data.loaders.cifar import load_cifar10, load_cifar100
from fedscout.experiments.data.loaders.hugging_face import is_hugging_face, load_hugging_face
from fedscout.experiments.data.loaders.leaf import (
    load_leaf_femnist,
    load_leaf_shakespeare,
    load_sentiment140,
    load_shakespeare,
)
from fedscout.experiments.data.loaders.pictures import (
    load_emnist,
    load_fashion_mnist,
    load_mnist,
    load_retinal,
    load_retinal_grades,
)
from fedscout.experiments.data.loaders.tabular import (
    load_breast_cancer,
    load_commercial_vehicles,
    load_diabetes,
    load_digits,
    load_heart,
    load_nf_unsw_nb15,
    load_unsw_nb15,
    load_wine,
    load_wine_quality,
    load_wine_quality_red,
    load_wine_quality_white,
)
from fedscout.experiments.data.own import load_own_data

if TYPE_CHECKING:
    import pyarrow as pa


DATASETS: Mapping[str, DatasetLoader] = {
    "digits": load_digits,
    "breast_cancer": load_breast_cancer,
    "wine": load_wine,
    "diabetes": load_diabetes,
    "wine_quality": load_wine_quality,
    "wine_quality_red": load_wine_quality_red,
    "wine_quality_white": load_wine_quality_white,
    "bearing": load_bearing,
    "bearing_faults": load_bearing_faults,
    "bearing_faults_all": load_bearing_faults_all,
    "bearing_raw": load_bearing_raw,
    "bearing_raw_1": load_bearing_raw_1,
    "bearing_raw_3": load_bearing_raw_3,
    "retinal": load_retinal,
    "retinal_grades": load_retinal_grades,
    "unsw_nb15": load_unsw_nb15,
    "nf_unsw_nb15": load_nf_unsw_nb15,
    "heart": load_heart,
    "commercial_vehicles": load_commercial_vehicles,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "mnist": load_mnist,
    "fashion_mnist": load_fashion_mnist,
    "emnist": load_emnist,
    "emnist_balanced": load_emnist,
    "emnist_byclass": load_emnist,
    "emnist_bymerge": load_emnist,
    "emnist_digits": load_emnist,
    "emnist_letters": load_emnist,
    "emnist_mnist": load_emnist,
    "sentiment140": load_sentiment140,
    "shakespeare": load_shakespeare,
    "leaf_femnist": load_leaf_femnist,
    "leaf_shakespeare": load_leaf_shakespeare,
}

DIVIDED = (
    *("cifar10", "cifar100", "mnist", "fashion_mnist"),
    *(name for name in DATASETS if name.startswith(("emnist", "leaf_"))),
)
RAW_BEARING_TESTS = ("bearing_raw", "bearing_raw_1", "bearing_raw_3")

DROPS_COLUMNS = ("unsw_nb15", "nf_unsw_nb15", "heart", "commercial_vehicles")
READS_TEXT_COLUMNS = ("commercial_vehicles",)


def is_own_data(name: str) -> bool:
    """Return whether `federation.dataset` is a path or an address rather than a registered name."""
    return name.startswith("hf:") or any(sign in name for sign in "./\\") or (name not in DATASETS and _is_folder(name))


def _is_folder(name: str) -> bool:
    """Return whether a word is a folder in the working directory of the command."""
    with suppress(OSError, ValueError):
        return (Path(os.environ.get(START_VARIABLE, "")) / name).is_dir()
    return False


def load_dataset(request: DatasetRequest) -> Dataset:
    """Load the requested data set: a key of `DATASETS`, the path of the user's own data, or `hf:owner/name`.

    Raises:
        ConfigurationError: If there is no such data set.
        DataError: If its files are missing, malformed or too large, or do not fit into memory, or it has no such
            column.
    """
    name = request.name
    loader = load_hugging_face if is_hugging_face(name) else DATASETS.get(name)
    if loader is None and is_own_data(name):
        loader = load_own_data
    if loader is None:
        raise ConfigurationError.of("federation.dataset", f"be one of {', '.join(DATASETS)}", repr(name))
    if request.part is not None and name not in DIVIDED and not is_hugging_face(name):
        raise ConfigurationError.of(
            "federation.split",
            f"be left out or be last, but for {', '.join(DIVIDED)} and hf:owner/name",
            f"{request.part!r} for {name!r}",
        )
    if request.degraded_from is not None and name not in RAW_BEARING_TESTS:
        raise ConfigurationError.of(
            "federation.degraded_from",
            f"be left out but for {', '.join(RAW_BEARING_TESTS)}",
            f"{request.degraded_from} for {name!r}",
        )
    if request.group_column is not None and (not is_own_data(name) or is_hugging_face(name)):
        raise ConfigurationError.of(
            "federation.group_column",
            "be left out but for one's own tables",
            f"{request.group_column!r} for {name!r}",
        )
    if request.task == "regression" and name not in QUANTITIES and (not is_own_data(name) or is_hugging_face(name)):
        raise ConfigurationError.of(
            "federation.task",
            f"be classification or left out but for {', '.join(QUANTITIES)} and one's own tables",
            f"regression for {name!r}",
        )
    faults = [
        Fault(
            f"federation.{key}",
            f"be left out but for {', '.join(readers)} and one's own tables",
            f"{value!r} for {name!r}",
        )
        for key, value, readers in (
            ("text_column", request.text_column, READS_TEXT_COLUMNS),
            ("drop_columns", list(request.drop_columns), DROPS_COLUMNS),
            ("columns", dict(request.columns), READS_TEXT_COLUMNS),
            ("missing_values", list(request.missing_values), READS_TEXT_COLUMNS),
            ("query", request.query, ("databases",)),
        )
        if value and name not in readers and (not is_own_data(name) or (key != "text_column" and is_hugging_face(name)))
    ]
    if faults:
        raise ConfigurationError(faults)
    try:
        return loader(request)
    except MemoryError:
        raise DataError.of(
            f"data set {name!r}", "fit into memory, but there is not enough of it to read all rows"
        ) from None


NUM_ROWS_EXAMINED = 10_000
FILES_KEPT = 64


def with_task(settings: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return study settings, with `federation.task` set to regression if the label of the user's table requires it.

    Args:
        settings: Settings by section, before validation; invalid settings and unreadable files are reported elsewhere.

    Raises:
        EndlessQueryError: If a database query exceeds its time or memory limit.
    """
    federation = settings.get("federation")
    if not isinstance(federation, Mapping) or "task" in federation or federation.get("text_column") is not None:
        return settings
    name = federation.get("dataset")
    if not isinstance(name, str) or name in DATASETS or is_hugging_face(name) or not is_own_data(name):
        return settings
    if "://" in name:  # nothing is fetched, and no database asked, before it is known that something is to be done
        return settings
    request_fields = {key: value for key, value in federation.items() if key in DatasetRequest.model_fields}
    try:
        if _predicts_quantity(DatasetRequest.model_validate(request_fields)):
            return {**settings, "federation": {**federation, "task": "regression"}}
    except EndlessQueryError:  # which is not waited for twice
        raise
    except (ValidationError, UserError, OSError, MemoryError):
        pass
    return settings


def is_quantity(cells: pa.ChunkedArray, are_all: bool) -> bool:
    """Return whether the cells of a label are a regression target.

    Args:
        cells: Plain cells.
        are_all: Whether these are all rows, not only the first ones.
    """
    from fedscout.experiments.data.columns import are_quantities, as_numbers, present_cells

    present = present_cells(cells).drop_null()
    numbers = np.unique(as_numbers(present))
    is_whole = bool(np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all())
    return (are_all or not is_whole) and are_quantities(numbers, len(present))


def _predicts_quantity(request: DatasetRequest) -> bool:
    from fedscout.experiments.data.own import own_place
    from fedscout.experiments.data.table_formats import LABEL, is_array_file

    place = own_place(request)
    if isinstance(place, list):
        place = place[0]
    if not isinstance(place, Path) or place.is_dir():
        return False
    label = request.label or (LABEL if is_array_file(place) else None)
    if label is None:
        return False
    status = place.stat()
    file = _File(place.absolute(), status.st_mtime_ns, status.st_size)
    return _holds_quantity(file, label, request.model_dump_json())


class _File(NamedTuple):
    """State of a file at a point in time, as a cache key."""

    place: Path
    modified_nanoseconds: int
    num_bytes: int


@lru_cache(maxsize=FILES_KEPT)
def _holds_quantity(file: _File, label: str, request: str) -> bool:
    """Return whether a column is a regression target; cached, as a sweep checks it for each of its studies."""
    from fedscout.experiments.data.columns import with_missing
    from fedscout.experiments.data.table_formats import table_head

    parsed_request = DatasetRequest.model_validate_json(request)
    head = table_head(file.place, parsed_request, NUM_ROWS_EXAMINED)
    if label not in head.column_names:
        return False
    cells = with_missing(head.select([label]), parsed_request.missing_values)
    return is_quantity(cells[label], are_all=len(head) < NUM_ROWS_EXAMINED)
