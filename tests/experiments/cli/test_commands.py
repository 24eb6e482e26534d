"""What the commands print and write; all of it in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import verdicts
from fedscout.search.confirmation.confirmation import Confirmation
from tests.experiments.cli.conftest import SMALL, Cli

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


def parsed(text: str) -> dict[str, Any]:
    """Return what is alone on standard output; NaN and the like are no JSON."""

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    document: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return document


# run and search


@pytest.mark.slow
def test_run_prints_the_result_alone(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", *SMALL, "--out", "out", "--json")
    assert (done.code, done.err) == (0, "")
    document = parsed(done.out)
    assert {"report", "trials", "best", "baseline", "confirmation"} <= set(document)
    assert document.pop("out") == str(tmp_path / "out")
    assert document == parsed((tmp_path / "out" / "result.json").read_text())
    assert len(document["trials"]) == 1 + 3


@pytest.mark.slow
def test_run_shows_diagnosis_trials_winner_and_interval(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", *SMALL, "--out", "out", "--verbose")
    assert done.code == 0
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    text = " ".join(done.out.split())
    confirmation = Confirmation.model_validate(result["confirmation"])
    assert text.startswith(f"Use {confirmation.advised}. ")
    assert f" Use {confirmation.advised}. {' '.join(confirmation.sentence.split())} " in text
    for verdict in verdicts(HeterogeneityReport.model_validate(result["report"])):
        assert " ".join(verdict.sentence.split()) in text
        assert " ".join(verdict.beside.split()) in text
    for trial in result["trials"]:
        assert f"{trial['strategy']}" in text
        assert f"{trial['fitness']:.4f}" in text
    assert " ".join(result["confirmation"]["sentence"].split()) in text
    assert "95 % interval" in text
    assert f"Log of every trial: {tmp_path / 'out' / 'trials'} (" in done.out.splitlines()[-2]
    assert done.out.splitlines()[-1] == f"Result: {tmp_path / 'out' / 'result.json'}"


def test_a_long_path_is_not_broken(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / ("long" * 40) / "[bold]"
    done = cli("train", *SMALL, "--out", out)
    assert done.code == 0
    assert f"Log: {out / 'trials'}" in done.out.splitlines()


@pytest.mark.slow
def test_run_without_out_goes_on_with_the_same_folder(cli: Cli, tmp_path: Path) -> None:
    first = parsed(cli("search", *SMALL, "--json").out)
    (folder,) = (tmp_path / "runs").iterdir()
    before = {path: path.stat().st_mtime_ns for path in (folder / "trials").iterdir()}
    again = parsed(cli("search", *SMALL, "--json").out)
    assert again["out"] == first["out"] == str(folder)
    assert {path: path.stat().st_mtime_ns for path in (folder / "trials").iterdir()} == before
    assert {**again, "timings": 0} == {**first, "timings": 0}


@pytest.mark.slow
def test_search_does_not_ask_the_detectors(cli: Cli) -> None:
    document = parsed(cli("search", *SMALL, "--json", "--out", "out").out)
    assert document["report"] is None
    assert "Diagnosis" not in cli("search", *SMALL, "--out", "out", "--verbose").out
    assert "Label skew" not in cli("search", *SMALL, "--out", "out").out


@pytest.mark.slow
def test_tuned_baseline_by_option_or_key(cli: Cli) -> None:
    by_option = parsed(cli("search", *SMALL, "--tuned-baseline", "--json").out)
    by_key = parsed(cli("search", *SMALL, "search.tuned_baseline=true", "--json").out)
    assert by_option["out"] == by_key["out"]
    roles = [one["role"] for one in by_option["confirmation"]["contestants"]]
    assert roles == ["challenger", "fedavg", "tuned-fedavg"]
    assert "FedAvg by client learning rate" in cli("search", *SMALL, "--tuned-baseline", "--verbose").out


@pytest.mark.slow
def test_without_a_tuned_baseline_by_option_or_key(cli: Cli) -> None:
    by_default = [setting for setting in SMALL if "tuned_baseline" not in setting]
    by_option = parsed(cli("search", *by_default, "--no-tuned-baseline", "--json").out)
    by_key = parsed(cli("search", *SMALL, "--json").out)
    tuned = parsed(cli("search", *by_default, "--json").out)
    assert by_option["out"] == by_key["out"] != tuned["out"]
    assert ("tuning" in by_option, "tuning" in tuned) == (False, True)
    assert [one["role"] for one in by_option["confirmation"]["contestants"]] == ["challenger", "fedavg"]


@pytest.mark.slow
def test_a_file_and_arguments_make_one_configuration(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("seed: 4\nsearch: {budget: 2}\n")
    by_option = parsed(cli("search", "-c", "study.yaml", *SMALL[:5], "search.confirmation_seeds=0", "--json").out)
    as_argument = parsed(cli("search", *SMALL[:5], "study.yaml", "search.confirmation_seeds=0", "--json").out)
    assert by_option["config"]["seed"] == as_argument["config"]["seed"] == 4
    assert by_option["config"]["search"]["budget"] == 3  # arguments win over the option's file
    assert as_argument["config"]["search"]["budget"] == 2  # and a later file over arguments


@pytest.mark.slow
def test_a_trial_that_fails_is_shown_and_the_study_goes_on(cli: Cli, tmp_path: Path) -> None:
    # A scale of 1e30 a round takes the model beyond float32 in the second.
    (tmp_path / "exploding.py").write_text(OWN_STRATEGY.format(name="Exploding"))
    custom = "search.customs=[{path: 'exploding:Exploding', values: {scale: 1e30}}]"
    arguments = ["search", *SMALL, "search.strategies=[fedmedian]", "search.budget=2", custom]
    done = cli(*arguments)
    assert done.code == 0
    assert "failed" in done.out
    document = parsed(cli(*arguments, "--json").out)
    (broken,) = [trial for trial in document["trials"] if trial["status"] == "failed"]
    assert (broken["strategy"], broken["fitness"]) == ("exploding:Exploding", 0)
    assert "not finite" in broken["error"]


# train


def test_train_tells_what_rounds_take_on_the_simulated_clock(cli: Cli, tmp_path: Path) -> None:
    clock = "federation.scenario=[{kind: latency, clients: all, shift_seconds: 3, mean_seconds: 0}]"
    document = parsed(cli("train", *SMALL, clock, "--json", "--out", "out").out)
    assert document["rounds"]["seconds"] == [3.0, 3.0]
    (logged,) = pd.read_parquet(tmp_path / "out" / "trials")["round_seconds"]
    assert list(logged) == document["rounds"]["seconds"]


def test_train_logs_one_trial(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", *SMALL, "strategy.kind=fedadam", "strategy.eta=0.1", "--json", "--out", "out")
    assert (done.code, done.err) == (0, "")
    document = parsed(done.out)
    assert (document["trial"]["strategy"], document["trial"]["parameters"]["eta"]) == ("fedadam", 0.1)
    assert len(document["rounds"]["accuracy"]) == len(document["rounds"]["loss"]) == 2
    assert "seconds" not in document["rounds"]  # there is no clock
    table = pd.read_parquet(tmp_path / "out" / "trials")
    assert list(table["fitness"]) == [document["trial"]["fitness"]]
    shown = cli("train", *SMALL, "strategy.kind=fedadam", "strategy.eta=0.1", "--out", "out")
    assert f"{document['trial']['fitness']:.4f}" in shown.out


def test_who_chose_the_clients_is_shown_where_a_policy_did(cli: Cli) -> None:
    some = ("training.fraction_train=0.5", "strategy.kind=fedavg")
    chosen = cli("train", *SMALL, *some, "selection.kind=oort", "--out", "chosen")
    assert chosen.code == 0, chosen.err
    assert "fedavg(selection=oort)" in chosen.out
    plain = cli("train", *SMALL, *some, "--out", "plain")
    assert "selection" not in plain.out
    (row,) = parsed(cli("trials", "chosen", "--json").out)
    assert row["selection"] == "oort"
    assert "selection" in cli("trials", "chosen").out.splitlines()[0]
    assert "selection" not in cli("trials", "plain").out


@pytest.mark.slow
def test_train_without_a_strategy_is_fedavg_in_a_folder_of_its_own(cli: Cli, tmp_path: Path) -> None:
    document = parsed(cli("train", *SMALL, "--json").out)
    assert document["trial"]["strategy"] == "fedavg"
    searched = parsed(cli("search", *SMALL, "--json").out)
    assert searched["out"] != document["out"]
    assert searched["baseline"]["fitness"] == document["trial"]["fitness"]


def test_a_trial_that_fails_is_json_too(cli: Cli) -> None:
    done = cli("train", *SMALL, "strategy.kind=fedavgm", "strategy.server_learning_rate=1e39", "--json")
    assert (done.code, done.err) == (1, "")
    document = parsed(done.out)
    assert (document["trial"]["status"], document["trial"]["fitness"]) == ("failed", 0)
    assert document["trial"]["error"]


def test_a_trial_that_fails_says_why_and_is_no_success(cli: Cli) -> None:
    done = cli("train", *SMALL, "strategy.kind=fedavgm", "strategy.server_learning_rate=1e39")
    assert done.code == 1
    assert done.err.startswith("fedscout: the trial failed: round ")
    assert len(done.err.splitlines()) == 1


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
def test_a_study_of_which_no_training_went_through_is_no_success(
    cli: Cli, tmp_path: Path, command: str, as_json: bool
) -> None:
    (tmp_path / "failing_net.py").write_text(FAILING_MODEL)
    done = cli(command, *SMALL, "model.kind=failing_net:Net", *(["--json"] if as_json else []))
    assert done.code == 1
    if as_json:
        assert parsed(done.out)["best"] is None
    else:
        assert "No trial went through" in done.out


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


def test_a_class_from_the_working_directory_is_trained(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "trained_here.py").write_text(OWN_STRATEGY.format(name="Same"))
    own = ["strategy.kind=custom", "strategy.path=trained_here:Same"]
    document = parsed(cli("train", *SMALL, *own, "strategy.values.scale=1.0", "--json").out)
    assert (document["trial"]["strategy"], document["trial"]["status"]) == ("trained_here:Same", "completed")
    fedavg = parsed(cli("train", *SMALL, "--json").out)
    # Scaled by one it is FedAvg; its replies are averaged one by one in float32 rather than summed exactly.
    assert document["rounds"]["loss"] == pytest.approx(fedavg["rounds"]["loss"], rel=1e-4)


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
    document = parsed(cli("search", *SMALL, "study.yaml", "--json").out)
    own = [trial for trial in document["trials"] if trial["strategy"] == "searched_here:Scaled"]
    assert own
    for trial in own:
        assert trial["status"] == "completed"
        assert 0.5 <= trial["parameters"]["values"]["scale"] <= 1.0
    listed = parsed(cli("strategies", "federation.num_clients=4", "study.yaml", "--json").out)
    assert "searched_here:Scaled" in json.dumps(listed)


# detect


def test_detect_prints_the_report_alone(cli: Cli, tmp_path: Path) -> None:
    done = cli("detect", *SMALL, "--json")
    assert (done.code, done.err) == (0, "")
    document = parsed(done.out)
    assert set(document) == {"report", "affected_clients"}
    assert list(tmp_path.iterdir()) == []


def test_detect_shows_a_sentence_for_each_finding(cli: Cli) -> None:
    done = cli("detect", *SMALL, "federation.scenario=label_poisoning", "--verbose")
    assert done.code == 0
    for start in ("Label skew: ", "Feature skew: ", "Outlier clients: ", "the scenario affects client "):
        assert start in done.out


def test_detect_shows_three_lines_and_what_was_found(cli: Cli) -> None:
    document = parsed(cli("detect", *SMALL, "federation.scenario=label_poisoning", "--json").out)
    done = cli("detect", *SMALL, "federation.scenario=label_poisoning")
    assert (done.code, done.err) == (0, "")
    found = verdicts(HeterogeneityReport.model_validate(document["report"]))
    assert [line.split()[:1] for line in done.out.splitlines()[3:6]] == [["Label"], ["Feature"], ["Outlier"]]
    for verdict in found:
        assert (verdict.sentence.partition(":")[0] + ":" in done.out) == verdict.detected
    assert any(verdict.detected for verdict in found)
    assert "Published rule" not in done.out


@pytest.mark.slow
def test_a_diagnosis_that_was_kept_is_the_study_s(cli: Cli, tmp_path: Path) -> None:
    detected = parsed(cli("detect", *SMALL, "--json", "--out", "out").out)
    assert parsed((tmp_path / "out" / "report.json").read_text()) == detected["report"]
    written = (tmp_path / "out" / "report.json").stat().st_mtime_ns
    assert cli("run", *SMALL, "--out", "out").code == 0
    assert (tmp_path / "out" / "report.json").stat().st_mtime_ns == written


# trials, strategies


@pytest.mark.slow
def test_trials_shows_the_log(cli: Cli) -> None:
    searched = parsed(cli("search", *SMALL, "--json", "--out", "out").out)
    done = cli("trials", "out", "--json")
    assert (done.code, done.err) == (0, "")
    rows = json.loads(done.out)
    assert [row["trial"] for row in rows] == list(range(1 + 3 + 4))
    assert [row["phase"] for row in rows] == ["baseline"] + ["search"] * 3 + ["confirmation"] * 4
    assert [row["fitness"] for row in rows[:4]] == pytest.approx([trial["fitness"] for trial in searched["trials"]])
    shown = cli("trials", "out")
    assert shown.code == 0
    assert len(shown.out.splitlines()) == 1 + len(rows)


def test_strategies_lists_ranges_for_the_number_of_clients(cli: Cli) -> None:
    done = cli("strategies")
    assert (done.code, done.err) == (0, "")
    kinds = "fedavg fedprox fedavgm fedadagrad fedadam fedyogi fedmedian fedtrimmedavg krum multikrum bulyan qfedavg"
    for kind in kinds.split():
        assert kind in done.out
    assert done.out.startswith("10 clients, 10 of them train in a round\n")
    few = cli("strategies", "federation.num_clients=2")
    assert "krum must have at least 3 clients a round, got 2" in " ".join(few.out.split())


def test_privacy_is_told_before_a_training_and_stands_in_its_log(cli: Cli, tmp_path: Path) -> None:
    private = ("strategy.kind=dp_fedavg", "strategy.epsilon=9", "strategy.around=fedprox")
    told = "the models of 2 rounds with 4 of 4 clients each are (ε = 9, δ = 0.218)-differentially private"
    assert told in " ".join(cli("strategies", *SMALL, *private).out.split())
    done = cli("train", *SMALL, *private, "--out", "out", "--json")
    (before,) = (line for line in done.err.splitlines() if told in line)
    assert before.startswith(f"fedscout: {told}")
    (note,) = parsed(done.out)["trial"]["notes"]
    assert note.startswith(told)
    (logged,) = pd.read_parquet(tmp_path / "out" / "trials")["notes"]
    assert json.loads(logged) == [note]


def test_what_has_no_privacy_is_refused_before_anything_trains(cli: Cli, tmp_path: Path) -> None:
    done = cli("train", *SMALL, "strategy.kind=dp_fedavg", "strategy.around=bulyan", "--out", "out")
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "around of dp_fedavg must be a strategy that averages" in done.err
    assert not (tmp_path / "out").exists()


def test_strategies_gives_a_schema(cli: Cli) -> None:
    done = cli("strategies", "--json", "federation.num_clients=20", "training.fraction_train=0.5")
    document = parsed(done.out)
    assert (document["num_clients"], document["num_sampled"]) == (20, 10)
    assert "krum" in json.dumps(document["schema"])
