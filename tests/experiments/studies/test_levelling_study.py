"""A study whose rounds are left to FedAvg: what it trains, tells and exports, and going on where it stopped."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from fedscout.engine.trials.log import read_trials
from fedscout.experiments.config import load_config, planned_trials
from fedscout.experiments.reports.console import PlainConsole
from fedscout.experiments.reports.details import show_outcome
from fedscout.experiments.reports.export import read_study
from fedscout.experiments.studies.runner import LazyRunner
from fedscout.experiments.studies.workflow import Display, FinishedStudy, run_workflow
from fedscout.search.ledger import StudyEvents
from tests.experiments.cli.processes import lasting

SMALL = [
    "engine.grid=local",
    "federation.dataset=wine",
    "federation.num_clients=4",
    "search.strategies=[fedavg,fedadam]",
    "search.budget=1",
    "search.confirmation_seeds=1",
    "search.tuning_factors=[2]",
    "search.tuning_seeds=1",
    "detection.outlier_repetitions=2",
    "detection.outlier_min_flags=2",
]
CONFIG = load_config([*SMALL, "training.num_rounds=auto"])
ROUNDS = 40
SHORTER = [10, 20, 40]
"""FedAvg is better after 20 rounds than after 10 there, and after 40 as good as after 20."""


@pytest.fixture(scope="module")
def trained() -> list[Mapping[str, int]]:
    """The rounds that the study trained."""
    return []


@pytest.fixture(scope="module")
def told() -> list[tuple[int, int]]:
    """Finished trials, and the rounds of those that follow, when these are told."""
    return []


@pytest.fixture(scope="module")
def finished(
    tmp_path_factory: pytest.TempPathFactory, trained: list[Mapping[str, int]], told: list[tuple[int, int]]
) -> FinishedStudy:
    records: list[object] = []
    events = StudyEvents(on_record=lambda *record: records.append(record), on_rounds=trained.append)
    display = Display(early_stopping_round=lambda rounds: told.append((len(records), rounds)), trials=events)
    return run_workflow(CONFIG, tmp_path_factory.mktemp("study"), display)


@pytest.mark.slow
def test_every_other_trial_has_the_rounds_after_which_fedavg_levels_off(finished: FinishedStudy) -> None:
    table = read_trials(finished.folder).sort_values("trial")
    assert list(table["num_rounds"]) == [*SHORTER, *[ROUNDS] * (len(table) - len(SHORTER))]
    assert list(table["phase"][:5]) == [*["baseline"] * 4, "search"]
    assert {"tuned-baseline", "confirmation"} <= {*table["phase"]}
    assert table["key"].is_unique
    assert not list((finished.folder / "checkpoints").glob("*"))


def test_fedavg_goes_on_from_where_it_was(finished: FinishedStudy, trained: list[Mapping[str, int]]) -> None:
    """Its four trials take as many rounds as one."""
    records = read_study(finished.folder).records
    assert len(trained) == ROUNDS * (len(records) - len(SHORTER))
    baseline = [record for record in records if record.phase == "baseline"]
    assert all(baseline[-1].round_accuracy[: one.num_rounds] == one.round_accuracy for one in baseline)


def test_the_result_and_the_screen_tell_the_rounds(finished: FinishedStudy, capsys: pytest.CaptureFixture[str]) -> None:
    assert finished.outcome.early_stopping_round == finished.document["num_rounds"] == ROUNDS
    assert json.loads((finished.folder / "result.json").read_text())["num_rounds"] == ROUNDS
    assert finished.document["trials"][0] == finished.document["baseline"]
    assert finished.document["baseline"]["trial"] == len(SHORTER)
    show_outcome(PlainConsole(width=200), finished.outcome)
    assert f"after {ROUNDS} rounds" in capsys.readouterr().out


def test_no_more_trials_than_were_planned(finished: FinishedStudy) -> None:
    """FedAvg after 10, 20, 40, 80 and 160 rounds, and 200: 1; the search's, another rate, and three on a fresh seed."""
    num_trials, rounds_less = planned_trials(CONFIG)
    assert num_trials == 5 + 1 + 1 + 1 + 3
    assert rounds_less == 5 * 200 - (10 + 20 + 40 + 80 + 160)
    assert len(list((finished.folder / "trials").iterdir())) <= num_trials


def test_what_follows_is_planned_once_rounds_are_known(finished: FinishedStudy, told: list[tuple[int, int]]) -> None:
    """At most: whole FedAvg, the search's trial, another rate, and three on a fresh seed, all of so many rounds."""
    ((num_before, early_stopping_round),) = told
    assert (num_before, early_stopping_round) == (len(SHORTER), ROUNDS)
    planned, rounds_less = planned_trials(CONFIG, early_stopping_round)
    assert (planned, rounds_less) == (1 + 1 + 1 + 3, 0)
    assert len(list((finished.folder / "trials").iterdir())) - num_before <= planned


def test_a_finished_one_is_told_without_a_trial(finished: FinishedStudy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LazyRunner, "started", lambda _: pytest.fail("a trial was run"))
    assert lasting(run_workflow(CONFIG, finished.folder, Display())) == lasting(finished)


@pytest.mark.sampled(1)
@pytest.mark.slow
@pytest.mark.parametrize("num_kept", [1, 4])
def test_cut_off_anywhere_it_ends_with_the_same_result(finished: FinishedStudy, tmp_path: Path, num_kept: int) -> None:
    files = sorted((finished.folder / "trials").iterdir())
    (tmp_path / "trials").mkdir()
    for file in [finished.folder / "config.json", finished.folder / "report.json", *files[:num_kept]]:
        (tmp_path / file.relative_to(finished.folder)).write_bytes(file.read_bytes())
    assert lasting(run_workflow(CONFIG, tmp_path, Display())) == lasting(finished)
    assert [path.name for path in sorted((tmp_path / "trials").iterdir())] == [file.name for file in files]


def test_where_fewer_rounds_are_allowed_than_the_first_look_needs_all_are_trained(tmp_path: Path) -> None:
    few = [*SMALL, "training.num_rounds=2", "training.early_stopping=true", "search.confirmation_seeds=0"]
    document = run_workflow(load_config(few), tmp_path, Display(), detection=False).document
    assert document["num_rounds"] == 2
    assert [trial["trial"] for trial in document["trials"]] == [0, 1]
