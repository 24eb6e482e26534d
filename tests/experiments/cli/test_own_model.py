"""A user's own model on the command line: trained from the working directory, and every mistake a line and code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
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
    settings = (
        *SMALL,
        "search.budget=1",
        "search.strategies=[fedadam]",
        "search.confirmation_seeds=0",
        "model.kind=cli_users_nets:net",
    )
    done = cli("search", *settings, "--json", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    document = json.loads(done.out)
    assert document["federation"]["model"] == "cli_users_nets:net"


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize("command", ["run", "detect", "train", "search"])
def test_a_module_that_does_not_fit_is_told_before_anything_starts(
    cli: Cli, tmp_path: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nothing_may_start(*_: object) -> None:
        pytest.fail("hosts would start")

    monkeypatch.setattr("fedscout.experiments.studies.workflow.open_runner", nothing_may_start)
    out = tmp_path / "out"
    done = cli(command, "federation.dataset=wine", "model.kind=cli_users_nets:wrong", "--out", out)
    assert done.code == 2
    told = [line for line in done.err.splitlines() if line.startswith("fedscout: ")]
    assert told == [
        "fedscout: model.kind=cli_users_nets:wrong must work on 2 rows of shape (13,), got its layer '2' (Linear), "
        "given (2, 8), raises RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x8 and 9x3)"
    ]
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not (out / "trials").exists()


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (
            ["model.kind=lenet"],
            "model.kind=lenet must have images of shape (channels, height, width) with at least 16 pixels a side, as "
            "its second pooling has nothing left of fewer, got rows of shape (13,)",
        ),
        (["model.kind=textcnn"], "model.kind=textcnn must be given rows of kind tokens, got table"),
        (
            ["model.kind=linear", "model.dropout=0.5"],
            "model.dropout must be left out with model.kind=linear, which does not read it, got 0.5",
        ),
        (["model.norm=layer"], "model.norm must be 'none', 'batch' or 'group', got 'layer'"),
    ],
)
def test_a_model_that_does_not_go_with_the_data(cli: Cli, settings: list[str], line: str) -> None:
    done = cli("detect", "federation.dataset=wine", *settings)
    assert (done.code, done.out) == (2, "")
    assert [told for told in done.err.splitlines() if told.startswith("fedscout: ")] == [f"fedscout: {line}"]
