"""Optuna's samplers behind ask and tell.

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
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, ClassVar

from fedscout.engine.seeds import integer, stream
from fedscout.engine.trials.trial_record import Trial
from fedscout.search.searcher import SearchTask
from fedscout.search.searchers.generational import GenerationalSearcher
from fedscout.search.searchers.optuna_coordinates import Coordinates
from fedscout.strategies import StrategySpec

if TYPE_CHECKING:
    from optuna import Study
    from optuna.samplers import BaseSampler

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
        `fedscout.search.searchers.optuna_coordinates`.
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
