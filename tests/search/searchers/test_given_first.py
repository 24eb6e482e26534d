"""A searcher that is given its first configurations obeys the laws of the searcher itself."""

from __future__ import annotations

import pytest

from fedscout.engine.trials.record import Trial
from fedscout.search.config import RecommenderConfig
from fedscout.search.recommenders.language_model import LanguageModel
from fedscout.search.searcher import Searcher
from fedscout.search.searchers.genetic import GeneticSearcher
from fedscout.search.study import ASKS_A_LANGUAGE_MODEL, SEARCHERS, new_searcher
from fedscout.strategies import FedAdamSpec, FedAvgSpec, FedMedianSpec, FedProxSpec, KrumSpec, SearchSpace, space_of
from tests.search.recommenders.played_chat import PlayedChat
from tests.search.searcher_conformance import BATCH, COHORT, SearcherLaws, task

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
