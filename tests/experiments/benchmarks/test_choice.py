"""The measurement of choosers from beginning to end, on two federations small enough to be trained in a second."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import ConfigurationError, LogError
from fedscout.experiments.benchmarks.choice.choice_battery import case_of, ready_case
from fedscout.experiments.benchmarks.choice.choice_choosers import CHOOSERS
from fedscout.experiments.benchmarks.choice.choice_laboratory import open_laboratory, other_seeds, search_seeds
from fedscout.experiments.benchmarks.choice.choice_measurement import ChoiceReport, plan_of, run_choice
from fedscout.experiments.benchmarks.choice.choice_oracle import DENSE, Density, dense_grid, find_oracle
from fedscout.experiments.benchmarks.choice.choice_regret import Choice, summarise
from fedscout.experiments.benchmarks.choice.choice_tables import table_lines
from fedscout.search.searchers.grid_search import range_points
from fedscout.strategies import space_of
from tests.search.studies import ScriptedRunner, completed

FEDERATIONS = (
    "federation.dataset=wine federation.num_clients=4 training.learning_rate=0.02",
    "federation.dataset=wine federation.num_clients=3 federation.partition.alpha=0.3 training.learning_rate=0.05",
)
SETTINGS = (
    "training.num_rounds=3",
    "model.hidden=[4]",
    "search.strategies=[fedavg,fedmedian,fedadam]",
    "search.generation_size=2",
    "detection.outlier_repetitions=2",
    "detection.outlier_min_flags=2",
)
NAMES = ("FedAvg", "tuned FedAvg", "rules", "genetic 8", "genetic 8 informed", "racing", "warm start 8")
COST: Mapping[str, float] = {"FedAvg": 0, "tuned FedAvg": 6, "rules": 0, "genetic 8": 8, "warm start 8": 8}


def measured(out: Path, names: tuple[str, ...] = NAMES, federations: tuple[str, ...] = FEDERATIONS) -> ChoiceReport:
    plan = plan_of(names, quick=True, num_search_seeds=2, num_fresh_seeds=3)
    return run_choice(plan, SETTINGS, federations, True, out)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ChoiceReport]:
    out = tmp_path_factory.mktemp("choice") / "out"
    return out, measured(out)


@pytest.mark.slow
def test_every_chooser_chooses_on_every_federation_and_seed(outcome: tuple[Path, ChoiceReport]) -> None:
    _, report = outcome
    names = [federation.name for federation in report.federations]
    assert {(choice.federation, choice.chooser, choice.seed) for choice in report.choices} == {
        (name, chooser, seed) for name in names for chooser in NAMES for seed in (0, 1)
    }
    assert [one.chooser for one in report.summary] == list(NAMES)
    assert (report.unavailable, report.missing) == ({}, {})


@pytest.mark.slow
def test_costs_are_full_trainings_beside_fedavg(outcome: tuple[Path, ChoiceReport]) -> None:
    _, report = outcome
    costs = {one.chooser: one.cost for one in report.summary}
    assert {name: costs[name] for name in COST} == COST
    assert 1 <= costs["racing"] <= 2.5


def test_fedavg_loses_all_that_there_is_to_gain(outcome: tuple[Path, ChoiceReport]) -> None:
    _, report = outcome
    for choice in report.choices:
        federation = next(one for one in report.federations if one.name == choice.federation)
        lost = federation.oracle - choice.accuracy
        assert choice.regret_worst == pytest.approx(lost / (federation.oracle - federation.worst))
        assert choice.regret_fedavg == pytest.approx(lost / (federation.oracle - federation.fedavg))
        assert choice.difference == pytest.approx(choice.accuracy - federation.fedavg)
        if choice.chooser == "FedAvg":
            assert choice.accuracy == pytest.approx(federation.fedavg)
            assert choice.regret_fedavg == pytest.approx(1.0)


def test_tuned_fedavg_loses_all_that_a_step_size_does_not_give(outcome: tuple[Path, ChoiceReport]) -> None:
    """Its choices' mean is the reference, measured also where it is not among the choosers that are named."""
    _, report = outcome
    for federation in report.federations:
        own = [c for c in report.choices if (c.federation, c.chooser) == (federation.name, "tuned FedAvg")]
        assert np.mean([choice.accuracy for choice in own]) == pytest.approx(federation.tuned)
        assert federation.beyond_tuned.mean == pytest.approx(federation.oracle - federation.tuned)
        regrets = [choice.regret_tuned for choice in own]
        if federation.beyond_tuned.is_to_win:
            assert np.mean([regret for regret in regrets if regret is not None]) == pytest.approx(1.0)
        else:
            assert regrets == [None, None]


@pytest.mark.slow
def test_without_the_tuned_chooser_there_is_its_reference_all_the_same(outcome: tuple[Path, ChoiceReport]) -> None:
    out, report = outcome
    alone = measured(out, ("FedAvg",))
    assert [one.chooser for one in alone.summary] == ["FedAvg"]
    assert [one.tuned for one in alone.federations] == [one.tuned for one in report.federations]


def test_no_choice_rests_on_studies_of_the_same_data(outcome: tuple[Path, ChoiceReport]) -> None:
    """Both federations are of one data set, of which the project has studies, too."""
    _, report = outcome
    archives = {one.chooser: one.archive for one in report.summary}
    assert {"warm start 8", "genetic 8", "rules"} <= archives.keys()
    assert archives["FedAvg"] == archives["tuned FedAvg"] == archives["rules"] == archives["genetic 8"] == 0
    assert archives["warm start 8"] == 0


def chosen(federation: str, regret: float | None, high: float | None, chooser: str = "racing") -> Choice:
    return Choice(
        federation=federation,
        chooser=chooser,
        seed=0,
        pick="fedavg()",
        cost=2.0 if regret is None else 1.0,
        archive=30.0 if regret is None else 10.0,
        accuracy=0.5,
        regret_worst=0.1,
        regret_fedavg=regret,
        regret_tuned=None if regret is None else 2 * regret,
        difference=-0.1,
        difference_low=None if high is None else -0.3,
        difference_high=high,
    )


def test_the_summary_is_the_mean_over_federations_and_counts_who_is_worse_beyond_noise() -> None:
    """Means of a, b: 0.2 and 0.8; at c there was nothing to gain. Two of its own intervals end below zero."""
    choices = [
        chosen("a", 0.1, -0.01),
        chosen("a", 0.3, 0.01),
        chosen("b", 0.8, -0.02),
        chosen("c", None, None),
        chosen("a", 0.9, -0.5, chooser="rules"),
    ]
    found = summarise("racing", choices)
    assert (found.num_choices, found.num_worse, found.cost) == (4, 2, 1.25)
    assert found.regret_fedavg is not None
    assert (found.regret_fedavg.mean, found.regret_fedavg.federations) == (pytest.approx(0.5), 2)
    assert found.regret_tuned is not None
    assert (found.regret_tuned.mean, found.regret_tuned.federations) == (pytest.approx(1.0), 2)
    assert found.archive == 15
    assert found.regret_worst is not None
    assert (found.regret_worst.mean, found.regret_worst.federations) == (pytest.approx(0.1), 3)


def test_the_summary_of_a_measurement_is_that_of_its_choices(outcome: tuple[Path, ChoiceReport]) -> None:
    _, report = outcome
    assert [summarise(name, report.choices) for name in NAMES] == list(report.summary)


@pytest.mark.slow
def test_the_same_command_trains_nothing_again_and_finds_the_same(
    outcome: tuple[Path, ChoiceReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    out, report = outcome
    files = {path: path.stat().st_mtime_ns for path in (out / "studies").rglob("*")}
    monkeypatch.setattr(
        "fedscout.engine.trials.trial_runner.run_trial", lambda *_: pytest.fail("a stored trial was trained again")
    )
    assert measured(out) == report
    assert {path: path.stat().st_mtime_ns for path in (out / "studies").rglob("*")} == files


def test_the_files_hold_the_result(outcome: tuple[Path, ChoiceReport]) -> None:
    out, report = outcome
    assert ChoiceReport.model_validate(json.loads((out / "result.json").read_text())) == report
    assert len(pd.read_parquet(out / "choices.parquet")) == len(report.choices)


def test_the_tables_name_choosers_and_federations(outcome: tuple[Path, ChoiceReport]) -> None:
    _, report = outcome
    text = "\n".join(table_lines(report))
    for name in (*NAMES, *(federation.name for federation in report.federations)):
        assert f"| {name} |" in text


@pytest.mark.slow
def test_alone_nobody_starts_warm(outcome: tuple[Path, ChoiceReport]) -> None:
    out, _ = outcome
    report = measured(out, ("genetic 8", "warm start 8"), FEDERATIONS[:1])
    assert [one.chooser for one in report.summary] == ["genetic 8"]
    assert "no searcher was run on another federation" in report.unavailable["warm start 8"]


def test_seeds_for_different_purposes_are_different() -> None:
    groups = [search_seeds(50), *(other_seeds(purpose, 50) for purpose in ("oracle", "oracle's finalists", "fresh"))]
    assert len({seed for group in groups for seed in group}) == 200


# The oracle.


@pytest.mark.parametrize("num_clients", [3, 4, 20])
def test_the_grid_lies_in_the_space_each_configuration_once(num_clients: int) -> None:
    space = space_of(Cohort(num_clients, num_clients, 0.2))
    grid = dense_grid(space, DENSE)
    assert grid[0].kind == "fedavg"
    assert all(space.contains(spec) for spec in grid)
    assert len({space.digest(spec) for spec in grid}) == len(grid)
    digests = {space.digest(spec) for spec in grid}
    for kind in space.kinds:  # the corner where all parameters are smallest, or its equivalent of another kind
        assert space.digest(space.compose(kind, lambda _, found: range_points(found, 2)[0])) in digests
    assert len(dense_grid(space, Density(two=2, more=1))) < len(grid)


def test_the_oracle_is_not_fooled_by_the_seeds_on_which_all_are_tried(tmp_path: Path) -> None:
    """FedMedian is lucky on the first seeds and poor on all others, FedAdam at its largest rate is good on all."""
    first = other_seeds("oracle", 1)
    scores = {"fedmedian": (0.95, 0.3), "fedavg": (0.5, 0.5)}

    def score(spec) -> float:  # type: ignore[no-untyped-def]
        lucky, usual = scores.get(spec.strategy.kind, (0.9, 0.9))
        if spec.strategy.kind == "fedadam" and spec.strategy.eta < 1:
            return 0.2
        return lucky if spec.session.seed in first else usual

    ready = ready_case(case_of(FEDERATIONS[0]), SETTINGS, quick=True)
    with open_laboratory(ready, tmp_path) as laboratory:
        laboratory.runner.runner = ScriptedRunner(lambda spec: completed(score(spec), num_rounds=3))  # type: ignore[assignment]
        found = find_oracle(laboratory, Density(one=2, two=2, more=1, seeds=1, finalists=4, final_seeds=3))
    assert (found.best.kind, getattr(found.best, "eta", None)) == ("fedadam", 1.0)
    assert found.worst.kind == "fedadam"
    assert found.grid_size == len(dense_grid(laboratory.space, Density(one=2, two=2, more=1)))


# What a user may get wrong.


def test_unknown_choosers_and_foreign_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"--chooser must be one of FedAvg, .* got 'oracle'"):
        plan_of(["oracle"], quick=True)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(LogError, match=r"got .* with notes.txt"):
        measured(tmp_path)


def test_choosers_come_in_the_order_of_the_table() -> None:
    assert [chooser.name for chooser in plan_of(["racing", "FedAvg"], quick=True).choosers] == ["FedAvg", "racing"]
    assert [chooser.name for chooser in plan_of(None, quick=True).choosers] == list(CHOOSERS)
    assert np.all([name == chooser.name for name, chooser in CHOOSERS.items()])


def test_without_key_and_record_no_language_model_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = ready_case(case_of(FEDERATIONS[0]), SETTINGS, quick=True).config
    reason = CHOOSERS["LLM"].unavailable(config, tmp_path)
    assert reason is not None
    assert "recommender.replay=FILE" in reason
    (tmp_path / "llm.jsonl").touch()
    assert CHOOSERS["LLM"].unavailable(config, tmp_path) is None


@pytest.mark.slow
def test_a_chooser_that_cannot_choose_is_told_and_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    (tmp_path / "llm.jsonl").touch()  # a record without any answer
    report = measured(tmp_path, ("FedAvg", "LLM"), FEDERATIONS[:1])
    assert [one.chooser for one in report.summary] == ["FedAvg"]
    assert "OPENAI_API_KEY" in report.federations[0].failures["LLM"]
    assert "LLM could not choose: " in "\n".join(table_lines(report))
