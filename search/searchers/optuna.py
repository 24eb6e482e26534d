"""Searches by Optuna: TPE, Gaussian process, CMA-ES.

Optuna's samplers behind ask and tell.

Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019.

Each generation is proposed by a new Optuna study in memory, to which the results of the earlier generations are told
in a fixed order, by a sampler whose seed derives from the search's seed and the generation's number. Nothing but the
archive is carried from one generation to the next, so a study can be continued anywhere. What was proposed and has no
result yet is shown to the sampler as running, at the place where it will be evaluated after rounding: the samplers
keep away from running trials, so the members of a generation differ.

Of two objectives a study has two directions. Failed trials are told with fitness 0, or the smallest if one is below: a
sampler that knew nothing of them would propose their neighbours again. Before any trial has gone through, and in the
first quarter of the budget, proposals are random. A duplicate, an equivalent of what was tried, or a twin is drawn
again and shown as running too, as are the references; after `redraws` of them the proposal is a random one.

The search space as Optuna's samplers see it.

The strategy is a categorical parameter. A number is its place in `[0, 1]`, so that log scale and rounding are those of
the space, and a range that depends on earlier parameters is the same distribution for all of them. An integer of n
values has n cells of equal width. A choice is categorical. What has one value only is not shown.

Names are `strategy` and `<strategy>.<parameter>`: a tree, as a strategy's parameters exist under it only. The clients'
parameters, which every strategy has, go by their own names.

**Padded** coordinates are for samplers that can't handle a tree: every trial has every parameter, and those of the
strategies that were not chosen are at the middle. Parameters of several strategies that have the same name share a
coordinate there, since they mean the same (the server's learning rate η of FedAdam and of FedYogi): fewer coordinates,
and what was learnt with one strategy is of use for the other.

TPE: densities of the good trials and of the others, and the configuration with the best ratio of them.

Bergstra, Bardenet, Bengio, Kégl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011; as it is built here in
Watanabe, arXiv:2304.11127. The strategy has a density of its own; the parameters of one strategy are drawn together, as
in Falkner, Klein, Hutter, "BOHB", ICML 2018, from the trials of that strategy. Running trials count as bad ones.

Of two objectives the good trials are those of the first fronts, and of the last of these as many as add most to the
volume that is dominated: Ozaki, Tanigaki, Watanabe, Nomura, Onishi, "Multiobjective Tree-Structured Parzen Estimator",
JAIR 73, 2022, as Optuna has it.

Bayesian optimisation: a Gaussian process, and the configuration of largest expected improvement.

Jones, Schonlau, Welch, "Efficient Global Optimization of Expensive Black-Box Functions", J. Global Optimization 13,
1998. The process is Optuna's: Matérn 5/2 kernel, a length scale per coordinate, log EI, and given running trials log
qEI (Ament et al., arXiv:2310.20708). It needs coordinates that every trial has, so they are padded.

Of two objectives each has a process, and what improves is the volume that the front dominates: its expected gain over
Sobol points, in logarithms (log EHVI: Daulton, Balandat, Bakshy, "Differentiable Expected Hypervolume Improvement for
Parallel Multi-Objective Bayesian Optimization", NeurIPS 2020, and Ament et al.). The best, whose neighbours are among
the candidates, are then the loneliest of the first front.

Deviation: the improvement is maximised over candidates of the space itself, random ones and neighbours of the best, not
over the cube of padded coordinates. Almost all of that cube is nowhere near a configuration: a process that has seen
the middle of a coordinate only is most uncertain off the middle, and is drawn there, where nothing is to be had.

CMA-ES over the parameters of one strategy, by the package `cmaes`.

Hansen, "The CMA Evolution Strategy: A Tutorial", arXiv:1604.00772; Nomura and Shibata, "cmaes: A Simple yet Practical
Python Library for CMA-ES", arXiv:2402.01373. Points live in the unit cube, in log space where a parameter is
log-scaled. The first generation is drawn around the cube's middle with a step of 0.3, as the tutorial advises where the
optimum is expected within the cube. A point outside the cube is drawn again, a hundred times, and then moved to its
border.

Choices of our own: a point is rounded as every configuration is, and told where it was evaluated; a duplicate or a
twin is drawn again, and a random configuration takes its place when that does not help. What is told is the rank in the
generation, failed trials last, equal fitness in the order of digests.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.seeds import integer, stream
from fedscout.engine.trials.record import Trial
from fedscout.search.searcher import SearchTask, ranking
from fedscout.search.searchers.genetic import GenerationalSearcher, best_first
from fedscout.strategies import ChoiceRange, IntegerRange, Range, RealRange, SearchSpace, StrategySpec, Value

if TYPE_CHECKING:
    from cmaes import CMA
    from numpy.typing import NDArray
    from optuna import Study
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.trial import Trial as OptunaTrial


STRATEGY = "strategy"
MIDDLE = 0.5


def to_place(parameter_range: RealRange | IntegerRange, value: Value) -> float:
    """Return the place of a number in `[0, 1]`; of an integer the middle of its cell."""
    place = parameter_range.to_unit(value)
    if isinstance(parameter_range, IntegerRange):
        return (place * (parameter_range.num_values - 1) + 0.5) / parameter_range.num_values
    return place


def from_place(parameter_range: RealRange | IntegerRange, place: float) -> Value:
    """Return the number at a place in `[0, 1]`."""
    if isinstance(parameter_range, IntegerRange) and parameter_range.num_values > 1:
        return parameter_range.from_unit((place * parameter_range.num_values - 0.5) / (parameter_range.num_values - 1))
    return parameter_range.from_unit(place)


class Coordinates:
    """Maps configurations to Optuna's parameters and back.

    Args:
        space: The space.
        padded: Whether every trial has every parameter.

    Attributes:
        distributions: Of every parameter that a trial may have.
    """

    def __init__(self, space: SearchSpace, padded: bool = False) -> None:
        from optuna.distributions import CategoricalDistribution

        self.space = space
        self.padded = padded
        self.distributions: dict[str, BaseDistribution] = {STRATEGY: CategoricalDistribution(space.kinds)}
        for kind in space.kinds:
            for name, parameter_range in space.parameters_of(kind).items():
                if parameter_range.num_values != 1:
                    self.distributions[self._coordinate(kind, name, parameter_range)] = _distribution(parameter_range)

    def encode(self, spec: StrategySpec) -> dict[str, Any] | None:
        """Return a configuration as a trial's parameters; None if it lies outside the space.

        A number outside its range counts as the end of it.
        """
        if spec.label not in self.space.kinds:
            return None
        values = spec.search_values()
        encoded: dict[str, Any] = self._middle() if self.padded else {}
        encoded[STRATEGY] = spec.label
        for name, parameter_range in self.space.parameters_of(spec.label, values).items():
            if name not in values:
                return None
            place = values[name]
            if not isinstance(parameter_range, ChoiceRange):
                place = to_place(parameter_range, place)
            elif not parameter_range.contains(place):
                return None
            coordinate = self._coordinate(spec.label, name, parameter_range)
            if coordinate in self.distributions:
                encoded[coordinate] = place
        return encoded

    def decode(self, trial: OptunaTrial) -> StrategySpec:
        """Let a trial suggest a configuration."""
        kind = str(trial.suggest_categorical(STRATEGY, self.space.kinds))

        def suggested(name: str, parameter_range: Range) -> Value:
            coordinate = self._coordinate(kind, name, parameter_range)
            shown = coordinate in self.distributions
            if isinstance(parameter_range, ChoiceRange):
                choices = parameter_range.choices
                return cast(Value, trial.suggest_categorical(coordinate, choices)) if shown else choices[0]
            return from_place(parameter_range, trial.suggest_float(coordinate, 0.0, 1.0) if shown else MIDDLE)

        return self.space.compose(kind, suggested)

    def _coordinate(self, kind: str, name: str, parameter_range: Range) -> str:
        shared = name in self.space.client_ranges or (self.padded and not isinstance(parameter_range, ChoiceRange))
        return name if shared else f"{kind}.{name}"

    def _middle(self) -> dict[str, Any]:
        from optuna.distributions import CategoricalDistribution

        return {
            name: found.choices[0] if isinstance(found, CategoricalDistribution) else MIDDLE
            for name, found in self.distributions.items()
        }


def _distribution(parameter_range: Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution

    if isinstance(parameter_range, ChoiceRange):
        return CategoricalDistribution(parameter_range.choices)
    return FloatDistribution(0.0, 1.0)


NUM_RANDOM = 10
LARGEST_SEED = 2**32


def values_of(trial: Trial) -> tuple[float, ...]:
    """Return what a study is told of a trial: its fitness, or one by each objective."""
    return (trial.fitness,) if trial.objectives is None else trial.objectives


def num_random(budget: int, population: int) -> int:
    """Return how many trials of a study are drawn at random first: a quarter, one generation at least, ten at most.

    Ten is Optuna's own number, which would leave nothing to learn of a budget of eight.
    """
    return min(NUM_RANDOM, max(population, budget // 4))


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Keep Optuna silent for the time of the block, errors apart.

    Its log and its notes on experimental features are of no use to people who did not choose them.
    """
    import optuna

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


class OptunaSearcher(GenerationalSearcher):
    """A searcher that asks one of Optuna's samplers.

    Attributes:
        padded: Whether the sampler needs every parameter in every trial; see
        `fedscout.search.searchers.optuna`.
        redraws: How often a duplicate is drawn again.
        coordinates: The space as the sampler sees it.
    """

    padded: ClassVar[bool]
    redraws: ClassVar[int]

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self._num_random = num_random(task.settings.budget, self.population)
        self.coordinates = Coordinates(task.space, self.padded)

    @abstractmethod
    def sampler(self, seed: int, earlier: Sequence[Trial], taken: set[str]) -> BaseSampler:
        """Return a new sampler.

        Args:
            seed: Of its draws.
            earlier: Results so far.
            taken: Digests that must not be proposed; more and more while the sampler is used.
        """

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield what the sampler proposes, and random configurations where that is nothing new."""
        purpose = type(self).__name__
        generator = stream(self.seed, purpose, number, 1)
        if len(earlier) < self._num_random or all(evaluation.status == "failed" for evaluation in earlier):
            while (spec := self.random_new(taken, generator)) is not None:
                yield spec
            return
        study = self._study(integer(self.seed, purpose, number, 0) % LARGEST_SEED, earlier, taken)
        while (spec := self._drawn(study, taken) or self.random_new(taken, generator)) is not None:
            self._add(study, spec)
            yield spec

    @quiet_optuna()
    def _study(self, seed: int, earlier: Sequence[Trial], taken: set[str]) -> Study:
        """Return a study that knows the earlier results."""
        import optuna

        directions = [optuna.study.StudyDirection.MAXIMIZE] * len(self.task.settings.objectives)
        study = optuna.create_study(directions=directions, sampler=self.sampler(seed, earlier, taken))
        worst = [min(0.0, *each) for each in zip(*map(values_of, earlier), strict=True)]
        for generation in self.in_generations(earlier):
            for evaluation in generation:
                self._add(study, evaluation.spec, worst if evaluation.status == "failed" else values_of(evaluation))
        for reference in self.task.references:
            self._add(study, reference)
        return study

    @quiet_optuna()
    def _drawn(self, study: Study, taken: set[str]) -> StrategySpec | None:
        """Return a configuration that is new; None if the sampler offers none."""
        from optuna.trial import TrialState

        for _ in range(1 + self.redraws):
            trial = study.ask(self.coordinates.distributions if self.padded else None)
            spec = self.coordinates.decode(trial)
            study.tell(trial, state=TrialState.FAIL)  # a draft: samplers pass over failed trials
            if self.space.digest(spec) not in taken and not self.space.is_twin(spec):
                return spec
            self._add(study, spec)
        return None

    @quiet_optuna()
    def _add(self, study: Study, spec: StrategySpec, values: Sequence[float] | None = None) -> None:
        """Add a trial: completed, or running if it has no values. What lies outside the space can't be shown."""
        from optuna.trial import TrialState, create_trial

        if (parameters := self.coordinates.encode(spec)) is None:
            return
        distributions = {name: self.coordinates.distributions[name] for name in parameters}
        state = TrialState.RUNNING if values is None else TrialState.COMPLETE
        study.add_trial(create_trial(state=state, values=values, params=parameters, distributions=distributions))


class TPESearcher(OptunaSearcher):
    """Asks Optuna's TPE sampler."""

    padded = False
    redraws = 10

    def sampler(self, seed: int, earlier: Sequence[Trial], taken: set[str]) -> BaseSampler:
        """Return the sampler, which handles the tree of strategies and their parameters."""
        from optuna.samplers import TPESampler

        return TPESampler(seed=seed, n_startup_trials=1, multivariate=True, group=True, constant_liar=True)


NUM_RANDOM_CANDIDATES = 1000
NUM_PARENTS = 4
NUM_NEIGHBOURS = 100
NEIGHBOUR_STEP = 0.1
KEPT_CHOICES = 0.8


class GPSearcher(OptunaSearcher):
    """Asks Optuna's Gaussian process about candidates."""

    padded = True
    redraws = 2

    def sampler(self, seed: int, earlier: Sequence[Trial], taken: set[str]) -> BaseSampler:
        """Return the sampler."""
        from fedscout.search.searchers.gp_sampler import CandidateGPSampler

        return CandidateGPSampler(seed, lambda: self._encoded(stream(seed, "candidates"), earlier), taken)

    def _encoded(self, generator: np.random.Generator, earlier: Sequence[Trial]) -> dict[str, Mapping[str, Any]]:
        """Return a generation's candidates as an Optuna trial's parameters, by digest."""
        candidates = (spec for spec in self._candidates(earlier, generator) if not self.space.is_twin(spec))
        distinct = {self.space.digest(spec): spec for spec in candidates}
        encoded = {digest: self.coordinates.encode(spec) for digest, spec in distinct.items()}
        return {digest: parameters for digest, parameters in encoded.items() if parameters is not None}

    def _candidates(self, earlier: Sequence[Trial], generator: np.random.Generator) -> Iterator[StrategySpec]:
        for _ in range(NUM_RANDOM_CANDIDATES):
            yield self.space.random(generator)
        known = [evaluation for evaluation in earlier if evaluation.spec.label in self.space.kinds]
        for parent in best_first(known, self.task)[:NUM_PARENTS]:
            for _ in range(NUM_NEIGHBOURS):
                yield self._neighbour(parent.spec, generator)

    def _neighbour(self, parent: StrategySpec, generator: np.random.Generator) -> StrategySpec:
        """Return a configuration near another of the same strategy."""
        values = parent.search_values()

        def moved(name: str, parameter_range: Range) -> Value:
            if name not in values:
                return parameter_range.draw(generator)
            if isinstance(parameter_range, ChoiceRange):
                keeps = generator.random() < KEPT_CHOICES and parameter_range.contains(values[name])
                return values[name] if keeps else parameter_range.draw(generator)
            step = float(generator.normal(scale=NEIGHBOUR_STEP))
            return from_place(parameter_range, to_place(parameter_range, values[name]) + step)

        return self.space.recompose(parent, moved)


SMALLEST_POPULATION = 2
FIRST_STEP = 0.3
REDRAWS = 100


def cma_faults(space: SearchSpace, population: int) -> list[str]:
    """Return why CMA-ES can't search a space with generations of a size, each fault a sentence; empty if it can."""
    faults: list[str] = []
    if reason := _unfit(space):
        faults.append(
            Fault(
                "search.kind=cmaes",
                problem=f"needs a space of {reason}",
                hint=f"name such a strategy in search.strategies, as [fedadam], {_without(space)}or choose "
                "search.kind=tpe, which takes any space",
            )
        )
    if population < SMALLEST_POPULATION:
        faults.append(
            Fault("search.generation_size", f"be at least {SMALLEST_POPULATION} for search.kind=cmaes", population)
        )
    return faults


def _unfit(space: SearchSpace) -> str | None:
    if len(space.kinds) != 1:
        return f"one strategy, got {len(space.kinds)}: {', '.join(space.kinds)}"
    (kind,) = space.kinds
    ranges = space.parameters_of(kind)
    others = [name for name, found in ranges.items() if not isinstance(found, RealRange)]
    if others:
        return f"real parameters only, got {', '.join(others)} of {kind}"
    if all(found.num_values == 1 for found in ranges.values()):
        return f"at least one free parameter, got none of {kind}"
    return None


def _without(space: SearchSpace) -> str:
    """Return which settings of clients no strategy could be named without."""
    beside = [name for name, found in space.client_ranges.items() if not isinstance(found, RealRange)]
    return f"and search for no {' or '.join(beside)}, " if beside else ""


class CmaEsSearcher(GenerationalSearcher):
    """Moves a normal distribution towards what was good; the tutorial advises generations of 4 + ⌊3 ln n⌋.

    Raises:
        ConfigurationError: If the space is not one that CMA-ES can search, or its generations are too small.
    """

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        if faults := cma_faults(task.space, self.population):
            raise ConfigurationError(faults)
        self._kind = task.space.kinds[0]
        self._ranges: dict[str, RealRange] = {
            name: found
            for name, found in task.space.parameters_of(self._kind).items()
            if isinstance(found, RealRange) and found.num_values != 1
        }

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield draws from the distribution that the earlier generations led to."""
        generator = stream(self.seed, "cma-es", number, 1)
        optimizer = self.told(earlier, integer(self.seed, "cma-es", number, 0) % LARGEST_SEED)
        while (spec := self._new(optimizer, taken) or self.random_new(taken, generator)) is not None:
            yield spec

    def told(self, earlier: Sequence[Trial], seed: int = 0) -> CMA:
        """Return the optimizer after whole generations; one with trials of other strategies teaches nothing.

        Args:
            earlier: Results so far.
            seed: Of its draws.
        """
        from cmaes import CMA

        n = len(self._ranges)
        cube = np.tile([0.0, 1.0], (n, 1))
        with np.errstate(divide="ignore"):  # of a single parent the rank-μ update has rate 0, by which it divides
            optimizer = CMA(np.full(n, 0.5), FIRST_STEP, cube, REDRAWS, seed, self.population)
        for generation in self.in_generations(earlier):
            if all(evaluation.spec.label == self._kind for evaluation in generation):
                ranked = ranking(generation, self.space)
                optimizer.tell([(self._point(told.spec), float(rank)) for rank, told in enumerate(ranked)])
        return optimizer

    def _new(self, optimizer: CMA, taken: set[str]) -> StrategySpec | None:
        for _ in range(REDRAWS):
            spec = self._spec(optimizer.ask())
            if self.space.digest(spec) not in taken and not self.space.is_twin(spec):
                return spec
        return None

    def _point(self, spec: StrategySpec) -> NDArray[np.float64]:
        values = spec.search_values()
        return np.array([found.to_unit(values[name]) for name, found in self._ranges.items()])

    def _spec(self, point: NDArray[np.float64]) -> StrategySpec:
        places = dict(zip(self._ranges, point.tolist(), strict=True))

        def chosen(name: str, parameter_range: Range) -> Value:
            assert isinstance(parameter_range, RealRange)
            return parameter_range.from_unit(places.get(name, 0.0))

        return self.space.compose(self._kind, chosen)
