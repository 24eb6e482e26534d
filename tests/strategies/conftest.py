"""A host of eight clients, for whatever is tested on it, and messages without a run of Flower's."""

from __future__ import annotations

import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.messages.contents import claim_task_identity
from tests.strategies.by_hand import host_of


@pytest.fixture(autouse=True)
def _identity() -> None:
    """Let the tests make Flower messages."""
    claim_task_identity()


@pytest.fixture(scope="module")
def host() -> ClientHost:
    """One whose clients train the dense net, and whose server holds labelled rows."""
    return host_of()
