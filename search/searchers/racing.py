"""Racing: many configurations for few rounds; the best go on from where they stopped, and few are trained in full.

**Successive halving** (Jamieson & Talwalkar 2016, figure 1). With η the reduction factor and R the study's rounds,
rungs end after R, R/η, R/η², … rounds, as long as that is at least `min_rounds`. Of the n configurations of a rung
the best ⌊n/η⌋, at least one, reach the next. The first rung takes as many as the budget allows, counted in full
trainings; a survivor goes on from its checkpoint, so rung i costs n_i (r_i − r_{i−1}) rounds. **Brackets** (Hyperband,
Li et al. 2018, algorithm 1) share the budget equally: bracket s leaves the s shortest rungs out, so it drops nobody
after so few rounds, and begins with fewer configurations.

**Who starts.** Configurations from earlier studies, if there are any; then every strategy at its documented defaults,
in an order drawn from the seed, those of which something has started last; then random configurations. That defaults
are known to work is knowledge that a random draw does not have, and all strategies are seen at least once where the
budget allows it. Where it does not, the race says what would.

**Who survives.** A rung ranks by fitness, the mean of the last five rounds so far. A configuration that needs more
rounds than a rung has to get going is lost: adaptive strategies with a small server rate are. Ranking by the level of a
line through these rounds, to be fair to late risers, let in more noise than late risers (`docs/racing.md`). The last
rung is a full training, whose fitness is that of any other trial.

Of two objectives a rung ranks by fronts, and on a front the lonelier first (`genetic.py`), so that both ends of it go
on: successive halving by non-dominated sorting (Schmucker et al.). The front that is told is of full trainings alone,
those of the last rung.

Failed configurations drop out. Equals are ordered by digest, which is arbitrary but always the same. If every one of a
rung fails, the next best of the rung before take their place, beyond the budget.

Deviations from the papers: survivors go on instead of starting anew, as a trial of more rounds begins with the same
bits; the brackets run side by side.

References:
    Jamieson, Talwalkar: Non-stochastic best arm identification and hyperparameter optimization. AISTATS 2016.
        arXiv:1502.07943
    Li, Jamieson, DeSalvo, Rostamizadeh, Talwalkar: Hyperband: a novel bandit-based approach to hyperparameter
        optimization. JMLR 18, 2018. arXiv:1603.06560
    Schmucker, Donini, Zafar, Salinas, Archambeau: Multi-objective asynchronous successive halving. 2021.
        arXiv:2106.12639
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial
from fedscout.search.config import ONE_SHOT, RacingConfig, SearchConfig
from fedscout.search.searcher import Proposal, Searcher, SearchTask
from fedscout.search.searchers.genetic import RANDOM_DRAWS, best_first
from fedscout.strategies import StrategySpec


@dataclass(frozen=True)
class Rung:
    """One stage of a race.

    Attributes:
        num_rounds: At which it ends, from the start of a trial.
        size: Configurations in it.
    """

    num_rounds: int
    size: int


def rung_rounds(num_rounds: int, reduction_factor: int, min_rounds: int) -> list[int]:
    """Return the rounds at which rungs end, ascending: R, R/η, R/η², … to the nearest, none below `min_rounds`."""
    found = [num_rounds]
    while True:
        shorter = round(num_rounds / reduction_factor ** len(found))
        if shorter < min_rounds or shorter >= found[0]:
            return found
        found.insert(0, shorter)


def rung_costs(rungs: Sequence[Rung]) -> int:
    """Return the rounds of a race: each survivor goes on from the rung before."""
    ends = [rung.num_rounds for rung in rungs]
    return sum(rung.size * (end - before) for rung, end, before in zip(rungs, ends, [0, *ends[:-1]], strict=True))


def rungs_within(ends: Sequence[int], reduction_factor: int, budget_rounds: float) -> list[Rung]:
    """Return the largest race that a budget pays for; at least one configuration, which is trained in full.

    Args:
        ends: Rounds at which rungs end, ascending.
        reduction_factor: η; of n configurations ⌊n/η⌋ go on, at least one.
        budget_rounds: Rounds that may be trained in all.
    """

    def of(first: int) -> list[Rung]:
        sizes = [first]
        for _ in ends[1:]:
            sizes.append(max(1, sizes[-1] // reduction_factor))
        return [Rung(end, size) for end, size in zip(ends, sizes, strict=True)]

    first = 1
    while rung_costs(of(first + 1)) <= budget_rounds:
        first += 1
    return of(first)


def most_trials(config: SearchConfig, num_rounds: int) -> tuple[int, int]:
    """Return how many trials a search has at most, and how many rounds they lack in all to full trainings.

    Args:
        config: Of the search.
        num_rounds: Rounds of a full training.
    """
    if config.kind != "racing":
        return (1 if config.kind == ONE_SHOT else config.budget), 0
    rungs = [rung for bracket in race(config.racing, num_rounds) for rung in bracket]
    return sum(rung.size for rung in rungs), sum(rung.size * (num_rounds - rung.num_rounds) for rung in rungs)


def race(config: RacingConfig, num_rounds: int) -> list[list[Rung]]:
    """Return the rungs of every bracket; no more brackets than the budget has full trainings.

    Args:
        config: Of the race.
        num_rounds: Rounds of a full training.
    """
    ends = rung_rounds(num_rounds, config.reduction_factor, config.min_rounds)
    num_brackets = min(config.brackets, len(ends), int(config.trainings))
    races = [ends[left_out:] for left_out in range(num_brackets)]
    share = config.trainings * num_rounds / len(races)
    return [rungs_within(race, config.reduction_factor, share) for race in races]


def least_trainings(config: RacingConfig, num_rounds: int, num_starters: int) -> float:
    """Return the least budget, a number of halves, with which so many configurations start, over all brackets.

    Args:
        config: Of a race in which fewer start.
        num_rounds: Rounds of a full training.
        num_starters: That are to start.
    """
    halves = int(2 * config.trainings)
    while True:
        halves += 1
        brackets = race(config.model_copy(update={"trainings": halves / 2}), num_rounds)
        if sum(bracket[0].size for bracket in brackets) >= num_starters:
            return halves / 2


class RacingSearcher(Searcher):
    """Races configurations; those that the task gives start before all others."""

    has_own_budget = True

    def __init__(self, task: SearchTask) -> None:
        super().__init__(task)
        self.num_rounds = task.num_rounds
        self.brackets = race(task.settings.racing, task.num_rounds)
        self._told: dict[tuple[str, int], Trial] = {}
        starters = self._starters()
        self._entrants = [list(islice(starters, bracket[0].size)) for bracket in self.brackets]

    @property
    def trainings(self) -> float:
        """What the races cost if nobody fails, in full trainings."""
        return sum(rung_costs(bracket) for bracket in self.brackets) / self.num_rounds

    @property
    def never_started(self) -> tuple[str, ...]:
        """Strategies of which no configuration starts, nor an equivalent of their defaults."""
        return self._not_among([spec for entrants in self._entrants for spec in entrants])

    def notes(self) -> list[str]:
        """Return how many strategies never start, and with which budget each does once."""
        if not (left_out := self.never_started):
            return []
        starters = [*islice(self._starters(), len(self.task.first) + len(self.space.kinds))]
        needed = next(count for count in range(1, len(starters) + 1) if not self._not_among(starters[:count]))
        trainings = least_trainings(self.task.settings.racing, self.num_rounds, needed)
        return [
            f"{len(left_out)} of {len(self.space.kinds)} strategies never started in the race; "
            f"search.racing.trainings={trainings:g} lets each start once"
        ]

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the configurations of `plan`, without their rounds."""
        return [proposal.spec for proposal in self.plan(num_proposals)]

    def plan(self, num_proposals: int) -> list[Proposal]:
        """Return what the present rungs still have to train; nothing once all brackets are decided.

        The brackets go from rung to rung together.
        """
        states = [self._pending(*each) for each in zip(self.brackets, self._entrants, strict=True)]
        present = min((rung for rung, pending in states if pending), default=None)
        return [proposal for rung, pending in states if rung == present for proposal in pending][:num_proposals]

    def tell(self, evaluations: Sequence[Trial]) -> None:
        """Take in results of any rung."""
        super().tell(evaluations)
        for evaluation in evaluations:
            place = (self.space.digest(evaluation.spec), evaluation.asked_rounds or self.num_rounds)
            self._told.setdefault(place, evaluation)

    def _pending(self, bracket: Sequence[Rung], entrants: Sequence[StrategySpec]) -> tuple[int, list[Proposal]]:
        """Return the number of the present rung, and what it still has to train."""
        for number, rung in enumerate(bracket):
            size = rung.size
            while True:
                group = entrants[:size]
                found = [self._told.get((self.space.digest(spec), rung.num_rounds)) for spec in group]
                waiting = [spec for spec, evaluation in zip(group, found, strict=True) if evaluation is None]
                if waiting:
                    rounds = None if rung.num_rounds == self.num_rounds else rung.num_rounds
                    return number, [Proposal(spec, rounds) for spec in waiting]
                survivors = [each for each in found if each is not None and each.status == "completed"]
                if survivors or size >= len(entrants):
                    break
                size += rung.size  # all failed: the next best take their place
            entrants = [each.spec for each in best_first(survivors, self.task)]
        return len(bracket), []

    def _not_among(self, starters: Sequence[StrategySpec]) -> tuple[str, ...]:
        """Return the strategies of which some do not hold a configuration, nor an equivalent of their defaults."""
        labels = {spec.label for spec in starters}
        digests = self.archive.reference_digests.union(map(self.space.digest, starters))
        others = [kind for kind in self.space.kinds if kind not in labels]
        return tuple(kind for kind in others if self.space.digest(self.space.default(kind)) not in digests)

    def _starters(self) -> Iterator[StrategySpec]:
        """Yield distinct configurations, none of them a reference, until a thousand draws bring nothing new."""
        generator = stream(self.seed, "racing")
        kinds = [self.space.kinds[int(place)] for place in generator.permutation(len(self.space.kinds))]
        given = [spec for spec in self.task.first if self.space.contains(spec)]
        begun = {spec.label for spec in given}
        kinds.sort(key=lambda kind: kind in begun)  # none a second time before each has started once
        known = [*given, *(self.space.default(kind) for kind in kinds)]
        seen = set(self.archive.reference_digests)
        failures = 0
        while failures < RANDOM_DRAWS:
            spec = known.pop(0) if known else self.space.random(generator)
            digest = self.space.digest(spec)
            if digest in seen:
                failures += 1
                continue
            failures = 0
            seen.add(digest)
            yield spec
