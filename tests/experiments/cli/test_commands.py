"""What the commands print and write; all of it in this process."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.trials.log import read_trials
from fedscout.experiments.cli.studies import training_command
from tests.experiments.cli.conftest import SMALL, Cli, parsed
from tests.experiments.cli.test_errors import DEFAULT_KINDS
from tests.experiments.deployment.test_app_folder import study
from tests.experiments.reports.scripted_study import write_study

OWN_STRATEGY = '''
from flwr.serverapp.strategy import FedAvg


class {name}(FedAvg):
    """FedAvg whose mean is scaled."""

    def __init__(self, scale=1.0, **nodes):
        super().__init__(**nodes)
        self.scale = scale

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for name in list(arrays):
            arrays[name] = type(arrays[name])(arrays[name].numpy() * self.scale)
        return arrays, metrics
'''


# run and search


@pytest.mark.slow
def test_run_prints_the_result_alone(cli: Cli, tmp_path: Path) -> None:
    document = cli("run", *SMALL, "--out", "out", "--json").silent.document
    assert {"report", "trials", "best", "baseline", "confirmation"} <= set(document)
    assert document.pop("out") == str(tmp_path / "out")
    assert document == parsed((tmp_path / "out" / "result.json").read_text())
    assert len(document["trials"]) == 1 + 3


@pytest.mark.slow
def test_run_without_out_goes_on_with_the_same_folder(cli: Cli, tmp_path: Path) -> None:
    first = cli("search", *SMALL, "--json").document
    (folder,) = (tmp_path / "runs").iterdir()
    before = {path: path.stat().st_mtime_ns for path in (folder / "trials").iterdir()}
    again = cli("search", *SMALL, "--json").document
    assert again["out"] == first["out"] == str(folder)
    assert {path: path.stat().st_mtime_ns for path in (folder / "trials").iterdir()} == before
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
    roles = [one["role"] for one in by_option["confirmation"]["contestants"]]
    assert roles == ["challenger", "fedavg", *(["tuned-fedavg"] if tuned else [])]


# train


def test_train_logs_one_trial(cli: Cli, tmp_path: Path) -> None:
    command = ("train", *SMALL, "strategy.kind=fedadam", "strategy.eta=0.1", "--out", "out")
    document = cli(*command, "--json").silent.document
    assert (document["trial"]["strategy"], document["trial"]["parameters"]["eta"]) == ("fedadam", 0.1)
    assert len(document["rounds"]["accuracy"]) == len(document["rounds"]["loss"]) == 2
    assert "seconds" not in document["rounds"]  # there is no clock
    table = read_trials(tmp_path / "out")
    assert list(table["fitness"]) == [document["trial"]["fitness"]]
    assert f"{document['trial']['fitness']:.4f}" in cli(*command).out


def test_a_trial_that_fails_says_why_and_is_no_success(cli: Cli) -> None:
    failing = ("train", *SMALL, "strategy.kind=fedavgm", "strategy.server_learning_rate=1e39")
    done = cli(*failing, "--json")
    assert (done.code, done.err) == (1, "")
    trial = parsed(done.out)["trial"]
    assert (trial["status"], trial["fitness"]) == ("failed", 0)
    assert trial["error"].startswith("round ")
    done = cli(*failing)
    assert (done.code, len(done.err.splitlines())) == (1, 1)
    assert trial["error"] in done.err


FAILING_MODEL = """
from torch import nn

class Net(nn.Linear):
    def __init__(self, num_features, num_classes):
        super().__init__(num_features, num_classes)

    def forward(self, rows):
        if rows.any():  # which they are not where a model is tried
            raise RuntimeError("no more than that")
        return super().forward(rows)
"""


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize("command", ["search", "run"])
def test_a_study_of_failed_trainings_is_no_success(cli: Cli, tmp_path: Path, command: str, as_json: bool) -> None:
    (tmp_path / "failing_net.py").write_text(FAILING_MODEL)
    done = cli(command, *SMALL, "model.kind=failing_net:Net", *(["--json"] if as_json else []))
    assert done.code == 1
    if as_json:
        assert parsed(done.out)["best"] is None
    else:
        assert done.out.startswith("No trial")


def test_the_version_is_that_of_the_distribution(cli: Cli) -> None:
    from importlib.metadata import version

    done = cli("--version")
    assert (done.code, done.out, done.err) == (0, f"fedscout {version('fedscout')}\n", "")


def test_a_loss_beyond_all_bounds_is_json_too(cli: Cli, tmp_path: Path) -> None:
    # 1e14 in each of three layers makes outputs of 1e42, beyond float32; the parameters themselves are not.
    (tmp_path / "huge.py").write_text(OWN_STRATEGY.format(name="Huge"))
    own = ["strategy.kind=custom", "strategy.path=huge:Huge", "strategy.values.scale=1e14"]
    document = parsed(cli("train", *SMALL, "training.num_rounds=1", *own, "--json").out)
    assert document["trial"]["status"] == "failed"
    assert document["rounds"]["loss"] == [None]


# A user's own strategy


@pytest.mark.slow
def test_a_class_from_the_working_directory_joins_the_search(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "searched_here.py").write_text(OWN_STRATEGY.format(name="Scaled"))
    (tmp_path / "study.yaml").write_text(
        "search:\n"
        "  strategies: [fedmedian]\n"
        "  customs:\n"
        "    - path: searched_here:Scaled\n"
        "      ranges:\n"
        "        scale: {low: 0.5, high: 1.0}\n"
    )
    trials = cli("search", *SMALL, "study.yaml", "--json").document["trials"]
    own = [trial for trial in trials if trial["strategy"] == "searched_here:Scaled"]
    assert own
    for trial in own:
        assert trial["status"] == "completed"
        assert 0.5 <= trial["parameters"]["values"]["scale"] <= 1.0
    assert "searched_here:Scaled" in cli("strategies", "federation.num_clients=4", "study.yaml", "--json").ok.out


# detect


def test_detect_prints_the_report_alone(cli: Cli, tmp_path: Path) -> None:
    document = cli("detect", *SMALL, "--json").silent.document
    assert set(document) == {"report", "affected_clients"}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_diagnosis_that_was_kept_is_the_study_s(cli: Cli, tmp_path: Path) -> None:
    detected = cli("detect", *SMALL, "--json", "--out", "out").document
    assert parsed((tmp_path / "out" / "report.json").read_text()) == detected["report"]
    written = (tmp_path / "out" / "report.json").stat().st_mtime_ns
    assert cli("run", *SMALL, "--out", "out").code == 0
    assert (tmp_path / "out" / "report.json").stat().st_mtime_ns == written


# trials, strategies


@pytest.mark.slow
def test_trials_shows_the_log(cli: Cli) -> None:
    searched = cli("search", *SMALL, "--json", "--out", "out").document
    rows = cli("trials", "out", "--json").silent.document
    assert [row["trial"] for row in rows] == list(range(1 + 3 + 4))
    assert [row["phase"] for row in rows] == ["baseline"] + ["search"] * 3 + ["confirmation"] * 4
    assert [row["fitness"] for row in rows[:4]] == pytest.approx([trial["fitness"] for trial in searched["trials"]])
    assert len(cli("trials", "out").ok.out.splitlines()) == 1 + len(rows)


def test_strategies_lists_ranges_for_the_number_of_clients(cli: Cli) -> None:
    shown = cli("strategies").silent.out
    assert [kind for kind in DEFAULT_KINDS if kind not in shown] == []
    assert shown.startswith("10 clients; 10 ")
    assert "krum must have at least 3" in " ".join(cli("strategies", "federation.num_clients=2").out.split())


def test_privacy_is_told_before_a_training_and_stands_in_its_log(cli: Cli, tmp_path: Path) -> None:
    private = ("strategy.kind=dp_fedavg", "strategy.epsilon=9", "strategy.around=fedprox")
    told = "the models of 2 rounds with 4 of 4 clients each are (ε = 9, δ = 0.218)"
    assert told in " ".join(cli("strategies", *SMALL, *private).out.split())
    done = cli("train", *SMALL, *private, "--out", "out", "--json")
    assert [line.startswith(f"fedscout: {told}") for line in done.err.splitlines() if told in line] == [True]
    (note,) = done.document["trial"]["notes"]
    assert note.startswith(told)
    (logged,) = read_trials(tmp_path / "out")["notes"]
    assert logged == [note]


# The commands that a finished study names.


STRATEGY = {"kind": "fedavg"}


def test_settings_of_the_search_alone_are_left_out() -> None:
    words = training_command(["training.num_rounds=80", "search.budget=4"], None, STRATEGY)
    assert words == ["fedscout", "train", "training.num_rounds=80", "strategy.kind=fedavg"]


# `fedscout app` says what its model will be, or that there will be none, before anything is written.


def winner(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"strategy": kind, "parameters": parameters, "learning_rate": 0.1}


def test_a_study_whose_winner_shares_nothing_gives_no_app(cli: Cli, tmp_path: Path) -> None:
    study(tmp_path / "study", confirmation=None, best=winner("local"))
    cli("app", "--from", "study", "--out", "app").refuses("", "got local")
    assert not (tmp_path / "app").exists()


def app_config(folder: Path) -> dict[str, Any]:
    """Return what a user of an app may change."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    config: dict[str, Any] = project["tool"]["flwr"]["app"]["config"]
    return config


WINE = ("federation.dataset=wine",)


def test_an_app_waits_for_the_studys_clients(cli: Cli, tmp_path: Path) -> None:
    assert cli("app", *WINE, "federation.num_clients=4", "--out", "app").code == 0
    config = app_config(tmp_path / "app")
    assert (config["min-clients"], config["out"]) == (4, "app-out")


def test_a_strategy_that_is_named_is_what_is_trained(cli: Cli, tmp_path: Path) -> None:
    assert cli("app", *WINE, "strategy.kind=fedadam", "strategy.eta=0.1", "--out", "app").code == 0
    server = (tmp_path / "app" / "app" / "server_app.py").read_text()
    names: dict[str, Any] = {}
    exec(compile(server, "server_app.py", "exec"), names)
    assert names["STRATEGY"] == {"kind": "fedadam", "eta": 0.1}
    for choice in (("--choose", "rules"), ("--max-rounds", "5")):
        cli("app", *WINE, "strategy.kind=fedadam", *choice, "--out", "other").refuses()


def test_an_export_names_the_viewer(cli: Cli, tmp_path: Path) -> None:
    write_study(tmp_path / "out", "search.budget=3", "search.confirmation_seeds=0")
    shown = cli("export", "out").silent.out
    assert "4 trials of wine-" in shown
    assert "optuna-dashboard sqlite:///out/exports/optuna.db" in shown
    assert (tmp_path / "out" / "exports" / "optuna.db").read_bytes().startswith(b"SQLite format 3")
    cli("export", "out", "--to", "excel").refuses("", "'--to'", "'excel'")


# `fedscout bench detection`, `intervals` and `strategies`: a table, as JSON and as it is printed; and mistakes.


COLUMN = "wine, Dirichlet 0.1, 6 clients, rate 0.02"
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


STRATEGIES = (
    *("table", "--rows", "fedmedian,fedprox", "--columns", "dirichlet_0.5", "--seeds", "2", "--out", "out"),
    *("model.hidden=[4]", "training.num_rounds=2", "engine.grid=local"),
)


@pytest.mark.slow
def test_strategies_are_compared_with_fedavg_at_tuned_rates(cli: Cli, tmp_path: Path) -> None:
    shown = cli("bench", "strategies", *STRATEGIES).ok
    assert shown.out.strip() == (tmp_path / "out" / "strategies" / "table.md").read_text().strip()
    (found,) = cli("bench", "strategies", *STRATEGIES, "--json").document["tables"]
    stored = json.loads((tmp_path / "out" / "strategies" / "table.json").read_text())
    assert {**found, "seconds": 0} == {**stored, "seconds": 0}
    assert found["rows"] == ["fedavg", "fedprox", "fedmedian"]
    for cell in found["cells"]:
        assert len(cell["values"]) == 2
        assert cell["figures"]["client learning rate, tuned"][0] in (0.03, 0.1, 0.3, 1.0)


@pytest.mark.parametrize(
    "arguments",
    [
        ("detection", "nowhere"),
        ("detection", "withheld", "--rows", "nothing"),
        ("detection", "bundled", "--columns", "nothing"),
        ("strategies", "--rows", "nothing"),
        ("strategies", "--columns", "nowhere"),
        ("strategies", "nowhere"),
        ("strategies", "strategy.kind=nothing"),
        ("strategies", "--seeds", "1"),
        ("choice", "replay", "--rows", "nobody"),
        ("choice", "replay", "--searcher", "nowhere:Search"),
        ("choice", "trainings", "--columns", "nowhere"),
        ("choice", "trainings", "--columns", COLUMN, "--rows", "FedAvg", "strategy.kind=krum"),
        ("choice", "trainings", "--columns", COLUMN, "--searcher", "nowhere:Search"),
        ("choice", "trainings", "--seeds", "1"),
        ("choice", "trainings", "--scale", "large"),
    ],
    ids=" ".join,
)
def test_mistakes_are_told_before_anything_is_done(cli: Cli, arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = cli("bench", *arguments, "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not list((tmp_path / "out").rglob("*.parquet"))


# `fedscout bench choice` on one federation, and a searcher of the working directory.


SILENT = """
from fedscout.search.searcher import Searcher

class Silent(Searcher):
    def ask(self, num_proposals):
        return []
"""


@pytest.mark.slow
def test_a_searcher_of_the_working_directory_joins_a_replay(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "silent_here.py").write_text(SILENT)
    column = ("--columns", "digits, iid, 10 clients", "--rows", "FedAvg")
    arguments = ("replay", *column, "--searcher", "silent_here:Silent", "--out", "out", "--json")
    (table,) = cli("bench", "choice", *arguments).document["tables"]
    cells = {cell["row"]: cell["values"] for cell in table["cells"]}
    assert cells["silent_here:Silent"] == cells["FedAvg"]


# `fedscout bench engine` on a tiny federation, in this process.


TINY_ENGINE = ("bench", "engine", "--local", "--clients", "2", "--samples", "8", "--rounds", "2")


def test_strategies_in_turn_are_compared_with_fedavg(cli: Cli) -> None:
    arguments = (*TINY_ENGINE, "--strategy", "fedavg", "--strategy", "fedmedian", "--repeats", "2")
    done = cli(*arguments, "--json").ok
    assert done.err.splitlines() == ["fedscout: repetition 1 of 2: fedscout", "fedscout: repetition 2 of 2: fedscout"]
    ours, median = (done.document["programs"][f"fedscout, {kind}"] for kind in ("fedavg", "fedmedian"))
    assert len(ours["round_seconds"]) == 4
    assert 0 < ours["min_seconds"] <= ours["median_seconds"]
    ratio = median["median_seconds"] / ours["median_seconds"]
    assert done.document["ratios"]["fedscout, fedmedian"] == pytest.approx(ratio)


# `fedscout reproduce`: a study from the command to its table, and on.


QUICK = ("fedpilot/advice", "--seeds", "2", "training.num_rounds=1", "training.local_epochs=1", "model.hidden=[8]")


@pytest.mark.stress
def test_a_study_is_written_and_read_again(cli: Cli, tmp_path: Path) -> None:
    done = cli("reproduce", *QUICK, "--out", "again").ok
    folder = tmp_path / "again" / "fedpilot"
    table = (folder / "advice.md").read_text()
    assert table.strip() == done.out.strip()
    assert f"`fedscout reproduce {' '.join((QUICK[0], *QUICK[3:]))} --seeds 2`" in table
    assert (folder / "advice.svg").read_text().startswith("<svg")
    (study,) = cli("reproduce", *QUICK, "--out", "again", "--json").document["studies"]
    first = json.loads((folder / "advice.json").read_text())
    assert {**study, "seconds": 0} == {**first, "seconds": 0}
    assert len(study["cells"]) == 16
    assert all(len(cell["values"]) == 2 for cell in study["cells"])


def test_what_can_be_run_is_listed(cli: Cli) -> None:
    listed = cli("reproduce", "list", "--json").document
    assert {"choice/table6", "client-settings/table3", "fedpilot/advice"} <= listed["studies"].keys()
    assert {"choice/fig1", "server-rate/fig6"} <= listed["absent"].keys()
    text = cli("reproduce", "list").out
    assert all(name in text for name in [*listed["studies"], *listed["absent"]])
    cli("reproduce", "choice/fig1").refuses("an experiment")
    misspelt = cli("reproduce", "fedpilot/advice", "training.num_round=1")
    misspelt.refuses("", "training.num_round ", "training.num_rounds")
