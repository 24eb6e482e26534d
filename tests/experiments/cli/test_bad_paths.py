"""A path that can't be one: a line, exit code 2, and nothing written, whichever command it was given to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.experiments.cli.conftest import SMALL, Cli

WINE = ("federation.dataset=wine",)
WRITING = {
    "init": ("init", "digits", "--yes"),
    "app": ("app", *WINE),
    "describe": ("describe", *WINE),
    "detect": ("detect", *SMALL),
    "train": ("train", *SMALL),
    "run": ("run", *SMALL),
    "embed": ("embed", "federation.dataset=digits", "--random", "4"),
}


@pytest.mark.slow
@pytest.mark.parametrize("out", ["file/below.npz", "/proc/nothing.npz", "/dev/null/x.npz", "x" * 300 + ".npz"])
@pytest.mark.parametrize("command", WRITING)
def test_a_place_that_can_be_none_is_one_line(cli: Cli, tmp_path: Path, command: str, out: str) -> None:
    (tmp_path / "file").touch()
    done = cli(*WRITING[command], "--out", out)
    assert done.code in (1, 2)
    assert len(done.warnings.splitlines()) == 1
    assert {path.name for path in tmp_path.iterdir()} == {"file"}


@pytest.mark.parametrize("command", ["app", "describe", "train"])
def test_a_file_in_the_place_of_a_folder_is_refused(cli: Cli, tmp_path: Path, command: str) -> None:
    (tmp_path / "file").write_text("mine")
    done = cli(*WRITING[command], "--out", "file")
    assert (done.code, len(done.warnings.splitlines())) == (2, 1)
    assert (tmp_path / "file").read_text() == "mine"


def test_init_makes_the_folder_of_its_file(cli: Cli, tmp_path: Path) -> None:
    assert cli("init", "digits", "--yes", "--out", "new/study.yaml").code == 0
    assert (tmp_path / "new" / "study.yaml").is_file()


@pytest.mark.parametrize("command", ["trials", "report", "plot", "export", "predict"])
@pytest.mark.parametrize("folder", ["nothing", "file", "file/below", "/proc/1/mem", "x" * 300])
def test_a_folder_that_is_none_is_refused(cli: Cli, tmp_path: Path, command: str, folder: str) -> None:
    (tmp_path / "file").touch()
    done = cli(command, folder, *(["file"] if command == "predict" else []))
    assert (done.code, len(done.warnings.splitlines())) == (2, 1)


@pytest.mark.parametrize(
    "setting",
    [
        ("engine.grid=local", "engine.address=nonsense:1"),
        ("engine.address=nonsense",),
        ("engine.address=http://[",),
        ("federation.dataset=http://[",),
        ("federation.dataset=postgresql://[",),
        ("search.tuning_factors=[]",),
        ("search.strategies=[1,2,3,4,5,6,7,8,9,10,11,12,13,14]",),
        ("federation.scenario=[1,2,3]",),
    ],
)
def test_a_value_that_means_nothing_is_one_line(cli: Cli, setting: tuple[str, ...]) -> None:
    done = cli("run", *setting, "--out", "out")
    assert (done.code, done.out, len(done.warnings.splitlines())) == (2, "", 1)
