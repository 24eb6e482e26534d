"""Laws of SCAFFOLD."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import ScaffoldSpec
from tests.engine.federations import normalised, uneven_federation
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, TRAINING, Hand, host_of, models, spec_of, weights_of


@pytest.mark.parametrize(("scaling", "rate"), [("uniform", 1.0), ("num-examples", 0.7)])
def test_rounds_are_the_paper_s_algorithm(host: ClientHost, scaling: Any, rate: float) -> None:
    """Algorithm 1 in float64: eight rounds, five of eight clients in each."""
    spec = spec_of(ScaffoldSpec(sample_scaling=scaling, server_learning_rate=rate), num_rounds=8)
    hand, controls = Hand(uneven_federation(sizes=SIZES)), {}
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    control = np.zeros(len(vector))
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        shares = weights_of(hand, clients) if scaling == "num-examples" else np.full(5, 1 / 5)
        moved, changed = np.zeros(len(vector)), np.zeros(len(vector))
        for share, client in zip(shares, clients, strict=True):
            own = controls.get(client, np.zeros(len(vector)))
            trained, num_steps = hand.descend(
                vector, client, server_round, lambda _, gradient, shift=control - own: gradient + shift
            )
            controls[client] = own - control + (vector - trained) / (num_steps * TRAINING.learning_rate)
            moved += share * (trained - vector)
            changed += share * (controls[client] - own)
        vector, control = vector + rate * moved, control + 5 / 8 * changed
        np.testing.assert_allclose(found, vector, rtol=0, atol=1e-6)
    assert len(controls) == 8


def test_buffers_have_no_control_variates() -> None:
    """A variance may move by more in a step than any gradient, and would leave the range of the exact sum."""
    spec, host = spec_of(ScaffoldSpec(), training=LocalTraining(learning_rate=1e-6)), host_of(normalised)
    grid = LocalGrid(host, session=spec.session)
    result = run_trial(spec, grid)
    assert result.error is None
    for state in grid.client_states.values():
        assert not state["control"][-10:].any()
        assert state["control"][:-10].any()


@pytest.mark.parametrize(
    ("training", "given"),
    [
        ({"momentum": 0.9}, "momentum 0.9"),
        *[({"optimizer": name}, f"optimizer {name}") for name in ("adam", "rmsprop", "adadelta")],
    ],
)
def test_clients_with_another_optimiser_are_refused(training: dict[str, Any], given: str) -> None:
    optimiser = LocalTraining(**training)
    cohort = Cohort(8, 5, 0.1, optimiser.optimizer, optimiser.momentum)
    with refused(StrategyError, key="scaffold", given=given, names="training.optimizer=sgd, training.momentum=0"):
        ScaffoldSpec().build(cohort)
