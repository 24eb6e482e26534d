"""What holds of every data set by name: missing files are named, and what it does not have or read is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.data.files import FOLDER_VARIABLE
from fedscout.experiments.data.loaders.table import DATASETS
from tests.experiments.data.loading import assert_refused, load_dataset

BUNDLED = ("digits", "breast_cancer", "wine", "diabetes")
OF_COLUMNS = (
    *("wine_quality", "wine_quality_red", "wine_quality_white", "retinal_grades"),
    *("unsw_nb15", "nf_unsw_nb15"),
)
"""Data sets of which any column may be the label, or name the clients: their files are read first."""
DOCUMENT = Path(__file__).parents[3] / "docs" / "datasets.md"


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in BUNDLED])
def test_missing_files_are_named_with_place_and_publisher(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(name, folder=tmp_path)
    assert len(caught.value.faults) == 1
    for fault in caught.value.faults:
        assert f"${FOLDER_VARIABLE}/" in fault
        assert str(tmp_path) in fault
        assert "://" in fault


@pytest.mark.parametrize("name", [name for name in DATASETS if name not in OF_COLUMNS])
def test_a_label_and_clients_that_it_does_not_have_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(DataError) as caught:
        load_dataset(name, label="nonsense", client_column="nowhere", folder=tmp_path)
    found = [(fault.key, fault.given) for fault in caught.value.faults]
    assert found == [("federation.label", "'nonsense'"), ("federation.client_column", "'nowhere'")]


@pytest.mark.parametrize(
    "choice",
    [
        {"group_column": "x"},
        {"split": "test"},
        {"missing_values": ("-1",)},
        {"drop_columns": ("x",)},
        {"text_column": "x"},
        {"query": "SELECT 1"},
    ],
    ids=lambda choice: next(iter(choice)),
)
def test_keys_that_a_data_set_does_not_read_are_refused(tmp_path: Path, choice: dict[str, Any]) -> None:
    key = f"federation.{next(iter(choice))}"
    assert_refused("digits", key=key, kind=ConfigurationError, **choice)
    if next(iter(choice)) in ("missing_values", "drop_columns", "text_column"):
        assert_refused(str(tmp_path), key=key, **choice)


def test_an_unknown_name_lists_the_known_ones() -> None:
    assert_refused("imagenet", key="federation.dataset", names=tuple(DATASETS), kind=ConfigurationError)


def test_the_documents_table_of_data_sets_is_complete() -> None:
    rows = [line for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    assert {line.count("|") for line in rows} == {8}
    named = [name for line in rows for name in re.findall(r"`([a-z0-9_]+)`", line.split("|")[1])]
    assert set(named) == set(DATASETS)
