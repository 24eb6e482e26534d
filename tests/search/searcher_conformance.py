"""Laws that every searcher obeys. A searcher's test module subclasses one of the kits and says how to make one.

`SearcherLaws` holds for all, `GenerationalLaws` also for those that propose generation by generation. A searcher that
can't search every space says in `space`, `small_space` and `odd_spaces` which it can.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence

import pytest

from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.search.config import SearchConfig
from fedscout.search.searcher import Searcher, SearchTask
from fedscout.strategies import (
    CustomSpec,
    FedAdamSpec,
    FedAvgSpec,
    IntegerRange,
    RealRange,
    SearchSpace,
    StrategySpec,
    space_of,
)
from fedscout.strategies.methods.robust import KrumSpec
from fedscout.strategies.specification import CLIENT_PARAMETERS

BUDGET = 8
BATCH = 4
COHORT = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2)

Evaluate = Callable[[StrategySpec], Trial]


def task(
    space: SearchSpace,
    seed: int = 0,
    first: Sequence[StrategySpec] = (),
    kinds: Sequence[StrategySpec] = (),
    **settings: object,
) -> SearchTask:
    """What a searcher is made from, with settings as a user names them."""
    return SearchTask(space, seed, SearchConfig.model_validate(settings), first=first, kinds=kinds)


def some_fitness(spec: StrategySpec) -> Trial:
    """A fitness in [0, 1) without rhyme or reason, the same for the same configuration."""
    return Trial(spec, fitness=int(spec.digest(COHORT)[:8], 16) / 2**32)


def trials(searcher: Searcher, evaluate: Evaluate, budget: int = BUDGET, batch: int = BATCH) -> Iterator[Trial]:
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


def some_failures(spec: StrategySpec) -> Trial:
    """As `some_fitness`, half of the trials failed."""
    found = some_fitness(spec)
    return found if found.fitness > 0.5 else Trial(spec, status="failed", error="too low")


def krums_and_median() -> tuple[SearchSpace, int]:
    """Krum among four: f is 0 or 1. With the median these are three configurations; FedAvg is the reference."""
    cohort = Cohort(num_clients=4, num_sampled=4, client_learning_rate=0.2)
    return space_of(cohort, kinds=("fedavg", "fedmedian", "krum")), 3


def user_space() -> SearchSpace:
    """A user's own strategy with every kind of range beside one whose ranges depend on each other."""
    own = CustomSpec.model_validate(
        {
            "path": "a:B",
            "ranges": {
                "mode": {"choices": ["x", "y", 3, True]},
                "only": {"choices": ["one"]},
                "steps": {"low": 1, "high": 64, "log": True},
                "fixed": {"low": 2.5, "high": 2.5},
                "rate": {"low": 1e-6, "high": 1.0, "log": True},
            },
        }
    )
    others = space_of(COHORT, kinds=("multikrum",))
    return SearchSpace(COHORT, {own.label: own, **others.members})


def client_space() -> SearchSpace:
    """The clients' own parameters join those of the strategies."""
    ranges = {"client_learning_rate": RealRange(0.01, 1.0, log=True), "client_local_epochs": IntegerRange(1, 5)}
    assert set(ranges) < set(CLIENT_PARAMETERS)
    return space_of(COHORT, kinds=("fedavg", "fedprox", "fedmedian"), client_ranges=ranges)


class SearcherLaws(ABC):
    """The laws; `make` gives a fresh searcher over a space."""

    @abstractmethod
    def make(self, space: SearchSpace, seed: int) -> Searcher: ...

    @pytest.fixture
    def space(self) -> SearchSpace:
        """A space with more configurations than any budget here."""
        return space_of(COHORT)

    def small_space(self) -> tuple[SearchSpace, int]:
        """A space with fewer configurations than the budget, how many without the reference and equivalents."""
        return krums_and_median()

    def odd_spaces(self) -> Sequence[SearchSpace]:
        """Spaces with all that a space may hold."""
        return user_space(), client_space(), space_of(COHORT, kinds=("fedprox",))

    def space_with_twins(self) -> SearchSpace:
        """Among four clients MultiKrum is Krum or the mean, a trimmed mean is the median or the mean, as Bulyan is."""
        kinds = ("fedavg", "fedmedian", "fedtrimmedavg", "bulyan", "krum", "multikrum", "fedprox")
        return space_of(Cohort(num_clients=4, num_sampled=4, client_learning_rate=0.2), kinds=kinds)

    @pytest.mark.parametrize("seed", range(3))
    def test_what_is_the_same_as_another_strategy_is_not_proposed(self, seed: int) -> None:
        space = self.space_with_twins()
        proposed = proposals(self.make(space, seed), budget=16)
        assert proposed
        assert [spec for spec in proposed if space.has_equivalent(spec)] == []

    def test_any_space_is_searched(self) -> None:
        for space in self.odd_spaces():
            proposed = proposals(self.make(space, 1), budget=12)
            assert all(space.contains(spec) for spec in proposed)
            assert len({space.digest(spec) for spec in proposed}) == len(proposed) == 12

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

    @pytest.mark.sampled(3)
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
        for searcher in (once, twice, twice):
            searcher.tell(whole)
        assert once.ask(BATCH) == twice.ask(BATCH)
        assert once.archive.searched == twice.archive.searched

    def test_the_reference_changes_no_proposal(self, space: SearchSpace) -> None:
        told = self.make(space, 5)
        told.tell([Trial(FedAvgSpec(), fitness=1.0)])
        assert proposals(told) == proposals(self.make(space, 5))

    def test_failed_trials_are_borne_and_not_repeated(self, space: SearchSpace) -> None:
        for evaluate in (some_failures, lambda spec: Trial(spec, status="failed", error="no luck")):
            proposed = proposals(self.make(space, 5), evaluate)
            assert len({space.digest(spec) for spec in proposed}) == BUDGET

    def test_a_space_smaller_than_the_budget_ends_the_search(self) -> None:
        space, size = self.small_space()
        proposed = proposals(self.make(space, 0))
        assert len({space.digest(spec) for spec in proposed}) == len(proposed) == size

    def test_a_space_of_the_reference_alone_has_nothing_to_propose(self) -> None:
        assert self.make(space_of(COHORT, kinds=("fedavg",)), 0).ask(BATCH) == []


class GenerationalLaws(SearcherLaws):
    """Laws of searchers that propose `BATCH` trials at a time, given all results before them."""

    def test_proposals_do_not_depend_on_how_many_are_asked_for_at_a_time(self, space: SearchSpace) -> None:
        by_generation = proposals(self.make(space, 4))
        for batch in (1, 3, BUDGET):
            found = trials(self.make(space, 4), some_fitness, batch=batch)
            assert [evaluation.spec for evaluation in found] == by_generation

    def test_a_generation_is_completed_whichever_of_its_trials_were_logged(self, space: SearchSpace) -> None:
        whole = list(trials(self.make(space, 4), some_fitness))
        resumed = self.make(space, 4)
        resumed.tell([*whole[:4], whole[6], whole[4]])
        assert resumed.ask(BUDGET) == [whole[5].spec, whole[7].spec]

    def test_the_order_within_a_generation_does_not_matter(self, space: SearchSpace) -> None:
        first = list(trials(self.make(space, 4), some_fitness, budget=BATCH))
        straight, reverse = self.make(space, 4), self.make(space, 4)
        straight.tell(first)
        reverse.tell(first[::-1])
        assert straight.ask(BATCH) == reverse.ask(BATCH)

    def test_a_first_generation_may_come_from_elsewhere(self, space: SearchSpace) -> None:
        """Three told from elsewhere, one of them outside the ranges and one of a user's, leave one place."""
        searcher = self.make(space, 0)
        elsewhere = (CustomSpec.model_validate({"path": "a:B"}), FedAdamSpec(eta=30), KrumSpec(num_malicious_nodes=2))
        searcher.tell([Trial(spec, fitness=0.5) for spec in elsewhere])
        (fourth,) = searcher.ask(BUDGET)
        searcher.tell([some_fitness(fourth)])
        further = searcher.ask(BATCH)
        assert len({space.digest(spec) for spec in (*elsewhere, fourth, *further)}) == 2 * BATCH
        assert all(space.contains(spec) for spec in (fourth, *further))
