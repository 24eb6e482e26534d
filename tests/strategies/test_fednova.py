"""Laws of FedNova."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import FedNovaSpec
from fedscout.strategies.methods.drift import path_lengths
from tests.engine.federations import uneven_federation
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, TRAINING, Hand, host_of, models, spec_of, weights_of


@pytest.mark.parametrize(
    ("scaling", "momentum", "mu"), [("num-examples", 0.0, 0.0), ("uniform", 0.9, 0.0), ("num-examples", 0.0, 0.5)]
)
def test_rounds_are_the_paper_s_update(scaling: Any, momentum: float, mu: float) -> None:
    """x + τ_eff Σ p_i (y_i − x)/a_i in float64: four rounds, five of eight clients of unequal steps in each."""
    host, training = host_of(), TRAINING.model_copy(update={"momentum": momentum})
    spec = spec_of(FedNovaSpec(sample_scaling=scaling, proximal_mu=mu), num_rounds=4, training=training)
    hand = Hand(uneven_federation(sizes=SIZES), training)
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        shares = weights_of(hand, clients) if scaling == "num-examples" else np.full(5, 1 / 5)
        effective, normalised, different = 0.0, np.zeros(len(vector)), set()
        for share, client in zip(shares, clients, strict=True):
            trained, num_steps = hand.descend(
                vector, client, server_round, lambda w, gradient, x=vector: gradient + mu * (w - x)
            )
            if momentum:
                length = sum((1 - momentum**k) / (1 - momentum) for k in range(1, num_steps + 1))
            else:
                length = (1 - (1 - 0.1 * mu) ** num_steps) / (0.1 * mu) if mu else num_steps
            effective += share * (num_steps if mu else length)
            normalised += share * (trained - vector) / length
            different.add(num_steps)
        assert len(different) > 1
        vector = vector + effective * normalised
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)


def test_lengths_by_their_closed_forms() -> None:
    steps = torch.tensor([1, 3, 8])
    assert path_lengths(steps, 0.0, 0.0).tolist() == [1, 3, 8]
    by_momentum = [sum((1 - 0.9**k) / (1 - 0.9) for k in range(1, n + 1)) for n in (1, 3, 8)]
    assert path_lengths(steps, 0.9, 0.0).tolist() == pytest.approx(by_momentum)
    assert path_lengths(steps, 0.0, 0.05).tolist() == pytest.approx([(1 - 0.95**n) / 0.05 for n in (1, 3, 8)])


def test_what_has_no_length_is_refused() -> None:
    with refused(StrategyError, key="fednova", names="training.optimizer=sgd"):
        FedNovaSpec().build(Cohort(8, 5, 0.1, "adam"))
    with refused(StrategyError, key="proximal_mu"):
        FedNovaSpec(proximal_mu=2.5).build(Cohort(8, 5, 0.5))
