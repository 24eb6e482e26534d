"""SCAFFOLD, FedNova and FedDyn are their papers' algorithms."""

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
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.methods.drift import FedDynSpec, FedNovaSpec, ScaffoldSpec
from tests.engine.federations import normalised, uneven_federation
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, TRAINING, Hand, host_of, models, result_of, spec_of, weights_of


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


# -- Laws of FedNova ---------------------------------------------------------------------------------------------------


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


def test_what_has_no_length_is_refused() -> None:
    with refused(StrategyError, key="proximal_mu"):
        FedNovaSpec(proximal_mu=2.5).build(Cohort(8, 5, 0.5))


# -- FedDyn is its paper's algorithm, and ends where that says ---------------------------------------------------------


@pytest.mark.parametrize("scaling", ["uniform", "num-examples"])
def test_feddyn_s_rounds_are_its_paper_s(scaling: Any) -> None:
    """Algorithm 1 in float64, h and all: eight rounds, five of eight clients in each."""
    host, hand, alpha = host_of(), Hand(uneven_federation(sizes=SIZES)), 0.3
    spec, kept = spec_of(FedDynSpec(dynamic_alpha=alpha, sample_scaling=scaling), num_rounds=8), {}
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    h = np.zeros(len(vector))
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        shares = np.full(5, 1 / 5) if scaling == "uniform" else weights_of(hand, clients)
        mean, changed = np.zeros(len(vector)), np.zeros(len(vector))
        for share, client in zip(shares, clients, strict=True):
            own = kept.get(client, np.zeros(len(vector)))
            trained, _ = hand.descend(
                vector, client, server_round, lambda y, g, own=own, x=vector: g - own + alpha * (y - x)
            )
            kept[client] = own - alpha * (trained - vector)
            mean += share * trained
            changed += share * (trained - vector)
        h -= alpha * 5 / 8 * changed
        vector = mean - h / alpha
        np.testing.assert_allclose(found, vector, rtol=0, atol=3e-6)


def test_statistics_of_batch_normalisation_are_averaged_alone() -> None:
    """Next to no regulariser, one round: buffers are those of FedAvg, and the rest is the mean and the lead beyond."""
    host = host_of(normalised)
    feddyn, fedavg = (
        result_of(host, strategy, num_rounds=1).vector
        for strategy in (FedDynSpec(dynamic_alpha=1e-9), FedAvgSpec(sample_scaling="uniform"))
    )
    np.testing.assert_allclose(feddyn[-10:], fedavg[-10:], rtol=1e-6)
    start = host.initial_vector(3)[:-10]
    np.testing.assert_allclose(feddyn[:-10] - start, (1 + 5 / 8) * (fedavg[:-10] - start), rtol=0, atol=1e-6)
