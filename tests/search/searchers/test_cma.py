"""CMA-ES: the laws of every searcher, the package beside it, and the spaces that it refuses."""

from __future__ import annotations

import numpy as np
import pytest
from cmaes import CMA

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.search.searcher import Searcher
from fedscout.search.searchers.optuna import CmaEsSearcher
from fedscout.strategies import ChoiceRange, FedAdamSpec, RealRange, SearchSpace, StrategySpec, space_of
from tests.kits.refusals import refused
from tests.search.searcher_conformance import (
    BATCH,
    COHORT,
    GenerationalLaws,
    client_space,
    proposals,
    some_fitness,
    task,
    trials,
)

ADAM = space_of(COHORT, kinds=("fedadam",))


class TestCmaEsSearcher(GenerationalLaws):
    def make(self, space: SearchSpace, seed: int) -> Searcher:
        return CmaEsSearcher(task(space, seed))

    @pytest.fixture
    def space(self) -> SearchSpace:
        return ADAM

    def small_space(self) -> tuple[SearchSpace, int]:
        """Among four, a trimmed mean drops one at each end, which is the median, or nobody, which is a twin."""
        return self.space_with_twins(), 1

    def space_with_twins(self) -> SearchSpace:
        return space_of(Cohort(num_clients=4, num_sampled=4, client_learning_rate=0.2), kinds=("fedtrimmedavg",))

    def odd_spaces(self) -> list[SearchSpace]:
        rates = {"client_learning_rate": RealRange(0.01, 1.0, log=True)}
        return [space_of(COHORT, kinds=("fedprox",)), space_of(COHORT, kinds=("fedavg",), client_ranges=rates)]

    def test_a_space_of_the_reference_alone_has_nothing_to_propose(self) -> None:
        with refused(ConfigurationError, key="search.kind"):
            self.make(space_of(COHORT, kinds=("fedavg",)), 0)


# Beside the package on its own.


def places_of(spec: StrategySpec) -> np.ndarray:
    values = spec.search_values()
    return np.array([found.to_unit(values[name]) for name, found in ADAM.parameters_of("fedadam").items()])  # type: ignore[union-attr]


def test_the_package_is_told_where_each_configuration_was_evaluated_and_its_rank() -> None:
    """The mean is that of the package's own optimizer, told the same points."""
    searcher = CmaEsSearcher(task(ADAM, 1))
    found = list(trials(searcher, peak, budget=3 * BATCH))
    optimizer = CMA(np.full(4, 0.5), 0.3, population_size=BATCH)
    for start in range(0, 3 * BATCH, BATCH):
        optimizer.tell([(places_of(each.spec), -each.fitness) for each in found[start : start + BATCH]])
    assert searcher.told(found).mean == pytest.approx(optimizer.mean)


@pytest.mark.parametrize("population", [2, 3, 4, 10, 40])
@pytest.mark.parametrize("kind", ["fedprox", "fedavgm", "fedadam"])
def test_any_population_learns_in_any_number_of_dimensions(kind: str, population: int) -> None:
    """One, two and four parameters; generations of two and three have a single parent."""
    searcher = CmaEsSearcher(task(space_of(COHORT, kinds=(kind,)), generation_size=population))
    found = list(trials(searcher, some_fitness, budget=3 * population, batch=population))
    mean = searcher.told(found).mean
    assert np.isfinite(mean).all()
    assert (mean != 0.5).all()


# The searcher.


def peak(spec: StrategySpec) -> Trial:
    """Highest where all places are 0.8."""
    assert isinstance(spec, FedAdamSpec)
    return Trial(spec, fitness=1 - float(np.mean((places_of(spec) - 0.8) ** 2)))


def test_only_the_order_of_fitness_matters() -> None:
    """CMA-ES is invariant to monotone transformations of fitness."""
    bent = proposals(CmaEsSearcher(task(ADAM, 2)), lambda spec: Trial(spec, fitness=peak(spec).fitness ** 9), budget=24)
    assert proposals(CmaEsSearcher(task(ADAM, 2)), peak, budget=24) == bent


def test_the_first_draws_are_around_the_middle() -> None:
    """Standard deviations of 0.3, of which the cube cuts off what is beyond 0.5.

    The variance of a normal distribution cut at ±a standard deviations is 1 − 2aφ(a)/(2Φ(a) − 1): with a = 5/3 it is
    1 − 2·1.667·0.0995/0.9044 = 0.633. Of 400 places, means differ by at most 5 standard errors.
    """
    places = np.concatenate([places_of(spec) for spec in CmaEsSearcher(task(ADAM, generation_size=100)).ask(100)])
    assert abs(places.mean() - 0.5) < 5 * 0.3 / 20
    assert places.std() == pytest.approx(0.3 * np.sqrt(0.633), rel=5 / np.sqrt(2 * 400))


@pytest.mark.parametrize(
    "space",
    [
        space_of(COHORT, kinds=("fedadam", "fedyogi")),
        space_of(COHORT, kinds=("multikrum",)),
        space_of(COHORT, kinds=("fedmedian",)),
        client_space(),
        space_of(COHORT, kinds=("fedadam",), client_ranges={"selection": ChoiceRange(("random", "oort"))}),
    ],
)
def test_other_spaces_are_refused_with_what_would_help(space: SearchSpace) -> None:
    with refused(ConfigurationError, key="search.kind"):
        CmaEsSearcher(task(space))


def test_faults_of_space_and_generation_are_told_at_once() -> None:
    with refused(ConfigurationError, key="search.generation_size", given=1) as caught:
        CmaEsSearcher(task(space_of(COHORT), generation_size=1))
    assert caught.value.keys == ("search.kind", "search.generation_size")
