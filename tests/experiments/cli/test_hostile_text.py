"""Names and messages that would steer a terminal: nothing that a command prints does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from fedscout.engine.trials.log import TrialLog
from tests.experiments.cli.conftest import SMALL, Cli, Done

STEERING = "\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e[red]\r"
SHOWN = r"\x1b]0;owned\x07\x1b[2J\x9b31m\x7f\u202e[red]"
FEW = ("engine.grid=local", "federation.num_clients=2", "federation.partition.kind=iid", "training.num_rounds=1")


@pytest.fixture
def table(tmp_path: Path) -> str:
    """Return the setting of a table whose classes, clients and columns are named to steer."""
    path = tmp_path / "table.csv"
    rows = [f'{number % 7},{number % 3},"class{STEERING}{number % 2}"' for number in range(40)]
    path.write_text("\n".join([f'"a{STEERING}","b",grade', *rows]) + "\n", newline="")
    return f"federation.dataset={path}"


def harmless(done: Done) -> bool:
    return not {*"\x1b\x07\x9b\x7f\u202e\r"} & {*(done.out + done.err)}


def test_names_in_data_are_shown(cli: Cli, table: str) -> None:
    done = cli("describe", *FEW, table, "federation.label=grade", "--out", "out").silent
    assert f"class{SHOWN}" in done.out
    assert harmless(done)
    as_json = cli("describe", *FEW, table, "federation.label=grade", "--json").ok
    assert as_json.out.isascii()
    assert harmless(as_json)
    assert any(STEERING.strip() in name for name in as_json.document["class_names"])
    assert "\x1b" not in Path("out/clients.svg").read_text()


def test_names_in_an_error_are_shown_on_one_line(cli: Cli, table: str) -> None:
    done = cli("describe", *FEW, table, "federation.label=nothing")
    done.refuses("federation.label", r"\x1b")
    assert harmless(done)


def test_a_log_is_shown(cli: Cli, tmp_path: Path) -> None:
    assert cli("train", *SMALL, "--out", "out").code == 0
    log = TrialLog(tmp_path / "out")
    (record,) = log.read(json.loads((tmp_path / "out" / "config.json").read_text())["config_hash"])
    (tmp_path / "out" / "trials").rename(tmp_path / "kept")
    log = TrialLog(tmp_path / "out")
    error = f"round 1: {STEERING}\nfedscout: all is well"
    log.append(replace(record, error=error, status="failed", fitness=0.0, own_fitness=0.0, clean_fitness=0.0))
    assert all(harmless(cli("trials", "out", *options).ok) for options in ((), ("--json",)))
    (tmp_path / "out" / "trials" / f"00009{STEERING}.parquet").write_text("no parquet")
    done = cli("trials", "out")
    assert SHOWN in done.err
    assert harmless(done)


def test_warnings_are_one_line_each(cli: Cli, tmp_path: Path) -> None:
    assert cli("train", *SMALL, "--out", "out").code == 0
    claim = json.loads((tmp_path / "out" / "config.json").read_text())
    claim["versions"]["numpy"] = f"1{STEERING}\n\nfedscout: all is well"
    (tmp_path / "out" / "config.json").write_text(json.dumps(claim))
    done = cli("train", *SMALL, "--out", "out").ok
    (line,) = done.err.splitlines()
    assert SHOWN in line
    assert harmless(done)
