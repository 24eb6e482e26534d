"""What the tests of the search share."""

from __future__ import annotations

import pytest

from fedscout.engine.messages.contents import claim_task_identity


@pytest.fixture(autouse=True)
def _identity() -> None:
    """Let trials in this process make Flower messages."""
    claim_task_identity()
