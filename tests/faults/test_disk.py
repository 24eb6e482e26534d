"""A disk that is full, or must not be written: one line, nothing half-written, and the same command goes on later."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from fedscout.engine.runtime.files import remove_unfinished
from fedscout.engine.trials.checkpoint import CheckpointStore, PlainState
from tests.commands import ran_python
from tests.experiments.cli.conftest import Cli
from tests.experiments.cli.processes import REPOSITORY
from tests.faults.undisturbed import LOCAL, NUM_TRIALS, STUDY, Outcome, line_of, trial_files

RUN = ("run", *STUDY, LOCAL, "--out")


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


def refusing(number: int) -> Callable[..., None]:
    """Return a function that raises this error of the operating system."""

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count", "number"),
    [
        (".parquet", 2, errno.ENOSPC),
        (".parquet", 2, errno.EIO),
        ("report.json", 0, errno.EACCES),
        ("report.json", 0, errno.EDQUOT),
        ("result.json", 0, errno.EROFS),
    ],
)
def test_what_can_t_be_written_stops_the_study_and_it_goes_on_later(
    cli: Cli, tmp_path: Path, undisturbed: Outcome, name: str, count: int, number: int
) -> None:
    out = tmp_path / "out"
    with failing(name, number, count):
        line = line_of(cli(*RUN, out), 1)
    assert line.startswith(f"fedscout: {out}/")
    assert re.search(rf"{name} .*: {os.strerror(number)}; ", line)
    assert ("are free there" in line) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert not list(out.rglob("*.tmp"))
    assert len(trial_files(out)) == {".parquet": 2, "report.json": 0, "result.json": NUM_TRIALS}[name]

    finished = {path: path.stat().st_mtime_ns for path in trial_files(out)}
    done = cli(*RUN, out)

    assert (done.code, done.warnings) == (0, "")
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert Outcome.of(out) == undisturbed


@pytest.mark.slow
def test_checkpoints_that_can_t_be_written_only_warn(cli: Cli, tmp_path: Path, undisturbed: Outcome) -> None:
    with failing(".checkpoint"):
        done = cli(*RUN, tmp_path / "out")
    assert done.code == 0
    assert "checkpoint: OSError: [Errno 28] No space left on device" in done.warnings
    assert Outcome.of(tmp_path / "out") == undisturbed


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
def test_a_new_folder_that_can_t_be_written_is_refused_and_not_left(
    cli: Cli, tmp_path: Path, command: tuple[str, ...], name: str, there: bool
) -> None:
    out = tmp_path / "deep" / "out"
    if there:
        out.mkdir(parents=True)
    with failing(name):
        line = line_of(cli(*command, "--out", out), 2)
    assert re.match(rf"fedscout: --out .* {out}.*{name} .*: No space left on device; ", line)
    assert [path.name for path in tmp_path.rglob("*")] == (["deep", "out"] if there else [])


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Make a folder one that can't be written, by a mount where this process is not bound by permissions."""
    if os.geteuid() != 0:
        folders = [folder, *(path for path in folder.rglob("*") if path.is_dir())]
        files = [path for path in folder.rglob("*") if path.is_file()]
        for path in (*files, *folders):
            path.chmod(0o444 if path.is_file() else 0o555)
        try:
            yield
        finally:
            for path in (*folders, *files):
                path.chmod(0o644 if path.is_file() else 0o755)
        return
    if subprocess.run(["mount", "--bind", folder, folder], check=False, capture_output=True).returncode:
        pytest.skip("this superuser may not mount")
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


def without_cost(screen: str) -> list[str]:
    return [line for line in screen.splitlines() if not line.startswith("  Cost: ")]


@pytest.mark.slow
def test_a_finished_study_is_told_from_a_folder_that_can_only_be_read(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = cli(*RUN, out)
    before = contents(out)
    with read_only(out):
        again = cli(*RUN, out)
    assert (again.code, again.warnings) == (0, "")
    assert without_cost(again.out) == without_cost(first.out)
    assert contents(out) == before


@pytest.mark.slow
def test_an_unfinished_study_in_such_a_folder_is_refused_before_anything_runs(
    cli: Cli, tmp_path: Path, undisturbed: Outcome
) -> None:
    out = tmp_path / "out"
    assert cli(*RUN, out).code == 0
    for path in (trial_files(out)[-1], out / "result.json"):
        path.unlink()
    with read_only(out):
        for folder in (out, out / "new"):
            assert re.match(rf"fedscout: --out .*, got {folder}:", line_of(cli(*RUN, folder), 2))
        other = cli(*RUN, out, "seed=8")
    assert (other.code, other.out) == (2, "")
    assert re.match(rf"fedscout: .*{out} .* another ", other.warnings)
    assert cli(*RUN, out).code == 0
    assert Outcome.of(out) == undisturbed


@pytest.mark.slow
def test_a_log_that_can_t_be_mended_is_told(cli: Cli, tmp_path: Path, undisturbed: Outcome) -> None:
    """A damaged file that can't be moved, as in a read-only folder."""
    out = tmp_path / "out"
    assert cli(*RUN, out).code == 0
    victim = trial_files(out)[1]
    victim.write_text("text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", refusing(errno.EROFS))
        line = line_of(cli(*RUN, out), 1)
    assert re.match(rf"fedscout: {victim} .*{out}/quarantine/{victim.name} .*: Read-only file system", line)


@pytest.mark.slow
def test_files_that_can_t_be_opened_now_are_not_taken_for_damaged(
    cli: Cli, tmp_path: Path, undisturbed: Outcome
) -> None:
    out = tmp_path / "out"
    assert cli(*RUN, out).code == 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pq, "ParquetFile", refusing(errno.EMFILE))
        line = line_of(cli(*RUN, out), 1)
    assert re.match(rf"fedscout: {trial_files(out)[0]} .*: Too many open files; ", line)
    assert not (out / "quarantine").exists()
    assert Outcome.of(out) == undisturbed


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
def test_a_disk_that_is_really_full(cli: Cli, small_disk: Path, undisturbed: Outcome) -> None:
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
    second = cli(*RUN, out)
    assert second.code == 1
    taken.unlink()
    third = cli(*RUN, out)
    assert third.code == 0
    (line,) = third.warnings.splitlines()  # a page with its pictures takes more than this disk has
    assert "report" in line
    assert "No space left on device" in line
    assert Outcome.of(out) == undisturbed


@pytest.mark.stress
def test_a_limit_on_the_size_of_files(tmp_path: Path, undisturbed: Outcome, cli: Cli) -> None:
    """As `ulimit -f` sets it: a signal that ends a process, unless it is ignored, as Python does."""
    script = (
        "import resource; from fedscout.experiments.cli.main import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8000, resource.getrlimit(resource.RLIMIT_FSIZE)[1])); "
        f"main({[*RUN, str(tmp_path / 'out')]!r})"
    )
    done = ran_python("-c", script)
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search("report.json .*: File too large; ", done.stderr.splitlines()[-1])
    assert not list((tmp_path / "out").rglob("*.tmp"))
    assert cli(*RUN, tmp_path / "out").code == 0
    assert Outcome.of(tmp_path / "out") == undisturbed


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs the device that is always full")
def test_a_result_that_can_t_be_printed_is_told(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fedscout.experiments.cli.main", "strategies"],
            check=False,
            cwd=REPOSITORY,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert re.match("fedscout: standard output .*: No space left on device$", line)


# The parts.


def test_a_checkpoint_that_can_t_be_removed_only_warns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "key.checkpoint").mkdir()
    store = CheckpointStore(tmp_path)
    with caplog.at_level("WARNING", logger="fedscout"):
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
