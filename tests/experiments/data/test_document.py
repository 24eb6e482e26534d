"""The document names every data set that there is, and no other."""

from __future__ import annotations

import re
from pathlib import Path

from fedscout.experiments.data.loaders.table import DATASETS

DOCUMENT = Path(__file__).parents[3] / "docs" / "datasets.md"


def test_the_table_of_data_sets_is_complete() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert {line.count("|") for line in rows} == {8}
    named = [name for line in rows for name in re.findall(r"`([a-z0-9_]+)`", line.split("|")[1])]
    assert set(named) == set(DATASETS)
