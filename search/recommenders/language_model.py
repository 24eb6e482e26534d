"""One-shot recommendation by a language model: it is shown a diagnosis, or a person's words, and names a strategy.

Its answer is validated against the search space of the federation. An invalid one goes back with its faults, three
times at most; then the recommendation fails, with the last answer and what was wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fedscout.engine.errors import NoValidAnswerError
from fedscout.search.config import RecommenderConfig, one_line
from fedscout.search.language_model import Chat, ChatReply, ChatRequest, Message
from fedscout.search.recommenders.diagnosis import ModelUse, Reason, Recommendation, RecommendationContext
from fedscout.search.recommenders.prompt import (
    Answer,
    AnswerError,
    answer_schema,
    correction,
    read_answer,
    system_message,
    user_message,
)
from fedscout.strategies import SearchSpace

LONGEST_RETURNED = 2000
"""Characters of an invalid answer that go back to the model."""
TEMPERATURES = (0.0, 0.0, 0.7, 1.0)
"""The least of a request, by how many answers of the conversation were refused."""


@dataclass(frozen=True)
class LanguageModel:
    """A model that can be asked.

    Attributes:
        chat: Answers requests.
        settings: Of the requests.
        seed: For servers that draw by seed, >= 0.
    """

    chat: Chat
    settings: RecommenderConfig
    seed: int = 0

    def request(self, messages: Sequence[Message], space: SearchSpace, least_temperature: float = 0.0) -> ChatRequest:
        """Return the request that asks for a strategy of a space."""
        return ChatRequest(
            model=self.settings.model,
            temperature=max(self.settings.temperature, least_temperature),
            seed=self.seed,
            max_answer_tokens=self.settings.max_answer_tokens,
            messages=tuple(messages),
            answer_schema=answer_schema(space) if self.settings.show_schema else None,
        )


@dataclass
class Conversation:
    """What was said until a model gave a valid answer.

    Attributes:
        answer: The valid one; None if there was none.
        replies: All of its answers.
        faults: Of the last one, if it was invalid.
    """

    answer: Answer | None = None
    replies: list[ChatReply] = field(default_factory=list)
    faults: tuple[str, ...] = ()

    @property
    def last_answer(self) -> str:
        """The last answer for an error's text: one line, cut."""
        if not self.replies:
            return ""
        last = self.replies[-1]
        return one_line(last.refusal or last.text)


def converse(
    model: LanguageModel,
    messages: Sequence[Message],
    space: SearchSpace,
    refuse: Callable[[Answer], str | None] = lambda _: None,
    already_tried: Sequence[Mapping[str, Any]] = (),
) -> Conversation:
    """Ask until the answer is valid, as often as the settings allow.

    An answer that is refused goes back with what was tried. If the next one is refused, too, the temperature rises: at
    temperature 0 a model may repeat itself for ever.

    Args:
        model: Is asked.
        messages: Instruction and question.
        space: What it may choose from.
        refuse: Returns why a valid answer will not do; None if it does.
        already_tried: Told with a refusal.

    Raises:
        RecommenderError: If the model can't be asked.
    """
    said = list(messages)
    conversation = Conversation()
    num_refused = 0
    for _ in range(1 + model.settings.max_corrections):
        temperature = TEMPERATURES[min(num_refused, len(TEMPERATURES) - 1)]
        reply = model.chat.complete(model.request(said, space, temperature))
        conversation.replies.append(reply)
        returned = (reply.refusal or reply.text)[:LONGEST_RETURNED]
        try:
            answer = read_answer(reply, space)
        except AnswerError as error:
            conversation.faults = error.faults
            said += correction(error.faults, returned)
            continue
        if (reason := refuse(answer)) is None:
            conversation.answer, conversation.faults = answer, ()
            break
        num_refused += 1
        conversation.faults = (reason,)
        said += correction((reason,), returned, already_tried)
    return conversation


def recommend_by_llm(situation: RecommendationContext, model: LanguageModel) -> Recommendation:
    """Return a language model's recommendation.

    Args:
        situation: Has a diagnosis, a description, or both.
        model: Is asked.

    Raises:
        RecommenderError: If it can't be asked.
        NoValidAnswerError: If it gives no valid answer.
    """
    settings = model.settings
    messages = [system_message(situation, settings.prompt), user_message(situation, settings.format)]
    conversation = converse(model, messages, situation.space)
    if conversation.answer is None:
        raise NoValidAnswerError(no_valid_answer(settings, conversation))
    answer, replies = conversation.answer, conversation.replies
    ground = Reason("language model", True, answer.reason or "it gave no reason", f"{settings.model}'s answer")
    return Recommendation(
        spec=answer.spec,
        source="llm",
        grounds=(ground,),
        notes=tuple(answer.spec.notes(situation.cohort)),
        diagnosis=situation.diagnosis,
        model_use=ModelUse(
            model=settings.model,
            format=settings.format if situation.diagnosis is not None else None,
            num_answers=len(replies),
            prompt_tokens=_sum([reply.prompt_tokens for reply in replies]),
            completion_tokens=_sum([reply.completion_tokens for reply in replies]),
            cost_usd=_sum([reply.cost_usd for reply in replies]),
        ),
    )


Number = TypeVar("Number", int, float)


def _sum(values: Sequence[Number | None]) -> Number | None:
    """Return a sum; None if a part of it is not known."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def no_valid_answer(settings: RecommenderConfig, conversation: Conversation) -> str:
    """Return the error of a model that gave no valid answer: its last one, and what was wrong with it."""
    count = len(conversation.replies)
    faults = one_line("; ".join(conversation.faults), 600)
    return (
        f"the language model {settings.model} must name a valid strategy, and gave {count} "
        f"answer{'' if count == 1 else 's'} of which none is; the last was {conversation.last_answer!r}: {faults}"
    )
