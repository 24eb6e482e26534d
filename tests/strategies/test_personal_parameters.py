"""Strategies whose clients keep or tune something of their own, and those with a loss of their own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord
from torch import Tensor

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import Descent, algorithm_if_configured
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.models.layout import MASKED_LOGIT, Adjusted
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import StrategySpec
from fedscout.strategies.methods.averaging import PROXIMAL_MU_KEY, ProximalTerm
from fedscout.strategies.methods.losses import CalibratedDescent
from fedscout.strategies.methods.personal import BATCH_NORMS, OwnBatchNorm
from tests.engine.choices import FLOWER_CHOICES
from tests.engine.choices import spec_of as flower_spec
from tests.engine.federations import QUERIES, normalised, uneven_federation
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import SEED, SIZES, TRAINING, host_of, result_of
from tests.strategies.rounds import grid_of, made

BASE = 35
"""Elements of the dense net's first layer, 6·5 + 5; the last one's 18 follow."""


def test_weight_decay_does_not_move_what_is_frozen() -> None:
    alone = host_of(sizes=SIZES[:1])
    decayed = TRAINING.model_copy(update={"weight_decay": 0.1, "momentum": 0.5})
    result = result_of(alone, made("fedbabu"), num_sampled=1, training=decayed)
    initial = alone.initial_vector(SEED)
    assert np.array_equal(result.vector[BASE:], initial[BASE:])
    assert not np.isclose(result.vector[:BASE], initial[:BASE]).any()


def test_a_part_of_a_step_of_mfedbn_is_that_part_of_fedbn_s() -> None:
    """η scales the mean change of all but batch normalisation, which holds its initial values to the bit."""
    host = host_of(normalised)
    fedbn, part = (
        result_of(host, spec, num_rounds=1) for spec in (made("fedbn"), made("mfedbn", server_learning_rate=0.25))
    )
    initial = host.initial_vector(SEED)
    np.testing.assert_allclose(part.vector - initial, 0.25 * (fedbn.vector - initial), rtol=0, atol=1e-7)
    batch_norm = host.facts().layout.of_kind(*BATCH_NORMS)
    assert batch_norm.any()
    assert all(np.array_equal(trial.vector[batch_norm], initial[batch_norm]) for trial in (fedbn, part))


def test_overwritten_batch_norm_begins_anew_and_is_what_a_client_is_scored_with() -> None:
    """In the first round nobody has any of its own, so both ways train alike; in the second they part."""
    host = host_of(normalised)
    specs = [made("mfedbn", server_learning_rate=0.5, batch_norm=way) for way in ("own", "overwritten")]
    first = [result_of(host, spec, num_rounds=1, num_sampled=8) for spec in specs]
    assert_same(*first)
    second = [result_of(host, spec, num_rounds=2, num_sampled=8) for spec in specs]
    assert not np.array_equal(second[0].vector, second[1].vector)


# -- Laws of Ditto -----------------------------------------------------------------------------------------------------


# -- Laws of FedBN -----------------------------------------------------------------------------------------------------


OWN = slice(35, 45), slice(63, 73)
"""Scale and shift follow the first layer's 6·5 + 5 parameters, the statistics all 63."""


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fedavgm", "fedmedian", "fedtrimmedavg", "krum", "qfedavg"])
def test_under_any_server_rule_the_global_layer_stays_where_it_was(name: str) -> None:
    """At its initial 0 and 1, as every rule of Flower's sees no change there; the rest is trained."""
    host = host_of(normalised)
    spec = replace(flower_spec(replace(FLOWER_CHOICES[name], algorithm=OwnBatchNorm())), num_sampled=8)
    result = run_trial(spec, LocalGrid(host, session=spec.session))
    initial = host.initial_vector(spec.session.seed)
    for part in OWN:
        assert np.array_equal(result.vector[part], initial[part])
    assert np.abs(result.vector - initial).max() > 1e-3


# -- Strategies whose clients train ahead of their score: FedAvg with fine-tuning and FedBABU --------------------------


def test_the_score_of_a_round_does_not_depend_on_when_it_is_taken(host: ClientHost) -> None:
    """Scored at the end or on the way out for the next round, a model is tuned on the same batches."""
    short, long = (result_of(host, made("fine_tuning", tuning_epochs=2), num_rounds=rounds) for rounds in (3, 4))
    assert list(short.round_accuracy) == list(long.round_accuracy)[:3]


def test_a_client_without_training_rows_is_scored_with_the_global_model() -> None:
    """One row each: it is the test's or nobody's; the others are tuned."""
    sizes = (*SIZES, 0)
    both = [result_of(host_of(sizes=sizes), spec) for spec in (made("fine_tuning", tuning_epochs=2), made("fedavg"))]
    assert both[0].client == both[1].client
    assert both[0].client_accuracy[-1] == both[1].client_accuracy[-1]


# -- Three accuracies by hand: of each client's own model, of the global one, and of a client that never trained -------


UNSEEN = frozenset((2, 5))
SEEN = tuple(client for client in range(8) if client not in UNSEEN)
NUM_ROUNDS = 2


@pytest.fixture(scope="module")
def small_host() -> ClientHost:
    return ClientHost(replace(uneven_federation(sizes=SIZES), unseen=UNSEEN), QUERIES)


def run(small_host: ClientHost, strategy: StrategySpec, **changes: Any) -> Trial:
    return result_of(small_host, strategy, num_sampled=len(SEEN), num_rounds=NUM_ROUNDS, **changes)


def test_ditto_s_global_accuracy_is_fedavg_s(small_host: ClientHost) -> None:
    """Its global model is; new clients have no other."""
    ditto, fedavg = run(small_host, made("ditto")), run(small_host, made("fedavg"))
    assert ditto.round_global_accuracy == fedavg.round_accuracy
    assert ditto.round_new_client_accuracy == fedavg.round_new_client_accuracy
    assert fedavg.round_global_accuracy is None, "it is the accuracy itself"


def test_who_tunes_has_fedavg_s_global_model(small_host: ClientHost) -> None:
    """New clients tune it, too, on training rows that took no part in it."""
    tuning, fedavg = run(small_host, made("fine_tuning", tuning_epochs=5)), run(small_host, made("fedavg"))
    assert tuning.round_global_accuracy == fedavg.round_accuracy
    assert tuning.round_accuracy != fedavg.round_accuracy
    assert tuning.round_new_client_accuracy != fedavg.round_new_client_accuracy


def test_the_global_model_of_local_training_is_the_initial_one(small_host: ClientHost) -> None:
    trial = run(small_host, made("local"))
    assert len(set(trial.round_global_accuracy)) == 1
    assert trial.global_accuracy == trial.round_global_accuracy[0]


@pytest.mark.parametrize("strategy", [made("fedavg"), made("ditto"), made("local")], ids=lambda one: one.kind)
def test_who_keeps_a_model_where_clients_have_their_own_is_told_which_one_it_is(
    small_host: ClientHost, strategy: StrategySpec
) -> None:
    told = [("global one" in note, "initial one" in note) for note in run(small_host, strategy).notes]
    assert told == {"fedavg": [], "ditto": [(True, False)], "local": [(False, True)]}[strategy.kind]
    assert not run(small_host, strategy, keep_model=False).notes


# -- MOON, FedLC, FedRS, the symmetric loss and FedRoD: clients with a loss of their own -------------------------------


class CountedRun:
    """As much of a run as FedLC looks at."""

    received = torch.zeros(2)

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts
        self.adjusted: Adjusted | None = None

    def label_counts(self) -> Tensor:
        return self.counts

    def descend(self, start: Tensor, adjusted: Adjusted) -> Descent:
        self.adjusted = adjusted
        return Descent(start[None], torch.ones(1), torch.ones(1))


def test_a_class_without_rows_is_left_out_by_a_finite_shift() -> None:
    """As infinity would be no number where a class has no weight."""
    run = CountedRun(torch.tensor([[16.0, 0.0]]))
    CalibratedDescent(2.0).train(run)  # type: ignore[arg-type]
    assert run.adjusted.shift.tolist() == [[-1.0, MASKED_LOGIT]]


# -- Laws of the proximal term -----------------------------------------------------------------------------------------


def test_flower_sends_the_weight_under_the_key_that_is_read() -> None:
    claim_task_identity()
    spec = made("fedprox", proximal_mu=0.3)
    arrays = ArrayRecord({"flat": Array(torch.zeros(2).numpy())})
    (message,) = spec.build(Cohort(1, 1, 0.1)).configure_train(1, arrays, ConfigRecord(), grid_of(1))
    config = dict(message.content.config_records["config"])
    algorithm = spec.client_algorithm()
    assert algorithm_if_configured(algorithm, config) == algorithm == ProximalTerm()
    assert config[PROXIMAL_MU_KEY] == 0.3
    assert algorithm_if_configured(algorithm, {}) is None
