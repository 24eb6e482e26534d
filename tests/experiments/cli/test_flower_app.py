"""`fedscout app` says what its model will be, or that there will be none, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.experiments.cli.conftest import Cli
from tests.experiments.deployment.test_app_folder import study


def winner(kind: str, **parameters: Any) -> dict[str, Any]:
    return {"strategy": kind, "parameters": parameters, "learning_rate": 0.1}


def test_a_study_whose_winner_shares_nothing_gives_no_app(cli: Cli, tmp_path: Path) -> None:
    study(tmp_path / "study", confirmation=None, best=winner("local"))
    done = cli("app", "--from", "study", "--out", "app")
    assert (done.code, done.out, len(done.err.splitlines())) == (2, "", 1)
    assert "got local: all that it trains stays with its client" in done.err
    assert not (tmp_path / "app").exists()


@pytest.mark.parametrize(("kind", "told"), [("fedbabu", "clients tune it for use"), ("fedavg", None)])
def test_what_its_clients_use_is_said_where_it_is_another_model(
    cli: Cli, tmp_path: Path, kind: str, told: str | None
) -> None:
    study(tmp_path / "study", confirmation=None, best=winner(kind))
    written, *notes = cli("app", "--from", "study", "--out", "app").out.splitlines()
    assert "an app for `flwr run`" in written
    assert len(notes) == (told is not None)
    assert all(told is not None and told in note for note in notes)
