"""Language-model access: chat requests and replies, a client for OpenAI-compatible servers, and a record of exchanges.

Callers depend on the `Chat` protocol, implemented by a server client (`OpenAIChat`), by a recording and replaying
wrapper (`RecordedChat`), or by a test double.

**Server.** Requests use OpenAI's own client. The answer's form is requested as a JSON schema. Servers differ in the
parameters and response formats that they support, so if a server refuses a request (HTTP 400 or 422), the next one
omits what the refusal names: first temperature, seed, the schema's `maxLength` or the name of the token limit, then the
schema (for any JSON object), then JSON mode (for text). Every such exchange is recorded, and the refused parameters are
not sent to the server again. Busy and failing servers (HTTP 408, 409, 429, 5xx), lost connections and timeouts are
retried by the client, which respects `Retry-After` up to two minutes. The key is read from the environment and sent in
the request's header only. Redirects are not followed: they would send the prompt to a server that the user did not
configure.

The response body is parsed here: the client's `chat.completions.parse` builds unvalidated objects, raises on truncated
or filtered answers, which must be recorded and reported to the model, and requires a class, whereas the schema depends
on the search space. Responses are limited in size and duration while they are read. Compressed responses are refused,
as a few bytes may expand to gigabytes.

**Record.** Exchanges are appended, without secrets, to

    OUT/llm.jsonl       one exchange a line, in JSON

Recorded requests are answered from the record. So an interrupted study resumes with the same answers, and a record
alone reproduces a recommendation without a network. The key is the whole request (model, temperature, seed, schema and
every message; any difference in the prompt is a cache miss) and the server's address, as servers may give one name to
different models. A record that is replayed without a configured address answers for the server that it was made with.
The answers of a conversation without a valid answer are withdrawn, so that the study asks again when it is resumed.
Unreadable lines, such as a partial last line of a killed process, are skipped with a warning.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import logging
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self

import httpx2
from pydantic import BaseModel, Field, ValidationError

from fedscout.engine.errors import EngineError, LogError, NoValidAnswerError, RecommenderError, UnreachableModelError
from fedscout.engine.runtime.files import not_written, upload
from fedscout.search.config import PromptShape, RecommenderConfig, address_fault, one_line, redact

if TYPE_CHECKING:
    import openai


Role = Literal["system", "user", "assistant"]
ResponseFormat = Literal["json_schema", "json_object", "text"]


class Message(BaseModel, frozen=True, extra="forbid"):
    """One turn of a conversation."""

    role: Role
    content: str


class ChatRequest(BaseModel, frozen=True, extra="forbid"):
    """One request to a model.

    Attributes:
        model: Name of the model.
        temperature: Sampling temperature.
        seed: Sampling seed, for servers that support it, >= 0.
        max_answer_tokens: Token limit of the answer.
        messages: The conversation so far.
        answer_schema: JSON schema of the answer; None if it is not sent.
    """

    model: str
    temperature: float
    seed: int
    max_answer_tokens: int
    messages: tuple[Message, ...]
    answer_schema: dict[str, Any] | None

    def digest(self) -> str:
        """Return the SHA-256 of the whole request, in hexadecimal."""
        text = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def redacted(self, secrets: Iterable[str]) -> ChatRequest:
        """Return the request without secrets."""
        secret_values = tuple(secrets)
        messages = tuple(Message(role=m.role, content=redact(m.content, secret_values)) for m in self.messages)
        return self.model_copy(update={"messages": messages})


class ChatReply(BaseModel, frozen=True):
    """One answer of a model.

    Attributes:
        text: Text of the answer; may be empty.
        finish_reason: Why it ended: `stop`, `length`, `content_filter` or a server-specific reason.
        refusal: Text of a refusal to answer; None if there is none.
        model: Name of the model as given by the server.
        prompt_tokens: Tokens of the request; None if the server does not count.
        completion_tokens: Tokens of the answer; None if the server does not count.
    """

    text: str = ""
    finish_reason: str = ""
    refusal: str | None = None
    model: str = ""
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class Exchange(BaseModel, frozen=True, extra="forbid"):
    """One request with its outcome: a line of the record.

    Attributes:
        version: Version of this format.
        time: When it ended, in UTC.
        server: Address of the server.
        request_digest: Digest of the request before redaction.
        request: The request, without secrets.
        response_format: How the answer's form was requested.
        left_out: Parameters, and keywords of the schema, that were omitted because the server had refused them.
        statuses: HTTP status of every attempt with a response.
        reply: The answer; None if there was none.
        error: Why there was none, without secrets.
        seconds: From first attempt to last.
        prompt: Shape of the prompt; None in old records.
        withdraws: Whether it withdraws the earlier answers to the request.
    """

    version: Literal[1] = 1
    time: str
    server: str
    request_digest: str
    request: ChatRequest
    response_format: ResponseFormat
    left_out: tuple[str, ...] = ()
    statuses: tuple[int, ...] = ()
    reply: ChatReply | None = None
    error: str | None = None
    seconds: float
    prompt: PromptShape | None = None
    withdraws: bool = Field(default=False, exclude_if=lambda withdraws: not withdraws)


class Chat(Protocol):
    """A language model that answers requests."""

    def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's answer; equal requests get equal answers.

        Raises:
            RecommenderError: If there is none.
        """
        ...


SCHEMA_NAME = "strategy_choice"
LIMIT_NAMES = ("max_completion_tokens", "max_tokens")
"""Of an answer's number of tokens; other servers than OpenAI's mostly know the second one."""
OPTIONAL_PARAMETERS = ("temperature", "seed")
MAX_LENGTH = "maxLength"
"""A keyword of JSON schema that not all servers with structured output accept."""
OPTIONAL = (*OPTIONAL_PARAMETERS, MAX_LENGTH)


@dataclass(frozen=True)
class Dialect:
    """The request parameters that a server supports.

    Attributes:
        limit_names: Possible names of the token limit; the first is used.
        response_formats: Possible response formats; the first is used.
        left_out: Parameters, and keywords of the schema, that are not sent.
    """

    limit_names: tuple[str, ...]
    response_formats: tuple[ResponseFormat, ...] = ("json_schema", "json_object", "text")
    left_out: tuple[str, ...] = ()

    def for_request(self, request: ChatRequest) -> Dialect:
        """Return the dialect for a request; without a schema it requests any JSON object."""
        if request.answer_schema is not None:
            return self
        return replace(self, response_formats=tuple(name for name in self.response_formats if name != "json_schema"))

    def without_parameter(self, refusal: str) -> Dialect | None:
        """Return the dialect after a refusal; None if nothing is left to omit.

        Args:
            refusal: The server's message, in lower case.
        """
        for name in OPTIONAL:
            if name not in self.left_out and name.lower() in refusal:
                return replace(self, left_out=tuple(key for key in OPTIONAL if key in {*self.left_out, name}))
        if len(self.limit_names) > 1 and self.limit_names[0] in refusal:
            return replace(self, limit_names=self.limit_names[1:])
        if len(self.response_formats) > 1:
            return replace(self, response_formats=self.response_formats[1:])
        return None

    def arguments(self, request: ChatRequest) -> dict[str, Any]:
        """Return the arguments of the API call."""
        arguments: dict[str, Any] = {
            "model": request.model,
            "messages": [message.model_dump() for message in request.messages],
            self.limit_names[0]: request.max_answer_tokens,
        }
        arguments |= {name: getattr(request, name) for name in OPTIONAL_PARAMETERS if name not in self.left_out}
        if self.response_formats[0] == "json_schema":
            schema = _without_lengths(request.answer_schema) if MAX_LENGTH in self.left_out else request.answer_schema
            named = {"name": SCHEMA_NAME, "schema": schema, "strict": True}
            arguments["response_format"] = {"type": "json_schema", "json_schema": named}
        elif self.response_formats[0] == "json_object":
            arguments["response_format"] = {"type": "json_object"}
        return arguments


def _without_lengths(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_lengths(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {key: _without_lengths(part) for key, part in schema.items() if key != MAX_LENGTH}


OPENAI_URL = "https://api.openai.com/v1"
NO_KEY_NEEDED = "none"
BUSY = (408, 409, 429)


def has_key(settings: RecommenderConfig) -> bool:
    """Return whether the model's credentials are available: the environment holds a key, or none is needed."""
    return settings.api_key_variable is None or bool(_key_in_environment(settings))


def key_of(settings: RecommenderConfig) -> str:
    """Return the API key.

    Raises:
        RecommenderError: If there is none, or it is not printable ASCII.
    """
    if settings.api_key_variable is None:
        return NO_KEY_NEEDED
    if not (key := _key_in_environment(settings)):
        raise RecommenderError.of(
            f"the environment variable {settings.api_key_variable}",
            "hold the API key of a language model, but is not set",
            hint="use the rules (--source rules), or for a server that needs no key, set "
            "recommender.base_url and recommender.api_key_variable=null",
        )
    if not (key.isascii() and key.isprintable()):
        raise RecommenderError.of(f"the key in {settings.api_key_variable}", "be printable ASCII")
    return key


def _secrets_of(settings: RecommenderConfig) -> tuple[str, ...]:
    """Return what must not be written: the API key, if there is one."""
    key = _key_in_environment(settings)
    return (key,) if key else ()


def _key_in_environment(settings: RecommenderConfig) -> str:
    return "" if settings.api_key_variable is None else os.environ.get(settings.api_key_variable, "").strip()


def server_of(settings: RecommenderConfig) -> str:
    """Return the address of the server: the configuration's, else the environment's, else OpenAI's.

    Raises:
        RecommenderError: If the environment's is invalid, or contains a user or a password.
    """
    if settings.base_url is not None:
        return settings.base_url
    address = os.environ.get("OPENAI_BASE_URL", "").strip()
    if address and (fault := address_fault(address)):
        raise RecommenderError.of("OPENAI_BASE_URL", problem=fault)
    return address or OPENAI_URL


class OpenAIChat:
    """A client of a server, to be closed by its creator.

    Args:
        settings: Server and model.
        on_exchange: Called with every exchange, failed ones included, without secrets.

    Raises:
        RecommenderError: If there is no key, or no address.
    """

    def __init__(self, settings: RecommenderConfig, on_exchange: Callable[[Exchange], None] = lambda _: None) -> None:
        self._key = key_of(settings)
        self._secrets = _secrets_of(settings)
        self._settings = settings
        self._on_exchange = on_exchange
        self._address = server_of(settings)
        self.server = redact(self._address, self._secrets)
        self._dialect = Dialect(LIMIT_NAMES if self._address == OPENAI_URL else LIMIT_NAMES[::-1])
        self._statuses: list[int] = []
        self._client = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def complete(self, request: ChatRequest) -> ChatReply:
        """Return the model's answer.

        Raises:
            UnreachableModelError: If the server can't be reached, is too busy, fails or does not speak the protocol.
            RecommenderError: If it refuses the request.
        """
        digest = request.digest()
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
                    request_digest=digest,
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
            simpler = None if refusal is None else dialect.without_parameter(refusal)
            if simpler is None:
                assert error is not None
                raise error
            self._dialect = simpler

    def _try(
        self, request: ChatRequest, dialect: Dialect
    ) -> tuple[ChatReply | None, RecommenderError | None, str | None]:
        """Return the answer, or the error and, if the server refused the request's parameters, its message."""
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
        """Return the error of this package for an exception of the client."""
        import openai

        where, text = f"the language model's server {self.server}", self._shown(fault)
        if isinstance(fault, openai.APIConnectionError):
            is_late = isinstance(fault, openai.APITimeoutError)
            late = f"answer within {self._settings.timeout_seconds:g} s, but did not"
            return UnreachableModelError.of(where, late if is_late else f"be reachable, but is not: {text}")
        if not isinstance(fault, openai.APIStatusError):
            kind = RecommenderError if isinstance(fault, openai.OpenAIError) else UnreachableModelError
            return kind.of(where, problem=f"can't be used: {text}")
        status = fault.status_code
        if status in BUSY or status >= 500:
            return UnreachableModelError.of(where, f"be available, but answered {status}: {text}")
        if 300 <= status < 400:
            return UnreachableModelError.of(where, "answer itself: redirects are not followed", status)
        if status in (401, 403):
            variable = self._settings.api_key_variable or "of recommender.api_key_variable"
            return RecommenderError.of(f"the key in {variable}", f"be accepted by {self.server} ({status}: {text})")
        return RecommenderError.of(
            where, f"accept the request for model {self._settings.model!r}, but answered {status}: {text}"
        )

    def _shown(self, error: Exception) -> str:
        cause = error.__cause__
        text = f"{error} {cause}" if cause is not None else str(error)
        return one_line(redact(text, self._secrets))

    def _reply(self, body: str) -> ChatReply:
        """Parse a chat completion as untrusted input."""
        try:
            document = json.loads(body)
            choice = document["choices"][0]
            message = choice["message"]
            content, refusal = message.get("content"), message.get("refusal")
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise UnreachableModelError.of(
                f"the language model's server {self.server}",
                "answer with a chat completion",
                repr(one_line(redact(body, self._secrets))),
            ) from None
        usage = document.get("usage")
        return ChatReply(
            text=self._text(content),
            finish_reason=self._text(choice.get("finish_reason")),
            refusal=self._text(refusal) or None,
            model=self._text(document.get("model"))[:200],
            prompt_tokens=_count(usage, "prompt_tokens"),
            completion_tokens=_count(usage, "completion_tokens"),
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
            event_hooks={
                "response": [lambda response: self._statuses.append(response.status_code), bounding_hook(timeout)]
            },
        )
        return openai.OpenAI(
            api_key=self._key,
            base_url=self._address,
            timeout=timeout,
            max_retries=self._settings.connection_retries,
            default_headers={"Accept-Encoding": "identity"},
            http_client=http_client,
        )


def _count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, Mapping) else None
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12 else None


NAME = "llm.jsonl"
OPENING = 2
"""Messages of a request that begins a conversation: instruction and question."""

logger = logging.getLogger("fedscout")


class Transcript:
    """A file of exchanges, read once and appended to.

    Args:
        path: The file; it may be missing.
        must_exist: Whether it must exist.

    Attributes:
        exchanges: All readable exchanges, in order.

    Raises:
        LogError: If it can't be read, or is missing and must exist.
    """

    def __init__(self, path: Path, must_exist: bool = False) -> None:
        self.path = path
        self._ends_whole = True
        self.exchanges: list[Exchange] = []
        if path.exists() or must_exist:
            self.exchanges, self._ends_whole = read_exchanges(path)
        if must_exist and not self.exchanges:
            raise LogError.of("recorded exchanges", "hold at least one", f"{path} without any")

    def find(self, request_digest: str, server: str | None = None) -> Exchange | None:
        """Return the exchange of a request: the first one with an answer, else the last failed one.

        Exchanges before a withdrawal of the request are ignored.

        Args:
            request_digest: Digest of the request.
            server: Address of the server, without secrets; None for any.
        """
        matches: list[Exchange] = []
        for exchange in self.exchanges:
            if exchange.request_digest == request_digest and server in (None, exchange.server):
                matches = [] if exchange.withdraws else [*matches, exchange]
        return next((exchange for exchange in matches if exchange.reply is not None), matches[-1] if matches else None)

    def add(self, exchange: Exchange) -> None:
        """Append an exchange and sync it to disk.

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
            upload(self.path)
        except OSError as error:
            raise EngineError(not_written(self.path, error)) from error
        self._ends_whole = True
        self.exchanges.append(exchange)


def read_exchanges(path: Path) -> tuple[list[Exchange], bool]:
    """Return the readable exchanges of a record, and whether its last line is complete.

    Raises:
        LogError: If the file can't be read.
    """
    try:
        if not path.is_file():  # a pipe would be waited for
            raise FileNotFoundError(2, "it is not a file")
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        is_text = isinstance(error, UnicodeDecodeError)
        reason = getattr(error, "strerror", None) or f"it is not {'UTF-8 text' if is_text else 'a gzip file'}"
        raise LogError.of("recorded exchanges", "be a file of JSON lines", f"{path}: {reason}") from error
    exchanges = []
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: U+2028 may stand in a text
        if not line.strip():
            continue
        try:
            exchanges.append(Exchange.model_validate_json(line))
        except ValidationError as error:
            fault = one_line(str(error.errors()[0]["msg"]), 100)
            logger.warning("line %d of %s can't be read and is skipped (%s)", number, path, fault)
    return exchanges, not text or text.endswith("\n")


class RecordedChat:
    """A chat that answers from a record and sends other requests to a server, to be closed by its creator.

    Args:
        settings: The server, or the record that replaces it.
        transcript: Record for lookup and recording; None disables both.

    Raises:
        LogError: If the record to be replayed can't be read.
        RecommenderError: If the environment's address of the server is invalid.
    """

    def __init__(self, settings: RecommenderConfig, transcript: Transcript | None) -> None:
        self._settings = settings
        any_server = settings.replay is not None and settings.base_url is None
        self._server = None if any_server else redact(server_of(settings), _secrets_of(settings))
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
        """Return the recorded answer, or request and record one.

        Raises:
            RecommenderError: If there is none.
        """
        digest = request.digest()
        if len(request.messages) <= OPENING:
            self._conversation.clear()
        reply = self._answer(request, digest)
        if self._transcript is not None and (exchange := self._transcript.find(digest, self._server)) is not None:
            self._conversation.append(exchange)
        return reply

    def _answer(self, request: ChatRequest, digest: str) -> ChatReply:
        for record in filter(None, (self._transcript, self._replayed)):
            exchange = record.find(digest, self._server)
            if exchange is not None and exchange.reply is not None:
                if record is self._replayed:
                    self._keep(exchange)
                return exchange.reply
            if exchange is not None and self._replayed is not None:
                raise RecommenderError.of("the recorded request", problem=f"was not answered: {exchange.error}")
        if self._replayed is not None:
            raise RecommenderError.of(
                "recorded exchanges",
                "hold the answer to the current request",
                str(self._replayed.path),
                "the record was made with other settings, another diagnosis or another version",
            )
        if self._live is None:
            self._live = OpenAIChat(self._settings, self._keep)
        return self._live.complete(request)

    def _keep(self, exchange: Exchange) -> None:
        if self._transcript is not None:
            self._transcript.add(exchange)


MAX_BYTES = 1_000_000


class UnboundedAnswerError(Exception):
    """A server's response is too long, or is compressed."""


class _BoundedStream(httpx2.SyncByteStream):
    """A response body that raises if it is too long or takes too long."""

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
                raise UnboundedAnswerError(f"its answer must have at most {MAX_BYTES} bytes")
            if time.monotonic() > deadline:
                raise httpx2.ReadTimeout("the answer arrives too slowly", request=self._request)
            yield chunk

    def close(self) -> None:
        self._stream.close()


def bounding_hook(seconds: float) -> Callable[[httpx2.Response], None]:
    """Return a response hook for an HTTP client that bounds response bodies.

    Args:
        seconds: Time limit of a body.
    """

    def bound(response: httpx2.Response) -> None:
        coding = response.headers.get("content-encoding", "identity")
        if coding.lower() != "identity":
            raise UnboundedAnswerError(f"its answer must not be compressed, got {coding[:20]!r}")
        assert isinstance(response.stream, httpx2.SyncByteStream)
        response.stream = _BoundedStream(response.stream, response.request, seconds)

    return bound
