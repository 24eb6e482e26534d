"""Genetic, random and grid search beside the laws of every searcher, and what a searcher is given first."""

from __future__ import annotations

from collections import Counter
from itertools import starmap
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.record import Trial
from fedscout.search.config import SearchConfig
from fedscout.search.searcher import ranking
from fedscout.search.searchers import genetic
from fedscout.search.searchers.racing import most_trials
from fedscout.search.study import ASKS_A_LANGUAGE_MODEL, SEARCHERS
from fedscout.strategies import ChoiceRange, CustomSpec, IntegerRange, RealRange, SearchSpace, StrategySpec
from tests.kits.refusals import refused
from tests.search import searcher_conformance as kit
from tests.strategies.rounds import made

SPACE = kit.space_with()
FERTILE = kit.space_with("fedadam", "fedyogi", "fedavgm", "fedprox", "fedadagrad", "qfedavg")
ADAM, MOMENTUM, KRUM = made("fedadam"), made("fedavgm"), made("krum", num_malicious_nodes=3)
PROX, MEDIAN = made("fedprox"), made("fedmedian")
FIRST = [made("fedadam", eta=0.3), made("fedprox", proximal_mu=0.5), MEDIAN]


def each_kind(space: SearchSpace) -> list[StrategySpec]:
    generator = np.random.default_rng(5)
    return [space.compose(kind, lambda _, found: found.draw(generator)) for kind in space.kinds]


class TestGeneticSearcher(kit.GenerationalLaws):
    pass


class TestMixedGeneticSearcher(kit.GenerationalLaws, mutation_rate=0.5):
    pass


class TestExploringGeneticSearcher(kit.GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Any:
        return kit.searcher_of(space, seed, kinds=each_kind(space))


class TestGeneticSearchGivenFirst(kit.BudgetLaws):
    def make(self, space: SearchSpace, seed: int) -> Any:
        return kit.searcher_of(space, seed, FIRST)


class TestRandomSearcher(kit.GenerationalLaws, kind="random"):
    pass


class TestGridSearcher(kit.GenerationalLaws, kind="grid"):
    def odd_spaces(self) -> list[SearchSpace]:
        """Those whose grid has twelve points or more."""
        return [kit.user_space(), kit.client_space()]


# Mutation.


def near(child: StrategySpec, parent: StrategySpec) -> bool:
    """Whether a child may have come from a parent: integers within 1, reals within a tenth of their range and rounding.

    Rounding adds at most half a unit of the fourth decimal, or of the fourth significant digit: 0.001 of any range.
    """
    before, after = parent.search_values(), child.search_values()

    def is_near(name: str, found: Any) -> bool:
        if isinstance(found, IntegerRange):
            return bool(abs(after[name] - before[name]) <= 1)
        return bool(abs(found.to_unit(after[name]) - found.to_unit(before[name])) <= 0.1 + 1e-3)

    return child.label == parent.label and all(starmap(is_near, SPACE.parameters_of(child.label).items()))


@pytest.mark.parametrize("kind", [kind for kind in SPACE.kinds if SPACE.parameters_of(kind)])
def test_mutation_moves_each_parameter_by_a_small_step_of_its_range(kind: str) -> None:
    generator = np.random.default_rng(0)
    for _ in range(100):
        parent = SPACE.compose(kind, lambda _, found: found.draw(generator))
        child = genetic.mutate(parent, SPACE, generator)
        assert SPACE.contains(child)
        assert near(child, parent)


@pytest.mark.parametrize(("value", "reached"), [(3, {2, 3, 4}), (7, {6, 7})], ids=["inside", "at the end"])
def test_all_steps_of_an_integer_are_taken(value: int, reached: set[int]) -> None:
    generator, parent = np.random.default_rng(0), made("krum", num_malicious_nodes=value)
    children = [genetic.mutate(parent, SPACE, generator) for _ in range(60)]
    assert {child.search_values()["num_malicious_nodes"] for child in children} == reached


def custom(values: dict[str, Any], **ranges: dict[str, Any]) -> tuple[CustomSpec, SearchSpace]:
    own = CustomSpec.model_validate({"path": "a:B", "values": values, "ranges": ranges})
    return own, SearchSpace(kit.COHORT, {own.label: own})


def test_a_users_choice_is_drawn_anew() -> None:
    own, space = custom({"mode": "x"}, mode={"choices": ["x", "y", "z"]})
    generator = np.random.default_rng(0)
    assert {genetic.mutate(own, space, generator).values["mode"] for _ in range(60)} == {"x", "y", "z"}


def told(*evaluations: tuple[StrategySpec, float | None], space: SearchSpace = SPACE, **options: Any) -> Any:
    """Return a search that was told these fitnesses, None of a failed trial."""
    searcher = kit.searcher_of(space, **options)
    status = {True: "failed", False: "completed"}
    searcher.tell([Trial(spec, status=status[value is None], fitness=value or 0.0) for spec, value in evaluations])
    return searcher


def test_a_parent_with_a_fixed_parameter_is_mutated_in_the_others() -> None:
    """Were it passed over, children would be drawn from anywhere: ten near it but once in 10^6 times."""
    ranges = {"rate": {"low": 0.0, "high": 1.0}, "fixed": {"low": 2.5, "high": 2.5}}
    own, space = custom({"rate": 0.5, "fixed": 2.5}, **ranges)
    children = [told((own, 0.9), space=space, seed=seed, generation_size=1).ask(1)[0] for seed in range(10)]
    assert max(abs(child.search_values()["rate"] - 0.5) for child in children) <= 0.1 + 1e-3


def test_a_parent_of_two_configurations_has_the_other_one_as_its_child() -> None:
    """Among four clients f of Krum is 0 or 1; a child from anywhere would be another strategy's half of the time."""
    space = kit.space_with("fedadam", "krum", cohort=kit.FOUR_CLIENTS)
    parent = (made("krum", num_malicious_nodes=0), 0.9)
    children = [told(parent, space=space, seed=seed, generation_size=1).ask(1) for seed in range(20)]
    assert children == [[made("krum", num_malicious_nodes=1)]] * 20


@pytest.mark.parametrize(
    ("searches_clients", "options", "largest"),
    [(False, {}, 0.1), (True, {}, 0.3), (False, {"mutation_step": 0.5}, 0.5), (True, {"mutation_step": 0.05}, 0.05)],
)
def test_a_search_s_steps(searches_clients: bool, options: dict[str, float], largest: float) -> None:
    """Of 400 uniform steps the largest exceeds 95 % of the bound but with probability 0.95^400 < 1e-8."""
    rates = {"client_learning_rate": RealRange(1e-6, 1.0, log=True)} if searches_clients else None
    space = kit.space_with("fedprox", client_ranges=rates)
    parent = space.compose("fedprox", lambda _, found: found.from_unit(0.5))
    children = [
        told((parent, 0.9), space=space, seed=seed, generation_size=1, **options).ask(1)[0] for seed in range(400)
    ]
    for name, found in space.parameters_of("fedprox").items():
        values = parent.search_values()
        steps = [abs(found.to_unit(child.search_values()[name]) - found.to_unit(values[name])) for child in children]
        assert 0.95 * largest < max(steps) <= largest + 1e-3


# Generations.


@pytest.mark.parametrize("seed", range(10))
def test_every_child_comes_from_the_top_two_of_the_whole_archive(seed: int) -> None:
    """Parents of generation 3 are the best two of generations 1 and 2 together."""
    found = list(kit.trials(kit.searcher_of(FERTILE, seed), budget=12))
    for start in (kit.BATCH, 2 * kit.BATCH):
        parents = [trial.spec for trial in ranking(found[:start], FERTILE)[:2]]
        assert all(any(near(trial.spec, parent) for parent in parents) for trial in found[start : start + kit.BATCH])


def test_a_child_of_each_generation_from_the_third_on_is_of_a_kind_tried_least() -> None:
    """FedAdam alone is bred, so each of the other five kinds gets the first place of a generation in its turn."""
    given = each_kind(FERTILE)
    adams = [made("fedadam", eta=eta) for eta in (0.02, 0.1, 0.3, 0.5)]

    def adam_is_best(spec: StrategySpec) -> Trial:
        return Trial(spec, fitness=kit.some_fitness(spec).fitness / 2 + (spec.kind == "fedadam") / 2)

    bred, found = (
        kit.proposals(kit.searcher_of(FERTILE, first=adams, kinds=kinds), adam_is_best, budget=32)
        for kinds in ((), given)
    )
    assert {spec.kind for spec in bred} == {"fedadam"}
    assert found[:8] == bred[:8]
    firsts = [found[start] for start in range(8, 32, 4)]
    assert firsts == sorted(given, key=lambda spec: spec.kind == "fedadam")
    assert {spec.kind for place, spec in enumerate(found[8:]) if place % 4} == {"fedadam"}


FOUR = ((ADAM, 0.9), (MOMENTUM, 0.8), (KRUM, 0.1), (PROX, 0.2))
"""A generation, of which the first two are parents."""


def test_both_parents_are_drawn_equally_often() -> None:
    """200 children: 100 of each; 4 standard deviations of a binomial(200, 1/2) are 28."""
    kinds = Counter(spec.kind for seed in range(50) for spec in told(*FOUR, seed=seed).ask(4))
    assert set(kinds) == {"fedadam", "fedavgm"}
    assert abs(kinds["fedadam"] - 100) <= 28


def test_at_rate_zero_the_search_is_random() -> None:
    kinds = {spec.kind for seed in range(20) for spec in told(*FOUR, seed=seed, mutation_rate=0.0).ask(4)}
    assert len(kinds) >= 8  # 80 draws of 11 kinds miss four or more but once in a million times


KRUMS = [(made("krum", num_malicious_nodes=f), fitness) for f, fitness in ((3, 0.9), (2, 0.1), (4, 0.1))]


@pytest.mark.parametrize(
    ("evaluations", "kinds", "expected"),
    [
        ([(MEDIAN, 0.9), (ADAM, 0.8), (KRUM, 0.1), (MOMENTUM, 0.2)], (), {"fedadam"}),
        ([*KRUMS, (ADAM, 0.8)], (), {"fedadam"}),
        ([(MEDIAN, 0.9), (ADAM, 0.1)], ("fedmedian", "krum"), {"krum"}),
        ([(ADAM, 0.9), (PROX, 0.8), (MOMENTUM, 0.1), (KRUM, 0.2)], ("fedprox", "fedavgm"), {"fedprox"}),
        ([(ADAM, None), (MOMENTUM, None)], (), {"fedadam", "fedavgm"}),
    ],
    ids=["without parameters", "both neighbours evaluated", "both exhausted: at random", "outside the space", "failed"],
)
def test_parents_of_the_last_resort(
    evaluations: list[tuple[StrategySpec, float | None]], kinds: tuple[str, ...], expected: set[str]
) -> None:
    searcher = told(*evaluations, space=kit.space_with(*kinds), generation_size=len(evaluations))
    assert {spec.kind for spec in searcher.ask(len(evaluations))} <= expected


def test_a_search_by_a_model_begins_with_a_quarter_of_its_budget() -> None:
    """A generation at least, and ten at most."""
    expected = {(8, 4): 4, (32, 4): 8, (400, 4): 10, (8, 20): 10}
    assert {case: genetic.num_random(*case) for case in expected} == expected


# The grid.


def test_points_of_a_range() -> None:
    expected: dict[Any, list[Any]] = {
        (RealRange(0, 1), 3): [0.0, 0.5, 1.0],
        (RealRange(0.01, 1, log=True), 3): [0.01, 0.1, 1.0],
        (RealRange(0, 1), 1): [0.5],
        (RealRange(2.5, 2.5), 3): [2.5],
        (IntegerRange(0, 2), 5): [0, 1, 2],
        (ChoiceRange(("a", "b", "c", "d")), 2): ["a", "b", "c", "d"],
    }
    assert {case: genetic.range_points(*case) for case in expected} == expected


def test_the_grid_is_exhausted_a_dependent_range_is_divided_for_each_value_and_seeds_shuffle_it() -> None:
    """Among ten clients MultiKrum's f is 0, 4 or 7, of 1 … 10 − f models; f = 0 with all ten is FedAvg, the reference.

    FedAvgM's server rates are 0.1, 0.8 and 1.5, its momenta 0, 0.495 and 0.99; the median is one point.
    """
    space = kit.space_with("fedavg", "fedavgm", "multikrum", "fedmedian")
    first, other = (kit.proposals(kit.searcher_of(space, seed, kind="grid"), budget=1000) for seed in (0, 1))
    krums = {(0, 1), (0, 6), (4, 1), (4, 4), (4, 6), (7, 1), (7, 2), (7, 3)}
    momenta = {(rate, momentum) for rate in (0.1, 0.8, 1.5) for momentum in (0.0, 0.495, 0.99)}
    assert {tuple(spec.search_values().values()) for spec in first} == {*krums, *momenta, ()}
    assert len(first) == 18
    assert {*first} == {*other}
    assert first != other


def test_strategies_take_turns() -> None:
    """Of four strategies with free points the first four proposals are one each, the next four too."""
    space = kit.space_with("fedavgm", "fedprox", "fedtrimmedavg", "qfedavg")
    for seed in range(5):
        proposed = kit.proposals(kit.searcher_of(space, seed, kind="grid"), budget=2 * kit.BATCH)
        assert (
            {spec.kind for spec in proposed[: kit.BATCH]}
            == {spec.kind for spec in proposed[kit.BATCH :]}
            == {*space.kinds}
        )


def test_a_grid_that_is_too_large_is_refused_with_what_would_help() -> None:
    """73 times 137 points are one more than there may be; four parameters of ten values are as many."""
    _, larger = custom({}, a={"choices": [*range(73)]}, b={"choices": [*range(137)]})
    _, largest = custom({}, **{f"p{i}": {"low": 0, "high": 1.5} for i in range(4)})
    with refused(ConfigurationError, key="a grid", names="search.grid_points"):
        kit.searcher_of(larger, kind="grid")
    assert len(genetic.grid_parts(largest, 10)["a:B"]) == 10_000


def test_a_budget_below_the_grid_is_told(caplog: pytest.LogCaptureFixture) -> None:
    for budget in (9, 8):
        kit.searcher_of(kit.space_with("fedavgm"), kind="grid", budget=budget)
    (warning,) = caplog.records
    assert warning.args == (9, 8)


# What is given first, and the one answer, which is trained once.


def test_what_is_given_comes_first_in_its_order_and_counts_for_the_generation() -> None:
    searcher = kit.searcher_of(SPACE, first=FIRST)
    assert searcher.ask(kit.BATCH) == FIRST
    searcher.tell([Trial(spec, fitness=fitness) for spec, fitness in zip(FIRST, (0.9, 0.8, 0.1), strict=True)])
    assert len(searcher.ask(kit.BATCH)) == kit.BATCH - len(FIRST)
    searcher.tell([Trial(spec, fitness=0.0) for spec in searcher.ask(kit.BATCH)])
    assert {spec.kind for spec in searcher.ask(kit.BATCH)} <= {"fedadam", "fedprox"}  # children of the best two


def test_what_is_outside_the_space_a_reference_or_given_twice_is_left_out() -> None:
    outside = made("fedadam", eta=7.0), made("krum", num_malicious_nodes=99)
    given = [made("fedavg"), FIRST[0], outside[0], FIRST[0], outside[1], FIRST[1]]
    assert kit.searcher_of(SPACE, first=given).ask(kit.BATCH) == FIRST[:2]


@pytest.mark.parametrize("kind", [*SEARCHERS, *ASKS_A_LANGUAGE_MODEL])
def test_every_searcher_of_the_table_can_be_given_a_first_generation(kind: str) -> None:
    space, first = (kit.space_with("fedadam"), FIRST[:1]) if kind == "cmaes" else (SPACE, FIRST)
    searcher = kit.searcher_of(space, first=first, kind=kind)
    assert searcher.ask(len(first)) == first[: getattr(searcher, "population", len(first))]


def test_the_one_answer_is_proposed_until_it_is_told_and_nothing_after_it() -> None:
    """FedAvg, or what is the same, is trained anyway."""
    searcher = kit.searcher_of(SPACE, first=[FIRST[1], MEDIAN], kind="one_shot")
    assert searcher.ask(8) == searcher.ask(8) == [FIRST[1]]
    searcher.tell([Trial(FIRST[1], status="failed", error="no")])
    assert searcher.ask(8) == []
    assert searcher.archive.searched[0].spec == FIRST[1]
    assert kit.searcher_of(SPACE, first=[made("fedprox", proximal_mu=0.0)], kind="one_shot").ask(1) == []
    with refused(ConfigurationError, key="search.kind"):
        kit.searcher_of(SPACE, kind="one_shot")


def test_one_trial_is_planned_whatever_the_budget() -> None:
    one_shot = SearchConfig(kind="one_shot", budget=50)
    assert most_trials(one_shot, num_rounds=30) == (1, 0)
    assert (one_shot.trials_at_once, SearchConfig().trials_at_once) == (1, SearchConfig().generation_size)
