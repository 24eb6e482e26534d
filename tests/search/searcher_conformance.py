"""Laws that every searcher obeys. The test of a searcher subclasses a kit with its settings, as a user names them.

`SearcherLaws` holds for all, `BudgetLaws` for those that spend a budget of trials, `GenerationalLaws` for those that
propose generation by generation. A searcher that can't search every space says in its methods which it can.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.search.config import RecommenderConfig, SearchConfig
from fedscout.search.language_model import Chat
from fedscout.search.searcher import Searcher, SearchTask
from fedscout.search.searchers.llm import LanguageModel
from fedscout.search.study import new_searcher
from fedscout.strategies import CustomSpec, FedAdamSpec, FedAvgSpec, IntegerRange, RealRange, StrategySpec
from fedscout.strategies.methods.robust import KrumSpec
from fedscout.strategies.space import SearchSpace, space_of
from tests.search.recommenders.loopback import PlayedChat

BUDGET = 8
BATCH = 4
COHORT = Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2)
FOUR_CLIENTS = Cohort(num_clients=4, num_sampled=4, client_learning_rate=0.2)

Evaluate = Callable[[StrategySpec], Trial]


def space_with(*kinds: str, cohort: Cohort = COHORT, **options: Any) -> SearchSpace:
    """Return the space of these strategies, or of all that fit."""
    return space_of(cohort, kinds or None, **options)


def searcher_of(
    space: SearchSpace,
    seed: int = 0,
    first: Sequence[StrategySpec] = (),
    kinds: Sequence[StrategySpec] = (),
    chat: Chat | None = None,
    **settings: object,
) -> Any:
    """Return a new searcher with settings as a user names them."""
    task = SearchTask(space, seed, SearchConfig.model_validate(settings), first=first, kinds=kinds)
    return new_searcher(task, model=LanguageModel(chat or PlayedChat(space), RecommenderConfig()))


def some_fitness(spec: StrategySpec) -> Trial:
    """A fitness in [0, 1) without rhyme or reason, the same for the same configuration."""
    return Trial(spec, fitness=int(spec.digest(COHORT)[:8], 16) / 2**32)


def failing(spec: StrategySpec) -> Trial:
    return Trial(spec, status="failed", error="no luck")


def some_failures(spec: StrategySpec) -> Trial:
    """As `some_fitness`, half of the trials failed."""
    found = some_fitness(spec)
    return found if found.fitness > 0.5 else failing(spec)


def trials(
    searcher: Searcher, evaluate: Evaluate = some_fitness, budget: int = BUDGET, batch: int = BATCH
) -> Iterator[Trial]:
    """A study's loop: ask for a batch, evaluate it, tell, until the budget is spent or nothing is proposed."""
    spent = 0
    while spent < budget and (planned := searcher.plan(min(batch, budget - spent))):
        assert len(planned) <= min(batch, budget - spent)
        evaluations = [replace(evaluate(each.spec), asked_rounds=each.num_rounds) for each in planned]
        searcher.tell(evaluations)
        spent += len(evaluations)
        yield from evaluations


def proposals(searcher: Searcher, evaluate: Evaluate = some_fitness, budget: int = BUDGET) -> list[StrategySpec]:
    return [evaluation.spec for evaluation in trials(searcher, evaluate, budget)]


def user_space() -> SearchSpace:
    """A user's own strategy with every kind of range beside one whose ranges depend on each other."""
    ranges = {
        "mode": {"choices": ["x", "y", 3, True]},
        "only": {"choices": ["one"]},
        "steps": {"low": 1, "high": 64, "log": True},
        "fixed": {"low": 2.5, "high": 2.5},
        "rate": {"low": 1e-6, "high": 1.0, "log": True},
    }
    own = CustomSpec.model_validate({"path": "a:B", "ranges": ranges})
    return SearchSpace(COHORT, {own.label: own, **space_with("multikrum").members})


def client_space() -> SearchSpace:
    """The clients' own parameters join those of the strategies."""
    ranges = {"client_learning_rate": RealRange(0.01, 1.0, log=True), "client_local_epochs": IntegerRange(1, 5)}
    return space_with("fedavg", "fedprox", "fedmedian", client_ranges=ranges)


class SearcherLaws:
    """Laws of all searchers; the settings are keywords of a subclass."""

    settings: ClassVar[Mapping[str, Any]] = {}
    num_trials: ClassVar[int] = BUDGET

    def __init_subclass__(cls, **settings: object) -> None:
        cls.settings = settings

    def make(self, space: SearchSpace, seed: int) -> Any:
        return searcher_of(space, seed, **self.settings)

    @pytest.fixture
    def space(self) -> SearchSpace:
        """A space with more configurations than any budget here."""
        return space_with()

    @pytest.mark.parametrize("seed", range(3))
    def test_nothing_is_trained_twice_nor_outside_the_space_nor_the_reference(
        self, space: SearchSpace, seed: int
    ) -> None:
        found = list(trials(self.make(space, seed), budget=20))
        assert len(found) >= 2 * BUDGET
        assert len({(space.digest(trial.spec), trial.asked_rounds) for trial in found}) == len(found)
        assert space.digest(FedAvgSpec()) not in {space.digest(trial.spec) for trial in found}
        assert all(space.contains(trial.spec) and trial.spec.faults(COHORT) == [] for trial in found)

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

    def test_cut_off_anywhere_it_goes_on_as_if_it_had_not_been(self, space: SearchSpace) -> None:
        """Told its log twice, with the reference, which is the best of all and changes no proposal."""
        whole = list(trials(self.make(space, 5), budget=self.num_trials))
        for cut in range(0, self.num_trials + 1, 2):
            resumed = self.make(space, 5)
            for _ in range(2):
                resumed.tell([Trial(FedAvgSpec(), fitness=1.0), *whole[:cut]])
            assert whole[:cut] + list(trials(resumed, budget=self.num_trials - cut)) == whole

    def test_proposals_do_not_depend_on_how_many_are_asked_for_at_a_time(self, space: SearchSpace) -> None:
        by_generation = proposals(self.make(space, 4))
        for batch in (1, 3, BUDGET):
            assert [trial.spec for trial in trials(self.make(space, 4), batch=batch)] == by_generation

    def test_a_space_of_the_reference_alone_has_nothing_to_propose(self) -> None:
        assert self.make(space_with("fedavg"), 0).ask(BATCH) == []


class BudgetLaws(SearcherLaws):
    """Laws of searchers that spend a budget of trials."""

    def small_space(self) -> tuple[SearchSpace, int]:
        """Krum among four, of f = 0 or 1, and the median: fewer configurations than the budget, and how many."""
        return space_with("fedavg", "fedmedian", "krum", cohort=FOUR_CLIENTS), 3

    def odd_spaces(self) -> Sequence[SearchSpace]:
        """Spaces with all that a space may hold."""
        return user_space(), client_space(), space_with("fedprox")

    def space_with_twins(self) -> SearchSpace:
        """Among four clients MultiKrum is Krum or the mean, a trimmed mean is the median or the mean, as Bulyan is."""
        kinds = ("fedavg", "fedmedian", "fedtrimmedavg", "bulyan", "krum", "multikrum", "fedprox")
        return space_with(*kinds, cohort=FOUR_CLIENTS)

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

    def test_failed_trials_are_borne_and_not_repeated(self, space: SearchSpace) -> None:
        for evaluate in (some_failures, failing):
            proposed = proposals(self.make(space, 5), evaluate)
            assert len({space.digest(spec) for spec in proposed}) == BUDGET

    def test_a_space_smaller_than_the_budget_ends_the_search(self) -> None:
        space, size = self.small_space()
        proposed = proposals(self.make(space, 0))
        assert len({space.digest(spec) for spec in proposed}) == len(proposed) == size


class GenerationalLaws(BudgetLaws):
    """Laws of searchers that propose `BATCH` trials at a time, given all results before them."""

    def test_a_generation_is_completed_whichever_of_its_trials_were_logged_in_any_order(
        self, space: SearchSpace
    ) -> None:
        whole = list(trials(self.make(space, 4)))
        resumed = self.make(space, 4)
        resumed.tell([*whole[3::-1], whole[6], whole[4]])
        assert resumed.ask(BUDGET) == [whole[5].spec, whole[7].spec]

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
