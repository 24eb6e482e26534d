"""Three accuracies by hand: of each client's own model, of the global one, and of a client that never trained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.federation import Federation
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.trials.record import Trial
from fedscout.strategies import DittoSpec, FedAvgSpec, FedBNSpec, FedPerSpec, LocalOnlySpec, StrategySpec
from fedscout.strategies.methods.personal_models import FineTuningSpec
from tests.engine.federations import QUERIES, dense, normalised, uneven_federation
from tests.strategies.by_hand import SIZES, Hand, result_of, weights_of

UNSEEN = frozenset((2, 5))
SEEN = tuple(client for client in range(8) if client not in UNSEEN)
NUM_ROUNDS = 2

Vector = Any
Own = Mapping[int, Vector]
"""The model of each client's own."""

BATCH_NORM = np.r_[35:45, 63:73]
"""Elements of the normalised net, 30 + 5 + (5 + 5) + 15 + 3 parameters, then mean and variance as buffers."""


def federation_of(model: ModelFactory) -> Federation:
    return replace(uneven_federation(model, SIZES), unseen=UNSEEN)


def keeping(own: Sequence[int] | Vector) -> Callable[[Hand, Vector], tuple[Vector, Own]]:
    """Return two rounds by hand in which some elements stay with their client."""

    def rounds(hand: Hand, initial: Vector) -> tuple[Vector, Own]:
        vector, kept = np.array(initial, np.float64), {client: initial[own].astype(np.float64) for client in SEEN}

        def models() -> dict[int, Vector]:
            whole = {client: vector.copy() for client in SEEN}
            for client in SEEN:
                whole[client][own] = kept[client]
            return whole

        for server_round in range(1, NUM_ROUNDS + 1):
            trained = {client: hand.descend(start, client, server_round)[0] for client, start in models().items()}
            kept = {client: trained[client][own] for client in SEEN}
            mean = weights_of(hand, SEEN) @ np.array([trained[client] for client in SEEN])
            mean[own] = vector[own]
            vector = mean
        return vector, models()

    return rounds


def two_models(hand: Hand, initial: Vector) -> tuple[Vector, Own]:
    """Two rounds of Ditto by hand, λ = 0.5."""
    vector: Vector = np.array(initial, np.float64)
    own = dict.fromkeys(SEEN, vector)
    for server_round in range(1, NUM_ROUNDS + 1):
        received = vector
        trained = [hand.descend(received, client, server_round)[0] for client in SEEN]
        own = {
            client: hand.descend(start, client, server_round, lambda v, g, x=received: g + 0.5 * (v - x))[0]  # type: ignore[misc]
            for client, start in own.items()
        }
        vector = weights_of(hand, SEEN) @ np.array(trained)
    return vector, own


CASES: Mapping[str, tuple[StrategySpec, ModelFactory, Callable[[Hand, Vector], tuple[Vector, Own]]]] = {
    "fedper": (FedPerSpec(), dense, keeping(np.r_[35:53])),
    "fedbn": (FedBNSpec(), normalised, keeping(BATCH_NORM)),
    "ditto": (DittoSpec(personal_pull=0.5), dense, two_models),
}


def weighted(federation: Federation, hand: Hand, models: Own) -> float:
    """Return the mean accuracy of clients' models, weighted by their test rows."""
    rows = np.array([round(0.2 * federation.partition.sizes[client]) for client in models])
    accuracies = np.array([hand.accuracy(vector, client) for client, vector in models.items()])
    return float(accuracies @ rows / rows.sum())


def run(host: ClientHost, strategy: StrategySpec, **changes: Any) -> Trial:
    return result_of(host, strategy, num_sampled=len(SEEN), num_rounds=NUM_ROUNDS, **changes)


@pytest.mark.parametrize("name", CASES)
def test_the_three_accuracies_by_hand(name: str) -> None:
    strategy, model, rounds = CASES[name]
    federation = federation_of(model)
    host, hand = ClientHost(federation, QUERIES), Hand(federation, model=model)
    trial = run(host, strategy)
    vector, own = rounds(hand, host.initial_vector(3))
    assert trial.round_global_accuracy is not None
    assert trial.round_new_client_accuracy is not None
    assert trial.round_accuracy[-1] == pytest.approx(weighted(federation, hand, own))
    assert trial.round_global_accuracy[-1] == pytest.approx(weighted(federation, hand, dict.fromkeys(SEEN, vector)))
    new = weighted(federation, hand, dict.fromkeys(sorted(UNSEEN), vector))
    assert trial.round_new_client_accuracy[-1] == pytest.approx(new)
    assert trial.round_accuracy[-1] != trial.round_global_accuracy[-1], "or the test would tell nothing"


def test_ditto_s_global_accuracy_is_fedavg_s() -> None:
    """Its global model is; new clients have no other."""
    host = ClientHost(federation_of(dense), QUERIES)
    ditto, fedavg = run(host, DittoSpec()), run(host, FedAvgSpec())
    assert ditto.round_global_accuracy == fedavg.round_accuracy
    assert ditto.round_new_client_accuracy == fedavg.round_new_client_accuracy
    assert fedavg.round_global_accuracy is None, "it is the accuracy itself"


def test_who_tunes_has_fedavg_s_global_model() -> None:
    """New clients tune it, too, on training rows that took no part in it."""
    host = ClientHost(federation_of(dense), QUERIES)
    tuning, fedavg = run(host, FineTuningSpec(tuning_epochs=5)), run(host, FedAvgSpec())
    assert tuning.round_global_accuracy == fedavg.round_accuracy
    assert tuning.round_accuracy != fedavg.round_accuracy
    assert tuning.round_new_client_accuracy != fedavg.round_new_client_accuracy


def test_the_global_model_of_local_training_is_the_initial_one() -> None:
    trial = run(ClientHost(federation_of(dense), QUERIES), LocalOnlySpec())
    assert trial.round_global_accuracy is not None
    assert len(set(trial.round_global_accuracy)) == 1
    assert trial.global_accuracy == trial.round_global_accuracy[0]


@pytest.mark.parametrize("strategy", [FedAvgSpec(), DittoSpec(), LocalOnlySpec()], ids=lambda one: one.kind)
def test_who_keeps_a_model_where_clients_have_their_own_is_told_which_one_it_is(strategy: StrategySpec) -> None:
    host = ClientHost(federation_of(dense), QUERIES)
    told = [note for note in run(host, strategy).notes if "the model that is kept is" in note]
    assert [("global one" in note, "initial one" in note) for note in told] == {
        "fedavg": [],
        "ditto": [(True, False)],
        "local": [(False, True)],
    }[strategy.kind]
    assert not run(host, strategy, keep_model=False).notes
