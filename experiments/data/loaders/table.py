"""The table of data sets: a new one is one file and one line here.

Whether the label of one's own file is a quantity, by its first rows, where `federation.task` does not say.

It is where all of its cells that hold something are numbers, of which more than twenty differ (or more than half, in a
small table), and some are fractions. Whole numbers are a quantity where a table is small enough to be seen as a whole,
and holds too many different ones to be classes (`columns.py`).
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
    """Whether a user's `federation.dataset` is a path or an address rather than a name of the table."""
    return name.startswith("hf:") or any(sign in name for sign in "./\\") or (name not in DATASETS and _is_folder(name))


def _is_folder(name: str) -> bool:
    """Whether a word is a folder where the command was given."""
    with suppress(OSError, ValueError):
        return (Path(os.environ.get(START_VARIABLE, "")) / name).is_dir()
    return False


def load_dataset(request: DatasetRequest) -> Dataset:
    """Load the data set that a request names: a key of `DATASETS`, the path of one's own data, or `hf:owner/name`.

    Raises:
        ConfigurationError: If there is no such data set.
        DataError: If its files are missing, malformed or too large, also for the memory that there is, or it has no
            such column.
    """
    name = request.name
    loader = load_hugging_face if is_hugging_face(name) else DATASETS.get(name)
    if loader is None and is_own_data(name):
        loader = load_own_data
    if loader is None:
        raise ConfigurationError(Fault("federation.dataset", f"be one of {', '.join(DATASETS)}", repr(name)))
    if request.part is not None and name not in DIVIDED and not is_hugging_face(name):
        raise ConfigurationError(
            Fault(
                "federation.split",
                f"be left out or be last, but for {', '.join(DIVIDED)} and hf:owner/name",
                f"{request.part!r} for {name!r}",
            )
        )
    if request.degraded_from is not None and name not in RAW_BEARING_TESTS:
        raise ConfigurationError(
            Fault(
                "federation.degraded_from",
                f"be left out but for {', '.join(RAW_BEARING_TESTS)}",
                f"{request.degraded_from} for {name!r}",
            )
        )
    if request.group_column is not None and (not is_own_data(name) or is_hugging_face(name)):
        raise ConfigurationError(
            Fault(
                "federation.group_column",
                "be left out but for one's own tables",
                f"{request.group_column!r} for {name!r}",
            )
        )
    if request.task == "regression" and name not in QUANTITIES and (not is_own_data(name) or is_hugging_face(name)):
        raise ConfigurationError(
            Fault(
                "federation.task",
                f"be classification or left out but for {', '.join(QUANTITIES)} and one's own tables",
                f"regression for {name!r}",
            )
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
        raise DataError(
            Fault(f"data set {name!r}", "fit into memory, but there is not enough of it to read all rows")
        ) from None


ROWS_LOOKED_AT = 10_000
FILES_KEPT = 64


def with_task(settings: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Return settings of a study in which `federation.task` is regression if the label of one's own table asks for it.

    Args:
        settings: By section, before they are validated; what is wrong in them, or can't be read, is left to others.

    Raises:
        EndlessQueryError: If the rows of a database do not come in time, or take too much memory.
    """
    federation = settings.get("federation")
    if not isinstance(federation, Mapping) or "task" in federation or federation.get("text_column") is not None:
        return settings
    name = federation.get("dataset")
    if not isinstance(name, str) or name in DATASETS or is_hugging_face(name) or not is_own_data(name):
        return settings
    if "://" in name:  # nothing is fetched, and no database asked, before it is known that something is to be done
        return settings
    known = {key: value for key, value in federation.items() if key in DatasetRequest.model_fields}
    try:
        if _predicts_quantity(DatasetRequest.model_validate(known)):
            return {**settings, "federation": {**federation, "task": "regression"}}
    except EndlessQueryError:  # which is not waited for twice
        raise
    except (ValidationError, UserError, OSError, MemoryError):
        pass
    return settings


def is_quantity(cells: pa.ChunkedArray, are_all: bool) -> bool:
    """Whether the cells of a label are those of a quantity.

    Args:
        cells: Plain.
        are_all: Whether these are all rows, and not the first alone.
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
    state = place.stat()
    file = _File(place.absolute(), state.st_mtime_ns, state.st_size)
    return _holds_quantity(file, label, request.model_dump_json())


class _File(NamedTuple):
    """A file as it is at a time."""

    place: Path
    modified_nanoseconds: int
    num_bytes: int


@lru_cache(maxsize=FILES_KEPT)
def _holds_quantity(file: _File, label: str, request: str) -> bool:
    """Return whether a column is a quantity; kept, as a sweep asks for every one of its studies."""
    from fedscout.experiments.data.columns import with_missing
    from fedscout.experiments.data.table_formats import table_head

    known = DatasetRequest.model_validate_json(request)
    head = table_head(file.place, known, ROWS_LOOKED_AT)
    if label not in head.column_names:
        return False
    asked = with_missing(head.select([label]), known.missing_values)
    return is_quantity(asked[label], are_all=len(head) < ROWS_LOOKED_AT)
