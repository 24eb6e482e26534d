"""FedExP steps further than FedAvg where clients disagree, by the closed form on quadratic clients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest

from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import FedAvgSpec, FedExPSpec
from fedscout.strategies.methods.averaging import extrapolated_change
from tests.strategies.rounds import played

NUM_CLIENTS = 8


def solved(sent: npt.NDArray[np.floating]) -> list[npt.NDArray[np.floating]]:
    """Client i minimises F_i(w) = (w_i − 1)²/2 and so sets its own coordinate to 1."""
    return [np.where(np.arange(NUM_CLIENTS) == client, 1.0, sent) for client in range(NUM_CLIENTS)]


@pytest.mark.parametrize("epsilon", [1e-12, 1e-3, 0.05, 10.0])
def test_the_rate_on_quadratic_clients_is_its_closed_form(epsilon: float) -> None:
    """All coordinates of x are r below 1.

    Then ‖Δ_i‖² = r² and Δ̄ = r/M in every coordinate, ‖Δ̄‖² = r²/M, so η_g = max(1, r²/(2(r²/M + ε))): M/2 for ε → 0.
    """
    weights = np.full(NUM_CLIENTS, 1 / NUM_CLIENTS)
    for gap in (1.0, 0.25):
        received = np.full(NUM_CLIENTS, 1 - gap)
        rate, change = extrapolated_change(received, solved(received), weights, epsilon)
        assert rate == pytest.approx(max(1.0, gap**2 / (2 * (gap**2 / NUM_CLIENTS + epsilon))), rel=1e-12)
        np.testing.assert_allclose(change, gap / NUM_CLIENTS, rtol=1e-12)
    largest, _ = extrapolated_change(np.zeros(NUM_CLIENTS), solved(np.zeros(NUM_CLIENTS)), weights, 1e-12)
    assert largest == pytest.approx(NUM_CLIENTS / 2)


def test_whole_rounds_on_quadratic_clients() -> None:
    """With ε → 0 each round halves r: x_t = 1 − 2^−t is sent out, and the result is the mean of the last two."""
    built = FedExPSpec(epsilon=1e-12).build(Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.1))
    rounds = played(built, np.zeros(NUM_CLIENTS), solved, num_rounds=6)
    for number, (sent, model) in enumerate(rounds, start=1):
        np.testing.assert_allclose(sent, 1 - 0.5 ** (number - 1), rtol=1e-6)
        np.testing.assert_allclose(model, 1 - 0.75 * 0.5 ** (number - 1), rtol=1e-6)


def test_clients_that_agree_make_it_fedavg() -> None:
    """η_g = 1, so clients are sent what FedAvg sends; the result of a round is the mean of two such models."""
    cohort = Cohort(4, 4, 0.1)
    start = np.array([1.0, -2.0, 0.5])

    def trained(sent: npt.NDArray[np.float32]) -> list[npt.NDArray[np.floating]]:
        return [0.7 * sent + 0.1] * 4

    for scaling in ("uniform", "num-examples"):
        ours = played(FedExPSpec(sample_scaling=scaling).build(cohort), start, trained, 5, counts=[1, 2, 3, 4])
        theirs = played(FedAvgSpec().build(cohort), start, trained, 5, counts=[1, 2, 3, 4])
        for (sent, model), (fedavg_sent, fedavg_model) in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(sent, fedavg_sent, rtol=1e-5)
            np.testing.assert_allclose(model, (fedavg_sent + fedavg_model) / 2, rtol=1e-5)
    rate, _ = extrapolated_change(start, trained(start), np.full(4, 0.25), 1e-9)
    assert rate == 1.0


def test_clients_weigh_equally_or_by_their_rows() -> None:
    """Two clients from x = 0 with Δ = (2, 0) and (0, 2), 30 and 10 rows.

    Equal: Σ‖Δ_i‖²/(2n) = 2, ‖Δ̄‖² = 2, η_g = 1. By rows: Σ p_i‖Δ_i‖²/2 = 2, Δ̄ = (1.5, 0.5), ‖Δ̄‖² = 2.5, η_g = 1. With
    a third client at (0, 0, 2) and 40 rows, by rows p = (3, 1, 4)/8: ‖Δ̄‖² = 4 · 26/64, η_g = 2/1.625 = 16/13.
    """
    clients = list(2 * np.eye(3))
    rate, change = extrapolated_change(np.zeros(3), clients, np.array([3, 1, 4]) / 8, 1e-15)
    assert rate == pytest.approx(16 / 13)
    np.testing.assert_allclose(change, [0.75, 0.25, 1.0])
    built = FedExPSpec(sample_scaling="num-examples", epsilon=1e-12).build(Cohort(3, 3, 0.1))
    ((_, model),) = played(built, np.zeros(3), lambda _: clients, 1, counts=[30, 10, 40])
    np.testing.assert_allclose(model, 16 / 13 * np.array([0.75, 0.25, 1.0]) / 2, rtol=1e-6)
    equal = FedExPSpec(epsilon=1e-12).build(Cohort(3, 3, 0.1))
    ((_, model),) = played(equal, np.zeros(3), lambda _: clients, 1, counts=[30, 10, 40])
    np.testing.assert_allclose(model, np.full(3, 1.5 * 2 / 3 / 2), rtol=1e-6)  # η_g = 2/(4/3)


def test_a_round_without_a_model_sends_the_same_again() -> None:
    built = FedExPSpec().build(Cohort(NUM_CLIENTS, NUM_CLIENTS, 0.1))
    played(built, np.zeros(NUM_CLIENTS), solved, num_rounds=2)
    iterate = built.iterate
    rounds = played(built, np.zeros(NUM_CLIENTS), lambda _: [None] * NUM_CLIENTS, num_rounds=2)
    assert all(model is None for _, model in rounds)
    for sent, _ in rounds:
        np.testing.assert_array_equal(sent, iterate)


def test_one_client_has_one_weight() -> None:
    by_rows, equal = FedExPSpec(sample_scaling="num-examples"), FedExPSpec()
    assert by_rows.digest(Cohort(4, 1, 0.1)) == equal.digest(Cohort(4, 1, 0.1))
    assert by_rows.digest(Cohort(4, 2, 0.1)) != equal.digest(Cohort(4, 2, 0.1))
