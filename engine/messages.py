"""What the engine's messages hold, and the one place that makes and reads them outside a strategy.

| message    | arrays                          | configuration                                     | reply |
| ---------- | ------------------------------- | ------------------------------------------------- | ----- |
| `train`    | the global model                | seed, server-round, local training, reply         | arrays, metrics |
| `evaluate` | the global model                | seed                                              | metrics |
| `query`    | whatever the function reads     | function and its scalars                          | arrays, metrics |

A client is an index in `[0, num_clients)`; its Flower node id is `FIRST_NODE_ID + index`, since Flower keeps 0 and 1
for itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid

from engine.federation import FloatArray
from engine.message_keys import (
    ARRAYS_KEY,
    CONFIG_KEY,
    FLAT_KEY,
    FUNCTION_KEY,
    INITIAL_LOSS_KEY,
    METRICS_KEY,
    NUM_EXAMPLES_KEY,
    REPLY_KEY,
    ROUND_KEY,
    SEED_KEY,
    ReplyMode,
)
from engine.task_identity import claim_task_identity
from engine.training_config import LocalTraining
from engine.view_array import read_array, view_record

FIRST_NODE_ID = 2


def node_of(client: int) -> int:
    """Return the Flower node id of a client."""
    return FIRST_NODE_ID + client


def client_of(node_id: int) -> int:
    """Return the client of a Flower node id."""
    return node_id - FIRST_NODE_ID


def metrics_of(reply: Message) -> MetricRecord:
    """Return the metrics of a reply of this engine."""
    metrics = reply.content[METRICS_KEY]
    assert isinstance(metrics, MetricRecord)
    return metrics


def flat_record(vector: npt.NDArray[np.floating]) -> ArrayRecord:
    """Return the record of one flat vector, float32."""
    return view_record({FLAT_KEY: np.array(vector, dtype=np.float32)})


def train_config(
    training: LocalTraining,
    seed: int,
    server_round: int,
    reply: ReplyMode,
    initial_loss: bool = False,
) -> dict[str, int | float | str | bool]:
    """Return the configuration of a train message."""
    return {
        **training.to_config(),
        SEED_KEY: seed,
        ROUND_KEY: server_round,
        REPLY_KEY: reply,
        INITIAL_LOSS_KEY: initial_loss,
    }


@dataclass(frozen=True)
class TrainAnswers:
    """Replies of one round of training, sorted by client.

    Attributes:
        clients: Who answered, shape `(answers,)`; a merged reply comes from one client, who speaks for all.
        vectors: Parameters after training, float32, shape `(answers, params)`; one row if merged.
        num_examples: Training rows of each, shape `(answers,)`; the total if merged.
        refused: Reason of each client that did not answer.
    """

    clients: tuple[int, ...]
    vectors: FloatArray
    num_examples: npt.NDArray[np.int64]
    refused: Mapping[int, str]


@dataclass(frozen=True)
class QueryAnswers:
    """Replies of one query, keyed by client in ascending order.

    Attributes:
        arrays: The named aggregates of each client that answered.
        num_examples: The rows behind them.
        refused: Reason of each client that did not answer, such as holding fewer rows than may be released.
    """

    arrays: Mapping[int, Mapping[str, npt.NDArray[np.generic]]]
    num_examples: Mapping[int, int]
    refused: Mapping[int, str]


def _send(
    grid: Grid, content: RecordDict, message_type: str, clients: Iterable[int] | None
) -> tuple[list[Message], dict[int, str]]:
    """Send one content to many clients; return the answers sorted by client, and the reasons of those without one."""
    claim_task_identity()
    nodes = sorted(grid.get_node_ids()) if clients is None else [node_of(client) for client in clients]
    replies = grid.send_and_receive([Message(content, node, message_type) for node in nodes])
    replies = sorted(replies, key=lambda reply: reply.metadata.src_node_id)
    refused = {client_of(r.metadata.src_node_id): r.error.reason or "no reason given" for r in replies if r.has_error()}
    return [reply for reply in replies if reply.has_content()], refused


def send_train(
    grid: Grid,
    vector: FloatArray,
    config: Mapping[str, int | float | str | bool],
    clients: Sequence[int] | None = None,
) -> TrainAnswers:
    """Let clients train from one flat vector, without a strategy.

    Args:
        grid: Where the clients are.
        vector: The global parameters, shape `(params,)`.
        config: See `train_config`.
        clients: Who trains; None for all.
    """
    content = RecordDict({ARRAYS_KEY: flat_record(vector), CONFIG_KEY: ConfigRecord(dict(config))})
    replies, refused = _send(grid, content, MessageType.TRAIN, clients)
    vectors = [read_array(reply.content.array_records[ARRAYS_KEY][FLAT_KEY]) for reply in replies]
    counts = [reply.content.metric_records[METRICS_KEY][NUM_EXAMPLES_KEY] for reply in replies]
    return TrainAnswers(
        clients=tuple(client_of(reply.metadata.src_node_id) for reply in replies),
        vectors=np.stack(vectors) if vectors else np.empty((0, len(vector)), np.float32),
        num_examples=np.asarray(counts, dtype=np.int64),
        refused=refused,
    )


def send_query(
    grid: Grid,
    function: str,
    arrays: Mapping[str, npt.NDArray[np.generic]] | None = None,
    config: Mapping[str, int | float | str | bool] | None = None,
    clients: Sequence[int] | None = None,
) -> QueryAnswers:
    """Ask clients for one of the aggregates that they are willing to give.

    Args:
        grid: Where the clients are.
        function: A name from the fixed table of client queries.
        arrays: What the function reads besides the client's data, float64 kept.
        config: Its scalars.
        clients: Who is asked; None for all.
    """
    record = view_record({name: np.array(value) for name, value in (arrays or {}).items()})
    settings = ConfigRecord({FUNCTION_KEY: function, **(config or {})})
    replies, refused = _send(grid, RecordDict({ARRAYS_KEY: record, CONFIG_KEY: settings}), MessageType.QUERY, clients)
    answers, counts = {}, {}
    for reply in replies:
        client = client_of(reply.metadata.src_node_id)
        answers[client] = {name: array.numpy() for name, array in reply.content.array_records[ARRAYS_KEY].items()}
        count = reply.content.metric_records[METRICS_KEY][NUM_EXAMPLES_KEY]
        assert isinstance(count, int)
        counts[client] = count
    return QueryAnswers(arrays=answers, num_examples=counts, refused=refused)
