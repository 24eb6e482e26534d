"""Search by a language model: it is shown the trials so far and proposes the next one.

The model reads the diagnosis, if there is one, the trials of all earlier generations with their fitness, best first,
and those of the present one as running; it is asked to balance exploration and exploitation and never to repeat. An
invalid answer, or a repeated configuration, goes back with its faults, three times at most.

If the model can't be brought to a valid answer, the study stops with an error. If all that it proposes was there
before, the search ends, as nothing new is to be had from it, and says so.

The reference is not shown: a study may tell it before or after the first proposals, which must not depend on that. The
model's answers are part of what proposals depend on; a study keeps them and asks nothing twice.

The hybrid takes its first generation from the model. Its proposals are trials like others, so the genetic search takes
them for its own first generation and goes on with mutants of the best two. Where the model has less than a generation
to propose, random configurations fill it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from fedscout.engine.errors import NoValidAnswerError
from fedscout.engine.trials.trial_record import Trial
from fedscout.search.recommenders.answers import Answer, strategy_document
from fedscout.search.recommenders.diagnosis import Diagnosis
from fedscout.search.recommenders.llm_recommender import LanguageModel, converse, no_valid_answer
from fedscout.search.recommenders.prompt import system_message, user_message
from fedscout.search.recommenders.recommendation import Situation
from fedscout.search.searcher import SearchTask, ranking
from fedscout.search.searchers.generational import GenerationalSearcher
from fedscout.search.searchers.genetic_search import GeneticSearcher
from fedscout.strategies import StrategySpec

logger = logging.getLogger("fedscout")

REPEATED = "the configuration must be new, and was tried, is running, or is the same as FedAvg here"


class MultiShotLLMSearcher(GenerationalSearcher):
    """Asks a language model for each configuration.

    Args:
        task: What is searched for.
        model: Is asked.
        diagnosis: How the clients' data differ; None if that was not measured.
    """

    def __init__(self, task: SearchTask, model: LanguageModel, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(task)
        self._situation = Situation(task.space, task.num_rounds, task.settings.view, diagnosis, measure=task.measure)
        self._model = replace(model, seed=task.seed)

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield what the model proposes, until it has nothing new.

        Raises:
            RecommenderError: If it can't be asked.
            NoValidAnswerError: If it gives no valid answer.
        """
        del number
        running: list[StrategySpec] = []
        while (spec := self._next(earlier, running, taken)) is not None:
            running.append(spec)
            yield spec

    def _next(self, earlier: Sequence[Trial], running: Sequence[StrategySpec], taken: set[str]) -> StrategySpec | None:
        def refuse(answer: Answer) -> str | None:
            return REPEATED if self.space.digest(answer.spec) in taken else None

        settings = self._model.settings
        messages = [
            system_message(self._situation, settings.prompt, searching=True),
            user_message(self._situation, settings.format, self._history(earlier, running)),
        ]
        conversation = converse(self._model, messages, self.space, refuse)
        if conversation.answer is not None:
            return conversation.answer.spec
        if conversation.faults != (REPEATED,):
            raise NoValidAnswerError(no_valid_answer(settings, conversation))
        logger.warning("%s proposes nothing new any more: the search by it ends", settings.model)
        return None

    def _history(self, earlier: Sequence[Trial], running: Sequence[StrategySpec]) -> dict[str, Any]:
        """Return the trials as the model reads them."""
        tried = [
            {"strategy": strategy_document(told.spec), "fitness": round(told.fitness, 4)}
            | ({"failed": True} if told.status == "failed" else {})
            for told in ranking(earlier, self.space)
        ]
        return {"trials": tried, "running": [strategy_document(spec) for spec in running]}


class LLMGeneticSearcher(MultiShotLLMSearcher):
    """Proposes what a model does, then what the genetic search does."""

    def __init__(self, task: SearchTask, model: LanguageModel, diagnosis: Diagnosis | None = None) -> None:
        super().__init__(task, model, diagnosis)
        self._genetic = GeneticSearcher(task)

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield the model's proposals in the first generation, then the genetic search's.

        Raises:
            RecommenderError: If the model can't be asked.
            NoValidAnswerError: If it gives no valid answer.
        """
        if number == 0:
            yield from super().propose(number, earlier, taken)
        yield from self._genetic.propose(number, earlier, taken)
