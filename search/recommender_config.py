"""The configuration of one-shot recommendation; the language model's key is never part of it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, Field, field_validator, model_validator

from fedscout.search.plain_text import one_line, redact

PromptFormat = Literal["A", "B", "C"]
SourceChoice = Literal["auto", "rules", "llm"]

LONGEST_DESCRIPTION = 4000
"""Characters of a person's words."""

NO_PART_OF_THE_IDENTITY = (
    "base_url",
    "api_key_variable",
    "timeout_seconds",
    "connection_retries",
    "prices",
    "replay",
)
"""Settings that decide where and how long a model is asked, not what it is asked."""


class PromptShape(BaseModel, frozen=True, extra="forbid"):
    """What a prompt shows, as far as that can be chosen.

    Attributes:
        format: Of the diagnosis.
        show_schema: Whether the answer's schema is shown, and the server told it.
        few_shot: Whether examples of answers are shown.
    """

    format: PromptFormat = "B"
    show_schema: bool = True
    few_shot: bool = True


class Price(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """What a model costs.

    Attributes:
        input: US dollars for a million tokens of the prompt.
        output: US dollars for a million tokens of the answer.
    """

    input: float = Field(ge=0)
    output: float = Field(ge=0)

    def cost_usd(self, prompt_tokens: int | None, completion_tokens: int | None) -> float | None:
        """Return what an answer cost; None where its tokens are not known."""
        if prompt_tokens is None or completion_tokens is None:
            return None
        return (prompt_tokens * self.input + completion_tokens * self.output) / 1e6


OPENAI_PRICES: Mapping[str, Price] = {
    "gpt-4.1": Price(input=2.0, output=8.0),
    "gpt-4.1-mini": Price(input=0.4, output=1.6),
    "gpt-4.1-nano": Price(input=0.1, output=0.4),
    "gpt-4o": Price(input=2.5, output=10.0),
    "gpt-4o-mini": Price(input=0.15, output=0.6),
}
"""What OpenAI published in April 2025 with GPT-4.1 (openai.com/api/pricing); it holds for its own server alone."""


class RecommenderConfig(BaseModel, frozen=True, extra="forbid", allow_inf_nan=False):
    """Who is asked for a strategy, and how a language model is."""

    source: SourceChoice = Field(
        default="auto", description="who recommends: auto is a language model if there is a key for one, else the rules"
    )
    text: str | None = Field(
        default=None,
        max_length=LONGEST_DESCRIPTION,
        description="how the clients' data differ, in a person's words, which a language model reads",
    )

    model: str = Field(default="gpt-4.1", min_length=1, max_length=200, description="the language model")
    base_url: str | None = Field(
        default=None, description="of a server that speaks OpenAI's protocol; nothing means OpenAI's own"
    )
    api_key_variable: str | None = Field(
        default="OPENAI_API_KEY", description="environment variable that holds the key; nothing means none is needed"
    )
    temperature: float = Field(default=0.0, ge=0, le=2, description="of the model's answers")
    format: PromptFormat = Field(
        default="B", description="of the diagnosis: A raw statistics alone, B yes or no, C with severity"
    )
    show_schema: bool = Field(
        default=True, description="the model is told the schema of its answer: strategies, parameters, ranges"
    )
    few_shot: bool = Field(default=True, description="the model is shown examples of a diagnosis and its answer")
    max_answer_tokens: int = Field(default=1000, ge=50, le=100_000, description="longest answer of the model")
    max_corrections: int = Field(
        default=3, ge=0, le=3, description="times that an invalid answer goes back with its faults"
    )
    timeout_seconds: float = Field(default=60.0, gt=0, le=3600, description="of one request to the model")
    connection_retries: int = Field(
        default=2, ge=0, le=10, description="repetitions where the model's server is busy or out of reach"
    )
    prices: Mapping[str, Price] = Field(
        default={}, description="US dollars for a million tokens, such as {my-model: {input: 2, output: 8}}"
    )
    replay: Path | None = Field(
        default=None, description="recorded exchanges (llm.jsonl) that answer in the model's place, without a network"
    )

    @property
    def prompt(self) -> PromptShape:
        """What a prompt shows."""
        return PromptShape(format=self.format, show_schema=self.show_schema, few_shot=self.few_shot)

    @field_validator("text")
    @classmethod
    def _says_something(cls, text: str | None) -> str | None:
        if text is not None and not text.strip():
            raise ValueError("must say how the clients' data differ, got nothing")
        return None if text is None else redact(text)  # it is written into log and result

    @field_validator("base_url")
    @classmethod
    def _is_an_address(cls, base_url: str | None) -> str | None:
        if base_url is not None and (fault := address_fault(base_url)):
            raise ValueError(fault)
        return base_url

    @field_validator("api_key_variable")
    @classmethod
    def _is_a_name(cls, name: str | None) -> str | None:
        if name is not None and not _VARIABLE.fullmatch(name):
            raise ValueError(
                "must be the name of an environment variable, of capitals, digits and _, such as OPENAI_API_KEY; what "
                "was given is not repeated here, as it may be the key itself"
            )
        return name

    def price(self, is_openai: bool) -> Price | None:
        """Return what the model costs: the configured price, else OpenAI's on its own server; None if not known."""
        return self.prices.get(self.model) or (OPENAI_PRICES.get(self.model) if is_openai else None)

    @model_validator(mode="after")
    def _openai_needs_a_key(self) -> Self:
        if self.api_key_variable is None and self.base_url is None:
            raise ValueError("api_key_variable must name a variable where base_url is not given: OpenAI needs a key")
        return self


_ADDRESS = "must be an address such as http://127.0.0.1:8000/v1"
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*", re.ASCII)


def address_fault(address: str) -> str | None:
    """Return why an address of a server can't be used, without what may be secret in it; None if it can."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
        (parts.hostname or "").encode("idna")  # as it is looked up
    except ValueError:
        return _ADDRESS
    if "@" in address or parts.query or parts.fragment:
        return f"{_ADDRESS}, without user, password, query or fragment: these are not repeated here"
    if not (usable and address.isprintable() and " " not in address):
        return f"{_ADDRESS}, got {redact(one_line(address))!r}"
    return None
