"""The harness itself: real SuperLinks, SuperNodes and runs do what the tests above them rely on, and none is left."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.experiments.deployment.plain_app import write_plain_app
from tests.experiments.deployment.superlink import RealFederation

pytestmark = pytest.mark.slow
Start = Callable[..., RealFederation]


@pytest.fixture
def app(tmp_path: Path) -> Path:
    return write_plain_app(tmp_path)


def processes_at_home_in(folder: Path) -> list[str]:
    """Return the names of the processes whose Flower keeps its files in a folder, found without the harness's marks."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.environ().get("FLWR_HOME") == str(folder):
                found.append(process.name())
    return found


@pytest.mark.stress
def test_an_app_runs_on_two_nodes_and_no_process_is_left(app: Path, real_federation: Start) -> None:
    federation = real_federation([{"number": 5}, {"number": 7}])

    finished = federation.run(app, {"rounds": 1})

    assert finished.status == "finished:completed"
    assert "ROUND 0 [5, 7]" in finished.output
    assert "ROUND 1" not in finished.output
    assert len(set(federation.node_ids.values())) == 2
    assert len(processes_at_home_in(federation.folder)) >= 6  # SuperLink, SuperNodes, a SuperExec of each
    federation.end()
    assert processes_at_home_in(federation.folder) == []


@pytest.mark.stress
def test_nodes_with_registered_keys_meet_a_superlink_with_a_certificate(app: Path, real_federation: Start) -> None:
    federation = real_federation([{"number": 1}, {"number": 2}], tls=True)
    first_id = federation.node_ids[0]

    assert "ROUND 0 [1, 2]" in federation.run(app, {"rounds": 1}).output

    federation.stop_node(0)
    federation.restart_node(0)
    assert federation.node_ids[0] == first_id


@pytest.mark.stress
def test_a_node_killed_while_it_trains_leaves_the_round_to_the_others(app: Path, real_federation: Start) -> None:
    federation = real_federation([{"number": 1}, {"number": 2, "sleep": 600}])
    run = federation.start(app, {"rounds": 1, "seconds": 20.0})

    federation.nodes[1].wait_for("TRAINS")
    federation.kill_node(1)

    assert federation.nodes[1].alive() == []
    finished = run.wait()
    assert (finished.status, "ROUND 0 [1]" in finished.output) == ("finished:completed", True)


@pytest.mark.stress
def test_a_node_that_joins_late_is_found(app: Path, real_federation: Start) -> None:
    federation = real_federation([{"number": 1}])
    run = federation.start(app, {"rounds": 1})
    assert federation.superlink is not None
    federation.superlink.process_named("flwr-serverapp")

    federation.add_node({"number": 2})

    assert "ROUND 0 [1, 2]" in run.wait().output


@pytest.mark.stress
def test_a_killed_server_app_fails_its_run_and_the_next_goes_well(app: Path, real_federation: Start) -> None:
    federation = real_federation([{"number": 1}, {"number": 2, "sleep": 10}])
    run = federation.start(app, {"rounds": 1})

    federation.nodes[1].wait_for("TRAINS")
    federation.kill_server_app()

    assert run.wait().status == "finished:failed"
    assert "ROUND 0 [1, 2]" in federation.run(app, {"rounds": 1}).output


@pytest.mark.stress
def test_a_superlink_that_keeps_its_state_knows_its_runs_when_it_is_back(app: Path, real_federation: Start) -> None:
    federation = real_federation([{"number": 1}, {"number": 2}], keeps_state=True)
    run = federation.start(app, {"rounds": 1})
    assert run.wait().status == "finished:completed"

    federation.restart_superlink()

    assert run.status() == "finished:completed"
    assert "ROUND 0 [1, 2]" in federation.run(app, {"rounds": 1}).output


@pytest.mark.stress
def test_a_block_that_fails_leaves_no_process(tmp_path: Path) -> None:
    federation = RealFederation(tmp_path, [{"number": 1}])

    with contextlib.suppress(RuntimeError), federation:
        num_alive = len(processes_at_home_in(tmp_path))
        raise RuntimeError("in the middle")

    assert num_alive >= 2
    assert processes_at_home_in(tmp_path) == []
