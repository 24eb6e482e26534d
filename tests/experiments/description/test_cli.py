"""`fedscout describe`: what it prints and writes, mistakes, and what it does not import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import REPOSITORY
from tests.experiments.cli.conftest import Cli, cli

__all__ = ["cli"]

WINE = ("federation.dataset=wine", "federation.num_clients=4", "federation.partition.alpha=0.5")
POISONED = ("federation.dataset=wine", "federation.num_clients=4", "federation.scenario=label_poisoning")
ENDED_WRONG = 2


def test_numbers_and_strip_are_printed(cli: Cli) -> None:
    done = cli("describe", *POISONED)
    assert (done.code, done.err) == (0, "")
    assert "wine, scenario label_poisoning, 4 clients" in done.out
    assert "178 of 178 assigned" in done.out
    assert "What the scenario changed" in done.out
    assert "Clients × classes" in done.out
    assert "classes from left to right: class_0, class_1, class_2" in done.out


def test_equal_rows_are_counted(cli: Cli, tmp_path: Path) -> None:
    """Forty rows, three times each: eighty equal an earlier one."""
    lines = [f"{row}.5,{row * row % 7}.25,{'ab'[row % 2]}" for row in range(40)]
    (tmp_path / "thrice.csv").write_text("\n".join(["x,z,y", *lines, *lines, *lines]) + "\n")
    done = cli("describe", "federation.dataset=thrice.csv", "federation.label=y", "federation.num_clients=4")
    assert done.code == 0
    (line,) = [line for line in done.out.splitlines() if " of 120 " in line]
    assert "80" in line.split()


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


def test_figures_are_those_of_detect(cli: Cli) -> None:
    quick = ("detection.outlier_repetitions=1", "detection.outlier_min_flags=1", "detection.outlier_rounds=1")
    quick += ("federation.min_release=1",)  # clients tell all
    found = json.loads(cli("describe", *WINE, *quick, "seed=5", "--json").out)["realised"]
    report = json.loads(cli("detect", *WINE, *quick, "seed=5", "engine.grid=local", "--json").out)["report"]
    assert found["label_skew"] == report["label_skew"]["value"]
    shared = set(found) & set(report["metrics"])
    assert len(shared) == 7
    assert found["label_wasserstein"] is None  # the names of the classes have no order
    assert {key: found[key] for key in shared} == pytest.approx({key: report["metrics"][key] for key in shared})


@pytest.mark.slow
def test_files_are_written_and_named(cli: Cli, tmp_path: Path) -> None:
    done = cli("describe", *WINE, "--out", "a/b")
    assert done.code == 0
    names = ("description.json", "clients.png", "clients.svg")
    assert sorted(path.name for path in (tmp_path / "a" / "b").iterdir()) == sorted(names)
    assert [line.partition(": ")[2] for line in done.out.splitlines()[-3:]] == [f"a/b/{name}" for name in names]
    document = json.loads((tmp_path / "a" / "b" / "description.json").read_text())
    again = cli("describe", *WINE, "--out", "a/b", "--json")
    assert json.loads(again.out) == document


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
        (["federation.datase=wine"], ("federation.datase ", "federation.dataset")),
        (["federation.dataset=wine", "federation.num_clients=500"], ("num_clients ", "500")),
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


def test_a_file_that_cannot_be_replaced_is_a_mistake(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "out" / "clients.png").mkdir(parents=True)
    done = cli("describe", *WINE, "--out", "out")
    assert (done.code, len(done.err.splitlines())) == (ENDED_WRONG, 1)
    assert "out/clients.png " in done.err


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
