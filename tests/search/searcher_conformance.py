"""Laws that every searcher obeys. A searcher's test module subclasses `SearcherLaws` and says how to make one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import pytest

from engine.strategy_contract import Cohort
from search.searcher import Evaluation, Searcher
from strategies import FedAvgSpec, SearchSpace, StrategySpec, space_of

BUDGET = 8
BATCH = 4
COHORT = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2)

Evaluate = Callable[[StrategySpec], Evaluation]


def some_fitness(spec: StrategySpec) -> Evaluation:
    """A fitness in [0, 1) without rhyme or reason, the same for the same configuration."""
    return Evaluation(spec, int(spec.digest(COHORT)[:8], 16) / 2**32)


def trials(searcher: Searcher, evaluate: Evaluate, budget: int = BUDGET, batch: int = BATCH) -> Iterator[Evaluation]:
    """A study's loop: ask for a batch, evaluate it, tell, until the budget is spent or nothing is proposed."""
    spent = 0
    while spent < budget and (specs := searcher.ask(min(batch, budget - spent))):
        assert len(specs) <= min(batch, budget - spent)
        evaluations = [evaluate(spec) for spec in specs]
        searcher.tell(evaluations)
        spent += len(evaluations)
        yield from evaluations


def proposals(searcher: Searcher, evaluate: Evaluate = some_fitness, budget: int = BUDGET) -> list[StrategySpec]:
    return [evaluation.spec for evaluation in trials(searcher, evaluate, budget)]


class SearcherLaws(ABC):
    """The laws; `make` gives a fresh searcher over a space."""

    @abstractmethod
    def make(self, space: SearchSpace, seed: int) -> Searcher: ...

    @pytest.fixture
    def space(self) -> SearchSpace:
        return space_of(COHORT)

    @pytest.mark.parametrize("seed", range(5))
    def test_the_budget_is_spent_inside_the_space(self, space: SearchSpace, seed: int) -> None:
        proposed = proposals(self.make(space, seed))
        assert len(proposed) == BUDGET
        assert all(space.contains(spec) for spec in proposed)
        assert all(spec.faults(COHORT) == [] for spec in proposed)

    @pytest.mark.parametrize("seed", range(5))
    def test_no_configuration_is_proposed_twice_nor_the_reference(self, space: SearchSpace, seed: int) -> None:
        proposed = proposals(self.make(space, seed), budget=20)
        digests = [space.digest(spec) for spec in proposed]
        assert len({*digests}) == len(digests) == 20
        assert space.digest(FedAvgSpec()) not in digests

    def test_a_seed_repeats_itself_and_differs_from_another(self, space: SearchSpace) -> None:
        first, again, other = (proposals(self.make(space, seed)) for seed in (7, 7, 8))
        assert first == again
        assert first != other

    def test_asking_changes_nothing(self, space: SearchSpace) -> None:
        asked, untouched = self.make(space, 3), self.make(space, 3)
        for _ in range(2):
            proposed = asked.ask(BATCH)
            assert asked.ask(BATCH) == proposed
            assert asked.ask(1) == proposed[:1]
            assert asked.ask(BATCH) == proposed == untouched.ask(BATCH)
            for searcher in (asked, untouched):
                searcher.tell([some_fitness(spec) for spec in proposed])

    @pytest.mark.parametrize("num_logged", range(BUDGET + 1))
    def test_a_study_cut_off_anywhere_goes_on_as_if_it_had_not_been(self, space: SearchSpace, num_logged: int) -> None:
        whole = list(trials(self.make(space, 5), some_fitness))
        resumed = self.make(space, 5)
        resumed.tell([some_fitness(FedAvgSpec()), *whole[:num_logged]])
        rest = list(trials(resumed, some_fitness, BUDGET - num_logged))
        assert whole[:num_logged] + rest == whole

    def test_telling_the_log_twice_is_telling_it_once(self, space: SearchSpace) -> None:
        whole = list(trials(self.make(space, 5), some_fitness))
        once, twice = self.make(space, 5), self.make(space, 5)
        once.tell(whole)
        twice.tell(whole)
        twice.tell(whole)
        assert once.ask(BATCH) == twice.ask(BATCH)
        assert once.archive.searched == twice.archive.searched

    def test_the_reference_changes_no_proposal(self, space: SearchSpace) -> None:
        told = self.make(space, 5)
        told.tell([Evaluation(FedAvgSpec(), 1.0)])
        assert proposals(told) == proposals(self.make(space, 5))
        best = told.archive.best()
        assert best is not None
        assert best.spec == FedAvgSpec()

    def test_the_best_is_the_largest_fitness_told(self, space: SearchSpace) -> None:
        searcher = self.make(space, 5)
        whole = list(trials(searcher, some_fitness))
        best = searcher.archive.best()
        assert best is not None
        assert best.fitness == max(evaluation.fitness for evaluation in whole)

    def test_failed_trials_are_borne_and_not_repeated(self, space: SearchSpace) -> None:
        proposed = proposals(self.make(space, 5), lambda spec: Evaluation.failure(spec, "no luck"))
        assert len({space.digest(spec) for spec in proposed}) == BUDGET

    def test_some_failed_trials_are_borne(self, space: SearchSpace) -> None:
        def evaluate(spec: StrategySpec) -> Evaluation:
            found = some_fitness(spec)
            return found if found.fitness > 0.5 else Evaluation.failure(spec, "too low")

        assert len({space.digest(spec) for spec in proposals(self.make(space, 6), evaluate)}) == BUDGET

    def test_a_space_smaller_than_the_budget_ends_the_search(self) -> None:
        """Krum among four: f is 0 or 1. With the median these are three configurations; FedAvg is the reference."""
        cohort = Cohort(num_clients=4, num_sampled=4, client_learning_rate=0.2)
        space = space_of(cohort, kinds=("fedavg", "fedmedian", "krum"))
        proposed = proposals(self.make(space, 0))
        assert len({space.digest(spec) for spec in proposed}) == len(proposed) == 3

    def test_a_space_of_the_reference_alone_has_nothing_to_propose(self) -> None:
        assert self.make(space_of(COHORT, kinds=("fedavg",)), 0).ask(BATCH) == []
