"""A sweep in this process, its table and means over seeds, and the command."""

from __future__ import annotations

import gc
import json
import math
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyarrow import csv

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, EngineError, UnreachableModelError
from fedscout.experiments.config import planned_trials
from fedscout.experiments.reports.page_sweep import PlotLayout, axis_values, layout_of, points_of
from fedscout.experiments.studies import workflow
from fedscout.experiments.studies.workflow import Display, run_workflow
from fedscout.experiments.sweeps import run
from fedscout.experiments.sweeps.run import LABELS, TABLE_COLUMNS, Mean, SweepOutcome, groups_of
from fedscout.experiments.sweeps.sweep import GridConfiguration, Sweep, read_sweep, run_stored
from fedscout.search.confirmation.intervals import mean_score
from fedscout.search.objective import ACCURACY, MEASURES, UNLIKE, Measure
from tests.experiments.cli.conftest import SMALL, Cli
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
        challenger, fedavg = result["confirmation"]["candidates"]
        versus = result["confirmation"]["versus"]["own"]
        assert rows["fedavg"]["accuracy"] == np.mean(fedavg["own"])
        assert rows["fedavg"]["test_to_train"] == 0.25
        assert rows["challenger"]["accuracy"] == np.mean(challenger["own"])
        found = [rows["challenger"][f"gain{end}"] for end in ("", "_low", "_high")]
        assert found == [versus["mean"], versus["low"], versus["high"]]
        assert rows["challenger"]["verdict"] == result["confirmation"]["verdict"]
        step = result["confirmation"]["design"]["resolution"]
        alone = mean_score(fedavg["own"], step, 0.25, (0.0, 1.0))
        assert [rows["fedavg"][f"accuracy{end}"] for end in ("_low", "_high")] == [alone.low, alone.high]


def test_the_files_hold_the_table_in_the_order_of_the_points(outcome: SweepOutcome) -> None:
    hashes = [*dict.fromkeys(outcome.table["config_hash"].to_pylist())]
    assert hashes == [point.digest for point in small(*AXES).configurations]
    assert written(outcome.folder) == lasting(outcome.table)
    frame = csv.read_csv(outcome.folder / "table.csv")
    assert frame.column_names == [*(axis.partition("=")[0] for axis in AXES), *TABLE_COLUMNS]
    assert frame["fitness"].to_pylist() == outcome.table["fitness"].to_pylist()


def test_an_axis_has_the_type_of_its_values() -> None:
    assert [run.axis_type(values) for values in ([0.1, 1], [True, False], [None, 3])] == ["float64", "bool", "int64"]
    assert {run.axis_type(values) for values in ([None, "a"], [1, "a"], [True, 2], [[1], [2]], [None])} == {"string"}


@pytest.mark.slow
def test_the_tuned_baseline_is_a_chooser(tmp_path: Path) -> None:
    sweep = small("search.tuned_baseline=true", "search.tuning_factors=[2]", "training.metric=macro_f1")
    outcome = sweep_here(sweep, tmp_path / "out")
    rows = {row["chooser"]: row for row in outcome.table.to_pylist()}
    assert list(rows) == ["fedavg", "tuned fedavg", "search best", "challenger"]
    assert rows["tuned fedavg"]["num_trials"] == planned_trials(sweep.configurations[0].config)[0] == 1 + 3 + 1 + 2 * 2
    assert {row["measure"] for row in rows.values()} == {outcome.scored.name} == {"macro F1"}
    challenger = rows["challenger"]
    assert challenger["gain"] == pytest.approx(challenger["accuracy"] - rows["tuned fedavg"]["accuracy"], abs=1e-12)


def test_scores_of_unlike_studies_are_told_as_fitness() -> None:
    simulated = [Measure(name="seconds", per_unit=per_unit) for per_unit in (27.8, 27.8, 13.0)]
    assert run.scored_by(simulated[:2]) == simulated[0]
    assert (run.scored_by(simulated), run.scored_by([])) == (UNLIKE, UNLIKE)


@pytest.mark.slow
def test_the_measure_is_that_of_the_studies(tmp_path: Path) -> None:
    """Whose task follows from the label: of numbers it is a regression."""
    rows = "".join(f"{row},{row}.5,{'abc'[row % 3]}\n" for row in range(60))
    (tmp_path / "rows.csv").write_text(f"x,y,site\n{rows}")
    data = (f"federation.dataset={tmp_path / 'rows.csv'}", "federation.label=y", "federation.client_column=site")
    few = ("search.budget=1", "search.confirmation_seeds=2", "training.num_rounds=1", "engine.grid=local")
    outcome = sweep_here(read_sweep([*data, *few, "search.tuned_baseline=false", "seed=0,1"]), tmp_path / "out")
    assert outcome.scored.name == "R²"


# Going on.


@pytest.mark.slow
def test_an_interrupted_sweep_ends_the_same(
    outcome: SweepOutcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweep, runs = small(AXES[0], "federation.num_clients=4", "seed=0"), iter([run_workflow])

    def run_or_stop(*given: Any, **options: Any) -> Any:
        for whole in runs:
            return whole(*given, **options)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workflow, "run_workflow", run_or_stop)
        with pytest.raises(KeyboardInterrupt):
            sweep_here(sweep, tmp_path / "out")
    again, begun = sweep_noting(sweep, tmp_path / "out")
    assert begun == list(sweep.configurations[1:])
    kept = ("config_hash", "chooser", "fitness", "accuracy")
    found, expected = ({tuple(row[name] for name in kept) for row in lasting(one.table)} for one in (again, outcome))
    assert found <= expected


@pytest.mark.slow
def test_an_added_value_runs_its_own_studies_alone(outcome: SweepOutcome, tmp_path: Path) -> None:
    out = copy_of(outcome, tmp_path / "out")
    sweep = small(AXES[0], "federation.num_clients=4,5,6", AXES[2])
    extended, begun = sweep_noting(sweep, out)
    assert [point.setting["federation.num_clients"] for point in begun] == [5] * 4
    assert [row for row in lasting(extended.table) if row["federation.num_clients"] != 5] == lasting(outcome.table)
    fewer, begun = sweep_noting(small(*AXES), out)
    assert begun == []
    assert fewer.table.equals(outcome.table)  # times, too: they are read


# What goes wrong.


@pytest.mark.slow
def test_an_impossible_point_is_a_row_with_its_reason(tmp_path: Path) -> None:
    sweep = small(IMPOSSIBLE)
    first = sweep_here(sweep, tmp_path / "out")
    (row,) = (row for row in first.table.to_pylist() if row["federation.num_clients"] == 500)
    assert row["status"] == "failed"
    assert row["error"].startswith("federation.num_clients ")
    assert {key for key in TABLE_COLUMNS if row[key] is not None} == {"study", "path", "config_hash", "status", "error"}
    assert [study.configuration.setting["federation.num_clients"] for study in first.with_status("completed")] == [4]
    assert not (tmp_path / "out" / row["path"]).exists()
    assert lasting(sweep_here(sweep, tmp_path / "out").table) == lasting(first.table)


def fails_once(error: Exception) -> Callable[..., Any]:
    left, build = [error], workflow.build_federation

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
    monkeypatch.setattr(workflow, "build_federation", fails_once(error))
    end = run_stored(small("seed=0").configurations[0].config, tmp_path)
    assert end.status == "lost"
    assert type(error).__name__ in (end.error or "")
    assert "build_or_fail" in (end.details or "")


@pytest.mark.slow
def test_a_lost_study_harms_no_other_and_goes_on_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = small("seed=0,1")
    with monkeypatch.context() as patch:
        patch.setattr(workflow, "build_federation", fails_once(EngineError("a host was lost")))
        outcome = sweep_here(sweep, tmp_path / "out")
    (lost,), (other,) = outcome.with_status("lost"), outcome.with_status("completed")
    assert (lost.configuration.config.seed, other.configuration.config.seed) == (0, 1)
    assert "EngineError" in (tmp_path / "out" / "lost" / f"{lost.configuration.name}.txt").read_text()
    again, begun = sweep_noting(sweep, tmp_path / "out")
    assert len(again.with_status("completed")) == 2
    assert [point.config.seed for point in begun] == [0]


def test_one_process_runs_one_study_at_a_time(tmp_path: Path) -> None:
    with refused(ConfigurationError, key="--parallel", names="engine.grid=local"):
        run.run_sweep(small("seed=0,1"), tmp_path / "out", parallel=2)


@pytest.mark.slow
def test_a_study_leaves_nothing_of_itself_in_memory(tmp_path: Path) -> None:
    def federations() -> list[Federation]:
        return [one for one in gc.get_objects() if type(one) is Federation]

    before = federations()  # of fixtures, if any
    assert run_stored(small("seed=0").configurations[0].config, tmp_path).status == "completed"
    assert [one for one in federations() if not any(one is known for known in before)] == []


def test_warnings_of_a_study_come_back_with_its_end(tmp_path: Path) -> None:
    config = small("seed=0", "search.confirmation_seeds=0").configurations[0].config
    (tmp_path / "trials").mkdir()
    (tmp_path / "config.json").write_text(
        json.dumps({"config_hash": config.digest(), "config": config.identity(), "versions": {}})
    )
    (tmp_path / "trials" / "00000-foreign.parquet").write_bytes(b"no Parquet")
    end = run_stored(config, tmp_path)
    assert end.status == "completed"
    assert any("00000-foreign.parquet can't be used" in warning for warning in end.warnings)


# Means over seeds, with the numbers worked out by hand.


EMPTY: dict[str, Any] = dict.fromkeys(TABLE_COLUMNS)


def row(alpha: float, seed: int, chooser: str | None, **values: Any) -> dict[str, Any]:
    study = f"{alpha}-{seed}"
    return {**EMPTY, "alpha": alpha, "seed": seed, "study": study, "status": "completed", "chooser": chooser, **values}


def test_a_mean_of_two_has_student_s_interval_with_one_degree_of_freedom() -> None:
    # t(0.975; 1) = tan(0.475 pi): the quantile of the Cauchy distribution; s / sqrt(2) of 0.4 and 0.6 is 0.1.
    mean = run.mean_of([0.4, 0.6])
    half = math.tan(0.475 * math.pi) * 0.1
    assert (mean.mean, mean.count) == (pytest.approx(0.5), 2)
    assert (mean.low, mean.high) == (pytest.approx(0.5 - half), pytest.approx(0.5 + half))


def test_studies_of_one_data_set_share_their_rows() -> None:
    """Two studies of three seeds each, a fifth of the rows tested: half widths √(1/2 + 3/4) in place of √(1/2) of S."""
    split = {"test_to_train": 0.25, "num_confirmation_seeds": 3}
    rows = [row(0.1, seed, "fedavg", accuracy=0.4 + 0.2 * seed, **split) for seed in (0, 1)]
    rows += [row(0.1, seed, "challenger", accuracy=0.6 + 0.3 * seed, **split) for seed in (0, 1)]
    (group,) = groups_of(rows, ["alpha", "seed"])
    quantile = math.tan(0.475 * math.pi)
    for mean, spread in ((group.accuracy["fedavg"], 0.2), (group.gain, 0.1)):
        assert mean.high - mean.mean == pytest.approx(quantile * spread / math.sqrt(2) * math.sqrt(1 / 2 + 0.75))


@pytest.mark.parametrize(("least", "most"), [(0.0, 1.0), (None, 1.0), (0.0, None), (None, None)])
def test_an_interval_ends_at_the_bounds_of_the_measure(least: float | None, most: float | None) -> None:
    bounds = {"smallest_score": least, "largest_score": most}
    rows = [row(0.1, seed, "fedavg", accuracy=0.1 * seed, **bounds) for seed in (0, 1)]
    rows += [row(0.1, seed, "challenger", accuracy=1 - 0.2 * seed, **bounds) for seed in (0, 1)]
    (group,) = groups_of(rows, ["alpha", "seed"])
    quantile = math.tan(0.475 * math.pi)
    span = most - least if most is not None and least is not None else math.inf
    ends = (math.nan if least is None else least, math.nan if most is None else most)
    for mean, centre, half, (low, high) in (
        (group.accuracy["fedavg"], 0.05, 0.05 * quantile, ends),
        (group.accuracy["challenger"], 0.9, 0.1 * quantile, ends),
        (group.gain, 0.85, 0.15 * quantile, (-span, span)),
    ):
        assert (mean.low, mean.high) == (
            pytest.approx(np.fmax(low, centre - half)),
            pytest.approx(np.fmin(high, centre + half)),
        )


@pytest.mark.parametrize(("verdict", "apart"), [("better", True), ("worse", True), ("no difference", False)])
def test_a_single_study_tells_its_own_interval_and_verdict(verdict: str, apart: bool) -> None:
    own = {"gain": 0.05, "gain_low": -0.01, "gain_high": 0.11, "verdict": verdict}
    rows = [
        row(0.1, 0, "fedavg", accuracy=0.5, accuracy_low=0.4, accuracy_high=0.6),
        row(0.1, 0, "challenger", accuracy=0.55, accuracy_low=0.45, accuracy_high=0.65, **own),
    ]
    (group,) = groups_of(rows, ["alpha", "seed"])
    assert group.gain == Mean(0.05, -0.01, 0.11, 1)
    assert group.accuracy["fedavg"] == Mean(0.5, 0.4, 0.6, 1)
    assert group.is_distinguished == apart


def test_several_studies_are_told_apart_by_their_difference() -> None:
    gains = {"clear": (0.20, 0.21, 0.19), "unclear": (0.2, -0.2, 0.1)}
    found = {}
    for name, own in gains.items():
        rows = [row(0.1, seed, "fedavg", accuracy=0.5) for seed in range(3)]
        rows += [row(0.1, seed, "challenger", accuracy=0.5 + gain, verdict="better") for seed, gain in enumerate(own)]
        found[name] = groups_of(rows, ["alpha", "seed"])[0].is_distinguished
    assert found == {"clear": True, "unclear": False}


def test_the_gain_is_on_each_study_s_reference() -> None:
    """One study tuned FedAvg, which is 5 points below the choice; the other did not, and is 15 points below."""
    rows = [row(0.1, 0, "fedavg"), row(0.1, 1, "fedavg", accuracy=0.5), row(0.1, 0, "tuned fedavg", accuracy=0.6)]
    rows += [row(0.1, seed, "challenger", accuracy=0.65, verdict="better") for seed in (0, 1)]
    (group,) = groups_of(rows, ["alpha", "seed"])
    counts = {chooser: mean.count for chooser, mean in group.accuracy.items()}
    assert counts == {"fedavg": 1, "tuned fedavg": 1, "challenger": 2}
    assert (group.gain.mean, group.gain.count) == (pytest.approx((0.05 + 0.15) / 2), 2)


ROWS = [
    row(0.1, 0, "fedavg", accuracy=0.50, label_skew_detected=True),
    row(0.1, 0, "challenger", accuracy=0.75, verdict="better", label_skew_detected=True),
    row(0.1, 1, "fedavg", accuracy=0.70, label_skew_detected=False),
    row(0.1, 1, "challenger", accuracy=0.65, verdict="no difference", label_skew_detected=False),
    row(1.0, 0, "fedavg", accuracy=0.90),
    row(1.0, 1, None, status="failed", error="no"),
]


def test_studies_that_differ_in_a_seed_alone_make_a_group() -> None:
    first, second = groups_of(ROWS, ["alpha", "seed"])
    assert first.values == {"alpha": 0.1}
    assert (first.num_studies, first.num_completed, first.num_better) == (2, 2, 1)
    assert first.accuracy["fedavg"].mean == pytest.approx(0.60)
    assert first.accuracy["challenger"].mean == pytest.approx(0.70)
    assert first.gain.mean == pytest.approx((0.25 - 0.05) / 2)
    assert first.detected == {"label_skew": 1, "feature_skew": 0, "outliers": 0}
    assert (second.values, second.num_studies, second.num_completed) == ({"alpha": 1.0}, 2, 1)
    assert (second.accuracy["fedavg"].mean, second.gain) == (0.90, None)


def test_fresh_seeds_decide_where_there_are_any() -> None:
    assert run.measure_of(ROWS) == "accuracy"
    assert run.compared_choosers(ROWS) == ("fedavg", "challenger")
    unconfirmed = [row(0.1, 0, chooser, fitness=0.5) for chooser in ("fedavg", "search best", "challenger")]
    assert run.measure_of(unconfirmed) == "fitness"
    assert run.compared_choosers(unconfirmed) == ("fedavg", "search best")
    tuned = [*ROWS, row(0.1, 0, "tuned fedavg", accuracy=0.6)]
    assert run.compared_choosers(tuned) == ("fedavg", "tuned fedavg", "challenger")
    assert run.compared_choosers([one for one in tuned if one["study"] == "0.1-0"]) == ("tuned fedavg", "challenger")


def test_without_a_completed_study_there_is_nothing_to_compare() -> None:
    (group,) = groups_of([ROWS[-1]], ["alpha", "seed"])
    assert (group.accuracy, group.gain, group.num_completed) == ({}, None, 0)


# The chart: a curve for each chooser and value of a second axis, and something sensible for every kind of axes.


ALPHA, CLIENTS, SCENARIO = "federation.partition.alpha", "federation.num_clients", "federation.scenario"


def rows_over(**axes: list[Any]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the rows of FedAvg and a challenger for every combination, and the axes' names."""
    points: list[dict[str, Any]] = [{}]
    for key, values in axes.items():
        points = [{**point, key: value} for point in points for value in values]
    rows = []
    for number, point in enumerate(points):
        for chooser, gain in (("fedavg", 0.0), ("challenger", 0.1)):
            found = {"study": str(number), "status": "completed", "chooser": chooser, "accuracy": 0.5 + gain}
            rows.append({**EMPTY, **point, **found})
    return rows, list(axes)


@pytest.mark.parametrize(
    ("values", "layout"),
    [
        ({}, PlotLayout(None, None, ())),
        ({ALPHA: [0.1]}, PlotLayout(None, None, ())),
        ({CLIENTS: [4, 10], ALPHA: [0.1, 1.0]}, PlotLayout(ALPHA, CLIENTS, ())),
        ({CLIENTS: [4, 10], ALPHA: [0.1]}, PlotLayout(CLIENTS, None, ())),
        ({SCENARIO: ["a", "b"]}, PlotLayout(SCENARIO, None, ())),
        ({CLIENTS: [4, 10], SCENARIO: ["a", "b"], ALPHA: [0.1, 1]}, PlotLayout(ALPHA, CLIENTS, (SCENARIO,))),
        ({"flag": [True, False], CLIENTS: [4, 10]}, PlotLayout(CLIENTS, "flag", ())),
    ],
)
def test_alpha_then_numbers_then_anything_lies_along_x(values: dict[str, list[Any]], layout: PlotLayout) -> None:
    assert layout_of(values) == layout


def points(axes: dict[str, list[Any]], measure: Measure = ACCURACY, **values: Any) -> list[dict[str, Any]]:
    """Return the points of the chart over these axes; `values` are of every row."""
    rows, names = rows_over(**axes)
    groups = groups_of([{**row, **values} for row in rows], names)
    return points_of(groups, layout_of(axis_values(groups)), measure)


def test_there_is_a_curve_for_each_chooser_and_value_of_a_second_axis() -> None:
    found: dict[str, list[tuple[str, float]]] = {}
    for point in points({CLIENTS: [10, 4], ALPHA: [5.0, 0.05, 0.5], "seed": [0, 1]}):
        found.setdefault(point["curve"], []).append((point["step"], point["mean"]))
    assert found == {
        f"{chooser}, num_clients {clients}": [(x, score) for x in ("0.05", "0.5", "5")]
        for clients in (4, 10)
        for chooser, score in ((LABELS["fedavg"], 0.5), (LABELS["challenger"], 0.6))
    }


@pytest.mark.parametrize(("name", "ends"), [("accuracy", (0.0, 1.0)), ("r2", (-2.0, 1.0)), ("mae", (-2.0, 8.0))])
def test_bars_end_where_scores_do(name: str, ends: tuple[float, float]) -> None:
    """A model can be worse than a constant answer, whose R² and whose reduction of the error are 0."""
    found = points({ALPHA: [0.05, 0.5]}, MEASURES[name], accuracy_low=-2.0, accuracy_high=8.0)
    assert {(point["low"], point["high"]) for point in found} == {ends}


# docs/sweep.md says what the table holds, and its examples are valid.


DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "sweep.md").read_text()


def test_every_column_is_explained() -> None:
    columns = DOCUMENT[DOCUMENT.index("| `study`, ") :]
    lines = [line.split("|")[1] for line in columns.splitlines() if line.startswith("| `")]
    explained = [name for line in lines for name in re.findall(r"`(\w+)`", line)]
    assert sorted(explained) == sorted(TABLE_COLUMNS)


# `fedscout sweep` as a command: what it prints, where it writes, and its exit codes.


SETTINGS = (*(one for one in SMALL if not one.startswith("federation.num_clients")), "search.confirmation_seeds=0")


@pytest.mark.slow
def test_json_stands_alone_on_standard_output(cli: Cli, tmp_path: Path) -> None:
    document = cli("sweep", *SETTINGS, "federation.num_clients=4,5", "--out", "out", "--json").silent.document
    assert document.pop("out") == str(tmp_path / "out")
    assert document == json.loads((tmp_path / "out" / "summary.json").read_text())
    assert document["studies"] == {"total": 2, "completed": 2, "failed": 0, "lost": 0}
    assert [group["values"] for group in document["groups"]] == [{"federation.num_clients": count} for count in (4, 5)]


def test_without_any_completed_study_the_command_fails(cli: Cli) -> None:
    done = cli("sweep", *SETTINGS, "federation.num_clients=500,600", "--out", "out")
    assert done.code == 2
    assert len(done.err.splitlines()) == 2


def test_a_lost_study_makes_the_exit_code_1(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(workflow, "build_federation", lose)
    done = cli("sweep", *SETTINGS, "seed=0,1", "--out", "out")
    assert (done.code, len(done.err.splitlines())) == (1, 3)
    assert done.err.count("RuntimeError: a defect") == 2


@pytest.mark.slow
def test_a_dry_run_knows_what_is_finished(cli: Cli) -> None:
    assert cli("sweep", *SETTINGS, "seed=0", "--out", "out", "--json").ok
    first, second = cli("sweep", *SETTINGS, "seed=0,1", "--out", "out", "--dry-run", "--json").document["studies"]
    assert (first["finished"], first["trials"], first["planned_trials"]) == (True, 4, 4)
    assert (second["finished"], second["trials"], second["values"]) == (False, 0, {"seed": 1})


# `fedscout sweep study.yaml`: a user's own experiment, what it writes, continues and refuses.


STUDY = """
title: two strategies
settings: {federation.dataset: wine, federation.num_clients: 4, training.num_rounds: 2, model.hidden: [4]}
axes: {federation.partition.alpha: [0.1, 1]}
mean_over: {training.local_epochs: [1, 2]}
rows:
  FedAvg: {}
  FedAdam: {settings: {strategy: {kind: fedadam, eta: 0.05}}}
reference: FedAvg
seeds: 3
"""


@pytest.fixture
def study(tmp_path: Path) -> Path:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


@pytest.mark.slow
def test_an_experiment_is_run_into_runs_and_continued(cli: Cli, study: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs" / "study"
    asked = ("sweep", study.name, "engine.grid=local", "--columns", "alpha=0.1", "--seeds", "2")
    assert cli(*asked).code == 0
    assert {"study.json", "study.md", "study.svg"} <= {path.name for path in out.iterdir()}
    first = json.loads((out / "study.json").read_text())
    assert (first["rows"], first["columns"]) == (["FedAvg", "FedAdam"], ["alpha=0.1"])
    assert len(first["parts"]) == 4
    again = cli(*asked, "--json")
    assert again.err == ""  # nothing is measured again
    assert again.document["cells"] == first["cells"]
    listed = cli("sweep", study.name, "engine.grid=local", "--seeds", "2", "--dry-run", "--json").document
    assert [cell["finished"] for cell in listed["cells"]] == [True] * 4 + [False] * 4


@pytest.mark.parametrize(
    "arguments",
    [
        ("study.yaml", "study.yaml"),
        ("study.yaml", "--rows", "FedProx"),
        ("study.yaml", "training.num_ronuds=3"),
        ("study.yaml", "--seeds", "1"),
        ("seed=0,1", "--rows", "FedAvg"),
    ],
)
@pytest.mark.usefixtures("study")
def test_mistakes_are_told_before_anything_is_done(cli: Cli, arguments: tuple[str, ...], tmp_path: Path) -> None:
    done = cli("sweep", *arguments)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert not list(tmp_path.rglob("*.parquet"))
