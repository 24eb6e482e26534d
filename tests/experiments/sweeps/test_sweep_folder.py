"""The folder of a sweep: for one process at a time, and for one sweep, whose axes may grow."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest

from fedscout.engine.errors import EngineError, LogError
from fedscout.experiments.studies.run_folder import open_run_folder
from fedscout.experiments.sweeps.sweep import Sweep, await_release, check_sweep_folder, open_sweep_folder, read_sweep
from tests.kits.refusals import refused


def opened(out: Path, *arguments: str) -> Sweep:
    sweep = read_sweep(arguments)
    with open_sweep_folder(out, sweep):
        return sweep


def test_a_second_sweep_on_the_folder_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    sweep = read_sweep(["seed=0,1"])
    with open_sweep_folder(tmp_path / "out", sweep):
        with refused(LogError, key="out"), open_sweep_folder(tmp_path / "out", sweep):
            pass
        check_sweep_folder(tmp_path / "out", sweep)  # reading is no use
    opened(tmp_path / "out", "seed=0,1")


@pytest.mark.parametrize(
    "later",
    [
        ("seed=0,1,2", "training.num_rounds=10"),
        ("seed=1,2", "training.num_rounds=10"),
        ("seed=2", "training.num_rounds=10"),
        ("seed=0,1", "training.num_rounds=10,20"),
        ("seed=0,1", "training.num_rounds=10", "engine.num_hosts=3"),
        ("seed=0,1", "training.num_rounds=10", "federation.scenario=null,label_skew"),
    ],
)
def test_values_and_axes_may_be_added(tmp_path: Path, later: tuple[str, ...]) -> None:
    opened(tmp_path, "seed=0,1", "training.num_rounds=10")
    opened(tmp_path, *later)
    opened(tmp_path, "seed=0,1", "training.num_rounds=10")


def test_another_single_value_is_refused_with_the_way_out(tmp_path: Path) -> None:
    opened(tmp_path, "seed=0,1", "training.num_rounds=10")
    before = (tmp_path / "sweep.json").read_text()
    with refused(LogError, key=tmp_path.name, names="training.num_rounds: 10 before, 20 now") as caught:
        opened(tmp_path, "seed=0,1", "training.num_rounds=20")
    assert "training.num_rounds=10,20" in str(caught.value)
    assert (tmp_path / "sweep.json").read_text() == before


def test_a_key_that_was_an_axis_stays_free(tmp_path: Path) -> None:
    opened(tmp_path, "seed=0,1", "training.num_rounds=10,20")
    opened(tmp_path, "seed=0", "training.num_rounds=30")
    assert json.loads((tmp_path / "sweep.json").read_text())["axes"] == ["seed", "training.num_rounds"]


@pytest.mark.parametrize("content", ["a study", "notes"])
def test_a_folder_of_something_else_is_left_as_it_is(tmp_path: Path, content: str) -> None:
    sweep = read_sweep(["seed=0,1"])
    if content == "a study":
        with open_run_folder(tmp_path, sweep.configurations[0].config):
            pass
    else:
        (tmp_path / "notes.txt").write_text("mine")
    before = sorted(tmp_path.iterdir())
    with refused(LogError, key="--out"):
        opened(tmp_path, "seed=0,1")
    assert sorted(tmp_path.iterdir()) == before


def test_looking_makes_nothing(tmp_path: Path) -> None:
    sweep = read_sweep(["seed=0,1"])
    folder = check_sweep_folder(tmp_path / "out", sweep)
    assert [folder.result(point) for point in sweep.configurations] == [None, None]
    assert [folder.num_trials(point) for point in sweep.configurations] == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_study_is_found_under_the_name_that_an_earlier_command_gave_it(tmp_path: Path) -> None:
    (old,) = (point for point in read_sweep(["seed=0,1"]).configurations if point.config.seed == 1)
    opened(tmp_path, "seed=0,1")
    (tmp_path / "studies" / old.name).mkdir(parents=True)
    sweep = read_sweep(["seed=0,1", "federation.num_clients=10,20"])
    (same,) = (point for point in sweep.configurations if point.digest == old.digest)
    assert same.name != old.name
    assert check_sweep_folder(tmp_path, sweep).study(same) == tmp_path / "studies" / old.name


@pytest.mark.parametrize("content", ['{"config_hash": "of another"}', "[]", "no JSON"])
def test_a_result_that_is_not_the_study_s_is_none(tmp_path: Path, content: str) -> None:
    sweep = read_sweep(["seed=0,1"])
    folder = check_sweep_folder(tmp_path, sweep)
    study = folder.study(sweep.configurations[0])
    study.mkdir(parents=True)
    (study / "result.json").write_text(content)
    assert folder.result(sweep.configurations[0]) is None


@pytest.mark.slow
def test_a_study_that_a_dying_process_holds_is_waited_for(tmp_path: Path) -> None:
    config = read_sweep(["seed=0"]).configurations[0].config
    released: list[float] = []
    held = threading.Event()

    def hold() -> None:
        with open_run_folder(tmp_path / "study", config):
            held.set()
            time.sleep(0.5)
            released.append(time.monotonic())

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    await_release(tmp_path / "study")
    assert released
    assert time.monotonic() >= released[0]
    holder.join()


def test_waiting_for_a_study_ends(tmp_path: Path) -> None:
    with open_run_folder(tmp_path / "study", read_sweep(["seed=0"]).configurations[0].config):
        started = time.monotonic()
        await_release(tmp_path / "study", seconds=0.3)
        assert time.monotonic() - started >= 0.3
    await_release(tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_file_that_can_not_be_written_is_the_machinery_s_fault(tmp_path: Path) -> None:
    sweep = read_sweep(["seed=0,1"])
    with open_sweep_folder(tmp_path, sweep) as folder:
        (tmp_path / "table.csv").mkdir()
        (tmp_path / "table.csv" / "inside").touch()
        with pytest.raises(EngineError, match=r"table\.csv"):
            folder.write_text("table.csv", "text")
