"""`fedscout bench strategies` on one federation, and what it says to mistakes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import Cli

TINY = (
    *("--strategies", "fedmedian,{kind: fedprox, proximal_mu: 1}", "--federations", "dirichlet_0.5", "--rounds", "2"),
    *("--seeds", "2", "--tuning-seeds", "1", "--out", "out", "model.hidden=[4]"),
)


@pytest.mark.slow
def test_tables_and_json_tell_the_same(cli: Cli, tmp_path: Path) -> None:
    shown = cli("bench", "strategies", *TINY)
    assert shown.code == 0, shown.err
    assert shown.out == (tmp_path / "out" / "table.md").read_text()
    assert "| fedprox(proximal_mu=1.0) | " in shown.out
    assert "dirichlet_0.5: fedmedian" in shown.err
    found = json.loads(cli("bench", "strategies", *TINY, "--json").out)
    assert found == json.loads((tmp_path / "out" / "result.json").read_text())
    assert found["federations"][0]["num_rounds"] == 2


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (("--strategies", "nothing"), "kind must be a known strategy, got 'nothing'"),
        (("--strategies", "{kind: ditto"), "--strategies must be names with commas between them, got '{kind: ditto'"),
        (("--strategies", ""), "--strategies must be names with commas between them, got ''"),
        (("--strategies", "{kind: ditto, pull: 1}"), "pull is no parameter of ditto"),
        (("--federations", "1"), "--federations must be names with commas between them, got '1'"),
        (("--federations", "nowhere"), "--federations must be of dirichlet_0.1"),
        (("strategy.kind=krum",), "strategy must be left out of a search"),
        (("--seeds", "1"), "1 is not in the range x>=2"),
    ],
)
def test_mistakes_are_told_before_anything_is_done(
    cli: Cli, arguments: tuple[str, ...], fault: str, tmp_path: Path
) -> None:
    done = cli("bench", "strategies", *arguments, "--out", "out")
    assert (done.code, done.out) == (2, "")
    assert fault in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "out").exists()
