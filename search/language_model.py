"""What is asked of a language model and what it answers, as values.

Whoever needs a model takes a `Chat`: one that asks a server (`openai_chat`), one that keeps and repeats what was said
(`record`), or one that a test makes up.

Asks a server that speaks OpenAI's protocol, through OpenAI's own client.

The answer's form is asked for as a JSON schema. Not every server can hold a model to one, and each knows other
parameters, so a server's refusal (HTTP 400 or 422) is taken at its word, and the next request leaves out what it
named: first temperature, seed or the name of the token limit, then the schema (for any JSON object), then that (for
text). Every such exchange is kept, and a server is not asked again for what it has refused.

Busy and failing servers (HTTP 408, 409, 429, 5xx), lost connections and time-outs are repeated by the client, which
waits as long as `Retry-After` says, up to two minutes. The key comes from the environment and goes into the request's
header, nowhere else. Redirections are not followed: they would take the prompt to a server that nobody named.

The body is read here. The client's `chat.completions.parse` makes objects of it unchecked, raises where an answer was
cut off or withheld, which is to be kept and told the model, and takes a class where the answer's form is the space's.

The record of what was asked of a language model, and a model that is asked nothing twice.

    OUT/llm.jsonl       one exchange a line, in JSON, without secrets

What is in the record is answered from there. So a study that was cut off goes on with the answers that it had, and a
record alone, without a network, repeats a recommendation. An answer belongs to a request, all of it: model,
temperature, seed, schema and every message. If one letter of the prompt differs, the record has no answer to it. The
answers of a conversation that led to no valid one are withdrawn, so that the study asks again when it is run again.

A line that can't be read, such as the last one of a process that was killed while it wrote, is passed over and told.

HTTP answers that can't fill the memory or drip for ever.

A server is trusted with neither: what it sends is counted while it is read. Compressed answers are refused, as a few
bytes of them may be gigabytes.

What of a request a server understands: it says so by refusing the rest.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, Field, ValidationError

from fedscout.engine.errors import (
    EngineError,
    Fault,
    LogError,
    NoValidAnswerError,
    RecommenderError,
    UnreachableModelError,
)
from fedscout.engine.runtime.files import not_written
from fedscout.engine.runtime.storage import hand_on
from fedscout.search.config import PromptShape, RecommenderConfig, address_fault, one_line, redact

if TYPE_CHECKING:
    import openai


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


OPENAI_URL = "https://api.openai.com/v1"
NO_KEY_NEEDED = "none"
BUSY = (408, 409, 429)


def has_key(settings: RecommenderConfig) -> bool:
    """Return whether a model can be asked: the environment holds a key, or none is needed."""
    return settings.api_key_variable is None or bool(os.environ.get(settings.api_key_variable, "").strip())


def key_of(settings: RecommenderConfig) -> str:
    """Return the key.

    Raises:
        RecommenderError: If there is none.
    """
    if settings.api_key_variable is None:
        return NO_KEY_NEEDED
    key = os.environ.get(settings.api_key_variable, "").strip()
    if not key:
        raise RecommenderError(
            Fault(
                f"the environment variable {settings.api_key_variable}",
                "hold the key of a language model, and is not set",
                hint=(
                    "without one the rules recommend (--source rules), and a server that needs none is "
                    "named by recommender.base_url with recommender.api_key_variable=null"
                ),
            )
        )
    if not (key.isascii() and key.isprintable()):
        raise RecommenderError(Fault(f"the key in {settings.api_key_variable}", "be printable ASCII, and is not"))
    return key


def server_of(settings: RecommenderConfig) -> str:
    """Return the address of the server: the configuration's, else the environment's, else OpenAI's.

    Raises:
        RecommenderError: If the environment's is none, or holds a user or a password.
    """
    if settings.base_url is not None:
        return settings.base_url
    address = os.environ.get("OPENAI_BASE_URL", "").strip()
    if address and (fault := address_fault(address)):
        raise RecommenderError(Fault("OPENAI_BASE_URL", problem=fault))
    return address or OPENAI_URL


class OpenAIChat:
    """A connection to a server; closed by whoever opened it.

    Args:
        settings: Which server and model.
        on_exchange: Is told every exchange, failed ones included, without secrets.

    Raises:
        RecommenderError: If there is no key, or no address.
    """

    def __init__(self, settings: RecommenderConfig, on_exchange: Callable[[Exchange], None] = lambda _: None) -> None:
        self._key = key_of(settings)
        self._secrets = () if settings.api_key_variable is None else (self._key,)
        self._settings = settings
        self._on_exchange = on_exchange
        self._address = server_of(settings)
        self.server = redact(self._address, self._secrets)
        is_openai = self._address == OPENAI_URL
        self._price = settings.price(is_openai)
        self._dialect = Dialect.first(is_openai)
        self._statuses: list[int] = []
        self._client = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the connection back."""
        self._client.close()

    def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's answer.

        Raises:
            UnreachableModelError: If the server can't be reached, is too busy, fails or does not speak the protocol.
            RecommenderError: If it refuses the request.
        """
        meant = request.digest()
        request = request.redacted(self._secrets)
        while True:
            self._statuses.clear()
            started = time.monotonic()
            dialect = self._dialect.for_request(request)
            reply, error, refusal = self._try(request, dialect)
            self._on_exchange(
                Exchange(
                    time=datetime.now(UTC).isoformat(timespec="seconds"),
                    server=self.server,
                    request_digest=meant,
                    request=request,
                    response_format=dialect.response_formats[0],
                    left_out=dialect.left_out,
                    statuses=tuple(self._statuses),
                    reply=reply,
                    error=None if error is None else str(error),
                    seconds=round(time.monotonic() - started, 3),
                    prompt=self._settings.prompt,
                )
            )
            if reply is not None:
                return reply
            simpler = None if refusal is None else dialect.without_refused(refusal)
            if simpler is None:
                assert error is not None
                raise error
            self._dialect = simpler

    def _try(
        self, request: ChatRequest, dialect: Dialect
    ) -> tuple[ChatReply | None, RecommenderError | None, str | None]:
        """Return the answer, or the error and, if the server refused the request's form, its words."""
        import openai

        try:
            raw = self._client.chat.completions.with_raw_response.create(**dialect.arguments(request))
            return self._reply(raw.text), None, None
        except (openai.OpenAIError, UnboundedAnswerError) as fault:
            refuses = isinstance(fault, openai.APIStatusError) and fault.status_code in (400, 422)
            return None, self._error(fault), str(fault).lower() if refuses else None
        except RecommenderError as error:
            return None, error, None

    def _error(self, fault: Exception) -> RecommenderError:
        """Return what can happen to a connection as this program's error."""
        import openai

        where = f"the language model's server {self.server}"
        match fault:
            case openai.APIStatusError():
                return self._of_status(fault)
            case openai.APITimeoutError():
                seconds = f"{self._settings.timeout_seconds:g} s"
                return UnreachableModelError(Fault(where, f"answer within {seconds}, and did not"))
            case openai.APIConnectionError():
                return UnreachableModelError(Fault(where, f"be reachable, and is not: {self._shown(fault)}"))
            case openai.OpenAIError():
                return RecommenderError(Fault(where, problem=f"can't be used: {self._shown(fault)}"))
            case _:
                return UnreachableModelError(Fault(where, problem=f"can't be used: {fault}"))

    def _of_status(self, error: openai.APIStatusError) -> RecommenderError:
        """Return what an HTTP status means."""
        status, text = error.status_code, self._shown(error)
        where = f"the language model's server {self.server}"
        if status in BUSY or status >= 500:
            return UnreachableModelError(Fault(where, f"be able to answer, and answered {status}: {text}"))
        if 300 <= status < 400:
            return UnreachableModelError(
                Fault(where, f"answer itself, and sends the request on to {_origin(error)}, where it does not go")
            )
        if status in (401, 403):
            variable = self._settings.api_key_variable or "of recommender.api_key_variable"
            return RecommenderError(
                Fault(f"the key in {variable}", f"be one that {self.server} accepts ({status}: {text})")
            )
        return RecommenderError(
            Fault(where, (f"accept the request for model {self._settings.model!r}, and answered {status}: {text}"))
        )

    def _shown(self, error: Exception) -> str:
        cause = error.__cause__
        text = f"{error} {cause}" if cause is not None else str(error)
        return one_line(redact(text, self._secrets))

    def _reply(self, body: str) -> ChatReply:
        """Read a chat completion; nothing of it is trusted."""
        try:
            document = json.loads(body)
            choice = document["choices"][0]
            message = choice["message"]
            content, refusal = message.get("content"), message.get("refusal")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise UnreachableModelError(
                Fault(
                    f"the language model's server {self.server}",
                    "answer with a chat completion",
                    repr(one_line(redact(body, self._secrets))),
                )
            ) from None
        usage = document.get("usage")
        prompt_tokens, completion_tokens = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
        return ChatReply(
            text=self._text(content),
            finish_reason=self._text(choice.get("finish_reason")),
            refusal=self._text(refusal) or None,
            model=self._text(document.get("model"))[:200],
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            cost_usd=self._price and self._price.cost_usd(prompt_tokens, completion_tokens),
        )

    def _text(self, value: object) -> str:
        """Return a string of an answer without lone surrogates and secrets."""
        return redact(value.encode(errors="replace").decode(), self._secrets) if isinstance(value, str) else ""

    def _open(self) -> openai.OpenAI:
        import openai

        timeout = self._settings.timeout_seconds
        http_client = openai.DefaultHttpxClient(
            timeout=timeout,
            follow_redirects=False,
            event_hooks={"response": [self._keep_status, bounding_hook(timeout)]},
        )
        return openai.OpenAI(
            api_key=self._key,
            base_url=self._address,
            timeout=timeout,
            max_retries=self._settings.connection_retries,
            default_headers={"Accept-Encoding": "identity"},
            http_client=http_client,
        )

    def _keep_status(self, response: httpx2.Response) -> None:
        self._statuses.append(response.status_code)


def _origin(error: openai.APIStatusError) -> str:
    """Return where a redirection leads: no more of it than scheme, host and port."""
    try:
        parts = urlsplit(error.response.headers.get("location", ""))
        return one_line(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}") if parts.netloc else "another path"
    except ValueError:
        return "no address"


def _count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12 else None


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
        raise LogError(Fault("recorded exchanges", "be a file of JSON lines", f"{path}: {reason}")) from error
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
                raise RecommenderError(Fault("the recorded request", problem=f"was not answered: {known.error}"))
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


MAX_BYTES = 1_000_000


class UnboundedAnswerError(Exception):
    """A server sends more than an answer can be, or compresses it."""


class _BoundedStream(httpx2.SyncByteStream):
    """A body that is given up when it gets too long or takes too long."""

    def __init__(self, stream: httpx2.SyncByteStream, request: httpx2.Request, seconds: float) -> None:
        self._stream = stream
        self._request = request
        self._seconds = seconds

    def __iter__(self) -> Iterator[bytes]:
        deadline = time.monotonic() + self._seconds
        num_bytes = 0
        for chunk in self._stream:
            num_bytes += len(chunk)
            if num_bytes > MAX_BYTES:
                raise UnboundedAnswerError(f"its answer must have at most {MAX_BYTES} bytes, and has more")
            if time.monotonic() > deadline:
                raise httpx2.ReadTimeout("the answer drips", request=self._request)
            yield chunk

    def close(self) -> None:
        self._stream.close()


def bounding_hook(seconds: float) -> Callable[[httpx2.Response], None]:
    """Return a response hook for an HTTP client.

    Args:
        seconds: That the body of an answer may take.
    """

    def bound(response: httpx2.Response) -> None:
        coding = response.headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise UnboundedAnswerError(f"its answer must not be compressed, and is by {coding[:20]!r}")
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _BoundedStream(response.stream, response.request, seconds)

    return bound
