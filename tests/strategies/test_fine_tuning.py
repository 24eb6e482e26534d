"""Strategies whose clients train ahead of their score: FedAvg with fine-tuning and FedBABU."""

from __future__ import annotations

from fedscout.engine.client.host import ClientHost
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.methods.personal import FineTuningSpec
from tests.strategies.by_hand import SIZES, host_of, result_of


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
