"""FedPer, FedRep, MFedBN and local training: what stays with clients."""

from __future__ import annotations

import numpy as np

from fedscout.strategies import FedBNSpec
from fedscout.strategies.methods.personal import BATCH_NORMS, FedBABUSpec, MFedBNSpec
from tests.engine.federations import normalised
from tests.engine.trials.test_resume import assert_same
from tests.strategies.by_hand import SEED, SIZES, TRAINING, host_of, result_of

BASE = 35
"""Elements of the dense net's first layer, 6·5 + 5; the last one's 18 follow."""


def test_weight_decay_does_not_move_what_is_frozen() -> None:
    alone = host_of(sizes=SIZES[:1])
    decayed = TRAINING.model_copy(update={"weight_decay": 0.1, "momentum": 0.5})
    result = result_of(alone, FedBABUSpec(), num_sampled=1, training=decayed)
    initial = alone.initial_vector(SEED)
    assert np.array_equal(result.vector[BASE:], initial[BASE:])
    assert not np.isclose(result.vector[:BASE], initial[:BASE]).any()


def test_a_whole_step_of_mfedbn_is_fedbn_and_a_part_of_one_that_part() -> None:
    """η scales the mean change of all but batch normalisation, which holds its initial values to the bit."""
    host = host_of(normalised)
    fedbn, whole, part = (
        result_of(host, spec, num_rounds=1)
        for spec in (FedBNSpec(), MFedBNSpec(server_learning_rate=1.0), MFedBNSpec(server_learning_rate=0.25))
    )
    initial = host.initial_vector(SEED)
    np.testing.assert_allclose(whole.vector, fedbn.vector, rtol=0, atol=1e-7)
    np.testing.assert_allclose(part.vector - initial, 0.25 * (fedbn.vector - initial), rtol=0, atol=1e-7)
    batch_norm = host.facts().layout.of_kind(*BATCH_NORMS)
    assert batch_norm.any()
    assert all(np.array_equal(trial.vector[batch_norm], initial[batch_norm]) for trial in (fedbn, whole, part))


def test_overwritten_batch_norm_begins_anew_and_is_what_a_client_is_scored_with() -> None:
    """In the first round nobody has any of its own, so both ways train alike; in the second they part."""
    host = host_of(normalised)
    specs = [MFedBNSpec(server_learning_rate=0.5, batch_norm=way) for way in ("own", "overwritten")]
    first = [result_of(host, spec, num_rounds=1, num_sampled=8) for spec in specs]
    assert_same(*first)
    second = [result_of(host, spec, num_rounds=2, num_sampled=8) for spec in specs]
    assert not np.array_equal(second[0].vector, second[1].vector)
