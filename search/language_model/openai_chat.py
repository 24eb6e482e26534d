"""Asks a server that speaks OpenAI's protocol, through OpenAI's own client.

The answer's form is asked for as a JSON schema. Not every server can hold a model to one, and each knows other
parameters, so a server's refusal (HTTP 400 or 422) is taken at its word, and the next request leaves out what it
named: first temperature, seed or the name of the token limit, then the schema (for any JSON object), then that (for
text). Every such exchange is kept, and a server is not asked again for what it has refused.

Busy and failing servers (HTTP 408, 409, 429, 5xx), lost connections and time-outs are repeated by the client, which
waits as long as `Retry-After` says, up to two minutes. The key comes from the environment and goes into the request's
header, nowhere else. Redirections are not followed: they would take the prompt to a server that nobody named.

The body is read here. The client's `chat.completions.parse` makes objects of it unchecked, raises where an answer was
cut off or withheld, which is to be kept and told the model, and takes a class where the answer's form is the space's.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from fedscout.engine.errors import Fault, RecommenderError, UnreachableModelError
from fedscout.search.language_model.chat import ChatReply, ChatRequest, Exchange
from fedscout.search.language_model.server_dialect import Dialect
from fedscout.search.plain_text import one_line, redact
from fedscout.search.recommender_config import RecommenderConfig, address_fault

if TYPE_CHECKING:
    import httpx2
    import openai

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
        raise RecommenderError(f"the environment variable OPENAI_BASE_URL {fault}")
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

        from fedscout.search.language_model.bounded_response import UnboundedAnswerError

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
                return UnreachableModelError(f"{where} must answer within {seconds}, and did not")
            case openai.APIConnectionError():
                return UnreachableModelError(f"{where} must be reachable, and is not: {self._shown(fault)}")
            case openai.OpenAIError():
                return RecommenderError(f"{where} can't be used: {self._shown(fault)}")
            case _:
                return UnreachableModelError(f"{where} can't be used: {fault}")

    def _of_status(self, error: openai.APIStatusError) -> RecommenderError:
        """Return what an HTTP status means."""
        status, text = error.status_code, self._shown(error)
        where = f"the language model's server {self.server}"
        if status in BUSY or status >= 500:
            return UnreachableModelError(f"{where} must be able to answer, and answered {status}: {text}")
        if 300 <= status < 400:
            return UnreachableModelError(
                f"{where} must answer itself, and sends the request on to {_origin(error)}, where it does not go"
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
                f"the language model's server {self.server} must answer with a chat completion, "
                f"got {one_line(redact(body, self._secrets))!r}"
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

        from fedscout.search.language_model.bounded_response import bounding_hook

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
