"""A language model that recommends a strategy or searches: one answer, sequential proposals, a hybrid, and one-shot.

**One answer**, from a diagnosis or a description by a person. The answer is validated against the search space of the
federation. An invalid one is returned to the model with its faults, up to three times; then the recommendation fails,
with the last answer and its faults. Constrained decoding does not enforce a number's range, and at temperature 0 a
small model repeats its wrong answer: from the second correction on the temperature is raised. A reason that repeats the
correction is not the model's own and is discarded.

**Multi-shot.** The model receives the diagnosis, if there is one, all earlier trials with their fitness, best first,
then the question; it is instructed to balance exploration and exploitation and never to repeat. So its trials run
sequentially. An invalid answer is returned with its faults, a repeated configuration with the trial that it repeats and
those tried before; from the second such answer on the temperature is raised, up to the limit of the settings. Without
any valid answer the study stops with an error, and asks again when it is resumed. If the valid answers for a trial are
all repetitions, the genetic search proposes it and the rest of the budget, with a note. The reference is not in the
prompt: a study may pass it before or after the first proposals, which must not depend on that. Proposals depend on the
model's answers; a study records them and repeats no request. A searcher that is given earlier trials asks for each of
them first, from the record, to find where the model gave up.

**Hybrid.** The first generation comes from the model. Its proposals are ordinary trials, so the genetic search uses
them as its first generation and continues with mutants of the best two.

**One-shot.** No search: only the recommended configuration is trained. It is recommended before the study's trials
begin, from the diagnosis or a description, by rules or by a language model. If it is FedAvg, which every study trains
as its reference, there are no further proposals.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

from fedscout.engine.errors import NoValidAnswerError
from fedscout.engine.trials.record import Trial
from fedscout.search.config import RecommenderConfig, one_line
from fedscout.search.language_model import Chat, ChatReply, ChatRequest, Message
from fedscout.search.recommenders import prompt
from fedscout.search.recommenders.diagnosis import Diagnosis, ModelUse, Reason, Recommendation, RecommendationContext
from fedscout.search.searcher import Searcher, SearchTask, ranking
from fedscout.search.searchers.genetic import GenerationalSearcher, GeneticSearcher
from fedscout.strategies import SearchSpace, StrategySpec

logger = logging.getLogger("fedscout")

LONGEST_RETURNED = 2000
"""Characters of an invalid answer that go back to the model."""
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""Minimum temperature of a request, by the number of invalid and refused answers in the conversation."""
QUOTED_SHARE = 0.5
"""A reason is a quotation if more than this share of its words stand in a correction: small models paraphrase it."""


@dataclass(frozen=True)
class LanguageModel:
    """A language model with its request settings.

    Attributes:
        chat: Answers requests.
        settings: Request settings.
        seed: Sampling seed, for servers that support it, >= 0.
    """

    chat: Chat
    settings: RecommenderConfig
    seed: int = 0

    def request(self, messages: Sequence[Message], space: SearchSpace, least_temperature: float = 0.0) -> ChatRequest:
        """Return the request for a strategy of a space."""
        return ChatRequest(
            model=self.settings.model,
            temperature=max(self.settings.temperature, least_temperature),
            seed=self.seed,
            max_answer_tokens=self.settings.max_answer_tokens,
            messages=tuple(messages),
            answer_schema=prompt.answer_schema(space) if self.settings.show_schema else None,
        )


@dataclass
class Conversation:
    """A conversation until a valid answer.

    Attributes:
        answer: The valid answer; None if there was none.
        replies: All answers of the model.
        faults: Faults of the last one, if it was invalid or refused.
        num_refused: Number of valid answers that were refused.
    """

    answer: prompt.Answer | None = None
    replies: list[ChatReply] = field(default_factory=list)
    faults: tuple[str, ...] = ()
    num_refused: int = 0


def converse(
    model: LanguageModel,
    messages: Sequence[Message],
    space: SearchSpace,
    refuse: Callable[[prompt.Answer], str | None] = lambda _: None,
    already_tried: Sequence[Mapping[str, Any]] = (),
) -> Conversation:
    """Request answers until one is valid, up to the limit of the settings.

    An invalid or refused answer is returned with its faults, a refused one also with the configurations tried before.
    If the next one is no better, the temperature is raised: at temperature 0 a model may repeat itself forever.

    Args:
        model: The language model.
        messages: System and user message.
        space: Search space of valid configurations.
        refuse: Returns why a valid answer is not acceptable; None if it is.
        already_tried: Included in the message after a refusal.

    Raises:
        RecommenderError: If the request fails.
    """
    conversation = Conversation()
    corrections: list[Message] = []
    for temperature in TEMPERATURES[: 1 + model.settings.max_corrections]:
        reply = model.chat.complete(model.request([*messages, *corrections], space, temperature))
        conversation.replies.append(reply)
        tried: Sequence[Mapping[str, Any]] = ()
        try:
            answer = prompt.read_answer(reply, space)
        except prompt.AnswerError as error:
            conversation.faults = error.faults
        else:
            if (refusal := refuse(answer)) is None:
                reason = "" if _quotes(answer.reason, corrections) else answer.reason
                conversation.answer, conversation.faults = replace(answer, reason=reason), ()
                break
            conversation.faults, tried = (refusal,), already_tried
            conversation.num_refused += 1
        corrections += prompt.correction(conversation.faults, (reply.refusal or reply.text)[:LONGEST_RETURNED], tried)
    return conversation


def _quotes(reason: str, corrections: Sequence[Message]) -> bool:
    """Return whether most words of a reason are from the corrections, other than from the answers returned in them."""
    corrections_text = " ".join(message.content for message in corrections if message.role == "user")
    words, sent = (
        {word for word in re.findall(r"\w+", text.lower()) if not word.isdigit()} for text in (reason, corrections_text)
    )
    return len(words & sent) > QUOTED_SHARE * len(words)


def opening_messages(context: RecommendationContext, settings: RecommenderConfig) -> list[Message]:
    """Return the messages of a first request for one answer."""
    return [prompt.system_message(context, settings.prompt), prompt.user_message(context, settings.format)]


def recommend_by_llm(context: RecommendationContext, model: LanguageModel) -> Recommendation:
    """Return a language model's recommendation.

    Args:
        context: Federation with a diagnosis, a description, or both.
        model: The language model.

    Raises:
        RecommenderError: If the request fails.
        NoValidAnswerError: If there is no valid answer.
    """
    settings = model.settings
    conversation = converse(model, opening_messages(context, settings), context.space)
    if conversation.answer is None:
        raise NoValidAnswerError(no_valid_answer(settings, conversation))
    answer, replies = conversation.answer, conversation.replies
    model_reason = Reason("language model", True, answer.reason or "It gave no reason.", f"{settings.model}'s answer")
    return Recommendation(
        spec=answer.spec,
        source="llm",
        reasons=(model_reason,),
        notes=tuple(answer.spec.notes(context.cohort)),
        diagnosis=context.diagnosis,
        model_use=ModelUse(
            model=settings.model,
            format=settings.format if context.diagnosis is not None else None,
            num_answers=len(replies),
            prompt_tokens=_sum([reply.prompt_tokens for reply in replies]),
            completion_tokens=_sum([reply.completion_tokens for reply in replies]),
        ),
    )


def _sum(values: Sequence[int | None]) -> int | None:
    """Return the sum; None if any value is unknown."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if len(numbers) == len(values) else None


def no_valid_answer(settings: RecommenderConfig, conversation: Conversation) -> str:
    """Return the error message for a model without a valid answer: its last one, and its faults."""
    count, last = len(conversation.replies), conversation.replies[-1]
    faults = one_line("; ".join(conversation.faults), 600)
    return (
        f"the language model {settings.model} must name a valid strategy, but gave {count} "
        f"invalid answer{'' if count == 1 else 's'}; the last was {one_line(last.refusal or last.text)!r}: {faults}"
    )


QUESTION = "propose one configuration that is not among the trials"


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
        self._context = RecommendationContext(
            task.space, task.num_rounds, task.settings.view, diagnosis, measure=task.measure
        )
        self._model = replace(model, seed=task.seed)
        self._genetic = GeneticSearcher(task)
        self._given = {task.space.digest(spec) for spec in task.first}
        self._answers: list[StrategySpec | None] = []
        self._gave_up_at: int | None = None

    @property
    def num_by_model(self) -> int:
        """Number of trials for which the model is asked, at most."""
        return self.task.settings.budget

    def tell(self, trials: Sequence[Trial]) -> None:
        """Add results."""
        super().tell(trials)
        self._genetic.tell(trials)

    def notes(self) -> list[str]:
        """Return a note on the trial from which the model proposed nothing new."""
        if self._gave_up_at is None:
            return []
        num_trials = min(len(self.archive.searched), self.num_by_model)
        return [
            f"{self._model.settings.model} only repeated configurations for trial {self._gave_up_at + 1}; the genetic "
            f"search proposed it and what followed, {num_trials - self._gave_up_at} of {num_trials} trials"
        ]

    def propose(self, number: int, earlier: Sequence[Trial], taken: set[str]) -> Iterator[StrategySpec]:
        """Yield the model's proposal, or the genetic search's after the model has given up.

        Raises:
            RecommenderError: If the request fails.
            NoValidAnswerError: If there is no valid answer.
        """
        del taken
        self._ask_model(earlier, number + 1)
        spec = self._answers[number] if number < len(self._answers) else None
        yield from self._genetic.ask(1) if spec is None else (spec,)

    def _ask_model(self, trials: Sequence[Trial], num_answers: int) -> None:
        """Ask for each trial in turn, up to a number of them, for which it has not been asked, until it gives up.

        It is not asked for trials that the task gave.
        """
        while self._gave_up_at is None and (number := len(self._answers)) < num_answers:
            is_given = number < len(trials) and self.space.digest(trials[number].spec) in self._given
            spec = None if is_given else self._next(trials[:number])
            self._answers.append(spec)
            if spec is None and not is_given:
                self._gave_up_at = number
                logger.warning(
                    "%s proposes nothing new for trial %d: the genetic search continues",
                    self._model.settings.model,
                    number + 1,
                )

    @cached_property
    def _system_message(self) -> Message:
        """The same for all trials, with examples by the rules."""
        return prompt.system_message(self._context, self._model.settings.prompt, searching=True)

    def _next(self, earlier: Sequence[Trial]) -> StrategySpec | None:
        """Return the model's proposal; None if all its valid answers are repetitions."""
        numbers = {self.space.digest(trial.spec): number for number, trial in enumerate(earlier, start=1)}

        def refuse(answer: prompt.Answer) -> str | None:
            digest = self.space.digest(answer.spec)
            if digest in numbers:
                return f"the configuration must be new, but is that of trial {numbers[digest]}"
            is_reference = digest in self.archive.reference_digests
            return "the configuration must be new, but is plain FedAvg or the same here" if is_reference else None

        settings = self._model.settings
        best_first = ranking(earlier, self.space)
        tried = [
            {"trial": numbers[self.space.digest(trial.spec)], "strategy": prompt.strategy_document(trial.spec)}
            | {"fitness": round(trial.fitness, 4)}
            | ({"failed": True} if trial.status == "failed" else {})
            for trial in best_first
        ]
        messages = [
            self._system_message,
            prompt.user_message(self._context, settings.format, {"trials": tried, prompt.WHAT_TO_DO: QUESTION}),
        ]
        already_tried = [
            prompt.strategy_document(spec) for spec in (*(trial.spec for trial in best_first), *self.task.references)
        ]
        conversation = converse(self._model, messages, self.space, refuse, already_tried)
        if conversation.answer is not None:
            return conversation.answer.spec
        if not conversation.num_refused:
            raise NoValidAnswerError(no_valid_answer(settings, conversation))
        return None


class LLMGeneticSearcher(MultiShotLLMSearcher):
    """Genetic search whose first generation is proposed by a language model."""

    @property
    def num_by_model(self) -> int:
        """Number of trials for which the model is asked, at most."""
        return self.task.settings.generation_size

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the model's next proposal, or a generation of the genetic search.

        Raises:
            RecommenderError: If the request fails.
            NoValidAnswerError: If there is no valid answer.
        """
        by_model = len(self.archive.searched) < self.num_by_model
        return super().ask(num_proposals) if by_model else self._genetic.ask(num_proposals)


class OneShotSearcher(Searcher):
    """Searcher that proposes only the first configuration of the task."""

    has_own_budget: ClassVar[bool] = True

    def ask(self, num_proposals: int) -> list[StrategySpec]:
        """Return the recommended configuration, until its result is added."""
        taken = self.archive.taken
        return [spec for spec in self.task.first[:1] if self.space.digest(spec) not in taken][:num_proposals]
