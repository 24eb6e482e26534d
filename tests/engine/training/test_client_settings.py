"""Settings of each client's own: what they are equal to, and that they are nobody else's affair."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pytest

from fedscout.engine.contracts.algorithm import ClientAlgorithm, LocalFacts
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.methods.averaging import MeanSpec
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import TRAINING, Hand, host_of, models, result_of, spec_of, weights_of

HOST = host_of()


@dataclass(frozen=True)
class Slower(ClientAlgorithm):
    """Halves the rate of clients with at least so many rows, and fails where a client has a certain number."""

    from_rows: int = 0
    failing: int = -1

    def settings(self, facts: LocalFacts) -> LocalTraining:
        assert facts.label_counts.sum() == facts.num_examples
        if facts.num_examples == self.failing:
            raise ValueError("no settings for me")
        halved = facts.training.learning_rate / 2
        slow = facts.num_examples >= self.from_rows
        return facts.training.model_copy(update={"learning_rate": halved}) if slow else facts.training


class SlowerSpec(MeanSpec):
    """FedAvg whose large clients train at half the rate."""

    kind: Literal["slower"] = "slower"

    def client_algorithm(self) -> ClientAlgorithm:
        return Slower(20)


def trial_of(algorithm: ClientAlgorithm, backend: Literal["auto", "loop"] = "auto") -> Trial:
    spec = spec_of(FedAvgSpec(), backend=backend)
    return run_trial(spec, LocalGrid(HOST, session=replace(spec.session, algorithm=algorithm)))


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_half_the_rate_of_all_is_fedavg_at_half_the_rate(backend: Literal["auto", "loop"]) -> None:
    halved = TRAINING.model_copy(update={"learning_rate": TRAINING.learning_rate / 2})
    assert_same(trial_of(Slower(), backend), result_of(HOST, FedAvgSpec(), training=halved, backend=backend))


def test_clients_of_other_settings_train_by_them_by_hand() -> None:
    """Clients of 20 training rows and more at half the rate, in float64."""
    hand = Hand(HOST._federation)
    slow = replace(hand, training=TRAINING.model_copy(update={"learning_rate": TRAINING.learning_rate / 2}))
    spec = spec_of(SlowerSpec())
    vector = HOST.initial_vector(spec.session.seed).astype(np.float64)
    seen = set()
    for server_round, (clients, found) in enumerate(models(HOST, spec), start=1):
        fast = [hand.num_rows(client) < 20 for client in clients]
        seen |= {*fast}
        trained = [
            (hand if is_fast else slow).descend(vector, client, server_round)[0]
            for client, is_fast in zip(clients, fast, strict=True)
        ]
        vector = weights_of(hand, clients) @ np.array(trained)
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
    assert seen == {True, False}


def test_who_has_no_settings_fails_alone() -> None:
    hand = Hand(HOST._federation)
    trial = trial_of(Slower(failing=hand.num_rows(0)))
    assert trial.status == "completed"
    assert {place.partition(":")[2] for place in trial.dropped_clients} == {"0"}
    assert "no settings for me" in next(iter(trial.dropped_clients.values()))
