"""A language model that is played, well or badly: as a function, and by a server that speaks OpenAI's protocol."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

import numpy as np

from fedscout.search.language_model import ChatReply, ChatRequest
from fedscout.search.recommenders.prompt import answer_document
from fedscout.strategies import SearchSpace

KEY = "sk-loopback-0123456789abcdef"


@dataclass(frozen=True)
class Play:
    """What the server does with one request.

    Attributes:
        status: Of HTTP.
        body: JSON-able, or bytes as they are.
        headers: Further ones.
        delay_seconds: Before anything is sent.
        drip_seconds: Between the bytes of the body; 0 sends it at once.
        endless: Whether the body is repeated until the client hangs up.
    """

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    delay_seconds: float = 0.0
    drip_seconds: float = 0.0
    endless: bool = False


def says(text: str | None, finish_reason: str = "stop", refusal: str | None = None, **fields: Any) -> Play:
    """Answer with a chat completion."""
    message = {"role": "assistant", "content": text, "refusal": refusal}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
    completion = {"id": "c1", "object": "chat.completion", "created": 1, "model": "played", "choices": [choice]}
    return Play(body={**completion, "usage": usage, **fields})


def chooses(kind: str, reason: str = "as it fits", **parameters: Any) -> Play:
    """Answer as the schema wants it."""
    return says(json.dumps({"reason": reason, "strategy": {"kind": kind, **parameters}}))


def fails(status: int, message: str = "no", **headers: str) -> Play:
    """Answer with an error, as OpenAI words it."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Play(status=status, body={"error": {"message": message, "type": "x", "param": None}}, headers=named)


@dataclass(frozen=True)
class Asked:
    """One request that came."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def user(self) -> Any:
        """The first message of the user, which is JSON."""
        return json.loads(self.body["messages"][1]["content"])

    @property
    def turns(self) -> list[tuple[str, str]]:
        return [(message["role"], message["content"]) for message in self.body["messages"]]


Script = Sequence[Play] | Callable[[Asked], Play]


class ModelServer:
    """A context in which the server runs; the last play of a script is repeated.

    Args:
        script: What to do with each request in turn, or a function of the request.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self.asked: list[Asked] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            timeout = 20

            def do_POST(self) -> None:
                server._serve(self)

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.set()
        self._http.shutdown()
        self._thread.join(timeout=10)
        self._http.server_close()
        assert not self._thread.is_alive()

    def _serve(self, handler: BaseHTTPRequestHandler) -> None:
        length = int(handler.headers["content-length"])
        headers = {name.lower(): value for name, value in handler.headers.items()}
        asked = Asked(handler.path, headers, json.loads(handler.rfile.read(length)))
        with self._lock:
            number = len(self.asked)
            self.asked.append(asked)
        play = self._script(asked) if callable(self._script) else self._script[min(number, len(self._script) - 1)]
        if self._closing.wait(play.delay_seconds):
            return
        body = play.body if isinstance(play.body, bytes) else json.dumps(play.body).encode()
        try:
            handler.send_response(play.status)
            for name, value in {"content-type": "application/json", **play.headers}.items():
                handler.send_header(name, value)
            if not play.endless:
                handler.send_header("content-length", str(len(body)))
            handler.end_headers()
            self._send(handler, body, play)
        except OSError:
            pass  # the client hung up

    def _send(self, handler: BaseHTTPRequestHandler, body: bytes, play: Play) -> None:
        until = time.monotonic() + 15
        if play.endless:
            while not self._closing.is_set() and time.monotonic() < until:
                handler.wfile.write(body)
            return
        if play.drip_seconds:
            for byte in body:
                if self._closing.wait(play.drip_seconds):
                    return
                handler.wfile.write(bytes([byte]))
            return
        handler.wfile.write(body)


class PlayedChat:
    """Draws an answer from a space by all of a request; equal requests get equal answers.

    Attributes:
        num_asked: Requests so far.
    """

    def __init__(self, space: SearchSpace) -> None:
        self._space = space
        self.num_asked = 0

    def complete(self, request: ChatRequest) -> ChatReply:
        return ChatReply(text=self.answer(request.seed, [message.content for message in request.messages]))

    def answer(self, seed: int, contents: list[str]) -> str:
        """Return a valid answer, a new one if there is any; equivalents of earlier ones are not seen through."""
        self.num_asked += 1
        shown = json.loads(contents[1])
        tried = [trial["strategy"] for trial in shown.get("trials", ())]
        known = [*tried, *shown.get("running", ()), {"kind": "fedavg"}]
        generator = np.random.default_rng([seed, *json.dumps(contents).encode()])
        for _ in range(200):
            answer = answer_document(self._space.random(generator), "drawn")
            if answer["strategy"] not in known:
                break
        return json.dumps(answer)
