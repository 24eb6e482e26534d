"""`fedscout bench strategies` on one federation, and what it says to mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

TINY = (
    *("table", "--rows", "fedmedian,fedprox", "--columns", "dirichlet_0.5", "--seeds", "2", "--out", "out"),
    *("model.hidden=[4]", "training.num_rounds=2", "engine.grid=local"),
)


@pytest.mark.slow
def test_tables_and_json_tell_the_same(cli: Cli, tmp_path: Path) -> None:
    shown = cli("bench", "strategies", *TINY)
    assert shown.code == 0, shown.err
    assert shown.out.strip() == (tmp_path / "out" / "strategies" / "table.md").read_text().strip()
    (found,) = json.loads(cli("bench", "strategies", *TINY, "--json").out)["tables"]
    stored = json.loads((tmp_path / "out" / "strategies" / "table.json").read_text())
    assert {**found, "seconds": 0} == {**stored, "seconds": 0}
    assert found["rows"] == ["fedavg", "fedprox", "fedmedian"]
    assert all(
        len(cell["values"]) == 2 and cell["figures"]["client learning rate, tuned"][0] in (0.03, 0.1, 0.3, 1.0)
        for cell in found["cells"]
    )


@pytest.mark.parametrize(
    "arguments",
    [("--rows", "nothing"), ("--columns", "nowhere"), ("nowhere",), ("strategy.kind=nothing",), ("--seeds", "1")],
)
def test_mistakes_are_told_before_anything_is_done(cli: Cli, arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = cli("bench", "strategies", *arguments, "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not list((tmp_path / "out").rglob("*.parquet"))
