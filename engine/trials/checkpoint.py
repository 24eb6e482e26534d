"""Checkpoints of a running trial: round, arrays, the strategy's state, client states, what was recorded so far.

They only save time. A trial without a readable checkpoint starts at round 1 and ends with the same bits.

A file is the SHA-256 of all that follows, a JSON document (`engine/trials/checkpoint.py`) as an array of bytes, and
numpy's own format for every array. Nothing in it is run: a planted file can mislead a trial about its numbers, as an
edited log can, and can't call anything. The digest finds damage; it is no signature.

The state of an object in plain values: one JSON document beside a list of numpy arrays, and back.

What was written is read into an object built afresh, so that a file holds values alone and names no class or function
but those of a fixed table (`engine/trials/checkpoint.py`): whoever plants a file can change numbers, not run code.

- What JSON knows, numpy's scalars and arrays and what is in the table are stored by value. Two names of one thing stay
  two names of one thing.
- Any other object must be in the fresh object at the same place, such as the strategy that a wrapper holds. Its state
  by Python's own protocol (`__getstate__`, else its attributes) is stored, and given to the fresh one.
- What has no state of its own, such as a function without a closure, is taken from the fresh object.
- With it goes the form of the fresh object: classes and attributes of all that it holds. An object that another version
  of the program builds with other attributes does not get the state, as it would lack what that version did not know.

Everything else, such as an open file, can't be stored.

How things that have no attributes of interest are written as simpler things, and made from them again.

This table is all that a stored state can name: containers, arrays, Flower's records, random generators and torch's
tensors. Parts are again things of these forms, arrays, or what JSON knows.
"""

from __future__ import annotations

import copyreg
import enum
import hashlib
import json
import logging
import os
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path, PosixPath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib.format import read_array, write_array

from fedscout.engine.messages.contents import ViewArray
from fedscout.engine.runtime.files import remove_file, write_atomically


@dataclass(frozen=True)
class StoredForm:
    """How things of one class are stored.

    Attributes:
        parts: Returns what a thing is made of; None if that one can't be stored.
        make: Makes it from its parts.
    """

    parts: Callable[[Any], Iterable[Any] | None]
    make: Callable[..., Any]


def form_of(kind: type) -> StoredForm:
    """Return the form of a dataclass: its fields in their order."""
    names = [each.name for each in fields(kind)]
    return StoredForm(lambda value: [getattr(value, name) for name in names], kind)


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


FORMS: Mapping[str, StoredForm] = {
    name_of(tuple): StoredForm(list, lambda *items: items),
    name_of(frozenset): StoredForm(list, lambda *items: frozenset(items)),
    name_of(bytes): StoredForm(lambda value: [np.frombuffer(value, np.uint8)], lambda array: array.tobytes()),
    name_of(PosixPath): StoredForm(lambda path: [str(path)], Path),
    name_of(ViewArray): StoredForm(lambda array: [array.view], ViewArray),
    name_of(Array): StoredForm(lambda array: [array.dtype, array.shape, array.stype, array.data], Array),
    name_of(random.Random): StoredForm(lambda generator: [generator.getstate()], _random),
    name_of(np.random.RandomState): StoredForm(lambda generator: [generator.get_state(legacy=False)], _random_state),
    name_of(np.random.Generator): StoredForm(_generator_parts, _generator),
    "torch.Tensor": StoredForm(_tensor_parts, _tensor),
    "torch.nn.parameter.Parameter": StoredForm(_tensor_parts, _parameter),
}
"""Of things that are made at once."""

FILLED: Mapping[str, Callable[[], Any]] = {
    name_of(kind): kind
    for kind in (list, set, dict, OrderedDict, Counter, ArrayRecord, MetricRecord, ConfigRecord, RecordDict)
}
"""Of containers that are made empty and then filled, and so may hold themselves."""


Document = Any
"""What `json` writes and reads. A list is a tag and what it needs; everything else is itself."""

Arrays = list[npt.NDArray[Any]]

_SCALARS = (type(None), bool, int, float, str)
_REFILLED = (defaultdict, deque)
"""Containers with settings of their own: those of the fresh object are emptied and filled."""


class NotPlainError(Exception):
    """Something can't be stored; the text says where it is and what."""


class PlainState:
    """Writes the state of objects like one that was built afresh, and reads it into that one.

    Args:
        fresh: The object as built. What it holds now is remembered, so that it may change afterwards.
        values: Dataclasses whose instances are stored by value, field by field.

    Attributes:
        told: Whether the user was told that something can't be stored.
    """

    def __init__(self, fresh: Any, values: Sequence[type] = ()) -> None:
        self._fresh = fresh
        self._forms = {**FORMS, **{name_of(kind): form_of(kind) for kind in values}}
        self._anchors = _anchors(fresh)
        self._form = _form_digest(self._anchors, values)
        self.told = False

    def encode(self, state: Any) -> tuple[Document, Arrays]:
        """Return an object's state.

        Args:
            state: Of the fresh object's class.

        Raises:
            NotPlainError: If something in it can't be stored.
        """
        encoder = _Encoder(self._anchors, self._forms)
        return {"form": self._form, "state": encoder.encode(_state_of(state, ""), "")}, encoder.arrays

    def restore(self, document: Document, arrays: Arrays) -> None:
        """Give a state to the fresh object; it stays as it is unless all of the state can be read.

        Raises:
            Exception: Of whatever kind, if it is not the state of such an object.
        """
        if document.get("form") != self._form:
            raise ValueError("another version of the program wrote it, which kept other things")
        decoder = _Decoder(self._anchors, self._forms, arrays)
        state = decoder.decode(document["state"], "")
        if state.keys() != vars(self._fresh).keys():
            raise ValueError(f"it holds {', '.join(state)} where {', '.join(vars(self._fresh))} are needed")
        for update in decoder.updates:
            update()
        vars(self._fresh).update(state)


def _anchors(fresh: Any) -> dict[str, Any]:
    """Return every object in and below `fresh` that may be more than a plain value, by its places."""
    anchors: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # holds the things, so that no other gets their id

    def visit(value: Any, path: str) -> None:
        if type(value) in (*_SCALARS, bytes, np.ndarray):
            return
        anchors[path] = value
        if id(value) in seen:
            return
        seen[id(value)] = value
        for place, item in _items(value, path):
            visit(item, place)
        if not _is_fixed(value):
            with suppress(Exception):  # whatever a user's `__getstate__` raises; told if it is to be stored
                for place, item in _items(_state_of(value, path), path):
                    visit(item, place)

    visit(fresh, "")
    return anchors


def _form_digest(anchors: Mapping[str, Any], values: Sequence[type]) -> str:
    """Return the SHA-256 of the classes and attributes at each place, and of the fields of what is stored by value."""
    with_state = [(path, value) for path, value in anchors.items() if not _is_fixed(value)]
    held = [(path, name_of(type(value)), sorted(getattr(value, "__dict__", ()))) for path, value in with_state]
    stored = [(name_of(kind), [each.name for each in fields(kind)]) for kind in values]
    return hashlib.sha256(json.dumps([sorted(held), stored]).encode()).hexdigest()


def _items(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the places and items of a container; those of a set have no place."""
    if isinstance(value, dict):
        return [(_place(path, key), item) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return [(_place(path, index), item) for index, item in enumerate(value)]
    return []


def _place(path: str, key: Any) -> str:
    if isinstance(key, str):
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


def _is_fixed(value: Any) -> bool:
    """Whether it has no state of its own, so that the fresh object's will do."""
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    return isinstance(value, type | ModuleType | np.dtype | np.ufunc | logging.Logger)


def _state_of(value: Any, path: str) -> Any:
    """Return an object's state by Python's protocol for copies, if that is all there is to it."""
    kind: Any = type(value)
    if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        try:
            make, arguments, state, *items = value.__reduce_ex__(2)
        except TypeError as error:  # a file, a lock, a thread
            raise _not_plain(value, path) from error
        if make is vars(copyreg)["__newobj__"] and len(arguments) == 1 and items == [None, None]:
            return state
    raise _not_plain(value, path)


def _set_state(fresh: Any, state: Any) -> None:
    """Give an object its state as Python does after a copy, but that attributes without a value go."""
    if hasattr(fresh, "__setstate__"):
        fresh.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes is not None:
        vars(fresh).clear()
        vars(fresh).update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(fresh, name, value)


def _not_plain(value: Any, path: str) -> NotPlainError:
    return NotPlainError(f"{path} can't be stored, it is of type {type(value).__qualname__}")


class _Encoder:
    """Encodes one state.

    Args:
        anchors: What the fresh object holds, by place.
        forms: Of what is stored by value.
    """

    def __init__(self, anchors: Mapping[str, Any], forms: Mapping[str, StoredForm]) -> None:
        self._anchors = anchors
        self._forms = forms
        self._seen: dict[int, tuple[int, Any]] = {}  # holds the things, so that no other gets their id
        self._stored: dict[tuple[Any, ...], int] = {}
        self.arrays: Arrays = []

    def encode(self, value: Any, path: str) -> Document:
        """Return the document of a value at a place."""
        if type(value) in _SCALARS:
            return value
        if id(value) in self._seen:
            return ["same", self._seen[id(value)][0]]
        for encode in (self._number, self._made, self._filled, self._object):
            if (node := encode(value, path)) is not None:
                return node
        raise _not_plain(value, path)

    def _number(self, value: Any, path: str) -> Document:
        if type(value) is np.ndarray and not value.dtype.hasobject:
            return ["array", self._array(value)]
        if isinstance(value, np.generic) and value.dtype.kind in "biufcSUmM":
            return ["scalar", value.dtype.str, value.tobytes().hex()]
        return None

    def _made(self, value: Any, path: str) -> Document:
        name = name_of(type(value))
        parts = self._forms[name].parts(value) if name in self._forms else None
        if parts is None:
            return None
        node = ["made", name, *[self.encode(part, _place(path, index)) for index, part in enumerate(parts)]]
        self._note(value)
        return node

    def _filled(self, value: Any, path: str) -> Document:
        name = name_of(type(value))
        refills = type(value) in _REFILLED and type(self._anchors.get(path)) is type(value)
        if not refills and name not in FILLED:
            return None
        self._note(value)
        if not hasattr(value, "items"):
            content: Any = [self.encode(item, _place(path, index)) for index, item in enumerate(value)]
        elif all(type(key) is str for key in value):
            content = {key: self.encode(item, _place(path, key)) for key, item in value.items()}
        else:
            content = [[self.encode(key, path), self.encode(item, _place(path, key))] for key, item in value.items()]
        if type(value) is dict and isinstance(content, dict):
            return content
        return ["refilled" if refills else "filled", name, content]

    def _object(self, value: Any, path: str) -> Document:
        anchor: Any = self._anchors.get(path)
        if isinstance(value, enum.Enum):
            return ["member", value.name] if type(anchor) is type(value) else None
        if anchor is not value:
            return None
        if _is_fixed(value) or (isinstance(value, MethodType) and self._is_anchor(value.__self__)):
            return ["kept"]
        self._note(value)
        return ["object", self.encode(_state_of(value, path), path)]

    def _is_anchor(self, value: Any) -> bool:
        return any(value is anchor for anchor in self._anchors.values())

    def _note(self, value: Any) -> None:
        """Number a thing, so that others may refer to it."""
        self._seen[id(value)] = (len(self._seen), value)

    def _array(self, array: npt.NDArray[Any]) -> int:
        """Return the number of an array; memory that is seen twice is stored once."""
        memory = (array.__array_interface__["data"][0], array.shape, array.strides, array.dtype)
        if memory not in self._stored:
            self._stored[memory] = len(self.arrays)
            self.arrays.append(array)
        return self._stored[memory]


class _Decoder:
    """Decodes one state; things are numbered as when it was encoded.

    Args:
        anchors: What the fresh object holds, by place.
        forms: Of what is stored by value.
        arrays: Beside the document.

    Attributes:
        updates: What is left to do to the objects of the fresh one.
    """

    def __init__(self, anchors: Mapping[str, Any], forms: Mapping[str, StoredForm], arrays: Arrays) -> None:
        self._anchors = anchors
        self._forms = forms
        self._arrays = arrays
        self._seen: list[Any] = []
        self.updates: list[Callable[[], None]] = []

    def decode(self, node: Document, path: str) -> Any:
        """Return the value of a document at a place."""
        value: Any
        match node:
            case dict():
                value = self._fill(self._noted({}), node, path)
            case ["same", int(number)]:
                value = self._seen[number]
            case ["array", int(number)]:
                value = self._arrays[number]
            case ["scalar", kind, content]:
                value = np.frombuffer(bytes.fromhex(content), kind)[0]
            case ["made", name, *parts]:
                decoded = [self.decode(part, _place(path, index)) for index, part in enumerate(parts)]
                value = self._noted(self._forms[name].make(*decoded))
            case ["filled", name, content]:
                value = self._fill(self._noted(FILLED[name]()), content, path)
            case ["refilled", _, content]:
                value = self._refill(self._anchors[path], content, path)
            case ["member", name]:
                value = type(self._anchors[path])[name]
            case ["kept"]:
                value = self._anchors[path]
            case ["object", state]:
                value = self._noted(self._anchors[path])
                self.updates.append(partial(_set_state, value, self.decode(state, path)))
            case list():
                raise ValueError(f"what stands for {path} can't be read: {str(node)[:50]}")
            case _:
                value = node
        return value

    def _fill(self, empty: Any, content: Document, path: str) -> Any:
        if hasattr(empty, "items"):
            for key_node, item in content.items() if isinstance(content, dict) else content:
                key = self.decode(key_node, path)
                empty[key] = self.decode(item, _place(path, key))
        else:
            add = empty.add if isinstance(empty, set) else empty.append
            for index, item in enumerate(content):
                add(self.decode(item, _place(path, index)))
        return empty

    def _refill(self, fresh: Any, content: Document, path: str) -> Any:
        self._noted(fresh)
        items = self._fill({} if hasattr(fresh, "items") else [], content, path)
        self.updates += [fresh.clear, partial(fresh.update if hasattr(fresh, "items") else fresh.extend, items)]
        return fresh

    def _noted(self, value: Any) -> Any:
        self._seen.append(value)
        return value


logger = logging.getLogger("fedscout")

DIGEST_BYTES = 32


@dataclass(frozen=True)
class CheckpointStore:
    """Where trials leave their checkpoints.

    Attributes:
        folder: One file a running trial; None keeps none.
        every_rounds: Rounds between two checkpoints, >= 1.
    """

    folder: Path | None
    every_rounds: int = 10

    def path(self, key: str) -> Path | None:
        """Return the file of a trial."""
        return None if self.folder is None else self.folder / f"{key}.checkpoint"

    def due(self, server_round: int) -> bool:
        """Whether a checkpoint should follow this round."""
        return self.folder is not None and server_round % self.every_rounds == 0

    def save(self, key: str, state: Any, plain: PlainState) -> None:
        """Save a state; one that can't be stored or written is reported, and the trial goes on without.

        Args:
            key: Of the trial.
            state: Where it stands.
            plain: Knows how to write it.
        """
        path = self.path(key)
        if path is None:
            return
        try:
            write_atomically(path, partial(_write, *plain.encode(state)))
        except NotPlainError as error:
            if not plain.told:
                logger.warning("trial %s goes on without a checkpoint: %s", key[:12], error)
            plain.told = True
        except Exception as error:  # whatever a user's strategy object raises
            logger.warning("trial %s goes on without a checkpoint: %s: %s", key[:12], type(error).__name__, error)

    def restore(self, key: str, plain: PlainState) -> bool:
        """Give the last state to the fresh object of `plain`; False if there is none that can be read."""
        path = self.path(key)
        if path is None or not os.path.lexists(path):
            return False
        try:
            plain.restore(*read_checkpoint(path))
        except Exception as error:
            logger.warning("checkpoint %s can't be read and is ignored: %s: %s", path, type(error).__name__, error)
            return False
        return True

    def discard(self, key: str) -> None:
        """Remove a finished trial's file, and what a killed process of it was writing."""
        path = self.path(key)
        if path is None:
            return
        try:
            unfinished = (file for file in path.parent.glob(".*.tmp") if file.name.startswith(f".{path.name}."))
            for written in (path, *unfinished):
                if os.path.lexists(written):  # where nothing can be written, removing nothing fails as well
                    remove_file(written)
        except OSError as error:  # it is of no use any more, and of no harm
            logger.warning("checkpoint %s can't be removed: %s", path, error.strerror)


def read_checkpoint(path: Path) -> tuple[Document, Arrays]:
    """Return what a file holds.

    Raises:
        Exception: Of whatever kind, if it can't be read or is damaged.
    """
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is no file")
    arrays = []
    with path.open("rb") as file:
        written = file.read(DIGEST_BYTES)
        if hashlib.file_digest(file, "sha256").digest() != written:
            raise ValueError("its digest is not that of its content")
        end = file.tell()
        file.seek(DIGEST_BYTES)
        while file.tell() < end:
            arrays.append(read_array(file, allow_pickle=False))
    return json.loads(arrays.pop(0).tobytes()), arrays


def _write(document: Document, arrays: Arrays, path: Path) -> None:
    with path.open("w+b") as file:
        file.write(bytes(DIGEST_BYTES))
        for array in (np.frombuffer(json.dumps(document).encode(), np.uint8), *arrays):
            write_array(file, array, allow_pickle=False)
        file.seek(DIGEST_BYTES)
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0)
        file.write(digest)
