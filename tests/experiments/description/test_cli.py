"""`fedscout describe`: what it prints and writes, mistakes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.experiments.description import dependence_notes, near_copies_of_test_rows
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.reports.console import paragraph
from tests.conftest import REPOSITORY
from tests.experiments.cli.conftest import Cli, cli
from tests.experiments.description.federations import NoModel

__all__ = ["cli"]

WINE = ("federation.dataset=wine", "federation.num_clients=4", "federation.partition.alpha=0.5")
POISONED = ("federation.dataset=wine", "federation.num_clients=4", "federation.scenario=label_poisoning")
ENDED_WRONG = 2


def test_json_is_alone_and_has_the_documented_keys(cli: Cli) -> None:
    done = cli("describe", *POISONED, "--json")
    assert (done.code, done.err) == (0, "")
    document = json.loads(done.out, parse_constant=pytest.fail)
    text = (REPOSITORY / "docs" / "describe.md").read_text()
    found = {*document, *document["realised"], *document["clients"][0], *document["changes"][0]}
    assert sorted(key for key in found if f"`{key}`" not in text) == []
    assert document["affected_clients"] == [2]
    assert [change["client"] for change in document["changes"]] == [2]
    assert document["changes"][0]["num_labels_changed"] == document["clients"][2]["num_rows"]


def test_clients_that_play_are_described_by_their_physics(cli: Cli, tmp_path: Path) -> None:
    physics = "federation.physics=[{clients: [1], gravity: 20, pole_length: 0.1}]"
    done = cli("describe", "federation.dataset=cartpole", "federation.num_clients=3", physics, "--out", "out")
    assert (done.code, done.err) == (0, "")
    assert "gravity=9.8, pole_length=1.0, force=10.0): clients 0, 2" in done.out
    assert "gravity=20.0, pole_length=0.1, force=10.0): client 1" in done.out
    assert "episodes" in done.out
    assert "classes" not in done.out
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["description.json"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--out", "file"], ("--out ", "got file")),
        (["--out", "file/below"], ("--out ", "got file/below")),
    ],
)
def test_mistakes_are_one_line(cli: Cli, tmp_path: Path, arguments: list[str], named: tuple[str, ...]) -> None:
    (tmp_path / "file").touch()
    done = cli("describe", *arguments)
    assert (done.code, done.out, len(done.err.splitlines())) == (ENDED_WRONG, "", 1)
    assert done.err.startswith("fedscout: ")
    assert all(part in done.err for part in named)


@pytest.mark.slow
def test_neither_torch_nor_ray_is_imported(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "from fedscout.experiments.cli.main import main\n"
        f"sys.argv = ['fedscout', 'describe', *{WINE!r}, '--out', {str(tmp_path / 'out')!r}]\n"
        "try:\n"
        "    main()\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0, end.code\n"
        "print('HEAVY', sorted({'torch', 'ray', 'flwr', 'optuna', 'gymnasium'} & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.strip().splitlines()[-1] == "HEAVY []"


# What is said of rows that belong together, and of whom nothing is said.


def visits(spread: float, num_clients: int = 4) -> Federation:
    """Return 100 subjects with five visits each, dealt to clients as whole subjects."""
    generator = np.random.default_rng(0)
    subject = np.repeat(np.arange(100), 5)
    features = generator.normal(size=(100, 8))[subject] + spread * generator.normal(size=(500, 8))
    return Federation(
        name="visits",
        features=features.astype(np.float32),
        labels=(subject % 2).astype(np.int64),
        num_classes=2,
        partition=Partition(np.arange(500), np.linspace(0, 500, num_clients + 1).astype(np.int64)),
        model=NoModel(),
    )


def test_near_copies_across_the_split_are_told_and_gone_with_groups() -> None:
    plain = visits(0.05)
    (note,) = dependence_notes(plain, 0, 0.2)
    assert "near copies among the training rows" in note
    on_screen = " ".join(line.plain.strip() for line in paragraph(note, 80))
    assert "federation.group_column keeps" in on_screen
    assert "federation.split=last splits" in on_screen
    assert dependence_notes(replace(plain, groups=np.arange(500) // 5), 0, 0.2) == ()


def test_of_independent_rows_nothing_is_said() -> None:
    assert dependence_notes(visits(10.0), 0, 0.2) == ()


@pytest.mark.parametrize("name", ["digits", "wine", "breast_cancer"])
def test_of_usual_data_sets_nothing_is_said(name: str) -> None:
    federation = build_federation(FederationConfig(dataset=name, partition={"kind": "iid"}), ModelConfig())
    assert dependence_notes(federation, 0, 0.2) == ()


def test_groups_that_clients_share_are_counted() -> None:
    """Clients of 125 rows each are 25 subjects; of 3, 167 rows: borders within two of the subjects."""
    groups = np.arange(500) // 5
    assert dependence_notes(replace(visits(10.0), groups=groups), 0, 0.2) == ()
    (note,) = dependence_notes(replace(visits(10.0, num_clients=3), groups=groups), 0, 0.2)
    assert "2 of 100 " in note


def test_a_series_that_is_drawn_from_is_told() -> None:
    series = replace(visits(10.0), facts={"series": "snapshots of a run to failure"})
    (note,) = dependence_notes(series, 0, 0.2)
    assert "snapshots of a run to failure" in note
    assert "federation.split=last" in note
    assert "FedAvg" not in note
    (cut,) = dependence_notes(replace(series, split="last"), 0, 0.2)
    assert "same test rows" in cut


def test_texts_are_not_compared() -> None:
    assert near_copies_of_test_rows(replace(visits(0.05), facts={"data_kind": "tokens"}), 0, 0.2) is None


def test_many_clients_are_drawn_from() -> None:
    found = near_copies_of_test_rows(visits(0.05, num_clients=250), 0, 0.5)
    assert found is not None
    assert found.num_rows == 100  # one test row each of 100 clients of two rows
