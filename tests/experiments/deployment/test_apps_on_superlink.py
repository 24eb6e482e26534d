"""Apps that `fedscout app` writes, on a real SuperLink: what they find is what a simulation of the same rows finds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedscout.detectors import CLIENT_QUERIES, HeterogeneityReport
from fedscout.engine.client.host import ClientHost
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.runtime.files import read_json_object
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.runner import LocalRunner
from fedscout.experiments.config import load_config
from fedscout.experiments.deployment.app import Program, write_app
from fedscout.experiments.deployment.client import Agreement
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.workflow import measure
from fedscout.strategies import parse_strategy
from tests.experiments.deployment.superlink import RealFederation

pytestmark = [pytest.mark.stress, pytest.mark.timeout(600)]
Start = Callable[..., RealFederation]

STUDY = ["federation.max_rows=300", "training.num_rounds=2"]
POLICY = 'small_clients = "train"\n'


def written_app(folder: Path, *settings: str) -> Path:
    """Write an app that detects, chooses by rules and trains."""
    return write_app(folder / "scouted", Agreement.of_study(load_config([*STUDY, *settings], None)), Program())


def nodes_of(folder: Path, *clients: int) -> list[dict[str, str | int]]:
    """Return the configurations of nodes with the rows of simulated clients."""
    (folder / "policy.toml").write_text(POLICY)
    return [{"partition-id": client, "policy": str(folder / "policy.toml")} for client in clients]


def simulated(settings: Sequence[str], report: HeterogeneityReport) -> None:
    """Hold a report against that of a simulation."""
    config = load_config([*STUDY, *settings], None)
    claim_task_identity()
    runner = LocalRunner(ClientHost(build_federation(config.federation, config.model), CLIENT_QUERIES))
    assert report.without_timings() == measure(runner, config, Agreement.of_study(config).names).without_timings()


@pytest.mark.parametrize("num_clients", [2, 3])
def test_the_whole_program_under_certificates_and_keys_finds_what_a_simulation_finds(
    tmp_path: Path, real_federation: Start, num_clients: int
) -> None:
    settings = [f"federation.num_clients={num_clients}"]
    app, out = written_app(tmp_path, *settings), tmp_path / "out"
    federation = real_federation(nodes_of(tmp_path, *reversed(range(num_clients))), tls=True)
    finished = federation.run(app, {"min-clients": num_clients, "rounds": 2, "out": str(out)})
    assert finished.status == "finished:completed", finished.output
    simulated(settings, HeterogeneityReport.model_validate(read_json_object(out / "report.json")))

    chosen = next(line for line in finished.output.splitlines() if line.startswith("chosen: "))
    config = load_config([*STUDY, *settings], None)
    spec = parse_strategy(
        eval(chosen.removeprefix("chosen: ")), Cohort(num_clients, num_clients, 0.2)
    )  # as it was printed
    trial_settings = TrialSettings(spec, 2, num_clients, config.training.session(config.seed), keep_model=True)
    runner = LocalRunner(ClientHost(build_federation(config.federation, config.model), CLIENT_QUERIES))
    ((_, trial),) = runner.run([trial_settings])
    assert trial.vector is not None
    model = load_file(out / "model.safetensors")
    assert b"".join(model[name].tobytes() for name in runner.facts.layout.split(trial.vector)) == trial.vector.tobytes()


def test_a_killed_node_a_late_one_and_a_killed_server_cost_no_training(tmp_path: Path, real_federation: Start) -> None:
    app, out = written_app(tmp_path, "federation.num_clients=3"), tmp_path / "out"
    federation = real_federation(nodes_of(tmp_path, 0, 1))
    wanted = {"min-clients": 2, "rounds": 6, "round-timeout": 40.0, "out": str(out)}
    run = federation.start(app, wanted)
    run.wait_for(r"round 1 of 6")
    federation.kill_node(1)
    federation.add_node(*nodes_of(tmp_path, 2))
    run.wait_for(r"client 1 \('1'\)[^\n]*")
    run.wait_for(r"round 3 of 6")
    federation.kill_server_app()
    assert run.wait().status == "finished:failed"

    federation.add_node(*nodes_of(tmp_path, 1))
    again = federation.run(app, {**wanted, "min-clients": 3})
    assert again.status == "finished:completed", again.output
    assert "3 clients are connected: 0, 1, 2" in again.output
    assert "round 1 of 6" not in again.output
    assert "round 6 of 6" in again.output
    assert (out / "model.pt").is_file()
    told = read_json_object(out / "clients.json")["clients"]
    assert [client["name"] for client in told] == ["0", "1", "2"]
