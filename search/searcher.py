"""What every searcher is: two verbs, ask and tell, over one archive.

```python
while specs := searcher.ask(budget - spent):
    searcher.tell([Trial(spec, fitness=evaluate(spec)) for spec in specs])
```

**A searcher is a function of its seed, its space and what it was told.** Asking changes nothing: asked again before it
is told, it answers the same. Hence a study that was cut off goes on by telling a new searcher the trials of its log, in
order, and asking; a generation that was cut in the middle is completed with the trials that it lacked.

**References** are configurations that a study evaluates outside the budget, FedAvg by default. They are never proposed,
told or not, so that the budget buys as many *further* configurations. A reference that is told may be the best, but
it is no parent: the archive that feeds later proposals holds what the budget paid for.

**Rounds.** Most searchers train every configuration in full. One that does not says how long in `plan`, is told
trials with `asked_rounds`, and may propose the configuration again for more: its training then goes on.
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
    """A configuration and how long to train it.

    Attributes:
        spec: The configuration.
        num_rounds: Rounds from its start, those that it has been trained before included; None is a full training.
    """

    spec: StrategySpec
    num_rounds: int | None = None


class Archive:
    """Everything a searcher was told, each configuration once.

    A configuration that is told again, or an equivalent of one, changes nothing: under common random numbers a trial
    has one result, so the log may be told twice. Only a longer training of it takes the place of a shorter one.

    Args:
        space: Gives the digests.
        references: What is evaluated outside the budget.
    """

    def __init__(self, space: SearchSpace, references: Iterable[StrategySpec]) -> None:
        self._space = space
        self.reference_digests = frozenset(space.digest(spec) for spec in references)
        self._by_digest: dict[str, Trial] = {}

    def add(self, trial: Trial) -> None:
        """Keep a trial, unless its configuration is known from as long a training."""
        assert math.isfinite(trial.fitness), f"fitness must be finite, got {trial.fitness}"
        assert trial.status == "completed" or trial.fitness == 0, "a failed trial has fitness 0"
        digest = self._space.digest(trial.spec)
        known = self._by_digest.get(digest)
        if known is None or (trial.asked_rounds or math.inf) > (known.asked_rounds or math.inf):
            self._by_digest[digest] = trial

    @property
    def searched(self) -> tuple[Trial, ...]:
        """What the budget paid for, failures included, in the order in which it was told."""
        return tuple(found for digest, found in self._by_digest.items() if digest not in self.reference_digests)

    @property
    def references(self) -> tuple[Trial, ...]:
        """What was evaluated outside the budget."""
        return tuple(found for digest, found in self._by_digest.items() if digest in self.reference_digests)

    @property
    def taken(self) -> frozenset[str]:
        """Digests that need not be proposed any more: what was told, and the references, told or not."""
        return frozenset(self._by_digest) | self.reference_digests

    def best(self) -> Trial | None:
        """Return the full training of largest fitness, a reference if it is no worse; None if none was told."""
        whole = [[trial for trial in told if trial.whole] for told in (self.references, self.searched)]
        ranked = [best for trials in whole for best in ranking(trials, self._space)[:1]]
        return max(ranked, key=lambda trial: trial.fitness, default=None)


def ranking(trials: Iterable[Trial], space: SearchSpace) -> list[Trial]:
    """Return trials from best to worst.

    Failed ones are the worst, also of those whose fitness is below 0, as that of a quantity may be. Equal fitness is
    ordered by digest: arbitrary, but the same whatever the order in which they were told.
    """
    return sorted(trials, key=lambda trial: (trial.status == "failed", -trial.fitness, space.digest(trial.spec)))


@dataclass(frozen=True)
class SearchTask:
    """What a searcher is made from.

    Attributes:
        space: Where to search.
        seed: Of the searcher's own random choices, >= 0.
        settings: The user's choices.
        num_rounds: Rounds of a full training.
        first: Configurations that are tried before any other, best first; those outside the space are left out.
        kinds: A configuration of each kind that may be worth a trial, for searchers that leave room to explore; none
            leaves that to the searcher.
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
    """Proposes configurations and learns from their fitness.

    Args:
        task: What is searched for.

    Attributes:
        has_own_budget: Whether it ends by itself, so that the study's number of trials is no limit to it.
    """

    has_own_budget: ClassVar[bool] = False

    def __init__(self, task: SearchTask) -> None:
        self.task = task
        self.space = task.space
        self.seed = task.seed
        self.archive = Archive(task.space, task.references)

    @abstractmethod
    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return new configurations, distinct from each other and from all that was told.

        Args:
            num_proposals: How many are wanted, >= 1.

        Returns:
            At most that many. Fewer if the searcher wants to be told before it goes on (a generation ends) or if hardly
            anything new is left in the space; none means that the search is over.
        """

    def plan(self, num_proposals: int) -> list[Proposal]:
        """Return what `ask` returns, with the rounds of each."""
        return [Proposal(spec) for spec in self.ask(num_proposals)]

    def notes(self) -> list[str]:
        """Return what is worth knowing of what it does not try, each a sentence."""
        return []

    def tell(self, trials: Sequence[Trial]) -> None:
        """Take in trials, failed ones included; in their order when a log is told.

        What is read of one is `spec`, `fitness`, `status`, `error` and `asked_rounds`.
        """
        for trial in trials:
            self.archive.add(trial)
