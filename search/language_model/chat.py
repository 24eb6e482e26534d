"""What is asked of a language model and what it answers, as values.

Whoever needs a model takes a `Chat`: one that asks a server (`openai_chat`), one that keeps and repeats what was said
(`record`), or one that a test makes up.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal, Protocol

from pydantic import BaseModel, Field

from fedscout.search.plain_text import redact
from fedscout.search.recommender_config import PromptShape

Role = Literal["system", "user", "assistant"]


class Message(BaseModel, frozen=True, extra="forbid"):
    """One turn of a conversation."""

    role: Role
    content: str


class ChatRequest(BaseModel, frozen=True, extra="forbid"):
    """One question to a model.

    Attributes:
        model: Its name.
        temperature: Of the answer.
        seed: For servers that draw by seed, >= 0.
        max_answer_tokens: Longest answer.
        messages: The conversation so far.
        answer_schema: JSON schema of the answer; None where the model is not to be told it.
    """

    model: str
    temperature: float
    seed: int
    max_answer_tokens: int
    messages: tuple[Message, ...]
    answer_schema: dict[str, Any] | None

    def digest(self) -> str:
        """Return the SHA-256 of all of the request, in hexadecimal."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def redacted(self, secrets: Iterable[str]) -> ChatRequest:
        """Return the request as it may be sent and kept."""
        known = tuple(secrets)
        messages = tuple(Message(role=m.role, content=redact(m.content, known)) for m in self.messages)
        return self.model_copy(update={"messages": messages})


class ChatReply(BaseModel, frozen=True, extra="forbid"):
    """One answer of a model.

    Attributes:
        text: What it said; empty if nothing.
        finish_reason: Why it ended: `stop`, `length`, `content_filter` or a word of the server's.
        refusal: What it said where it refused to answer; None if it did not.
        model: The name that the server gives the model.
        prompt_tokens: Tokens of the request; None if the server does not count.
        completion_tokens: Tokens of the answer, likewise.
        cost_usd: What the two cost; None without a price.
    """

    text: str = ""
    finish_reason: str = ""
    refusal: str | None = None
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cost_usd: float | None = None


class Exchange(BaseModel, frozen=True, extra="forbid"):
    """One request with what came of it: a line of the record.

    Attributes:
        version: Of this form.
        time: When it was over, in UTC.
        server: The address that was asked.
        request_digest: Of the request as it was meant; what is kept of it is redacted.
        request: What was asked, without secrets.
        response_format: How the server was told the answer's form.
        left_out: Parameters that the server had refused before and that were not sent.
        statuses: HTTP status of every attempt that got one.
        reply: The answer; None if there was none.
        error: Why there was none, without secrets.
        seconds: From first attempt to last.
        prompt: What the request showed; None in records from before that could be chosen.
        withdraws: Whether it takes back what was answered to the request before.
    """

    version: Literal[1] = 1
    time: str
    server: str
    request_digest: str
    request: ChatRequest
    response_format: Literal["json_schema", "json_object", "text"]
    left_out: tuple[str, ...] = ()
    statuses: tuple[int, ...] = ()
    reply: ChatReply | None = None
    error: str | None = None
    seconds: float
    prompt: PromptShape | None = None
    withdraws: bool = Field(default=False, exclude_if=lambda withdraws: not withdraws)


class Chat(Protocol):
    """Answers requests."""

    def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's answer; equal requests get equal answers.

        Raises:
            RecommenderError: If there is none.
        """
        ...
