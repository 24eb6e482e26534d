"""Values as JSON documents with arrays beside them, never code: checkpoints, and messages to remote clients.

Reading executes nothing: a document can name only the classes of a table of forms, so a forged one can hold wrong
numbers, but calls no function of its choice. A dataclass or a pydantic model is built only if every field has its
declared type, so code that receives one need not check types again.

| document | value |
| --- | --- |
| `null`, boolean, number, string | itself |
| an object | a dictionary with string keys |
| `["array", 3]` | the fourth of the arrays |
| `["scalar", "<f8", "…"]` | a NumPy scalar, its bytes in hexadecimal |
| `["made", class, part, …]` | an instance of a class of the table; the part of a dataclass is its fields |

There are no references, so few bytes can't expand to many. Checkpoints, which are read on the machine that wrote them,
add references and the state of objects (`fedscout.engine.trials.checkpoint`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from fedscout.engine.text import shown

Document = Any
"""What `json` writes and reads."""

Arrays = list[npt.NDArray[Any]]

SCALARS = (type(None), bool, int, float, str)
_SCALAR_KINDS = "biufcSUmM"
_LONGEST_SCALAR_TYPE = 16
LARGEST_FLOAT = sys.float_info.max


class NotPlainError(Exception):
    """Raised for a value that has no document; the message names its place and type."""


def not_plain_error(value: Any, path: str) -> NotPlainError:
    """Return the error for the value at a place."""
    return NotPlainError(f"{path} can't be stored, it is of type {type(value).__qualname__}")


@dataclass(frozen=True)
class Form:
    """The parts of which instances of a class are made.

    Attributes:
        parts: Returns the parts of an instance: values again; None if this instance has no document.
        make: Builds the instance from its parts.
    """

    parts: Callable[[Any], Iterable[Any] | None]
    make: Callable[..., Any]


def name_of(kind: type) -> str:
    """Return the qualified name by which a table of forms lists a class."""
    return f"{kind.__module__}.{kind.__qualname__}"


def place_in(path: str, key: Any) -> str:
    """Return the place of an item, or of a part, of the value at a place."""
    if isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


def field_names(kind: Any) -> list[str]:
    """Return the names of the fields of a dataclass or a pydantic model."""
    return [*kind.model_fields] if issubclass(kind, BaseModel) else [each.name for each in fields(kind)]


def form_of(kind: Any) -> Form:
    """Return the form of a dataclass or a pydantic model: its fields, whose types are checked in reading."""

    def make(given: Mapping[str, Any]) -> Any:
        if [*given] != field_names(kind):
            raise ValueError(f"a {kind.__name__} must have exactly its fields, got {shown([*given])[:100]}")
        if issubclass(kind, BaseModel):
            return kind.model_validate(dict(given), strict=True)
        for name, expected in field_types(kind).items():
            if not fits(given[name], expected):
                raise ValueError(f"{name} of a {kind.__name__} has the wrong type")
        return kind(**given)

    return Form(lambda value: [{name: getattr(value, name) for name in field_names(kind)}], make)


@cache
def field_types(kind: Any) -> Mapping[str, Any]:
    """Return the declared types of a dataclass's fields."""
    hints = get_type_hints(kind)
    return {each.name: hints[each.name] for each in fields(kind)}


def dataclasses_in(expected: Any) -> set[type]:
    """Return the dataclasses in a type, including those in their fields' types."""
    if isinstance(expected, type) and is_dataclass(expected):
        return {expected}.union(*map(dataclasses_in, field_types(expected).values()))
    return set().union(*map(dataclasses_in, get_args(expected)))


def fits(value: Any, expected: Any) -> bool:  # noqa: PLR0911 - one case a line
    """Return whether a value has a type; a bool is not a number, an int within its range matches float.

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
        (kind,) = get_args(arguments[1])
        return isinstance(value, np.ndarray | np.generic) and (kind is Any or np.issubdtype(value.dtype, kind))
    if origin is tuple and arguments[-1] is not Ellipsis:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is not None and issubclass(origin, Mapping):
        key_type, item_type = arguments
        return isinstance(value, dict) and all(fits(k, key_type) and fits(v, item_type) for k, v in value.items())
    if origin is not None:
        kind = list if origin is Sequence else origin
        return isinstance(value, kind) and all(fits(item, arguments[0]) for item in value)
    if expected in (int, float):
        numbers: Any = (int, np.integer) if expected is int else (int, float, np.integer, np.floating)
        is_too_large = expected is float and isinstance(value, int) and abs(value) > LARGEST_FLOAT
        return isinstance(value, numbers) and not isinstance(value, bool) and not is_too_large
    if expected in (None, NoneType):
        return value is None
    return not getattr(expected, "_is_protocol", False) and isinstance(value, expected)


class ValueWriter:
    """Encodes values.

    Args:
        forms: The classes that may be written, by name.

    Attributes:
        arrays: The arrays that belong to the document; the same memory is stored once.
    """

    def __init__(self, forms: Mapping[str, Form]) -> None:
        self._forms = forms
        self._stored: dict[tuple[Any, ...], int] = {}
        self.arrays: Arrays = []

    def document(self, value: Any, path: str = "") -> Document:
        """Return the document of the value at a place.

        Raises:
            NotPlainError: If there is none.
        """
        if type(value) in SCALARS:
            return value
        if type(value) is dict and all(type(key) is str for key in value):
            return {key: self.document(item, place_in(path, key)) for key, item in value.items()}
        if type(value) is np.ndarray and not value.dtype.hasobject:
            memory = (value.__array_interface__["data"][0], value.shape, value.strides, value.dtype)
            if memory not in self._stored:
                self._stored[memory] = len(self.arrays)
                self.arrays.append(value)
            return ["array", self._stored[memory]]
        if isinstance(value, np.generic) and value.dtype.kind in _SCALAR_KINDS:
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        name = name_of(type(value))
        parts = self._forms[name].parts(value) if name in self._forms else None
        if parts is None:
            return self._other(value, path)
        return ["made", name, *(self.document(part, place_in(path, index)) for index, part in enumerate(parts))]

    def _other(self, value: Any, path: str) -> Document:
        """Return the document of a value that has none by the table."""
        raise not_plain_error(value, path)


class ValueReader:
    """Decodes values.

    Args:
        forms: The classes that may be built, by name.
        arrays: The arrays that belong to the document.
    """

    def __init__(self, forms: Mapping[str, Form], arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._forms, self._arrays = forms, arrays

    def value(self, document: Document, path: str = "") -> Any:
        """Return the value of the document at a place.

        Raises:
            Exception: Of any type, if it is invalid.
        """
        match document:
            case None | bool() | int() | float() | str():
                return document
            case dict():
                return {key: self.value(item, place_in(path, key)) for key, item in document.items()}
            case ["array", int(number)] if 0 <= number < len(self._arrays):
                return self._arrays[number]
            case ["scalar", str(kind), str(content)] if len(kind) <= _LONGEST_SCALAR_TYPE:
                return np.frombuffer(bytes.fromhex(content), kind)[0]
            case ["made", str(name), *parts] if name in self._forms:
                values = [self.value(part, place_in(path, index)) for index, part in enumerate(parts)]
                return self._forms[name].make(*values)
        raise ValueError(f"it holds {shown(document)[:100]}, which encodes no value")
