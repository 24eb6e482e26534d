"""Whether the label of one's own file is a quantity, by its first rows, where `federation.task` does not say.

It is where all of its cells that hold something are numbers, of which more than twenty differ (or more than half, in a
small table), and some are fractions. Whole numbers are a quantity where a table is small enough to be seen as a whole,
and holds too many different ones to be classes (`column_roles.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import ValidationError

from fedscout.engine.errors import UserError
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.datasets.loaders.dataset_table import DATASETS, is_own_data
from fedscout.experiments.federations.datasets.loaders.hugging_face import is_hugging_face
from fedscout.experiments.federations.datasets.read_limits import EndlessQueryError

if TYPE_CHECKING:
    import pyarrow as pa

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
    from fedscout.experiments.federations.datasets.tables.column_kinds import as_numbers, present_cells
    from fedscout.experiments.federations.datasets.tables.column_roles import are_quantities

    present = present_cells(cells).drop_null()
    numbers = np.unique(as_numbers(present))
    is_whole = bool(np.isfinite(numbers).all() and (numbers == np.rint(numbers)).all())
    return (are_all or not is_whole) and are_quantities(numbers, len(present))


def _predicts_quantity(request: DatasetRequest) -> bool:
    from fedscout.experiments.federations.datasets.loaders.own_place import own_place
    from fedscout.experiments.federations.datasets.tables.array_file import LABEL
    from fedscout.experiments.federations.datasets.tables.table_formats import is_array_file

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
    from fedscout.experiments.federations.datasets.tables.column_kinds import with_missing
    from fedscout.experiments.federations.datasets.tables.table_formats import table_head

    known = DatasetRequest.model_validate_json(request)
    head = table_head(file.place, known, ROWS_LOOKED_AT)
    if label not in head.column_names:
        return False
    asked = with_missing(head.select([label]), known.missing_values)
    return is_quantity(asked[label], are_all=len(head) < ROWS_LOOKED_AT)
