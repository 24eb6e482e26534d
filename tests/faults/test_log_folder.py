"""Whatever lies in a study's folder, the study repeats what is missing and ends as the undisturbed one."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedscout.engine.trials.log import TrialLog
from fedscout.experiments.config import load_config
from fedscout.experiments.studies.workflow import Display, run_workflow
from tests.experiments.cli.conftest import Cli
from tests.faults.undisturbed import LOCAL, NUM_TRIALS, STUDY, Outcome, line_of, trial_files
from tests.forged_trials import forge

RUN = ("run", *STUDY, LOCAL, "--out", "out")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished study, to be copied."""
    out = tmp_path_factory.mktemp("finished") / "out"
    run_workflow(load_config([*STUDY, LOCAL]), out, Display())
    return out


@pytest.fixture
def out(tmp_path: Path, finished: Path) -> Path:
    """A finished study's folder, without its result."""
    shutil.copytree(finished, tmp_path / "out")
    (tmp_path / "out" / "result.json").unlink()
    return tmp_path / "out"


def other_study(path: Path) -> None:
    """The same columns, another configuration."""
    log = TrialLog(path.parent.parent)
    (record,) = [record for record in log.read() if path.name.startswith(f"{record.trial:05d}-")]
    path.unlink()
    assert log.append(replace(record, config_hash="another", fitness=1.0)) == path


def edited(path: Path, keeps_metadata: bool) -> None:
    """The best of all, with the metadata as they were, or without them and thus without the digest."""
    table = pq.ParquetFile(path).read()
    place = table.schema.get_field_index("fitness")
    table = table.set_column(place, table.schema.field(place), pa.array([0.99]))
    pq.write_table(table if keeps_metadata else table.replace_schema_metadata(), path)


BROKEN: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello\n"),
    "nested": lambda path: path.write_text("[" * 100_000),
    "a pipe": lambda path: (path.unlink(), os.mkfifo(path)),
}
DAMAGE: dict[str, Callable[[Path], object]] = {
    **{name: BROKEN[name] for name in ("truncated", "empty", "text", "a pipe")},
    "another table": lambda path: pq.write_table(pa.table({"a": [1, 2]}), path),
    "no rows": lambda path: pq.write_table(pq.ParquetFile(path).read().slice(0, 0), path),
    "another study": other_study,
    "no number": lambda path: forge(path, fitness=math.nan),
    "no status": lambda path: forge(path, status="won"),
    "no parameters": lambda path: forge(path, parameters="[1]"),
    "edited": lambda path: edited(path, keeps_metadata=True),
    "edited without the digest": lambda path: edited(path, keeps_metadata=False),
    "a folder": lambda path: (path.unlink(), path.mkdir(), (path / "content").write_text("mine")),
    "a loop": lambda path: (path.unlink(), path.symlink_to(path.name)),
    "unreadable": lambda path: path.chmod(0),
}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_trial_is_set_aside_and_repeated(cli: Cli, out: Path, undisturbed: Outcome, damage: str) -> None:
    """To look at the study changes nothing; to run it again sets the file aside and repeats that trial alone."""
    if damage == "unreadable" and os.geteuid() == 0:
        pytest.skip("a superuser may read everything")
    files = trial_files(out)
    victim = files[2]
    kept = {path: path.stat().st_mtime_ns for path in files if path != victim}
    DAMAGE[damage](victim)
    shown = cli("trials", "out", "--json")
    assert shown.code == 0
    assert len(json.loads(shown.out)) == NUM_TRIALS - 1
    assert f"out/trials/{victim.name} " in shown.err
    assert os.path.lexists(victim)
    done = cli(*RUN)
    assert done.code == 0
    aside = out / "quarantine" / victim.name
    (line,) = done.warnings.splitlines()
    assert all(str(path) in line for path in (victim, aside))
    assert os.path.lexists(aside)
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    assert Outcome.of(out) == undisturbed
    assert len(json.loads(cli("trials", "out", "--json").out)) == NUM_TRIALS


@pytest.mark.slow
def test_what_is_no_trial_is_set_aside_and_nothing_repeated(cli: Cli, out: Path, undisturbed: Outcome) -> None:
    files = trial_files(out)
    (out / "trials" / "notes.txt").write_text("mine")
    (out / "trials" / "x.parquet").write_text("text")
    shutil.copy(files[1], out / "trials" / "copy of 1.parquet")  # would be counted twice
    (out / "trials" / "more").mkdir()
    kept = [path.stat().st_mtime_ns for path in files]

    assert len(json.loads(cli("trials", "out", "--json").out)) == NUM_TRIALS
    done = cli(*RUN)

    assert done.code == 0
    assert len(done.warnings.splitlines()) == 4
    names = {"notes.txt", "x.parquet", "copy of 1.parquet", "more"}
    assert {path.name for path in (out / "quarantine").iterdir()} == names
    assert [path.stat().st_mtime_ns for path in files] == kept
    assert Outcome.of(out) == undisturbed


@pytest.mark.slow
def test_what_a_killed_run_was_writing_is_removed(cli: Cli, out: Path, undisturbed: Outcome) -> None:
    (out / "checkpoints").mkdir(exist_ok=True)
    for name in ("trials/.00009-ab.parquet.4711.tmp", "checkpoints/.ab.checkpoint.4711.tmp", ".result.json.4711.tmp"):
        (out / name).write_bytes(b"half")
    done = cli(*RUN)
    assert (done.code, done.warnings) == (0, "")
    assert Outcome.of(out) == undisturbed


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "empty", "text"])
def test_a_damaged_checkpoint_is_named_and_its_trial_starts_again(
    cli: Cli, out: Path, undisturbed: Outcome, damage: str
) -> None:
    (victim,) = [path for path in trial_files(out) if path.name.startswith("00000-")]
    key = pq.ParquetFile(victim).read(["key"]).to_pylist()[0]["key"]
    victim.unlink()
    checkpoint = out / "checkpoints" / f"{key}.checkpoint"
    checkpoint.parent.mkdir(exist_ok=True)
    checkpoint.write_bytes(os.urandom(4000))
    BROKEN[damage](checkpoint)
    done = cli(*RUN)
    assert done.code == 0
    assert re.fullmatch(rf"fedscout: .*{checkpoint} .*: .*\n", done.warnings)
    assert Outcome.of(out) == undisturbed


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("damage", ["truncated", "empty", "nested", "a pipe"])
@pytest.mark.parametrize("name", ["report.json", "config.json"])
def test_a_damaged_json_file_is_named_and_made_again(
    cli: Cli, out: Path, undisturbed: Outcome, name: str, damage: str
) -> None:
    before = json.loads((out / name).read_text())
    BROKEN[damage](out / name)
    done = cli(*RUN)
    assert done.code == 0
    assert re.fullmatch(rf"fedscout: {out / name} .*\n", done.warnings)
    after = json.loads((out / name).read_text())
    assert {**after, "timings": 0} == {**before, "timings": 0}
    assert Outcome.of(out) == undisturbed


@pytest.mark.slow
def test_a_folder_in_the_place_of_a_json_file_is_told_and_nothing_is_lost(
    cli: Cli, out: Path, undisturbed: Outcome
) -> None:
    (out / "result.json").mkdir()
    assert re.match(rf"fedscout: {out}/result.json .*: Is a directory; ", line_of(cli(*RUN), 1))
    (out / "result.json").rmdir()
    assert cli(*RUN).code == 0
    assert Outcome.of(out) == undisturbed


def test_without_a_readable_configuration_another_study_is_not_continued(cli: Cli, out: Path) -> None:
    BROKEN["truncated"](out / "config.json")
    before = sorted(path.name for path in out.rglob("*"))
    done = cli(*RUN, "seed=1")
    assert (done.code, done.out) == (2, "")
    assert "config.json" in done.warnings
    assert sorted(path.name for path in out.rglob("*")) == before


@pytest.mark.parametrize("name", ["trials", "checkpoints", "quarantine"])
def test_a_file_in_the_place_of_a_folder_is_told_at_once(cli: Cli, out: Path, name: str) -> None:
    shutil.rmtree(out / name, ignore_errors=True)
    (out / name).write_text("mine")
    line = line_of(cli(*RUN), 2)
    assert line.startswith(f"fedscout: {out / name} ")
    assert line.endswith(" is a file")


def test_a_finished_study_with_a_damaged_result_is_told_from_its_log(cli: Cli, out: Path, undisturbed: Outcome) -> None:
    (out / "result.json").write_text('{"config": {')
    assert cli(*RUN).code == 0
    assert Outcome.of(out) == undisturbed
