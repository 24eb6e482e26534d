"""One-shot recommendation by a language model from a diagnosis or a description by a person.

The answer is validated against the search space of the federation. An invalid one is returned to the model with its
faults, up to three times; then the recommendation fails, with the last answer and its faults. Constrained decoding does
not enforce a number's range, and at temperature 0 a small model repeats its wrong answer: from the second correction on
the temperature is raised. A reason that repeats the correction is not the model's own and is discarded.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

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
            answer_schema=answer_schema(space) if self.settings.show_schema else None,
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

    answer: Answer | None = None
    replies: list[ChatReply] = field(default_factory=list)
    faults: tuple[str, ...] = ()
    num_refused: int = 0


def converse(
    model: LanguageModel,
    messages: Sequence[Message],
    space: SearchSpace,
    refuse: Callable[[Answer], str | None] = lambda _: None,
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
            answer = read_answer(reply, space)
        except AnswerError as error:
            conversation.faults = error.faults
        else:
            if (refusal := refuse(answer)) is None:
                reason = "" if _quotes(answer.reason, corrections) else answer.reason
                conversation.answer, conversation.faults = replace(answer, reason=reason), ()
                break
            conversation.faults, tried = (refusal,), already_tried
            conversation.num_refused += 1
        corrections += correction(conversation.faults, (reply.refusal or reply.text)[:LONGEST_RETURNED], tried)
    return conversation


def _quotes(reason: str, corrections: Sequence[Message]) -> bool:
    """Return whether most words of a reason are from the corrections, other than from the answers returned in them."""
    corrections_text = " ".join(message.content for message in corrections if message.role == "user")
    words, sent = (
        {word for word in re.findall(r"\w+", text.lower()) if not word.isdigit()} for text in (reason, corrections_text)
    )
    return len(words & sent) > QUOTED_SHARE * len(words)


def recommend_by_llm(situation: RecommendationContext, model: LanguageModel) -> Recommendation:
    """Return a language model's recommendation.

    Args:
        situation: Federation with a diagnosis, a description, or both.
        model: The language model.

    Raises:
        RecommenderError: If the request fails.
        NoValidAnswerError: If there is no valid answer.
    """
    settings = model.settings
    messages = [system_message(situation, settings.prompt), user_message(situation, settings.format)]
    conversation = converse(model, messages, situation.space)
    if conversation.answer is None:
        raise NoValidAnswerError(no_valid_answer(settings, conversation))
    answer, replies = conversation.answer, conversation.replies
    model_reason = Reason("language model", True, answer.reason or "It gave no reason.", f"{settings.model}'s answer")
    return Recommendation(
        spec=answer.spec,
        source="llm",
        reasons=(model_reason,),
        notes=tuple(answer.spec.notes(situation.cohort)),
        diagnosis=situation.diagnosis,
        model_use=ModelUse(
            model=settings.model,
            format=settings.format if situation.diagnosis is not None else None,
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
