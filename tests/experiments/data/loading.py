"""A data set as a user asks for it, in one call."""

from __future__ import annotations

from typing import Any

from fedscout.experiments.data.dataset import Dataset, DatasetRequest
from fedscout.experiments.data.files import USUAL_LIMITS, ReadLimits
from fedscout.experiments.data.loaders import table


def load_dataset(name: str, limits: ReadLimits = USUAL_LIMITS, **choices: Any) -> Dataset:
    largest = {"max_file_bytes": limits.max_bytes, "max_file_rows": limits.max_rows}
    return table.load_dataset(DatasetRequest.model_validate({"dataset": name, **largest, **choices}))
