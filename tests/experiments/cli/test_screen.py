"""What `run` and `search` print by default, and what they do after code or data were edited."""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fedscout.engine.trials.log import read_trials
from fedscout.experiments.reports.progress import TrialProgress
from fedscout.experiments.reports.study_console import StudyScreen
from fedscout.search.config import RacingConfig, SearchConfig
from fedscout.search.study import run_study
from tests.commands import REPOSITORY, ran
from tests.experiments.cli.conftest import SMALL, STRATEGY, Cli
from tests.experiments.cli.processes import Command
from tests.search.studies import ScriptedRunner, completed, open_ledger

UNCONFIRMED = [setting for setting in SMALL if not setting.startswith("search.conf")] + ["search.confirmation_seeds=0"]


def command_of(screen: str, label: str) -> list[str]:
    """Return the arguments of a command on a screen, as a shell reads them."""
    lines = screen.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith(f"{label} "))
    text = lines[start].removeprefix(label).strip()
    for line in lines[start + 1 :]:
        if not text.endswith("\\"):
            break
        text = f"{text[:-1]} {line.strip()}"
    program, *arguments = shlex.split(text)
    assert program == "fedscout"
    return arguments


def trained(cli: Cli, screen: str) -> dict[str, Any]:
    """Do what the screen says trains the winner, and return the trial."""
    trial: dict[str, Any] = cli(*command_of(screen, "Train"), "--json").document["trial"]
    return trial


def test_the_command_to_train_gives_the_very_trial(cli: Cli, tmp_path: Path) -> None:
    """On the search's seed, so that its score is the one of the search."""
    screen = cli("search", *UNCONFIRMED, "--out", "out").out
    best = json.loads((tmp_path / "out" / "result.json").read_text())["best"]
    trial = trained(cli, screen)
    assert (trial["strategy"], trial["parameters"]) == (best["strategy"], best["parameters"])
    assert trial["fitness"] == best["fitness"]


@pytest.mark.slow
def test_the_command_to_train_fedavg_at_its_tuned_rate(cli: Cli, tmp_path: Path) -> None:
    screen = cli("search", *SMALL, "search.strategies=[fedmedian]", "--tuned-baseline", "--out", "out").out
    rate = json.loads((tmp_path / "out" / "result.json").read_text())["tuned_baseline"]["learning_rate"]
    trial = trained(cli, screen)
    assert (trial["strategy"], trial["learning_rate"]) == ("fedavg", rate)


@pytest.mark.slow
def test_the_command_to_export_writes_the_app(cli: Cli, tmp_path: Path) -> None:
    screen = cli("search", *SMALL, "--out", "a folder").out
    assert cli(*command_of(screen, "Export")).silent
    assert (tmp_path / "federation_app" / "pyproject.toml").is_file()


@pytest.mark.slow
def test_clients_are_called_by_their_names(cli: Cli, tmp_path: Path) -> None:
    """Three hospitals; in the last one every label is exchanged."""
    rows = []
    for row in range(180):
        hospital, ill = ("Mercy", "St Mary", "North")[row % 3], (row // 3) % 2
        label = ("well", "ill")[ill ^ (hospital == "North")]
        rows.append(f"{ill + (row * 7919 % 101) / 300:.4f},{(row * 104729 % 97) / 97:.4f},{label},{hospital}")
    (tmp_path / "t.csv").write_text("\n".join(["a,b,outcome,hospital", *rows]) + "\n")
    own = ["federation.dataset=t.csv", "federation.label=outcome", "federation.client_column=hospital"]
    settings = [setting for setting in SMALL if not setting.startswith("federation.")]
    shown = cli("detect", *settings, *own).out
    assert "client North" in shown
    assert "client 2" not in shown
    report = cli("detect", *settings, *own, "--json").document["report"]
    (flagged,) = report["calibrated"][2]["flagged_clients"]
    assert report["names"]["clients"][flagged] == "North"


def test_nothing_is_coloured_unless_wanted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes what it writes to for a terminal
    monkeypatch.setenv("TERM", "xterm-256color")
    assert "\x1b[31m" in cli("detect", *SMALL, "federation.scenario=label_poisoning").out
    assert "\x1b[31m" not in cli("--no-color", "detect", *SMALL, "federation.scenario=label_poisoning").out


# What is said of an outcome, and the line of progress.


KINDS = ("fedmedian", "fedadam")


def test_points_are_those_of_full_trainings(tmp_path: Path) -> None:
    """FedAdam was left behind in the race, after two rounds."""
    racing = RacingConfig(trainings=1.5, min_rounds=2)
    config = SearchConfig(kind="racing", strategies=KINDS, racing=racing, confirmation_seeds=0)
    scores = {"fedavg": 0.5, "fedmedian": 0.75, "fedadam": 0.25}
    runner = ScriptedRunner(lambda spec: completed(scores[spec.strategy.kind], num_rounds=spec.num_rounds))
    outcome = run_study(config, open_ledger(tmp_path, runner, num_rounds=8))
    text = " ".join(line.plain for line in StudyScreen(outcome, None, "", "").lines())
    assert re.findall(r"(\w+) ([+-][\d.]+)", text) == [("fedmedian", "+25.0")]


def test_progress_counts_the_rounds_of_rungs(tmp_path: Path) -> None:
    runner = ScriptedRunner(lambda spec: completed(0.5, num_rounds=1))
    outcome = run_study(SearchConfig(budget=1, confirmation_seeds=0), open_ledger(tmp_path, runner))
    progress = TrialProgress(num_trials=2, num_rounds=10, rounds_less=8)
    progress.record(outcome.baseline, known=False)
    progress.rounds({"b": 3})
    (task,) = progress._progress.tasks
    assert task.fields["counts"].startswith("1/2 trials, 4/12 rounds")


# What is seen while a study runs: a display in a terminal, lines in a pipe, and what Ctrl-C leaves.


def seen_in_a_terminal(folder: Path, *arguments: str) -> str:
    """Return all that a command writes to a terminal of 80 × 24."""
    command = f"stty rows 24 cols 80; {shlex.join([sys.executable, '-m', 'fedscout', *arguments])}"
    program = f"import os, pty; exit(os.waitstatus_to_exitcode(pty.spawn(['sh', '-c', {command!r}])))"
    variables = {"PYTHONPATH": str(REPOSITORY / "src"), "TERM": "xterm-256color"}
    unset = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")
    done = ran(sys.executable, "-c", program, cwd=folder, without=unset, **variables)
    assert done.returncode == 0, done
    return done.stdout


@pytest.mark.slow
def test_a_terminal_shows_trials_rounds_time_left_and_the_best_and_then_the_screen(tmp_path: Path) -> None:
    written = seen_in_a_terminal(tmp_path, "run", *SMALL, "training.num_rounds=20", "--out", "out")
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)
    assert re.search(r" \d+/8 trials, \d+/160 rounds", text)
    assert re.search(r" \d+ s left, .*\w+ 0\.\d{4}", text)
    assert "fedscout: generation" not in text  # which is for pipes
    assert all(len(line) <= 80 for line in text.replace("\r", "\n").split("\n"))


@pytest.mark.slow
def test_a_pipe_gets_a_line_a_stage_and_a_generation(cli: Cli) -> None:
    done = cli("run", *SMALL, "--out", "out")
    stages = [line.removeprefix("fedscout: ").partition(":")[0] for line in done.err.splitlines()]
    assert stages == ["measuring heterogeneity", "running trials", "generation 1", "generation 2"]
    assert "4/8 trials" in done.err


@pytest.mark.stress
def test_control_c_says_what_is_kept_and_how_to_go_on(tmp_path: Path, cli: Cli) -> None:
    settings = (*SMALL, "training.num_rounds=60", "search.strategies=[fedmedian, fedadam]")
    with Command(tmp_path, "search", *settings, "--out", "a folder") as command:
        trials = tmp_path / "a folder" / "trials"
        command.wait_until(lambda: trials.is_dir() and len([*trials.glob("*.parquet")]) >= 2)
        os.kill(command.process.pid, signal.SIGINT)
        code, out, err = command.end()
    kept, last = err.splitlines()[-2:]
    assert (code, out) == (130, "")
    assert last.startswith("fedscout: interrupted")
    told = re.fullmatch(r"fedscout: (\d+) finished trials and .* kept in a folder; .*", kept)
    assert told is not None, kept
    assert int(told[1]) == len([*trials.glob("*.parquet")])
    before = {path: path.stat().st_mtime_ns for path in trials.glob("*.parquet")}
    assert cli("search", *settings, "--out", "a folder").code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert len([*trials.glob("*.parquet")]) > len(before)


# `fedscout report` and `plot`, and the report that a study leaves.


@pytest.mark.slow
def test_a_study_leaves_its_report_and_names_it(cli: Cli) -> None:
    done = cli("run", *SMALL, "--out", "out").ok
    assert command_of(done.out, "Report") == ["report", "out", "--open"]
    Path("out/report.html").unlink()
    assert "out/report.html" in cli("report", "out").ok.out
    assert Path("out/report.html").is_file()
    Path("out/report.html").unlink()
    Path("out/report.html").mkdir()  # in whose place no file can be written
    assert "\nReport " not in cli("run", *SMALL, "--out", "out").out


# The same command after the user's code or data were edited: run anew, or refused with what changed.


MODEL = """
from torch import nn


def net(num_features, num_classes):
    return nn.Linear(num_features, num_classes)
"""
MINE = ("federation.dataset=mine.csv", "federation.label=label")
TRAIN = ("train", *SMALL[:4], "strategy.kind=custom", "strategy.path=my_strategy:Scaled", "--json")


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The user's folder; what was imported from it is forgotten, as by a new process."""
    (tmp_path / "my_strategy.py").write_text(STRATEGY)
    (tmp_path / "my_factor.py").write_text("FACTOR = 0.5\n")
    (tmp_path / "my_net.py").write_text(MODEL)
    yield tmp_path
    forget(tmp_path)


def forget(folder: Path) -> None:
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None) or "").startswith(str(folder)):
            del sys.modules[name]
    importlib.invalidate_caches()


def edit(path: Path, text: str) -> None:
    """Change a file, and forget the module as a new process would."""
    path.write_text(text)
    forget(path.parent)


def lasting(out: Path) -> pd.DataFrame:
    """Return a log without times and keys."""
    table = read_trials(out).sort_values("trial").reset_index(drop=True)
    return table[[name for name in table if not name.startswith(("seconds", "finished", "key", "config_hash"))]]


def test_an_edited_strategy_is_trained_anew(cli: Cli, folder: Path) -> None:
    """Also where what changed is a module that it imports; unchanged, its trial is taken from the log."""
    assert cli(*TRAIN, "--out", "out").document
    first, files = lasting(folder / "out"), sorted((folder / "out" / "trials").iterdir())
    forget(folder)
    assert cli(*TRAIN, "--out", "out").document
    assert sorted((folder / "out" / "trials").iterdir()) == files

    edit(folder / "my_factor.py", "FACTOR = -1.0\n")
    done = cli(*TRAIN, "--out", "out").ok
    assert cli(*TRAIN, "--out", "fresh").document

    assert "my_factor.py" in done.err
    pd.testing.assert_frame_equal(lasting(folder / "out"), lasting(folder / "fresh"))
    assert lasting(folder / "out")["round_loss"][0] != first["round_loss"][0]


@pytest.mark.slow
def test_of_a_search_only_what_was_tried_with_it_runs_anew(cli: Cli, folder: Path) -> None:
    run = ("search", *SMALL, "search.customs=[{path: my_strategy:Scaled}]", "search.strategies=[fedavg]", "--json")
    assert cli(*run, "--out", "out").document
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / "out" / "trials").iterdir()}
    strategies = lasting(folder / "out")["strategy"].tolist()
    assert "my_strategy:Scaled" in strategies

    edit(folder / "my_strategy.py", STRATEGY + "\n\n# another\n")
    assert cli(*run, "--out", "out").document

    now = {path.name: path.stat().st_mtime_ns for path in (folder / "out" / "trials").iterdir()}
    table = read_trials(folder / "out").sort_values("trial")
    own = {f"{row.trial:05d}-{row.key[:12]}.parquet" for row in table.itertuples() if row.strategy != "fedavg"}
    assert table["strategy"].tolist() == strategies
    assert {name for name in now if now[name] != kept.get(name)} == own


@pytest.mark.parametrize("key", ["model.kind", "federation.embedding"])
@pytest.mark.parametrize("commands", [("train", "train"), ("detect", "run"), ("detect", "recommend")])
def test_an_edited_network_is_refused_by_name(cli: Cli, folder: Path, key: str, commands: tuple[str, str]) -> None:
    settings = (*SMALL, f"{key}=my_net:net", "--json", "--out", "out")
    assert cli(commands[0], *settings).document
    edit(folder / "my_net.py", MODEL + "\n\n# another\n")

    cli(commands[1], *settings).refuses("", f"my_net.py of {key}=my_net:net")


def rows(path: Path, period: int = 7) -> None:
    lines = [f"{i % period},{i % 5},{'ab'[i % 2]}" for i in range(80)]
    path.write_text("\n".join(["x,y,label", *lines]) + "\n")


@pytest.mark.parametrize("commands", [("train", "train"), ("detect", "recommend"), ("recommend", "detect")])
def test_edited_rows_are_refused(cli: Cli, folder: Path, commands: tuple[str, str]) -> None:
    rows(folder / "mine.csv")
    settings = (*(one for one in SMALL if "dataset" not in one), *MINE, "--json", "--out", "out")
    assert cli(commands[0], *settings).document
    rows(folder / "mine.csv", period=9)

    cli(commands[1], *settings).refuses(str(folder / "out"), "data set 'mine.csv'")


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("changed", ["nothing", "code", "rows"])
def test_a_finished_study_of_a_sweep_counts_while_nothing_changed(cli: Cli, folder: Path, changed: str) -> None:
    rows(folder / "mine.csv")
    settings = (*(one for one in SMALL if "dataset" not in one), *MINE, "search.customs=[{path: my_strategy:Scaled}]")
    sweep = ("sweep", *settings, "seed=0,1", "--json", "--out", "out")
    assert cli(*sweep).document
    results = {path: path.stat().st_mtime_ns for path in (folder / "out").glob("studies/*/result.json")}
    if changed == "code":
        edit(folder / "my_factor.py", "FACTOR = -1.0\n")
    elif changed == "rows":
        rows(folder / "mine.csv", period=9)

    done = cli(*sweep)

    anew = [path for path, written in results.items() if path.stat().st_mtime_ns != written]
    assert len(anew) == (2 if changed == "code" else 0)
    assert (done.code == 0) == (changed != "rows")
    assert done.err.count("mine.csv") == (2 if changed == "rows" else 0)
