"""Laws of the genetic search, beside those of every searcher."""

from __future__ import annotations

import logging
import math
from collections import Counter

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.record import Trial
from fedscout.search.config import RecommenderConfig, SearchConfig
from fedscout.search.searcher import Searcher, SearchTask, ranking
from fedscout.search.searchers import genetic
from fedscout.search.searchers.llm import LanguageModel
from fedscout.search.searchers.racing import most_trials
from fedscout.search.study import ASKS_A_LANGUAGE_MODEL, SEARCHERS, new_searcher
from fedscout.strategies import (
    BUILT_IN_KINDS,
    ChoiceRange,
    CustomSpec,
    FedAdamSpec,
    FedAvgSpec,
    IntegerRange,
    RealRange,
    SearchSpace,
    StrategySpec,
    space_of,
)
from fedscout.strategies.methods.averaging import FedAvgMSpec, FedProxSpec
from fedscout.strategies.methods.robust import BulyanSpec, FedMedianSpec, KrumSpec, MultiKrumSpec
from tests.kits.refusals import refused
from tests.search.recommenders.loopback import PlayedChat
from tests.search.searcher_conformance import (
    BATCH,
    COHORT,
    GenerationalLaws,
    SearcherLaws,
    client_space,
    proposals,
    some_fitness,
    task,
    trials,
    user_space,
)

SPACE = space_of(COHORT)


class TestGeneticSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return genetic.GeneticSearcher(task(space, seed))


class TestMixedGeneticSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return genetic.GeneticSearcher(task(space, seed, mutation_rate=0.5))


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN_KINDS if SPACE.parameters_of(kind)])
def test_mutation_moves_each_parameter_by_a_small_step_of_its_range(kind: str) -> None:
    """Integers by at most 1; reals by at most a tenth of their range, in log space if log-scaled, but for rounding.

    Rounding adds at most half a unit of the fourth decimal, or of the fourth significant digit (5e-4 relatively).
    """
    generator = np.random.default_rng(0)
    for _ in range(100):
        parent = SPACE.compose(kind, lambda _, found: found.draw(generator))
        child = genetic.mutate(parent, SPACE, generator)
        assert child.kind == kind
        assert SPACE.contains(child)
        before, after = parent.search_values(), child.search_values()
        for name, found in SPACE.parameters_of(kind).items():
            if isinstance(found, IntegerRange):
                assert abs(after[name] - before[name]) <= 1
                continue
            assert not isinstance(found, ChoiceRange)
            if found.log:
                step, width, rounding = math.log(after[name] / before[name]), math.log(found.high / found.low), 5e-4
            else:
                step, width, rounding = after[name] - before[name], found.high - found.low, 5e-5
            assert abs(step) <= 0.1 * width + rounding * (1 + 1e-6)


@pytest.mark.parametrize(("value", "reached"), [(3, {2, 3, 4}), (7, {6, 7})], ids=["inside", "at the end"])
def test_all_steps_of_an_integer_are_taken(value: int, reached: set[int]) -> None:
    generator, parent = np.random.default_rng(0), KrumSpec(num_malicious_nodes=value)
    children = [genetic.mutate(parent, SPACE, generator) for _ in range(60)]
    assert {child.search_values()["num_malicious_nodes"] for child in children} == reached


def test_a_users_choice_is_drawn_anew() -> None:
    ranges = {"mode": {"choices": ["x", "y", "z"]}}
    own = CustomSpec.model_validate({"path": "a:B", "values": {"mode": "x"}, "ranges": ranges})
    space = SearchSpace(COHORT, {own.label: own})
    generator = np.random.default_rng(0)
    assert {genetic.mutate(own, space, generator).values["mode"] for _ in range(60)} == {"x", "y", "z"}


def near(spec: StrategySpec, parent: StrategySpec) -> bool:
    """Whether a child may have come from a parent: the same strategy, integers within 1, reals within a tenth."""
    if spec.label != parent.label:
        return False
    before, after = parent.search_values(), spec.search_values()
    return all(
        abs(after[name] - before[name]) <= 1
        if isinstance(found, IntegerRange)
        else abs(found.to_unit(after[name]) - found.to_unit(before[name])) <= 0.1 + 1e-3
        for name, found in SPACE.parameters_of(spec.label).items()
    )


FERTILE = space_of(COHORT, kinds=("fedadam", "fedyogi", "fedavgm", "fedprox", "fedadagrad", "qfedavg"))


@pytest.mark.parametrize("seed", range(10))
def test_every_child_comes_from_the_top_two_of_the_whole_archive(seed: int) -> None:
    """Parents of generation 3 are the best two of generations 1 and 2 together."""
    searcher = genetic.GeneticSearcher(task(FERTILE, seed))
    found = list(trials(searcher, some_fitness, budget=12))
    for generation in (1, 2):
        parents = [e.spec for e in ranking(found[: generation * BATCH], FERTILE)[:2]]
        children = [e.spec for e in found[generation * BATCH : (generation + 1) * BATCH]]
        assert all(any(near(child, parent) for parent in parents) for child in children)


def each_kind(space: SearchSpace) -> list[StrategySpec]:
    generator = np.random.default_rng(5)
    return [space.compose(kind, lambda _, found: found.draw(generator)) for kind in space.kinds]


class TestExploringGeneticSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return genetic.GeneticSearcher(task(space, seed, kinds=each_kind(space)))


def test_a_child_of_each_generation_from_the_third_on_is_of_a_kind_tried_least() -> None:
    """FedAdam alone is bred, so each of the other five kinds gets the first place of a generation in its turn."""
    given = each_kind(FERTILE)
    adams = [FedAdamSpec(eta=eta) for eta in (0.02, 0.1, 0.3, 0.5)]
    plain, exploring = (genetic.GeneticSearcher(task(FERTILE, kinds=kinds, first=adams)) for kinds in ((), given))

    def adam_is_best(spec: StrategySpec) -> Trial:
        return Trial(spec, fitness=some_fitness(spec).fitness / 2 + (spec.kind == "fedadam") / 2)

    bred = proposals(plain, adam_is_best, budget=32)
    found = proposals(exploring, adam_is_best, budget=32)
    assert {spec.kind for spec in bred} == {"fedadam"}
    assert found[:8] == bred[:8]
    firsts = [found[start] for start in range(8, 32, 4)]
    assert firsts[:5] == [spec for spec in given if spec.kind != "fedadam"]
    rest = [spec for place, spec in enumerate(found[8:]) if place % 4]
    assert {spec.kind for spec in rest} == {"fedadam"}
    assert firsts[5] == next(spec for spec in given if spec.kind == "fedadam")


def told(*evaluations: tuple[StrategySpec, float], seed: int = 0, **options) -> genetic.GeneticSearcher:
    searcher = genetic.GeneticSearcher(task(options.pop("space", SPACE), seed, **options))
    searcher.tell([Trial(spec, fitness=fitness) for spec, fitness in evaluations])
    return searcher


ADAM, MOMENTUM, KRUM = FedAdamSpec(), FedAvgMSpec(), KrumSpec(num_malicious_nodes=3)
FOUR = ((ADAM, 0.9), (MOMENTUM, 0.8), (KRUM, 0.1), (FedProxSpec(), 0.2))
"""A generation, of which the first two are parents."""


def test_both_parents_are_drawn_equally_often() -> None:
    """200 children: 100 of each; 4 standard deviations of a binomial(200, 1/2) are 28."""
    kinds: Counter[str] = Counter()
    for seed in range(50):
        kinds.update(spec.kind for spec in told(*FOUR, seed=seed).ask(4))
    assert set(kinds) == {"fedadam", "fedavgm"}
    assert abs(kinds["fedadam"] - 100) <= 28


def krum(f: int) -> KrumSpec:
    return KrumSpec(num_malicious_nodes=f)


@pytest.mark.parametrize(
    ("evaluations", "kinds", "expected"),
    [
        ([(FedMedianSpec(), 0.9), (ADAM, 0.8), (KRUM, 0.1), (MOMENTUM, 0.2)], None, "fedadam"),
        ([(krum(3), 0.9), (krum(2), 0.1), (krum(4), 0.1), (ADAM, 0.8)], None, "fedadam"),
        ([(FedMedianSpec(), 0.9), (ADAM, 0.1)], ("fedmedian", "krum"), "krum"),
        ([(ADAM, 0.9), (FedProxSpec(), 0.8), (MOMENTUM, 0.1), (KRUM, 0.2)], ("fedprox", "fedavgm"), "fedprox"),
    ],
    ids=["without parameters", "both neighbours evaluated", "both exhausted: at random", "outside the space"],
)
def test_a_parent_that_can_have_no_child_yields(
    evaluations: list[tuple[StrategySpec, float]], kinds: tuple[str, ...] | None, expected: str
) -> None:
    space = space_of(COHORT, kinds=kinds)
    searcher = told(*evaluations, space=space, generation_size=len(evaluations))
    assert {spec.kind for spec in searcher.ask(len(evaluations))} == {expected}


def test_failures_stay_as_parents_of_the_last_resort() -> None:
    searcher = genetic.GeneticSearcher(task(FERTILE))
    specs = searcher.ask(4)
    searcher.tell([Trial(spec, status="failed", error="no luck") for spec in specs])
    children = searcher.ask(4)
    assert len(children) == 4
    assert {child.kind for child in children} <= {spec.kind for spec in specs}


@pytest.mark.parametrize(
    ("searches_clients", "options", "largest"),
    [(False, {}, 0.1), (True, {}, 0.3), (False, {"mutation_step": 0.5}, 0.5), (True, {"mutation_step": 0.05}, 0.05)],
)
def test_a_search_s_steps(searches_clients: bool, options: dict[str, float], largest: float) -> None:
    """Of 400 uniform steps the largest exceeds 95 % of the bound but with probability 0.95^400 < 1e-8."""
    rates = {"client_learning_rate": RealRange(1e-6, 1.0, log=True)} if searches_clients else None
    space = space_of(COHORT, kinds=("fedprox",), client_ranges=rates)
    names = space.parameters_of("fedprox")
    parent = space.compose("fedprox", lambda _, found: found.from_unit(0.5))
    steps: dict[str, list[float]] = {name: [] for name in names}
    for seed in range(400):
        (child,) = told((parent, 0.9), space=space, seed=seed, generation_size=1, **options).ask(1)
        for name, found in names.items():
            before, after = parent.search_values()[name], child.search_values()[name]
            steps[name].append(abs(found.to_unit(after) - found.to_unit(before)))
    for taken in steps.values():
        assert 0.95 * largest < max(taken) <= largest + 1e-3


def test_at_rate_zero_the_search_is_random() -> None:
    kinds: Counter[str] = Counter()
    for seed in range(20):
        kinds.update(spec.kind for spec in told(*FOUR, seed=seed, mutation_rate=0.0).ask(4))
    assert len(kinds) >= 8  # 80 draws of 11 kinds miss four or more but once in a million times


def test_a_parent_from_outside_is_drawn_back_into_the_ranges() -> None:
    """FedProx(mu = 0) would be FedAvg, eta = 30 is far above the range."""
    searcher = told((FedAdamSpec(eta=30), 0.9), (FedProxSpec(proximal_mu=50), 0.8), (KRUM, 0.1), (MOMENTUM, 0.2))
    children = searcher.ask(4)
    assert {child.kind for child in children} <= {"fedadam", "fedprox"}
    assert all(SPACE.contains(child) for child in children)


def test_a_parent_with_a_fixed_parameter_is_mutated_in_the_others() -> None:
    """Were it passed over, children would be drawn from anywhere: ten near it but once in 10^6 times."""
    ranges = {"rate": {"low": 0.0, "high": 1.0}, "fixed": {"low": 2.5, "high": 2.5}}
    own = CustomSpec.model_validate({"path": "a:B", "values": {"rate": 0.5, "fixed": 2.5}, "ranges": ranges})
    space = SearchSpace(COHORT, {own.label: own})
    children = [told((own, 0.9), space=space, seed=seed, generation_size=1).ask(1)[0] for seed in range(10)]
    assert max(abs(child.search_values()["rate"] - 0.5) for child in children) <= 0.1 + 1e-3


# -- Grid and random search, the one answer of a model, and what is given first ----------------------------------------


class TestGridSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return genetic.GridSearcher(task(space, seed))

    def odd_spaces(self) -> list[SearchSpace]:
        """Those whose grid has twelve points or more."""
        return [user_space(), client_space()]


def test_points_of_a_range() -> None:
    assert genetic.range_points(RealRange(0, 1), 3) == [0.0, 0.5, 1.0]
    assert genetic.range_points(RealRange(0.01, 1, log=True), 3) == [0.01, 0.1, 1.0]
    assert genetic.range_points(RealRange(0, 1), 2) == [0.0, 1.0]
    assert genetic.range_points(RealRange(0, 1), 1) == [0.5]
    assert genetic.range_points(RealRange(2.5, 2.5), 3) == [2.5]
    assert genetic.range_points(IntegerRange(0, 2), 5) == [0, 1, 2]
    assert genetic.range_points(IntegerRange(0, 8), 3) == [0, 4, 8]
    assert genetic.range_points(ChoiceRange(("a", "b", "c", "d")), 2) == ["a", "b", "c", "d"]


def test_a_dependent_range_is_divided_for_each_value() -> None:
    """MultiKrum among ten: f from 0 … 7, of 1 … 10 − f models the first, the middle and the last."""
    points = {
        (values["num_malicious_nodes"], values["num_nodes_to_select"])
        for values in genetic.grid_values(space_of(COHORT), "multikrum", 3)
    }
    assert {selected for malicious, selected in points if malicious == 0} == {1, 6, 10}
    assert {selected for malicious, selected in points if malicious == 7} == {1, 2, 3}
    assert {malicious for malicious, _ in points} == {0, 4, 7}


def test_the_grid_is_exhausted() -> None:
    """Krum's f = 0 … 7, Bulyan's 1; of FedAvgM the server rates 0.1, 0.8, 1.5 and the momenta 0, 0.495, 0.99."""
    space = space_of(COHORT, kinds=("fedavg", "fedavgm", "krum", "bulyan"))
    proposed = proposals(genetic.GridSearcher(task(space, grid_points=8)), budget=1000)
    krums = {spec.num_malicious_nodes for spec in proposed if isinstance(spec, KrumSpec)}
    assert krums == set(range(8))
    assert {spec.num_malicious_nodes for spec in proposed if isinstance(spec, BulyanSpec)} == {1}
    nine = proposals(genetic.GridSearcher(task(space_of(COHORT, kinds=("fedavgm",)))), budget=1000)
    found = {(spec.server_learning_rate, spec.server_momentum) for spec in nine}
    assert found == {(rate, momentum) for rate in (0.1, 0.8, 1.5) for momentum in (0.0, 0.495, 0.99)}


def test_strategies_take_turns() -> None:
    """Of four strategies with free points the first four proposals are one each, the next four too."""
    space = space_of(COHORT, kinds=("fedavgm", "fedprox", "fedtrimmedavg", "qfedavg"))
    for seed in range(5):
        proposed = proposals(genetic.GridSearcher(task(space, seed)), budget=2 * BATCH)
        assert {spec.kind for spec in proposed[:BATCH]} == set(space.kinds)


def test_seeds_see_the_same_grid_in_another_order() -> None:
    """Of MultiKrum's nine points the one that selects all ten models is FedAvg, the reference."""
    space = space_of(COHORT, kinds=("multikrum", "fedadagrad"))
    first, other = (proposals(genetic.GridSearcher(task(space, seed)), budget=1000) for seed in (0, 1))
    assert {*first} == {*other}
    assert first != other
    assert sum(isinstance(spec, MultiKrumSpec) for spec in first) == 8


def test_a_grid_that_is_too_large_is_refused_with_what_would_help() -> None:
    """Six parameters of five values are 15625 points, of four 4096; four of ten values are as many as there may be."""
    own = CustomSpec.model_validate({"path": "a:B", "ranges": {f"p{i}": {"low": 0, "high": 1.5} for i in range(6)}})
    space = SearchSpace(COHORT, {own.label: own})
    with refused(ConfigurationError, key="a grid", names="search.grid_points"):
        genetic.GridSearcher(task(space, grid_points=5))
    assert genetic.GridSearcher(task(space, grid_points=4)).ask(1)
    fewer = own.model_copy(update={"ranges": {name: own.ranges[name] for name in ("p0", "p1", "p2", "p3")}})
    assert len(genetic.grid_parts(SearchSpace(COHORT, {own.label: fewer}), 10)[own.label]) == 10_000


def test_a_budget_below_the_grid_is_told(caplog: pytest.LogCaptureFixture) -> None:
    space = space_of(COHORT, kinds=("fedavgm",))
    with caplog.at_level(logging.WARNING, logger="fedscout"):
        genetic.GridSearcher(task(space, budget=9))
        assert caplog.messages == []
        genetic.GridSearcher(task(space, budget=8))
    (told,) = caplog.messages
    assert "9" in told
    assert "search.budget=8" in told


# -- A searcher that is given its first configurations obeys the laws of the searcher itself ---------------------------


FIRST = [FedAdamSpec(eta=0.3), FedProxSpec(proximal_mu=0.5), FedMedianSpec()]


class TestGeneticSearchGivenFirst(SearcherLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return genetic.GeneticSearcher(task(space, seed, FIRST))


def test_they_come_first_in_their_order_and_count_for_the_generation() -> None:
    searcher = genetic.GeneticSearcher(task(SPACE, first=FIRST))
    assert searcher.ask(BATCH) == FIRST
    searcher.tell([Trial(spec, fitness=fitness) for spec, fitness in zip(FIRST, (0.9, 0.8, 0.1), strict=True)])
    assert len(searcher.ask(BATCH)) == BATCH - len(FIRST)
    searcher.tell([Trial(spec, fitness=0.0) for spec in searcher.ask(BATCH)])
    assert {spec.kind for spec in searcher.ask(BATCH)} <= {"fedadam", "fedprox"}  # children of the best two


def test_what_is_outside_the_space_a_reference_or_given_twice_is_left_out() -> None:
    given = [FedAvgSpec(), FIRST[0], FedAdamSpec(eta=7.0), FIRST[0], KrumSpec(num_malicious_nodes=99), FIRST[1]]
    assert genetic.GeneticSearcher(task(SPACE, first=given)).ask(BATCH) == FIRST[:2]


@pytest.mark.parametrize("kind", [*SEARCHERS, *ASKS_A_LANGUAGE_MODEL])
def test_every_searcher_of_the_table_can_be_given_a_first_generation(kind: str) -> None:
    space = space_of(COHORT, kinds=("fedadam",)) if kind == "cmaes" else SPACE
    first = FIRST[:1] if kind == "cmaes" else FIRST
    model = LanguageModel(PlayedChat(space), RecommenderConfig())
    searcher = new_searcher(task(space, first=first, kind=kind), model=model)
    size = getattr(searcher, "population", len(first))
    assert searcher.ask(len(first)) == first[:size]


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
        return genetic.RandomSearcher(task(space, seed))


def test_results_do_not_matter() -> None:
    space = space_of(COHORT)
    indifferent = proposals(genetic.RandomSearcher(task(space, 1)), lambda spec: Trial(spec, fitness=0.5), budget=20)
    assert proposals(genetic.RandomSearcher(task(space, 1)), budget=20) == indifferent
