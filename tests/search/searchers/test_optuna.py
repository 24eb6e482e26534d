"""Searchers that learn by Optuna's samplers, and CMA-ES, beside the laws of every searcher."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from cmaes import CMA
from optuna import create_study
from optuna.distributions import FloatDistribution
from optuna.logging import get_verbosity
from optuna.trial import FixedTrial, create_trial

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.trials.record import Trial
from fedscout.search.searchers import optuna
from fedscout.strategies import ChoiceRange, CustomSpec, FedAdamSpec, IntegerRange, RealRange, SearchSpace, StrategySpec
from fedscout.strategies.methods.averaging import FedProxSpec
from tests.commands import ran_python
from tests.kits.refusals import refused
from tests.search import searcher_conformance as kit

SPACE = kit.space_with()


class TestTPESearcher(kit.GenerationalLaws, kind="tpe"):
    pass


@pytest.mark.slow
class TestGPSearcher(kit.GenerationalLaws, kind="gp"):
    pass


# Coordinates.


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("space", [SPACE, kit.user_space(), kit.client_space()])
def test_a_configuration_survives_the_way_to_optuna_and_back(space: SearchSpace, padded: bool) -> None:
    coordinates = optuna.Coordinates(space, padded)
    generator = np.random.default_rng(0)
    for _ in range(200):
        spec = space.random(generator)
        encoded = coordinates.encode(spec)
        assert set(encoded) <= set(coordinates.distributions)
        assert set(encoded) == set(coordinates.distributions) or not padded
        assert coordinates.decode(FixedTrial(encoded)) == spec


def test_a_trial_has_the_parameters_of_its_strategy_or_padded_those_of_all_shared_by_name() -> None:
    """η of FedAdam and of FedYogi is one coordinate; 0.01 and 0.1 are in the middle of [1e-4, 1] and [0.01, 1]."""
    tree = optuna.Coordinates(SPACE)
    assert tree.encode(FedProxSpec(proximal_mu=0.01)) == {
        "strategy": "fedprox",
        "fedprox.proximal_mu": pytest.approx(0.5),
    }
    clients = set(optuna.Coordinates(kit.client_space()).distributions)
    assert clients == {"strategy", "fedprox.proximal_mu", "client_learning_rate", "client_local_epochs"}
    padded = optuna.Coordinates(kit.space_with("fedadam", "fedyogi", "fedprox"), padded=True)
    assert set(padded.distributions) == {"strategy", "eta", "tau", "beta_1", "beta_2", "proximal_mu"}
    encoded = padded.encode(FedAdamSpec(eta=1.0))
    assert (encoded["eta"], encoded["proximal_mu"]) == (1.0, 0.5)


def test_what_lies_outside_the_space_is_moved_to_its_border_or_left_out() -> None:
    coordinates = optuna.Coordinates(kit.space_with("fedadam"))
    assert coordinates.encode(FedAdamSpec(eta=30))["fedadam.eta"] == 1.0
    assert coordinates.encode(FedProxSpec()) is None
    own = CustomSpec.model_validate({"path": "a:B", "ranges": {"mode": {"choices": ["x", "y"]}}})
    users = optuna.Coordinates(SearchSpace(kit.COHORT, {own.label: own}))
    assert users.encode(own.with_values({"mode": "z"})) is None
    assert users.encode(own) is None
    assert users.encode(own.with_values({"mode": "y"})) == {"strategy": "a:B", "a:B.mode": "y"}


@pytest.mark.parametrize("found", [IntegerRange(0, 7), IntegerRange(3, 3), IntegerRange(1, 2)])
def test_each_integer_has_a_cell_of_equal_width(found: IntegerRange) -> None:
    places = (np.arange(100 * found.num_values) + 0.5) / (100 * found.num_values)
    counts = Counter(optuna.from_place(found, float(place)) for place in places)
    assert counts == dict.fromkeys(range(found.low, found.high + 1), 100)
    middles = [optuna.to_place(found, value) for value in range(found.low, found.high + 1)]
    assert middles == pytest.approx([(index + 0.5) / found.num_values for index in range(found.num_values)])


# Optuna's samplers.


@pytest.fixture(params=["tpe", pytest.param("gp", marks=pytest.mark.slow)])
def make(request: pytest.FixtureRequest) -> Callable[..., Any]:
    return lambda budget=kit.BUDGET, seed=0: kit.searcher_of(SPACE, seed, kind=request.param, budget=budget)


def adam_is_good(spec: StrategySpec) -> Trial:
    """FedAdam at η = 0.1 is the best, other strategies are without distinction."""
    if not isinstance(spec, FedAdamSpec):
        return Trial(spec, fitness=0.3)
    place = SPACE.parameters_of("fedadam")["eta"].to_unit(spec.eta)  # type: ignore[union-attr]
    return Trial(spec, fitness=0.9 - (place - 0.5) ** 2)


def all_but_prox_fail(spec: StrategySpec) -> Trial:
    return Trial(spec, fitness=0.5) if spec.kind == "fedprox" else kit.failing(spec)


@pytest.mark.slow
@pytest.mark.parametrize(("evaluate", "best"), [(adam_is_good, "fedadam"), (all_but_prox_fail, "fedprox")])
def test_they_learn_which_strategy_is_good(make: Callable[..., Any], evaluate: kit.Evaluate, best: str) -> None:
    """Of the last 24 trials, one in twelve would be of that strategy by chance, and 9 but once in 10⁴ studies."""
    found = kit.proposals(make(52), evaluate, budget=52)
    assert sum(spec.kind == best for spec in found[-24:]) >= 9


def test_the_first_trials_are_random_whatever_they_bring_and_until_one_goes_through(make: Callable[..., Any]) -> None:
    """Two generations before the sampler learns; the third depends on what they found.

    Of 40 trials of 11 kinds one is missed with probability (10/11)^40 = 2 %, three of them next to never.
    """
    good, bad = (
        kit.proposals(make(4 * kit.BUDGET, 1), evaluate, kit.BUDGET + kit.BATCH)
        for evaluate in (adam_is_good, kit.some_fitness)
    )
    assert good[: kit.BUDGET] == bad[: kit.BUDGET]
    assert good[kit.BUDGET :] != bad[kit.BUDGET :]
    assert len({spec.kind for spec in kit.proposals(make(1), kit.failing, budget=40)}) >= 9


@pytest.mark.slow
def test_the_process_chooses_the_candidate_of_largest_expected_improvement() -> None:
    """Fitness rises along one coordinate and is flat along the other: of four corners the highest new one is chosen.

    Fails where Optuna no longer asks the private step that `CandidateSampler` replaces, or calls it otherwise.
    """
    corners = {f"{x} {y}": {"x": x, "y": y} for x in (0.125, 0.875) for y in (0.125, 0.875)}
    taken = {"0.875 0.125"}
    distributions = {name: FloatDistribution(0.0, 1.0) for name in ("x", "y")}
    study = create_study(direction="maximize", sampler=optuna.CandidateSampler(0, lambda: corners, taken))
    for x in (0.0, 0.25, 0.5, 0.75):
        for y in (0.0, 0.5, 1.0):
            study.add_trial(create_trial(params={"x": x, "y": y}, distributions=distributions, value=x))
    assert study.ask(distributions).params == corners["0.875 0.875"]
    taken |= {*corners} - {"0.125 0.125"}
    assert study.ask(distributions).params == corners["0.125 0.125"]


@pytest.mark.slow
def test_optuna_is_imported_when_a_search_begins() -> None:
    code = "import fedscout.search.study, sys; assert not {'optuna', 'torch', 'scipy'} & {*sys.modules}"
    done = ran_python("-c", code, timeout=60)
    assert done.returncode == 0, done.stderr


def test_optuna_keeps_silent_and_as_it_was(
    make: Callable[..., Any], capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    verbosity = get_verbosity()
    with caplog.at_level(logging.INFO):
        kit.proposals(make())
    assert capfd.readouterr() == ("", "")
    assert caplog.messages == []
    assert get_verbosity() == verbosity


# -- CMA-ES: the package beside it, and the spaces that it refuses -----------------------------------------------------


ADAM = kit.space_with("fedadam")


def cma_es(space: SearchSpace = ADAM, seed: int = 0, **settings: int) -> Any:
    return kit.searcher_of(space, seed, kind="cmaes", **settings)


class TestCmaEsSearcher(kit.GenerationalLaws, kind="cmaes"):
    @pytest.fixture
    def space(self) -> SearchSpace:
        return ADAM

    def small_space(self) -> tuple[SearchSpace, int]:
        """Among four, a trimmed mean drops one at each end, which is the median, or nobody, which is a twin."""
        return self.space_with_twins(), 1

    def space_with_twins(self) -> SearchSpace:
        return kit.space_with("fedtrimmedavg", cohort=kit.FOUR_CLIENTS)

    def odd_spaces(self) -> list[SearchSpace]:
        rates = {"client_learning_rate": RealRange(0.01, 1.0, log=True)}
        return [kit.space_with("fedprox"), kit.space_with("fedavg", client_ranges=rates)]

    def test_a_space_of_the_reference_alone_has_nothing_to_propose(self) -> None:
        with refused(ConfigurationError, key="search.kind"):
            cma_es(kit.space_with("fedavg"))


def places_of(spec: StrategySpec) -> np.ndarray:
    values = spec.search_values()
    return np.array([found.to_unit(values[name]) for name, found in ADAM.parameters_of("fedadam").items()])  # type: ignore[union-attr]


def peak(spec: StrategySpec) -> Trial:
    """Highest where all places are 0.8."""
    return Trial(spec, fitness=1 - float(np.mean((places_of(spec) - 0.8) ** 2)))


def test_the_package_is_told_where_each_configuration_was_evaluated_and_its_rank() -> None:
    """The mean is that of the package's own optimizer, told the same points."""
    searcher = cma_es(seed=1)
    found = list(kit.trials(searcher, peak, budget=3 * kit.BATCH))
    optimizer = CMA(np.full(4, 0.5), 0.3, population_size=kit.BATCH)
    for start in range(0, 3 * kit.BATCH, kit.BATCH):
        optimizer.tell([(places_of(each.spec), -each.fitness) for each in found[start : start + kit.BATCH]])
    assert searcher.optimizer_after(found).mean == pytest.approx(optimizer.mean)


@pytest.mark.parametrize("population", [2, 3, 4, 10, 40])
@pytest.mark.parametrize("kind", ["fedprox", "fedavgm", "fedadam"])
def test_any_population_learns_in_any_number_of_dimensions(kind: str, population: int) -> None:
    """One, two and four parameters; generations of two and three have a single parent."""
    searcher = cma_es(kit.space_with(kind), generation_size=population)
    mean = searcher.optimizer_after(list(kit.trials(searcher, budget=3 * population, batch=population))).mean
    assert np.isfinite(mean).all()
    assert (mean != 0.5).all()


def test_the_first_draws_are_around_the_middle() -> None:
    """Standard deviations of 0.3, of which the cube cuts off what is beyond 0.5.

    The variance of a normal distribution cut at ±a standard deviations is 1 − 2aφ(a)/(2Φ(a) − 1): with a = 5/3 it is
    1 − 2·1.667·0.0995/0.9044 = 0.633. Of 400 places, means differ by at most 5 standard errors.
    """
    places = np.concatenate([places_of(spec) for spec in cma_es(generation_size=100).ask(100)])
    assert abs(places.mean() - 0.5) < 5 * 0.3 / 20
    assert places.std() == pytest.approx(0.3 * np.sqrt(0.633), rel=5 / np.sqrt(2 * 400))


@pytest.mark.parametrize(
    "space",
    [
        kit.space_with("fedadam", "fedyogi"),
        kit.space_with("multikrum"),
        kit.space_with("fedmedian"),
        kit.client_space(),
        kit.space_with("fedadam", client_ranges={"selection": ChoiceRange(("random", "oort"))}),
    ],
)
def test_other_spaces_and_generations_of_one_are_refused_with_what_would_help(space: SearchSpace) -> None:
    with refused(ConfigurationError, key="search.generation_size", given=1) as caught:
        cma_es(space, generation_size=1)
    assert caught.value.keys == ("search.kind", "search.generation_size")
