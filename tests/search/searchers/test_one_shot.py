"""The one answer is trained once; FedAvg, which is trained anyway, not again."""

from __future__ import annotations

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.record import Trial
from fedscout.search.config import SearchConfig
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.racing import most_trials
from fedscout.search.study import new_searcher
from fedscout.strategies import FedAvgSpec, FedMedianSpec, FedProxSpec, StrategySpec, space_of
from tests.kits.refusals import refused
from tests.search.searcher_conformance import COHORT

SPACE = space_of(COHORT)
ANSWER = FedProxSpec(proximal_mu=0.5)
ONE_SHOT = SearchConfig(kind="one_shot")


def task(*first: StrategySpec) -> SearchTask:
    return SearchTask(SPACE, 0, ONE_SHOT, first=first)


def test_the_answer_is_proposed_until_it_is_told_and_nothing_after_it() -> None:
    searcher = new_searcher(task(ANSWER, FedMedianSpec()))
    assert searcher.ask(8) == searcher.ask(8) == [ANSWER]
    searcher.tell([Trial(ANSWER, status="failed", error="no")])
    assert searcher.ask(8) == []
    assert searcher.archive.searched[0].spec == ANSWER


@pytest.mark.parametrize("answer", [FedAvgSpec(), FedProxSpec(proximal_mu=0.0)])
def test_what_is_the_same_as_fedavg_is_not_trained_again(answer: StrategySpec) -> None:
    assert new_searcher(task(answer)).ask(1) == []


def test_without_an_answer_there_is_nothing_to_train() -> None:
    with refused(ConfigurationError, key="search.kind"):
        new_searcher(task())


def test_one_trial_is_planned_whatever_the_budget() -> None:
    assert most_trials(SearchConfig(kind="one_shot", budget=50), num_rounds=30) == (1, 0)
    assert (ONE_SHOT.trials_at_once, SearchConfig().trials_at_once) == (1, SearchConfig().generation_size)
