"""Tables that nobody prepared: one line each, from the file to the verdict."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer

from fedscout.experiments.config import load_config
from fedscout.experiments.draft import AIMS, TIMES, Draft, table_suggestions
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


# `fedscout init`: what is suggested, what is asked, and a file that runs.


@pytest.mark.parametrize(
    ("table", "label", "client"),
    [(tweets(), "airline_sentiment", "airline"), (patients(), "outcome", "hospital"), (readings(), "state", "machine")],
    ids=["tweets", "patients", "readings"],
)
def test_what_the_first_rows_suggest(tmp_path: Path, table: pd.DataFrame, label: str, client: str) -> None:
    found = table_suggestions(str(saved(table, tmp_path / "t.csv")))
    assert found is not None
    assert (found.columns, found.label, found.client) == (tuple(table.columns), label, client)


@pytest.mark.slow
def test_two_commands_from_a_file_to_the_verdict(cli: Cli, tmp_path: Path) -> None:
    saved(patients(), tmp_path / "visits.csv")
    done = cli("init", "--yes").ok
    assert "fedscout run study.yaml" in done.err
    assert (tmp_path / "study.yaml").read_text() == done.out
    assert "visits.csv, natural, 3 clients" in cli("run", "study.yaml", "--out", "found", *QUICK).ok.out


def test_a_pipe_takes_what_is_suggested(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False, raising=False)
    assert cli("init", "-o", "mine.yaml").ok
    assert 'dataset: "digits"' in Path("mine.yaml").read_text()


def test_a_person_is_asked_until_the_answer_fits(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(patients(), tmp_path / "visits.csv")
    answers = iter(["visits.csv", "smokr", "smoker", "-", "clients", "minutes"])
    asked = []

    def prompt(question: str, default: str, err: bool) -> str:
        asked.append((question.partition(" (")[0], default))
        return next(answers)

    monkeypatch.setattr(typer, "prompt", prompt)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    done = cli("init").ok
    assert "got 'smokr'; did you mean smoker?" in done.err
    assert [default for _, default in asked] == ["visits.csv", "outcome", "outcome", "hospital", "accuracy", "hour"]
    config = load_config(["study.yaml"])
    assert (config.federation.label, config.federation.client_column) == ("smoker", None)
    assert config.search.objectives == ("worst_clients",)
    assert config.training.num_rounds == 10


@pytest.mark.parametrize("aim", AIMS)
@pytest.mark.parametrize("time", TIMES)
def test_every_answer_makes_a_sound_study(tmp_path: Path, aim: str, time: str) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(Draft('a "b": #.csv', "la: bel", None, aim, time).text)  # type: ignore[arg-type]
    config = load_config((), path)
    assert (config.federation.dataset, config.federation.label) == ('a "b": #.csv', "la: bel")
    assert (config.training.num_rounds, config.search.budget, config.search.confirmation_seeds) == TIMES[time]  # type: ignore[index]


def test_what_can_not_be_is_one_clear_line(cli: Cli, tmp_path: Path) -> None:
    cli("init", "none.csv").refuses("federation.dataset", "got 'none.csv'", "looked for none.csv")
    cli("init", "nonsense").refuses("the data", "got 'nonsense'")
    (tmp_path / "study.yaml").write_text("seed: 1\n")
    cli("init", "t.csv").refuses("", "study.yaml")
