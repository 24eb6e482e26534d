"""A host of eight clients, for whatever is tested on it."""

from __future__ import annotations

import pytest

from fedscout.engine.client.host import ClientHost
from tests.strategies.by_hand import host_of


@pytest.fixture(scope="module")
def host() -> ClientHost:
    """One whose clients train the dense net, and whose server holds labelled rows."""
    return host_of()
