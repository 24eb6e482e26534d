"""Rounds of a Flower strategy on invented replies, without an engine."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedscout.engine.messages.calls import Cohort
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.trials.state import cheap_collections
from fedscout.strategies import StrategySpec, parse_strategy

NUM_PARAMETERS = 7


def made(kind: str, **parameters: Any) -> Any:
    """Return the specification of a kind, with these parameters."""
    return parse_strategy({"kind": kind, **parameters})


class NodeList:
    """As much of a grid as a strategy needs to address its clients."""

    def __init__(self, num_clients: int) -> None:
        self.num_clients = num_clients

    def get_node_ids(self) -> list[int]:
        return list(range(2, 2 + self.num_clients))


def grid_of(num_clients: int) -> Grid:
    return cast(Grid, NodeList(num_clients))


def asked(
    strategy: Strategy, vector: npt.NDArray[np.floating], num_clients: int, server_round: int = 1
) -> list[Message]:
    """Return the messages of a round's training, by client."""
    claim_task_identity()
    record = ArrayRecord({"flat": Array(np.asarray(vector, np.float32))})
    messages = strategy.configure_train(server_round, record, ConfigRecord(), grid_of(num_clients))
    return sorted(messages, key=lambda message: message.metadata.dst_node_id)


def invented_reply(message: Message, server_round: int, vector: npt.NDArray[np.float32]) -> Message:
    """A client's reply: it depends on the client, on the round and on what the client received."""
    generator = np.random.default_rng([message.metadata.dst_node_id, server_round])
    trained = vector + generator.normal(size=vector.shape)
    num_examples = int(generator.integers(10, 200))
    return reply_of(message, trained, num_examples, train_loss=float(generator.uniform(0.1, 3)))


def reply_of(
    message: Message, vector: npt.NDArray[np.floating] | None, num_examples: int = 10, **losses: float
) -> Message:
    """The reply of a client that trained to `vector`; a failure where that is None."""
    if vector is None:
        return Message(Error(1000, "no rows"), reply_to=message)
    metrics = MetricRecord({"num-examples": num_examples, "num-clients": 1, **(losses or {"loss": 1.0})})
    arrays = ArrayRecord({"flat": Array(np.asarray(vector, np.float32))})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


Trained = Callable[[npt.NDArray[np.float32]], Sequence[npt.NDArray[np.floating] | None]]
"""Given the model that was sent out, each client's after training; None for one that fails."""


def played(
    strategy: Strategy, start: npt.NDArray[np.floating], trained: Trained, num_rounds: int, counts: Sequence[int] = ()
) -> list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]]:
    """What was sent out in each round and the model after it, None for a round without one.

    Args:
        strategy: Of whose every client trains in every round.
        start: The first model.
        trained: What clients do.
        num_rounds: To play.
        counts: Rows of each client; as many for all if empty.
    """
    model = np.asarray(start, np.float32)
    num_clients = cast(Any, strategy).min_available_nodes
    rounds: list[tuple[npt.NDArray[np.float32], npt.NDArray[np.float32] | None]] = []
    for server_round in range(1, num_rounds + 1):
        messages = asked(strategy, model, num_clients, server_round)
        sent = messages[0].content.array_records["arrays"]["flat"].numpy()
        replies = map(reply_of, messages, trained(sent), counts or [10] * num_clients)
        arrays, _ = strategy.aggregate_train(server_round, list(replies))
        rounds.append((sent, None if arrays is None else arrays["flat"].numpy()))
        model = model if arrays is None else arrays["flat"].numpy()
    return rounds


def models(strategy: Strategy, num_clients: int, num_rounds: int = 3) -> Iterator[npt.NDArray[Any]]:
    """The global model after each round, as the strategy returns it, the clients' replies being invented."""
    vector = np.linspace(-1, 1, NUM_PARAMETERS, dtype=np.float32)
    for server_round in range(1, num_rounds + 1):
        random.seed(server_round)
        messages = asked(strategy, vector, num_clients, server_round)
        replies = [invented_reply(message, server_round, vector) for message in messages]
        with cheap_collections():  # Flower's QFedAvg and Bulyan collect garbage once per reply
            arrays, _ = strategy.aggregate_train(server_round, replies)
        aggregate = arrays["flat"].numpy()
        yield aggregate
        vector = aggregate.astype(np.float32)


def final_model(spec: StrategySpec, cohort: Cohort, num_rounds: int = 3) -> npt.NDArray[Any]:
    return list(models(spec.build(cohort), cohort.num_clients, num_rounds))[-1]
