"""The grid is Flower's, with every client as a node; hosts' results become replies."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientScore
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid, Thunk
from fedscout.engine.grid.replies import Job, TrainReplies, fold_evaluation
from fedscout.engine.messages import calls
from fedscout.engine.messages.contents import client_of, flat_record, node_of, send_query
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.messages.keys import REPLY_KEY
from fedscout.engine.models.layout import ParameterLayout, TensorSlot
from tests.engine.federations import ABLE, QUERIES, SIZES, normalised, uneven_federation

TRAINING = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.1)
EVERY = range(len(SIZES))


@pytest.fixture
def grid(host: ClientHost) -> LocalGrid:
    return LocalGrid(host, session=session())


class WatchedGrid(LocalGrid):
    """Remembers the calls that it made to its host."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls_made: list[tuple[str, calls.HostCall]] = []

    def _start(self, host: int, method: str, call: calls.HostCall) -> Thunk:
        self.calls_made.append((method, call))
        return super()._start(host, method, call)


class SlowGrid(LocalGrid):
    """Its work is never done by the time limit."""

    def _gather(self, handles: Sequence[Thunk], timeout: float | None) -> list[Any] | None:
        return None if timeout is not None else super()._gather(handles, timeout)


def session(**changes: Any) -> calls.Session:
    return calls.Session(**{"seed": 3, "training": TRAINING, **changes})


def messages(
    grid: LocalGrid, message_type: str = "train", clients: Iterable[int] = EVERY, arrays: Any = None, config: Any = None
) -> list[Message]:
    """Return messages of one content, as Flower's strategies make them."""
    record = flat_record(grid.initial_vector(3)) if arrays is None else arrays
    content = RecordDict({"arrays": record, "config": ConfigRecord(config or {"server-round": 1})})
    return [Message(content, node_of(client), message_type) for client in clients]


def named_record(grid: LocalGrid, vector: FloatArray) -> ArrayRecord:
    return ArrayRecord({name: Array(value.copy()) for name, value in grid.facts.layout.split(vector).items()})


def answered(replies: Iterable[Message]) -> dict[int, RecordDict]:
    return {client_of(r.metadata.src_node_id): r.content for r in replies if r.has_content()}


def failed(replies: Iterable[Message]) -> dict[int, str]:
    return {client_of(r.metadata.src_node_id): r.error.reason for r in replies if r.has_error()}


# -- Flower's interface ----------------------------------------------------------------------------------------------


def test_runs_and_messages(host: ClientHost) -> None:
    from flwr.supercore.run import Run

    grid, run = LocalGrid(host), Run.create_empty(run_id=17)
    grid.set_run(run)
    assert grid.run is run
    told = grid.create_message(RecordDict(), "query", 4, "group", 60.0).metadata
    assert (told.message_type, told.dst_node_id, told.group_id, told.ttl) == ("query", 4, "group", 60.0)


def test_pushed_messages_get_ids_in_order_and_their_replies_are_pulled_once(grid: LocalGrid) -> None:
    sent = messages(grid, clients=[1, 0, 5])

    ids = list(grid.push_messages(sent))
    first = list(grid.pull_messages(ids[1:2]))
    rest = list(grid.pull_messages(ids))

    assert ids == [message.metadata.message_id for message in sent]
    assert len(set(ids)) == 3
    assert [client_of(reply.metadata.src_node_id) for reply in first] == [0]
    assert [client_of(reply.metadata.src_node_id) for reply in rest] == [1, 5]
    assert {reply.metadata.reply_to_message_id for reply in first + rest} == set(ids)
    assert len({reply.metadata.message_id for reply in first + rest} | set(ids)) == 6
    assert list(grid.pull_messages(ids)) == []


@pytest.mark.slow
def test_delivered_messages_are_forgotten(host: ClientHost) -> None:
    """Merged clients too, who have no reply of their own: a long trial must not gather its messages."""
    grid = LocalGrid(host, session=session(needs=calls.EngineNeeds(replies="merged")))
    sent = messages(grid)
    watched = [weakref.ref(message) for message in sent]

    assert len(list(grid.send_and_receive(sent))) == 2
    del sent
    gc.collect()

    assert [reference() for reference in watched] == [None] * len(SIZES)


def test_unfinished_work_is_left_for_a_later_pull(host: ClientHost) -> None:
    grid = SlowGrid(host, session=session())

    assert list(grid.send_and_receive(messages(grid), timeout=0.01)) == []
    ids = list(grid.push_messages(messages(grid, clients=[0])))
    assert list(grid.pull_messages(ids)) == []
    grid.__class__ = LocalGrid
    assert len(list(grid.pull_messages(ids))) == 1


def test_messages_that_can_t_be_read_are_refused(grid: LocalGrid) -> None:
    vector = grid.initial_vector(0)
    two_records = RecordDict({"a": flat_record(vector), "b": flat_record(vector)})
    none = RecordDict({"config": ConfigRecord({})})

    for content, count in ((two_records, 2), (none, 0)):
        with pytest.raises(ValueError, match=f"ArrayRecord.* {count}$"):
            grid.push_messages([Message(content, 2, "train")])
    with pytest.raises(ValueError, match="'system'"):
        grid.push_messages([Message(two_records, 2, "system")])


@pytest.mark.parametrize("size", [0, 1, 52, 54])
@pytest.mark.parametrize("message_type", ["train", "evaluate"])
def test_a_flat_array_of_another_size_is_refused(grid: LocalGrid, size: int, message_type: str) -> None:
    with pytest.raises(ValueError, match=rf"\(53,\).*\({size},\)"):
        grid.push_messages(messages(grid, message_type, [0], flat_record(np.zeros(size))))


# -- what the answers are --------------------------------------------------------------------------------------------


def test_a_failing_client_leaves_the_mean(host: ClientHost) -> None:
    """The mean of all, one of whom fails, is the mean of the others, bit for bit."""
    grid = LocalGrid(host, session=session(needs=calls.EngineNeeds(replies="merged")))

    (reply, error) = grid.send_and_receive(messages(grid))
    (others,) = grid.send_and_receive(messages(grid, clients=ABLE))

    assert error.has_error()
    assert reply.content == others.content
    assert reply.content["metrics"]["num-clients"] == len(ABLE)


@pytest.mark.parametrize("replies", ["merged", "individual"])
def test_named_and_flat_arrays_give_the_same_bits(replies: str) -> None:
    grid = LocalGrid(uneven_federation(normalised), QUERIES, session(needs=calls.EngineNeeds(replies=replies)))
    vector = grid.initial_vector(3)

    flat = answered(grid.send_and_receive(messages(grid)))
    named = answered(grid.send_and_receive(messages(grid, arrays=named_record(grid, vector))))

    assert list(flat) == list(named)
    for client, content in named.items():
        assert np.array_equal(grid.flat_vector(content["arrays"]), flat[client]["arrays"]["flat"].numpy())
        assert content["metrics"] == flat[client]["metrics"]


def test_a_known_evaluation_is_answered_without_work(host: ClientHost) -> None:
    grid = WatchedGrid(host, session=session())
    vector = grid.initial_vector(3)
    worked = answered(grid.send_and_receive(messages(grid, "evaluate")))
    grid.evaluate_all(flat_record(vector))
    num_calls = len(grid.calls_made)

    remembered = answered(grid.send_and_receive(messages(grid, "evaluate")))
    named = answered(grid.send_and_receive(messages(grid, "evaluate", arrays=named_record(grid, vector))))

    assert remembered == named == worked
    assert len(grid.calls_made) == num_calls


# -- client states ---------------------------------------------------------------------------------------------------


# -- queries and direct training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fewest", [1, 2, 13, 100])
def test_fewer_rows_than_min_release_are_not_answered(fewest: int) -> None:
    grid = LocalGrid(uneven_federation(min_release=fewest), QUERIES)

    answers = send_query(grid, "label-counts", {"offset": np.zeros(3)})

    assert list(answers.arrays) == [client for client in EVERY if SIZES[client] >= fewest]
    assert set(answers.refused) == {client for client in EVERY if SIZES[client] < fewest}
    assert all("federation.min_release" in reason for reason in answers.refused.values())


def test_an_unknown_function_is_refused(host: ClientHost) -> None:
    answers = send_query(LocalGrid(host), "os.system", clients=[0, 1])

    assert answers.arrays == {}
    assert set(answers.refused) == {0, 1}
    assert all("'os.system'" in reason for reason in answers.refused.values())


# -- From hosts' results to replies ------------------------------------------------------------------------------------


LAYOUT = ParameterLayout((TensorSlot("w", (2, 2)), TensorSlot("b", (1,))))
ROWS = np.array([30, 7, 100, 1, 12])
FACTS = calls.FederationFacts(5, ROWS, 3, LAYOUT)
RECEIVED = np.zeros(5, np.float32)
SCALE = ExactScale.of(RECEIVED, int(ROWS.sum()))


def replies(
    results: list[calls.TrainResults],
    is_merged: bool = False,
    is_named: bool = False,
    weighted_by: str = "num-examples",
) -> tuple[dict[int, RecordDict], dict[int, str]]:
    """Return contents and failures by client."""
    job: Job[None] = Job("train", {}, {REPLY_KEY: "merged" if is_merged else "individual"}, RECEIVED, is_named)
    return TrainReplies(FACTS, calls.EngineNeeds(weighted_by=weighted_by), None).train(job, results)


def individual(clients: list[int], vectors: FloatArray, **lists: Any) -> calls.TrainResults:
    return calls.TrainResults(
        clients=clients,
        num_examples=[int(ROWS[client]) for client in clients],
        num_steps=[2 + client for client in clients],
        losses=[float(client) for client in clients],
        initial_losses=[10.0 + client for client in clients],
        vectors=[*vectors],
        **lists,
    )


def summed(results: calls.TrainResults, uniform: bool) -> calls.TrainResults:
    """Return what a host that merges would send instead."""
    weights = [1 if uniform else int(ROWS[client]) for client in results.clients]
    pairs = list(zip(results.vectors, weights, strict=True))
    good = [SCALE.total(vector[None], [weight]) for vector, weight in pairs if SCALE.holds(vector[None])[0]]
    bad = [c for c, (vector, _) in zip(results.clients, pairs, strict=True) if not SCALE.holds(vector[None])[0]]
    return replace(results, vectors=None, total=np.sum(good, axis=0, initial=0, dtype=np.int64), diverged=bad)


def merged(results: list[calls.TrainResults], weighted_by: str = "num-examples") -> RecordDict:
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
    calls.EvaluateResults({5: ClientScore(10, 9, 2.0)}, {5: ClientScore(10, 10, 1.0)}, {2: "out of memory"}),
    calls.EvaluateResults({3: ClientScore(0, 0, 0.0), 0: ClientScore(4, 1, 8.0)}, {0: ClientScore(4, 2, 6.0)}),
    calls.EvaluateResults(),
]


def test_clients_are_sorted_and_sums_become_shares() -> None:
    """Client 0: 1 of 4 rows and a loss of 8/4; client 5: 9 of 10 and 2/10; client 3 has no rows."""
    for hosts in itertools.permutations(HOSTS):
        evaluation = fold_evaluation(hosts)

        assert evaluation.clients == (0, 3, 5)
        assert evaluation.num_examples.tolist() == [4, 0, 10]
        assert evaluation.accuracies.tolist() == [0.25, 0.0, 0.9]
        assert evaluation.losses.tolist() == [2.0, 0.0, 0.2]
        assert evaluation.clean.accuracies.tolist() == [0.5, 0.0, 1.0]
        assert evaluation.clean.losses.tolist() == [1.5, 0.0, 0.1]
        assert evaluation.failures == {2: "out of memory"}
    without_rows = fold_evaluation([calls.EvaluateResults({1: ClientScore(0, 0, 0.0)})])
    assert np.isnan(without_rows.weighted(without_rows.accuracies))
    assert fold_evaluation([]).clients == ()
