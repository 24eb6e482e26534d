"""FedPer, FedRep, MFedBN and local training: what stays with clients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import FedAvgSpec, FedBNSpec, FedPerSpec, LocalOnlySpec
from fedscout.strategies.methods.batch_norm import BATCH_NORMS, MFedBNSpec
from fedscout.strategies.methods.personal_layers import FedBABUSpec, FedRepSpec
from tests.engine.federations import normalised, uneven_federation
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import SEED, SIZES, TRAINING, Hand, host_of, models, result_of, spec_of, weights_of

BASE = 35
"""Elements of the dense net's first layer, 6·5 + 5; the last one's 18 follow."""


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return host_of()


def test_the_last_layer_stays_by_hand(host: ClientHost) -> None:
    spec, hand, heads = spec_of(FedPerSpec()), Hand(uneven_federation(sizes=SIZES)), {}
    result = result_of(host, FedPerSpec())
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)

    def personal(client: int) -> Any:
        return np.concatenate([vector[:BASE], heads.get(client, vector[BASE:])])

    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        trained = {client: hand.descend(personal(client), client, server_round)[0] for client in clients}
        heads |= {client: trained[client][BASE:] for client in clients}
        bases = [trained[client][:BASE] for client in clients]
        vector = np.concatenate([weights_of(hand, clients) @ np.array(bases), vector[BASE:]])
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
    by_client = [hand.accuracy(personal(client), client) for client in range(8)]
    np.testing.assert_allclose(result.client_accuracy, by_client)


def test_head_and_body_are_trained_one_after_the_other_by_hand(host: ClientHost) -> None:
    """FedRep's Algorithm 1 in float64: two epochs of the head on the received body, then the study's of the body."""
    spec, hand, heads = spec_of(FedRepSpec(head_epochs=3)), Hand(uneven_federation(sizes=SIZES)), {}
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    base = np.arange(len(vector)) < BASE
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        bases = []
        for client in clients:
            own = np.concatenate([vector[:BASE], heads.get(client, vector[BASE:])])
            own, _ = hand.in_epochs(3).descend(own, client, server_round, lambda _, gradient: gradient * ~base)
            heads[client] = own[BASE:].copy()
            own, _ = hand.descend(own, client, server_round, lambda _, gradient: gradient * base)
            bases.append(own[:BASE])
        vector = np.concatenate([weights_of(hand, clients) @ np.array(bases), vector[BASE:]])
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)


def test_weight_decay_does_not_move_what_is_frozen() -> None:
    alone = host_of(sizes=SIZES[:1])
    decayed = TRAINING.model_copy(update={"weight_decay": 0.1, "momentum": 0.5})
    result = result_of(alone, FedBABUSpec(), num_sampled=1, training=decayed)
    initial = alone.initial_vector(SEED)
    assert result.vector is not None
    assert np.array_equal(result.vector[BASE:], initial[BASE:])
    assert not np.isclose(result.vector[:BASE], initial[:BASE]).any()


def test_a_whole_step_of_mfedbn_is_fedbn_and_a_part_of_one_that_part() -> None:
    """η scales the mean change of all but batch normalisation, which holds its initial values to the bit."""
    host = host_of(normalised)
    fedbn, whole, part = (
        result_of(host, spec, num_rounds=1)
        for spec in (FedBNSpec(), MFedBNSpec(server_learning_rate=1.0), MFedBNSpec(server_learning_rate=0.25))
    )
    initial = host.initial_vector(SEED)
    np.testing.assert_allclose(whole.vector, fedbn.vector, rtol=0, atol=1e-7)
    np.testing.assert_allclose(part.vector - initial, 0.25 * (fedbn.vector - initial), rtol=0, atol=1e-7)
    batch_norm = host.facts().layout.of_kind(*BATCH_NORMS)
    assert batch_norm.any()
    assert all(np.array_equal(trial.vector[batch_norm], initial[batch_norm]) for trial in (fedbn, whole, part))


def test_overwritten_batch_norm_begins_anew_and_is_what_a_client_is_scored_with() -> None:
    """In the first round nobody has any of its own, so both ways train alike; in the second they part."""
    host = host_of(normalised)
    specs = [MFedBNSpec(server_learning_rate=0.5, batch_norm=way) for way in ("own", "overwritten")]
    first = [result_of(host, spec, num_rounds=1, num_sampled=8) for spec in specs]
    assert_same(*first)
    second = [result_of(host, spec, num_rounds=2, num_sampled=8) for spec in specs]
    assert not np.array_equal(second[0].vector, second[1].vector)


def test_all_layers_are_local_training(host: ClientHost) -> None:
    assert_same(result_of(host, FedPerSpec(personal_layers=2)), result_of(host, LocalOnlySpec()))


def test_local_training_is_that_of_each_client_alone(host: ClientHost) -> None:
    """Five rounds of every client by hand in float64; the global model stays where it was."""
    spec, hand = spec_of(LocalOnlySpec(), num_sampled=8), Hand(uneven_federation(sizes=SIZES))
    grid = LocalGrid(host, session=spec.session)
    result = run_trial(spec, grid)
    initial = host.initial_vector(spec.session.seed)
    assert np.array_equal(result.vector, initial)
    for client in range(8):
        vector: Any = initial.astype(np.float64)
        for server_round in range(1, 6):
            vector, _ = hand.descend(vector, client, server_round)
        np.testing.assert_allclose(grid.client_states[client]["own-parameters"], vector, rtol=0, atol=2e-6)
        assert result.client_accuracy[client] == pytest.approx(hand.accuracy(vector, client))


def test_a_federation_of_one_client_trains_it_alone() -> None:
    alone = host_of(sizes=SIZES[:1])
    local, fedavg = (result_of(alone, strategy(), num_sampled=1) for strategy in (LocalOnlySpec, FedAvgSpec))
    assert list(local.round_accuracy) == list(fedavg.round_accuracy)
