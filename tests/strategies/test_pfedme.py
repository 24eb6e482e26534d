"""Laws of pFedMe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.strategies import FedProxSpec
from fedscout.strategies.methods.personal_models import PFedMeSpec
from tests.engine.federations import uneven_federation
from tests.strategies.by_hand import SEED, SIZES, TRAINING, Hand, host_of, models, result_of, spec_of, weights_of


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return host_of()


def test_one_turn_of_a_whole_step_is_fedprox(host: ClientHost) -> None:
    """With η λ = 1 and R = 1, w becomes θ, what FedProx's client with μ = λ sends."""
    pull = 1 / TRAINING.learning_rate
    pfedme = result_of(host, PFedMeSpec(personal_pull=pull, local_rounds=1))
    assert np.array_equal(pfedme.vector, result_of(host, FedProxSpec(proximal_mu=pull)).vector)


def test_rounds_by_hand(host: ClientHost) -> None:
    """Eq. 7 and 8 in float64, three turns; a client is scored with its last θ, or with the global model."""
    strategy = PFedMeSpec(personal_pull=2.0, local_rounds=3)
    spec, hand, own = spec_of(strategy), Hand(uneven_federation(sizes=SIZES)), {}
    result = result_of(host, strategy)
    vector: Any = host.initial_vector(SEED).astype(np.float64)
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        sent = []
        for client in clients:
            shared = vector
            for _ in range(3):
                own[client], _ = hand.descend(
                    shared, client, server_round, lambda w, g, centre=shared: g + 2.0 * (w - centre)
                )
                shared = shared - TRAINING.learning_rate * 2.0 * (shared - own[client])
            sent.append(shared)
        vector = weights_of(hand, clients) @ np.array(sent)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
    scored = [hand.accuracy(own.get(client, vector), client) for client in range(8)]
    np.testing.assert_allclose(result.client_accuracy, scored)
