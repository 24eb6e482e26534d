"""Tables that nobody prepared: one line each, from the file to the verdict."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.experiments.cli.conftest import Cli
from tests.experiments.data.awkward_tables import patients, readings, saved, tweets

QUICK = (
    "engine.grid=local",
    "training.num_rounds=2",
    "search.budget=1",
    "search.generation_size=1",
    "search.confirmation_seeds=2",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "label", "client", "line"),
    [
        (tweets(), "airline_sentiment", "airline", "columns: left out tweet_id, airline_sentiment_gold, name"),
        (patients(), "outcome", "hospital", "federation.drop_columns=[discharge_code]"),
        (readings(), "state", "machine", "columns: left out reading, unit"),
    ],
    ids=["tweets", "patients", "readings"],
)
def test_one_line_to_the_end(cli: Cli, tmp_path: Path, table: pd.DataFrame, label: str, client: str, line: str) -> None:
    saved(table, tmp_path / "X.csv")
    given = (f"federation.{key}={value}" for key, value in (("label", label), ("client_column", client)))
    shown = cli("run", "federation.dataset=X.csv", *given, "--out", "found", *QUICK).ok.out
    assert line in " ".join(shown.split())
    result = json.loads((tmp_path / "found" / "result.json").read_text())
    assert [column["name"] for column in result["federation"]["columns"]] == [*table.columns]


# Small tables as people publish them, each with one fault (`tests/fixtures/raw`): one command, without preparation.


RAW = Path(__file__).parents[2] / "fixtures" / "raw"
QUICK_DETECTION = ("engine.grid=local", "detection.outlier_repetitions=2", "detection.outlier_min_flags=2")
TABLES = {
    "missing_labels.csv": (("label=outcome", "client_column=site"), 3),
    "missing_quantity.csv": (("label=level", "client_column=site"), 3),
    "latin.csv": (("label=outcome", "client_column=Städte"), 3),
    "wide.csv": (("label=outcome", "client_column=Städte"), 3),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLES)
def test_from_the_file_to_detect(cli: Cli, name: str) -> None:
    report = cli("detect", *arguments(name), *QUICK_DETECTION, "--json").document["report"]
    assert report["num_clients"] == TABLES[name][1]
