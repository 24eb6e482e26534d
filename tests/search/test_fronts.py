"""Two objectives: the front by hand, that model-based searchers look for it, and what makes none."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.search.config import RacingConfig, SearchConfig
from fedscout.search.ledger import front_of
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.genetic import GeneticSearcher, crowded_ranking, crowding_distances
from fedscout.search.searchers.optuna import GPSearcher, OptunaSearcher, TPESearcher
from fedscout.search.searchers.racing import RacingSearcher
from fedscout.strategies import FedAvgSpec, FedProxSpec, space_of

PROX = space_of(Cohort(4, 4, 0.1), ("fedprox",))
POINTS = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12)


def trials(points: list[tuple[float, float]]) -> list[Trial]:
    return [
        Trial(FedAvgSpec(), trial=number, fitness=float(first), objectives=(float(first), float(second)))
        for number, (first, second) in enumerate(points)
    ]


def test_the_front_by_hand() -> None:
    """(3, 1), (2, 2) and (1, 3) beat (2, 1) and (1, 1); of two equal ones the earlier stands for both."""
    found = front_of(trials([(1, 1), (2, 2), (1, 3), (2, 1), (3, 1), (2, 2)]))
    assert [one.objectives for one in found] == [(3, 1), (2, 2), (1, 3)]
    assert [one.trial for one in found] == [4, 1, 2]


@given(POINTS)
def test_everything_else_is_beaten_by_one_of_the_front_and_nobody_of_it_is(points: list[tuple[int, int]]) -> None:
    front = [one.objectives or () for one in front_of(trials(points))]

    def dominates(ours: Any, theirs: Any) -> bool:
        return ours != theirs and all(our >= their for our, their in zip(ours, theirs, strict=True))

    assert not any(dominates(one, other) for one in front for other in front)
    assert all(point in front or any(dominates(one, point) for one in front) for point in points)
    assert len(set(front)) == len(front)


def test_failed_and_short_trials_and_those_of_one_objective_are_on_no_front() -> None:
    (one,) = trials([(1, 1)])
    others = [
        Trial(FedAvgSpec(), trial=1, fitness=9.0),
        Trial(FedAvgSpec(), trial=2, status="failed", error="why", objectives=(0.0, 0.0)),
        Trial(FedAvgSpec(), asked_rounds=2, trial=3, fitness=9.0, objectives=(9.0, 9.0)),
    ]
    assert front_of([*others, one]) == [one]


def test_the_order_of_two_fronts_by_hand() -> None:
    """Four of the first front, whose ends are first; of its others (3, 4) is 4/5 + 3/4 apart, (1, 5) 3/5 + 3/4.

    Then what only they beat, the lonelier of two; then what failed.
    """
    points = [(0, 7), (1, 5), (3, 4), (5, 1), (0, 5), (2, 4), (3, 1)]
    told = [replace(one, spec=FedProxSpec(proximal_mu=0.01 * (1 + place))) for place, one in enumerate(trials(points))]
    lost = Trial(FedProxSpec(proximal_mu=0.5), status="failed", error="why", objectives=(9.0, 9.0))
    found = [trial.objectives for trial in crowded_ranking([lost, *told], PROX)]
    assert {*found[:2]} == {(0, 7), (5, 1)}
    assert found[2:4] == [(3, 4), (1, 5)]
    assert {*found[4:6]} == {(0, 5), (3, 1)}
    assert found[6:] == [(2, 4), (9, 9)]
    assert crowded_ranking([*reversed(told), lost], PROX) == crowded_ranking([lost, *told], PROX)


def test_an_objective_that_is_the_same_for_all_tells_nobody_apart() -> None:
    assert crowding_distances([(1.0, 2.0)] * 3).tolist() == [0, 0, 0]


def two_ends(spec: FedProxSpec, **fields: Any) -> Trial:
    """By one objective a large μ is better, by the other a small one; the middle is worse by both."""
    place = PROX.parameters_of("fedprox", {})["proximal_mu"].to_unit(spec.proximal_mu)  # type: ignore[union-attr]
    middle = 1 - abs(2 * place - 1)
    values = (place - 2 * middle, 1 - place - 2 * middle)
    return Trial(spec, fitness=values[0], objectives=values, **fields)


@pytest.mark.stress
@pytest.mark.parametrize(("kind", "searcher_class", "budget"), [("tpe", TPESearcher, 60), ("gp", GPSearcher, 24)])
def test_they_look_where_the_front_is(kind: str, searcher_class: type[OptunaSearcher], budget: int) -> None:
    """Both ends are tried, and the middle is left alone."""
    settings = SearchConfig(kind=kind, budget=budget, generation_size=4, objective=("accuracy", "worst_clients"))
    searcher = searcher_class(SearchTask(PROX, 3, settings))
    tried: list[Trial] = []
    while len(tried) < budget and (specs := searcher.ask(budget - len(tried))):
        new = [two_ends(spec, trial=len(tried) + place) for place, spec in enumerate(specs)]
        searcher.tell(new)
        tried += new
    late = [trial.objectives for trial in tried[budget // 2 :] if trial.objectives]
    assert sum(sum(values) > -1 for values in late) > 0.6 * len(late)  # 1 − 4 · middle: at random a half
    assert {values[0] > values[1] for values in late} == {True, False}


def test_a_race_keeps_both_ends_of_a_front() -> None:
    """By the first objective alone the other end would never be trained in full."""
    settings = SearchConfig(
        kind="racing", objective=("accuracy", "worst_clients"), racing=RacingConfig(trainings=6, brackets=1)
    )
    searcher = RacingSearcher(SearchTask(PROX, 3, settings, num_rounds=27))
    ends: dict[int | None, list[float]] = {}
    while plan := searcher.plan(100):
        for proposal in plan:
            ends.setdefault(proposal.num_rounds, []).append(proposal.spec.proximal_mu)
            searcher.tell([two_ends(proposal.spec, asked_rounds=proposal.num_rounds)])
    first, *_, last = ends.values()
    assert len(last) < len(first) / 4
    assert (min(last), max(last)) == (min(first), max(first))


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


def test_a_list_of_one_is_that_one() -> None:
    assert SearchConfig(objective=["accuracy"]) == SearchConfig()  # type: ignore[arg-type]
