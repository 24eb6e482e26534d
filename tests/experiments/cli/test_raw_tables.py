"""Small tables as people publish them, each with one fault (`tests/fixtures/raw`): one command, without preparation."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli
from tests.experiments.cli.test_awkward_tables import QUICK

RAW = Path(__file__).parents[2] / "fixtures" / "raw"
LARGEST = 2048
QUICK_DETECTION = ("engine.grid=local", "detection.outlier_repetitions=2", "detection.outlier_min_flags=2")
TABLES = {
    "missing_labels.csv": (("label=outcome", "client_column=site"), 3),
    "missing_quantity.csv": (("label=level", "client_column=site"), 3),
    "latin.csv": (("label=outcome", "client_column=Städte"), 3),
    "wide.csv": (("label=outcome", "client_column=Städte"), 3),
    "white_space.txt": (("label=outcome", "client_column=site"), 3),
    "no_header.csv": (("label=column4", "client_column=column1", "header=false"), 3),
    "folders/*/train.tsv": (("label=outcome",), 3),
    "files/*.csv": (("label=outcome",), 3),
    "types/*.parquet": (("label=outcome",), 3),
    "data/*.csv": (("label=outcome",), 3),
    "types_identifiers.csv": (("label=label", "client_column=site"), 3),
    "types_leaks.csv": (("label=label", "client_column=ward"), 2),
    "types_numbers.csv": (("label=label", "client_column=site"), 3),
    "types_sums.csv": (("label=count", "client_column=site"), 2),
    "merged.xlsx": (("label=outcome", "client_column=site"), 3),
}


def arguments(name: str) -> list[str]:
    return [f"federation.dataset={RAW}/{name}", *(f"federation.{choice}" for choice in TABLES[name][0])]


@pytest.mark.parametrize("name", TABLES)
def test_each_table_is_small(name: str) -> None:
    assert 0 < max(path.stat().st_size for path in RAW.glob(name)) <= LARGEST


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_from_the_file_to_detect(cli: Cli, name: str) -> None:
    report = cli("detect", *arguments(name), *QUICK_DETECTION, "--json").document["report"]
    assert report["num_clients"] == TABLES[name][1]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["missing_labels.csv", "folders/*/train.tsv", "types/*.parquet"])
def test_from_the_file_to_the_verdict(cli: Cli, tmp_path: Path, name: str) -> None:
    assert cli("run", *arguments(name), "--out", "found", *QUICK).ok
    columns = json.loads((tmp_path / "found" / "result.json").read_text())["federation"]["columns"]
    assert [column["kind"] for column in columns].count("label") == 1
