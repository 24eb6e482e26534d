"""Searchers that propose generation by generation: a fixed number of trials that are evaluated at once.

What a generation proposes depends on the seed, its number and the results of the generations before it; not on the
order within a generation, nor on how many are asked for at a time. So a generation that was cut in the middle is
completed with the trials that it lacked. Results told from elsewhere count as trials of a generation.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np

from fedscout.engine.trials.trial_record import Trial
from fedscout.search.searcher import Searcher, SearchTask
from fedscout.strategies import StrategySpec

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
