"""From hosts' results to replies."""

from __future__ import annotations

import gc
import itertools
import math
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.grid.replies import Job, TrainReplies, fold_evaluation
from fedscout.engine.messages.calls import EngineNeeds, EvaluateResults, FederationFacts, TrainResults
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.messages.exact_mean import ExactScale, fraction_bits
from fedscout.engine.messages.keys import REPLY_KEY
from fedscout.engine.models.layout import ParameterLayout, TensorSlot

LAYOUT = ParameterLayout((TensorSlot("w", (2, 2)), TensorSlot("b", (1,))))
ROWS = np.array([30, 7, 100, 1, 12])
FACTS = FederationFacts(5, ROWS, 3, LAYOUT)
RECEIVED = np.zeros(5, np.float32)
SCALE = ExactScale.of(RECEIVED, int(ROWS.sum()))


def replies(
    results: list[TrainResults],
    is_merged: bool = False,
    is_named: bool = False,
    received: FloatArray = RECEIVED,
    weighted_by: str = "num-examples",
    algorithm: ClientAlgorithm | None = None,
) -> tuple[dict[int, RecordDict], dict[int, str]]:
    """Return contents and failures by client."""
    job: Job[None] = Job("train", {}, {REPLY_KEY: "merged" if is_merged else "individual"}, received, is_named)
    return TrainReplies(FACTS, EngineNeeds(weighted_by=weighted_by), algorithm).train(job, results)


def individual(clients: list[int], vectors: FloatArray, **lists: Any) -> TrainResults:
    return TrainResults(
        clients=clients,
        num_examples=[int(ROWS[client]) for client in clients],
        num_steps=[2 + client for client in clients],
        losses=[float(client) for client in clients],
        initial_losses=[10.0 + client for client in clients],
        vectors=[*vectors],
        **lists,
    )


def summed(results: TrainResults, uniform: bool) -> TrainResults:
    """Return what a host that merges would send instead."""
    weights = [1 if uniform else int(ROWS[client]) for client in results.clients]
    pairs = list(zip(results.vectors, weights, strict=True))
    good = [SCALE.total(vector[None], [weight]) for vector, weight in pairs if SCALE.holds(vector[None])[0]]
    bad = [c for c, (vector, _) in zip(results.clients, pairs, strict=True) if not SCALE.holds(vector[None])[0]]
    return replace(results, vectors=None, total=np.sum(good, axis=0, initial=0, dtype=np.int64), diverged=bad)


def merged(results: list[TrainResults], weighted_by: str = "num-examples") -> RecordDict:
    contents, _ = replies(results, is_merged=True, weighted_by=weighted_by)
    (content,) = contents.values()
    return content


def vectors(seed: int = 0) -> FloatArray:
    return np.random.default_rng(seed).normal(size=(5, 5)).astype(np.float32)


@pytest.mark.parametrize("weighted_by", ["num-examples", "num-clients"])
def test_any_division_over_hosts_gives_the_same_bits(weighted_by: str) -> None:
    """All clients at one host; two hosts; five hosts; summed at the hosts or not; mixed; in any order."""
    every = vectors()
    uniform = weighted_by == "num-clients"
    groups = [[[0, 1, 2, 3, 4]], [[1, 3], [0, 2, 4]], [[4], [3], [2], [1], [0]]]
    answers = []
    for group in groups:
        plain = [individual(clients, every[clients]) for clients in group]
        sums = [summed(results, uniform) for results in plain]
        answers += [merged(plain, weighted_by), merged(sums, weighted_by), merged([*sums[:1], *plain[1:]], weighted_by)]

    assert len({answer["arrays"]["flat"].numpy().tobytes() for answer in answers}) == 1
    assert all(answer["metrics"] == answers[0]["metrics"] for answer in answers)


@pytest.mark.parametrize(("weighted_by", "weights"), [("num-examples", ROWS), ("num-clients", np.ones(5))])
def test_the_merged_reply_is_the_weighted_mean(weighted_by: str, weights: np.ndarray) -> None:
    every = vectors()
    content = merged([individual([0, 1, 2, 3, 4], every)], weighted_by)
    metrics = content["metrics"]

    expected = np.average(every.astype(np.float64), axis=0, weights=weights)
    np.testing.assert_allclose(content["arrays"]["flat"].numpy(), expected, rtol=1e-6)
    assert metrics["num-examples"] == 150
    assert metrics["num-clients"] == 5
    assert metrics["loss"] == pytest.approx(np.average(np.arange(5), weights=weights))
    assert metrics["train_loss"] == pytest.approx(10 + np.average(np.arange(5), weights=weights))


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(1, 5), st.floats(1e-6, 1e3))
def test_flower_s_own_mean_agrees_within_its_rounding(seed: int, num_clients: int, scale: float) -> None:
    """With u = 2^-24 and K clients, Flower's float32 sum Σ fl(fl(p_k)·v_k) is off by at most
    (K + 1)·u·Σ p_k|v_k| to first order: u for the weight, u for the product, K − 1 for the additions.
    The exact mean adds its own K/(2W)·2^-b, and u of itself. One u more covers the second order.
    """
    claim_task_identity()
    every = (np.random.default_rng(seed).normal(size=(5, 5)) * scale).astype(np.float32)[:num_clients]
    weights = ROWS[:num_clients]
    results = [individual(list(range(num_clients)), every)]
    contents, _ = replies(results)
    request = Message(RecordDict(), 2, "train")
    answered = [Message(content, reply_to=request) for content in contents.values()]

    arrays, _ = FedAvg().aggregate_train(1, answered)
    difference = np.abs(arrays["flat"].numpy().astype(np.float64) - merged(results)["arrays"]["flat"].numpy())

    magnitude = np.average(np.abs(every.astype(np.float64)), axis=0, weights=weights)
    bound = (num_clients + 3) * 2.0**-24 * magnitude + num_clients / weights.sum() * 2.0 ** -(
        fraction_bits(int(ROWS.sum())) + 1
    )
    assert np.all(difference <= bound)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e10])
@pytest.mark.parametrize("at_hosts", [True, False])
@pytest.mark.parametrize("client", [0, 3])
def test_one_diverged_client_makes_the_whole_mean_nan(value: float, at_hosts: bool, client: int) -> None:
    every = vectors()
    every[client, 2] = value
    hosts = [individual([0, 1], every[:2]), individual([2, 3, 4], every[2:])]

    content = merged([summed(results, False) for results in hosts] if at_hosts else hosts)

    assert np.isnan(content["arrays"]["flat"].numpy()).all()


def test_a_weight_of_the_algorithm_s_own_weighs_models_and_not_their_losses() -> None:
    every = vectors()[:2]
    content = merged([individual([0, 1], every, sums={"mass": [3, 1]})], "mass")

    expected = (3 * every[0].astype(np.float64) + every[1]) / 4
    np.testing.assert_allclose(content["arrays"]["flat"].numpy(), expected, rtol=1e-6, atol=1e-9)
    assert content["metrics"]["mass"] == 4
    assert content["metrics"]["loss"] == pytest.approx(ROWS[1] / (ROWS[0] + ROWS[1]))


def test_a_strategy_that_writes_into_a_reply_changes_no_other() -> None:
    every = vectors()
    contents, _ = replies([individual([0, 1], every[:2])])
    contents[0]["arrays"]["flat"].numpy()[:] = 0
    for client in (0, 1):
        assert np.array_equal(contents[client]["arrays"]["flat"].numpy(), vectors()[client])
    assert np.array_equal(every, vectors())


@pytest.mark.slow
@pytest.mark.parametrize("is_named", [True, False])
def test_a_reply_that_is_kept_does_not_keep_the_other_clients(is_named: bool) -> None:
    """A host's answer is one piece, in shared memory on Ray: it must be freed with the round."""
    rows = vectors()[:3].copy()
    results = [individual([0, 1, 2], rows)]
    contents, _ = replies(results, is_named=is_named)
    kept, matrix = contents.pop(1), weakref.ref(rows)
    del rows
    contents.clear()
    results.clear()
    gc.collect()
    assert matrix() is None
    assert np.array_equal(np.concatenate([a.numpy().ravel() for a in kept["arrays"].values()]), vectors()[1])


# -- Per-client scores from hosts' sums --------------------------------------------------------------------------------


HOSTS = [
    EvaluateResults({5: ClientScore(10, 9, 2.0)}, {5: ClientScore(10, 10, 1.0)}, {2: "out of memory"}),
    EvaluateResults({3: ClientScore(0, 0, 0.0), 0: ClientScore(4, 1, 8.0)}, {0: ClientScore(4, 2, 6.0)}),
    EvaluateResults(),
]


def test_clients_are_sorted_and_sums_become_shares() -> None:
    """Client 0: 1 of 4 rows and a loss of 8/4; client 5: 9 of 10 and 2/10; client 3 has no rows."""
    for hosts in itertools.permutations(HOSTS):
        evaluation = fold_evaluation(hosts)

        assert evaluation.clients == (0, 3, 5)
        assert evaluation.num_examples.tolist() == [4, 0, 10]
        assert evaluation.accuracies.tolist() == [0.25, 0.0, 0.9]
        assert evaluation.losses.tolist() == [2.0, 0.0, 0.2]
        assert evaluation.clean is not None
        assert evaluation.clean.accuracies.tolist() == [0.5, 0.0, 1.0]
        assert evaluation.clean.losses.tolist() == [1.5, 0.0, 0.1]
        assert evaluation.failures == {2: "out of memory"}


def test_without_rows_there_is_no_mean() -> None:
    evaluation = fold_evaluation([EvaluateResults({1: ClientScore(0, 0, 0.0)})])

    assert math.isnan(evaluation.weighted(evaluation.accuracies))
    assert fold_evaluation([]).clients == ()
