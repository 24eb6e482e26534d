"""`fedscout bench detection`, `intervals` and `strategies`: a table, as JSON and as it is printed; and mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli
from tests.experiments.cli.test_bench_choice import COLUMN

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
