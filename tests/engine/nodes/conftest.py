"""What the tests of nodes share."""

from __future__ import annotations

import pytest

from fedscout.engine.data.federation import Federation
from tests.engine.federations import uneven_federation
from tests.engine.nodes.node_link import SIZES


@pytest.fixture
def federation() -> Federation:
    """Four clients of some rows each."""
    return uneven_federation(sizes=SIZES)
