"""Generational searchers: genetic search, random search, and grid search.

**Generations.** A generation is a fixed number of trials that are evaluated at once. Its proposals depend on the seed,
its number and the results of earlier generations, but not on the order within a generation or the number of proposals
requested at a time. So an interrupted generation is completed with its missing trials. Results from elsewhere count as
trials of a generation, so a first generation may come from another searcher.

**Genetic search.**

1. Generation 1: `population` configurations, uniformly at random from the space.
2. Each child of a later generation has one parent, drawn uniformly from the top two of all earlier generations. It
   keeps the parent's strategy, and every parameter is mutated: an integer by δ ∈ {−1, 0, 1}, a real by δ(high − low)
   with δ ~ U(−s, s), in log space if it is log-scaled. Then it is rounded and clipped to its range. There is no
   crossover, as two strategies have no parameters in common.
3. No configuration is evaluated twice; a duplicate, or an equivalent of another strategy, is redrawn. If a parent has
   no free parameters, or no new neighbours are found, the other parent is used, then a random configuration.

As mutants keep their parent's strategy, a long search would converge to one kind. If a diagnosis provides
configurations of promising kinds, one child of each generation from the third on is of the least tried kind, while
there are any; eight trials in generations of four are unaffected and equal the published search.

Failed trials have fitness 0 and stay: they are not repeated, and are parents if there is nothing better. Choices of our
own: the size of the mutation steps, the rounding, a user's categorical parameter (redrawn), and that FedAvg, which is
evaluated outside the budget, is no parent, as only one other parent would remain. At a mutation rate below 1 the other
children are random configurations. A child of a parent from elsewhere keeps the parent's values outside the space.

**Random search.** Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012. The strategy is
drawn uniformly, then its parameters, each uniformly or log-uniformly. No configuration is drawn twice.

**Grid search.** A real parameter takes equally spaced values of its range, including the ends, in log space if it is
log-scaled; an integer takes all its values, or as many equally spaced ones if it has more; a choice takes each. A range
that depends on an earlier parameter is divided for each of its values. Equivalent points are merged, and twins
(`SearchSpace.has_equivalent`) are excluded unless nothing else remains. The seed shuffles each strategy's part of the
grid, and strategies alternate, so that a budget smaller than the grid covers every strategy and no corner of the grid
first.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, zip_longest

import numpy as np

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial
from fedscout.search.searcher import Searcher, SearchTask, ranking
from fedscout.strategies import ChoiceRange, IntegerRange, Range, SearchSpace, StrategySpec, Value

RANDOM_DRAWS = 1000
NUM_RANDOM = 10


def num_random(budget: int, population: int) -> int:
    """Return the random trials that begin a search by a model: a quarter of the budget, from a generation up to ten.

    Ten is Optuna's default, which would leave no model-based trials of a budget of eight.
    """
    return min(NUM_RANDOM, max(population, budget // 4))


class GenerationalSearcher(Searcher):
    """Base class of searchers that propose generations.

    Attributes:
        population: Trials in a generation, >= 1.
    """

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self.population = task.settings.generation_size
        self._answered: tuple[Sequence[Trial], list[StrategySpec]] | None = None

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the rest of the present generation, at most `num_proposals`; empty if the space is exhausted.

        All configurations of the task's `first` come first. Their results count like any other, so that a genetic
        search continues with mutants of the best two.

        A space with fewer configurations than the budget is searched completely; it counts as exhausted if a thousand
        draws yield nothing new.
        """
        waiting: dict[str, StrategySpec] = {}
        for spec in self.task.first:
            if self.space.contains(spec) and (digest := self.space.digest(spec)) not in self.archive.taken:
                waiting.setdefault(digest, spec)
        if waiting:
            return list(waiting.values())[: min(num_proposals, self.population)]
        searched = self.archive.searched
        number, num_begun = divmod(len(searched), self.population)
        earlier, present_trials = searched[: len(searched) - num_begun], searched[len(searched) - num_begun :]
        present = {self.space.digest(evaluation.spec) for evaluation in present_trials}
        proposals = [spec for spec in self._generation(number, earlier) if self.space.digest(spec) not in present]
        return proposals[: min(num_proposals, self.population - num_begun)]

    @abstractmethod
    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield the proposals of a generation, or more; they are consumed until it is full.

        Args:
            number: Number of the generation, from 0.
            earlier: Results of the earlier generations.
            taken: Digests that must not be proposed; each yielded one is added before the next is requested.
        """

    def random_new(self, taken: set[str], generator: np.random.Generator) -> StrategySpec | None:
        """Return a random configuration whose digest is not taken; None if the space is nearly exhausted."""
        for _ in range(RANDOM_DRAWS):
            spec = self.space.random(generator)
            if self.space.digest(spec) not in taken:
                return spec
        return None

    def _generation(self, number: int, earlier: Sequence[Trial]) -> list[StrategySpec]:
        """Return all proposals of a generation; the last ones are cached, as their computation may take seconds."""
        if self._answered is None or self._answered[0] != earlier:
            taken = {self.space.digest(evaluation.spec) for evaluation in earlier} | self.archive.reference_digests
            proposals: list[StrategySpec] = []
            for spec in self.propose(number, earlier, taken):
                assert self.space.digest(spec) not in taken, f"{spec} is proposed twice"
                taken.add(self.space.digest(spec))
                proposals.append(spec)
                if len(proposals) == self.population:
                    break
            self._answered = (earlier, proposals)
        return self._answered[1]


NUM_PARENTS = 2
REAL_STEP = 0.1
"""s, the largest step of a real parameter, as a share of its range (of the log range if log-scaled)."""
JOINT_STEP = 0.3
"""The same if the clients' settings are searched, too, as a federation's best client rate may be anywhere in its range.
Set on the development half of `fedscout bench choice replay`: eight trials, the last four of them mutants, lose .13 of
the achievable gain over tuned FedAvg with it, .28 with the smaller one, and no less with 0.6 (`docs/choice.md`)."""
INTEGER_STEP = 1
MUTATION_DRAWS = 100
EXPLORES_FROM = 2
"""The third generation."""


def mutate(
    spec: StrategySpec, space: SearchSpace, generator: np.random.Generator, real_step: float = REAL_STEP
) -> StrategySpec:
    """Return a mutant of a configuration: the same strategy, with every searched parameter changed.

    Args:
        spec: The parent; its strategy is in the space.
        space: Search space with the ranges.
        generator: Random generator.
        real_step: s.
    """
    values = spec.search_values()

    def moved(name: str, parameter_range: Range) -> Value:
        if isinstance(parameter_range, ChoiceRange) or name not in values:
            return parameter_range.draw(generator)
        if isinstance(parameter_range, IntegerRange):
            step = int(generator.integers(-INTEGER_STEP, INTEGER_STEP, endpoint=True))
            return parameter_range.clamp(int(values[name]) + step)
        position = parameter_range.to_unit(values[name]) + generator.uniform(-real_step, real_step)
        return parameter_range.from_unit(position)

    return space.rebuild(spec, moved)


class GeneticSearcher(GenerationalSearcher):
    """Genetic search: a random generation, then mutants of the best, and random children at the configured share."""

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        default_step = JOINT_STEP if self.space.client_ranges else REAL_STEP
        self._real_step = task.settings.mutation_step or default_step

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield children of the best earlier trials, after a configuration of the least tried kind."""
        generator = stream(self.seed, "genetic search", number)
        if number >= EXPLORES_FROM and (untried := self._of_a_kind_tried_least(earlier, taken)) is not None:
            yield untried
        parents = [evaluation.spec for evaluation in ranking(earlier, self.space)[:NUM_PARENTS]]
        while (child := self._child(parents, taken, generator)) is not None:
            yield child

    def _of_a_kind_tried_least(self, earlier: Sequence[Trial], taken: set[str]) -> StrategySpec | None:
        """Return the task's configuration of the kind with the fewest trials; None if all are taken."""
        num_trials = Counter(trial.spec.label for trial in earlier)
        candidates = (spec for spec in self.task.kinds if not self.space.has_equivalent(spec))
        new = (spec for spec in candidates if self.space.digest(spec) not in taken)
        return min(new, key=lambda spec: num_trials[spec.label], default=None)

    def _child(
        self, parents: Sequence[StrategySpec], taken: set[str], generator: np.random.Generator
    ) -> StrategySpec | None:
        """Return a new configuration; None if the space is nearly exhausted."""
        if parents and generator.random() < self.task.settings.mutation_rate:
            first = int(generator.integers(len(parents)))
            for parent in (*parents[first:], *parents[:first]):
                if child := self._mutant(parent, taken, generator):
                    return child
        return self.random_new(taken, generator)

    def _mutant(self, parent: StrategySpec, taken: set[str], generator: np.random.Generator) -> StrategySpec | None:
        """Return a new mutant; None if the parent has no free parameter or no new mutant is found."""
        if parent.label not in self.space.kinds:
            return None
        ranges = self.space.parameters_of(parent.label, parent.search_values())
        if all(parameter_range.num_values == 1 for parameter_range in ranges.values()):
            return None
        for _ in range(MUTATION_DRAWS):
            child = mutate(parent, self.space, generator, self._real_step)
            if self.space.digest(child) not in taken and not self.space.has_equivalent(child):
                return child
        return None


class RandomSearcher(GenerationalSearcher):
    """Random search until the budget is spent or the space is exhausted."""

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield random configurations."""
        generator = stream(self.seed, "random search", number)
        while (spec := self.random_new(taken, generator)) is not None:
            yield spec


logger = logging.getLogger("fedscout")

LARGEST_GRID = 10_000
"""No larger than the largest budget, or it could not be exhausted."""


def range_points(parameter_range: Range, num_points: int) -> list[Value]:
    """Return the grid values of one range, in order: at most `num_points`, or every choice."""
    if isinstance(parameter_range, ChoiceRange):
        return list(parameter_range.choices)
    positions = np.linspace(0, 1, num_points) if num_points > 1 else np.array([0.5])
    return list(dict.fromkeys(parameter_range.from_unit(float(position)) for position in positions))


def grid_values(space: SearchSpace, kind: str, num_points: int) -> Iterator[Mapping[str, Value]]:
    """Yield the parameters of every grid point of one strategy."""
    names = tuple(space.parameters_of(kind))

    def completed(chosen: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
        if len(chosen) == len(names):
            yield chosen
            return
        name = names[len(chosen)]
        for value in range_points(space.parameters_of(kind, chosen)[name], num_points):
            yield from completed({**chosen, name: value})

    return completed({})


def grid_parts(space: SearchSpace, num_points: int) -> dict[str, list[Mapping[str, Value]]]:
    """Return the parameters of every grid point, by strategy.

    Raises:
        ConfigurationError: If there are more than the largest budget.
    """
    parts: dict[str, list[Mapping[str, Value]]] = {}
    remaining = LARGEST_GRID
    for kind in space.kinds:
        parts[kind] = list(islice(grid_values(space, kind, num_points), remaining + 1))
        remaining -= len(parts[kind])
        if remaining < 0:
            raise ConfigurationError.of(
                "a grid",
                f"hold at most {LARGEST_GRID} configurations",
                f"more with {num_points} values of a parameter and the strategies {', '.join(space.kinds)}",
                "lower search.grid_points or name fewer strategies in search.strategies",
            )
    return parts


class GridSearcher(GenerationalSearcher):
    """Exhaustive grid search, with a warning if the budget is smaller than the grid.

    Raises:
        ConfigurationError: If the grid is too large.
    """

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        budget, space = task.settings.budget, task.space
        parts = [
            [_composed(space, kind, values) for values in points]
            for kind, points in grid_parts(space, task.settings.grid_points).items()
        ]
        if any(without_twins := [[spec for spec in part if not space.has_equivalent(spec)] for part in parts]):
            parts = without_twins
        self._points: dict[str, StrategySpec] = {}
        for spec in _interleaved(parts, stream(task.seed, "grid search")):
            if (digest := space.digest(spec)) not in self.archive.reference_digests:
                self._points.setdefault(digest, spec)
        if budget < len(self._points):
            logger.warning("the grid has %d configurations; search.budget=%d are tried", len(self._points), budget)

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield the remaining grid points."""
        for digest, spec in self._points.items():
            if digest not in taken:
                yield spec


def _composed(space: SearchSpace, kind: str, values: Mapping[str, Value]) -> StrategySpec:
    return space.compose(kind, lambda name, _: values[name])


def _interleaved(parts: Sequence[Sequence[StrategySpec]], generator: np.random.Generator) -> Iterator[StrategySpec]:
    shuffled = [[part[index] for index in generator.permutation(len(part))] for part in parts]
    turns = generator.permutation(len(shuffled))
    for turn in zip_longest(*(shuffled[index] for index in turns)):
        yield from (spec for spec in turn if spec is not None)
