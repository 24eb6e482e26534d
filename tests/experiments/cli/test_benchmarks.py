"""`fedscout bench detection`, `intervals` and `strategies`: a table, as JSON and as it is printed; and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

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
    listed = cli("reproduce", "list", "--json").document["studies"]
    names = {one["study"] for one in listed}
    assert {
        "choice/table6",
        "server-rate/fig11",
        "selection/table1",
        "client-settings/table1",
        "fedpilot/advice",
    } <= names
    text = cli("reproduce", "list").out
    assert all(name in text for name in names)


def test_mistakes_are_told_in_a_line(cli: Cli, tmp_path: Path) -> None:
    cli("reproduce", "choice/tabel6").refuses("", "choice/tabel6", "choice/table6 or")
    cli("reproduce", "fedpilot/advice", "training.num_round=1").refuses(
        "", "training.num_round ", "training.num_rounds"
    )
