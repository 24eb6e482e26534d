"""A user's own Flower strategy ends with the model that it ends with under Flower's own simulation."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation, split_client
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import CustomSpec
from fedscout.strategies.methods.dp_fedavg import DPFedAvgSpec
from tests.commands import output_of
from tests.engine.federations import QUERIES, dense, uneven_federation
from tests.strategies.by_hand import result_of, spec_of
from tests.strategies.flower_programs import NETS, NUM_CLIENTS, PROGRAMS, SEED, Private

SIZES = (40, 17, 12, 33, 8)
NUM_ROUNDS = 4
TRAINING = LocalTraining(local_epochs=3, batch_size=1000, learning_rate=0.3)
SETTINGS: dict[str, Any] = {"num_rounds": NUM_ROUNDS, "num_sampled": NUM_CLIENTS, "training": TRAINING}


@pytest.fixture(scope="module")
def federation() -> Federation:
    assert len(SIZES) == NUM_CLIENTS
    return uneven_federation(sizes=SIZES)


def host_of(name: str, federation: Federation) -> ClientHost:
    return ClientHost(replace(federation, model=NETS.get(name, federation.model)), QUERIES)


def trial(name: str, federation: Federation, **changes: Any) -> Trial:
    strategy = changes.pop("strategy", CustomSpec(path=f"tests.strategies.flower_programs:{name}"))
    return result_of(host_of(name, federation), strategy, **{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def flowers(
    request: pytest.FixtureRequest, federation: Federation, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, np.ndarray]:
    """The final model of each program under Flower's simulation, which runs in a session of processes of its own.

    Of the programs that this run of the tests compares, as each takes seconds; `Private` is always one.
    """
    compared = {
        item.callspec.params["name"]
        for item in request.session.items
        if hasattr(item, "callspec") and item.path == request.path and "name" in item.callspec.params
    }
    names = [name for name in PROGRAMS if name in compared | {"Private"}]
    folder = tmp_path_factory.mktemp("flower")
    work = {}
    for client in range(NUM_CLIENTS):
        own = federation.client_data(client).own
        train = own.rows[split_client(own.labels[own.rows], SEED, client, 0.2).train]
        work |= {f"features-{client}": own.features[train], f"labels-{client}": own.labels[train]}
    np.savez(folder / "work.npz", **work)
    grids = {net.__name__: LocalGrid(ClientHost(replace(federation, model=net), QUERIES)) for net in NETS.values()}
    for net, grid in grids.items():
        np.savez(folder / f"{net}.npz", **grid.facts.layout.split(grid.initial_vector(SEED)))
    config = {"lr": TRAINING.learning_rate, "local-epochs": TRAINING.local_epochs}
    (folder / "settings.json").write_text(json.dumps({"num_rounds": NUM_ROUNDS, "config": config, "programs": names}))
    output_of("tests.strategies.flower_reference", str(folder), timeout=240)
    layouts = {name: grids[NETS[name].__name__].facts.layout for name in names}
    return {name: layout.join(dict(np.load(folder / f"{name}.npz"))) for name, layout in layouts.items()}


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_final_model_is_that_of_flowers_simulation(
    name: str, federation: Federation, flowers: dict[str, np.ndarray]
) -> None:
    """To 2e-6: float32 sums in another order. A rule that is dropped differs by far more, as the next test says."""
    np.testing.assert_allclose(trial(name, federation).vector, flowers[name], atol=2e-6)


@pytest.mark.slow
def test_dp_fedavg_is_flowers_private_averaging(federation: Federation, flowers: dict[str, np.ndarray]) -> None:
    """Noise and all, the simulation's being drawn from the same seeds."""
    strategy = DPFedAvgSpec(noise_multiplier=Private.noise_multiplier, clipping_norm=Private.clipping_norm)
    found = trial("Private", federation, strategy=strategy)
    np.testing.assert_allclose(found.vector, flowers["Private"], atol=2e-6)


@pytest.mark.stress
def test_no_program_ends_where_plain_fedavg_does(flowers: dict[str, np.ndarray]) -> None:
    """Only the one that is driven by itself is another program's equal."""
    apart = {name: model for name, model in flowers.items() if NETS[name] is dense and name != "OwnStartHalvesTheRate"}
    for name, model in apart.items():
        for other in apart.keys() - {name}:
            assert np.abs(model - apart[other]).max() > 1e-4, (name, other)
    np.testing.assert_allclose(flowers["OwnStartHalvesTheRate"], flowers["HalvesTheRate"], atol=2e-6)


def test_a_start_that_counts_its_rounds_anew_is_scored_round_by_round(federation: Federation) -> None:
    """Each round's record is of the model after it: that of the trial that ends there."""
    whole = trial("TwoPhases", federation)
    begun = trial("TwoPhases", federation, num_rounds=3)
    assert list(begun.rounds["loss"]) == list(whole.rounds["loss"])[:3]
    assert len({*whole.rounds["loss"]}) == NUM_ROUNDS
    assert whole.skipped_rounds == {}


def test_a_vector_beside_the_model_is_refused_whatever_it_is_called(federation: Federation) -> None:
    """No client of a Flower strategy reads it, so it must not go by the name that client algorithms know."""
    spec = spec_of(CustomSpec(path="tests.strategies.flower_programs:SendsAlong"), **SETTINGS)
    refused = run_trial(spec, LocalGrid(host_of("SendsAlong", federation), session=spec.session))
    assert refused.status == "failed"
    assert str(refused.error).endswith("ArrayRecord, got 2")


def test_a_round_without_a_model_keeps_the_model_before(federation: Federation) -> None:
    every_other = trial("EveryOtherRound", federation)
    losses = list(every_other.rounds["loss"])
    assert losses[0] == losses[1] != losses[2] == losses[3]
    assert list(every_other.skipped_rounds) == ["2", "4"]
