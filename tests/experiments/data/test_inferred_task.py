"""A label that is a quantity is predicted as one without being asked; classes stay classes."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest

import fedscout
from fedscout.engine.errors import DataError
from fedscout.experiments.config import load_config
from fedscout.experiments.data import own
from fedscout.experiments.data.dataset import DatasetRequest
from fedscout.experiments.data.own import load_own_data
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


def predicts_quantity(folder: Path, table: pd.DataFrame, label: str, **keys: Any) -> bool:
    return (
        load_own_data(DatasetRequest(dataset=str(saved(table, folder / "t.csv")), label=label, **keys)).targets
        is not None
    )


@pytest.mark.parametrize(
    ("label", "found"),
    [
        ("load", True),
        ("rounded", True),  # 150 whole numbers in 300 rows
        ("grade", False),
        ("half", False),  # three fractions
    ],
)
def test_the_label_tells_the_task(tmp_path: Path, label: str, found: bool) -> None:
    assert predicts_quantity(tmp_path, TABLE, label) == found


@pytest.mark.parametrize(("label", "keys"), [("word", {}), ("load", {"task": "classification"})])
def test_what_is_neither_a_quantity_nor_classes_is_refused(tmp_path: Path, label: str, keys: Any) -> None:
    """A text in each row; a quantity as classes, as the key overrules."""
    with pytest.raises(DataError):
        predicts_quantity(tmp_path, TABLE, label, **keys)


def test_whole_numbers_of_a_table_that_is_not_looked_at_whole_may_be_classes(tmp_path: Path) -> None:
    table = pd.DataFrame({"x": np.arange(20_000) / 8, "product": np.arange(20_000) % 90})
    assert not predicts_quantity(tmp_path, table, "product")
    assert predicts_quantity(tmp_path, table.assign(product=table["product"] / 8), "product")


def test_databases_tell_the_task_too(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "t.db")) as database:
        TABLE.to_sql("t", database, index=False)
    request = DatasetRequest(dataset=f"sqlite:///{tmp_path / 't.db'}", label="load")
    assert load_own_data(request).targets is not None


def test_parsing_reads_no_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own, "own_place", lambda *_: pytest.fail("opened"))
    path = saved(TABLE, tmp_path / "t.csv")
    for dataset in (path, "https://host/t.csv", "sqlite:///t.db"):
        assert load_config([f"federation.dataset={dataset}", "federation.label=load"]).federation.task is None


def test_the_digest_of_a_study_is_the_same_before_and_after_the_task_is_found(tmp_path: Path) -> None:
    config = load_config([f"federation.dataset={tmp_path / 't.csv'}", "federation.label=load"])
    found = config.with_task(predicts_quantity=True)
    assert (config.metric_name, found.metric_name) == ("accuracy", "r2")
    assert found.digest() == config.digest()
    mae = [f"federation.dataset={tmp_path / 't.csv'}", "federation.label=load", "training.metric=mae"]
    assert load_config(mae).digest() != config.digest()


def test_one_line_predicts_a_quantity(tmp_path: Path) -> None:
    path = saved(readings(), tmp_path / "t.csv")
    keys = {"dataset": path, "label": "vibration", "client_column": "machine"}
    config = load_config([f"federation.{key}={value}" for key, value in keys.items()])
    federation = build_federation(config.federation, config.model)
    assert federation.target_name == "vibration"
    (told,) = [column for column in federation.facts["columns"] if column["name"] == "vibration"]
    assert (told["became"], told["key"]) == ("the regression target", "federation.task=classification")


def test_from_python(tmp_path: Path) -> None:
    quantity = TABLE[["x", "load"]]
    for data in (quantity, datasets.Dataset.from_pandas(quantity)):
        assert "predicts load" in repr(fedscout.Federation(data, label="load", num_clients=2))
    assert "3 classes" in repr(fedscout.Federation(TABLE[["x", "grade"]], label="grade", num_clients=2))
