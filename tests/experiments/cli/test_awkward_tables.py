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


def test_describe_lists_every_column(cli: Cli, tmp_path: Path) -> None:
    saved(patients(), tmp_path / "X.csv")
    choices = ["federation.dataset=X.csv", "federation.label=outcome", "federation.client_column=hospital"]
    done = cli("describe", *choices).ok
    assert [line for line in done.out.splitlines() if line.startswith("discharge_code  category")]
    assert "columns.patient_id=number" in done.out
    told = cli("describe", "--json", *choices).document["facts"]["columns"]
    assert {column["name"] for column in told} == {*patients().columns}


@pytest.mark.slow
def test_brackets_in_a_column_s_name_are_shown_as_they_are(cli: Cli, tmp_path: Path) -> None:
    saved(patients().rename(columns={"patient_id": "[red]id", "ward": "[ward]"}), tmp_path / "X.csv")
    choices = ["federation.dataset=X.csv", "federation.label=outcome", "federation.client_column=hospital"]
    listed = cli("describe", *choices)
    assert [line for line in listed.out.splitlines() if line.startswith("[red]id  ")]
    assert """'columns={"[red]id": number}'""" in listed.out
    assert "left out [red]id, [ward]" in " ".join(cli("run", *choices, "--out", "found", *QUICK).out.split())
