"""`fedscout app` says what its model will be, or that there will be none, before anything is written."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.cli.conftest import Cli
from tests.experiments.deployment.test_app_folder import study


def winner(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"strategy": kind, "parameters": parameters, "learning_rate": 0.1}


def test_a_study_whose_winner_shares_nothing_gives_no_app(cli: Cli, tmp_path: Path) -> None:
    study(tmp_path / "study", confirmation=None, best=winner("local"))
    cli("app", "--from", "study", "--out", "app").refuses("", "got local")
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize(("kind", "told"), [("fedbabu", ["tune"]), ("fedavg", [])])
def test_what_its_clients_use_is_said_where_it_is_another_model(
    cli: Cli, tmp_path: Path, kind: str, told: list[str]
) -> None:
    study(tmp_path / "study", confirmation=None, best=winner(kind))
    written, *notes = cli("app", "--from", "study", "--out", "app").out.splitlines()
    assert "flwr run" in written
    assert all(word in note for word, note in zip(told, notes, strict=True))


def app_config(folder: Path) -> dict[str, Any]:
    """Return what a user of an app may change."""
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    config: dict[str, Any] = project["tool"]["flwr"]["app"]["config"]
    return config


WINE = ("federation.dataset=wine",)


@pytest.mark.parametrize(
    ("arguments", "min_clients", "out"),
    [
        (("federation.num_clients=4",), 4, "app-out"),
        (("federation.num_clients=4", "--min-clients", "3", "--results", "/srv/my results"), 3, "/srv/my results"),
    ],
)
def test_an_app_waits_for_the_studys_clients_and_writes_where_it_is_told(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], min_clients: int, out: str
) -> None:
    assert cli("app", *WINE, *arguments, "--out", "app").code == 0
    config = app_config(tmp_path / "app")
    assert (config["min-clients"], config["out"]) == (min_clients, out)


def test_a_strategy_that_is_named_is_what_is_trained(cli: Cli, tmp_path: Path) -> None:
    assert cli("app", *WINE, "strategy.kind=fedadam", "strategy.eta=0.1", "--out", "app").code == 0
    server = (tmp_path / "app" / "app" / "server_app.py").read_text()
    names: dict[str, Any] = {}
    exec(compile(server, "server_app.py", "exec"), names)
    assert names["STRATEGY"] == {"kind": "fedadam", "eta": 0.1}
    for choice in (("--choose", "rules"), ("--max-rounds", "5")):
        cli("app", *WINE, "strategy.kind=fedadam", *choice, "--out", "other").refuses()
