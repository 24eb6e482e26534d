"""A data set as a user asks for it, in one call."""

from __future__ import annotations

from typing import Any

import pytest

from fedscout.engine.errors import DataError, UserError
from fedscout.experiments.data.dataset import USUAL_LIMITS, Dataset, DatasetRequest, ReadLimits
from fedscout.experiments.data.loaders import table


def load_dataset(name: str, limits: ReadLimits = USUAL_LIMITS, **choices: Any) -> Dataset:
    largest = {"max_file_bytes": limits.max_bytes, "max_file_rows": limits.max_rows}
    return table.load_dataset(DatasetRequest.model_validate({"dataset": name, **largest, **choices}))


def assert_refused(
    name: str,
    *,
    key: str | None = None,
    given: object = None,
    names: str | tuple[str, ...] = (),
    kind: type[UserError] = DataError,
    **choices: Any,
) -> None:
    """Hold that a data set is refused with one fault of one line, which is of `key`, and what it names: see `refused`.

    A fault that is a sentence alone has no key.
    """
    with pytest.raises(kind) as caught:
        load_dataset(name, **choices)
    (fault,) = caught.value.faults
    assert "\n" not in fault
    assert key is None or fault.key == key, f"{fault.key}: {fault}"
    assert given is None or fault.given == str(given), fault
    for named in (names,) if isinstance(names, str) else names:
        assert named in fault


def clients_of(dataset: Dataset) -> list[str]:
    """Return the natural client of each row."""
    return list(dataset.client_ids.tolist())


def told(dataset: Dataset, key: str = "kind") -> dict[str, Any]:
    """Return what is on record of each column of which something is."""
    return {column["name"]: column[key] for column in dataset.facts["columns"] if column[key]}
