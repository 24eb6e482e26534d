"""What the commands print and write, and strategies, models, effects and tables of the user's on them."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from pathlib import Path

import pandas as pd
import pytest

from fedscout.engine.trials.log import read_trials
from fedscout.experiments.cli.studies import training_command
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, STRATEGIES, parse_strategy
from fedscout.strategies.specification import LAYERS
from fedscout.strategies.table import CLIENT_KINDS, SERVER_RULE_KINDS
from tests.experiments.cli.conftest import SMALL, STRATEGY, Cli, parsed
from tests.experiments.cli.test_errors import DEFAULT_KINDS
from tests.experiments.data.awkward_tables import patients, saved, tweets
from tests.experiments.deployment.test_app_folder import study
from tests.experiments.reports.scripted_study import write_study

# run and search


@pytest.mark.slow
def test_run_prints_the_result_alone_and_goes_on_with_the_same_folder(cli: Cli, tmp_path: Path) -> None:
    first = cli("search", *SMALL, "--json").silent.document
    (folder,) = (tmp_path / "runs").iterdir()
    assert first == {**parsed((folder / "result.json").read_text()), "out": str(folder)}
    again = cli("search", *SMALL, "--json").document
    assert {**again, "timings": 0} == {**first, "timings": 0}


@pytest.mark.slow
@pytest.mark.parametrize("tuned", [True, False])
def test_a_tuned_baseline_by_default_or_by_option_or_key(cli: Cli, tuned: bool) -> None:
    settings = [setting for setting in SMALL if "tuned_baseline" not in setting]
    key, other = (f"search.tuned_baseline={value}".lower() for value in (tuned, not tuned))
    option = "--tuned-baseline" if tuned else "--no-tuned-baseline"
    documents = [cli("search", *settings, *more, "--json").document for more in ((other, option), (key,), ())]
    by_option, by_key, by_default = documents
    assert by_option["out"] == by_key["out"]
    assert (by_option["out"] == by_default["out"]) is tuned
    assert ("tuning" in by_option, "tuning" in by_default) == (tuned, True)
    roles = [one["role"] for one in by_option["confirmation"]["candidates"]]
    assert roles == ["challenger", "tuned-fedavg" if tuned else "fedavg"]


# train


def test_train_prints_its_trial_and_its_rounds(cli: Cli) -> None:
    command = ("train", *SMALL, "strategy.kind=fedadam", "strategy.eta=0.1", "--out", "out", "--json")
    document = cli(*command).silent.document
    assert (document["trial"]["strategy"], document["trial"]["parameters"]["eta"]) == ("fedadam", 0.1)
    assert len(document["rounds"]["accuracy"]) == len(document["rounds"]["loss"]) == 2
    assert "seconds" not in document["rounds"]  # there is no clock


def test_a_study_of_failed_trainings_is_no_success(cli: Cli) -> None:
    """A step multiplies the weights by 1 − 100·10."""
    failing = (*SMALL, "training.learning_rate=100", "training.weight_decay=10", "training.batch_size=1")
    assert cli("run", *failing).code == 1
    done = cli("search", *failing, "--json")
    assert (done.code, parsed(done.out)["best"]) == (1, None)


def test_a_loss_beyond_all_bounds_is_json_too(cli: Cli, tmp_path: Path) -> None:
    # 1e14 in each of three layers makes outputs of 1e42, beyond float32; the parameters themselves are not.
    (tmp_path / "huge.py").write_text(STRATEGY.replace("from my_factor import FACTOR", "FACTOR = 1e14"))
    own = ["strategy.kind=custom", "strategy.path=huge:Scaled"]
    failing = ("train", *SMALL, "training.num_rounds=1", *own)
    done = cli(*failing, "--json")
    document = parsed(done.out)
    assert (done.code, document["trial"]["status"]) == (1, "failed")
    assert document["trial"]["error"] in cli(*failing).err
    assert document["rounds"]["loss"] == [None]


# detect


def test_the_version_is_told(cli: Cli) -> None:
    assert cli("--version").silent.out.startswith("fedscout ")


def test_detect_prints_the_report_alone(cli: Cli, tmp_path: Path) -> None:
    document = cli("detect", *SMALL, "--json").silent.document
    assert set(document) == {"report", "affected_clients"}
    assert list(tmp_path.iterdir()) == []


# trials, strategies


@pytest.mark.slow
def test_trials_shows_the_log(cli: Cli) -> None:
    searched = cli("search", *SMALL, "--json", "--out", "out").document
    rows = cli("trials", "out", "--json").silent.document
    assert [row["trial"] for row in rows] == list(range(1 + 3 + 4))
    assert [row["phase"] for row in rows] == ["baseline"] + ["search"] * 3 + ["confirmation"] * 4
    assert [row["fitness"] for row in rows[:4]] == pytest.approx([trial["fitness"] for trial in searched["trials"]])
    assert len(cli("trials", "out").ok.out.splitlines()) == 1 + len(rows)


def test_privacy_is_told_before_a_training_and_stands_in_its_log(cli: Cli, tmp_path: Path) -> None:
    private = ("strategy.kind=dp_fedavg", "strategy.epsilon=9", "strategy.around=fedprox")
    (note,) = cli("strategies", *SMALL, *private, "--json").document["notes"]
    assert "ε = 9, δ = 0.218" in note
    done = cli("train", *SMALL, *private, "--out", "out", "--json")
    assert done.err == f"fedscout: {note}\n"
    assert done.document["trial"]["notes"] == [note]
    (logged,) = read_trials(tmp_path / "out")["notes"]
    assert logged == [note]


# The commands that a finished study names.


def test_settings_of_the_search_alone_are_left_out() -> None:
    words = training_command(["training.num_rounds=80", "search.budget=4"], None, {"kind": "fedavg"})
    assert words == ["fedscout", "train", "training.num_rounds=80", "strategy.kind=fedavg"]


# `fedscout app` says what its model will be, or that there will be none, before anything is written.


def test_a_study_whose_winner_shares_nothing_gives_no_app(cli: Cli, tmp_path: Path) -> None:
    best = {"strategy": "local", "parameters": {}, "learning_rate": 0.1}
    study(tmp_path / "study", confirmation=None, best=best)
    cli("app", "--from", "study", "--out", "app").refuses()
    cli("app", "seed=1", "--from", "study", "--out", "app").refuses("the settings", "--from")
    assert not (tmp_path / "app").exists()


def test_an_app_waits_for_the_studys_clients_and_trains_what_is_named(cli: Cli, tmp_path: Path) -> None:
    named = ("federation.dataset=wine", "strategy.kind=fedadam")
    assert cli("app", *named, "federation.num_clients=4", "strategy.eta=0.1", "--out", "app").code == 0
    project = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    config = project["tool"]["flwr"]["app"]["config"]
    assert (config["min-clients"], config["out"]) == (4, "app-out")
    assert "STRATEGY = {'kind': 'fedadam', 'eta': 0.1}" in (tmp_path / "app" / "app" / "server_app.py").read_text()
    for choice in (("--choose", "rules"), ("--max-rounds", "5")):
        cli("app", *named, *choice, "--out", "other").refuses()


def test_an_export_names_the_viewer(cli: Cli, tmp_path: Path) -> None:
    write_study(tmp_path / "out", "search.budget=3", "search.confirmation_seeds=0")
    assert "sqlite:///out/exports/optuna.db" in cli("export", "out").silent.out
    assert (tmp_path / "out" / "exports" / "optuna.db").is_file()


# `fedscout bench detection`, `intervals` and `strategies`: a table, as JSON and as it is printed; and mistakes.


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
    shown = cli("bench", suite, table, *given, "--seeds", "8", "--out", "out").ok
    assert shown.out.strip() == (tmp_path / "out" / suite / f"{table}.md").read_text().strip()
    (found,) = cli("bench", suite, table, *given, "--seeds", "8", "--out", "out", "--json").document["tables"]
    (cell,) = found["cells"]
    assert len(cell["values"]) == values
    assert {*cell["values"]} <= {0.0, 1.0}


COLUMN = "--columns 'wine, Dirichlet 0.1, 6 clients, rate 0.02'"
MISTAKES = (
    *("detection nowhere", "detection withheld --rows nothing", "detection bundled --columns nothing"),
    *("strategies --rows nothing", "strategies strategy.kind=nothing", "strategies --seeds 1"),
    *("choice replay --searcher nowhere:Search", "choice trainings --columns nowhere", "choice trainings --seeds 1"),
    f"choice trainings {COLUMN} --rows FedAvg strategy.kind=krum",
    *(f"choice trainings {COLUMN} --searcher nowhere:Search", "choice trainings --scale large"),
)


@pytest.mark.parametrize("arguments", MISTAKES)
def test_mistakes_are_told_before_anything_is_done(cli: Cli, arguments: str, tmp_path: Path) -> None:
    done = cli("bench", *shlex.split(arguments), "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not list((tmp_path / "out").rglob("*.parquet"))


# `fedscout bench engine` on a tiny federation, in this process.


TINY_ENGINE = ("bench", "engine", "--local", "--clients", "2", "--samples", "8", "--rounds", "2")


def test_strategies_in_turn_are_compared_with_fedavg(cli: Cli) -> None:
    arguments = (*TINY_ENGINE, "--strategy", "fedavg", "--strategy", "fedmedian", "--repeats", "2")
    done = cli(*arguments, "--json").ok
    ours, median = (done.document["programs"][f"fedscout, {kind}"] for kind in ("fedavg", "fedmedian"))
    assert len(ours["round_seconds"]) == 4
    assert 0 < ours["min_seconds"] <= ours["median_seconds"]
    ratio = median["median_seconds"] / ours["median_seconds"]
    assert done.document["ratios"]["fedscout, fedmedian"] == pytest.approx(ratio)


# `fedscout reproduce`: a study from the command to its table, and on.


ADVICE = ("fedpilot/advice", "--seeds", "2", "training.num_rounds=1", "training.local_epochs=1", "model.hidden=[8]")


@pytest.mark.stress
def test_a_study_is_written_and_read_again(cli: Cli, tmp_path: Path) -> None:
    done = cli("reproduce", *ADVICE, "--out", "again").ok
    folder = tmp_path / "again" / "fedpilot"
    table = (folder / "advice.md").read_text()
    assert table.strip() == done.out.strip()
    assert (folder / "advice.svg").read_text().startswith("<svg")
    (study,) = cli("reproduce", *ADVICE, "--out", "again", "--json").document["studies"]
    first = json.loads((folder / "advice.json").read_text())
    assert {**study, "seconds": 0} == {**first, "seconds": 0}
    assert len(study["cells"]) == 16
    assert all(len(cell["values"]) == 2 for cell in study["cells"])
    assert "## fedpilot/advice" in (tmp_path / "again" / "reproduction.md").read_text().splitlines()
    listed = cli("reproduce", "list", "--out", "again", "--json").document["results"]
    assert sum(listed["fedpilot/advice"].values()) == len(study["statements"])


def test_what_can_be_run_is_listed(cli: Cli) -> None:
    listed = cli("reproduce", "list", "--json").document
    assert {"choice/table6", "client-settings/table3", "fedpilot/advice"} <= listed["studies"].keys()
    assert "choice/fig1" in listed["absent"]
    assert "choice/fig1" in cli("reproduce", "list").ok.out
    cli("reproduce", "choice/fig1").refuses("an experiment")
    cli("reproduce", "fedpilot/advice", "training.num_round=1").refuses("", "training.num_round ")


# Strategies outside the default search space, models, effects and tables of the user's on the command line.


SERVER = ("federation.server_rows=20", "federation.server_labels=true")
CLOCK = "federation.scenario={kind: latency, clients: all, mean_seconds: 1}"
"""These are what some strategies need."""


def test_strategies_by_default_by_name_and_in_pairs_are_listed(cli: Cli) -> None:
    document = cli("strategies", *SERVER, CLOCK, "--json").document
    kinds = {name: [entry["title"] for entry in document[name]["oneOf"]] for name in ("schema", "by_name")}
    assert kinds == {"schema": [*BUILT_IN_KINDS], "by_name": [*CHOSEN_BY_NAME_KINDS]}
    assert document["pairs"] == {"server_rules": [*SERVER_RULE_KINDS], "clients": [*CLIENT_KINDS]}
    everything = f"search.strategies=[{','.join(CHOSEN_BY_NAME_KINDS)}]"
    assert cli("strategies", *SERVER, CLOCK, everything, "--json").document["by_name"] is None
    half = cli("strategies", "training.fraction_train=0.5", "--json").document
    assert (half["num_clients"], half["num_sampled"]) == (10, 5)
    for kinds_shown, settings in ((CHOSEN_BY_NAME_KINDS, (*SERVER, CLOCK)), (["krum"], ("federation.num_clients=2",))):
        shown = cli("strategies", *settings).silent.out
        assert [kind for kind in (*DEFAULT_KINDS, *kinds_shown) if kind not in shown] == []


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    "kind", [*(kind for kind in CHOSEN_BY_NAME_KINDS if LAYERS.isdisjoint(STRATEGIES[kind].requires)), "fedyogi+fedbn"]
)
def test_one_is_trained_by_name(cli: Cli, tmp_path: Path, kind: str) -> None:
    more = {"fedbuff": [CLOCK], "fedyogi+fedbn": ["model.norm=batch"]}.get(kind, [])
    assert cli("train", *SMALL, *SERVER, *more, f"strategy.kind={kind}", "--out", "out").ok
    (row,) = read_trials(tmp_path / "out").to_dict("records")
    assert (row["strategy"], row["status"]) == (kind, "completed")
    for name, value in parse_strategy(kind).parameters().items():
        assert row[f"param_{name}"] == value


# Pairs on the command line: trained, searched, resumed, listed.


@pytest.mark.slow
def test_all_strategies_are_searched_and_what_is_impossible_is_left_out(cli: Cli, tmp_path: Path) -> None:
    command = ("search", *SMALL, "search.strategies=all", "search.confirmation_seeds=0", "training.momentum=0.5")
    assert {trial["status"] for trial in cli(*command, "--out", "out", "--json").document["trials"]} == {"completed"}


# `fedscout scenarios`, and what the documentation shows of them.


DOCUMENTATION = Path(__file__).resolve().parents[3] / "docs" / "scenarios.md"


def test_the_documentation_names_every_effect_and_its_keys(cli: Cli) -> None:
    effects = cli("scenarios", "--json").document["effects"]
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*)\|$", DOCUMENTATION.read_text(), re.MULTILINE))
    for kind, schema in effects.items():
        named = {"kind", "clients", "num_clients", *re.findall(r"`(\w+)`", rows[kind])}
        assert {*schema["properties"]} <= named, kind


@pytest.mark.slow
@pytest.mark.parametrize("view", ["own", "clean"])
def test_a_training_under_label_noise_tells_its_score_against_the_other_labels_too(cli: Cli, view: str) -> None:
    settings = (*SMALL, "federation.scenario={kind: label_flip, rate: 1, clients: [2]}", f"search.view={view}")
    told = cli("train", *settings, "--json", "--out", "json").document
    assert told["view"] == view
    other = told["trial"]["clean_fitness" if view == "own" else "own_fitness"]
    assert f"{other:.4f}" in cli("train", *settings, "--out", "screen").out


# Tables that nobody prepared: one line each, from the file to the verdict.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "label", "client"),
    [(tweets(), "airline_sentiment", "airline"), (patients(), "outcome", "hospital")],
    ids=["tweets", "patients"],
)
def test_one_line_to_the_end(cli: Cli, tmp_path: Path, table: pd.DataFrame, label: str, client: str) -> None:
    saved(table, tmp_path / "X.csv")
    given = (f"federation.{key}={value}" for key, value in (("label", label), ("client_column", client)))
    quick = (one for one in SMALL if not one.startswith("federation."))
    assert cli("run", "federation.dataset=X.csv", *given, "--out", "found", *quick).ok
    result = json.loads((tmp_path / "found" / "result.json").read_text())
    assert [column["name"] for column in result["federation"]["columns"]] == [*table.columns]
