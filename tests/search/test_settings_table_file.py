"""A table of client settings comes back as it was written, and what is none is told in one line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest

from fedscout.engine.contracts.client_table import SettingsCell, SettingsTable
from fedscout.engine.errors import ConfigurationError
from fedscout.search.settings_table_file import COLUMNS, read_settings_table, write_settings_table

TABLE = SettingsTable(
    tuple(SettingsCell(h, q, 1e-5 * q / (1 + h), 8, 1 + q // 100) for h in (0.2, 0.8) for q in (100, 1000)), 0.5
)
PROVENANCE = {"dataset": "digits", "model": "dense", "num_classes": 10, "metric": "heterogeneity"}


def test_what_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "new" / "table.parquet"
    beside = [{"score": 0.1 * number, "trials": number} for number in range(4)]

    write_settings_table(path, TABLE, {**PROVENANCE, "cells": beside})

    assert read_settings_table(path) == (TABLE, {**PROVENANCE, "cells": beside})
    assert list(pd.read_parquet(path).columns) == [*COLUMNS, "score", "trials"]
    assert list(path.parent.iterdir()) == [path]


def changed(path: Path, change: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Change the cells of a file and leave its metadata."""
    content = pq.read_table(path)
    frame = change(content.to_pandas())
    pq.write_table(
        type(content).from_pydict(frame.to_dict("list")).replace_schema_metadata(content.schema.metadata), path
    )


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows.drop(columns=["batch_size", "local_epochs"]), "lacks batch_size, local_epochs"),
        (
            lambda rows: rows.iloc[:3],
            "full 2 x 2 grid, and lacks 1 cells, the first at heterogeneity 0.8, quantity 1000",
        ),
        (lambda rows: pd.concat([rows, rows.iloc[:1]]), "heterogeneity 0.2, quantity 100 2 times"),
        (lambda rows: rows.iloc[:0], "must have cells, got none"),
        (lambda rows: rows.assign(learning_rate=float("nan")), "cell 1: learning_rate must be a number, got nan"),
        (lambda rows: rows.assign(learning_rate="0.1"), "cell 1: learning_rate must be a number, got '0.1'"),
        (lambda rows: rows.assign(learning_rate=[0.1, 0.1, 0.0, 0.1]), "cell 3: learning_rate must be greater than 0"),
        (lambda rows: rows.assign(local_epochs=1001), "local_epochs must be less than or equal to 1000"),
        (lambda rows: rows.assign(batch_size=2.5), "batch_size"),
        (lambda rows: rows.assign(quantity=[0, 1000, 0, 1000]), "quantity must be a number of rows, at least 1, got 0"),
        (lambda rows: rows.assign(heterogeneity=[0.2, 0.2, 1.5, 1.5]), "heterogeneity in [0, 1], got 1.5"),
    ],
)
def test_a_table_that_cannot_serve_is_refused_in_one_line(
    tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], said: str
) -> None:
    path = tmp_path / "table.parquet"
    write_settings_table(path, TABLE, PROVENANCE)
    changed(path, change)

    with pytest.raises(ConfigurationError) as refused:
        read_settings_table(path)

    (fault,) = refused.value.faults
    assert said in fault
    assert str(path) in fault
    assert "\n" not in fault


def test_what_is_no_table_is_refused(tmp_path: Path) -> None:
    damaged, other = tmp_path / "damaged.parquet", tmp_path / "other.parquet"
    damaged.write_bytes(b"PAR1 and then nothing")
    pd.DataFrame({"a": [1]}).to_parquet(other)

    for path, said in [(tmp_path / "none", "no such file"), (damaged, "a Parquet file"), (other, "with the mark")]:
        with pytest.raises(ConfigurationError, match=said):
            read_settings_table(path)


@pytest.mark.parametrize(
    "cells", [(), TABLE.cells[:3], TABLE.cells + TABLE.cells[:1], (replace(TABLE.cells[0], quantity=0),)]
)
def test_nothing_is_written_that_could_not_be_read(tmp_path: Path, cells: Any) -> None:
    with pytest.raises(ConfigurationError):
        write_settings_table(tmp_path / "table.parquet", SettingsTable(cells), PROVENANCE)

    assert list(tmp_path.iterdir()) == []


def test_a_metric_of_ones_own_may_have_any_values(tmp_path: Path) -> None:
    path, table = tmp_path / "table.parquet", SettingsTable((replace(TABLE.cells[0], heterogeneity=-7.0),))

    write_settings_table(path, table, {**PROVENANCE, "metric": "mine:spread"})

    assert read_settings_table(path)[0] == table
