"""A study that an earlier version ran: it is resumed without a trial, and its result is the same.

`earlier_log.zip` is the folder of `fedscout search` with the arguments below, before trials became one value.
"""

from __future__ import annotations

import json
from pathlib import Path
from zipfile import ZipFile

import pytest

from fedscout.engine.trials.trial_log import TrialLog, read_columns
from fedscout.engine.trials.trial_record import LATER_COLUMNS
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.studies.open_runner import LazyRunner
from fedscout.experiments.studies.workflow import Display, run_workflow
from fedscout.strategies import parameter_columns

ARGUMENTS = [
    "federation.dataset=wine",
    "federation.num_clients=3",
    "search.strategies=[fedavg,fedadam]",
    "training.num_rounds=4",
    "search.kind=racing",
    "search.racing.trainings=1.5",
    "search.racing.reduction_factor=2",
    "search.confirmation_seeds=1",
    "search.informed=false",  # as all searches were
    "search.tuned_baseline=false",  # likewise
    "engine.grid=local",
]


@pytest.fixture
def study(tmp_path: Path) -> Path:
    with ZipFile(Path(__file__).with_name("earlier_log.zip")) as archive:
        archive.extractall(tmp_path / "study")
    return tmp_path / "study"


def test_it_is_resumed_without_a_trial(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LazyRunner, "started", lambda _: pytest.fail("a trial was run"))
    before = json.loads((study / "result.json").read_text())
    (study / "result.json").unlink()
    run_workflow(load_config(ARGUMENTS), study, Display(), detection=False)
    after = json.loads((study / "result.json").read_text())
    assert after["realised"].pop("label_wasserstein") > 0  # told since
    told_anew = ("timings", "versions", "confirmation", "dependence")  # what is said of the same has changed since
    assert {**after, **dict.fromkeys(told_anew)} == {**before, **dict.fromkeys(told_anew)}
    for one, other in zip(after["confirmation"]["contestants"], before["confirmation"]["contestants"], strict=True):
        assert one == {name: other[name] for name in one}
    assert not (study / "quarantine").exists()


def test_its_trials_are_written_as_they_were(study: Path, tmp_path: Path) -> None:
    """In names, types and values of all columns; columns that came later are empty."""
    import pyarrow.parquet as pq

    trials = TrialLog(study, parameter_columns()).read()
    assert len(trials) == 6
    again = TrialLog(tmp_path / "again", parameter_columns())
    for trial in trials:
        path = again.append(trial)
        before, after = pq.ParquetFile(study / "trials" / path.name).read(), pq.ParquetFile(path).read()
        later = [name for name in after.column_names if name not in before.column_names]
        assert set(later) < {*LATER_COLUMNS}
        assert after.drop(later).equals(before)
        assert all(after[name].null_count == len(after) for name in later)


def test_columns_that_came_later_are_left_out_of_what_is_read_of_it(study: Path) -> None:
    rows, faults = read_columns(study / "trials", ["trial", "fitness", "bytes_up", "notes"])
    assert not faults
    assert [[*row] for row in rows] == [["trial", "fitness", "notes"]] * 6
