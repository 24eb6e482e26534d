"""A federation to recommend for, and a language model on this machine to ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedscout.search.config import RecommenderConfig
from fedscout.search.language_model import RecordedChat, Transcript
from fedscout.search.recommenders.diagnosis import RecommendationContext
from fedscout.search.searchers.llm import LanguageModel
from tests.search.recommenders.loopback import KEY, ModelServer, Script
from tests.search.recommenders.reports import diagnosis_of, situation_of

OPENAI_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_LOG")


@pytest.fixture(autouse=True)
def _only_the_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing of the user's own in the environment, and no way to another machine."""
    for name in OPENAI_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def situation() -> RecommendationContext:
    """Return ten clients of skewed labels."""
    return situation_of(diagnosis_of(label_skew="high"))


@pytest.fixture
def server() -> Iterator[Callable[[Script], ModelServer]]:
    """Return what starts a server; all of them end with the test."""
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(ModelServer(script))


@pytest.fixture
def model_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., LanguageModel]]:
    """Return what connects to a server, or to a new one that plays a script, keeping exchanges in `tmp_path`.

    Connections and servers end with the test.
    """
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ExitStack() as stack:

        def connect(script: ModelServer | Script, **settings: Any) -> LanguageModel:
            server = script if isinstance(script, ModelServer) else stack.enter_context(ModelServer(script))
            given = {"timeout_seconds": 10.0, "connection_retries": 0, **settings}
            config = RecommenderConfig(base_url=server.url, **given)
            chat = stack.enter_context(RecordedChat(config, Transcript(tmp_path / "llm.jsonl")))
            return LanguageModel(chat, config)

        yield connect


@pytest.fixture
def deadline() -> Iterator[Callable[[float], None]]:
    """Return what sets a limit, in seconds of this thread's own computing, on what a test does after it."""
    limits: list[tuple[float, float]] = []
    yield lambda seconds: limits.append((time.thread_time(), seconds))
    for started, seconds in limits:
        assert time.thread_time() - started < seconds
