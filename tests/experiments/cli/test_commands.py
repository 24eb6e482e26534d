"""What the commands print and write; all of it in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import verdicts
from fedscout.engine.trials.log import read_trials
from fedscout.search.confirmation.confirmation import Confirmation
from tests.experiments.cli.conftest import SMALL, Cli, parsed
from tests.experiments.cli.test_errors import DEFAULT_KINDS

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
def test_run_shows_diagnosis_trials_winner_and_interval(cli: Cli, tmp_path: Path) -> None:
    done = cli("run", *SMALL, "--out", "out", "--verbose").ok
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
    assert "95 % interval" in text
    *_, log, written = done.out.splitlines()
    assert f": {tmp_path / 'out' / 'trials'} (" in log
    assert written == f"Result: {tmp_path / 'out' / 'result.json'}"


def test_a_long_path_is_not_broken(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / ("long" * 40) / "[bold]"
    done = cli("train", *SMALL, "--out", out).ok
    assert f"Log: {out / 'trials'}" in done.out.splitlines()


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
def test_search_does_not_ask_the_detectors(cli: Cli) -> None:
    document = cli("search", *SMALL, "--json", "--out", "out").document
    assert document["report"] is None
    assert "Diagnosis" not in cli("search", *SMALL, "--out", "out", "--verbose").out
    assert "Label skew" not in cli("search", *SMALL, "--out", "out").out


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


@pytest.mark.slow
def test_a_file_and_arguments_make_one_configuration(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text("seed: 4\nsearch: {budget: 2}\n")
    by_option = cli("search", "-c", "study.yaml", *SMALL[:5], "search.confirmation_seeds=0", "--json").document
    as_argument = cli("search", *SMALL[:5], "study.yaml", "search.confirmation_seeds=0", "--json").document
    assert by_option["config"]["seed"] == as_argument["config"]["seed"] == 4
    assert by_option["config"]["search"]["budget"] == 3  # arguments win over the option's file
    assert as_argument["config"]["search"]["budget"] == 2  # and a later file over arguments


@pytest.mark.slow
def test_a_trial_that_fails_is_shown_and_the_study_goes_on(cli: Cli, tmp_path: Path) -> None:
    # A scale of 1e30 a round takes the model beyond float32 in the second.
    (tmp_path / "exploding.py").write_text(OWN_STRATEGY.format(name="Exploding"))
    custom = "search.customs=[{path: 'exploding:Exploding', values: {scale: 1e30}}]"
    arguments = ["search", *SMALL, "search.strategies=[fedmedian]", "search.budget=2", custom]
    assert "failed" in cli(*arguments).ok.out
    trials = cli(*arguments, "--json").document["trials"]
    (broken,) = [trial for trial in trials if trial["status"] == "failed"]
    assert (broken["strategy"], broken["fitness"]) == ("exploding:Exploding", 0)
    assert "not finite" in broken["error"]


# train


def test_train_tells_what_rounds_take_on_the_simulated_clock(cli: Cli, tmp_path: Path) -> None:
    clock = "federation.scenario=[{kind: latency, clients: all, shift_seconds: 3, mean_seconds: 0}]"
    document = cli("train", *SMALL, clock, "--json", "--out", "out").document
    assert document["rounds"]["seconds"] == [3.0, 3.0]
    (logged,) = read_trials(tmp_path / "out")["round_seconds"]
    assert list(logged) == document["rounds"]["seconds"]


def test_train_logs_one_trial(cli: Cli, tmp_path: Path) -> None:
    command = ("train", *SMALL, "strategy.kind=fedadam", "strategy.eta=0.1", "--out", "out")
    document = cli(*command, "--json").silent.document
    assert (document["trial"]["strategy"], document["trial"]["parameters"]["eta"]) == ("fedadam", 0.1)
    assert len(document["rounds"]["accuracy"]) == len(document["rounds"]["loss"]) == 2
    assert "seconds" not in document["rounds"]  # there is no clock
    table = read_trials(tmp_path / "out")
    assert list(table["fitness"]) == [document["trial"]["fitness"]]
    assert f"{document['trial']['fitness']:.4f}" in cli(*command).out


def test_who_chose_the_clients_is_shown_where_a_policy_did(cli: Cli) -> None:
    some = ("training.fraction_train=0.5", "strategy.kind=fedavg")
    assert "fedavg(selection=oort)" in cli("train", *SMALL, *some, "selection.kind=oort", "--out", "chosen").ok.out
    assert "selection" not in cli("train", *SMALL, *some, "--out", "plain").ok.out
    (row,) = cli("trials", "chosen", "--json").document
    assert row["selection"] == "oort"
    assert "selection" in cli("trials", "chosen").out.splitlines()[0]
    assert "selection" not in cli("trials", "plain").out


@pytest.mark.slow
def test_train_without_a_strategy_is_fedavg_in_a_folder_of_its_own(cli: Cli, tmp_path: Path) -> None:
    document = cli("train", *SMALL, "--json").document
    assert document["trial"]["strategy"] == "fedavg"
    searched = cli("search", *SMALL, "--json").document
    assert searched["out"] != document["out"]
    assert searched["baseline"]["fitness"] == document["trial"]["fitness"]


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
def test_a_study_of_which_no_training_went_through_is_no_success(
    cli: Cli, tmp_path: Path, command: str, as_json: bool
) -> None:
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


def test_a_class_from_the_working_directory_is_trained(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "trained_here.py").write_text(OWN_STRATEGY.format(name="Same"))
    own = ["strategy.kind=custom", "strategy.path=trained_here:Same"]
    document = cli("train", *SMALL, *own, "strategy.values.scale=1.0", "--json").document
    assert (document["trial"]["strategy"], document["trial"]["status"]) == ("trained_here:Same", "completed")
    fedavg = cli("train", *SMALL, "--json").document
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


def test_detect_shows_a_sentence_for_each_finding(cli: Cli) -> None:
    done = cli("detect", *SMALL, "federation.scenario=label_poisoning", "--verbose").ok
    for start in ("Label skew: ", "Feature skew: ", "Outlier clients: ", "the scenario affects client "):
        assert start in done.out


def test_detect_shows_three_lines_and_what_was_found(cli: Cli) -> None:
    document = cli("detect", *SMALL, "federation.scenario=label_poisoning", "--json").document
    done = cli("detect", *SMALL, "federation.scenario=label_poisoning").silent
    found = verdicts(HeterogeneityReport.model_validate(document["report"]))
    assert [line.split()[:1] for line in done.out.splitlines()[3:6]] == [["Label"], ["Feature"], ["Outlier"]]
    for verdict in found:
        assert (verdict.sentence.partition(":")[0] + ":" in done.out) == verdict.detected
    assert any(verdict.detected for verdict in found)
    assert "Published rule" not in done.out


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


def test_what_has_no_privacy_is_refused_before_anything_trains(cli: Cli, tmp_path: Path) -> None:
    private = ("strategy.kind=dp_fedavg", "strategy.around=bulyan")
    cli("train", *SMALL, *private, "--out", "out").refuses("around of dp_fedavg", "got 'bulyan'")
    assert not (tmp_path / "out").exists()


def test_strategies_gives_a_schema(cli: Cli) -> None:
    document = cli("strategies", "--json", "federation.num_clients=20", "training.fraction_train=0.5").document
    assert (document["num_clients"], document["num_sampled"]) == (20, 10)
    assert "krum" in json.dumps(document["schema"])
