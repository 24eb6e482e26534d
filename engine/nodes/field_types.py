"""Whether a value is of the type that a field is declared with, of the types that the engine's values use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np

_KNOWN: dict[type, Mapping[str, Any]] = {}


def field_types(kind: Any) -> Mapping[str, Any]:
    """Return the declared types of a dataclass's fields."""
    if kind not in _KNOWN:
        hints = get_type_hints(kind)
        _KNOWN[kind] = {each.name: hints[each.name] for each in fields(kind)}
    return _KNOWN[kind]


def dataclasses_in(expected: Any) -> set[type]:
    """Return the dataclasses that a type names, and those that their fields name."""
    if isinstance(expected, type) and is_dataclass(expected):
        return {expected}.union(*map(dataclasses_in, field_types(expected).values()))
    return set().union(*map(dataclasses_in, get_args(expected)))


def fits(value: Any, expected: Any) -> bool:  # noqa: PLR0911 - one case a line
    """Return whether a value is of a type; a truth value is no number, a whole number may stand for any.

    One of NumPy's numbers may stand for an array of no dimension.
    """
    origin, arguments = get_origin(expected), get_args(expected)
    if expected is Any:
        return True
    if origin in (Union, UnionType):
        return any(fits(value, each) for each in arguments)
    if origin is Literal:
        return any(type(value) is type(each) and value == each for each in arguments)
    if origin is np.ndarray:
        return isinstance(value, np.ndarray | np.generic) and _holds(value.dtype, arguments[1])
    if origin is tuple and arguments[-1] is not Ellipsis:
        return isinstance(value, tuple) and len(value) == len(arguments) and all(map(fits, value, arguments))
    if origin is not None and issubclass(origin, Mapping):
        return isinstance(value, dict) and all(
            fits(key, arguments[0]) and fits(item, arguments[1]) for key, item in value.items()
        )
    if origin is not None:
        kind: Any = list if origin is Sequence else origin
        return isinstance(value, kind) and all(fits(item, arguments[0]) for item in value)
    return _is_of(value, expected)


def _holds(dtype: np.dtype[Any], expected: Any) -> bool:
    """Return whether an array's type is that of `numpy.dtype[...]`."""
    (kind,) = get_args(expected)
    return kind is Any or np.issubdtype(dtype, kind)


def _is_of(value: Any, expected: Any) -> bool:
    if expected in (int, float):
        numbers: Any = (int, np.integer) if expected is int else (int, float, np.integer, np.floating)
        return isinstance(value, numbers) and not isinstance(value, bool)
    if expected in (None, NoneType):
        return value is None
    return not getattr(expected, "_is_protocol", False) and isinstance(value, expected)
