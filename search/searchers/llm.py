"""Searchers based on a language model: sequential proposals, a hybrid with genetic search, and one-shot.

**Multi-shot.** The model receives the diagnosis, if there is one, and all earlier trials with their fitness, best
first; it is instructed to balance exploration and exploitation and never to repeat. So its trials run sequentially. An
invalid answer is returned with its faults, a repeated configuration with those tried before and then at a higher
temperature, up to the limit of the settings. Without any valid answer the study stops with an error, and asks again
when it is resumed. If all proposals for a trial are repetitions, the genetic search proposes that trial, with a note.
The reference is not in the prompt: a study may pass it before or after the first proposals, which must not depend on
that. Proposals depend on the model's answers; a study records them and repeats no request.

**Hybrid.** The first generation comes from the model. Its proposals are ordinary trials, so the genetic search uses
them as its first generation and continues with mutants of the best two.

**One-shot.** No search: only the recommended configuration is trained. It is recommended before the study's trials
begin, from the diagnosis or a description, by rules or by a language model. If it is FedAvg, which every study trains
as its reference, there are no further proposals.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from fedscout.engine.errors import NoValidAnswerError
from fedscout.engine.trials.record import Trial
from fedscout.search.recommenders.diagnosis import Diagnosis, RecommendationContext
from fedscout.search.recommenders.language_model import LanguageModel, converse, no_valid_answer
from fedscout.search.recommenders.prompt import Answer, strategy_document, system_message, user_message
from fedscout.search.searcher import Searcher, SearchTask, ranking
from fedscout.search.searchers.genetic import GenerationalSearcher, GeneticSearcher
from fedscout.strategies import StrategySpec

logger = logging.getLogger("fedscout")

REPEATED = "the configuration must be new, and was tried or is the same as FedAvg here"


class MultiShotLLMSearcher(GenerationalSearcher):
    """Searcher that requests each configuration from a language model, one at a time.

    Args:
        task: The search task.
        model: The language model.
        diagnosis: How the clients' data differ; None if not measured.
    """

    def __init__(self, task: SearchTask, model: LanguageModel, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(task)
        self.population = 1
        self._situation = RecommendationContext(
            task.space, task.num_rounds, task.settings.view, diagnosis, measure=task.measure
        )
        self._model = replace(model, seed=task.seed)
        self._genetic = GeneticSearcher(task)
        self._without_model: set[int] = set()

    def tell(self, trials: Sequence[Trial]) -> None:
        """Add results."""
        super().tell(trials)
        self._genetic.tell(trials)

    def notes(self) -> list[str]:
        """Return a note on the number of trials without a new proposal of the model."""
        if not self._without_model:
            return []
        number = len(self._without_model)
        return [f"{self._model.settings.model} repeated itself in {number} trials; the genetic search proposed these"]

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield the model's proposal, or the genetic search's if the model proposes nothing new.

        Raises:
            RecommenderError: If the request fails.
            NoValidAnswerError: If there is no valid answer.
        """
        spec = self._next(earlier, taken)
        if spec is not None:
            yield spec
            return
        self._without_model.add(number)
        logger.warning(
            "%s proposes nothing new for trial %d: the genetic search proposes it",
            self._model.settings.model,
            number + 1,
        )
        yield from self._genetic.ask(1)

    def _next(self, earlier: Sequence[Trial], taken: set[str]) -> StrategySpec | None:
        def refuse(answer: Answer) -> str | None:
            return REPEATED if self.space.digest(answer.spec) in taken else None

        settings = self._model.settings
        tried = self._tried(earlier)
        messages = [
            system_message(self._situation, settings.prompt, searching=True),
            user_message(self._situation, settings.format, {"trials": tried}),
        ]
        already_tried = [trial["strategy"] for trial in tried] + [
            strategy_document(spec) for spec in self.task.references
        ]
        conversation = converse(self._model, messages, self.space, refuse, already_tried)
        if conversation.answer is not None:
            return conversation.answer.spec
        if conversation.faults != (REPEATED,):
            raise NoValidAnswerError(no_valid_answer(settings, conversation))
        return None

    def _tried(self, earlier: Sequence[Trial]) -> list[dict[str, Any]]:
        """Return the trials in the form of the prompt."""
        return [
            {"strategy": strategy_document(trial.spec), "fitness": round(trial.fitness, 4)}
            | ({"failed": True} if trial.status == "failed" else {})
            for trial in ranking(earlier, self.space)
        ]


class LLMGeneticSearcher(MultiShotLLMSearcher):
    """Genetic search whose first generation is proposed by a language model."""

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the model's next proposal, or a generation of the genetic search.

        Raises:
            RecommenderError: If the request fails.
            NoValidAnswerError: If there is no valid answer.
        """
        by_model = len(self.archive.searched) < self.task.settings.generation_size
        return super().ask(num_proposals) if by_model else self._genetic.ask(num_proposals)


class OneShotSearcher(Searcher):
    """Searcher that proposes only the first configuration of the task."""

    has_own_budget: ClassVar[bool] = True

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the recommended configuration, until its result is added."""
        taken = self.archive.taken
        return [spec for spec in self.task.first[:1] if self.space.digest(spec) not in taken][:num_proposals]
