"""What a study asks of the simulated clock is refused before anything trains where it can't be had."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.devices import Device
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.calls import Cohort
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.scenarios.table import SCENARIOS
from fedscout.experiments.studies.checks import check_clock, check_precision, plain_seconds
from fedscout.experiments.studies.workflow import cohort_of, run_workflow
from fedscout.strategies.methods.averaging import FedAvgSpec, FedBuffSpec
from tests.engine.federations import NUM_CLASSES, NUM_FEATURES, dense, normalised, uneven_federation
from tests.kits.refusals import refused


def config(deadline_seconds: float | None) -> StudyConfig:
    return StudyConfig.model_validate({"training": {"simulated_deadline_seconds": deadline_seconds}})


def test_the_fastest_client_decides() -> None:
    plain = uneven_federation()
    devices = {client: Device(shift_seconds=10.0 + client, mean_seconds=5.0) for client in range(plain.num_clients)}
    federation = replace(plain, devices=devices)
    check_clock(config(10.0), federation, FedAvgSpec())
    with refused(ConfigurationError, key="training.simulated_deadline_seconds"):
        check_clock(config(9.9), federation, FedAvgSpec())
    with refused(ConfigurationError, key="training.simulated_deadline_seconds"):
        check_clock(config(10.0), replace(federation, unseen=frozenset({0})), FedAvgSpec())
    check_clock(config(None), federation, FedAvgSpec())
    check_clock(config(1e-9), plain, FedAvgSpec())


def test_what_a_strategy_tells_its_clients_counts() -> None:
    """With a second a step, fewer epochs meet a deadline that more do not."""
    plain = uneven_federation(sizes=(100, 100))
    federation = replace(plain, devices=dict.fromkeys(range(2), Device(seconds_per_step=1.0)))
    steps = -(-80 // StudyConfig().training.batch_size)
    check_clock(config(steps), federation, FedAvgSpec())
    with refused(ConfigurationError, key="training.simulated_deadline_seconds"):
        check_clock(config(steps), federation, FedAvgSpec(client_local_epochs=2))


def test_time_counts_only_where_there_is_a_clock() -> None:
    asked = StudyConfig.model_validate({"search": {"objective": "time_to_accuracy", "target": 0.5}})
    with refused(ConfigurationError, key="search.objective"):
        check_clock(asked, uneven_federation(), FedAvgSpec())
    check_clock(asked, replace(uneven_federation(), devices={0: Device(mean_seconds=1.0)}), FedAvgSpec())


def test_an_asynchronous_strategy_needs_a_clock() -> None:
    with refused(ConfigurationError, key="strategy.kind"):
        check_clock(config(None), uneven_federation(), FedBuffSpec())
    check_clock(config(None), replace(uneven_federation(), devices={0: Device(mean_seconds=1.0)}), FedBuffSpec())


class OwnTimed(FedBuffSpec):
    """A user's own that needs a clock, and does not ask whether there is one."""

    @classmethod
    def unavailable(cls, cohort: Cohort) -> str | None:
        return None


def test_a_user_s_own_that_needs_a_clock_is_refused_in_a_search(tmp_path: Path) -> None:
    own = f"search.customs=[{{path: '{__name__}:OwnTimed'}}]"
    config = load_config(["engine.grid=local", "federation.dataset=wine", "search.strategies=[fedavg]", own])
    with refused(ConfigurationError, key="strategy.kind"):
        run_workflow(config, tmp_path / "out", detection=False)
    assert not (tmp_path / "out").exists()


EFFECTS = (
    "{kind: latency, clients: all, mean_seconds: 1}",
    "[{kind: label_flip, rate: 0.1}, {kind: devices, clients: [0], seconds_per_step: 1}]",
    "{kind: dropout, probability: 0.1}",
)


@pytest.mark.parametrize("scenario", [*SCENARIOS, *EFFECTS])
def test_a_scenario_says_what_the_federation_will_have(scenario: str) -> None:
    config = load_config(["federation.dataset=wine", "federation.num_clients=4", f"federation.scenario={scenario}"])
    federation = build_federation(config.federation, config.model)
    assert config.federation.has_clock == cohort_of(config, 4).has_clock == bool(federation.devices)


def test_a_plain_round_is_no_longer_than_its_bound() -> None:
    """Three clients with exponential times of mean 2 beside 1 s at most: 1 + 2 (1 + 1/2 + 1/3)."""
    devices = {client: Device(shift_seconds=client / 2, mean_seconds=2.0) for client in range(3)}
    federation = replace(uneven_federation(sizes=(20, 20, 20)), devices=devices)
    assert plain_seconds(config(None), federation) == pytest.approx(1 + 11 / 3)
    assert plain_seconds(config(3.0), federation) == 3.0


# Models whose layers fail in bfloat16 are refused before anything starts.


NARROW = LocalTraining(precision="bfloat16")


class Copying(nn.Linear):
    """Copies what it says into a place of float32."""

    def forward(self, rows: Tensor) -> Tensor:
        said = super().forward(rows)
        return torch.zeros(len(rows), NUM_CLASSES).index_copy_(0, torch.arange(len(rows)), said)


def copying() -> nn.Module:
    """A model that is such a layer."""
    return Copying(NUM_FEATURES, NUM_CLASSES)


@pytest.mark.parametrize("model", [dense, normalised])
def test_layers_that_take_it_pass_and_draw_nothing(model: type[nn.Module]) -> None:
    before = torch.random.get_rng_state()
    check_precision(NARROW, uneven_federation(model))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_layers_that_fail_are_told() -> None:
    check_precision(LocalTraining(), uneven_federation(copying))
    with refused(ConfigurationError, key="training.precision"):
        check_precision(NARROW, uneven_federation(copying))
