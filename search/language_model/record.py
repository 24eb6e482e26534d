"""The record of what was asked of a language model, and a model that is asked nothing twice.

    OUT/llm.jsonl       one exchange a line, in JSON, without secrets

What is in the record is answered from there. So a study that was cut off goes on with the answers that it had, and a
record alone, without a network, repeats a recommendation. An answer belongs to a request, all of it: model,
temperature, seed, schema and every message. If one letter of the prompt differs, the record has no answer to it. The
answers of a conversation that led to no valid one are withdrawn, so that the study asks again when it is run again.

A line that can't be read, such as the last one of a process that was killed while it wrote, is passed over and told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import ValidationError

from fedscout.engine.errors import EngineError, Fault, LogError, NoValidAnswerError, RecommenderError
from fedscout.engine.runtime.atomic_file import not_written
from fedscout.engine.runtime.storage import hand_on
from fedscout.search.language_model.chat import ChatReply, ChatRequest, Exchange
from fedscout.search.language_model.openai_chat import OpenAIChat
from fedscout.search.plain_text import one_line
from fedscout.search.recommender_config import RecommenderConfig

NAME = "llm.jsonl"
OPENING = 2
"""Messages of a request that begins a conversation: instruction and question."""

logger = logging.getLogger("fedscout")

Line = TypeVar("Line")


class Transcript:
    """A file of exchanges, read once and added to.

    Args:
        path: The file; it need not be there yet.
        must_exist: Whether it has to be there.

    Raises:
        LogError: If it can't be read, or is not there and must be.
    """

    def __init__(self, path: Path, must_exist: bool = False) -> None:
        self.path = path
        self._ends_whole = True
        self._exchanges = self._read(must_exist)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """All that can be read, in order."""
        return tuple(self._exchanges)

    def find(self, request_digest: str) -> Exchange | None:
        """Return the exchange on a request: the first that brought an answer, else the last that failed.

        What stands before a withdrawal of the request does not count.
        """
        found: list[Exchange] = []
        for exchange in self._exchanges:
            if exchange.request_digest == request_digest:
                found = [] if exchange.withdraws else [*found, exchange]
        return next((exchange for exchange in found if exchange.reply is not None), found[-1] if found else None)

    def add(self, exchange: Exchange) -> None:
        """Keep an exchange, on disk before anything else happens.

        Raises:
            EngineError: If it can't be written, as when the disk is full.
        """
        line = ("" if self._ends_whole else "\n") + exchange.model_dump_json() + "\n"
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            hand_on(self.path)
        except OSError as error:
            raise EngineError(not_written(self.path, error)) from error
        self._ends_whole = True
        self._exchanges.append(exchange)

    def _read(self, must_exist: bool) -> list[Exchange]:
        if not self.path.exists() and not must_exist:
            return []
        exchanges, self._ends_whole = read_lines(self.path, Exchange.model_validate_json)
        if must_exist and not exchanges:
            raise LogError(Fault("recorded exchanges", "hold at least one", f"{self.path} without any"))
        return exchanges


def read_lines(path: Path, read: Callable[[str], Line]) -> tuple[list[Line], bool]:
    """Return the lines of a record that can be read, and whether its last one is whole.

    Args:
        path: The file.
        read: Makes a value of a line's JSON, or raises a `ValidationError`.

    Raises:
        LogError: If it is no file that can be read.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError(2, "it is no file")
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is no UTF-8 text"
        raise LogError(f"recorded exchanges must be a file of JSON lines, got {path}: {reason}") from error
    found = []
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: U+2028 may stand in a text
        if not line.strip():
            continue
        try:
            found.append(read(line))
        except ValidationError as error:
            fault = one_line(str(error.errors()[0]["msg"]), 100)
            logger.warning("line %d of %s can't be read and is passed over (%s)", number, path, fault)
    return found, not text or text.endswith("\n")


class RecordedChat:
    """Answers from a record, and asks a server for what is not in it; closed by whoever opened it.

    Args:
        settings: Names the server, or the record that replaces it.
        transcript: Where exchanges are kept and looked up; None keeps them nowhere.

    Raises:
        LogError: If the record to be replayed can't be read.
    """

    def __init__(self, settings: RecommenderConfig, transcript: Transcript | None) -> None:
        self._settings = settings
        self._transcript = transcript
        self._replayed = None if settings.replay is None else Transcript(settings.replay, must_exist=True)
        self._live: OpenAIChat | None = None
        self._conversation: list[Exchange] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, NoValidAnswerError) and self._transcript is not None:
            for exchange in self._conversation:  # else the study would fail at the same answers when it is run again
                self._transcript.add(exchange.model_copy(update={"reply": None, "withdraws": True}))
        if self._live is not None:
            self._live.close()
            self._live = None

    def complete(self, request: ChatRequest) -> ChatReply:
        """Return the recorded answer, or ask for one and record it.

        Raises:
            RecommenderError: If there is none.
        """
        digest = request.digest()
        if len(request.messages) <= OPENING:
            self._conversation.clear()
        reply = self._answer(request, digest)
        if self._transcript is not None and (kept := self._transcript.find(digest)) is not None:
            self._conversation.append(kept)
        return reply

    def _answer(self, request: ChatRequest, digest: str) -> ChatReply:
        for record in filter(None, (self._transcript, self._replayed)):
            known = record.find(digest)
            if known is not None and known.reply is not None:
                if record is self._replayed:
                    self._keep(known)
                return known.reply
            if known is not None and self._replayed is not None:
                raise RecommenderError(f"the recorded request was not answered: {known.error}")
        if self._replayed is not None:
            raise RecommenderError(_not_recorded(request, self._replayed))
        if self._live is None:
            self._live = OpenAIChat(self._settings, self._keep)
        return self._live.complete(request)

    def _keep(self, exchange: Exchange) -> None:
        if self._transcript is not None:
            self._transcript.add(exchange)


def _not_recorded(request: ChatRequest, replayed: Transcript) -> str:
    """Return why a record does not answer a request: what differs in the one that is most like it."""
    asked = request.redacted(()).model_dump(mode="json")

    def differences(exchange: Exchange) -> list[str]:
        return _differences(asked, exchange.request.model_dump(mode="json"))

    nearest = min((differences(exchange) for exchange in replayed.exchanges), key=len)
    what = ", ".join(nearest) or "what was taken out of it as a secret"
    return (
        f"recorded exchanges must hold the answer to the request that is made, got {replayed.path}, whose most similar "
        f"request differs in {what}: it was recorded for other settings, another diagnosis or another version"
    )


def _differences(asked: dict[str, Any], recorded: dict[str, Any]) -> list[str]:
    found = []
    for name, value in asked.items():
        other = recorded[name]
        if value == other:
            continue
        if name == "messages":
            found += [
                f"message {number} ({here['role']})"
                for number, (here, there) in enumerate(zip(value, other, strict=False), start=1)
                if here != there
            ]
            found += [f"the number of messages ({len(other)} there, {len(value)} here)"] * (len(value) != len(other))
        elif name == "answer_schema":
            found.append("the strategies and ranges to choose from")
        else:
            found.append(f"{name} ({other!r} there, {value!r} here)")
    return found
