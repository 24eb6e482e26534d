"""A sweep in this process: its table is that of the single studies, however often it was stopped or extended."""

from __future__ import annotations

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, EngineError, UnreachableModelError
from fedscout.engine.trials.log import read_trials
from fedscout.experiments.config import StudyConfig, planned_trials
from fedscout.experiments.studies import workflow
from fedscout.experiments.studies.workflow import Display, run_workflow
from fedscout.experiments.sweeps.run import TABLE_COLUMNS, SweepOutcome, axis_type, run_sweep, scored_by
from fedscout.experiments.sweeps.sweep import GridConfiguration, Sweep, run_one
from fedscout.search.confirmation.intervals import mean_score
from fedscout.search.objective import UNLIKE
from tests.experiments.sweeps.conftest import AXES, NUM_TRIALS, lasting, small, sweep_here, written
from tests.kits.refusals import refused

IMPOSSIBLE = "federation.num_clients=4,500"


def copy_of(outcome: SweepOutcome, target: Path) -> Path:
    return Path(shutil.copytree(outcome.folder, target))


def sweep_noting(sweep: Sweep, out: Path) -> tuple[SweepOutcome, list[GridConfiguration]]:
    """Run a sweep in this process, and tell which studies began."""
    begun: list[GridConfiguration] = []
    return sweep_here(sweep, out, begun), begun


# The table.


@pytest.mark.slow
def test_the_table_is_that_of_the_single_studies(outcome: SweepOutcome, tmp_path: Path) -> None:
    sweep = small(*AXES)
    for point in (sweep.configurations[0], sweep.configurations[-1]):
        result = run_workflow(point.config, tmp_path / point.name, Display()).document
        rows = {row["chooser"]: row for row in outcome.table.to_pylist() if row["config_hash"] == point.digest}
        assert set(rows) == {"fedavg", "search best", "challenger"}
        search = [trial for trial in result["trials"] if trial["phase"] == "search"]
        best_of_search = max(search, key=lambda trial: trial["fitness"])
        for chooser, trial in zip(rows, (result["baseline"], result["best"], best_of_search), strict=True):
            row = rows[chooser]
            assert {key: row[key] for key in point.setting} == dict(point.setting)
            assert (row["fitness"], row["strategy"]) == (trial["fitness"], trial["strategy"])
            assert json.loads(row["parameters"]) == trial["parameters"]
            assert (row["label_skew"], row["outliers"]) == tuple(
                result["report"][name]["value"] for name in ("label_skew", "outliers")
            )
            for tested in result["report"]["calibrated"]:
                published = result["report"][tested["name"]]
                said = None if tested["p_value"] is None else tested["detected"]
                assert row[f"{tested['name']}_detected"] == said
                assert row[f"{tested['name']}_published"] == published["detected"]
            assert json.loads(row["outlier_clients"]) == list(tested["flagged_clients"])
            assert (row["num_trials"], row["num_failed_trials"]) == (NUM_TRIALS, 0)
        challenger, fedavg = result["confirmation"]["contestants"]
        versus = result["confirmation"]["versus"]["fedavg"]["own"]
        assert rows["fedavg"]["accuracy"] == np.mean(fedavg["own"])
        assert rows["fedavg"]["test_to_train"] == 0.25
        assert rows["challenger"]["accuracy"] == np.mean(challenger["own"])
        found = [rows["challenger"][f"difference{end}"] for end in ("", "_low", "_high")]
        assert found == [versus["mean"], versus["low"], versus["high"]]
        assert rows["challenger"]["verdict"] == result["confirmation"]["verdict"]
        step = result["confirmation"]["design"]["resolution"]
        alone = mean_score(fedavg["own"], step, 0.25, (0.0, 1.0))
        assert [rows["fedavg"][f"accuracy{end}"] for end in ("_low", "_high")] == [alone.low, alone.high]


@pytest.mark.slow
def test_every_study_is_there_in_the_order_of_the_points(outcome: SweepOutcome) -> None:
    hashes = list(dict.fromkeys(outcome.table["config_hash"].to_pylist()))
    assert hashes == [point.digest for point in small(*AXES).configurations]
    for path in set(outcome.table["path"].to_pylist()):
        assert (outcome.folder / path / "result.json").is_file()


def test_the_files_hold_the_table(outcome: SweepOutcome) -> None:
    assert written(outcome.folder) == lasting(outcome.table)
    frame = pd.read_csv(outcome.folder / "table.csv")
    assert list(frame.columns) == [*(axis.partition("=")[0] for axis in AXES), *TABLE_COLUMNS]
    assert frame["fitness"].tolist() == outcome.table["fitness"].to_pylist()


def test_all_trials_of_all_studies_are_one_more_table(outcome: SweepOutcome) -> None:
    trials = read_trials(outcome.folder)
    assert len(trials) == len(small(*AXES).configurations) * NUM_TRIALS
    joined = trials.merge(outcome.table.to_pandas().query("chooser == 'fedavg'"), on="config_hash")
    assert len(joined) == len(trials)
    assert (joined["seed_x"][joined["phase"] == "baseline"] == joined["seed_y"][joined["phase"] == "baseline"]).all()


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, 2], "int64"),
        ([0.1, 1], "float64"),
        ([True, False], "bool"),
        (["a", "b"], "string"),
        ([None, "a"], "string"),
        ([1, "a"], "string"),
        ([True, 2], "string"),
        ([[1], [2]], "string"),
        ([None], "string"),
        ([None, 3], "int64"),
    ],
)
def test_an_axis_has_the_type_of_its_values(values: list[Any], kind: str) -> None:
    assert axis_type(values) == kind


@pytest.mark.slow
def test_the_tuned_baseline_is_a_chooser(tmp_path: Path) -> None:
    settings = ("search.tuned_baseline=true", "search.tuning_factors=[2]", "search.tuning_seeds=1")
    sweep = small(*settings, "training.metric=macro_f1")
    outcome = sweep_here(sweep, tmp_path / "out")
    rows = {row["chooser"]: row for row in outcome.table.to_pylist()}
    assert list(rows) == ["fedavg", "tuned fedavg", "search best", "challenger"]
    assert rows["tuned fedavg"]["num_trials"] == planned_trials(sweep.configurations[0].config)[0] == 1 + 3 + 1 + 3 * 2
    assert {row["measure"] for row in rows.values()} == {outcome.scored.name} == {"macro F1"}
    ours, baseline = rows["tuned fedavg"]["accuracy"], rows["fedavg"]["accuracy"]
    assert rows["tuned fedavg"]["difference"] == pytest.approx(ours - baseline, abs=1e-12)
    challenger = rows["challenger"]
    assert challenger["gain"] == pytest.approx(challenger["accuracy"] - max(ours, baseline), abs=1e-12)
    (study,) = outcome.studies
    confirmation = json.loads((study.folder / "result.json").read_text())["confirmation"]
    decisive = confirmation["versus"][confirmation["reference"]][confirmation["view"]]
    found = [challenger[f"gain{end}"] for end in ("", "_low", "_high")]
    assert found == [decisive["mean"], decisive["low"], decisive["high"]]


def test_scores_of_unlike_studies_are_told_as_fitness() -> None:
    points = small("training.metric=accuracy,macro_f1,r2").configurations
    assert [scored_by([point]).name for point in points] == ["accuracy", "macro F1", "R²"]
    assert (scored_by(points), scored_by([])) == (UNLIKE, UNLIKE)


# Going on.


def without(row: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


@pytest.mark.slow
def test_a_finished_sweep_runs_nothing(outcome: SweepOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = copy_of(outcome, tmp_path / "out")
    monkeypatch.setattr(workflow, "run_workflow", lambda *_, **__: pytest.fail("it is finished"))
    again, begun = sweep_noting(small(*AXES), out)
    assert begun == []
    assert again.table.equals(outcome.table)  # times, too: they are read


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("stopped_at", [0, 5])
def test_an_interrupted_sweep_ends_the_same(
    outcome: SweepOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stopped_at: int
) -> None:
    sweep = small(AXES[0], "federation.num_clients=4", "seed=0")
    out = tmp_path / "out"
    calls = 0

    def stop_in_the_middle(config: StudyConfig, folder: Path, display: Display, **options: Any) -> Any:
        nonlocal calls
        calls += 1
        finished = run_workflow(config, folder, display, **options)
        if calls == 2:  # the log lacks its last trials, and the result
            (folder / "result.json").unlink()
            for trial in sorted((folder / "trials").iterdir())[stopped_at:]:
                trial.unlink()
            raise KeyboardInterrupt
        return finished

    with monkeypatch.context() as patch:
        patch.setattr(workflow, "run_workflow", stop_in_the_middle)
        with pytest.raises(KeyboardInterrupt):
            sweep_here(sweep, out)
    kept = {path: path.stat().st_mtime_ns for path in out.glob("studies/*/trials/*")}
    again, begun = sweep_noting(sweep, out)
    assert begun == list(sweep.configurations[1:])
    assert {path: path.stat().st_mtime_ns for path in kept} == kept
    alike = {"federation.num_clients": 4, "seed": 0}
    expected = [row for row in lasting(outcome.table) if alike.items() <= row.items()]
    named = {"study", "path", *alike}  # a single value is no axis
    assert [without(row, named) for row in lasting(again.table)] == [without(row, named) for row in expected]


@pytest.mark.slow
def test_an_added_value_runs_its_own_studies_alone(outcome: SweepOutcome, tmp_path: Path) -> None:
    out = copy_of(outcome, tmp_path / "out")
    sweep = small(AXES[0], "federation.num_clients=4,5,6", AXES[2])
    extended, begun = sweep_noting(sweep, out)
    assert [point.setting["federation.num_clients"] for point in begun] == [5] * 4
    assert [row for row in lasting(extended.table) if row["federation.num_clients"] != 5] == lasting(outcome.table)
    fewer, begun = sweep_noting(small(*AXES), out)
    assert begun == []
    assert lasting(fewer.table) == lasting(outcome.table)


# What goes wrong.


@pytest.mark.slow
def test_an_impossible_point_is_a_row_with_its_reason(tmp_path: Path) -> None:
    sweep = small(IMPOSSIBLE)
    first = sweep_here(sweep, tmp_path / "out")
    (row,) = (row for row in first.table.to_pylist() if row["federation.num_clients"] == 500)
    assert row["status"] == "failed"
    assert row["error"].startswith("federation.num_clients ")
    assert row["error"].endswith(", 178, got 500")
    assert {key for key in TABLE_COLUMNS if row[key] is not None} == {"study", "path", "config_hash", "status", "error"}
    assert [study.configuration.setting["federation.num_clients"] for study in first.with_status("completed")] == [4]
    assert not (tmp_path / "out" / row["path"]).exists()
    assert lasting(sweep_here(sweep, tmp_path / "out").table) == lasting(first.table)


def fails_with(error: Exception, times: int) -> Callable[..., Any]:
    left = [error] * times
    build = workflow.build_federation

    def build_or_fail(*arguments: Any) -> Any:
        if left:
            raise left.pop()
        return build(*arguments)

    return build_or_fail


@pytest.mark.parametrize(
    "error",
    [EngineError("a host was lost"), OSError(28, "No space left"), ValueError(), UnreachableModelError("it is down")],
)
def test_errors_that_lose_a_study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    monkeypatch.setattr(workflow, "build_federation", fails_with(error, 1))
    end = run_one(small("seed=0").configurations[0].config, tmp_path)
    assert end.status == "lost"
    assert (end.error or "").startswith(type(error).__name__)
    assert "build_or_fail" in (end.details or "")


@pytest.mark.slow
def test_a_lost_study_harms_no_other_and_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = small("seed=0,1")
    with monkeypatch.context() as patch:
        patch.setattr(workflow, "build_federation", fails_with(EngineError("a host was lost"), 1))
        outcome = sweep_here(sweep, tmp_path / "out")
    (lost,), (other,) = outcome.with_status("lost"), outcome.with_status("completed")
    assert (lost.configuration.config.seed, other.configuration.config.seed) == (0, 1)
    assert lost.end.error == "EngineError: a host was lost"
    assert "EngineError" in (tmp_path / "out" / "lost" / f"{lost.configuration.name}.txt").read_text()
    again, begun = sweep_noting(sweep, tmp_path / "out")
    assert len(again.with_status("completed")) == 2
    assert [point.config.seed for point in begun] == [0]


def test_one_process_runs_one_study_at_a_time(tmp_path: Path) -> None:
    with refused(ConfigurationError, key="--parallel", names="engine.grid=local"):
        run_sweep(small("seed=0,1"), tmp_path / "out", parallel=2)


@pytest.mark.slow
def test_a_study_leaves_nothing_of_itself_in_memory(tmp_path: Path) -> None:
    def federations() -> list[Federation]:
        return [one for one in gc.get_objects() if type(one) is Federation]

    before = federations()  # of fixtures, if any
    assert run_one(small("seed=0").configurations[0].config, tmp_path).status == "completed"
    assert [one for one in federations() if not any(one is known for known in before)] == []


def test_warnings_of_a_study_come_back_with_its_end(tmp_path: Path) -> None:
    config = small("seed=0", "search.confirmation_seeds=0").configurations[0].config
    (tmp_path / "trials").mkdir()
    (tmp_path / "config.json").write_text(
        json.dumps({"config_hash": config.digest(), "config": config.identity(), "versions": {}})
    )
    (tmp_path / "trials" / "00000-foreign.parquet").write_bytes(b"no Parquet")
    end = run_one(config, tmp_path)
    assert end.status == "completed"
    assert any("00000-foreign.parquet can't be used" in warning for warning in end.warnings)
