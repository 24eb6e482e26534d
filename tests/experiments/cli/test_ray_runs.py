"""On Ray: the result does not depend on hosts, interruptions or kills, and no process outlives the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.experiments.cli.conftest import SMALL
from tests.experiments.cli.processes import Command, lasting_result

pytestmark = [pytest.mark.slow, pytest.mark.ray]

STUDY = (*SMALL[1:8], "training.num_rounds=12", "engine.checkpoint_every_rounds=2")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of the study in one process."""
    folder = tmp_path_factory.mktemp("local")
    with Command(folder, "run", *STUDY, "engine.grid=local", "--out", "out", "--json") as command:
        assert json.loads(command.succeeds())["out"] == str(folder / "out")
    return lasting_result(folder / "out")


def trials(folder: Path) -> list[Path]:
    return sorted(folder.glob("trials/*.parquet"))


@pytest.mark.stress
@pytest.mark.parametrize("num_hosts", [1, 2, 4])
def test_the_result_is_that_of_one_process(tmp_path: Path, expected: dict[str, Any], num_hosts: int) -> None:
    arguments = ("run", *STUDY, f"engine.num_hosts={num_hosts}", "--out", "out", "--json")
    with Command(tmp_path, *arguments) as command:
        command.wait_until(lambda: len(trials(tmp_path / "out")) > 0)
        assert len(command.tree()) > num_hosts
        document = json.loads(command.succeeds())
        left = command.left_over()
    assert document.pop("timings")
    assert document.pop("out") == str(tmp_path / "out")
    assert document == expected
    assert lasting_result(tmp_path / "out") == expected
    assert left == []


@pytest.mark.stress
def test_a_class_of_the_user_s_folder_is_found_by_the_workers(tmp_path: Path) -> None:
    (tmp_path / "of_the_user.py").write_text(
        "from flwr.serverapp.strategy import FedAvg\n\n\nclass Own(FedAvg):\n    pass\n"
    )
    (tmp_path / "search.py").write_text("raise SystemExit('the wrong search was imported')\n")
    arguments = [*STUDY[:2], "training.num_rounds=2", "strategy.kind=custom", "strategy.path=of_the_user:Own", "--json"]
    results = []
    for engine in ("engine.num_hosts=2", "engine.grid=local"):
        with Command(tmp_path, "train", *arguments, engine, "--out", engine) as command:
            results.append({**json.loads(command.succeeds()), "out": ""})
    assert results[0]["trial"]["status"] == "completed"
    assert results[0] == results[1]


def test_a_mistake_that_only_ray_can_find_leaves_no_folder_and_no_process(tmp_path: Path) -> None:
    with Command(tmp_path, "run", *STUDY, "engine.object_store_bytes=1000000000000000", "--out", "out") as command:
        code, out, err = command.end()
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("fedscout: Ray ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.stress
def test_a_race_whose_survivors_go_on_comes_out_as_in_one_process(tmp_path: Path) -> None:
    """Tasks on Ray find the checkpoints with which the rung before ended."""
    arguments = ("search", *STUDY[:2], STUDY[-2], "search.kind=racing", "search.confirmation_seeds=0", "--json")
    results = []
    for grid in ("engine.grid=local", "engine.num_hosts=2"):
        with Command(tmp_path, *arguments, grid, "--out", grid) as command:
            results.append({**json.loads(command.succeeds()), "timings": 0, "out": 0})
    assert results[0] == results[1]
    assert len({trial["num_rounds"] for trial in results[0]["trials"]}) > 1
