"""Mistakes on the command line: one clear line each on standard error, exit code 2, and nothing else anywhere."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fedscout.experiments.cli import program
from tests.experiments.cli.conftest import SMALL, Cli

LOCAL = ("engine.grid=local",)
STUDIES = ("run", "search", "detect", "train")

WRONG: dict[str, tuple[list[str], list[str]]] = {
    "key": (
        ["run", "training.learning_rat=1"],
        ["training.learning_rat is not a known key; did you mean training.learning_rate?"],
    ),
    "value": (["detect", "training.batch_size=0"], ["training.batch_size must be greater than or equal to 1, got 0"]),
    "two values and an argument": (
        ["search", "seed=x", "--json", "nonsense", "training.batch_size=0"],
        [
            "an argument must be dotted.key=value or a YAML file, got 'nonsense'",
            "training.batch_size must be greater than or equal to 1, got 0",
            "seed must be a valid integer, unable to parse string as an integer, got 'x'",
        ],
    ),
    "missing file": (["run", "study.yaml"], ["the configuration file must exist, got study.yaml"]),
    "missing file of an option": (
        ["run", "--config", "study.yaml"],
        ["the configuration file must exist, got study.yaml"],
    ),
    "data set": (
        ["run", "federation.dataset=imagenet"],
        ["federation.dataset must be one of digits, breast_cancer, wine, diabetes, wine_quality, "],
    ),
    "too many clients": (
        ["run", "federation.dataset=wine", "federation.num_clients=500"],
        ["federation.num_clients must be between 1 and the number of rows, 178, got 500"],
    ),
    "strategy": (
        ["train", "strategy.kind=magic"],
        [
            "kind must be a known strategy, got 'magic'; allowed are fedavg, fedprox, fedavgm, fedadagrad, fedadam, "
            "fedyogi, fedmedian, fedtrimmedavg, krum, multikrum, bulyan, qfedavg"
        ],
    ),
    "strategy parameter": (
        ["train", "strategy.kind=fedavgm", "strategy.server_momentum=1.5", "strategy.eta=1"],
        [
            "server_momentum of fedavgm must be less than 1, got 1.5; a search draws it from",
            "eta is no parameter of fedavgm, got 1; its parameters are",
        ],
    ),
    "too few clients for Krum": (
        ["train", "strategy.kind=krum", "federation.num_clients=2"],
        ["krum must have at least 3 clients a round, got 2"],
    ),
    "strategy of a search": (
        ["search", "search.strategies=[magic]"],
        ["kinds must be known strategies, got 'magic'; allowed are fedavg"],
    ),
    "strategy where none is read": (["run", "strategy.kind=krum"], ["strategy must be left out of a search, got"]),
    "a user's class that is not there": (
        ["train", "strategy.kind=custom", "strategy.path=no_such_module:Thing"],
        ["no_such_module:Thing must be importable from the Python path, got ModuleNotFoundError"],
    ),
    "command": (["magic"], ["No such command 'magic' (see fedscout --help)"]),
    "option": (["run", "--magic"], ["No such option '--magic' (see fedscout run --help)"]),
    "option without its value": (["run", "--out"], ["Option '--out' requires an argument (see"]),
    "argument that a command lacks": (["trials"], ["Missing argument"]),
    "log": (["trials", "nowhere"], ["the folder must hold a study's log, got nowhere without any trials/*.parquet"]),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("as_json", [False, True], ids=["", "json"])
def test_each_fault_is_one_line(cli: Cli, tmp_path: Path, case: str, as_json: bool) -> None:
    arguments, expected = WRONG[case]
    command, *rest = arguments
    local = LOCAL if command in STUDIES else ()
    json_option = ("--json",) if as_json and command != "magic" and "--out" not in rest else ()

    done = cli(command, *local, *json_option, *rest)

    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert len(lines) == len(expected), done.err
    for line, start in zip(lines, expected, strict=True):
        assert line.startswith(f"fedscout: {start}"), line
    assert list(tmp_path.iterdir()) == []


def test_an_option_that_is_almost_right_is_named(cli: Cli) -> None:
    done = cli("run", "--jsn")
    assert done.code == 2
    assert "--json" in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize("command", STUDIES)
def test_a_wrong_output_folder_is_left_as_it_is(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    done = cli(command, *SMALL, "--out", "mine")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "fedscout: --out must be a new folder, an empty one or that of an earlier run, "
        f"got {tmp_path / 'mine'} with notes.txt but no readable config.json\n"
    )
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes.txt"]


def test_another_configuration_on_the_same_folder_is_refused(cli: Cli, tmp_path: Path) -> None:
    assert cli("train", *SMALL, "--out", "out").code == 0
    done = cli("train", *SMALL, "training.num_rounds=3", "--out", "out", "--json")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        f"fedscout: {tmp_path / 'out'} holds the study of another configuration and can't be continued with this one; "
        "what differs: training.num_rounds: 2 there, 3 here; choose another --out\n"
    )


@pytest.mark.parametrize("command", STUDIES)
def test_data_that_are_missing_leave_no_folder(cli: Cli, tmp_path: Path, command: str) -> None:
    done = cli(command, *LOCAL, "federation.dataset=bearing", "federation.folder=nowhere", "--out", "deep/out")
    assert (done.code, done.out) == (2, "")
    assert len(done.err.splitlines()) == 1
    assert "nowhere" in done.err
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
    assert (done.code, done.out) == (2, "")
    (line,) = done.err.splitlines()
    assert line.startswith(
        f"fedscout: engine.address must be that of a running Ray, host:port, or auto, got '{address}'"
    )
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
