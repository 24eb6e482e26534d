"""A study's folder on a disk that is full or must not be written, and with whatever lies in it already."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow.parquet as pq
import pytest

from fedscout.engine.runtime.files import remove_unfinished
from fedscout.engine.trials.checkpoint import CheckpointStore, PlainState
from tests.commands import ran
from tests.experiments.cli.conftest import Cli
from tests.faults.conftest import LOCAL, NUM_TRIALS, RUN, STUDY, GoesOn, line_of, trial_files, written_at


@contextmanager
def failing(name: str, number: int = errno.ENOSPC, count: int = 0) -> Iterator[None]:
    """Let files of a name come to no end: the first `count` are written, then the disk gives an error."""
    replace = Path.replace
    left = [count]

    def refuse(self: Path, target: Any) -> Path:
        if name in Path(target).name:
            left[0] -= 1
            if left[0] < 0:
                raise OSError(number, os.strerror(number), str(self))
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        yield


@contextmanager
def refusing(holder: object, name: str, number: int) -> Iterator[None]:
    """Let a function raise this error of the operating system."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(holder, name, Mock(side_effect=OSError(number, os.strerror(number))))
        yield


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "number"),
    [
        *((".parquet", 2, number) for number in (errno.ENOSPC, errno.EIO)),
        *(("report.json", 0, number) for number in (errno.EFBIG, errno.EACCES, errno.EDQUOT)),
        ("result.json", 0, errno.EROFS),
    ],
)
def test_what_can_t_be_written_stops_the_study_and_it_goes_on_later(
    cli: Cli, goes_on: GoesOn, tmp_path: Path, name: str, count: int, number: int
) -> None:
    out = tmp_path / "out"
    with failing(name, number, count):
        line = line_of(cli(*RUN, out), 1)
    assert line.startswith(f"fedscout: {out}/")
    assert re.search(rf"{name} .*: {os.strerror(number)}; ", line)
    assert ("are free there" in line) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert not list(out.rglob("*.tmp"))
    assert len(trial_files(out)) == {".parquet": 2, "report.json": 0, "result.json": NUM_TRIALS}[name]

    finished = written_at(*trial_files(out))
    assert goes_on() == []
    assert written_at(*finished) == finished


@pytest.mark.slow
def test_checkpoints_that_can_t_be_written_only_warn(goes_on: GoesOn) -> None:
    with failing(".checkpoint"):
        warnings = goes_on()
    assert "checkpoint: OSError: [Errno 28] No space left on device" in " ".join(warnings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "name", "there"),
    [
        (("run", *STUDY, LOCAL), "config.json", False),
        *((("sweep", *STUDY, LOCAL, "seed=0,1"), "sweep.json", there) for there in (False, True)),
        (("describe", "federation.dataset=wine"), "description.json", False),
    ],
    ids=str,
)
def test_no_unwritable_folder_is_left(cli: Cli, tmp_path: Path, command: Any, name: str, there: bool) -> None:
    out = tmp_path / "deep" / "out"
    if there:
        out.mkdir(parents=True)
    with failing(name):
        line = line_of(cli(*command, "--out", out), 2)
    assert re.match(rf"fedscout: --out .* {out}.*{name} .*: No space left on device; ", line)
    assert [path.name for path in tmp_path.rglob("*")] == (["deep", "out"] if there else [])


@pytest.mark.slow
def test_a_log_that_can_t_be_mended_is_told(cli: Cli, out: Path) -> None:
    """A damaged file that can't be moved, as in a read-only folder."""
    victim = trial_files(out)[1]
    victim.write_text("text")
    with refusing(Path, "rename", errno.EROFS):
        line = line_of(cli(*RUN, out), 1)
    assert re.match(rf"fedscout: {victim} .*{out}/quarantine/{victim.name} .*: Read-only file system", line)


@pytest.mark.slow
def test_files_that_can_t_be_opened_now_are_not_taken_for_damaged(cli: Cli, goes_on: GoesOn, out: Path) -> None:
    with refusing(pq, "ParquetFile", errno.EMFILE):
        line = line_of(cli(*RUN, out), 1)
    assert re.match(rf"fedscout: {trial_files(out)[0]} .*: Too many open files; ", line)
    assert not (out / "quarantine").exists()
    goes_on()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte, where this process may mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    command = [str(mount), "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("only a superuser may mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.slow
def test_a_disk_that_is_really_full(cli: Cli, small_disk: Path, goes_on: GoesOn) -> None:
    """All but some pages are taken at first, then everything, then nothing."""
    out = small_disk / "out"
    taken = small_disk / "taken"
    taken.write_bytes(b"x" * 440_000)
    first = cli(*RUN, out)
    assert (first.code, first.out) == (1, "")
    assert ": No space left on device; " in first.warnings.splitlines()[-1]
    assert 0 < len(trial_files(out)) < NUM_TRIALS
    with taken.open("ab", buffering=0) as file, suppress(OSError):
        while file.write(b"x" * 512):
            pass
    assert cli(*RUN, out).code == 1
    taken.unlink()
    (line,) = goes_on(out)  # a page with its pictures takes more than this disk has
    assert "report" in line
    assert "No space left on device" in line


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_result_that_can_t_be_printed_is_told() -> None:
    done = ran("sh", "-c", f"{sys.executable} -m fedscout.experiments.cli.main strategies >/dev/full")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.match("fedscout: standard output .*: No space left on device$", line)


# The parts.


def test_a_checkpoint_that_can_t_be_removed_only_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "key.checkpoint").mkdir()
    store = CheckpointStore(tmp_path)
    store.discard("key")
    assert not store.restore("key", PlainState(None))
    removed, read = (record.getMessage() for record in caplog.records)
    assert f"{tmp_path / 'key.checkpoint'} can't be removed" in removed
    assert f"{tmp_path / 'key.checkpoint'} can't be read" in read


def test_only_unfinished_files_of_ours_are_removed(tmp_path: Path) -> None:
    mine = [".notes.tmp", ".a.b.tmp", "a.parquet.12.tmp", ".lock"]
    for name in (*mine, ".a.parquet.12.tmp"):
        (tmp_path / name).write_text("")
    (tmp_path / ".folder.12.tmp").mkdir()
    remove_unfinished(tmp_path)
    remove_unfinished(tmp_path / "nowhere")
    assert {path.name for path in tmp_path.iterdir()} == {*mine, ".folder.12.tmp"}


# Whatever lies in a study's folder, the study repeats what is missing and ends as the undisturbed one.


@pytest.fixture
def out(tmp_path: Path, undisturbed_folder: Path) -> Path:
    """A finished study's folder, without its result."""
    shutil.copytree(undisturbed_folder, tmp_path / "out")
    (tmp_path / "out" / "result.json").unlink()
    return tmp_path / "out"


BROKEN: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "text": lambda path: path.write_text("hello\n"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}
DAMAGE: dict[str, Callable[[Path], object]] = {
    "text": BROKEN["text"],
    "a pipe": BROKEN["a pipe"],
    "a folder": lambda path: (path.unlink(), path.mkdir(), (path / "content").write_text("mine")),
    "a loop": lambda path: (path.unlink(), path.symlink_to(path.name)),
}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_trial_is_set_aside_and_repeated(cli: Cli, goes_on: GoesOn, out: Path, damage: str) -> None:
    """To look at the study changes nothing; to run it again sets the file aside and repeats that trial alone."""
    files = trial_files(out)
    victim = files[2]
    kept = written_at(*{*files} - {victim})
    DAMAGE[damage](victim)
    shown = cli("trials", "out", "--json")
    assert shown.code == 0
    assert len(json.loads(shown.out)) == NUM_TRIALS - 1
    assert f"out/trials/{victim.name} " in shown.err
    assert os.path.lexists(victim)
    aside = out / "quarantine" / victim.name
    (line,) = goes_on()
    assert all(str(path) in line for path in (victim, aside))
    assert os.path.lexists(aside)
    assert written_at(*kept) == kept
    assert len(json.loads(cli("trials", "out", "--json").out)) == NUM_TRIALS


@pytest.mark.slow
def test_what_is_no_trial_is_set_aside_and_nothing_repeated(cli: Cli, goes_on: GoesOn, out: Path) -> None:
    files = trial_files(out)
    (out / "trials" / "notes.txt").write_text("mine")
    (out / "trials" / "x.parquet").write_text("text")
    shutil.copy(files[1], out / "trials" / "copy of 1.parquet")  # would be counted twice
    (out / "trials" / "more").mkdir()
    kept = written_at(*files)
    assert len(json.loads(cli("trials", "out", "--json").out)) == NUM_TRIALS
    assert len(goes_on()) == 4
    names = {"notes.txt", "x.parquet", "copy of 1.parquet", "more"}
    assert {path.name for path in (out / "quarantine").iterdir()} == names
    assert written_at(*files) == kept


@pytest.mark.slow
def test_what_a_killed_run_was_writing_is_removed(goes_on: GoesOn, out: Path) -> None:
    (out / "checkpoints").mkdir(exist_ok=True)
    for name in ("trials/.00009-ab.parquet.4711.tmp", "checkpoints/.ab.checkpoint.4711.tmp", ".result.json.4711.tmp"):
        (out / name).write_bytes(b"half")
    assert goes_on() == []


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "nested", "a pipe"])
@pytest.mark.parametrize("name", ["report.json", "config.json"])
def test_a_damaged_json_file_is_named_and_made_again(goes_on: GoesOn, out: Path, name: str, damage: str) -> None:
    before = json.loads((out / name).read_text())
    BROKEN[damage](out / name)
    (line,) = goes_on()
    assert line.startswith(f"fedscout: {out / name} ")
    after = json.loads((out / name).read_text())
    assert {**after, "timings": 0} == {**before, "timings": 0}


@pytest.mark.slow
def test_a_folder_in_the_place_of_a_json_file_is_told_and_nothing_is_lost(cli: Cli, goes_on: GoesOn, out: Path) -> None:
    (out / "result.json").mkdir()
    assert re.match(rf"fedscout: {out}/result.json .*: Is a directory; ", line_of(cli(*RUN, out), 1))
    (out / "result.json").rmdir()
    goes_on()


def test_without_a_readable_configuration_another_study_is_not_continued(cli: Cli, out: Path) -> None:
    BROKEN["truncated"](out / "config.json")
    before = sorted(path.name for path in out.rglob("*"))
    done = cli(*RUN, out, "seed=1")
    assert (done.code, done.out) == (2, "")
    assert "config.json" in done.warnings
    assert sorted(path.name for path in out.rglob("*")) == before


@pytest.mark.parametrize("name", ["trials", "checkpoints", "quarantine"])
def test_a_file_in_the_place_of_a_folder_is_told_at_once(cli: Cli, out: Path, name: str) -> None:
    shutil.rmtree(out / name, ignore_errors=True)
    (out / name).write_text("mine")
    line = line_of(cli(*RUN, out), 2)
    assert line.startswith(f"fedscout: {out / name} ")
    assert line.endswith(" is a file")


def test_a_finished_study_with_a_damaged_result_is_told_from_its_log(goes_on: GoesOn, out: Path) -> None:
    (out / "result.json").write_text('{"config": {')
    goes_on()
