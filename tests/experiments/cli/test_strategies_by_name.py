"""Strategies outside the default search space, models, effects and tables of the user's on the command line."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedscout.engine.trials.log import read_trials
from fedscout.experiments.scenarios.table import EFFECTS, SCENARIOS
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, STRATEGIES, parse_strategy
from fedscout.strategies.specification import LAYERS
from fedscout.strategies.table import CLIENT_KINDS, SERVER_RULE_KINDS
from tests.experiments.cli.conftest import SMALL, Cli
from tests.experiments.data.awkward_tables import patients, readings, saved, tweets

NAMED = (*SMALL, "search.strategies=[fedavg,rfa,fedexp]", "search.confirmation_seeds=0", "search.budget=4")

SERVER = ("federation.server_rows=20", "federation.server_labels=true")
CLOCK = "federation.scenario={kind: latency, clients: all, mean_seconds: 1}"
"""These are what some strategies need."""

EVERYTHING = f"search.strategies=[{','.join(CHOSEN_BY_NAME_KINDS)}]"


def test_those_that_need_rows_of_the_server_s_or_a_clock_are_listed_as_not_possible_without(cli: Cli) -> None:
    listed = " ".join(cli("strategies").out.split())
    assert [kind for kind in ("fedbuff", "feddf", "fedbio") if f"unavailable: {kind} " not in listed] == []


TOLD = {
    **dict.fromkeys(("communities", "rhfl"), "models"),
    **dict.fromkeys(("ditto", "fedper", "fedrep", "fine_tuning", "fedbabu", "pfedme", "fedrod"), "the saved model"),
    **dict.fromkeys(("fedex", "fedpop"), "9 configurations"),
    "dp_fedavg": "scores",
}
"""A word of what is said of some before they are trained."""


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "kind", [kind for kind in CHOSEN_BY_NAME_KINDS if LAYERS.isdisjoint(STRATEGIES[kind].requires)]
)
def test_one_is_trained_by_name(cli: Cli, tmp_path: Path, kind: str) -> None:
    timed = [CLOCK] if kind == "fedbuff" else []
    done = cli("train", *SMALL, *SERVER, *timed, f"strategy.kind={kind}", "--out", "out", "--json").ok
    assert all(TOLD.get(kind, "nothing") in line for line in done.err.splitlines())
    (row,) = read_trials(tmp_path / "out").to_dict("records")
    assert (row["strategy"], row["status"]) == (kind, "completed")
    for name, value in parse_strategy(kind).parameters().items():
        assert row[f"param_{name}"] == value


@pytest.mark.slow
def test_a_study_that_names_some_searches_and_logs_them(cli: Cli, tmp_path: Path) -> None:
    document = cli("search", *NAMED, "--out", "out", "--json").document
    tried = {trial["strategy"] for trial in document["trials"]}
    assert {"fedavg", "rfa", "fedexp"} >= tried > {"fedavg"}
    assert {trial["status"] for trial in document["trials"]} == {"completed"}
    assert {*read_trials(tmp_path / "out")["strategy"]} == tried


def test_they_are_listed_after_the_search_space_with_how_to_name_them(cli: Cli) -> None:
    listed = " ".join(cli("strategies", *SERVER, CLOCK).out.split())
    for kind in CHOSEN_BY_NAME_KINDS:
        assert f" search.strategies=[{kind}]" in listed
    assert listed.index("qfedavg") < listed.index("rfa") < listed.index("fedexp")
    named = " ".join(cli("strategies", *SERVER, CLOCK, EVERYTHING).out.split())
    assert not [kind for kind in CHOSEN_BY_NAME_KINDS if f" search.strategies=[{kind}]" in named]
    assert "fedadam" not in named.partition("Pairs, such as")[0]


def test_the_schema_of_the_search_space_is_without_them(cli: Cli) -> None:
    document = cli("strategies", *SERVER, CLOCK, "--json").document
    kinds = {name: [entry["title"] for entry in document[name]["oneOf"]] for name in ("schema", "by_name")}
    assert kinds == {"schema": [*BUILT_IN_KINDS], "by_name": [*CHOSEN_BY_NAME_KINDS]}
    assert cli("strategies", *SERVER, CLOCK, "--json", EVERYTHING).document["by_name"] is None


# Pairs on the command line: trained, searched, resumed, listed.


def test_one_is_trained_and_logged_with_the_parameters_of_both(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", *SMALL, "model.norm=batch", "strategy.kind=fedyogi+fedbn", "strategy.eta=0.03", "--out", "out")
    assert (done.code, len(done.err.splitlines())) == (0, 1)  # what stays with the clients
    (row,) = read_trials(tmp_path / "out").to_dict("records")
    assert (row["strategy"], row["status"], row["param_eta"]) == ("fedyogi+fedbn", "completed", 0.03)
    assert [trial["strategy"] for trial in cli("trials", "out", "--json").document] == ["fedyogi+fedbn"]


@pytest.mark.slow
def test_all_strategies_are_searched_and_what_is_impossible_is_left_out(cli: Cli, tmp_path: Path) -> None:
    command = ("search", *SMALL, "search.strategies=all", "search.confirmation_seeds=0", "training.momentum=0.5")
    assert {trial["status"] for trial in cli(*command, "--out", "out", "--json").document["trials"]} == {"completed"}


def test_what_makes_pairs_is_listed(cli: Cli) -> None:
    listed = " ".join(cli("strategies").out.split())
    assert listed.index(", ".join(SERVER_RULE_KINDS)) < listed.index(", ".join(CLIENT_KINDS))
    half = "training.fraction_train=0.5"
    document = cli("strategies", "--json", half, "search.strategies=[fedavg,fedadam+fedprox]").document
    assert (document["num_clients"], document["num_sampled"]) == (10, 5)
    assert document["pairs"] == {"server_rules": [*SERVER_RULE_KINDS], "clients": [*CLIENT_KINDS]}
    _, pair = document["schema"]["oneOf"]
    assert pair["required"] == ["kind", "eta", "tau", "beta_1", "beta_2", "proximal_mu"]
    assert pair["properties"]["kind"] == {"const": "fedadam+fedprox"}


# A user's own model on the command line: trained from the working directory, and every mistake a line and code 2.


NETS = """
from torch import nn

print("noise on standard output")


def net(num_features, num_classes):
    return nn.Sequential(nn.Linear(num_features, 8), nn.Tanh(), nn.Linear(8, num_classes))


def wrong(num_features, num_classes):
    return nn.Sequential(nn.Linear(num_features, 8), nn.Tanh(), nn.Linear(9, num_classes))
"""


@pytest.fixture
def nets(cli: Cli, tmp_path: Path) -> Iterator[None]:
    """A module of the user's in the working directory, beside one that bears the name of one of our packages."""
    (tmp_path / "cli_users_nets.py").write_text(NETS)
    (tmp_path / "search.py").write_text("raise RuntimeError('shadowed')\n")
    yield
    sys.modules.pop("cli_users_nets", None)


@pytest.mark.usefixtures("nets")
def test_it_is_trained_and_named(cli: Cli, tmp_path: Path) -> None:
    settings = ("search.budget=1", "search.strategies=[fedadam]", "search.confirmation_seeds=0")
    document = cli("search", *SMALL, *settings, "model.kind=cli_users_nets:net", "--json", "--out", "out").document
    assert document["federation"]["model"] == "cli_users_nets:net"


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("command", ["run", "detect", "train", "search"])
def test_a_module_that_does_not_fit(cli: Cli, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opening = "fedscout.experiments.studies.workflow.open_runner"
    monkeypatch.setattr(opening, lambda *_: pytest.fail("hosts would start"))
    done = cli(command, "federation.dataset=wine", "model.kind=cli_users_nets:wrong", "--out", "out")
    (line,) = [line for line in done.err.splitlines() if line.startswith("fedscout: ")]
    replace(done, err=line).refuses("model.kind=cli_users_nets:wrong", "(13,)", "RuntimeError", "2x8 and 9x3")
    assert "Traceback" not in done.err
    assert not (tmp_path / "out" / "trials").exists()


# `fedscout scenarios`, and what the documentation shows of them.


DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "scenarios.md"


def test_the_documentation_names_every_effect_and_its_keys(cli: Cli) -> None:
    effects = cli("scenarios", "--json").document["effects"]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)\|$", DOCUMENTATION.read_text(), re.MULTILINE))
    for kind, schema in effects.items():
        named = {"kind", "clients", "num_clients", *re.findall(r"`(\w+)`", rows[kind])}
        assert {*schema["properties"]} <= named, kind


def test_schemas_of_all_effects(cli: Cli) -> None:
    document = cli("scenarios", "--json").document
    assert document["scenarios"] == list(SCENARIOS)
    assert set(document["effects"]) == set(EFFECTS)
    assert "std" in document["effects"]["feature_noise"]["required"]


def test_a_mistake_in_an_effect_is_one_line(cli: Cli) -> None:
    wine = ("detect", "engine.grid=local", "federation.dataset=wine", "federation.num_clients=4")
    cli(*wine, "federation.scenario={kind: feature_noise}").refuses("federation.scenario.0.std", "feature_noise")
    absent = cli(*wine, "federation.scenario={kind: poisoning, clients: [4]}")
    absent.refuses("federation.scenario.0.clients", "4", "got 4")


TRAINED = ("engine.grid=local", "federation.dataset=wine", "federation.num_clients=4", "training.num_rounds=1")
FLIPPED = "federation.scenario={kind: label_flip, rate: 1, clients: [2]}"


@pytest.mark.slow
@pytest.mark.parametrize("view", ["own", "clean"])
def test_a_training_under_label_noise_tells_its_score_against_the_other_labels_too(cli: Cli, view: str) -> None:
    settings = (*TRAINED, FLIPPED, f"search.view={view}")
    told = cli("train", *settings, "--json", "--out", "json").document
    assert told["view"] == view
    other = told["trial"]["clean_fitness" if view == "own" else "own_fitness"]
    shown = cli("train", *settings, "--out", "screen").out
    assert f"{other:.4f}" in shown
    assert "client 2" in " ".join(shown.split())


# Tables that nobody prepared: one line each, from the file to the verdict.


QUICK = (
    *("engine.grid=local", "training.num_rounds=2"),
    *("search.budget=1", "search.generation_size=1", "search.confirmation_seeds=2"),
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
