"""Genetic search: a random generation, then generations of mutants of the two best so far, or of a front.

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

Of two objectives the parents are as NSGA-II has them (`crowding.py`): as many of the earlier configurations as a
generation has, of the first fronts and there the loneliest; of two drawn at random the better one has the child.

Failed trials have fitness 0 and stay: they are not tried again, and are parents if there is nothing better.

Choices of our own: the size of the mutation steps, the rounding, a user's categorical parameter (drawn anew), and the
place of FedAvg, which is evaluated outside the budget: it is no parent, as that would leave its partner the only one.
At a mutation rate below 1 the other children are random configurations.

Results told from elsewhere count as trials of a generation, so a first generation may come from another searcher; a
child of a parent that it told keeps what the parent has outside the space.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from fedscout.engine.seeds import stream
from fedscout.engine.trials.trial_record import Trial
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.crowding import best_first
from fedscout.search.searchers.generational import GenerationalSearcher
from fedscout.strategies import ChoiceRange, IntegerRange, Range, SearchSpace, StrategySpec, Value

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
