"""The genetic search, its generations and crowding, and random and grid search.

Genetic search: a random generation, then generations of mutants of the two best so far, or of a front.

1. Generation 1: `population` configurations, uniformly at random from the space.
2. Each child of a later generation has one parent, drawn uniformly from the top two of all earlier generations. It
   keeps the parent's strategy, and every parameter moves: an integer by δ ∈ {−1, 0, 1}, a real by δ(high − low) with
   δ ~ U(−s, s), in log space where it is log-scaled. Then it is rounded and clamped to its range. There is no
   crossover, as two strategies have no parameters in common.
3. No configuration is evaluated twice; a duplicate, or what is the same as another strategy, is drawn again. A parent
   without free parameters, or whose neighbours are all taken, yields to the other parent, then to a random
   configuration.

Mutants keep their parent's strategy, so that a long search would end with one kind. Where a diagnosis told which kinds
may be worth a trial, one child of each generation from the third on is of one that was tried least, as long as there is
one left; eight trials of four at a time are the published search's all the same.

Of two objectives the parents are as NSGA-II has them (`genetic.py`): as many of the earlier configurations as a
generation has, of the first fronts and there the loneliest; of two drawn at random the better one has the child.

Failed trials have fitness 0 and stay: they are not tried again, and are parents if there is nothing better.

Choices of our own: the size of the mutation steps, the rounding, a user's categorical parameter (drawn anew), and the
place of FedAvg, which is evaluated outside the budget: it is no parent, as that would leave its partner the only one.
At a mutation rate below 1 the other children are random configurations.

Results told from elsewhere count as trials of a generation, so a first generation may come from another searcher; a
child of a parent that it told keeps what the parent has outside the space.

Searchers that propose generation by generation: a fixed number of trials that are evaluated at once.

What a generation proposes depends on the seed, its number and the results of the generations before it; not on the
order within a generation, nor on how many are asked for at a time. So a generation that was cut in the middle is
completed with the trials that it lacked. Results told from elsewhere count as trials of a generation.

The order of configurations by two objectives: by the front that each is on, and on a front the lonelier first.

As NSGA-II compares them (Deb, Pratap, Agarwal, Meyarivan: A fast and elitist multiobjective genetic algorithm. IEEE
Transactions on Evolutionary Computation 6(2), 2002, sections III-A and III-B). The first front are those that no other
beats, the next one those that only these beat, and so on. On a front of l values f_1 ≤ … ≤ f_l of an objective, the
crowding distance of the i-th is the sum over objectives of (f_{i+1} − f_{i−1}) / (f_l − f_1), and infinite at the ends.

Choices of our own: failed trials come after all fronts, and equals are ordered by digest, as in a search by one number.
Where a front has one value of an objective, that objective tells nobody apart.

Random search: every configuration is drawn anew from the space, whatever was found before.

Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", JMLR 13, 2012. The strategy is drawn first,
uniformly, then its parameters, each uniformly or log-uniformly. No configuration is drawn twice.

Exhaustive search of a grid.

A real parameter takes equally spaced values of its range, ends included, in log space where it is log-scaled; an
integer takes all its values, or as many equally spaced ones if it has more; a choice takes each. A range that depends
on an earlier parameter is divided for each of its values.

Points that are the same in the cohort are one, and twins (`SearchSpace.is_twin`) are left out, unless there is nothing
else.

The seed shuffles each strategy's part of the grid, and the strategies take turns. A budget smaller than the grid thus
sees every strategy, and no corner of the grid before the others.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice, zip_longest

import numpy as np

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial
from fedscout.search.ledger import beats
from fedscout.search.searcher import Searcher, SearchTask, ranking
from fedscout.strategies import ChoiceRange, IntegerRange, Range, SearchSpace, StrategySpec, Value

RANDOM_DRAWS = 1000


class GenerationalSearcher(Searcher):
    """The part that all of them share.

    Attributes:
        population: Trials in a generation, >= 1.
    """

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self.population = task.settings.generation_size
        self._answered: tuple[Sequence[Trial], list[StrategySpec]] | None = None

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return what is left of the present generation, at most `num_proposals`; none if the space is used up.

        What the task gives to be tried first comes before, however many they are. They are told as all results are, so
        that a genetic search goes on with mutants of the best two.

        A space with fewer configurations than the budget is searched through and no further; it counts as used up when
        a thousand draws bring nothing new.
        """
        waiting: dict[str, StrategySpec] = {}
        for spec in self.task.first:
            if self.space.contains(spec) and (digest := self.space.digest(spec)) not in self.archive.taken:
                waiting.setdefault(digest, spec)
        if waiting:
            return list(waiting.values())[:num_proposals]
        told = self.archive.searched
        number, num_begun = divmod(len(told), self.population)
        earlier, begun = told[: len(told) - num_begun], told[len(told) - num_begun :]
        begun_digests = {self.space.digest(evaluation.spec) for evaluation in begun}
        proposals = [spec for spec in self._answer(number, earlier) if self.space.digest(spec) not in begun_digests]
        return proposals[: min(num_proposals, self.population - num_begun)]

    @abstractmethod
    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield the proposals of a generation, or more; they are taken until it is full.

        Args:
            number: Of the generation, from 0.
            earlier: Results of the generations before it.
            taken: Digests that must not be proposed; what is yielded is added to it before the next is wanted.
        """

    def random_new(self, taken: set[str], generator: np.random.Generator) -> StrategySpec | None:
        """Return a random configuration whose digest is not taken; None if the space holds hardly any."""
        for _ in range(RANDOM_DRAWS):
            spec = self.space.random(generator)
            if self.space.digest(spec) not in taken:
                return spec
        return None

    def in_generations(self, evaluations: Sequence[Trial]) -> list[list[Trial]]:
        """Return whole generations of evaluations, each in the order of digests, whatever the order of telling."""
        size = self.population
        return [
            sorted(evaluations[start : start + size], key=lambda evaluation: self.space.digest(evaluation.spec))
            for start in range(0, len(evaluations) - size + 1, size)
        ]

    def _answer(self, number: int, earlier: Sequence[Trial]) -> list[StrategySpec]:
        """Return all proposals of a generation; the last answer is kept, as working it out may take seconds."""
        if self._answered is None or self._answered[0] != earlier:
            self._answered = (earlier, self._generation(number, earlier))
        return self._answered[1]

    def _generation(self, number: int, earlier: Sequence[Trial]) -> list[StrategySpec]:
        taken = {self.space.digest(evaluation.spec) for evaluation in earlier} | self.archive.reference_digests
        proposals: list[StrategySpec] = []
        for spec in self.propose(number, earlier, taken):
            assert self.space.digest(spec) not in taken, f"{spec} is proposed twice"
            taken.add(self.space.digest(spec))
            proposals.append(spec)
            if len(proposals) == self.population:
                break
        return proposals


def best_first(trials: Iterable[Trial], task: SearchTask) -> list[Trial]:
    """Return trials from best to worst: by fitness, or by fronts where a search has two objectives."""
    return (crowded_ranking if len(task.settings.objectives) > 1 else ranking)(trials, task.space)


def crowded_ranking(trials: Iterable[Trial], space: SearchSpace) -> list[Trial]:
    """Return trials of two objectives from best to worst."""
    by_digest = sorted(trials, key=lambda trial: space.digest(trial.spec))
    completed = [trial for trial in by_digest if trial.status == "completed"]
    ranked: list[Trial] = []
    for front in _fronts(completed):
        distances = crowding_distances([trial.objectives or () for trial in front])
        ranked += [front[place] for place in np.argsort(-distances, kind="stable")]
    return ranked + ranking((trial for trial in by_digest if trial.status == "failed"), space)


def _fronts(left: Sequence[Trial]) -> Iterator[list[Trial]]:
    while left:
        beaten = [any(beats(other.objectives or (), trial.objectives or ()) for other in left) for trial in left]
        yield [trial for trial, below in zip(left, beaten, strict=True) if not below]
        left = [trial for trial, below in zip(left, beaten, strict=True) if below]


def crowding_distances(values: Sequence[Sequence[float]]) -> np.ndarray:
    """Return how alone each one is on its front, shape `(values,)`, larger is lonelier.

    Args:
        values: Its objectives, of each.
    """
    distances = np.zeros(len(values))
    for objective in np.array(values, np.float64).T:
        order = np.argsort(objective, kind="stable")
        spread = objective[order[-1]] - objective[order[0]]
        if spread > 0:
            distances[order[1:-1]] += (objective[order[2:]] - objective[order[:-2]]) / spread
            distances[order[[0, -1]]] = np.inf
    return distances


NUM_PARENTS = 2
REAL_STEP = 0.1
"""s, the largest step of a real parameter, as a share of its range (of the log range if log-scaled)."""
JOINT_STEP = 0.3
"""The same where the clients' settings are searched, too, as a federation's best client rate may be anywhere in its
range. Set on the development half of `fedscout bench choice replay`: eight informed trials lose .13 of what
is to win beyond tuned FedAvg with it, .28 with the smaller one, and no less with 0.6 (`docs/choice.md`)."""
INTEGER_STEP = 1
MUTATION_DRAWS = 100
EXPLORES_FROM = 2
"""The third generation."""


def mutate(
    spec: StrategySpec, space: SearchSpace, generator: np.random.Generator, real_step: float = REAL_STEP
) -> StrategySpec:
    """Return a neighbour of a configuration: the same strategy, every searched parameter moved.

    Args:
        spec: The parent; its strategy is in the space.
        space: Gives the ranges.
        generator: Where the steps come from.
        real_step: s.
    """
    values = spec.search_values()

    def moved(name: str, parameter_range: Range) -> Value:
        if isinstance(parameter_range, ChoiceRange) or name not in values:
            return parameter_range.draw(generator)
        if isinstance(parameter_range, IntegerRange):
            step = int(generator.integers(-INTEGER_STEP, INTEGER_STEP, endpoint=True))
            return parameter_range.clamp(int(values[name]) + step)
        place = parameter_range.to_unit(values[name]) + generator.uniform(-real_step, real_step)
        return parameter_range.from_unit(place)

    return space.recompose(spec, moved)


class GeneticSearcher(GenerationalSearcher):
    """Random generation, then mutants of the best; at the configured share, others are random."""

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        usual = JOINT_STEP if self.space.client_ranges else REAL_STEP
        self._real_step = task.settings.mutation_step or usual

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield children of the best of the generations before it, after what is tried for its kind."""
        generator = stream(self.seed, "genetic search", number)
        if number >= EXPLORES_FROM and (untried := self._of_a_kind_tried_least(earlier, taken)) is not None:
            yield untried
        num_parents = self.population if len(self.task.settings.objectives) > 1 else NUM_PARENTS
        parents = [evaluation.spec for evaluation in best_first(earlier, self.task)[:num_parents]]
        while (child := self._child(parents, taken, generator)) is not None:
            yield child

    def _of_a_kind_tried_least(self, earlier: Sequence[Trial], taken: set[str]) -> StrategySpec | None:
        """Return a configuration that was given for its kind, of the one with fewest trials; None if all are taken."""
        tried = Counter(trial.spec.label for trial in earlier)
        given = (spec for spec in self.task.kinds if not self.space.is_twin(spec))
        new = (spec for spec in given if self.space.digest(spec) not in taken)
        return min(new, key=lambda spec: tried[spec.label], default=None)

    def _child(
        self, parents: Sequence[StrategySpec], taken: set[str], generator: np.random.Generator
    ) -> StrategySpec | None:
        """Return a new configuration; None if the space holds hardly any."""
        if parents and generator.random() < self.task.settings.mutation_rate:
            first = int(generator.integers(len(parents)))
            if len(self.task.settings.objectives) > 1:
                first = min(first, int(generator.integers(len(parents))))
            for parent in (*parents[first:], *parents[:first]):
                if child := self._mutant(parent, taken, generator):
                    return child
        return self.random_new(taken, generator)

    def _mutant(self, parent: StrategySpec, taken: set[str], generator: np.random.Generator) -> StrategySpec | None:
        """Return a new neighbour; None if the parent has no free parameter or its neighbours are taken."""
        if parent.label not in self.space.kinds:
            return None
        ranges = self.space.parameters_of(parent.label, parent.search_values())
        if all(parameter_range.num_values == 1 for parameter_range in ranges.values()):
            return None
        for _ in range(MUTATION_DRAWS):
            child = mutate(parent, self.space, generator, self._real_step)
            if self.space.digest(child) not in taken and not self.space.is_twin(child):
                return child
        return None


class RandomSearcher(GenerationalSearcher):
    """Draws until the budget is spent or the space is used up."""

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield random configurations."""
        del earlier
        generator = stream(self.seed, "random search", number)
        while (spec := self.random_new(taken, generator)) is not None:
            yield spec


logger = logging.getLogger("fedscout")

LARGEST_GRID = 10_000
"""No larger than the largest budget, or it could not be exhausted."""


def range_points(parameter_range: Range, num_points: int) -> list[Value]:
    """Return the grid's values of one range, in its order: at most `num_points`, or every choice."""
    if isinstance(parameter_range, ChoiceRange):
        return list(parameter_range.choices)
    places = np.linspace(0, 1, num_points) if num_points > 1 else np.array([0.5])
    return list(dict.fromkeys(parameter_range.from_unit(float(place)) for place in places))


def grid_values(
    space: SearchSpace, kind: str, num_points: int | Callable[[int, int], int]
) -> Iterator[Mapping[str, Value]]:
    """Yield the parameters of every point that one strategy has on the grid.

    `num_points` are the values of each parameter, or tell them by its place among so many parameters.
    """
    names = tuple(space.parameters_of(kind))

    def completed(chosen: Mapping[str, Value]) -> Iterator[Mapping[str, Value]]:
        if len(chosen) == len(names):
            yield chosen
            return
        name = names[len(chosen)]
        count = num_points if isinstance(num_points, int) else num_points(len(chosen), len(names))
        for value in range_points(space.parameters_of(kind, chosen)[name], count):
            yield from completed({**chosen, name: value})

    return completed({})


def grid_parts(space: SearchSpace, num_points: int) -> dict[str, list[Mapping[str, Value]]]:
    """Return the parameters of every point, by strategy.

    Raises:
        ConfigurationError: If there are more than the largest budget.
    """
    parts: dict[str, list[Mapping[str, Value]]] = {}
    left = LARGEST_GRID
    for kind in space.kinds:
        parts[kind] = list(islice(grid_values(space, kind, num_points), left + 1))
        left -= len(parts[kind])
        if left < 0:
            raise ConfigurationError(
                Fault(
                    "a grid",
                    f"hold at most {LARGEST_GRID} configurations",
                    (f"more with {num_points} values of a parameter and the strategies {', '.join(space.kinds)}"),
                    "lower search.grid_points or name fewer strategies in search.strategies",
                )
            )
    return parts


class GridSearcher(GenerationalSearcher):
    """Goes through a grid and ends; a warning tells where the budget is smaller than the grid.

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
        if any(without_twins := [[spec for spec in part if not space.is_twin(spec)] for part in parts]):
            parts = without_twins
        self._points: dict[str, StrategySpec] = {}
        for spec in _by_turns(parts, stream(task.seed, "grid search")):
            if (digest := space.digest(spec)) not in self.archive.reference_digests:
                self._points.setdefault(digest, spec)
        if budget < len(self._points):
            logger.warning(
                "the grid has %d configurations, of which search.budget=%d are tried", len(self._points), budget
            )

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield what is left of the grid."""
        del number, earlier
        for digest, spec in self._points.items():
            if digest not in taken:
                yield spec


def _composed(space: SearchSpace, kind: str, values: Mapping[str, Value]) -> StrategySpec:
    return space.compose(kind, lambda name, _: values[name])


def _by_turns(parts: Sequence[Sequence[StrategySpec]], generator: np.random.Generator) -> Iterator[StrategySpec]:
    shuffled = [[part[place] for place in generator.permutation(len(part))] for part in parts]
    turns = generator.permutation(len(shuffled))
    for turn in zip_longest(*(shuffled[place] for place in turns)):
        yield from (spec for spec in turn if spec is not None)
