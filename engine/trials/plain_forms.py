"""How things that have no attributes of interest are written as simpler things, and made from them again.

This table is all that a stored state can name: containers, arrays, Flower's records, random generators and torch's
tensors. Parts are again things of these forms, arrays, or what JSON knows.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path, PosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict

from fedscout.engine.messages.view_array import ViewArray


@dataclass(frozen=True)
class Form:
    """How things of one class are stored.

    Attributes:
        parts: Returns what a thing is made of; None if that one can't be stored.
        make: Makes it from its parts.
    """

    parts: Callable[[Any], Iterable[Any] | None]
    make: Callable[..., Any]


def form_of(kind: type) -> Form:
    """Return the form of a dataclass: its fields in their order."""
    names = [each.name for each in fields(kind)]
    return Form(lambda value: [getattr(value, name) for name in names], kind)


def name_of(kind: type) -> str:
    """Return the name under which a class stands in the tables."""
    return f"{kind.__module__}.{kind.__qualname__}"


def _random(state: tuple[Any, ...]) -> random.Random:
    generator = random.Random()  # noqa: S311 - a strategy's own
    generator.setstate(state)
    return generator


def _random_state(state: dict[str, Any]) -> np.random.RandomState:
    generator = np.random.RandomState(0)
    generator.set_state(state)
    return generator


_BIT_GENERATORS = {
    kind.__name__: kind
    for kind in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}


def _generator_parts(generator: np.random.Generator) -> Iterable[Any] | None:
    source = generator.bit_generator
    seeds = source.seed_seq
    return [seeds.state, source.state] if isinstance(seeds, np.random.SeedSequence) else None


def _generator(seeds: dict[str, Any], state: Any) -> np.random.Generator:
    source = _BIT_GENERATORS[state["bit_generator"]](np.random.SeedSequence(**seeds))
    source.state = state
    return np.random.Generator(source)


def _tensor_parts(tensor: Any) -> Iterable[Any] | None:
    return [tensor.detach().cpu().numpy(), tensor.requires_grad] if tensor.is_leaf else None


def _tensor(array: npt.NDArray[Any], requires_grad: bool) -> Any:
    import torch

    return torch.from_numpy(array).requires_grad_(requires_grad)


def _parameter(array: npt.NDArray[Any], requires_grad: bool) -> Any:
    import torch

    return torch.nn.Parameter(torch.from_numpy(array), requires_grad)


FORMS: Mapping[str, Form] = {
    name_of(tuple): Form(list, lambda *items: items),
    name_of(frozenset): Form(list, lambda *items: frozenset(items)),
    name_of(bytes): Form(lambda value: [np.frombuffer(value, np.uint8)], lambda array: array.tobytes()),
    name_of(PosixPath): Form(lambda path: [str(path)], Path),
    name_of(ViewArray): Form(lambda array: [array.view], ViewArray),
    name_of(Array): Form(lambda array: [array.dtype, array.shape, array.stype, array.data], Array),
    name_of(random.Random): Form(lambda generator: [generator.getstate()], _random),
    name_of(np.random.RandomState): Form(lambda generator: [generator.get_state(legacy=False)], _random_state),
    name_of(np.random.Generator): Form(_generator_parts, _generator),
    "torch.Tensor": Form(_tensor_parts, _tensor),
    "torch.nn.parameter.Parameter": Form(_tensor_parts, _parameter),
}
"""Of things that are made at once."""

FILLED: Mapping[str, Callable[[], Any]] = {
    name_of(kind): kind
    for kind in (list, set, dict, OrderedDict, Counter, ArrayRecord, MetricRecord, ConfigRecord, RecordDict)
}
"""Of containers that are made empty and then filled, and so may hold themselves."""
