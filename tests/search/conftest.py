"""What the tests of the search share: an identity for messages, and language models on this machine to ask."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.messages.contents import claim_task_identity
from fedscout.search.config import RecommenderConfig
from fedscout.search.language_model import RecordedChat, Transcript
from fedscout.search.recommenders.diagnosis import RecommendationContext
from fedscout.search.searchers.llm import LanguageModel
from tests.search.recommenders.loopback import KEY, ModelServer, Script
from tests.search.recommenders.reports import context_of, diagnosis_of

OF_A_USER = (
    *("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_LOG"),
    *("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"),
)


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let trials make Flower messages; leave nothing of the user's own in the environment, and no other machine."""
    claim_task_identity()
    for name in OF_A_USER:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


@pytest.fixture
def context() -> RecommendationContext:
    """Return ten clients of skewed labels."""
    return context_of(diagnosis_of(label_skew="high"))


@pytest.fixture
def server() -> Iterator[Callable[[Script], ModelServer]]:
    """Return what starts a server; all of them end with the test."""
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(ModelServer(script))


@pytest.fixture
def model_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Callable[[Script], ModelServer]
) -> Iterator[Callable[..., LanguageModel]]:
    """Return what connects to a server, or to a new one that plays a script, keeping exchanges in `tmp_path`."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    with ExitStack() as stack:

        def connect(script: ModelServer | Script, **settings: Any) -> LanguageModel:
            at = script if isinstance(script, ModelServer) else server(script)
            given = {"timeout_seconds": 10.0, "connection_retries": 0, **settings}
            config = RecommenderConfig(base_url=at.url, **given)
            chat = stack.enter_context(RecordedChat(config, Transcript(tmp_path / "llm.jsonl")))
            return LanguageModel(chat, config)

        yield connect
