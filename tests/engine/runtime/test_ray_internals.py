"""Ray: what is taken from its innards is there, a connection is kept, and addresses are read."""

from __future__ import annotations

import socket

import pytest
from pydantic import ValidationError

from fedscout.engine.config import EngineConfig
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.runtime.ray import HeadNotes, address_found, memory_in_use, ray_runtime
from tests.kits.refusals import refused


def test_memory_in_use_is_a_part_of_what_there_is() -> None:
    used, total = memory_in_use()
    assert 0 < used < total


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "192.0.2.1:1"])
def test_auto_is_what_the_environment_says_now(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    found = address_found()
    assert found.rpartition(":")[2] == address.rpartition(":")[2]
    if not address.startswith("127."):
        assert found == address


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_the_head_keeps_notes_until_they_are_removed() -> None:
    notes, name = HeadNotes(), f"a test of {socket.gethostname()}"
    assert notes.read(name) is None
    for note in (b"first", b"second"):
        notes.write(name, note)
        assert notes.read(name) == note
    notes.remove(name)
    assert notes.read(name) is None


# -- A process that has Ray already keeps it; an address of another kind is refused ------------------------------------


@pytest.mark.ray
@pytest.mark.usefixtures("ray_session")
def test_a_connection_that_was_there_before_is_used_and_kept() -> None:
    import ray

    node = ray.get_runtime_context().get_node_id()
    with ray_runtime(EngineConfig()) as found:
        assert found.get_runtime_context().get_node_id() == node
    assert ray.is_initialized()
    assert ray.get_runtime_context().get_node_id() == node


@pytest.mark.parametrize("address", ["ray://192.0.2.1:10001", "http://[", "nonsense", ":6379", "host:", ""])
def test_what_is_no_address_of_a_ray_is_refused_with_the_configuration(address: str) -> None:
    with pytest.raises(ValidationError):
        EngineConfig(address=address)


def test_auto_is_refused_at_once_where_nothing_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the private Ray of another study, which `auto` may find, but which listens on loopback alone."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{port}")
        with refused(ConfigurationError, key="engine.address"), ray_runtime(EngineConfig(address="auto")):
            pytest.fail("there is no such cluster")
