"""docs/sweep.md says what the table holds, and its examples are valid."""

from __future__ import annotations

import re
from pathlib import Path

from fedscout.experiments.sweeps.results import TABLE_COLUMNS
from fedscout.experiments.sweeps.sweep import read_sweep

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "sweep.md").read_text()


def test_every_column_is_explained() -> None:
    columns = DOCUMENT[DOCUMENT.index("| `study`, ") :]
    lines = [line.split("|")[1] for line in columns.splitlines() if line.startswith("| `")]
    explained = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
    assert sorted(explained) == sorted(TABLE_COLUMNS)


def test_the_example_is_a_sweep() -> None:
    command, *_ = re.findall(r"^fedscout sweep (.*)$", DOCUMENT, re.MULTILINE)
    assert len(read_sweep(command.split()).configurations) == 4 * 4 * 3
