"""From messages to jobs: messages that share one content object, as Flower's strategies make them, are one job."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy.typing as npt
from flwr.app import Message, MessageType

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.grid.evaluation import Evaluation
from fedscout.engine.messages.client_half import asks_for_clipping, one_learning_rate
from fedscout.engine.messages.companion_record import sent_companions
from fedscout.engine.messages.message_contents import (
    client_of,
    flat_vector,
    integer_buffers,
    train_config,
)
from fedscout.engine.messages.message_keys import COMPANIONS_KEY, FLAT_KEY, RATE_KEY, REPLY_KEY
from fedscout.engine.messages.session import Session
from fedscout.engine.model.parameter_layout import ParameterLayout

Handle = TypeVar("Handle")


@dataclass
class Job(Generic[Handle]):
    """Messages of one content on their way.

    Attributes:
        message_type: `train`, `evaluate` or `query`.
        messages: By client.
        config: The content's configuration over the session's.
        vector: The model that is sent; None for a query.
        named: Whether its arrays go by the model's names.
        companions: Vectors beside the model.
        arrays: Of a query; of a training the integer buffers of a model that was sent by name.
        handles: Of the calls that do the work.
        scores_received: Whether every client scores the model before it is trained.
        states_version: Of the clients' states when they were sent.
        training: The number under which its scores are followed, if they are.
        evaluation: Scores that were known before.
        replies: Once the work is done, by the id of the message that each answers.
    """

    message_type: str
    messages: Mapping[int, Message]
    config: dict[str, Any]
    vector: FloatArray | None = None
    named: bool = False
    companions: Mapping[str, FloatArray] = field(default_factory=dict)
    arrays: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    handles: list[Handle] = field(default_factory=list)
    scores_received: bool = False
    states_version: int = 0
    training: int | None = None
    evaluation: Evaluation | None = None
    replies: dict[str, Message] | None = None

    @property
    def merged(self) -> bool:
        """Whether one mean answers for all clients."""
        return bool(self.config[REPLY_KEY] == "merged")


def grouped(
    messages: Iterable[Message], num_clients: int, unseen: Container[int] = ()
) -> list[tuple[str, dict[int, Message]]]:
    """Return the messages of each job by client, beside their type.

    Args:
        messages: Of any types.
        num_clients: Of the federation.
        unseen: Those of them that take no part.

    Raises:
        ValueError: If a message goes to a node that is none of the others.
    """
    groups: dict[tuple[str, int, int], dict[int, Message]] = {}
    for message in messages:
        metadata = message.metadata
        client = client_of(metadata.dst_node_id)
        if not 0 <= client < num_clients or client in unseen:
            raise ValueError(f"message to node {metadata.dst_node_id}, which is not of this federation")
        message_type, content, times = metadata.message_type, id(message.content), 0
        while client in groups.setdefault((message_type, content, times), {}):
            times += 1  # the same content twice to one client is two jobs
        groups[message_type, content, times][client] = message
    return [(message_type.partition(".")[0], group) for (message_type, *_), group in groups.items()]


def base_config(session: Session, server_round: int) -> dict[str, Any]:
    """Return the configuration that a message's own entries are laid over."""
    needs = session.needs
    return dict(train_config(session.training, session.seed, server_round, needs.replies, needs.initial_loss))


def read_job(
    message_type: str, messages: Mapping[int, Message], session: Session, server_round: int, layout: ParameterLayout
) -> Job[Any]:
    """Return the job of messages that share one content.

    Raises:
        ValueError: If the content is not one of its type, or its model not of this layout.
        TrialError: If it names two step sizes, or a value of local training that is out of its range.
    """
    content = next(iter(messages.values())).content
    own = {key: value for record in content.config_records.values() for key, value in record.items()}
    job: Job[Any] = Job(message_type, messages, base_config(session, server_round) | own)
    records = list(content.array_records.values())
    if message_type == MessageType.QUERY:
        job.arrays = {name: array.numpy() for name, array in records[0].items()} if records else {}
        return job
    if message_type not in (MessageType.TRAIN, MessageType.EVALUATE):
        raise ValueError(f"message type must be train, evaluate or query, got {message_type!r}")
    if message_type == MessageType.TRAIN and session.algorithm is not None and session.algorithm.accompanied:
        job.companions = sent_companions(content)
        records = [record for name, record in content.array_records.items() if name != COMPANIONS_KEY]
    if len(records) != 1:
        raise ValueError(f"a {message_type} message must hold exactly one ArrayRecord, got {len(records)}")
    job.named = FLAT_KEY not in records[0]
    job.vector = flat_vector(records[0], layout)
    if message_type == MessageType.TRAIN:
        job.arrays = integer_buffers(records[0], layout)
        job.config[RATE_KEY] = one_learning_rate(job.config, session.training.learning_rate)
        LocalTraining.from_config(job.config)  # refuses here what would break a host
        if asks_for_clipping(job.config):
            job.config[REPLY_KEY] = "individual"  # each client clips its own
    return job
