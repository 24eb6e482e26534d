"""How values travel between machines: one JSON document and the arrays beside it.

A checkpoint's form of values (`fedscout.engine.trials.plain_state`) reads what this machine wrote; here the other side
may be anybody. So a document can name the classes that the reader has been told of and nothing else, refers to nothing
(few bytes can't stand for many), and what it says of a field must be of the field's type: who is handed a value need
not look at its types again.

| document | value |
| --- | --- |
| `null`, a truth value, a number, a text | itself |
| an object | a dictionary of texts |
| `["list", …]`, `["tuple", …]`, `["frozenset", …]` | its items |
| `["dict", [key, value], …]` | another dictionary |
| `["array", 3]` | the fourth of the arrays, of numbers |
| `["scalar", "<f8", "…"]` | a number of NumPy's, its bytes in hexadecimal |
| `["fractions", [6], [1, 2], …]` | an array of fractions, its shape, then numerators and denominators |
| `["made", class, fields]` | a dataclass or a pydantic model |
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel

from fedscout.engine.fault_text import shown
from fedscout.engine.nodes.field_types import field_types, fits

Document = Any
Arrays = list[npt.NDArray[Any]]

DEEPEST = 40
"""Levels of a document."""

NUMBERS = "biuf"
"""Kinds of NumPy's types that travel."""

_SERIES: Mapping[type, str] = {list: "list", tuple: "tuple", frozenset: "frozenset"}


class UnsendableError(Exception):
    """Something can't travel; the text says what."""


class ValueWriter:
    """Writes values.

    Args:
        names: Of the classes that may travel.

    Attributes:
        arrays: What lies beside the document.
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
    """Reads values.

    Args:
        classes: That may be made, by name.
        arrays: What lies beside the document.
    """

    def __init__(self, classes: Mapping[str, type], arrays: Sequence[npt.NDArray[Any]]) -> None:
        self._classes, self._arrays = classes, arrays

    def value(self, document: Document, level: int = 0) -> Any:  # noqa: PLR0911 - one case a line
        """Return the value of a document.

        Raises:
            ValueError: If it has none.
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
                return _made(self._classes[name], {key: self.value(item, deeper) for key, item in given.items()})
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


def _made(kind: Any, given: Mapping[str, Any]) -> Any:
    """Return a dataclass or a model with these fields."""
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
    (found,) = np.frombuffer(bytes.fromhex(content), kind)
    number: np.generic = found
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
