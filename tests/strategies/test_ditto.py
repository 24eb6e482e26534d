"""Laws of Ditto."""

from __future__ import annotations

import numpy as np

from fedscout.engine.client.host import ClientHost
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import DittoSpec
from fedscout.strategies.methods.personal import OWN_MODEL
from tests.engine.federations import linear, uneven_federation
from tests.strategies.by_hand import SIZES, WHOLE, Hand, host_of, result_of, spec_of


def test_without_a_pull_a_client_s_own_model_is_trained_alone(host: ClientHost) -> None:
    """It then depends on nobody: with all clients in every round the rule of the server does not show in the scores."""
    both = [
        result_of(host, DittoSpec(personal_pull=0.0, sample_scaling=scaling), num_sampled=8)
        for scaling in ("num-examples", "uniform")
    ]
    assert list(both[0].round_accuracy) == list(both[1].round_accuracy)
    assert not np.array_equal(both[0].vector, both[1].vector)


def test_a_strong_pull_leaves_the_own_model_a_gradient_over_its_strength_away() -> None:
    """As λ → ∞ the minimum of F_i(v) + (λ/2)‖v − x‖² comes to x as x − ∇F_i(x)/λ."""
    host, pull = host_of(linear), 1000.0
    training = WHOLE.model_copy(update={"local_epochs": 40, "learning_rate": 0.5 / pull})
    spec = spec_of(DittoSpec(personal_pull=pull), training=training, num_rounds=1, num_sampled=8)
    grid, vector = LocalGrid(host, session=spec.session), host.initial_vector(spec.session.seed)
    assert run_trial(spec, grid).error is None
    hand = Hand(uneven_federation(linear, SIZES), WHOLE, linear)
    for client, state in grid.client_states.items():
        gradient = (vector - hand.descend(vector, client, 1)[0]) / WHOLE.learning_rate
        np.testing.assert_allclose(pull * (vector - state[OWN_MODEL]), gradient, atol=0.01 * np.abs(gradient).max())
    assert len(grid.client_states) == len(SIZES)
