"""Apps that `fedscout app` writes, on a real SuperLink: what they find is what a simulation of the same rows finds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
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
from fedscout.experiments.deployment.client import Agreement
from fedscout.experiments.deployment.driver import Program, write_app
from fedscout.experiments.federation import build_federation
from fedscout.experiments.studies.workflow import measure
from fedscout.strategies import parse_strategy
from tests.commands import REPOSITORY
from tests.experiments.deployment.superlink import RUN_SECONDS, RealFederation, Started, flower_environment, free_port

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
def test_under_certificates_and_keys_as_in_a_simulation(
    tmp_path: Path, real_federation: Start, num_clients: int
) -> None:
    settings = [f"federation.num_clients={num_clients}"]
    app, out = written_app(tmp_path, *settings), tmp_path / "out"
    federation = real_federation(nodes_of(tmp_path, *reversed(range(num_clients))))
    run = federation.start(app, {"min-clients": num_clients, "rounds": 2, "out": str(out)})
    assert federation.end_of(run) == "finished:completed", run.text()
    simulated(settings, HeterogeneityReport.model_validate(read_json_object(out / "report.json")))

    chosen = next(line for line in run.text().splitlines() if line.startswith("chosen: "))
    config = load_config([*STUDY, *settings], None)
    printed = eval(chosen.removeprefix("chosen: "))
    spec = parse_strategy(printed, Cohort(num_clients, num_clients, 0.2))
    trial_settings = TrialSettings(spec, 2, num_clients, config.training.session(config.seed), keep_model=True)
    runner = LocalRunner(ClientHost(build_federation(config.federation, config.model), CLIENT_QUERIES))
    ((_, trial),) = runner.run([trial_settings])
    model = load_file(out / "model.safetensors")
    assert b"".join(model[name].tobytes() for name in runner.facts.layout.split(trial.vector)) == trial.vector.tobytes()


def test_a_killed_node_a_late_one_and_a_killed_server_cost_no_training(tmp_path: Path, real_federation: Start) -> None:
    app, out = written_app(tmp_path, "federation.num_clients=3"), tmp_path / "out"
    federation = real_federation(nodes_of(tmp_path, 0, 1))
    wanted = {"min-clients": 2, "rounds": 6, "round-timeout": 40.0, "out": str(out)}
    run = federation.start(app, wanted)
    run.wait_for(r"round 1 of 6", RUN_SECONDS)
    federation.kill_node(1)
    federation.add_node(*nodes_of(tmp_path, 2))
    run.wait_for(r"client 1 \('1'\)[^\n]*", RUN_SECONDS)
    run.wait_for(r"round 3 of 6", RUN_SECONDS)
    federation.kill_server_app()
    assert federation.end_of(run) == "finished:failed"

    federation.add_node(*nodes_of(tmp_path, 1))
    again = federation.start(app, {**wanted, "min-clients": 3})
    assert federation.end_of(again) == "finished:completed", again.text()
    assert "3 clients are connected: 0, 1, 2" in again.text()
    assert "round 1 of 6" not in again.text()
    assert "round 6 of 6" in again.text()
    assert (out / "model.pt").is_file()
    told = read_json_object(out / "clients.json")["clients"]
    assert [client["name"] for client in told] == ["0", "1", "2"]


# The commands that docs/real_federation.md prints, run as they stand there, in their order, in an empty folder.


PAGE = REPOSITORY / "docs" / "real_federation.md"
SHELL_BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STAYS = ("flower-superlink", "flower-supernode")
"""What the page has in a terminal each."""

READY = {"flower-superlink": r"Uvicorn running", "flower-supernode": r"SuperNode ID"}


def commands() -> Iterator[str]:
    """Yield the page's commands, on ports that are free here."""
    ports = {port: str(free_port()) for port in ("8000", "9094", "9095")}
    for block in SHELL_BLOCK.findall(PAGE.read_text()):
        for line in block.splitlines():
            port = " --port 8000" if line.startswith("flower-superlink") else ""
            yield re.sub(r"\b(8000|9094|9095)\b", lambda found: ports[found[0]], f"{line}{port}")


def test_a_newcomer_gets_from_a_study_to_a_model_of_two_nodes(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    environment = {**flower_environment(), "HOME": str(home), "PYTHONPATH": str(REPOSITORY / "src")}
    ran, output = [], ""
    with ExitStack() as stack:
        for number, line in enumerate(commands()):
            started = Started(["bash", "-c", line], environment, tmp_path / f"{number}.log")
            stack.callback(started.kill)
            program = line.split()[0]
            ran.append(program)
            if program in STAYS:
                started.wait_for(READY[program])
            else:
                assert started.wait(RUN_SECONDS) == 0, f"{line}\n{started.text()}"
            output = started.text()
    assert ran == ["fedscout", "fedscout", "mkdir", "printf", *STAYS, "flower-supernode", "flwr", "python"]
    assert "round_accuracy" in output
    assert (tmp_path / "wine_app-out" / "model.safetensors").is_file()
