"""What this program takes from Ray's innards is still there, and still does what it is taken for."""

from __future__ import annotations

import socket

import pytest

from fedscout.engine.runtime.ray import HeadNotes, address_found, memory_in_use, single_node_ray, started_with


def test_memory_in_use_is_a_part_of_what_there_is() -> None:
    used, total = memory_in_use()
    assert 0 < used < total


def test_mode_and_token_can_be_read_anew() -> None:
    """Here that they can; that it works is shown where Ray is started twice (`test_private_ray.py`)."""
    from ray._raylet import AuthenticationTokenLoader, Config  # type: ignore[attr-defined]  # its stubs lack it

    assert callable(AuthenticationTokenLoader.instance().reset_cache)
    assert callable(Config.initialize)


@pytest.mark.parametrize("address", ["127.0.0.1:6379", "192.0.2.1:1"])
def test_auto_is_what_the_environment_says_now(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("RAY_ADDRESS", address)
    found = address_found()
    assert found.rpartition(":")[2] == address.rpartition(":")[2]
    if not address.startswith("127."):
        assert found == address


def test_a_start_takes_settings_that_ray_init_does_not_hand_on() -> None:
    from ray._private import parameter

    kept = parameter.RayParams
    with single_node_ray(log_monitor=False), started_with(num_cpus=3):
        made = parameter.RayParams(num_cpus=1, node_name="as given")
        assert (made.node_ip_address, made.no_monitor, made.include_log_monitor) == ("127.0.0.1", True, False)
        assert (made.num_cpus, made.node_name) == (3, "as given")
        ports = {made.metrics_agent_port, made.dashboard_agent_listen_port, made.runtime_env_agent_port}
        assert len(ports) == 3
    assert parameter.RayParams is kept


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
