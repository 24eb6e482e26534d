"""Fixtures for studies that ask a language model: a server on the loopback, and no key of the user's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.search.recommenders.loopback import KEY, ModelServer, Script

Server = Callable[[Script], ModelServer]


@pytest.fixture(autouse=True)
def no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment name neither a key nor an address."""
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, no_key: None) -> Iterator[Server]:
    """Return what starts a server; there is a key, and nothing else of the user's own."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with ExitStack() as stack:
        yield lambda script: stack.enter_context(ModelServer(script))
