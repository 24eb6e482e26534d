"""What of a request a server understands: it says so by refusing the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from fedscout.search.language_model.chat import ChatRequest

ResponseFormat = Literal["json_schema", "json_object", "text"]

SCHEMA_NAME = "strategy_choice"
DISPENSABLE = ("temperature", "seed")


@dataclass(frozen=True)
class Dialect:
    """How a server is asked.

    Attributes:
        limit_names: What it may call the longest answer, in tokens; the first is tried.
        response_formats: How it may be told the answer's form; the first is tried.
        left_out: Parameters that it is not told.
    """

    limit_names: tuple[str, ...]
    response_formats: tuple[ResponseFormat, ...] = ("json_schema", "json_object", "text")
    left_out: tuple[str, ...] = ()

    @classmethod
    def first(cls, is_openai: bool) -> Dialect:
        """Return how a server is asked that has refused nothing yet."""
        names = ("max_completion_tokens", "max_tokens")
        return cls(names if is_openai else names[::-1])

    def for_request(self, request: ChatRequest) -> Dialect:
        """Return how a request is put: one without a schema asks for any JSON object."""
        if request.answer_schema is not None:
            return self
        return replace(self, response_formats=tuple(name for name in self.response_formats if name != "json_schema"))

    def without_refused(self, refusal: str) -> Dialect | None:
        """Return how to ask after a refusal; None if nothing is left to leave out.

        Args:
            refusal: The server's words, in lower case.
        """
        for name in DISPENSABLE:
            if name not in self.left_out and name in refusal:
                return replace(self, left_out=tuple(each for each in DISPENSABLE if each in {*self.left_out, name}))
        if len(self.limit_names) > 1 and self.limit_names[0] in refusal:
            return replace(self, limit_names=self.limit_names[1:])
        if len(self.response_formats) > 1:
            return replace(self, response_formats=self.response_formats[1:])
        return None

    def arguments(self, request: ChatRequest) -> dict[str, Any]:
        """Return the arguments of the API's call."""
        arguments: dict[str, Any] = {
            "model": request.model,
            "messages": [message.model_dump() for message in request.messages],
            self.limit_names[0]: request.max_answer_tokens,
        }
        arguments |= {name: getattr(request, name) for name in DISPENSABLE if name not in self.left_out}
        if self.response_formats[0] == "json_schema":
            schema = {"name": SCHEMA_NAME, "schema": request.answer_schema, "strict": True}
            arguments["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif self.response_formats[0] == "json_object":
            arguments["response_format"] = {"type": "json_object"}
        return arguments
