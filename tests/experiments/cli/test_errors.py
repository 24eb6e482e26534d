"""Mistakes on the command line: one clear line each on standard error, exit code 2, and nothing else anywhere."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path

import pytest

from fedscout.experiments.cli import program
from tests.experiments.cli.conftest import SMALL, Cli

LOCAL = ("engine.grid=local",)
STUDIES = ("run", "search", "detect", "train")
DEFAULT_KINDS = (
    *("fedavg", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi"),
    *("fedmedian", "fedtrimmedavg", "krum", "multikrum", "bulyan", "qfedavg"),
)

WRONG: dict[str, list[tuple[str, ...]]] = {
    "run training.learning_rat=1": [("training.learning_rat ", "training.learning_rate?")],
    "detect training.batch_size=0": [("training.batch_size", "got 0")],
    "search seed=x nonsense training.batch_size=0": [
        ("an argument", "'nonsense'"),
        ("training.batch_size", "got 0"),
        ("seed", "got 'x'"),
    ],
    "run study.yaml": [("the configuration file", "study.yaml")],
    "run --config study.yaml": [("the configuration file", "study.yaml")],
    "run federation.dataset=imagenet": [("federation.dataset", "digits, breast_cancer, wine", "got 'imagenet'")],
    "run federation.dataset=wine federation.num_clients=500": [("federation.num_clients", "178", "got 500")],
    "train strategy.kind=magic": [("strategy.kind", "got 'magic'", *DEFAULT_KINDS)],
    "train strategy.kind=fedavgm strategy.server_momentum=1.5 strategy.eta=1": [
        ("server_momentum of fedavgm", "got 1.5"),
        ("eta", "fedavgm", "got 1"),
    ],
    "train strategy.kind=krum federation.num_clients=2": [("krum", "at least 3", "got 2")],
    "search search.strategies=[magic]": [("kinds", "got 'magic'", *DEFAULT_KINDS)],
    "run strategy.kind=krum": [("strategy ", "'krum'")],
    "train strategy.kind=custom strategy.path=no_such_module:Thing": [("no_such_module:Thing", "ModuleNotFoundError")],
    "magic": [("", "'magic'", "fedscout --help")],
    "run --magic": [("", "'--magic'", "fedscout run --help")],
    "run --out": [("", "'--out'")],
    "trials": [("", "FOLDER")],
    "trials nowhere": [("the folder", "got nowhere")],
}


@pytest.mark.parametrize("given", WRONG)
@pytest.mark.parametrize("as_json", [False, True], ids=["", "json"])
def test_each_fault_is_one_line(cli: Cli, tmp_path: Path, given: str, as_json: bool) -> None:
    command, *rest = given.split()
    local = LOCAL if command in STUDIES else ()
    json_option = ("--json",) if as_json and command != "magic" and "--out" not in rest else ()
    done = cli(command, *local, *json_option, *rest)
    for line, names in zip(done.err.splitlines(), WRONG[given], strict=True):
        replace(done, err=line).refuses(*names)
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_is_almost_right_is_named(cli: Cli) -> None:
    cli("run", "--jsn").refuses("", "--json")


@pytest.mark.parametrize("command", STUDIES)
def test_a_wrong_output_folder_is_left_as_it_is(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    cli(command, *SMALL, "--out", "mine").refuses("--out", f"got {tmp_path / 'mine'}", "notes.txt", "config.json")
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_another_configuration_on_the_same_folder_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert cli("train", *SMALL, "--out", "out").code == 0
    done = cli("train", *SMALL, "training.num_rounds=3", "--out", "out", "--json")
    done.refuses(str(tmp_path / "out"), "training.num_rounds: 2 before, 3 now;", "--out")


@pytest.mark.parametrize("command", STUDIES)
def test_data_that_are_missing_leave_no_folder(cli: Cli, tmp_path: Path, command: str) -> None:
    data = ("federation.dataset=bearing", "federation.folder=nowhere")
    cli(command, *LOCAL, *data, "--out", "deep/out").refuses("", "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_a_log_that_cannot_be_read_is_told(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "out" / "trials").mkdir(parents=True)
    (tmp_path / "out" / "trials" / "00000.parquet").write_text("no parquet")
    done = cli("trials", "out")
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert "out" in done.err


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "127.0.0.1:99999"])
def test_a_ray_that_is_not_there_is_told_and_leaves_no_folder(cli: Cli, tmp_path: Path, address: str) -> None:
    done = cli("run", "federation.dataset=wine", f"engine.address={address}", "--out", "out")
    done.refuses("engine.address", f"got '{address}'")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("end", [BrokenPipeError(), SystemExit(1)], ids=["pipe", "what typer makes of it"])
def test_a_pipe_that_breaks_after_a_signal_is_the_end_by_the_signal(
    end: BaseException, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As does one to a process of Ray's that is ending."""

    def broken(**_: object) -> None:
        raise end

    monkeypatch.setattr(program, "_program", lambda: broken)
    assert program.exit_code([], [signal.SIGINT]) == 130
    assert capsys.readouterr().err.startswith("fedscout: interrupted; ")
