"""The grid is Flower's, with every client of a federation as a node."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.local_grid import LocalGrid, Thunk
from fedscout.engine.grid.replies import CLIENT_FAILED
from fedscout.engine.messages.calls import EngineNeeds, HostCall, Session
from fedscout.engine.messages.contents import client_of, flat_record, node_of
from fedscout.engine.messages.exchange import send_query
from fedscout.engine.training.loop import NO_ROWS
from tests.engine.choices import Participations
from tests.engine.federations import (
    ABLE,
    EMPTY,
    ONE_CLASS,
    ONE_ROW,
    QUERIES,
    SIZES,
    TWO_ROWS,
    normalised,
    uneven_federation,
)

TRAINING = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.1)
EVERY = range(len(SIZES))


@pytest.fixture
def grid(host: ClientHost) -> LocalGrid:
    return LocalGrid(host, session=session())


class WatchedGrid(LocalGrid):
    """Remembers the calls that it made to its host."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.calls_made: list[tuple[str, HostCall]] = []

    def _start(self, host: int, method: str, call: HostCall) -> Thunk:
        self.calls_made.append((method, call))
        return super()._start(host, method, call)


class SlowGrid(LocalGrid):
    """Its work is never done by the time limit."""

    def _gather(self, handles: Sequence[Thunk], timeout: float | None) -> list[Any] | None:
        return None if timeout is not None else super()._gather(handles, timeout)


def session(**changes: Any) -> Session:
    return Session(**{"seed": 3, "training": TRAINING, **changes})


def messages(
    grid: LocalGrid,
    message_type: str = "train",
    clients: Iterable[int] = EVERY,
    arrays: ArrayRecord | None = None,
    config: dict[str, Any] | None = None,
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

    grid = LocalGrid(host)
    run = Run.create_empty(run_id=17)
    grid.set_run(run)
    message = grid.create_message(RecordDict(), "query", 4, "group", 60.0)

    assert grid.run is run
    assert (message.metadata.dst_node_id, message.metadata.group_id, message.metadata.ttl) == (4, "group", 60.0)
    assert message.metadata.message_type == "query"


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
    grid = LocalGrid(host, session=session(needs=EngineNeeds(replies="merged")))
    sent = messages(grid)
    watched = [weakref.ref(message) for message in sent]

    assert len(list(grid.send_and_receive(sent))) == 2
    del sent
    gc.collect()

    assert [reference() for reference in watched] == [None] * len(SIZES)


class Letting(LocalGrid):
    """Notes at each wait how many of the calls that were waited for before are still referred to."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.awaited: list[weakref.ref[Thunk]] = []
        self.still_held: list[int] = []

    def _gather(self, handles: Sequence[Thunk], timeout: float | None) -> list[Any]:
        self.still_held.append(sum(reference() is not None for reference in self.awaited))
        self.awaited += map(weakref.ref, handles)
        return super()._gather(handles, timeout)


def test_a_call_is_let_go_of_before_the_next_job_is_waited_for(host: ClientHost) -> None:
    """It may refer to a model that was sent to one client alone."""
    grid = Letting(host, session=session())
    sent = [message for client in range(3) for message in messages(grid, clients=[client])]
    assert len(list(grid.send_and_receive(sent))) == 3
    assert grid.still_held == [0, 0, 0]


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


def test_clients_that_fail_send_an_error_and_the_others_train(grid: LocalGrid) -> None:
    replies = list(grid.send_and_receive(messages(grid)))

    assert sorted(answered(replies)) == list(ABLE)
    assert set(failed(replies)) == {EMPTY}
    assert NO_ROWS in failed(replies)[EMPTY]
    (error,) = [reply for reply in replies if reply.has_error()]
    assert error.error.code == CLIENT_FAILED


def test_a_failing_client_leaves_the_mean(host: ClientHost) -> None:
    """The mean of all, one of whom fails, is the mean of the others, bit for bit."""
    grid = LocalGrid(host, session=session(needs=EngineNeeds(replies="merged")))

    (reply, error) = grid.send_and_receive(messages(grid))
    (others,) = grid.send_and_receive(messages(grid, clients=ABLE))

    assert error.has_error()
    assert reply.content == others.content
    assert reply.content["metrics"]["num-clients"] == len(ABLE)


def test_a_single_row_can_t_be_batch_normalised() -> None:
    """torch refuses; the clients left with one training row answer with its reason."""
    grid = LocalGrid(uneven_federation(normalised), QUERIES, session())

    replies = list(grid.send_and_receive(messages(grid)))

    assert set(failed(replies)) == {EMPTY, ONE_ROW, TWO_ROWS}
    assert "more than 1 value per channel" in failed(replies)[ONE_ROW]


@pytest.mark.parametrize("replies", ["merged", "individual"])
def test_named_and_flat_arrays_give_the_same_bits(replies: str) -> None:
    grid = LocalGrid(uneven_federation(normalised), QUERIES, session(needs=EngineNeeds(replies=replies)))
    vector = grid.initial_vector(3)

    flat = answered(grid.send_and_receive(messages(grid)))
    named = answered(grid.send_and_receive(messages(grid, arrays=named_record(grid, vector))))

    assert list(flat) == list(named)
    for client, content in named.items():
        assert np.array_equal(grid.flat_vector(content["arrays"]), flat[client]["arrays"]["flat"].numpy())
        assert content["metrics"] == flat[client]["metrics"]


def test_a_message_may_ask_for_individual_replies_in_a_merged_session(host: ClientHost) -> None:
    grid = LocalGrid(host, session=session(needs=EngineNeeds(replies="merged")))
    individual = {"server-round": 1, "reply": "individual"}

    assert len(answered(grid.send_and_receive(messages(grid)))) == 1
    assert len(answered(grid.send_and_receive(messages(grid, config=individual)))) == len(ABLE)


def test_an_evaluation_is_the_model_on_each_client_s_test_rows(grid: LocalGrid) -> None:
    """The scores of the message are those of the trial's own evaluation, for the clients that were asked."""
    replies = answered(grid.send_and_receive(messages(grid, "evaluate", [0, 5, ONE_ROW])))
    every = grid.evaluate_all(flat_record(grid.initial_vector(3)))

    assert sorted(replies) == [0, ONE_ROW, 5]
    for client, content in replies.items():
        assert content["metrics"] == {
            "num-examples": int(every.num_examples[client]),
            "num-clients": 1,
            "accuracy": float(every.accuracies[client]),
            "loss": float(every.losses[client]),
        }
    assert every.num_examples.tolist() == [8, 3, 0, 2, 0, 7, 1]


def test_a_known_evaluation_is_answered_without_work(host: ClientHost) -> None:
    grid = WatchedGrid(host, session=session())
    vector = grid.initial_vector(3)
    worked = answered(grid.send_and_receive(messages(grid, "evaluate")))
    grid.evaluate_all(flat_record(vector))
    calls = len(grid.calls_made)

    remembered = answered(grid.send_and_receive(messages(grid, "evaluate")))
    named = answered(grid.send_and_receive(messages(grid, "evaluate", arrays=named_record(grid, vector))))

    assert remembered == named == worked
    assert len(grid.calls_made) == calls


# -- client states ---------------------------------------------------------------------------------------------------


def test_client_states_go_round_by_round_through_the_grid(host: ClientHost) -> None:
    """Client 0 trains three times, client 1 twice, client 5 once; the failing one keeps nothing."""
    grid = LocalGrid(host, session=session(algorithm=Participations()))

    for clients in ((0, 1, 5, EMPTY), (0, 1), (0,)):
        list(grid.send_and_receive(messages(grid, clients=clients)))

    counts = {client: state["count"].tolist() for client, state in grid.client_states.items()}
    assert counts == {0: [3.0], 1: [2.0], 5: [1.0]}


def test_an_empty_state_forgets(host: ClientHost) -> None:
    grid = LocalGrid(host, session=session(algorithm=Participations(forget_at=2)))

    seen = []
    for _ in range(3):
        list(grid.send_and_receive(messages(grid, clients=[0])))
        seen.append({client: state["count"].tolist() for client, state in grid.client_states.items()})

    assert seen == [{0: [1.0]}, {}, {0: [1.0]}]


# -- queries and direct training -------------------------------------------------------------------------------------


def test_a_query_gives_the_function_s_arrays(host: ClientHost) -> None:
    """Counts of the client's own labels, times nothing, plus 0.5 a class scaled by 2."""
    federation = uneven_federation()
    answers = send_query(LocalGrid(host), "label-counts", {"offset": np.full(3, 0.5)}, {"scale": 2.0})

    assert list(answers.arrays) == [client for client in EVERY if SIZES[client] >= 5]
    for client, arrays in answers.arrays.items():
        own = federation.client_data(client).own
        expected = np.bincount(own.labels[own.rows], minlength=3) + 1.0
        assert arrays["counts"].dtype == np.float64
        assert arrays["counts"].tolist() == expected.tolist()
        assert answers.num_examples[client] == SIZES[client]


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


def test_a_query_that_fails_on_one_client_answers_on_the_others(host: ClientHost) -> None:
    answers = send_query(LocalGrid(host), "broken", clients=[0, 1, ONE_CLASS])

    assert list(answers.arrays) == [0, 1]
    assert [*answers.refused] == [ONE_CLASS]
    assert "class" not in answers.refused[ONE_CLASS], "what the query raised stays with the client"
    assert answers.arrays[0]["mean"].shape == ()
