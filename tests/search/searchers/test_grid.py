"""The grid: which points it has, in which order, and the laws of every searcher."""

from __future__ import annotations

import logging

import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.search.searcher import Searcher
from fedscout.search.searchers.genetic import GridSearcher, grid_values, range_points
from fedscout.strategies import (
    BulyanSpec,
    ChoiceRange,
    CustomSpec,
    FedAvgMSpec,
    IntegerRange,
    KrumSpec,
    MultiKrumSpec,
    RealRange,
    SearchSpace,
    space_of,
)
from tests.kits.refusals import refused
from tests.search.searcher_conformance import BATCH, COHORT, GenerationalLaws, client_space, proposals, task, user_space


class TestGridSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return GridSearcher(task(space, seed))

    def odd_spaces(self) -> list[SearchSpace]:
        """Those whose grid has twelve points or more."""
        return [user_space(), client_space(), space_of(COHORT, ranges="wide")]


def test_points_of_a_range() -> None:
    assert range_points(RealRange(0, 1), 3) == [0.0, 0.5, 1.0]
    assert range_points(RealRange(0.01, 1, log=True), 3) == [0.01, 0.1, 1.0]
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
