"""A user's own model on the command line: trained from the working directory, and every mistake a line and code 2."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.experiments.cli.conftest import SMALL, Cli

NETS = """
from torch import nn

print("noise on standard output")


def net(num_features, num_classes):
    return nn.Sequential(nn.Linear(num_features, 8), nn.Tanh(), nn.Linear(8, num_classes))


def wrong(num_features, num_classes):
    return nn.Sequential(nn.Linear(num_features, 8), nn.Tanh(), nn.Linear(9, num_classes))
"""


@pytest.fixture
def nets(cli: Cli, tmp_path: Path) -> Iterator[None]:
    """A module of the user's in the working directory, beside one that bears the name of one of our packages."""
    (tmp_path / "cli_users_nets.py").write_text(NETS)
    (tmp_path / "search.py").write_text("raise RuntimeError('shadowed')\n")
    yield
    sys.modules.pop("cli_users_nets", None)


@pytest.mark.usefixtures("nets")
def test_it_is_trained_and_named(cli: Cli, tmp_path: Path) -> None:
    settings = ("search.budget=1", "search.strategies=[fedadam]", "search.confirmation_seeds=0")
    document = cli("search", *SMALL, *settings, "model.kind=cli_users_nets:net", "--json", "--out", "out").document
    assert document["federation"]["model"] == "cli_users_nets:net"


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("command", ["run", "detect", "train", "search"])
def test_a_module_that_does_not_fit_is_told_before_anything_starts(
    cli: Cli, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    opening = "fedscout.experiments.studies.workflow.open_runner"
    monkeypatch.setattr(opening, lambda *_: pytest.fail("hosts would start"))
    done = cli(command, "federation.dataset=wine", "model.kind=cli_users_nets:wrong", "--out", "out")
    (line,) = [line for line in done.err.splitlines() if line.startswith("fedscout: ")]
    replace(done, err=line).refuses(
        "model.kind=cli_users_nets:wrong", "(13,)", "layer '2' (Linear)", "(2, 8)", "RuntimeError"
    )
    assert "Traceback" not in done.err
    assert not (tmp_path / "out" / "trials").exists()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        (["model.kind=lenet"], ("model.kind=lenet", "16 pixels", "got rows of shape (13,)")),
        (["model.kind=textcnn"], ("model.kind=textcnn", "tokens", "got table")),
        (["model.kind=linear", "model.dropout=0.5"], ("model.dropout", "model.kind=linear", "got 0.5")),
        (["model.norm=layer"], ("model.norm", "'none', 'batch' or 'group'", "got 'layer'")),
    ],
)
def test_a_model_that_does_not_go_with_the_data(cli: Cli, settings: list[str], names: tuple[str, ...]) -> None:
    cli("detect", "federation.dataset=wine", *settings).refuses(*names)
