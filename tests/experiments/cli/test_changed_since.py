"""The same command after the user's code or data were edited: run anew, or refused with what changed."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from fedscout.engine.trials.log import read_trials
from tests.experiments.cli.conftest import SMALL, Cli

STRATEGY = """
from flwr.serverapp.strategy import FedAvg
from my_factor import FACTOR


class Shrunk(FedAvg):
    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        for name in arrays:
            arrays[name] = type(arrays[name])(arrays[name].numpy() * FACTOR)
        return arrays, metrics
"""
MODEL = """
from torch import nn


def net(num_features, num_classes):
    return nn.Linear(num_features, num_classes)
"""
MINE = ("federation.dataset=mine.csv", "federation.label=label")
TRAIN = ("train", *SMALL[:4], "strategy.kind=custom", "strategy.path=my_strategy:Shrunk", "--json")


@pytest.fixture(autouse=True)
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

    assert "my_factor.py of strategy my_strategy:Shrunk" in done.err
    pd.testing.assert_frame_equal(lasting(folder / "out"), lasting(folder / "fresh"))
    assert lasting(folder / "out")["round_loss"][0] != first["round_loss"][0]


@pytest.mark.slow
def test_of_a_search_only_what_was_tried_with_it_runs_anew(cli: Cli, folder: Path) -> None:
    run = ("search", *SMALL, "search.customs=[{path: my_strategy:Shrunk}]", "search.strategies=[fedavg]", "--json")
    assert cli(*run, "--out", "out").document
    kept = {path.name: path.stat().st_mtime_ns for path in (folder / "out" / "trials").iterdir()}
    strategies = lasting(folder / "out")["strategy"].tolist()
    assert "my_strategy:Shrunk" in strategies

    edit(folder / "my_strategy.py", STRATEGY + "\n\n# another\n")
    assert cli(*run, "--out", "out").document

    now = {path.name: path.stat().st_mtime_ns for path in (folder / "out" / "trials").iterdir()}
    table = read_trials(folder / "out").sort_values("trial")
    own = {f"{row.trial:05d}-{row.key[:12]}.parquet" for row in table.itertuples() if row.strategy != "fedavg"}
    assert table["strategy"].tolist() == strategies
    assert {name for name in now if now[name] != kept.get(name)} == own


@pytest.mark.parametrize("key", ["model.kind", "federation.embedding"])
@pytest.mark.parametrize("commands", [("train", "train"), ("detect", "search"), ("detect", "recommend")])
def test_an_edited_network_is_refused_by_name(cli: Cli, folder: Path, key: str, commands: tuple[str, str]) -> None:
    settings = (*SMALL, f"{key}=my_net:net", "--json", "--out", "out")
    first, second = ((command, *settings) for command in commands)
    assert cli(*first).document
    edit(folder / "my_net.py", MODEL.replace("nn.Linear(num_features", "nn.Linear(1 * num_features"))

    cli(*second).refuses("", f"my_net.py of {key}=my_net:net")


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
    settings = (*(one for one in SMALL if "dataset" not in one), *MINE, "search.customs=[{path: my_strategy:Shrunk}]")
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
