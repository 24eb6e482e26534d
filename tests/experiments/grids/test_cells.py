"""Each method against the command that it stands for; nothing is trained twice; what fails is contained."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fedscout.engine.config import EngineConfig
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.log import read_columns
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import load_config
from fedscout.experiments.grids.cells import CellContext, Measured, best_round, run_cells, seconds_to
from fedscout.experiments.grids.experiment import Experiment, Settings, arguments
from fedscout.experiments.grids.federation_runner import Choice, other_seeds
from fedscout.experiments.grids.recommenders import RECOMMENDERS, ChoiceTask, Recommender
from fedscout.experiments.studies.checks import constant_answer
from fedscout.experiments.studies.run_folder import GridFolder
from fedscout.experiments.studies.runner import open_runner
from fedscout.experiments.studies.workflow import run_detection, run_training
from fedscout.experiments.suites import detection
from fedscout.experiments.suites.detection import TimedDetections, TimedStudies, detection_modules, round_seconds
from fedscout.experiments.timings.engine import TRAINING, work_federation
from fedscout.strategies import FedAvgSpec

WINE: Settings = {
    "federation.dataset": "wine",
    "federation.num_clients": 4,
    "training.num_rounds": 3,
    "training.learning_rate": 0.02,
}
SKEWED: Settings = {**WINE, "federation.partition.alpha": 0.1}
FEDADAM = {"settings": {"strategy": {"kind": "fedadam", "eta": 0.05}}}
LOCAL = EngineConfig(grid="local")


def measured(
    folder: Path,
    rows: dict[str, Any],
    columns: dict[str, Settings] | None = None,
    seeds: int = 2,
    settings: tuple[str, ...] = (),
    engine: EngineConfig = LOCAL,
) -> Measured:
    document = {"title": "a test", "columns": columns or {"skewed": SKEWED}, "rows": rows}
    context = CellContext(folder, settings, seeds)
    return run_cells(Experiment.model_validate(document), GridFolder(folder), context, engine)


def num_trials(folder: Path) -> int:
    return sum(len(read_columns(log, ["trial"])[0]) for log in folder.glob("studies/*/trials"))


def trained(out: Path, settings: Settings, *more: str, seed: int) -> float:
    """Return what `fedscout train` finds."""
    config = load_config(["engine.grid=local", *arguments(settings), *more, f"seed={seed}", "federation.seed=0"])
    return run_training(config, out)[1].fitness


@pytest.mark.slow
def test_a_cell_is_what_train_finds(tmp_path: Path) -> None:
    some: Settings = {"training.fraction_train": 0.5, "selection.kind": "oort"}
    several: Settings = {"training.repetitions": 3}
    rows = {"FedAvg": {}, "FedAdam": FEDADAM, "half of them": {"settings": some}, "median": {"settings": several}}
    rounds = "training.num_rounds=2"  # settings of a run win over an experiment's
    found = measured(tmp_path / "ours", rows, settings=(rounds,))
    assert found.test_to_train == pytest.approx(0.25)
    for row, method in rows.items():
        for seed, value in zip(other_seeds("reproduction", 2), found.values[row, "skewed"], strict=True):
            own: Settings = {**SKEWED, **method.get("settings", {})}  # type: ignore[dict-item]
            assert value == trained(tmp_path / f"{row}-{seed}", own, rounds, seed=seed)


def test_a_cell_that_was_finished_is_read_and_its_trials_are_not_needed(tmp_path: Path) -> None:
    first = measured(tmp_path, {"FedAvg": {}})
    (cell,) = (tmp_path / "cells").iterdir()
    document = json.loads(cell.read_text())
    assert (document["row"], document["column"], document["num_seeds"]) == ("FedAvg", "skewed", 2)
    cell.write_text(json.dumps({**document, "values": [0.25, None]}))
    assert measured(tmp_path, {"renamed": {}}).values == {("renamed", "skewed"): (0.25, None)}
    cell.write_text("{")
    assert measured(tmp_path, {"FedAvg": {}}) == first


def test_the_best_of_the_rates_on_tuning_seeds_is_taken(tmp_path: Path) -> None:
    rates = (0.001, 0.05)
    found = measured(tmp_path / "ours", {"tuned": {"rates": rates}}, seeds=1).values["tuned", "skewed"]

    def at(rate: float, seed: int) -> float:
        return trained(tmp_path / f"{rate}-{seed}", {**SKEWED, "training.learning_rate": rate}, seed=seed)

    best = max(rates, key=lambda rate: np.mean([at(rate, seed) for seed in other_seeds("tuning", 2)]))
    (fresh,) = other_seeds("reproduction", 1)
    assert found == (at(best, fresh),)


def test_seconds_are_those_of_the_simulated_clock(tmp_path: Path) -> None:
    latency: Settings = {
        **SKEWED,
        "training.num_rounds": 6,
        "federation.scenario": {"kind": "latency", "clients": "all", "mean_seconds": 10},
    }
    rows = {"at once": {"seconds_to": 0.0}, "never": {"seconds_to": 1.1}, "accuracy": {}}
    found = measured(tmp_path, rows, {"slow": latency})
    (log,) = tmp_path.glob("studies/*/trials")
    times = {sum(row["round_seconds"][:5]) for row in read_columns(log, ["trial", "round_seconds"])[0]}
    assert {*found.values["at once", "slow"]} == times
    assert found.values["never", "slow"] == (None, None)


def trial(clean: list[float], seconds: list[float] | None = None, status: Any = "completed") -> Trial:
    rounds = dict.fromkeys(("accuracy", "clean_accuracy"), tuple(clean))
    return Trial(status=status, rounds=rounds if seconds is None else {**rounds, "seconds": tuple(seconds)})


def test_the_best_round_and_the_time_to_a_mean_of_five_by_hand() -> None:
    rising = trial([0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.7], [1, 2, 3, 4, 5, 6, 7])
    assert best_round(rising, 0.1) == 0.9
    assert seconds_to(rising, 0.4) == 15  # the mean of the first five rounds
    assert seconds_to(rising, 0.41) == 21
    assert seconds_to(rising, 0.8) is None
    assert seconds_to(trial([0.9] * 7), 0.1) is None, "without a clock"
    assert best_round(trial([0.9], status="failed"), 0.1) == 0.1


@pytest.mark.slow
def test_choices_share_searches_and_fresh_seeds(tmp_path: Path) -> None:
    search = {"kind": "search", "settings": {"search.kind": "random", "search.budget": 4}}
    rows = {
        "best": search,
        "worst": {**search, "take": "worst"},
        "FedAvg": {"kind": "choose", "by": "FedAvg"},
        "model": {"kind": "choose", "by": "LLM"},
        "plain": {},
    }
    found = measured(tmp_path, rows)
    assert found.values["FedAvg", "skewed"] == found.values["plain", "skewed"]
    assert {row for row, _ in found.values} == {"best", "worst", "FedAvg", "plain"}
    assert "model × skewed" in found.absent
    trials = num_trials(tmp_path)
    assert trials <= 2 * 5 + 3 * 2  # one search a seed, and what was picked
    assert measured(tmp_path, rows) == found
    assert num_trials(tmp_path) == trials


def test_a_recommender_is_asked_with_the_settings_of_its_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, bool]] = []

    def choose(task: ChoiceTask) -> Choice:
        asked.append((task.config().recommender.format, bool(task.recommendation_context().space.client_ranges)))
        return Choice(FedAvgSpec())

    monkeypatch.setitem(RECOMMENDERS, "asked", Recommender("asked", choose))  # type: ignore[misc]
    settings = {name: {"recommender.format": name, "search.joint": name == "C"} for name in "AC"}
    measured(tmp_path, {name: {"kind": "choose", "by": "asked", "settings": own} for name, own in settings.items()})
    assert asked == [("A", False), ("A", False), ("C", True), ("C", True)]


@pytest.mark.slow
def test_the_best_of_a_strategy_in_a_search(tmp_path: Path) -> None:
    kinds = ("fedavg", "krum", "fedbn")
    search = {"settings": {"search.kind": "random", "search.budget": 6}}
    found = measured(tmp_path, {kind: {"kind": "best_of_kind", "strategy": kind, **search} for kind in kinds})
    (log,) = tmp_path.glob("studies/*/trials")
    rows, _ = read_columns(log, ["trial", "strategy", "fitness", "seed"])
    for kind in kinds:
        for seed, value in enumerate(found.values[kind, "skewed"]):
            tried = [row["fitness"] for row in rows if (row["strategy"], row["seed"]) == (kind, seed)]
            assert value == max(tried, default=None)


def test_a_report_is_what_detect_finds(tmp_path: Path) -> None:
    found = measured(tmp_path, {"labels": {"kind": "detect", "value": "label_skew.value"}})
    for seed, value in enumerate(found.values["labels", "skewed"]):
        config = load_config(["engine.grid=local", *arguments(SKEWED), f"seed={seed}", f"federation.seed={seed}"])
        assert value == run_detection(config)[1].label_skew.value


@pytest.mark.parametrize("method", [{}, {"kind": "choose", "by": "FedAvg"}, {"kind": "detect", "value": "num_clients"}])
def test_missing_data_are_told(method: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDSCOUT_DATA", str(tmp_path))
    columns: dict[str, Settings] = {"gone": {"federation.dataset": "cifar10"}, "wine": WINE}
    found = measured(tmp_path / "out", {"a": method}, columns)
    assert {*found.absent} == {"a × gone"}
    assert {column for _, column in found.values} == {"wine"}


@pytest.mark.parametrize(
    "measurement", [TimedDetections(), TimedStudies({"one": None})], ids=lambda measurement: type(measurement).__name__
)
def test_missing_data_of_timings(
    measurement: TimedDetections | TimedStudies, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCOUT_DATA", str(tmp_path))
    gone = timed({"gone": {"federation.dataset": "cifar10"}}, "one")
    found = measurement.measure(gone, CellContext(tmp_path / "out", num_seeds=2))
    assert (found.values, {*found.absent}) == ({}, {"gone"})


def timed(columns: dict[str, Settings], *rows: str) -> Experiment:
    by: dict[str, Any] = {"measured_by": {"function": "any:one"}, "rows": dict.fromkeys(rows)}
    return Experiment.model_validate({"title": "a test", "columns": columns, **by})


def test_a_training_that_fails_is_worth_a_guess_and_told(tmp_path: Path) -> None:
    endless: Settings = {**WINE, "federation.scenario": [{"kind": "feature_scale", "clients": "all", "factor": 1e30}]}
    found = measured(tmp_path, {"FedAvg": {}}, {"endless": endless})
    from fedscout.experiments.federation import built_study

    chance = constant_answer(built_study(load_config(arguments(WINE)))[1], None)
    assert found.values["FedAvg", "endless"] == (chance, chance)
    assert {*found.absent} == {"FedAvg × endless"}


class _Dying:
    """Takes its process with it."""

    def __call__(self, _: Any) -> None:
        os._exit(1)


dying = _Dying()


@pytest.mark.stress
@pytest.mark.ray
def test_side_by_side_on_ray_the_bits_are_the_same_and_a_cell_that_dies_harms_no_other(tmp_path: Path) -> None:
    rows = {"FedAvg": {}, "FedAdam": FEDADAM, "dies": {"kind": "detect", "value": f"{__name__}:dying"}}
    columns: dict[str, Settings] = {"skewed": SKEWED, "plain": WINE}
    here = measured(tmp_path / "here", {name: rows[name] for name in ("FedAvg", "FedAdam")}, columns)
    there = measured(tmp_path / "there", rows, columns, engine=EngineConfig(grid="ray"))
    assert there.values == here.values
    assert {*there.absent} == {"dies × skewed", "dies × plain"}


@pytest.mark.stress
def test_times_are_of_one_training_and_of_one_round(tmp_path: Path) -> None:
    studies = {"one": None, "four": ("search.kind=random", "search.budget=4")}
    context = CellContext(tmp_path, num_seeds=2)
    found = TimedStudies(studies).measure(timed({"wine": SKEWED}, *studies), context)
    assert found.values["one", "wine"] == (1.0, 1.0)
    assert all(ratio is not None and ratio > 1 for ratio in found.values["four", "wine"])
    times = ("detection, seconds", "one round, seconds", "detection, rounds")
    modules = ("label skew", "feature skew", "outliers, published rule", "whole detection, merged exchanges")
    costs = TimedDetections().measure(timed({"wine": WINE}, *times, *modules), context).values
    assert all(value is not None and value > 0 for row in modules for value in costs[row, "wine"])
    seconds, of_round, rounds = (costs[row, "wine"] for row in times)
    assert rounds == costs[modules[-1], "wine"]
    for place in range(2):
        assert rounds[place] == pytest.approx(seconds[place] / of_round[place])  # type: ignore[operator]


def test_modules_are_what_a_detection_is_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    federation = work_federation("dense", num_clients=3, num_samples=20)
    with open_runner(federation, LOCAL, None, parallel=1) as unstarted:
        runner = unstarted.started()
        grid = runner.grid(Session(training=TRAINING, test_fraction=0.0))
        found: dict[str, Any] = {name: module() for name, module in detection_modules(grid, TRAINING).items()}
        ticks = iter(range(10**6))  # ten ticks from the first of eleven ends to the last
        monkeypatch.setattr(detection, "time", SimpleNamespace(perf_counter=lambda: float(next(ticks))))
        assert round_seconds(runner, TRAINING) == 1
    report = found["whole detection, merged exchanges"]
    assert found["label skew"].finding == report.label_skew
    assert found["feature skew"].finding == report.feature_skew
    assert found["feature skew"].calibrated == report.calibrated[1]
    assert found["outliers, published rule"].finding == report.outliers


def test_the_growth_of_a_detection_by_hand(tmp_path: Path) -> None:
    """A client gets one request for its label counts and sends one reply, whose size depends on the classes alone."""
    costs = ("messages", "bytes up", "bytes down", "processor seconds")
    experiment = timed({"clients": {}, "rows": {}}, *(f"label skew, {cost}" for cost in costs))
    growth = detection.Growth(
        {"clients": 3, "classes": 2, "features": 4, "rows": 40}, {"clients": (2, 4, 8), "rows": (20, 80)}
    )
    found = growth.measure(experiment, CellContext(tmp_path, num_seeds=2))
    for cost in costs[:3]:
        assert found.values[f"label skew, {cost}", "clients"] == (1.0, 1.0)
        assert found.values[f"label skew, {cost}", "rows"] == (0.0, 0.0)
    largest = found.figures[detection.LARGEST]
    assert (largest["label skew, messages", "clients"], largest["label skew, messages", "rows"]) == ((16.0,), (6.0,))
    assert all(math.isfinite(value or 0.0) for value in found.values["label skew, processor seconds", "clients"])


@pytest.mark.slow
def test_a_choice_is_judged_by_the_median_of_repetitions_that_are_trained_once(tmp_path: Path) -> None:
    several: Settings = {**SKEWED, "training.repetitions": 3}
    search = {"kind": "search", "settings": {"search.kind": "random", "search.budget": 2}}
    rows = {"best": search, "FedAvg": {"kind": "choose", "by": "FedAvg"}, "trained": {}}
    found = measured(tmp_path, rows, {"skewed": several}, seeds=1)
    assert found.values["FedAvg", "skewed"] == found.values["trained", "skewed"]
    assert 3 * 3 < num_trials(tmp_path) <= 3 * 3 + 2 * 3  # the search and FedAvg, and both on a fresh seed


def test_rewards_have_the_step_of_an_episode(tmp_path: Path) -> None:
    cartpole: Settings = {"federation.dataset": "cartpole", "federation.num_clients": 2, "training.num_rounds": 1}
    choice = {"kind": "choose", "by": "FedAvg"}
    found = measured(tmp_path, {"trained": {}, "chosen": choice}, {"cartpole": cartpole}, seeds=1)
    assert {cell.resolution for cell in found.cells.values()} == {1 / 500}
