"""The protocol between a driver and a remote client: calls, results, and their encoding as values, never code.

A call holds one client's part of the work as a host receives it (`fedscout.engine.messages.calls`). It is sent as one
JSON document with the arrays in a separate record, so a forged message can contain wrong numbers but executes nothing.

The checkpoint format (`fedscout.engine.trials.checkpoint`) reads only files of the same machine; here the other side is
untrusted. So a document can name only the classes given to the reader, has no references (few bytes can't expand to
many), and every field must match its declared type: code that receives a value need not check its types again.

| document | value |
| --- | --- |
| `null`, boolean, number, string | itself |
| an object | a dictionary with string keys |
| `["list", …]`, `["tuple", …]`, `["frozenset", …]` | a collection of the items |
| `["dict", [key, value], …]` | another dictionary |
| `["array", 3]` | the fourth of the arrays, which are numeric |
| `["scalar", "<f8", "…"]` | a NumPy scalar, its bytes in hexadecimal |
| `["fractions", [6], [1, 2], …]` | an array of fractions: its shape, then numerators and denominators |
| `["made", class, fields]` | a dataclass or a pydantic model |
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from io import BytesIO
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from numpy.lib.format import read_array_header_1_0, read_array_header_2_0, read_magic
from pydantic import BaseModel, ValidationError

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.contracts.client_table import METRICS, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.messages.calls import (
    Assignment,
    EngineNeeds,
    EvaluateResults,
    FederationFacts,
    HostCall,
    QueryResults,
    ReportRequest,
    RoundSelection,
    Session,
    TrainResults,
)
from fedscout.engine.metrics import OF_CLASSES, OF_QUANTITIES, RowMeans
from fedscout.engine.text import shown
from fedscout.engine.trials.checkpoint import name_of

_FIELD_TYPES: dict[type, Mapping[str, Any]] = {}


def field_types(kind: Any) -> Mapping[str, Any]:
    """Return the declared types of a dataclass's fields."""
    if kind not in _FIELD_TYPES:
        hints = get_type_hints(kind)
        _FIELD_TYPES[kind] = {each.name: hints[each.name] for each in fields(kind)}
    return _FIELD_TYPES[kind]


def dataclasses_in(expected: Any) -> set[type]:
    """Return the dataclasses in a type, including those in their fields' types."""
    if isinstance(expected, type) and is_dataclass(expected):
        return {expected}.union(*map(dataclasses_in, field_types(expected).values()))
    return set().union(*map(dataclasses_in, get_args(expected)))


def fits(value: Any, expected: Any) -> bool:  # noqa: PLR0911 - one case a line
    """Return whether a value has a type; a bool is not a number, an int matches float.

    A NumPy scalar matches an array type, as an array without dimensions.
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray | np.generic) and _dtype_matches(value.dtype, arguments[1])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(
            fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items()
        )
    if origin is not None:
        kind: Any = list if origin is Sequence else origin
        return isinstance(value, kind) and all(fits(item, arguments[0]) for item in value)
    return _is_instance(value, expected)


def _dtype_matches(dtype: np.dtype[Any], expected: Any) -> bool:
    """Return whether an array's dtype matches `numpy.dtype[...]`."""
    (kind,) = get_args(expected)
    return kind is Any or np.issubdtype(dtype, kind)


def _is_instance(value: Any, expected: Any) -> bool:
    if expected in (int, float):
        numbers: Any = (int, np.integer) if expected is int else (int, float, np.integer, np.floating)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if expected in (None, NoneType):
        return value is None
    return not getattr(expected, "_is_protocol", False) and isinstance(value, expected)


Document = Any
Arrays = list[npt.NDArray[Any]]

DEEPEST = 40
"""Levels of a document."""

NUMBERS = "biuf"
"""Kinds of NumPy's types that travel."""

_SERIES: Mapping[type, str] = {list: "list", tuple: "tuple", frozenset: "frozenset"}


class UnsendableError(Exception):
    """A value can't be sent; the message says which."""


class ValueWriter:
    """Encodes values.

    Args:
        names: Names of the classes that may be sent.

    Attributes:
        arrays: The arrays to be sent with the document.
    """

    def __init__(self, names: Mapping[type, str]) -> None:
        self._names = names
        self.arrays: Arrays = []
        self._numbers: dict[int, int] = {}

    def document(self, value: Any) -> Document:  # noqa: PLR0911 - one case a line
        """Return the document of a value.

        Raises:
            UnsendableError: If there is none.
        """
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind in _SERIES:
            return [_SERIES[kind], *map(self.document, value)]
        if kind is dict:
            if all(type(key) is str for key in value):
                return {key: self.document(item) for key, item in value.items()}
            return ["dict", *([self.document(key), self.document(item)] for key, item in value.items())]
        if kind is np.ndarray:
            return self._array(value)
        if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        if kind not in self._names:
            raise UnsendableError(f"something of the type {kind.__module__}.{kind.__qualname__} is no value")
        return ["made", self._names[kind], {name: self.document(getattr(value, name)) for name in _names(kind)}]

    def _array(self, array: npt.NDArray[Any]) -> Document:
        if array.dtype.kind in NUMBERS:
            number = self._numbers.setdefault(id(array), len(self.arrays))
            if number == len(self.arrays):
                self.arrays.append(array)
            return ["array", number]
        items = array.ravel().tolist()
        if not all(type(item) is Fraction for item in items):
            raise UnsendableError(f"an array of {array.dtype} holds no numbers")
        return ["fractions", [*array.shape], *([item.numerator, item.denominator] for item in items)]


class ValueReader:
    """Decodes values.

    Args:
        classes: The classes that may be built, by name.
        arrays: The arrays sent with the document.
    """

    def __init__(self, classes: Mapping[str, type], arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._classes, self._arrays = classes, arrays

    def value(self, document: Document, level: int = 0) -> Any:  # noqa: PLR0911 - one case a line
        """Return the value of a document.

        Raises:
            ValueError: If it is invalid.
        """
        if level > DEEPEST:
            raise ValueError("it is nested too deeply")
        deeper = level + 1
        match document:
            case None | bool() | int() | float() | str():
                return document
            case dict():
                return {key: self.value(item, deeper) for key, item in document.items()}
            case ["list", *items]:
                return [self.value(item, deeper) for item in items]
            case ["tuple", *items]:
                return tuple(self.value(item, deeper) for item in items)
            case ["frozenset", *items]:
                return frozenset(self._key(item) for item in items)
            case ["dict", *items]:
                return dict(self._item(item, deeper) for item in items)
            case ["array", int(number)] if 0 <= number < len(self._arrays):
                return self._arrays[number]
            case ["scalar", str(kind), str(content)]:
                return _scalar(kind, content)
            case ["fractions", [*shape], *items]:
                return _fractions(shape, items)
            case ["made", str(name), dict(given)] if name in self._classes:
                return _build(self._classes[name], {key: self.value(item, deeper) for key, item in given.items()})
        raise ValueError(f"it says {shown(document)[:100]}, which stands for nothing")

    def _item(self, item: Document, level: int) -> tuple[Any, Any]:
        match item:
            case [key, value]:
                return self._key(key), self.value(value, level)
        raise ValueError("an item of a dictionary must be a key and a value")

    def _key(self, document: Document) -> int | str:
        if type(document) not in (int, str):
            raise ValueError("a key must be a whole number or a text")
        key: int | str = document
        return key


def _names(kind: type) -> list[str]:
    return [*kind.model_fields] if issubclass(kind, BaseModel) else [each.name for each in fields(kind)]  # type: ignore[arg-type]


def _build(kind: Any, given: Mapping[str, Any]) -> Any:
    """Return a dataclass or a model with these fields, after checking their types."""
    name = kind.__name__
    if [*given] != _names(kind):
        raise ValueError(f"a {name} must have the fields {', '.join(_names(kind))}, got {shown([*given])[:100]}")
    if issubclass(kind, BaseModel):
        return kind.model_validate(dict(given), strict=True)
    for field, expected in field_types(kind).items():
        if not fits(given[field], expected):
            raise ValueError(f"{field} of a {name} is of another type")
    return kind(**given)


def _scalar(kind: str, content: str) -> np.generic:
    if len(kind) > 3 or np.dtype(kind).kind not in NUMBERS:
        raise ValueError("a scalar must be a number")
    (scalar,) = np.frombuffer(bytes.fromhex(content), kind)
    number: np.generic = scalar
    return number


def _fractions(shape: Sequence[Any], items: Sequence[Any]) -> npt.NDArray[Any]:
    if not all(type(length) is int and length >= 0 for length in shape) or math.prod(shape) != len(items):
        raise ValueError("an array of fractions must have the shape that it says")
    array = np.empty(len(items), dtype=object)
    for place, item in enumerate(items):
        match item:
            case [int(numerator), int(denominator)] if denominator > 0:
                array[place] = Fraction(numerator, denominator)
            case _:
                raise ValueError("a fraction must be two whole numbers")
    return array.reshape(shape)


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
        method: Method of a client host.
        call: The request for that client alone; client states are replaced by marks (see
            `fedscout.engine.nodes.client`).
        trial: Key under which the client stores its state for this trial.
        terms: Digest of the agreement between driver and clients about the rows; empty means none.
    """

    method: Method
    call: HostCall
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

    answers: tuple[TrainResults | EvaluateResults | QueryResults | Refusal, ...]


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


def model_digest(facts: FederationFacts) -> str:
    """Return the digest of what driver and clients must share: the model's tensors and the classes."""
    tensors = [(name, slot.shape) for name, slot in facts.layout.entries.items()]
    document = json.dumps([tensors, facts.num_classes, facts.classifies])
    return hashlib.sha256(document.encode()).hexdigest()


VALUES: tuple[type, ...] = (
    *(NodeCall, NodeCalls, NodeAnswers, Refusal, Greeting, Introduction),
    *(HostCall, Session, LocalTraining, EngineNeeds, RoundSelection, ReportRequest, Assignment),
    *(SettingsLookup, SettingsTable, SettingsCell),
    *(TrainResults, EvaluateResults, QueryResults, ClientScore, RowMeans),
    *(type(make()) for make in (*OF_CLASSES.values(), *OF_QUANTITIES.values())),
)
"""What may travel, beside the client algorithms of the strategies."""


def algorithms_of(package: str) -> tuple[type, ...]:
    """Return the imported client algorithms that a package defines, and the dataclasses in their fields."""

    def below(kind: type[ClientAlgorithm]) -> Iterator[type[ClientAlgorithm]]:
        for each in kind.__subclasses__():
            yield each
            yield from below(each)

    algorithms = {kind for kind in below(ClientAlgorithm) if f"{kind.__module__}.".startswith(f"{package}.")}
    parts = {part for kind in algorithms for hint in field_types(kind).values() for part in dataclasses_in(hint)}
    return (ClientAlgorithm, *sorted(algorithms | parts, key=name_of))


class Wire:
    """Encodes and decodes messages.

    Args:
        algorithms: The client algorithms that may be sent.
    """

    def __init__(self, algorithms: Sequence[type] = ()) -> None:
        self._classes = {name_of(kind): kind for kind in (*VALUES, *algorithms)}
        self._names = {kind: name for name, kind in self._classes.items()}
        self._sent: OrderedDict[int, tuple[npt.NDArray[Any], Array]] = OrderedDict()

    def packed(self, value: Any) -> RecordDict:
        """Return the message content of a value.

        Raises:
            UnsendableError: If something in it may not be sent.
        """
        writer = ValueWriter(self._names)
        document = json.dumps(writer.document(_without_code(value)))
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
            return _without_code(ValueReader(self._classes, arrays).value(json.loads(text)))
        except UnsendableError as error:
            raise ValueError(str(error)) from error
        except ValidationError as error:
            raise ValueError(f"it can't be read, {error.error_count()} of its values are out of range") from error
        except Exception as error:
            raise ValueError(f"it can't be read ({type(error).__name__}: {one_line(str(error))})") from error

    def _array(self, array: npt.NDArray[Any]) -> Array:
        """Return the encoded array; the last few are cached, as the model is sent to many clients."""
        cached = self._sent.get(id(array))
        if cached is not None and cached[0] is array:
            return cached[1]
        encoded = Array(np.asarray(array, order="C"))
        self._sent[id(array)] = (array, encoded)
        if len(self._sent) > ARRAYS_KEPT:
            self._sent.popitem(last=False)
        return encoded


def numbers_of(array: Array) -> npt.NDArray[Any]:
    """Return the values of a received numeric array.

    Raises:
        ValueError: If it is not numeric, or its size differs from its header.
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


def _without_code(value: Any) -> Any:
    """Return a value unless it names code: a table's metric must be one that every client has."""
    table = value.call.session.client_table if isinstance(value, NodeCall) else None
    if table is not None and (table.metric not in METRICS or table.folder):
        raise UnsendableError(f"client_settings.metric must be one of {', '.join(METRICS)}, as no code travels")
    return value


def one_line(text: str) -> str:
    """Return text of another machine on one line, truncated, with control characters escaped."""
    line = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text[:LONGEST_REASON])
    return line if len(text) <= LONGEST_REASON else f"{line}…"
