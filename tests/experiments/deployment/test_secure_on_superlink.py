"""An app under masked sums on a real SuperLink: the model of the simulation, though no node answers in the clear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.client.client_host import ClientHost
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.messages.task_identity import claim_task_identity
from fedscout.engine.trials.trial_runner import LocalRunner
from fedscout.engine.trials.trial_settings import TrialSettings
from fedscout.experiments.config.config_file import load_config
from fedscout.experiments.deployment.agreement import Agreement
from fedscout.experiments.deployment.app_folder import Program, write_app
from fedscout.experiments.federations.assembly.build_federation import build_federation
from fedscout.strategies import parse_strategy
from tests.experiments.deployment.superlink import RealFederation

pytestmark = [pytest.mark.slow, pytest.mark.stress, pytest.mark.timeout(900)]
POLICY = 'small_clients = "train"\nsums_only = true\n'
STRATEGY = {"kind": "scaffold"}


def test_three_nodes_train_the_model_of_the_simulation_by_sums_alone(
    tmp_path: Path, real_federation: Callable[..., RealFederation]
) -> None:
    config = load_config(["federation.num_clients=3", "federation.max_rows=300", "training.num_rounds=2"], None)
    app, out = write_app(tmp_path / "masked", Agreement.of_study(config), Program(STRATEGY)), tmp_path / "out"
    (tmp_path / "policy.toml").write_text(POLICY)
    policy = str(tmp_path / "policy.toml")
    nodes = [{"partition-id": client, "policy": policy} for client in (2, 0, 1)]
    federation = real_federation(nodes, forked_clients=True)
    wanted = {"min-clients": 3, "rounds": 2, "secure-sums": True, "out": str(out)}
    finished = federation.run(app, wanted, seconds=600)  # ten exchanges
    assert finished.status == "finished:completed", finished.output

    claim_task_identity()
    spec = parse_strategy(STRATEGY, Cohort(3, 3, 0.2))
    settings = TrialSettings(spec, 2, 3, config.training.session(config.seed), keep_model=True)
    runner = LocalRunner(ClientHost(build_federation(config.federation, config.model), CLIENT_QUERIES))
    ((_, trial),) = runner.run([settings])
    assert trial.vector is not None
    model = load_file(out / "model.safetensors")
    assert b"".join(model[name].tobytes() for name in runner.facts.layout.split(trial.vector)) == trial.vector.tobytes()
