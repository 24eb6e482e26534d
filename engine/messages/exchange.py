"""Joint exchange of queries and training without a strategy: several contents are sent at once and answered together.

Each sending costs a round trip to every host, regardless of its content. Contents that do not depend on each other's
answers are therefore sent together, and hosts process all of them without waiting for the driver in between:

    queries, trainings = exchange(grid, [Query("label_counts")], [Training(vector, config)])

Replies are distinguished by the messages' group id, which a reply inherits from its message.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid

from fedscout.engine.arrays import FloatArray
from fedscout.engine.messages.contents import (
    QueryAnswers,
    TrainAnswers,
    addressed,
    claim_task_identity,
    client_of,
    flat_record,
    metrics_of,
    node_of,
    read_array,
    view_record,
)
from fedscout.engine.messages.keys import ARRAYS_KEY, CONFIG_KEY, FLAT_KEY, FUNCTION_KEY, NUM_EXAMPLES_KEY

Scalars = Mapping[str, int | float | str | bool]


@dataclass(frozen=True)
class Query:
    """One aggregate, requested from some clients.

    Attributes:
        function: A name from the fixed table of client queries.
        arrays: Inputs of the function in addition to the client's data; float64 is preserved.
        config: Its scalars.
        clients: Clients that are asked; None for all.
    """

    function: str
    arrays: Mapping[str, npt.NDArray[np.generic]] = field(default_factory=dict)
    config: Scalars = field(default_factory=dict)
    clients: Sequence[int] | None = None

    def content(self) -> RecordDict:
        """Return the content of all its messages."""
        config = ConfigRecord({FUNCTION_KEY: self.function, **self.config})
        return RecordDict({ARRAYS_KEY: view_record(self.arrays), CONFIG_KEY: config})


@dataclass(frozen=True)
class Training:
    """Local training from one flat vector, without a strategy.

    Attributes:
        vector: The global parameters, shape `(params,)`.
        config: See `engine.messages.train_config`.
        clients: Clients that train; None for all.
    """

    vector: FloatArray
    config: Scalars
    clients: Sequence[int] | None = None

    def content(self) -> RecordDict:
        """Return the content of all its messages."""
        return RecordDict({ARRAYS_KEY: flat_record(self.vector), CONFIG_KEY: ConfigRecord(dict(self.config))})


def exchange(
    grid: Grid, queries: Sequence[Query] = (), trainings: Sequence[Training] = ()
) -> tuple[list[QueryAnswers], list[TrainAnswers]]:
    """Send all queries and trainings at once, and wait for all replies.

    Args:
        grid: Grid of the clients.
        queries: Sent first, so that a host answers them first.
        trainings: Sent after them.

    Returns:
        The answers to each query and to each training, in the order given.
    """
    if not queries and not trainings:
        return [], []
    claim_task_identity()
    messages: list[Message] = []
    requests: list[tuple[Query | Training, str]] = [(query, MessageType.QUERY) for query in queries]
    requests += [(training, MessageType.TRAIN) for training in trainings]
    for index, (request, message_type) in enumerate(requests):
        content = request.content()
        asked = request.clients
        nodes = sorted(grid.get_node_ids()) if asked is None else [node_of(client) for client in asked]
        if nodes:
            messages += addressed(Message(content, nodes[0], message_type, group_id=str(index)), nodes)
    replies: list[list[Message]] = [[] for _ in requests]
    for reply in sorted(grid.send_and_receive(messages), key=lambda reply: reply.metadata.src_node_id):
        replies[int(reply.metadata.group_id)].append(reply)
    return (
        [_query_answers(group) for group in replies[: len(queries)]],
        [_train_answers(t, group) for t, group in zip(trainings, replies[len(queries) :], strict=True)],
    )


def send_query(
    grid: Grid,
    function: str,
    arrays: Mapping[str, npt.NDArray[np.generic]] | None = None,
    config: Scalars | None = None,
    clients: Sequence[int] | None = None,
) -> QueryAnswers:
    """Ask clients for a single aggregate; see `Query`."""
    (answers,), _ = exchange(grid, queries=[Query(function, arrays or {}, config or {}, clients)])
    return answers


def _refused(replies: Sequence[Message]) -> dict[int, str]:
    """Return the reason of each client that did not answer."""
    errors = [reply for reply in replies if reply.has_error()]
    return {client_of(reply.metadata.src_node_id): reply.error.reason or "no reason given" for reply in errors}


def _query_answers(replies: Sequence[Message]) -> QueryAnswers:
    answers, counts = {}, {}
    for reply in replies:
        if reply.has_content():
            client = client_of(reply.metadata.src_node_id)
            answers[client] = {name: read_array(array) for name, array in _arrays(reply).items()}
            counts[client] = _num_examples(reply)
    return QueryAnswers(arrays=answers, num_examples=counts, refused=_refused(replies))


def _train_answers(training: Training, replies: Sequence[Message]) -> TrainAnswers:
    answers = [reply for reply in replies if reply.has_content()]
    vectors = [read_array(_arrays(reply)[FLAT_KEY]) for reply in answers]
    return TrainAnswers(
        clients=tuple(client_of(reply.metadata.src_node_id) for reply in answers),
        vectors=np.stack(vectors) if vectors else np.empty((0, len(training.vector)), np.float32),
        num_examples=np.asarray([_num_examples(reply) for reply in answers], dtype=np.int64),
        refused=_refused(replies),
    )


def _arrays(reply: Message) -> ArrayRecord:
    record = reply.content[ARRAYS_KEY]  # `content.array_records` would make a dictionary of all of them each time
    assert isinstance(record, ArrayRecord)
    return record


def _num_examples(reply: Message) -> int:
    count = metrics_of(reply)[NUM_EXAMPLES_KEY]
    assert isinstance(count, int)
    return count
