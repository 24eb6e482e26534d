"""The grid, random search, the one answer of a model, and what is given first: laws of every searcher and their own."""

from __future__ import annotations

import logging

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.record import Trial
from fedscout.search.config import RecommenderConfig, SearchConfig
from fedscout.search.recommenders.language_model import LanguageModel
from fedscout.search.searcher import Searcher, SearchTask
from fedscout.search.searchers.genetic import GeneticSearcher, GridSearcher, RandomSearcher, grid_values, range_points
from fedscout.search.searchers.racing import most_trials
from fedscout.search.study import ASKS_A_LANGUAGE_MODEL, SEARCHERS, new_searcher
from fedscout.strategies import (
    BulyanSpec,
    ChoiceRange,
    CustomSpec,
    FedAdamSpec,
    FedAvgMSpec,
    FedAvgSpec,
    FedMedianSpec,
    FedProxSpec,
    IntegerRange,
    KrumSpec,
    MultiKrumSpec,
    RealRange,
    SearchSpace,
    StrategySpec,
    space_of,
)
from tests.kits.refusals import refused
from tests.search.recommenders.played_chat import PlayedChat
from tests.search.searcher_conformance import (
    BATCH,
    COHORT,
    GenerationalLaws,
    SearcherLaws,
    client_space,
    proposals,
    task,
    user_space,
)


class TestGridSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return GridSearcher(task(space, seed))

    def odd_spaces(self) -> list[SearchSpace]:
        """Those whose grid has twelve points or more."""
        return [user_space(), client_space(), space_of(COHORT, ranges="wide")]


def test_points_of_a_range() -> None:
    assert range_points(RealRange(0, 1), 3) == [0.0, 0.5, 1.0]
    assert range_points(RealRange(0.01, 1, log=True), 3) == [0.01, 0.1, 1.0]
    assert range_points(RealRange(0, 1), 2) == [0.0, 1.0]
    assert range_points(RealRange(0, 1), 1) == [0.5]
    assert range_points(RealRange(2.5, 2.5), 3) == [2.5]
    assert range_points(IntegerRange(0, 2), 5) == [0, 1, 2]
    assert range_points(IntegerRange(0, 8), 3) == [0, 4, 8]
    assert range_points(ChoiceRange(("a", "b", "c", "d")), 2) == ["a", "b", "c", "d"]


def test_a_dependent_range_is_divided_for_each_value() -> None:
    """MultiKrum among ten: f from 0 … 7, of 1 … 10 − f models the first, the middle and the last."""
    points = {
        (values["num_malicious_nodes"], values["num_nodes_to_select"])
        for values in grid_values(space_of(COHORT), "multikrum", 3)
    }
    assert {selected for malicious, selected in points if malicious == 0} == {1, 6, 10}
    assert {selected for malicious, selected in points if malicious == 7} == {1, 2, 3}
    assert {malicious for malicious, _ in points} == {0, 4, 7}


def test_the_grid_is_exhausted() -> None:
    """Krum's f = 0 … 7, Bulyan's 1; of FedAvgM the server rates 0.1, 0.8, 1.5 and the momenta 0, 0.495, 0.99."""
    space = space_of(COHORT, kinds=("fedavg", "fedavgm", "krum", "bulyan"))
    proposed = proposals(GridSearcher(task(space, grid_points=8)), budget=1000)
    krums = {spec.num_malicious_nodes for spec in proposed if isinstance(spec, KrumSpec)}
    assert krums == set(range(8))
    assert {spec.num_malicious_nodes for spec in proposed if isinstance(spec, BulyanSpec)} == {1}
    nine = proposals(GridSearcher(task(space_of(COHORT, kinds=("fedavgm",)))), budget=1000)
    assert {(spec.server_learning_rate, spec.server_momentum) for spec in nine if isinstance(spec, FedAvgMSpec)} == {
        (rate, momentum) for rate in (0.1, 0.8, 1.5) for momentum in (0.0, 0.495, 0.99)
    }


def test_strategies_take_turns() -> None:
    """Of four strategies with free points the first four proposals are one each, the next four too."""
    space = space_of(COHORT, kinds=("fedavgm", "fedprox", "fedtrimmedavg", "qfedavg"))
    for seed in range(5):
        proposed = proposals(GridSearcher(task(space, seed)), budget=2 * BATCH)
        assert {spec.kind for spec in proposed[:BATCH]} == set(space.kinds)


def test_seeds_see_the_same_grid_in_another_order() -> None:
    """Of MultiKrum's nine points the one that selects all ten models is FedAvg, the reference."""
    space = space_of(COHORT, kinds=("multikrum", "fedadagrad"))
    first, other = (proposals(GridSearcher(task(space, seed)), budget=1000) for seed in (0, 1))
    assert {*first} == {*other}
    assert first != other
    assert sum(isinstance(spec, MultiKrumSpec) for spec in first) == 8


def test_a_grid_that_is_too_large_is_refused_with_what_would_help() -> None:
    """Six parameters of five values are 15625 points; of four they are 4096."""
    own = CustomSpec.model_validate({"path": "a:B", "ranges": {f"p{i}": {"low": 0, "high": 1.5} for i in range(6)}})
    space = SearchSpace(COHORT, "default", {own.label: own})
    with refused(ConfigurationError, key="a grid", names="search.grid_points"):
        GridSearcher(task(space, grid_points=5))
    assert GridSearcher(task(space, grid_points=4)).ask(1)


def test_a_budget_below_the_grid_is_told(caplog: pytest.LogCaptureFixture) -> None:
    space = space_of(COHORT, kinds=("fedavgm",))
    with caplog.at_level(logging.WARNING, logger="fedscout"):
        GridSearcher(task(space, budget=9))
        assert caplog.messages == []
        GridSearcher(task(space, budget=8))
    (told,) = caplog.messages
    assert "9" in told
    assert "search.budget=8" in told


# -- A searcher that is given its first configurations obeys the laws of the searcher itself ---------------------------


FIRST = [FedAdamSpec(eta=0.3), FedProxSpec(proximal_mu=0.5), FedMedianSpec()]
SPACE = space_of(COHORT)


class TestGeneticSearchGivenFirst(SearcherLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return GeneticSearcher(task(space, seed, FIRST))


def test_they_come_first_in_their_order_and_count_for_the_generation() -> None:
    searcher = GeneticSearcher(task(SPACE, first=FIRST))
    assert searcher.ask(BATCH) == FIRST
    searcher.tell([Trial(spec, fitness=fitness) for spec, fitness in zip(FIRST, (0.9, 0.8, 0.1), strict=True)])
    assert len(searcher.ask(BATCH)) == BATCH - len(FIRST)
    searcher.tell([Trial(spec, fitness=0.0) for spec in searcher.ask(BATCH)])
    assert {spec.kind for spec in searcher.ask(BATCH)} <= {"fedadam", "fedprox"}  # children of the best two


def test_what_is_outside_the_space_a_reference_or_given_twice_is_left_out() -> None:
    given = [FedAvgSpec(), FIRST[0], FedAdamSpec(eta=7.0), FIRST[0], KrumSpec(num_malicious_nodes=99), FIRST[1]]
    assert GeneticSearcher(task(SPACE, first=given)).ask(BATCH) == FIRST[:2]


@pytest.mark.parametrize("kind", [*SEARCHERS, *ASKS_A_LANGUAGE_MODEL])
def test_every_searcher_of_the_table_can_be_given_a_first_generation(kind: str) -> None:
    space = space_of(COHORT, kinds=("fedadam",)) if kind == "cmaes" else SPACE
    first = FIRST[:1] if kind == "cmaes" else FIRST
    model = LanguageModel(PlayedChat(space), RecommenderConfig())
    searcher = new_searcher(task(space, first=first, kind=kind), model=model)
    size = getattr(searcher, "population", len(first))
    assert searcher.ask(len(first)) == first[:size]


def test_a_race_takes_them_into_its_first_rung() -> None:
    racing = new_searcher(task(SPACE, first=FIRST, kind="racing"))
    assert {proposal.num_rounds for proposal in racing.plan(BATCH)} == {2}


# -- The one answer is trained once; FedAvg, which is trained anyway, not again ----------------------------------------


ANSWER = FedProxSpec(proximal_mu=0.5)
ONE_SHOT = SearchConfig(kind="one_shot")


def one_shot_task(*first: StrategySpec) -> SearchTask:
    return SearchTask(SPACE, 0, ONE_SHOT, first=first)


def test_the_answer_is_proposed_until_it_is_told_and_nothing_after_it() -> None:
    searcher = new_searcher(one_shot_task(ANSWER, FedMedianSpec()))
    assert searcher.ask(8) == searcher.ask(8) == [ANSWER]
    searcher.tell([Trial(ANSWER, status="failed", error="no")])
    assert searcher.ask(8) == []
    assert searcher.archive.searched[0].spec == ANSWER


@pytest.mark.parametrize("answer", [FedAvgSpec(), FedProxSpec(proximal_mu=0.0)])
def test_what_is_the_same_as_fedavg_is_not_trained_again(answer: StrategySpec) -> None:
    assert new_searcher(one_shot_task(answer)).ask(1) == []


def test_without_an_answer_there_is_nothing_to_train() -> None:
    with refused(ConfigurationError, key="search.kind"):
        new_searcher(one_shot_task())


def test_one_trial_is_planned_whatever_the_budget() -> None:
    assert most_trials(SearchConfig(kind="one_shot", budget=50), num_rounds=30) == (1, 0)
    assert (ONE_SHOT.trials_at_once, SearchConfig().trials_at_once) == (1, SearchConfig().generation_size)


# -- Random search: the laws of every searcher, and that it does not learn ---------------------------------------------


class TestRandomSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return RandomSearcher(task(space, seed))


def test_results_do_not_matter() -> None:
    space = space_of(COHORT)
    indifferent = proposals(RandomSearcher(task(space, 1)), lambda spec: Trial(spec, fitness=0.5), budget=20)
    assert proposals(RandomSearcher(task(space, 1)), budget=20) == indifferent
