"""Random search: the laws of every searcher, and that it does not learn."""

from __future__ import annotations

from fedscout.engine.trials.record import Trial
from fedscout.search.searcher import Searcher
from fedscout.search.searchers.genetic import RandomSearcher
from fedscout.strategies import SearchSpace, space_of
from tests.search.searcher_conformance import COHORT, GenerationalLaws, proposals, task


class TestRandomSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return RandomSearcher(task(space, seed))


def test_results_do_not_matter() -> None:
    space = space_of(COHORT)
    indifferent = proposals(RandomSearcher(task(space, 1)), lambda spec: Trial(spec, fitness=0.5), budget=20)
    assert proposals(RandomSearcher(task(space, 1)), budget=20) == indifferent
