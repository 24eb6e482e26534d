"""What a driver and a client on a machine of its own say to each other, and how it travels: values, never code.

A call holds the work of one client as a host gets it (`fedscout.engine.messages.host_calls`). It travels as one JSON
document beside its arrays (`wire_values`), so whoever forges a message can tell wrong numbers and have nothing run.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from pydantic import ValidationError

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.contracts.client_selection import Assignment, Observed
from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.settings_lookup import METRICS, SettingsLookup
from fedscout.engine.contracts.settings_table import SettingsCell, SettingsTable
from fedscout.engine.contracts.trial_strategy import EngineNeeds
from fedscout.engine.fault_text import shown
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
from fedscout.engine.nodes.field_types import dataclasses_in, field_types
from fedscout.engine.nodes.wire_values import NUMBERS, UnsendableError, ValueReader, ValueWriter
from fedscout.engine.trials.plain_forms import name_of

ACTION = "fedscout"
"""Of the message type: `train.fedscout` and so on. Messages without it are those of any Flower strategy."""

DOCUMENT_KEY, VALUES_KEY = "document", "values"

LONGEST_DOCUMENT = 2**24
"""Characters; what is long lies beside it as arrays."""

LONGEST_REASON = 200
ARRAYS_KEPT = 4
"""Model and companions."""

Method = Literal["train", "measure", "evaluate", "query"]


@dataclass(frozen=True)
class NodeCall:
    """One client's part of the work.

    Attributes:
        method: Of a client host.
        call: For that client alone; of what clients keep it holds marks (see `kept_states`).
        trial: Tells what a client keeps for one trial from what it keeps for others.
        terms: Digest of what driver and clients have agreed on about the rows; empty says nothing of it.
    """

    method: Method
    call: HostCall
    trial: str = ""
    terms: str = ""


@dataclass(frozen=True)
class NodeCalls:
    """All that one client is asked at a time: on its machine a process starts for every message."""

    calls: tuple[NodeCall, ...]


@dataclass(frozen=True)
class Refusal:
    """Why a client did not do one of its calls; the text holds nothing of its rows."""

    reason: str


@dataclass(frozen=True)
class NodeAnswers:
    """What a client answers, in the order of its calls."""

    answers: tuple[TrainResults | EvaluateResults | QueryResults | Refusal, ...]


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
    tensors = [(name, slot.shape) for name, slot in facts.layout.entries.items()]
    told = json.dumps([tensors, facts.num_classes, facts.classifies])
    return hashlib.sha256(told.encode()).hexdigest()


VALUES: tuple[type, ...] = (
    *(NodeCall, NodeCalls, NodeAnswers, Refusal, Greeting, Introduction),
    *(HostCall, Session, LocalTraining, EngineNeeds, Watched, Observed, Assignment),
    *(SettingsLookup, SettingsTable, SettingsCell),
    *(TrainResults, EvaluateResults, QueryResults, ClientScore, RowMeans),
    *(type(make()) for make in (*OF_CLASSES.values(), *OF_QUANTITIES.values())),
)
"""What may travel, beside the client algorithms of the strategies."""


def algorithms_of(package: str) -> tuple[type, ...]:
    """Return the client algorithms that a package defines, of those that were imported, and what they are made of."""

    def below(kind: type[ClientAlgorithm]) -> Iterator[type[ClientAlgorithm]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    inside = {kind for kind in below(ClientAlgorithm) if f"{kind.__module__}.".startswith(f"{package}.")}
    parts = {part for kind in inside for hint in field_types(kind).values() for part in dataclasses_in(hint)}
    return (ClientAlgorithm, *sorted(inside | parts, key=name_of))


class Wire:
    """Writes and reads what travels.

    Args:
        algorithms: The client algorithms that may.
    """

    def __init__(self, algorithms: Sequence[type] = ()) -> None:
        self._classes = {name_of(kind): kind for kind in (*VALUES, *algorithms)}
        self._names = {kind: name for name, kind in self._classes.items()}
        self._sent: OrderedDict[int, tuple[npt.NDArray[Any], Array]] = OrderedDict()

    def packed(self, value: Any) -> RecordDict:
        """Return a value as the content of a message.

        Raises:
            UnsendableError: If something in it may not travel.
        """
        writer = ValueWriter(self._names)
        document = json.dumps(writer.document(_checked(value)))
        record = ArrayRecord()
        for number, array in enumerate(writer.arrays):
            record[str(number)] = self._array(array)
        return RecordDict({DOCUMENT_KEY: ConfigRecord({DOCUMENT_KEY: document}), VALUES_KEY: record})

    def opened(self, content: RecordDict) -> Any:
        """Return the value that a message holds.

        Raises:
            ValueError: If it holds none that may travel.
        """
        try:
            config, record = content.config_records[DOCUMENT_KEY], content.array_records[VALUES_KEY]
            text = config[DOCUMENT_KEY]
            if not isinstance(text, str) or len(text) > LONGEST_DOCUMENT:
                raise ValueError(f"its document must be a text of at most {LONGEST_DOCUMENT} characters")
            arrays = [numbers_of(record[str(number)]) for number in range(len(record))]
            return _checked(ValueReader(self._classes, arrays).value(json.loads(text)))
        except UnsendableError as error:
            raise ValueError(str(error)) from error
        except ValidationError as error:
            raise ValueError(f"it can't be read, {error.error_count()} of its values are out of range") from error
        except Exception as error:
            raise ValueError(f"it can't be read ({type(error).__name__}: {one_line(str(error))})") from error

    def _array(self, array: npt.NDArray[Any]) -> Array:
        """Return an array as it travels; one that goes to many, such as the model, is made once."""
        known = self._sent.get(id(array))
        if known is not None and known[0] is array:
            return known[1]
        made = Array(np.asarray(array, order="C"))
        self._sent[id(array)] = (array, made)
        if len(self._sent) > ARRAYS_KEPT:
            self._sent.popitem(last=False)
        return made


def numbers_of(array: Array) -> npt.NDArray[Any]:
    """Return the values of an array that was sent: numbers, as many as are there.

    Raises:
        ValueError: If it holds something else, or says that it holds more.
    """
    if array.stype != SType.NUMPY:
        raise ValueError(f"an array must be NumPy's, got {shown(array.stype)}")
    stream = BytesIO(array.data)
    read_header = read_array_header_1_0 if read_magic(stream) == (1, 0) else read_array_header_2_0
    shape, in_columns, dtype = read_header(stream)
    start = stream.tell()
    if dtype.kind not in NUMBERS or math.prod(shape) * dtype.itemsize != len(array.data) - start:
        raise ValueError(f"an array must hold the numbers that it says, got {dtype} {shape}")
    values = np.frombuffer(array.data, dtype, offset=start).copy()
    return values.reshape(shape, order="F" if in_columns else "C")


def _checked(value: Any) -> Any:
    """Return what travels, if it names no code: of a table's metrics those that every client knows."""
    table = value.call.session.client_table if isinstance(value, NodeCall) else None
    if table is not None and (table.metric not in METRICS or table.folder):
        raise UnsendableError(f"client_settings.metric must be one of {', '.join(METRICS)}, as no code travels")
    return value


def one_line(text: str) -> str:
    """Return what another machine says, on one line, its control characters visible; of a long one the beginning."""
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:LONGEST_REASON])
    return line if len(text) <= LONGEST_REASON else f"{line}…"
