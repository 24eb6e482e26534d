"""The searcher interface: `ask` and `tell` over one archive.

```python
while specs := searcher.ask(budget - spent):
    searcher.tell([Trial(spec, fitness=evaluate(spec)) for spec in specs])
```

**A searcher is a deterministic function of its seed, its space and the results it was given.** `ask` has no side
effects: repeated calls return the same until `tell`. Hence an interrupted study is resumed by passing the trials of its
log, in order, to a new searcher; an interrupted generation is completed with its missing trials.

**References** are configurations that a study evaluates outside the budget, FedAvg by default. They are never proposed,
so that the whole budget is spent on *other* configurations. A reference may be the best, but it is no parent: later
proposals depend only on the trials of the budget.

**Rounds.** Most searchers train every configuration in full. Others give the number of rounds in `plan`, receive trials
with `asked_rounds`, and may propose the configuration again for more rounds: its training then continues.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from fedscout.engine.trials.record import Trial
from fedscout.search.config import SearchConfig
from fedscout.search.objective import ACCURACY, Measure
from fedscout.strategies import FedAvgSpec, SearchSpace, StrategySpec


@dataclass(frozen=True)
class Proposal:
    """A configuration and its number of rounds.

    Attributes:
        spec: The configuration.
        num_rounds: Rounds from the start, including those already trained; None is a full training.
    """

    spec: StrategySpec
    num_rounds: int | None = None


class Archive:
    """All results passed to a searcher, each configuration once.

    A repeated configuration, or an equivalent one, is ignored: under common random numbers a trial has one result, so
    the log may be passed twice. Only a longer training replaces a shorter one.

    Args:
        space: Search space, for the digests.
        references: Configurations evaluated outside the budget.
    """

    def __init__(self, space: SearchSpace, references: Iterable[StrategySpec]) -> None:
        self._space = space
        self.reference_digests = frozenset(space.digest(spec) for spec in references)
        self._by_digest: dict[str, Trial] = {}

    def add(self, trial: Trial) -> None:
        """Add a trial, unless the archive has as long a training of its configuration."""
        digest = self._space.digest(trial.spec)
        known = self._by_digest.get(digest)
        if known is None or (trial.asked_rounds or math.inf) > (known.asked_rounds or math.inf):
            self._by_digest[digest] = trial

    @property
    def searched(self) -> tuple[Trial, ...]:
        """Trials of the budget, including failed ones, in the order in which they were added."""
        return tuple(trial for digest, trial in self._by_digest.items() if digest not in self.reference_digests)

    @property
    def taken(self) -> frozenset[str]:
        """Digests that must not be proposed: those of all added trials and of the references."""
        return frozenset(self._by_digest) | self.reference_digests


def ranking(trials: Iterable[Trial], space: SearchSpace) -> list[Trial]:
    """Return trials from best to worst.

    Failed ones rank last, even after negative fitness, as in regression. Ties are ordered by digest: arbitrary, but
    independent of the order of results.
    """
    return sorted(trials, key=lambda trial: (trial.status == "failed", -trial.fitness, space.digest(trial.spec)))


@dataclass(frozen=True)
class SearchTask:
    """Inputs of a searcher.

    Attributes:
        space: The search space.
        seed: Seed of the searcher's random choices, >= 0.
        settings: Configuration of the search.
        num_rounds: Rounds of a full training.
        first: Configurations to try before any other, best first; those outside the space are ignored.
        kinds: One configuration of each promising kind, for searchers that explore kinds; if empty, the searcher
            decides.
        references: Configurations evaluated outside the budget, never proposed.
        measure: What the fitness measures.
    """

    space: SearchSpace
    seed: int
    settings: SearchConfig = field(default_factory=SearchConfig)
    num_rounds: int = 30
    first: Sequence[StrategySpec] = ()
    kinds: Sequence[StrategySpec] = ()
    references: Sequence[StrategySpec] = (FedAvgSpec(),)
    measure: Measure = ACCURACY


class Searcher(ABC):
    """Base class of searchers, which propose configurations and learn from their fitness.

    Args:
        task: The search task.

    Attributes:
        has_own_budget: Whether it ends by itself, so that the study's number of trials does not limit it.
    """

    has_own_budget: ClassVar[bool] = False

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        self.space = task.space
        self.seed = task.seed
        self.archive = Archive(task.space, task.references)

    @abstractmethod
    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return new configurations, distinct from each other and from all previous ones.

        Args:
            num_proposals: Largest number of configurations, >= 1.

        Returns:
            At most that many. Fewer if the searcher needs results first (a generation ends) or if the space is nearly
            exhausted; none means that the search is over.
        """

    def plan(self, num_proposals: int) -> list[Proposal]:
        """Return the configurations of `ask` with the rounds of each."""
        return [Proposal(spec) for spec in self.ask(num_proposals)]

    def notes(self) -> list[str]:
        """Return notes on configurations that were not tried, each a sentence."""
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        """Add results, including failed ones; a log is passed in its order.

        The fields used are `spec`, `fitness`, `status`, `error` and `asked_rounds`.
        """
        for trial in trials:
            self.archive.add(trial)
