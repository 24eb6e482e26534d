"""A label that is a quantity is predicted as one without being asked; classes stay classes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedscout
from fedscout.experiments.config import load_config
from fedscout.experiments.data import own, table_formats
from fedscout.experiments.federation import build_federation
from tests.experiments.data.awkward_tables import readings, saved

ROWS = np.arange(300)
TABLE = pd.DataFrame(
    {
        "x": np.sin(ROWS),
        "load": ROWS / 8,
        "rounded": ROWS // 2,
        "grade": ROWS % 3,
        "half": ROWS % 3 / 2,
        "word": [f"{row / 8} kg" for row in ROWS],
    }
)


def task(folder: Path, table: pd.DataFrame, label: str, *more: str) -> str | None:
    path = saved(table, folder / "t.csv")
    return load_config([f"federation.dataset={path}", f"federation.label={label}", *more]).federation.task


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("load", "regression"),
        ("rounded", "regression"),  # 150 whole numbers in 300 rows
        ("grade", None),
        ("half", None),  # refused, as three fractions are neither
        ("word", None),
        ("nothing", None),
    ],
)
def test_the_label_tells_the_task(tmp_path: Path, label: str, found: str | None) -> None:
    assert task(tmp_path, TABLE, label) == found


def test_the_key_overrules(tmp_path: Path) -> None:
    assert task(tmp_path, TABLE, "load", "federation.task=classification") == "classification"


def test_a_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    head = table_formats.table_head
    monkeypatch.setattr(table_formats, "table_head", lambda *told: read.append(told[0]) or head(*told))
    path = saved(TABLE, tmp_path / "t.csv")
    for seed in (1, 2, 3):
        asked = [f"federation.dataset={path}", "federation.label=load", f"seed={seed}"]
        assert load_config(asked).federation.task == "regression"
    assert len(read) == 1
    assert task(tmp_path, TABLE.assign(load=ROWS % 3), "load") is None
    assert task(tmp_path, TABLE.assign(load=ROWS % 3), "rounded") == "regression"
    assert len(read) == 3


def test_nothing_is_fetched_to_read_a_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "_fetched", lambda *told: pytest.fail("fetched"))
    assert load_config(["federation.dataset=https://host/t.csv", "federation.label=y"]).federation.task is None


def test_whole_numbers_of_a_table_that_is_not_seen_whole_may_be_classes(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": np.arange(20_000) / 8, "product": np.arange(20_000) % 900})
    assert task(tmp_path, table, "product") is None


def test_one_line_predicts_a_quantity(tmp_path: Path) -> None:
    path = saved(readings(), tmp_path / "t.csv")
    keys = {"dataset": path, "label": "vibration", "client_column": "machine"}
    config = load_config([f"federation.{key}={value}" for key, value in keys.items()])
    assert config.metric_name == "r2"
    federation = build_federation(config.federation, config.model)
    assert federation.target_name == "vibration"
    (told,) = [column for column in federation.facts["columns"] if column["name"] == "vibration"]
    assert (told["became"], told["key"]) == ("a quantity to predict", "federation.task=classification")


def test_from_python(tmp_path: Path) -> None:
    assert "predicts load" in repr(fedscout.Federation(TABLE[["x", "load"]], label="load", num_clients=2))
    assert "3 classes" in repr(fedscout.Federation(TABLE[["x", "grade"]], label="grade", num_clients=2))
