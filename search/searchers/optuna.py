"""Searchers based on Optuna's samplers (TPE and Gaussian process), and CMA-ES.

**Ask and tell.** Akiba et al., "Optuna: A Next-generation Hyperparameter Optimization Framework", KDD 2019. Each
generation is proposed by a new in-memory Optuna study, to which the results of earlier generations are added in a fixed
order, by a sampler whose seed derives from the search's seed and the generation's number. No other state is carried
between generations, so a study can be resumed anywhere. Pending proposals are added as running trials at their rounded
values: samplers avoid running trials, so the members of a generation differ.

Failed trials are added with fitness 0, or the smallest fitness if that is lower; if they were omitted, the sampler
would propose their neighbours again. Before any trial succeeds, and in the first quarter of the budget, proposals are
random. A duplicate, an equivalent of an earlier configuration, or a twin is redrawn and added as running, too, as are
the references; after `redraws` attempts the proposal is random.

**Coordinates.** The strategy is a categorical parameter. A number is mapped to `[0, 1]`, so that log scale and rounding
are those of the space, and a range that depends on earlier parameters has one distribution. An integer of n values has
n cells of equal width. A choice is categorical. Parameters with a single value are omitted. Names are `strategy` and
`<strategy>.<parameter>`: a conditional (tree-structured) space, as a strategy's parameters exist under it only. The
clients' parameters, which every strategy has, keep their own names.

**Padded** coordinates are for samplers without support for conditional spaces: every trial has every parameter, and
those of other strategies are at the centre. Parameters with the same name share a coordinate, since they have the same
meaning (the server learning rate η of FedAdam and of FedYogi): this reduces the dimension and shares information
between strategies.

**TPE.** Densities of the good trials and of the others, and the configuration with the best ratio of them: Bergstra,
Bardenet, Bengio, Kégl, "Algorithms for Hyper-Parameter Optimization", NeurIPS 2011; in the variant of Watanabe,
arXiv:2304.11127. The strategy has a density of its own; the parameters of one strategy are sampled jointly, as in
Falkner, Klein, Hutter, "BOHB", ICML 2018, from the trials of that strategy. Running trials count as bad ones.

**Gaussian process.** Bayesian optimisation by expected improvement: Jones, Schonlau, Welch, "Efficient Global
Optimization of Expensive Black-Box Functions", J. Global Optimization 13, 1998. The process is Optuna's: Matérn 5/2
kernel, a length scale per coordinate, log EI, and with running trials log qEI (Ament et al., arXiv:2310.20708). It uses
padded coordinates.

Deviation: the acquisition function is maximised over candidates of the space, random ones and neighbours of the best,
not over the cube of padded coordinates. Almost all of that cube is far from any configuration: the process has only
seen the centre of a padded coordinate, is most uncertain elsewhere, and would propose points there, without any gain.
Optuna's public API does not suffice: `GPSampler` takes no candidates, `Study.enqueue_trial` evaluates candidates but
does not rank them, and the process and the acquisition function, which a custom `BaseSampler` would need, are only in
`optuna._gp`. So the step `_optimize_acqf` is overridden and calls `eval_acqf_no_grad`. Neither is stable API: the
project pins Optuna's minor version, and a test fails if either changes.

**CMA-ES** over the parameters of one strategy, by the package `cmaes`: Hansen, "The CMA Evolution Strategy: A
Tutorial", arXiv:1604.00772; Nomura and Shibata, "cmaes: A Simple yet Practical Python Library for CMA-ES",
arXiv:2402.01373. Points are in the unit cube, in log space for log-scaled parameters. The first generation is drawn
around the centre with a step of 0.3, as the tutorial recommends if the optimum is expected within the cube. A point
outside the cube is redrawn up to a hundred times, and then clipped. Choices of our own: a point is rounded as every
configuration is, and reported where it was evaluated; a duplicate or a twin is redrawn, and eventually replaced by a
random configuration. The reported value is the rank in the generation, failed trials last, ties in the order of
digests.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar, cast

import numpy as np
import optuna
from cmaes import CMA
from numpy.typing import NDArray
from optuna import Study
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
from optuna.samplers import BaseSampler, GPSampler, TPESampler
from optuna.trial import FrozenTrial, Trial as OptunaTrial, TrialState, create_trial
from threadpoolctl import threadpool_limits

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.seeds import integer, stream
from fedscout.engine.trials.record import Trial
from fedscout.search.searcher import SearchTask, ranking
from fedscout.search.searchers.genetic import GenerationalSearcher, num_random
from fedscout.strategies import ChoiceRange, IntegerRange, Range, RealRange, SearchSpace, StrategySpec, Value

STRATEGY = "strategy"
MIDDLE = 0.5


def to_place(parameter_range: RealRange | IntegerRange, value: Value) -> float:
    """Return the position of a number in `[0, 1]`; for an integer the centre of its cell."""
    position = parameter_range.to_unit(value)
    if isinstance(parameter_range, IntegerRange):
        return (position * (parameter_range.num_values - 1) + 0.5) / parameter_range.num_values
    return position


def from_place(parameter_range: RealRange | IntegerRange, place: float) -> Value:
    """Return the number at a position in `[0, 1]`."""
    if isinstance(parameter_range, IntegerRange) and parameter_range.num_values > 1:
        return parameter_range.from_unit((place * parameter_range.num_values - 0.5) / (parameter_range.num_values - 1))
    return parameter_range.from_unit(place)


class Coordinates:
    """Map between configurations and Optuna's parameters.

    Args:
        space: The search space.
        padded: Whether every trial has every parameter.

    Attributes:
        distributions: Distribution of every possible parameter of a trial.
    """

    def __init__(self, space: SearchSpace, padded: bool = False) -> None:
        self.space = space
        self.padded = padded
        self.distributions: dict[str, BaseDistribution] = {STRATEGY: CategoricalDistribution(space.kinds)}
        for kind in space.kinds:
            for name, parameter_range in space.parameters_of(kind).items():
                if parameter_range.num_values != 1:
                    shown: BaseDistribution = FloatDistribution(0.0, 1.0)
                    if isinstance(parameter_range, ChoiceRange):
                        shown = CategoricalDistribution(parameter_range.choices)
                    self.distributions[self._coordinate(kind, name, parameter_range)] = shown

    def encode(self, spec: StrategySpec) -> dict[str, Any] | None:
        """Return a configuration as a trial's parameters; None if it is not in the space.

        Numbers outside their ranges are clipped.
        """
        if spec.label not in self.space.kinds:
            return None
        values = spec.search_values()
        encoded: dict[str, Any] = {}
        for coordinate, shown in self.distributions.items() if self.padded else ():
            encoded[coordinate] = shown.choices[0] if isinstance(shown, CategoricalDistribution) else MIDDLE
        encoded[STRATEGY] = spec.label
        for name, parameter_range in self.space.parameters_of(spec.label, values).items():
            if name not in values:
                return None
            coded = values[name]
            if not isinstance(parameter_range, ChoiceRange):
                coded = to_place(parameter_range, coded)
            elif not parameter_range.contains(coded):
                return None
            coordinate = self._coordinate(spec.label, name, parameter_range)
            if coordinate in self.distributions:
                encoded[coordinate] = coded
        return encoded

    def decode(self, trial: OptunaTrial) -> StrategySpec:
        """Return the configuration that a trial suggests."""
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


LARGEST_SEED = 2**32


@contextmanager
def quiet_optuna() -> Iterator[None]:
    """Silence Optuna within the block, except for errors.

    Its log and its warnings about experimental features are not relevant to users.
    """
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(verbosity)


def in_generations(searcher: GenerationalSearcher, evaluations: Sequence[Trial]) -> list[list[Trial]]:
    """Return complete generations of evaluations, each sorted by digest, independent of the order of results."""
    size, digest = searcher.population, searcher.space.digest
    starts = range(0, len(evaluations) - size + 1, size)
    return [sorted(evaluations[start : start + size], key=lambda trial: digest(trial.spec)) for start in starts]


class OptunaSearcher(GenerationalSearcher):
    """A searcher based on one of Optuna's samplers.

    Attributes:
        padded: Whether the sampler needs every parameter in every trial; see the module.
        redraws: Number of redraws of a duplicate.
        coordinates: The space in Optuna's parameters.
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
            seed: Seed of the sampler.
            earlier: Results so far.
            taken: Digests that must not be proposed; grows while the sampler is used.
        """

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield the sampler's proposals, and random configurations if these are not new."""
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
        """Return a study with the earlier results."""
        study = optuna.create_study(direction="maximize", sampler=self.sampler(seed, earlier, taken))
        worst = min(0.0, *(evaluation.fitness for evaluation in earlier))
        for generation in in_generations(self, earlier):
            for evaluation in generation:
                self._add(study, evaluation.spec, worst if evaluation.status == "failed" else evaluation.fitness)
        for reference in self.task.references:
            self._add(study, reference)
        return study

    @quiet_optuna()
    def _drawn(self, study: Study, taken: set[str]) -> StrategySpec | None:
        """Return a new configuration of the sampler; None after too many duplicates."""
        for _ in range(1 + self.redraws):
            trial = study.ask(self.coordinates.distributions if self.padded else None)
            spec = self.coordinates.decode(trial)
            study.tell(trial, state=TrialState.FAIL)  # a draft: samplers pass over failed trials
            if self.space.digest(spec) not in taken and not self.space.has_equivalent(spec):
                return spec
            self._add(study, spec)
        return None

    @quiet_optuna()
    def _add(self, study: Study, spec: StrategySpec, fitness: float | None = None) -> None:
        """Add a trial: completed, or running without a fitness. Configurations outside the space are skipped."""
        if (parameters := self.coordinates.encode(spec)) is None:
            return
        distributions = {name: self.coordinates.distributions[name] for name in parameters}
        state = TrialState.RUNNING if fitness is None else TrialState.COMPLETE
        study.add_trial(create_trial(state=state, value=fitness, params=parameters, distributions=distributions))


class TPESearcher(OptunaSearcher):
    """Searcher based on Optuna's TPE sampler."""

    padded = False
    redraws = 10

    def sampler(self, seed: int, earlier: Sequence[Trial], taken: set[str]) -> BaseSampler:
        """Return the sampler, which supports the conditional space of strategies and their parameters."""
        return TPESampler(seed=seed, n_startup_trials=1, multivariate=True, group=True, constant_liar=True)


NUM_RANDOM_CANDIDATES = 1000
NUM_PARENTS = 4
NUM_NEIGHBOURS = 100
NEIGHBOUR_STEP = 0.1
KEPT_CHOICES = 0.8


class GPSearcher(OptunaSearcher):
    """Searcher based on Optuna's Gaussian process over candidates."""

    padded = True
    redraws = 2

    def sampler(self, seed: int, earlier: Sequence[Trial], taken: set[str]) -> BaseSampler:
        """Return the sampler."""
        return CandidateSampler(seed, lambda: self._encoded(stream(seed, "candidates"), earlier), taken)

    def _encoded(self, generator: np.random.Generator, earlier: Sequence[Trial]) -> dict[str, Mapping[str, Any]]:
        """Return the candidates of a generation as Optuna parameters, by digest."""
        candidates = (spec for spec in self._candidates(earlier, generator) if not self.space.has_equivalent(spec))
        distinct = {self.space.digest(spec): spec for spec in candidates}
        encoded = {digest: self.coordinates.encode(spec) for digest, spec in distinct.items()}
        return {digest: parameters for digest, parameters in encoded.items() if parameters is not None}

    def _candidates(self, earlier: Sequence[Trial], generator: np.random.Generator) -> Iterator[StrategySpec]:
        for _ in range(NUM_RANDOM_CANDIDATES):
            yield self.space.random(generator)
        comparable = [evaluation for evaluation in earlier if evaluation.spec.label in self.space.kinds]
        for parent in ranking(comparable, self.space)[:NUM_PARENTS]:
            for _ in range(NUM_NEIGHBOURS):
                yield self._neighbour(parent.spec, generator)

    def _neighbour(self, parent: StrategySpec, generator: np.random.Generator) -> StrategySpec:
        """Return a configuration near another one of the same strategy."""
        values = parent.search_values()

        def moved(name: str, parameter_range: Range) -> Value:
            if name not in values:
                return parameter_range.draw(generator)
            if isinstance(parameter_range, ChoiceRange):
                keeps = generator.random() < KEPT_CHOICES and parameter_range.contains(values[name])
                return values[name] if keeps else parameter_range.draw(generator)
            step = float(generator.normal(scale=NEIGHBOUR_STEP))
            return from_place(parameter_range, to_place(parameter_range, values[name]) + step)

        return self.space.rebuild(parent, moved)


class CandidateSampler(GPSampler):
    """Optuna's GP sampler with the acquisition function maximised over candidates.

    Args:
        seed: Seed of the sampler.
        candidates: Returns the candidates of all proposals, as parameters of a trial by digest; called at most once.
        taken: Digests that must not be proposed; may grow.
    """

    def __init__(self, seed: int, candidates: Callable[[], Mapping[str, Mapping[str, Any]]], taken: set[str]) -> None:
        super().__init__(seed=seed, n_startup_trials=1, warn_independent_sampling=False)
        self._candidates = cache(candidates)
        self._taken = taken

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the parameters of the candidate of largest acquisition."""
        self._distributions = search_space
        with threadpool_limits(limits=1):  # the same bits whatever else the process does
            return super().sample_relative(study, trial, search_space)

    def _optimize_acqf(self, acqf: Any, best_params: NDArray[np.float64] | None) -> NDArray[np.float64]:
        new = [parameters for digest, parameters in self._candidates().items() if digest not in self._taken]
        # Numbers are in `[0, 1]` already, a choice becomes its index.
        points = [[shown.to_internal_repr(one[name]) for name, shown in self._distributions.items()] for one in new]
        if not points:  # all is taken: what the searcher finds out from any point
            return np.full(len(self._distributions), 0.0)
        best: NDArray[np.float64] = np.array(points)[int(np.argmax(acqf.eval_acqf_no_grad(np.array(points))))]
        return best


SMALLEST_POPULATION = 2
FIRST_STEP = 0.3
REDRAWS = 100


def cma_faults(space: SearchSpace, population: int) -> list[str]:
    """Return why CMA-ES can't search a space with this population size, each fault a sentence; empty if it can."""
    ranges = {name: found for kind in space.kinds for name, found in space.parameters_of(kind).items()}
    are_real = all(isinstance(parameter_range, RealRange) for parameter_range in ranges.values())
    is_free = any(parameter_range.num_values != 1 for parameter_range in ranges.values())
    faults: list[str] = []
    if len(space.kinds) != 1 or not (are_real and is_free):
        faults.append(
            Fault(
                "search.kind=cmaes",
                "search one strategy whose parameters are real, at least one of them free",
                f"{', '.join(space.kinds)} with {', '.join(ranges) or 'no parameter'}",
                "name such a strategy in search.strategies, as [fedadam], search no client settings other than the "
                "learning rate, or choose search.kind=tpe",
            )
        )
    if population < SMALLEST_POPULATION:
        faults.append(
            Fault("search.generation_size", f"be at least {SMALLEST_POPULATION} for search.kind=cmaes", population)
        )
    return faults


class CmaEsSearcher(GenerationalSearcher):
    """CMA-ES searcher; the tutorial recommends a population of 4 + ⌊3 ln n⌋.

    Raises:
        ConfigurationError: If CMA-ES can't search the space, or the population is too small.
    """

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        if faults := cma_faults(task.space, self.population):
            raise ConfigurationError(faults)
        self._kind = task.space.kinds[0]
        self._ranges: dict[str, RealRange] = {
            name: parameter_range
            for name, parameter_range in task.space.parameters_of(self._kind).items()
            if isinstance(parameter_range, RealRange) and parameter_range.num_values != 1
        }

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield samples of the distribution after the earlier generations."""
        generator = stream(self.seed, "cma-es", number, 1)
        optimizer = self.optimizer_after(earlier, integer(self.seed, "cma-es", number, 0) % LARGEST_SEED)
        while (spec := self._new(optimizer, taken) or self.random_new(taken, generator)) is not None:
            yield spec

    def optimizer_after(self, earlier: Sequence[Trial], seed: int = 0) -> CMA:
        """Return the optimizer after complete generations; those with trials of other strategies are ignored.

        Args:
            earlier: Results so far.
            seed: Seed of its samples.
        """
        n = len(self._ranges)
        cube = np.tile([0.0, 1.0], (n, 1))
        with np.errstate(divide="ignore"):  # of a single parent the rank-μ update has rate 0, by which it divides
            optimizer = CMA(np.full(n, 0.5), FIRST_STEP, cube, REDRAWS, seed, self.population)
        for generation in in_generations(self, earlier):
            if all(evaluation.spec.label == self._kind for evaluation in generation):
                ranked = ranking(generation, self.space)
                optimizer.tell([(self._point(trial.spec), float(rank)) for rank, trial in enumerate(ranked)])
        return optimizer

    def _new(self, optimizer: CMA, taken: set[str]) -> StrategySpec | None:
        for _ in range(REDRAWS):
            spec = self._spec(optimizer.ask())
            if self.space.digest(spec) not in taken and not self.space.has_equivalent(spec):
                return spec
        return None

    def _point(self, spec: StrategySpec) -> NDArray[np.float64]:
        values = spec.search_values()
        return np.array([parameter_range.to_unit(values[name]) for name, parameter_range in self._ranges.items()])

    def _spec(self, point: NDArray[np.float64]) -> StrategySpec:
        positions = dict(zip(self._ranges, point.tolist(), strict=True))

        def chosen(name: str, parameter_range: Range) -> Value:
            assert isinstance(parameter_range, RealRange)
            return parameter_range.from_unit(positions.get(name, 0.0))

        return self.space.compose(self._kind, chosen)
