"""Search by a language model: it is shown every earlier trial with its result and proposes the next one.

The model reads the diagnosis, if there is one, and all trials so far with their fitness, best first; it is asked to
balance exploration and exploitation and never to repeat. So its trials run one after the other. An invalid answer goes
back with its faults, a repeated configuration with what was tried and then at a higher temperature, as often as the
settings allow.

If the model can't be brought to a valid answer, the study stops with an error, and asks again when it is run again. If
all that it proposes for a trial was there before, the genetic search proposes that trial, and the study says so.

The reference is not shown: a study may tell it before or after the first proposals, which must not depend on that. The
model's answers are part of what proposals depend on; a study keeps them and asks nothing twice.

The hybrid takes its first generation from the model. Its proposals are trials like others, so the genetic search takes
them for its own first generation and goes on with mutants of the best two.

No search: the one configuration that was recommended without a trial is trained, and that is all.

The recommendation is made before the study's trials begin, from the diagnosis or a person's words, by rules or by a
language model. Where it is FedAvg, which every study trains as its reference, nothing further is proposed.
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
    """Asks a language model for each configuration, one at a time.

    Args:
        task: What is searched for.
        model: Is asked.
        diagnosis: How the clients' data differ; None if that was not measured.
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
        """Take in trials."""
        super().tell(trials)
        self._genetic.tell(trials)

    def notes(self) -> list[str]:
        """Return how many trials the model proposed nothing new for."""
        if not self._without_model:
            return []
        number = len(self._without_model)
        return [f"{self._model.settings.model} repeated itself for {number} trials, which the genetic search proposed"]

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield what the model proposes, or the genetic search where the model has nothing new.

        Raises:
            RecommenderError: If it can't be asked.
            NoValidAnswerError: If it gives no valid answer.
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
        """Return the trials as the model reads them."""
        return [
            {"strategy": strategy_document(told.spec), "fitness": round(told.fitness, 4)}
            | ({"failed": True} if told.status == "failed" else {})
            for told in ranking(earlier, self.space)
        ]


class LLMGeneticSearcher(MultiShotLLMSearcher):
    """Proposes what a model does in the first generation, then what the genetic search does."""

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the model's next proposal, or a generation of the genetic search.

        Raises:
            RecommenderError: If the model can't be asked.
            NoValidAnswerError: If it gives no valid answer.
        """
        by_model = len(self.archive.searched) < self.task.settings.generation_size
        return super().ask(num_proposals) if by_model else self._genetic.ask(num_proposals)


class OneShotSearcher(Searcher):
    """Proposes the first configuration that it is given."""

    has_own_budget: ClassVar[bool] = True

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the recommended configuration, until it is told."""
        taken = self.archive.taken
        return [spec for spec in self.task.first[:1] if self.space.digest(spec) not in taken][:num_proposals]
