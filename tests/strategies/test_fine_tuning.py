"""Strategies whose clients train ahead of their score: FedAvg with fine-tuning and FedBABU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.methods.personal_layers import FedBABUSpec
from fedscout.strategies.methods.personal_models import FineTuningSpec
from tests.engine.federations import uneven_federation
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import SEED, SIZES, Hand, host_of, models, result_of, spec_of


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return host_of()


def test_without_tuning_it_is_fedavg(host: ClientHost) -> None:
    assert_same(result_of(host, FineTuningSpec(tuning_epochs=0)), result_of(host, FedAvgSpec()))
    assert FineTuningSpec(tuning_epochs=0).simplest(Cohort(8, 5, 0.1)) == FedAvgSpec()


def test_tuning_changes_scores_alone(host: ClientHost) -> None:
    tuned, fedavg = result_of(host, FineTuningSpec(tuning_epochs=3)), result_of(host, FedAvgSpec())
    assert np.array_equal(tuned.vector, fedavg.vector)
    assert list(tuned.round_train_loss) == list(fedavg.round_train_loss)
    assert list(tuned.round_accuracy) != list(fedavg.round_accuracy)


@pytest.mark.parametrize("spec", [FineTuningSpec(tuning_epochs=3), FedBABUSpec(tuning_epochs=3)], ids=lambda s: s.kind)
def test_clients_are_scored_with_what_they_tuned_by_hand(host: ClientHost, spec: FineTuningSpec) -> None:
    """After the last round: three epochs in float64 from the global model, each client on its own rows."""
    hand, result = Hand(uneven_federation(sizes=SIZES)), result_of(host, spec)
    *_, (_, vector) = models(host, spec_of(spec))
    tuned = [hand.accuracy(hand.tuned(vector.astype(np.float64), client, 3), client) for client in range(8)]
    np.testing.assert_allclose(result.client_accuracy, tuned)
    assert tuned != [hand.accuracy(vector.astype(np.float64), client) for client in range(8)]


def test_the_score_of_a_round_does_not_depend_on_when_it_is_taken(host: ClientHost) -> None:
    """Scored at the end or on the way out for the next round, a model is tuned on the same batches."""
    short, long = (result_of(host, FineTuningSpec(tuning_epochs=2), num_rounds=rounds) for rounds in (3, 4))
    assert list(short.round_accuracy) == list(long.round_accuracy)[:3]


def test_a_client_without_training_rows_is_scored_with_the_global_model() -> None:
    """One row each: it is the test's or nobody's; the others are tuned."""
    sizes = (*SIZES, 0)
    both = [result_of(host_of(sizes=sizes), spec) for spec in (FineTuningSpec(tuning_epochs=2), FedAvgSpec())]
    assert both[0].client == both[1].client
    assert both[0].client_accuracy[-1] == both[1].client_accuracy[-1]


def test_fedbabu_trains_the_body_as_if_the_head_had_no_gradient(host: ClientHost) -> None:
    spec, hand = spec_of(FedBABUSpec()), Hand(uneven_federation(sizes=SIZES))
    vector: Any = host.initial_vector(SEED).astype(np.float64)
    body = np.arange(len(vector)) < 35
    for server_round, (clients, found) in enumerate(models(host, replace(spec, num_rounds=3)), start=1):
        rows = np.array([hand.num_rows(client) for client in clients], np.float64)
        trained = [hand.descend(vector, client, server_round, lambda _, g: g * body)[0] for client in clients]
        vector = rows @ np.array(trained) / rows.sum()
        np.testing.assert_allclose(found, vector, rtol=0, atol=2e-6)
