"""`fedscout bench detection` and `intervals`: a table, as JSON and as it is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

TABLES = [
    ("detection", "withheld", ("--rows", "one client", "--columns", "6 × 30"), 2),
    pytest.param(
        "intervals", "coverage", ("--rows", "a difference", "--columns", "5 seeds"), 8, marks=pytest.mark.slow
    ),
]


@pytest.mark.parametrize(("suite", "table", "given", "values"), TABLES)
def test_tables_and_json_tell_the_same(
    cli: Cli, tmp_path: Path, suite: str, table: str, given: tuple[str, ...], values: int
) -> None:
    shown = cli("bench", suite, table, *given, "--seeds", "8", "--out", "out")
    assert shown.code == 0, shown.err
    assert shown.out.strip() == (tmp_path / "out" / suite / f"{table}.md").read_text().strip()
    (found,) = json.loads(cli("bench", suite, table, *given, "--seeds", "8", "--out", "out", "--json").out)["tables"]
    (cell,) = found["cells"]
    assert len(cell["values"]) == values
    assert {*cell["values"]} <= {0.0, 1.0}


def test_rows_and_tables_that_there_are_not_are_refused(cli: Cli) -> None:
    for given in (("nowhere",), ("withheld", "--rows", "nothing"), ("bundled", "--columns", "nothing")):
        assert cli("bench", "detection", *given).code == 2
