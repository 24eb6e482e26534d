"""Three accuracies by hand: of each client's own model, of the global one, and of a client that never trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.trials.record import Trial
from fedscout.strategies import DittoSpec, FedAvgSpec, LocalOnlySpec, StrategySpec
from fedscout.strategies.methods.personal import FineTuningSpec
from tests.engine.federations import QUERIES, uneven_federation
from tests.strategies.by_hand import SIZES, result_of

UNSEEN = frozenset((2, 5))
SEEN = tuple(client for client in range(8) if client not in UNSEEN)
NUM_ROUNDS = 2


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return ClientHost(replace(uneven_federation(sizes=SIZES), unseen=UNSEEN), QUERIES)


def run(host: ClientHost, strategy: StrategySpec, **changes: Any) -> Trial:
    return result_of(host, strategy, num_sampled=len(SEEN), num_rounds=NUM_ROUNDS, **changes)


def test_ditto_s_global_accuracy_is_fedavg_s(host: ClientHost) -> None:
    """Its global model is; new clients have no other."""
    ditto, fedavg = run(host, DittoSpec()), run(host, FedAvgSpec())
    assert ditto.round_global_accuracy == fedavg.round_accuracy
    assert ditto.round_new_client_accuracy == fedavg.round_new_client_accuracy
    assert fedavg.round_global_accuracy is None, "it is the accuracy itself"


def test_who_tunes_has_fedavg_s_global_model(host: ClientHost) -> None:
    """New clients tune it, too, on training rows that took no part in it."""
    tuning, fedavg = run(host, FineTuningSpec(tuning_epochs=5)), run(host, FedAvgSpec())
    assert tuning.round_global_accuracy == fedavg.round_accuracy
    assert tuning.round_accuracy != fedavg.round_accuracy
    assert tuning.round_new_client_accuracy != fedavg.round_new_client_accuracy


def test_the_global_model_of_local_training_is_the_initial_one(host: ClientHost) -> None:
    trial = run(host, LocalOnlySpec())
    assert len(set(trial.round_global_accuracy)) == 1
    assert trial.global_accuracy == trial.round_global_accuracy[0]


@pytest.mark.parametrize("strategy", [FedAvgSpec(), DittoSpec(), LocalOnlySpec()], ids=lambda one: one.kind)
def test_who_keeps_a_model_where_clients_have_their_own_is_told_which_one_it_is(
    host: ClientHost, strategy: StrategySpec
) -> None:
    told = [("global one" in note, "initial one" in note) for note in run(host, strategy).notes]
    assert told == {"fedavg": [], "ditto": [(True, False)], "local": [(False, True)]}[strategy.kind]
    assert not run(host, strategy, keep_model=False).notes
