"""Each way to measure, against the commands that it stands for; and nothing is trained twice."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedscout.engine.trials.trial_log import read_columns
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.benchmarks.choice.choice_laboratory import other_seeds
from fedscout.experiments.benchmarks.detection.noise_columns import measures_under_noise
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.reproduction.benchmark_cells import NoiseCells, SelectionCells, SettingsCells
from fedscout.experiments.reproduction.chosen_cells import Asked, ChosenCells, Known, Searched
from fedscout.experiments.reproduction.fifty_trials import FiftyTrials
from fedscout.experiments.reproduction.published_study import Desk
from fedscout.experiments.reproduction.reported_cells import ReportedCells
from fedscout.experiments.reproduction.sources.client_selection import FIGURE_5
from fedscout.experiments.reproduction.timed_cells import MODULES, TimedDetections, TimedModules, TimedStudies
from fedscout.experiments.reproduction.trained_cells import TrainedCells, best_round
from fedscout.experiments.studies.workflow import run_detection, run_training
from fedscout.strategies import parse_selection
from fedscout.strategies.selection.flash import FlashSpec

WINE = ("federation.dataset=wine", "federation.num_clients=4", "training.num_rounds=3", "training.learning_rate=0.02")
SKEWED = (*WINE, "federation.partition.alpha=0.1")
FEDADAM = ("strategy.kind=fedadam", "strategy.eta=0.05")


def num_trials(folder: Path) -> int:
    return sum(len(read_columns(log, ["trial"])[0]) for log in folder.glob("studies/*/trials"))


def trained(out: Path, *arguments: str, seed: int) -> float:
    """Return what `fedscout train` finds."""
    config = load_config(["engine.grid=local", *arguments, f"seed={seed}", "federation.seed=0"])
    return run_training(config, out)[1].fitness


@pytest.mark.slow
def test_a_cell_is_what_train_finds(tmp_path: Path) -> None:
    cells = {
        ("FedAvg", "skewed"): SKEWED,
        ("FedAdam", "skewed"): (*SKEWED, *FEDADAM),
        ("half of them", "skewed"): (*SKEWED, "training.fraction_train=0.5", "selection.kind=oort"),
    }
    found = TrainedCells(cells, num_seeds=2).measure(Desk(tmp_path / "ours"))
    assert found.test_to_train == pytest.approx(0.25)
    for number, (cell, arguments) in enumerate(cells.items()):
        for seed, value in zip(other_seeds("reproduction", 2), found.values[cell], strict=True):
            assert value == trained(tmp_path / f"{number}-{seed}", *arguments, seed=seed)


@pytest.mark.slow
def test_nothing_is_trained_twice_and_more_seeds_train_what_is_new(tmp_path: Path) -> None:
    cells = {("FedAvg", "skewed"): SKEWED, ("longer", "skewed"): (*SKEWED, "training.local_epochs=2")}
    first = TrainedCells(cells, 2).measure(Desk(tmp_path))
    assert num_trials(tmp_path) == 4
    assert TrainedCells(cells, 2).measure(Desk(tmp_path)) == first
    assert num_trials(tmp_path) == 4
    more = TrainedCells(cells, 2).measure(Desk(tmp_path, num_seeds=3))
    assert num_trials(tmp_path) == 6
    assert more.values["longer", "skewed"][:2] == first.values["longer", "skewed"]


def test_the_best_round_is_no_less_than_the_last_ones(tmp_path: Path) -> None:
    cells = {("FedAvg", "skewed"): SKEWED}
    last = TrainedCells(cells, 2).measure(Desk(tmp_path)).values["FedAvg", "skewed"]
    best = TrainedCells(cells, 2, best_round).measure(Desk(tmp_path)).values["FedAvg", "skewed"]
    assert all(one >= other for one, other in zip(best, last, strict=True))  # type: ignore[operator]


def test_the_best_round_is_that_on_rows_before_any_noise() -> None:
    noisy = Trial(status="completed", round_accuracy=(0.2, 0.6, 0.9), round_clean_accuracy=(0.3, 0.8, 0.7))
    assert best_round(noisy) == 0.8
    assert best_round(replace(noisy, status="failed")) == 0.0


def test_flash_s_weights_are_those_of_training_and_of_the_policy() -> None:
    """Figure 5 varies one pair (α, β), of the one robust loss L."""
    measured = FIGURE_5.measurements["laptop"]
    assert isinstance(measured, TrainedCells)
    cells = measured.cells
    assert {row for row, _ in cells} == {*FIGURE_5.rows}
    for (row, _), arguments in cells.items():
        config = load_config(arguments)
        policy = parse_selection(config.selection or {})
        assert isinstance(policy, FlashSpec)
        assert (policy.alpha, policy.beta) == (config.training.pseudo_label_weight, config.training.reverse_weight)
        assert row == f"α {policy.alpha:g}, β {policy.beta:g}"


@pytest.mark.slow
def test_choices_share_searches_and_fresh_seeds(tmp_path: Path) -> None:
    search = ("search.kind=random", "search.budget=4")
    choices = {
        "best": Searched(search),
        "worst": Searched(search, worst=True),
        "FedAvg": Known("FedAvg"),
        "model": Asked(),
    }
    found = ChosenCells({"skewed": SKEWED}, choices, 2).measure(Desk(tmp_path))
    plain = TrainedCells({("FedAvg", "skewed"): SKEWED}, 2).measure(Desk(tmp_path))
    assert found.values["FedAvg", "skewed"] == plain.values["FedAvg", "skewed"]
    assert {row for row, _ in found.values} == {"best", "worst", "FedAvg"}
    assert "no key" in found.absent["model"]
    trials = num_trials(tmp_path)
    assert trials <= 2 * 5 + 3 * 2  # one search a seed, and what was picked
    assert ChosenCells({"skewed": SKEWED}, choices, 2).measure(Desk(tmp_path)) == found
    assert num_trials(tmp_path) == trials


@pytest.mark.slow
def test_the_best_of_a_strategy_in_a_search(tmp_path: Path) -> None:
    search = ("search.kind=random", "search.budget=6")
    found = FiftyTrials({"skewed": SKEWED}, search, ("fedavg", "krum", "fedbn"), 2).measure(Desk(tmp_path))
    (log,) = tmp_path.glob("studies/*/trials")
    rows, _ = read_columns(log, ["trial", "strategy", "fitness", "seed"])
    for kind in ("fedavg", "krum", "fedbn"):
        for seed, value in enumerate(found.values[kind, "skewed"]):
            tried = [row["fitness"] for row in rows if (row["strategy"], row["seed"]) == (kind, seed)]
            assert value == max(tried, default=None)


def test_a_report_is_what_detect_finds(tmp_path: Path) -> None:
    values = {"labels": lambda report: report.label_skew.value}
    found = ReportedCells({"skewed": SKEWED}, values, 2).measure(Desk(tmp_path))
    for seed, value in enumerate(found.values["labels", "skewed"]):
        config = load_config(["engine.grid=local", *SKEWED, f"seed={seed}", f"federation.seed={seed}"])
        assert value == run_detection(config)[1].label_skew.value


@pytest.mark.slow
def test_times_are_of_one_training_and_of_one_round(tmp_path: Path) -> None:
    studies = {"one": None, "four": ("search.kind=random", "search.budget=4")}
    found = TimedStudies(SKEWED, "wine", studies, 2).measure(Desk(tmp_path))
    assert found.values["one", "wine"] == (1.0, 1.0)
    assert all(ratio is not None and ratio > 1 for ratio in found.values["four", "wine"])
    costs = TimedDetections({"wine": WINE}, 2).measure(Desk(tmp_path)).values
    modules = TimedModules(WINE, "wine", 2).measure(Desk(tmp_path)).values
    assert {row for row, _ in modules} == {*MODULES}
    assert all(rounds is not None and rounds > 0 for values in modules.values() for rounds in values)
    seconds, of_round, rounds = (
        costs[row, "wine"] for row in ("detection, seconds", "one round, seconds", "detection, rounds")
    )
    for place in range(2):
        assert rounds[place] == pytest.approx(seconds[place] / of_round[place])  # type: ignore[operator]


@pytest.mark.parametrize(
    "measurement",
    [
        TrainedCells({("a", "gone"): ("federation.dataset=cifar10",), ("a", "wine"): WINE}, 2),
        ReportedCells({"gone": ("federation.dataset=cifar10",)}, {"a": lambda _: None}),
        ChosenCells({"gone": ("federation.dataset=cifar10",)}, {"a": Known("FedAvg")}),
        FiftyTrials({"gone": ("federation.dataset=cifar10",)}, (), ("krum",)),
        TimedModules(("federation.dataset=cifar10",), "gone"),
        SettingsCells("proxies", {"gone": "fashion_mnist"}, ("global",), 2),
        TimedDetections({"gone": ("federation.dataset=cifar10",)}),
        TimedStudies(("federation.dataset=cifar10",), "gone", {"one": None}),
    ],
    ids=lambda measurement: type(measurement).__name__,
)
def test_data_that_are_not_there_are_said_and_the_rest_is_measured(
    measurement: TrainedCells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDSCOUT_DATA", str(tmp_path))
    found = measurement.measure(Desk(tmp_path / "out"))
    assert str(tmp_path) in found.absent["gone"]
    assert {column for _, column in found.values} <= {"wine"}


def test_a_training_that_fails_is_told(tmp_path: Path) -> None:
    cells = {
        ("endless values", "wine"): (*WINE, "federation.scenario=[{kind: feature_scale, clients: all, factor: 1e30}]")
    }
    found = TrainedCells(cells, 2).measure(Desk(tmp_path))
    assert found.values["endless values", "wine"] == (0.0, 0.0)
    assert found.absent["endless values × wine"].startswith("2 of 2 failed, the first: ")


def test_settings_win_over_a_study_s(tmp_path: Path) -> None:
    one_round = ("training.num_rounds=1",)
    (value, _) = TrainedCells({("a", "x"): WINE}, 2).measure(Desk(tmp_path / "ours", one_round)).values["a", "x"]
    assert value == trained(tmp_path / "one", *WINE, *one_round, seed=other_seeds("reproduction", 2)[0])


@pytest.mark.slow
def test_selection_is_measured_by_its_benchmark(tmp_path: Path) -> None:
    quick = ("training.num_rounds=2", "training.local_epochs=1", "model.hidden=[8]", "federation.num_clients=10")
    cells = SelectionCells("contexts", strategies=("fedavg",), num_seeds=2)
    found = cells.measure(Desk(tmp_path, quick))
    report = json.loads((tmp_path / "benchmark" / "contexts.json").read_text())
    told = {(cell["row"], cell["heterogeneity"]): tuple(cell["accuracies"]) for cell in report["cells"]}
    assert found.values == told
    assert {column for _, column in found.values} == {"skew", "noise", "both"}


def test_columns_of_noise_dilute_the_divergence_and_leave_the_centroids(tmp_path: Path) -> None:
    """The divergence is a mean over columns: of 13 + 200, those of noise are alike at all clients."""
    arguments = ("federation.dataset=wine", "federation.num_clients=4", "federation.min_release=1")
    found = measures_under_noise(load_config(arguments), (0, 200), 2)
    gaps = [np.subtract(*(np.mean(found[n]["divergence"][s]) for s in ("feature_skew", "iid"))) for n in (0, 200)]
    assert gaps[1] == pytest.approx(gaps[0] * 13 / 213, abs=0.01)
    values = NoiseCells(arguments, (0, 200), 2).measure(Desk(tmp_path)).values["divergence", "200 columns"]
    pairs = zip(found[200]["divergence"]["feature_skew"], found[200]["divergence"]["iid"], strict=True)
    assert values == tuple(skewed / alike for skewed, alike in pairs)


@pytest.mark.slow
def test_client_settings_are_measured_by_their_benchmark(tmp_path: Path) -> None:
    quick = ("training.num_rounds=1", "search.budget=2")
    cells = SettingsCells("proxies", {"wines": "wine"}, ("global",), 2)
    found = cells.measure(Desk(tmp_path, quick))
    report = json.loads((tmp_path / "benchmark" / "wine-proxies.json").read_text())
    assert found.values == {(cell["row"], "wines"): tuple(cell["accuracies"]) for cell in report["cells"]}
    assert found.test_to_train == pytest.approx(1 / 3)


@pytest.mark.slow
def test_a_cell_may_be_the_median_of_several_trainings(tmp_path: Path) -> None:
    cells = {("FedAvg", "skewed"): (*SKEWED, "training.repetitions=3")}
    found = TrainedCells(cells, 2).measure(Desk(tmp_path / "ours"))
    for seed, value in zip(other_seeds("reproduction", 2), found.values["FedAvg", "skewed"], strict=True):
        assert value == trained(tmp_path / f"{seed}", *cells["FedAvg", "skewed"], seed=seed)
    assert TrainedCells(cells, 2).measure(Desk(tmp_path / "ours")) == found
