"""The protocol between a driver and a remote client: calls, results, and their encoding as values, never code.

A call holds one client's part of the work as a host receives it (`fedscout.engine.messages.calls`). It is sent as one
JSON document with the arrays in a separate record (`fedscout.engine.messages.values`). The table of forms lists what
may travel: collections, the dataclasses below and the client algorithms of the strategies.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.contracts.client_table import METRICS, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages import calls, values
from fedscout.engine.metrics import OF_CLASSES
from fedscout.engine.text import shown

NUMBERS = "biuf"
"""Kinds of NumPy types that may be sent."""


COLLECTIONS: Mapping[str, values.Form] = {
    values.name_of(list): values.Form(list, lambda *items: [*items]),
    values.name_of(tuple): values.Form(list, lambda *items: items),
    values.name_of(frozenset): values.Form(list, lambda *items: frozenset(items)),
    values.name_of(dict): values.Form(dict.items, lambda *items: dict(items)),
}

ACTION = "fedscout"
"""Of the message type: `train.fedscout` and so on. Messages without it are those of any Flower strategy."""

DOCUMENT_KEY, VALUES_KEY = "document", "values"

LONGEST_DOCUMENT = 2**24
"""In characters; large values are sent as arrays."""

LONGEST_REASON = 200
ARRAYS_KEPT = 4
"""Model and auxiliary vectors."""

Method = Literal["train", "evaluate", "query"]


@dataclass(frozen=True)
class NodeCall:
    """One client's part of the work.

    Attributes:
        method: Method of a client host.
        call: The request for that client alone; client states are replaced by marks (see
            `fedscout.engine.nodes.client`).
        trial: Key under which the client stores its state for this trial.
        terms: Digest of the agreement between driver and clients about the rows; empty means none.
    """

    method: Method
    call: calls.HostCall
    trial: str = ""
    terms: str = ""


@dataclass(frozen=True)
class NodeCalls:
    """All concurrent calls of one client, as its machine starts a process for every message."""

    calls: tuple[NodeCall, ...]


@dataclass(frozen=True)
class Refusal:
    """Why a client did not perform a call; the text discloses nothing of its rows."""

    reason: str


@dataclass(frozen=True)
class NodeAnswers:
    """A client's results, in the order of its calls."""

    answers: tuple[calls.TrainResults | calls.EvaluateResults | calls.QueryResults | Refusal, ...]


@dataclass(frozen=True)
class Greeting:
    """Request for a client's introduction.

    Attributes:
        asks_rows: Whether it should report its number of rows.
        terms: See `NodeCall`.
    """

    asks_rows: bool = True
    terms: str = ""


@dataclass(frozen=True)
class Introduction:
    """A client's description of itself.

    Attributes:
        name: The same for every connection.
        position: Position among the clients, if its owner configured one.
        num_rows: Local rows; 0 if not disclosed.
        grouped: Whether its rows have known groups.
        model: Digest of its model's layout.
        version: Version of this program on its machine.
    """

    name: str
    position: int | None
    num_rows: int
    grouped: bool
    model: str
    version: str


def model_digest(facts: calls.FederationFacts) -> str:
    """Return the digest of what driver and clients must share: the model's tensors and the classes."""
    tensors = [(name, slot.shape) for name, slot in facts.layout.entries.items()]
    document = json.dumps([tensors, facts.num_classes, facts.classifies])
    return hashlib.sha256(document.encode()).hexdigest()


VALUES: tuple[type, ...] = (
    *(NodeCall, NodeCalls, NodeAnswers, Refusal, Greeting, Introduction),
    *(calls.HostCall, calls.Session, calls.EngineNeeds, calls.RoundSelection, calls.ReportRequest, calls.Assignment),
    *(LocalTraining, SettingsLookup, SettingsTable, SettingsCell),
    *(calls.TrainResults, calls.EvaluateResults, calls.QueryResults, ClientScore),
    *(type(make()) for make in OF_CLASSES.values()),
)
"""Types that may be sent, in addition to the strategies' client algorithms."""


def algorithms_of(package: str) -> tuple[type, ...]:
    """Return the imported client algorithms that a package defines, and the dataclasses in their fields."""

    def below(kind: type[ClientAlgorithm]) -> Iterator[type[ClientAlgorithm]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    algorithms = {kind for kind in below(ClientAlgorithm) if f"{kind.__module__}.".startswith(f"{package}.")}
    return (ClientAlgorithm, *sorted(algorithms.union(*map(values.dataclasses_in, algorithms)), key=values.name_of))


def _without_code(table: SettingsLookup) -> SettingsLookup:
    """Return a table of client settings unless it names code: its metric must be one that every client has."""
    if table.metric not in METRICS or table.folder:
        raise values.NotPlainError(
            f"client_settings.metric must be one of {', '.join(METRICS)}, as no code is sent to clients"
        )
    return table


_TABLE_FIELDS = values.form_of(SettingsLookup)
TABLE_FORM = values.Form(
    lambda table: _TABLE_FIELDS.parts(_without_code(table)), lambda given: _without_code(_TABLE_FIELDS.make(given))
)


class Wire:
    """Encodes and decodes messages.

    Args:
        algorithms: The client algorithms that may be sent.
    """

    def __init__(self, algorithms: Sequence[type] = ()) -> None:
        own = {values.name_of(kind): values.form_of(kind) for kind in (*VALUES, *algorithms)}
        self._forms = {**COLLECTIONS, **own, values.name_of(SettingsLookup): TABLE_FORM}
        self._sent: deque[tuple[npt.NDArray[Any], Array]] = deque(maxlen=ARRAYS_KEPT)

    def packed(self, value: Any) -> RecordDict:
        """Return the message content of a value.

        Raises:
            NotPlainError: If something in it may not be sent.
        """
        writer = values.ValueWriter(self._forms)
        document = json.dumps(writer.document(value))
        record = ArrayRecord()
        for number, array in enumerate(writer.arrays):
            record[str(number)] = self._array(array)
        return RecordDict({DOCUMENT_KEY: ConfigRecord({DOCUMENT_KEY: document}), VALUES_KEY: record})

    def opened(self, content: RecordDict) -> Any:
        """Return the value of a message content.

        Raises:
            ValueError: If it is invalid.
        """
        try:
            config, record = content.config_records[DOCUMENT_KEY], content.array_records[VALUES_KEY]
            text = config[DOCUMENT_KEY]
            if not isinstance(text, str) or len(text) > LONGEST_DOCUMENT:
                raise ValueError(f"its document must be a text of at most {LONGEST_DOCUMENT} characters")
            arrays = [numbers_of(record[str(number)]) for number in range(len(record))]
            return values.ValueReader(self._forms, arrays).value(json.loads(text))
        except Exception as error:
            raise ValueError(f"it can't be read ({type(error).__name__}: {one_line(str(error))})") from error

    def _array(self, array: npt.NDArray[Any]) -> Array:
        """Return the encoded array; the last few are cached, as the model is sent to many clients."""
        for sent, encoded in self._sent:
            if sent is array:
                return encoded
        self._sent.append((array, Array(np.asarray(array, order="C"))))
        return self._sent[-1][1]


def numbers_of(array: Array) -> npt.NDArray[Any]:
    """Return the values of a received numeric array.

    Raises:
        ValueError: If it is not numeric, or its size differs from its header.
    """
    if array.stype != SType.NUMPY:
        raise ValueError(f"an array must be in NumPy's format, got {shown(array.stype)}")
    stream = BytesIO(array.data)
    read_header = read_array_header_1_0 if read_magic(stream) == (1, 0) else read_array_header_2_0
    shape, in_columns, dtype = read_header(stream)
    start = stream.tell()
    if dtype.kind not in NUMBERS or math.prod(shape) * dtype.itemsize != len(array.data) - start:
        raise ValueError(f"an array must hold numbers that match its header, got {dtype} {shape}")
    numbers = np.frombuffer(array.data, dtype, offset=start).copy()
    return numbers.reshape(shape, order="F" if in_columns else "C")


def one_line(text: str) -> str:
    """Return text of another machine on one line, truncated, with control characters escaped."""
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:LONGEST_REASON])
    return line if len(text) <= LONGEST_REASON else f"{line}…"
