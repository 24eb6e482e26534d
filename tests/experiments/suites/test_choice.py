"""Regrets and archives by hand, and recommenders that train on two federations small enough for a second a training."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from fedscout.engine.errors import ConfigurationError, StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.experiments.grids.cells import CellContext, Measured
from fedscout.experiments.grids.experiment import Experiment, Settings, arguments
from fedscout.experiments.grids.federation_runner import built_federation, open_federation, other_seeds, search_seeds
from fedscout.experiments.grids.recommenders import RECOMMENDERS
from fedscout.experiments.suites.choice import (
    Density,
    Trainings,
    best_of_grid,
    dense_grid,
    prior_trainings,
    regret_fedavg,
    regret_tuned,
    trained_by,
    union,
)
from fedscout.experiments.suites.replay import KNOWLEDGE, PUBLISHED, ReplayedFederation, read_table
from fedscout.search.ledger import BASELINE
from fedscout.search.recommenders.diagnosis import Alternative
from fedscout.search.recommenders.priors import SOURCE
from fedscout.search.searchers.genetic import range_points
from fedscout.search.study import StudyOutcome
from fedscout.strategies import FedAdamSpec, space_of
from tests.experiments.suites.made_up_tables import SEEDS, by_rate, federation, replayed, written
from tests.search.studies import FACTS, ScriptedRunner, completed
from tests.snippets import blocks

COMMON: Settings = {
    "federation.dataset": "wine",
    "training.num_rounds": 3,
    "model.hidden": [4],
    "search.strategies": ["fedavg", "fedmedian", "fedadam"],
    "search.generation_size": 2,
    "detection.outlier_repetitions": 2,
    "detection.outlier_min_flags": 2,
}
COLUMNS: dict[str, Settings] = {
    "one": {**COMMON, "federation.num_clients": 4, "training.learning_rate": 0.02},
    "two": {
        **COMMON,
        **{"federation.num_clients": 3, "federation.partition.alpha": 0.3, "training.learning_rate": 0.05},
    },
}
NAMES = ("FedAvg", "tuned FedAvg", "rules", "genetic 8", "genetic 8 informed", "racing", "warm start 8")
COST: Mapping[str, float] = {"FedAvg": 0, "tuned FedAvg": 6, "rules": 0, "genetic 8": 8, "warm start 8": 8}
QUICK = {"one": 3, "two": 3, "more": 1, "seeds": 1, "finalists": 4, "final_seeds": 2}
ADAM = FedAdamSpec(eta=0.3)


def measured(out: Path, names: tuple[str, ...] = NAMES, columns: tuple[str, ...] = ("one", "two")) -> Measured:
    document = {
        "title": "a test",
        "unit": "R_t",
        "method": {"kind": "given"},
        "measured_by": {"function": "fedscout.experiments.suites.choice:Trainings"},
        "columns": {name: COLUMNS[name] for name in columns},
        "rows": {name: {"arguments": {"by": name}} for name in (*names, "oracle", "reference")},
    }
    context = CellContext(out, num_seeds=3, fresh_stream="fresh")
    return Trainings(2, QUICK).measure(Experiment.model_validate(document), context)


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Measured]:
    out = tmp_path_factory.mktemp("choice")
    return out, measured(out)


@pytest.mark.slow
def test_every_recommender_chooses_on_every_federation_and_seed(outcome: tuple[Path, Measured]) -> None:
    _, found = outcome
    assert {*found.values} == {(row, column) for row in (*NAMES, "oracle", "reference") for column in COLUMNS}
    assert {len(values) for values in found.values.values()} == {2}
    assert found.absent == {}


@pytest.mark.slow
def test_costs_are_full_trainings_beside_fedavg(outcome: tuple[Path, Measured]) -> None:
    costs = outcome[1].figures["cost, trainings"]
    assert {name: fmean(costs[name, "one"]) for name in COST} == COST  # type: ignore[type-var]
    assert all(1 <= cost <= 2.5 for cost in costs["racing", "one"] if cost is not None)


@pytest.mark.slow
def test_regrets_are_by_their_formulas(outcome: tuple[Path, Measured]) -> None:
    _, found = outcome
    accuracy = found.figures["accuracy"]
    for (row, column), accuracies in accuracy.items():
        best, fedavg, tuned = (accuracy[name, column][0] for name in ("oracle", "FedAvg", "reference"))
        for place, own in enumerate(accuracies):
            lost = best - own  # type: ignore[operator]
            assert found.figures["R_f"][row, column][place] == pytest.approx(lost / (best - fedavg))  # type: ignore[operator]
            if (regret := found.values[row, column][place]) is not None:
                assert regret == pytest.approx(lost / (best - tuned))  # type: ignore[operator]
    for column in COLUMNS:
        own_tuned = [value for value in accuracy["tuned FedAvg", column] if value is not None]
        assert fmean(own_tuned) == pytest.approx(accuracy["reference", column][0])


@pytest.mark.slow
def test_no_choice_rests_on_studies_of_the_same_data(outcome: tuple[Path, Measured]) -> None:
    """Both federations are of one data set, of which the project has studies, too."""
    archives = outcome[1].figures["archives, trainings"]
    for row in ("FedAvg", "tuned FedAvg", "rules", "genetic 8", "warm start 8"):
        assert {*archives[row, "one"], *archives[row, "two"]} == {0.0}


@pytest.mark.slow
def test_the_same_measurement_trains_nothing(outcome: tuple[Path, Measured], monkeypatch: pytest.MonkeyPatch) -> None:
    out, found = outcome
    training = "fedscout.engine.trials.runner.run_trial"
    monkeypatch.setattr(training, lambda *_: pytest.fail("a stored trial was trained again"))
    assert measured(out) == found


@pytest.mark.slow
def test_what_is_absent_without_archive_or_key(outcome: tuple[Path, Measured], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    found = measured(outcome[0], ("genetic 8", "warm start 8", "LLM"), ("one",))
    assert {*found.absent} == {"warm start 8 × one", "LLM × one"}
    assert {row for row, _ in found.values} == {"genetic 8", "oracle", "reference"}


def test_a_record_of_answers_is_as_good_as_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    config = built_federation("one", arguments(COLUMNS["one"])).config
    assert RECOMMENDERS["LLM"].unavailable(config, tmp_path) is not None
    (tmp_path / "llm.jsonl").touch()
    assert RECOMMENDERS["LLM"].unavailable(config, tmp_path) is None


def test_seeds_for_different_purposes_are_different() -> None:
    groups = [search_seeds(50), *(other_seeds(purpose, 50) for purpose in ("oracle", "oracle's finalists", "fresh"))]
    assert len({seed for group in groups for seed in group}) == 200


@pytest.mark.parametrize(("lost", "regret"), [(0.0, 0.0), (0.1, 1.0), (0.2, 2.0), (-0.05, -0.5)])
def test_the_regret_of_what_a_step_size_does_not_give(lost: float, regret: float) -> None:
    """Gains of 0.11 and 0.09: mean 0.1, deviation 0.01 · √2, standard error 0.01."""
    assert regret_tuned(lost, (0.11, 0.09)) == pytest.approx(regret)
    assert regret_fedavg(lost, 0.1) == pytest.approx(regret)


@pytest.mark.parametrize(
    ("mean", "error", "is_to_win"),
    [(0.0101, 0.0, True), (0.0099, 0.0, False), (0.05, 0.0249, True), (0.05, 0.0251, False), (-0.05, 0.0, False)],
)
def test_a_gain_counts_from_a_point_and_two_standard_errors(mean: float, error: float, is_to_win: bool) -> None:
    """Two gains m ± e have the standard error e."""
    assert (regret_tuned(0.1, (mean + error, mean - error)) is not None) == is_to_win
    assert regret_fedavg(0.1, 0.0199) is None


def trial(spec: object, rounds: int | None = None) -> Trial:
    settings = FACTS.trial("search", spec, num_rounds=rounds)  # type: ignore[arg-type]
    scores = dict.fromkeys(("round_accuracy", "round_clean_accuracy"), (0.5,) * (rounds or FACTS.num_rounds))
    return Trial.of(settings, status="completed", **scores)


def test_a_study_trained_fedavg_and_of_each_configuration_its_longest_training() -> None:
    outcome = StudyOutcome(trial(BASELINE), [trial(ADAM, 1), trial(ADAM, 2)])
    assert sum(trained_by(outcome, FACTS, "here").values()) == pytest.approx(1 + 2 / FACTS.num_rounds)


def test_what_two_studies_share_is_trained_once_and_other_seeds_and_federations_are_others() -> None:
    outcome = StudyOutcome(trial(BASELINE), [trial(ADAM)])
    here = trained_by(outcome, FACTS, "here")
    other_seed = replace(FACTS, session=replace(FACTS.session, seed=FACTS.session.seed + 1))
    assert union([here, here]) == here
    assert sum(union([here, trained_by(outcome, FACTS, "there")]).values()) == 4
    assert sum(union([here, trained_by(outcome, other_seed, "here")]).values()) == 4


@pytest.mark.slow
def test_priors_rest_on_all_trials_but_those_of_the_own_data() -> None:
    table = read_table(PUBLISHED)
    trials = {each.about.name: len(each.trials) for each in [*table, *read_table(KNOWLEDGE)]}
    reasons = (Alternative(ADAM, "It gained.", SOURCE), Alternative(ADAM, "A rule.", "paper"))
    informed = StudyOutcome(trial(BASELINE), first_generation=reasons)
    new = replace(FACTS, config=json.dumps({"federation": {"dataset": "mine"}}), config_hash="new", data_digest="new")
    assert prior_trainings(informed, new) == trials
    own = ReplayedFederation(next(each for each in table if each.about.name == "wine, feature skew, 4 clients"))
    known = own.ledger(own.config).facts
    assert prior_trainings(informed, known) == {name: n for name, n in trials.items() if not name.startswith("wine, ")}
    assert prior_trainings(StudyOutcome(trial(BASELINE), first_generation=reasons[1:]), new) == {}


@pytest.mark.parametrize("num_clients", [3, 4, 20])
def test_the_grid_lies_in_the_space_each_configuration_once(num_clients: int) -> None:
    space = space_of(Cohort(num_clients, num_clients, 0.2))
    grid = dense_grid(space, Density())
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

    density = Density(one=2, two=2, more=1, seeds=1, finalists=4, final_seeds=3)
    with open_federation(built_federation("wine", arguments(COLUMNS["one"])), tmp_path) as runner:
        runner.trials.runner = ScriptedRunner(lambda spec: completed(score(spec), num_rounds=3))  # type: ignore[assignment]
        best = best_of_grid(runner, density)
    assert (best.kind, getattr(best, "eta", None)) == ("fedadam", 1.0)


# A searcher of the user's own in a replay: the page's example, and what is said to one that can't search.


SHOWN = "# file: halving.py"
WRONG = """
from fedscout.search.searcher import Searcher
from fedscout.strategies import FedAdamSpec, parse_strategy

class Idle(Searcher):
    pass

class Greedy(Searcher):
    def ask(self, num_proposals):
        return [FedAdamSpec(eta=0.3)] * (num_proposals + 1)

class Outside(Searcher):
    def ask(self, num_proposals):
        return [parse_strategy("fedexp")]

class Texts(Searcher):
    def ask(self, num_proposals):
        return ["fedadam"]

class Faulty(Searcher):
    def ask(self, num_proposals):
        return self.nothing

class NoTask(Searcher):
    def __init__(self):
        pass

    def ask(self, num_proposals):
        return []

class Silent(Searcher):
    def ask(self, num_proposals):
        return []
"""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table of one federation, in a folder with the page's example and others that are wrong."""
    (page,) = (block for block in blocks() if block.page == "choice.md" and block.text.startswith(SHOWN))
    (tmp_path / "halving.py").write_text(page.text)
    (tmp_path / "wrong.py").write_text(WRONG)
    monkeypatch.syspath_prepend(tmp_path)
    yield written(tmp_path / "t.parquet", federation(by_rate))
    for name in ("halving", "wrong"):
        sys.modules.pop(name, None)


def costs(found: Measured) -> set[float | None]:
    return {cost for costs in found.figures["cost, trainings"].values() for cost in costs}


def test_the_example_of_the_page_finds_what_it_tries(table: Path) -> None:
    """Its first trial is nearest to eta 0.3, which is the oracle; more than eight trials it is not given."""
    found = replayed(table, ["halving:Halving"])
    ((cell, values),) = found.values.items()
    assert values == pytest.approx([0.0] * len(SEEDS), abs=1e-9)
    assert costs(found) == {8.0}
    assert {*found.figures["archives, trainings"][cell]} == {0.0}


def test_the_budget_is_the_studies(table: Path) -> None:
    assert costs(replayed(table, ["halving:Halving"], "search.budget=3")) == {3.0}


def test_without_a_proposal_fedavg_is_chosen(table: Path) -> None:
    found = replayed(table, ["wrong:Silent"])
    (regrets,) = found.figures["R_f"].values()
    assert costs(found) == {0.0}
    assert regrets == pytest.approx([1.0] * len(SEEDS))


@pytest.mark.parametrize("path", ["nowhere:Search", "wrong:Nobody", "wrong:FedAdamSpec", "wrong:Idle"])
def test_what_is_no_searcher_is_refused(table: Path, path: str) -> None:
    with pytest.raises(StrategyError):
        replayed(table, [path])


@pytest.mark.parametrize(
    "path", ["wrong:Greedy", "wrong:Outside", "wrong:Texts", "wrong:Faulty", "wrong:NoTask", "no searcher:"]
)
def test_a_searcher_that_can_t_search_is_told_in_one_line(table: Path, path: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^[^\n]*{path}[^\n]*$"):
        replayed(table, [path])
