"""A process that has Ray already keeps it."""

from __future__ import annotations

import pytest

from experiments.engine_config import EngineConfig
from experiments.ray_runtime import ray_runtime


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_connection_that_was_there_before_is_used_and_kept() -> None:
    import ray

    node = ray.get_runtime_context().get_node_id()
    with ray_runtime(EngineConfig()) as found:
        assert found.get_runtime_context().get_node_id() == node
    assert ray.is_initialized()
    assert ray.get_runtime_context().get_node_id() == node
