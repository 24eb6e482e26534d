"""What the documents show is what the program does: examples run, and tables are those that commands print."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from fedscout.engine.trials.log import read_trials
from tests.commands import REPOSITORY, ran_python
from tests.experiments.cli.conftest import SMALL

DOCS = REPOSITORY / "docs"
FENCE = re.compile(r"^```(?:\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"^# file: (\S+)$", re.MULTILINE)
SETTINGS = (*SMALL, "federation.partition.alpha=1", "search.budget=4", "search.confirmation_seeds=0")


def fences(document: str) -> list[str]:
    return FENCE.findall((DOCS / document).read_text())


def fedscout(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return ran_python("-m", "fedscout.experiments.cli.main", *arguments, cwd=folder)


@pytest.mark.slow
def test_keys_are_printed_completely(tmp_path: Path) -> None:
    from fedscout.experiments.config import known_keys

    printed = fedscout("keys", folder=tmp_path)
    assert printed.returncode == 0, printed.stderr
    assert re.findall(r"^\| `([\w.]+)` \|", printed.stdout, re.MULTILINE) == [*known_keys()]


def test_log_document_names_every_column() -> None:
    from fedscout.engine.trials.record import SCHEMA

    text = (DOCS / "log.md").read_text()
    documented = set(re.findall(r"`([a-z_*]+)`", text))
    prefixes = tuple(name.removesuffix("*") for name in documented if name.endswith("*"))
    missing = [name for name in SCHEMA.names if name not in documented and not name.startswith(prefixes)]
    assert missing == []


def test_strategies_document_names_every_strategy_and_the_parameters_and_ranges_of_the_further_ones() -> None:
    from fedscout.engine.messages.calls import Cohort
    from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, parse_strategy, space_of

    text = (DOCS / "strategies.md").read_text()
    rows = dict(re.findall(r"^\| `([a-z_]+)` \| (.*) \|$", text, re.MULTILINE))
    assert [*rows] == [*CHOSEN_BY_NAME_KINDS]
    for kind, row in rows.items():
        spec = parse_strategy(kind)
        assert all(f"`{name}`" in row for name in spec.parameters()), kind
        assert spec.paper in row
        space = space_of(Cohort(10, 10, 0.1, server_rows=None, server_labels=True), kinds=[kind])
        for name, found in space.parameters_of(kind).items():
            default, low, high = re.search(rf"`{name}`(?: [^\d\s]+)? (\S+), (\S+) … ([^\s;]+)", row).groups()
            assert (float(default), float(low)) == (spec.parameters()[name], found.low), name
            assert high == "n" or float(high) == found.high, name
    assert all(f"`{kind}`" in text for kind in BUILT_IN_KINDS)


@pytest.mark.stress
def test_custom_strategy_example_runs_as_written(tmp_path: Path) -> None:
    for text in fences("custom_strategy.md"):
        if name := FILE.search(text):
            (tmp_path / name[1]).write_text(text)
    commands = [line for text in fences("custom_strategy.md") for line in text.splitlines() if line[:9] == "fedscout "]
    assert len(commands) == 2
    for number, command in enumerate(commands):
        out = tmp_path / f"out{number}"
        ran = fedscout(*command.split()[1:], *SETTINGS, "--out", str(out), folder=tmp_path)
        assert ran.returncode == 0, ran.stderr
        log = read_trials(out)
        assert (log["status"] == "completed").all(), log["error"].tolist()
    assert (read_trials(tmp_path / "out0")["strategy"] == "damped:DampedAvg").all()
    assert (log["strategy"] == "damped:DampedAvg").any()
