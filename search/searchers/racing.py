"""Racing (successive halving): many configurations are trained for few rounds, and the best continue.

**Successive halving** (Jamieson & Talwalkar 2016, figure 1). With η the reduction factor and R the study's rounds,
rungs end after R, R/η, R/η², … rounds, as long as that is at least `min_rounds`. Of the n configurations of a rung the
best ⌊n/η⌋, at least one, are promoted. The first rung has as many as the budget allows, counted in full trainings; a
survivor continues from its checkpoint, so rung i costs n_i (r_i − r_{i−1}) rounds.

**Initial configurations.** Those from earlier studies, if there are any; then every strategy at its documented
defaults, in an order drawn from the seed, with strategies that have already started last; then random configurations.
Defaults are known to work, unlike random configurations, and all strategies are tried at least once if the budget
allows it. If not, a note says how many never started.

**Promotion.** A rung ranks by fitness, the mean of the last five rounds so far. Configurations that converge slowly are
lost, such as adaptive strategies with a small server learning rate. Ranking by the level of a line fitted to these
rounds, in favour of late risers, added more noise than it gained (`docs/racing.md`). The last rung is a full training,
whose fitness is that of any other trial.

Failed configurations drop out. Ties are ordered by digest, which is arbitrary but deterministic. If all configurations
of a rung fail, the next best of the previous rung replace them, beyond the budget.

Deviation from the paper: survivors continue instead of restarting, as a longer trial begins with identical results.

Reference:
    Jamieson, Talwalkar: Non-stochastic best arm identification and hyperparameter optimization. AISTATS 2016.
        arXiv:1502.07943
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial
from fedscout.search.config import ONE_SHOT, RacingConfig, SearchConfig
from fedscout.search.searcher import Proposal, Searcher, SearchTask, ranking
from fedscout.search.searchers.genetic import RANDOM_DRAWS
from fedscout.strategies import StrategySpec


@dataclass(frozen=True)
class Rung:
    """One rung of successive halving.

    Attributes:
        num_rounds: Rounds at its end, from the start of a trial.
        size: Number of configurations.
    """

    num_rounds: int
    size: int


def rung_rounds(num_rounds: int, reduction_factor: int, min_rounds: int) -> list[int]:
    """Return the rounds at which rungs end, ascending: R, R/η, R/η², … rounded, none below `min_rounds`."""
    ends = [num_rounds]
    while True:
        shorter = round(num_rounds / reduction_factor ** len(ends))
        if shorter < min_rounds or shorter >= ends[0]:
            return ends
        ends.insert(0, shorter)


def total_rounds_of(rungs: Sequence[Rung]) -> int:
    """Return the rounds trained in all rungs; each survivor continues from the previous rung."""
    ends = [rung.num_rounds for rung in rungs]
    return sum(rung.size * (end - before) for rung, end, before in zip(rungs, ends, [0, *ends[:-1]], strict=True))


def most_trials(config: SearchConfig, num_rounds: int) -> tuple[int, int]:
    """Return the largest number of trials of a search, and how many rounds they lack in total to full trainings.

    Args:
        config: Configuration of the search.
        num_rounds: Rounds of a full training.
    """
    if config.kind != "racing":
        return (1 if config.kind == ONE_SHOT else config.budget), 0
    rungs = race(config.racing, num_rounds)
    return sum(rung.size for rung in rungs), sum(rung.size * (num_rounds - rung.num_rounds) for rung in rungs)


def race(config: RacingConfig, num_rounds: int) -> list[Rung]:
    """Return the largest rungs within a budget; at least one configuration, which is trained in full.

    Args:
        config: Configuration of the race.
        num_rounds: Rounds of a full training.
    """
    ends = rung_rounds(num_rounds, config.reduction_factor, config.min_rounds)

    def of(first: int) -> list[Rung]:
        sizes = [first]
        for _ in ends[1:]:
            sizes.append(max(1, sizes[-1] // config.reduction_factor))
        return [Rung(end, size) for end, size in zip(ends, sizes, strict=True)]

    first = 1
    while total_rounds_of(of(first + 1)) <= config.trainings * num_rounds:
        first += 1
    return of(first)


class RacingSearcher(Searcher):
    """Successive-halving searcher; the task's `first` configurations start first."""

    has_own_budget = True

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self.num_rounds = task.num_rounds
        self.rungs = race(task.settings.racing, task.num_rounds)
        self._evaluations: dict[tuple[str, int], Trial] = {}
        self._entrants = list(islice(self._starters(), self.rungs[0].size))

    def notes(self) -> list[str]:
        """Return a note on strategies without an initial configuration, nor an equivalent of their defaults."""
        labels = {spec.label for spec in self._entrants}
        digests = self.archive.reference_digests.union(map(self.space.digest, self._entrants))
        others = [kind for kind in self.space.kinds if kind not in labels]
        num_left_out = sum(self.space.digest(self.space.default(kind)) not in digests for kind in others)
        if not num_left_out:
            return []
        return [
            f"{num_left_out} of {len(self.space.kinds)} strategies never started in the race; "
            "a larger search.racing.trainings starts more"
        ]

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the configurations of `plan`, without their rounds."""
        return [proposal.spec for proposal in self.plan(num_proposals)]

    def plan(self, num_proposals: int) -> list[Proposal]:
        """Return the remaining configurations of the present rung; empty once the race is finished."""
        entrants: Sequence[StrategySpec] = self._entrants
        for rung in self.rungs:
            size = rung.size
            while True:
                group = entrants[:size]
                results = [self._evaluations.get((self.space.digest(spec), rung.num_rounds)) for spec in group]
                waiting = [spec for spec, evaluation in zip(group, results, strict=True) if evaluation is None]
                if waiting:
                    rounds = None if rung.num_rounds == self.num_rounds else rung.num_rounds
                    return [Proposal(spec, rounds) for spec in waiting[:num_proposals]]
                survivors = [trial for trial in results if trial is not None and trial.status == "completed"]
                if survivors or size >= len(entrants):
                    break
                size += rung.size  # all failed: the next best take their place
            entrants = [trial.spec for trial in ranking(survivors, self.space)]
        return []

    def tell(self, evaluations: Sequence[Trial]) -> None:
        """Add results of any rung."""
        super().tell(evaluations)
        for evaluation in evaluations:
            key = (self.space.digest(evaluation.spec), evaluation.asked_rounds or self.num_rounds)
            self._evaluations.setdefault(key, evaluation)

    def _starters(self) -> Iterator[StrategySpec]:
        """Yield distinct configurations other than the references, until a thousand draws yield nothing new."""
        generator = stream(self.seed, "racing")
        kinds = [self.space.kinds[int(index)] for index in generator.permutation(len(self.space.kinds))]
        first = [spec for spec in self.task.first if self.space.contains(spec)]
        started_labels = {spec.label for spec in first}
        kinds.sort(key=lambda kind: kind in started_labels)  # none a second time before each has started once
        initial = [*first, *(self.space.default(kind) for kind in kinds)]
        seen = set(self.archive.reference_digests)
        failures = 0
        while failures < RANDOM_DRAWS:
            spec = initial.pop(0) if initial else self.space.random(generator)
            digest = self.space.digest(spec)
            if digest in seen:
                failures += 1
                continue
            failures = 0
            seen.add(digest)
            yield spec
