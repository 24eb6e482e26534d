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

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.messages.message_keys import (
    FLAT_KEY,
    INITIAL_LOSS_KEY,
    METRICS_KEY,
    RATE_ALIAS,
    REPLY_KEY,
    ROUND_KEY,
    SEED_KEY,
    ReplyMode,
)
from fedscout.engine.messages.view_array import read_array, view_record
from fedscout.engine.model.parameter_layout import ParameterLayout

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


def flat_vector(arrays: ArrayRecord, layout: ParameterLayout) -> FloatArray:
    """Return the flat vector of a flat or named record.

    Raises:
        ValueError: If the names or shapes are not the layout's.
    """
    if list(arrays) == [FLAT_KEY]:
        vector = np.asarray(read_array(arrays[FLAT_KEY]), dtype=np.float32)
        if vector.shape != (layout.size,):
            raise ValueError(f"the flat array must have shape ({layout.size},), got {vector.shape}")
        return vector
    return layout.join({name: read_array(array) for name, array in arrays.items()})


def integer_buffers(arrays: ArrayRecord, layout: ParameterLayout) -> dict[str, npt.NDArray[Any]]:
    """Return the integer buffers of a named record as a client loads them; none of a flat one."""
    if not layout.integers or [*arrays] == [FLAT_KEY]:
        return {}
    return layout.integers_of({name: read_array(array) for name, array in arrays.items()})


def round_in(content: RecordDict) -> int | None:
    """Return the round that a message's configuration says it is of; None if it says none."""
    for record in content.config_records.values():
        if isinstance(told := record.get(ROUND_KEY), int):
            return told
    return None


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
        RATE_ALIAS: training.learning_rate,
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
