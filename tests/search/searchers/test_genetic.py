"""Laws of the genetic search, beside those of every searcher."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.search.config import SearchConfig
from fedscout.search.searcher import Searcher, SearchTask, ranking
from fedscout.search.searchers.genetic import GeneticSearcher, crowded_ranking, crowding_distances, mutate
from fedscout.strategies import (
    BUILT_IN_KINDS,
    ChoiceRange,
    CustomSpec,
    FedAdamSpec,
    FedAvgMSpec,
    FedMedianSpec,
    FedProxSpec,
    IntegerRange,
    KrumSpec,
    RealRange,
    SearchSpace,
    StrategySpec,
    space_of,
)
from tests.search.searcher_conformance import (
    BATCH,
    BUDGET,
    COHORT,
    GenerationalLaws,
    proposals,
    some_fitness,
    task,
    trials,
)
from tests.search.test_objective import PROX
from tests.search.test_objective import trials as scored_twice

SPACE = space_of(COHORT)


class TestGeneticSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return GeneticSearcher(task(space, seed))


class TestMixedGeneticSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return GeneticSearcher(task(space, seed, mutation_rate=0.5))


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN_KINDS if SPACE.parameters_of(kind)])
def test_mutation_moves_each_parameter_by_a_small_step_of_its_range(kind: str) -> None:
    """Integers by at most 1; reals by at most a tenth of their range, in log space if log-scaled, but for rounding.

    Rounding adds at most half a unit of the fourth decimal, or of the fourth significant digit (5e-4 relatively).
    """
    generator = np.random.default_rng(0)
    for _ in range(100):
        parent = SPACE.compose(kind, lambda _, found: found.draw(generator))
        child = mutate(parent, SPACE, generator)
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


def test_all_steps_of_an_integer_are_taken() -> None:
    generator = np.random.default_rng(0)
    parent = KrumSpec(num_malicious_nodes=3)
    steps = {mutate(parent, SPACE, generator).search_values()["num_malicious_nodes"] for _ in range(60)}
    assert steps == {2, 3, 4}
    at_the_end = KrumSpec(num_malicious_nodes=7)
    assert {mutate(at_the_end, SPACE, generator).search_values()["num_malicious_nodes"] for _ in range(60)} == {6, 7}


def test_a_users_choice_is_drawn_anew() -> None:
    own = CustomSpec.model_validate(
        {"path": "a:B", "values": {"mode": "x"}, "ranges": {"mode": {"choices": ["x", "y", "z"]}}}
    )
    space = SearchSpace(COHORT, "default", {own.label: own})
    generator = np.random.default_rng(0)
    assert {mutate(own, space, generator).values["mode"] for _ in range(60)} == {"x", "y", "z"}


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
    searcher = GeneticSearcher(task(FERTILE, seed))
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
        return GeneticSearcher(task(space, seed, kinds=each_kind(space)))


def test_a_child_of_each_generation_from_the_third_on_is_of_a_kind_tried_least() -> None:
    """FedAdam alone is bred, so each of the other five kinds gets the first place of a generation in its turn."""
    given = each_kind(FERTILE)
    plain, exploring = (
        GeneticSearcher(task(FERTILE, kinds=kinds, first=[FedAdamSpec(eta=eta) for eta in (0.02, 0.1, 0.3, 0.5)]))
        for kinds in ((), given)
    )

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


def told(*evaluations: tuple[StrategySpec, float], seed: int = 0, **options) -> GeneticSearcher:
    searcher = GeneticSearcher(task(options.pop("space", SPACE), seed, **options))
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
    searcher = GeneticSearcher(task(FERTILE))
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


def test_a_first_generation_may_come_from_elsewhere() -> None:
    """Three told from elsewhere leave one place in the first generation."""
    searcher = told((ADAM, 0.9), (MOMENTUM, 0.8), (KRUM, 0.1))
    (fourth,) = searcher.ask(BUDGET)
    searcher.tell([Trial(fourth, fitness=0.0)])
    assert {spec.kind for spec in searcher.ask(4)} <= {"fedadam", "fedavgm"}


def test_a_parent_from_outside_is_drawn_back_into_the_ranges() -> None:
    """FedProx(mu = 0) would be FedAvg, eta = 30 is far above the range."""
    searcher = told((FedAdamSpec(eta=30), 0.9), (FedProxSpec(proximal_mu=50), 0.8), (KRUM, 0.1), (MOMENTUM, 0.2))
    children = searcher.ask(4)
    assert {child.kind for child in children} <= {"fedadam", "fedprox"}
    assert all(SPACE.contains(child) for child in children)


@pytest.mark.parametrize("seed", range(5))
def test_where_neither_parent_has_a_free_parameter_children_are_of_another_strategy(seed: int) -> None:
    space = space_of(COHORT, kinds=("fedmedian", "fednova", "fedprox", "fedavgm"))
    bare = [kind for kind in space.kinds if not space.parameters_of(kind)]
    parents = [space.default(kind) for kind in bare]
    searcher = GeneticSearcher(task(space, seed))
    searcher.tell([Trial(spec, fitness=0.9) for spec in parents])
    searcher.tell([Trial(FedProxSpec(proximal_mu=0.01 * place), fitness=0.1) for place in range(1, 5 - len(parents))])
    children = searcher.ask(4)
    assert len(children) == 4
    assert {child.kind for child in children} <= set(space.kinds) - set(bare)


def test_a_parent_with_a_fixed_parameter_is_mutated_in_the_others() -> None:
    """Were it passed over, children would be drawn from anywhere: ten near it but once in 10^6 times."""
    ranges = {"rate": {"low": 0.0, "high": 1.0}, "fixed": {"low": 2.5, "high": 2.5}}
    own = CustomSpec.model_validate({"path": "a:B", "values": {"rate": 0.5, "fixed": 2.5}, "ranges": ranges})
    space = SearchSpace(COHORT, "default", {own.label: own})
    children = [told((own, 0.9), space=space, seed=seed, generation_size=1).ask(1)[0] for seed in range(10)]
    assert max(abs(child.search_values()["rate"] - 0.5) for child in children) <= 0.1 + 1e-3


# -- Two objectives -------------------------------------------------------------------------------------------------


def test_the_order_of_two_fronts_by_hand() -> None:
    """Four of the first front, whose ends are first; of its others (3, 4) is 4/5 + 3/4 apart, (1, 5) 3/5 + 3/4.

    Then what only they beat, the lonelier of two; then what failed.
    """
    points = [(0, 7), (1, 5), (3, 4), (5, 1), (0, 5), (2, 4), (3, 1)]
    told = [
        replace(one, spec=FedProxSpec(proximal_mu=0.01 * (1 + place))) for place, one in enumerate(scored_twice(points))
    ]
    lost = Trial(FedProxSpec(proximal_mu=0.5), status="failed", error="why", objectives=(9.0, 9.0))
    found = [trial.objectives for trial in crowded_ranking([lost, *told], PROX)]
    assert {*found[:2]} == {(0, 7), (5, 1)}
    assert found[2:4] == [(3, 4), (1, 5)]
    assert {*found[4:6]} == {(0, 5), (3, 1)}
    assert found[6:] == [(2, 4), (9, 9)]
    assert crowded_ranking([*reversed(told), lost], PROX) == crowded_ranking([lost, *told], PROX)


def test_an_objective_that_is_the_same_for_all_tells_nobody_apart() -> None:
    assert crowding_distances([(1.0, 2.0)] * 3).tolist() == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_genetic_search_closes_in_on_the_whole_front(seed: int) -> None:
    """Each objective wants another end of the server's rate, both the middle of its momentum: the front is a line."""
    space = space_of(Cohort(4, 4, 0.1), ("fedavgm",))
    settings = SearchConfig(budget=192, generation_size=8, objective=("accuracy", "worst_clients"))
    searcher = GeneticSearcher(SearchTask(space, seed, settings))
    drawn = space.parameters_of("fedavgm", {})
    tried: list[tuple[float, float]] = []
    while len(tried) < 192 and (specs := searcher.ask(192 - len(tried))):
        told = []
        for spec in specs:
            rate, momentum = (drawn[name].to_unit(value) for name, value in spec.search_values().items())  # type: ignore[union-attr]
            off = 2 * abs(momentum - 0.5)
            tried.append((rate, off))
            told.append(Trial(spec, fitness=rate - off, objectives=(rate - off, 1 - rate - off)))
        searcher.tell(told)
    late = tried[96:]
    assert np.mean([off for _, off in late]) < 0.25  # at random a half
    assert min(rate for rate, _ in late) < 0.2
    assert max(rate for rate, _ in late) > 0.8


def test_the_better_of_two_drawn_by_fronts_and_crowding_is_the_parent() -> None:
    """Of four the last is the better of two in 1 of 16 draws, the one before in 3; the ends of the front come first."""
    points = {ADAM: (3.0, 0.0), MOMENTUM: (0.0, 3.0), KRUM: (2.0, 2.0), FedProxSpec(): (1.0, 1.0)}
    results = [Trial(spec, fitness=values[0], objectives=values) for spec, values in points.items()]
    kinds: Counter[str] = Counter()
    for seed in range(400):
        searcher = GeneticSearcher(task(SPACE, seed, objective=["accuracy", "worst_clients"]))
        searcher.tell(results)
        kinds[searcher.ask(1)[0].kind] += 1
    assert kinds["fedprox"] / 400 == pytest.approx(1 / 16, abs=0.05)  # four standard errors
    assert kinds["krum"] / 400 == pytest.approx(3 / 16, abs=0.08)
