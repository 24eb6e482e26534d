"""What the engine's tests share."""

from __future__ import annotations

import pytest
import torch

from fedscout.engine.client.host import ClientHost
from fedscout.engine.messages.contents import claim_task_identity
from tests.engine.federations import QUERIES, uneven_federation


@pytest.fixture(autouse=True)
def _identity() -> None:
    """Let the tests make Flower messages."""
    claim_task_identity()
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def host() -> ClientHost:
    """The uneven federation's host; it keeps no state, so tests may share it."""
    return ClientHost(uneven_federation(), QUERIES)
