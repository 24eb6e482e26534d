"""Laws of FedSAM, and of gradients that are taken elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fedscout.strategies import FedAvgSpec
from fedscout.strategies.methods.fedsam import FedSAMSpec, SharpnessAware
from tests.engine.federations import uneven_federation
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import SEED, SIZES, WHOLE, Hand, host_of, models, result_of, spec_of, weights_of


def test_without_a_radius_it_is_fedavg_s_loop() -> None:
    host = host_of()
    assert_same(*(result_of(host, spec, backend="loop") for spec in (FedSAMSpec(sharpness_radius=0.0), FedAvgSpec())))


def test_the_place_looked_at_is_so_far_uphill() -> None:
    weights, gradient = torch.tensor([1.0, 2.0]), torch.tensor([3.0, -4.0])
    uphill = SharpnessAware(0.5)._uphill(weights, gradient)
    torch.testing.assert_close(uphill, torch.tensor([1.3, 1.6]))
    assert torch.equal(SharpnessAware(0.5)._uphill(weights, gradient * 0), weights)


def test_rounds_by_hand() -> None:
    """One step a round on all rows, in float64: y = x − η g(x + ρ g(x)/‖g(x)‖)."""
    host, hand = host_of(), Hand(uneven_federation(sizes=SIZES), WHOLE)
    spec = spec_of(FedSAMSpec(sharpness_radius=0.3), training=WHOLE)
    vector: Any = host.initial_vector(SEED).astype(np.float64)
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        trained = []
        for client in clients:
            features, labels = hand._rows(client)
            _, gradient = hand._gradient(vector, features, labels)
            _, uphill = hand._gradient(vector + 0.3 * gradient / np.linalg.norm(gradient), features, labels)
            trained.append(vector - WHOLE.learning_rate * uphill)
        vector = weights_of(hand, clients) @ np.array(trained)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
        assert server_round <= spec.num_rounds
