"""What a driver and a client on a machine of its own say to each other, and how it travels: values, never code.

A call holds the work of one client as a host gets it (`fedscout.engine.messages.host_calls`). It travels as one JSON
document beside its arrays; the document names classes of a fixed table and nothing else
(`fedscout.engine.trials.plain_state`), so whoever forges a message can tell wrong numbers and have nothing run.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.contracts.client_selection import Assignment, Observed
from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.settings_lookup import SettingsLookup
from fedscout.engine.contracts.settings_table import SettingsCell, SettingsTable
from fedscout.engine.contracts.trial_strategy import EngineNeeds
from fedscout.engine.messages.host_calls import (
    EvaluateResults,
    FederationFacts,
    HostCall,
    QueryResults,
    TrainResults,
    Watched,
)
from fedscout.engine.messages.session import Session
from fedscout.engine.metrics.metric_table import OF_CLASSES, OF_QUANTITIES
from fedscout.engine.metrics.row_losses import RowMeans
from fedscout.engine.trials.plain_state import NotPlainError, PlainState

ACTION = "fedscout"
"""Of the message type: `train.fedscout` and so on. Messages without it are those of any Flower strategy."""

DOCUMENT_KEY, VALUES_KEY = "document", "values"

Method = Literal["train", "measure", "evaluate", "query"]


@dataclass(frozen=True)
class NodeCall:
    """One client's part of the work.

    Attributes:
        method: Of a client host.
        call: For that client alone; of what clients keep it holds marks (see `kept_states`).
        trial: Tells what a client keeps for one trial from what it keeps for others.
        terms: What driver and clients have agreed on about the rows, as JSON; empty where the client has it.
    """

    method: Method
    call: HostCall
    trial: str = ""
    terms: str = ""


@dataclass(frozen=True)
class Greeting:
    """Asks a client who it is.

    Attributes:
        asks_rows: Whether it is to say how many rows it holds.
        terms: See `NodeCall`.
    """

    asks_rows: bool = True
    terms: str = ""


@dataclass(frozen=True)
class Introduction:
    """What a client says of itself.

    Attributes:
        name: The same whenever it connects.
        position: Among the clients, if its owner gave it one.
        num_rows: Local rows; 0 if it does not say.
        grouped: Whether it knows which of its rows belong together.
        model: Digest of its model's layout.
        version: Of this program on its machine.
    """

    name: str
    position: int | None
    num_rows: int
    grouped: bool
    model: str
    version: str


def model_digest(facts: FederationFacts) -> str:
    """Return the digest of what driver and clients must have alike: the model's tensors and the classes."""
    tensors = [(slot.name, slot.shape) for slot in facts.layout.slots]
    told = json.dumps([tensors, facts.num_classes, facts.classifies])
    return hashlib.sha256(told.encode()).hexdigest()


VALUES: tuple[type, ...] = (
    *(NodeCall, Greeting, Introduction),
    *(HostCall, Session, LocalTraining, EngineNeeds, Watched, Observed, Assignment),
    *(SettingsLookup, SettingsTable, SettingsCell),
    *(TrainResults, EvaluateResults, QueryResults, ClientScore, RowMeans),
    *(type(make()) for make in (*OF_CLASSES.values(), *OF_QUANTITIES.values())),
)
"""What may travel, beside the client algorithms of the strategies."""


def algorithms_of(package: str) -> tuple[type, ...]:
    """Return the client algorithms that a package defines, of those that were imported."""

    def below(kind: type[ClientAlgorithm]) -> Iterator[type[ClientAlgorithm]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    inside = {kind for kind in below(ClientAlgorithm) if f"{kind.__module__}.".startswith(f"{package}.")}
    return (ClientAlgorithm, *sorted(inside, key=lambda each: (each.__module__, each.__qualname__)))


@dataclass
class _Held:
    """Stands around a value that is written or read."""

    value: Any = None


class Wire:
    """Writes and reads what travels.

    Args:
        algorithms: The client algorithms that may.
    """

    def __init__(self, algorithms: Sequence[type] = ()) -> None:
        self._classes = (*VALUES, *algorithms)
        self._sent: tuple[FloatArray, Array] | None = None

    def packed(self, value: Any) -> RecordDict:
        """Return a value as the content of a message.

        Raises:
            NotPlainError: If something in it may not travel.
        """
        document, arrays = PlainState(_Held(), self._classes).encode(_Held(value))
        config = ConfigRecord({DOCUMENT_KEY: json.dumps(document)})
        record = ArrayRecord()
        for number, array in enumerate(arrays):
            record[str(number)] = self._array(array)
        return RecordDict({DOCUMENT_KEY: config, VALUES_KEY: record})

    def opened(self, content: RecordDict) -> Any:
        """Return the value that a message holds.

        Raises:
            ValueError: If it holds none that may travel.
        """
        try:
            document = json.loads(content.config_records[DOCUMENT_KEY][DOCUMENT_KEY])  # type: ignore[arg-type]
            record = content.array_records[VALUES_KEY]
            held = _Held()
            PlainState(held, self._classes).restore(document, [record[str(n)].numpy() for n in range(len(record))])
        except Exception as error:
            raise ValueError(f"it can't be read ({type(error).__name__}: {error})") from error
        return held.value

    def _array(self, array: npt.NDArray[Any]) -> Array:
        """Return an array as it travels; that of the model, which goes to many, is made once."""
        if self._sent is not None and self._sent[0] is array:
            return self._sent[1]
        made = Array(np.ascontiguousarray(array))
        if array.ndim == 1 and array.dtype == np.float32:
            self._sent = (array, made)
        return made


def unsendable(error: NotPlainError) -> str:
    """Return why a call can't travel, for people."""
    return f"what it asks of clients can't be sent to other machines: {error}"


def is_document(content: Mapping[str, Any]) -> bool:
    """Whether a message's content was made by a `Wire`."""
    return DOCUMENT_KEY in content
