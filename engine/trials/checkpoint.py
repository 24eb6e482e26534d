"""Checkpoints of running trials: serialisation of a trial's state without pickle.

A checkpoint holds the round, the arrays, the state of the strategy and the clients, and the results so far. It only
saves time: a trial without a readable checkpoint starts at round 1 and ends with the same bits.

A file consists of the SHA-256 digest of everything after it, a JSON document as a byte array, and all arrays in numpy's
own format. The digest detects damage; it is not a signature. Reading a file executes nothing
(`fedscout.engine.messages.values`): it can name only the classes in fixed tables (`FORMS`, `FILLED` and the dataclasses
given to `PlainState`), so a manipulated file can change numbers, as an edited log can, but cannot run code.

The state is read into a newly built ("fresh") object of the same kind:

- JSON values, numpy scalars and arrays, and instances of the classes in the tables are stored by value. Shared
  references stay shared.
- Any other object must exist at the same place in the fresh object, such as the strategy inside a wrapper. Its state
  by Python's own protocol (`__getstate__`, else its attributes) is stored, and set on the fresh one.
- An object without state, such as a function without a closure, is taken from the fresh object.
- The classes and attributes of everything in the fresh object are stored as a digest. A state that another version of
  the program wrote with other attributes is rejected, as it lacks values for new attributes.

Anything else, such as an open file, cannot be stored.
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PosixPath
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from numpy.lib.format import read_array, write_array

from fedscout.engine.messages import values as documents
from fedscout.engine.messages.contents import ViewArray
from fedscout.engine.runtime.files import remove_file, write_atomically


def _make_random(state: tuple[Any, ...]) -> random.Random:
    generator = random.Random()  # noqa: S311 - a strategy's own
    generator.setstate(state)
    return generator


def _make_random_state(state: dict[str, Any]) -> np.random.RandomState:
    generator = np.random.RandomState(0)
    generator.set_state(state)
    return generator


_BIT_GENERATORS: Mapping[str, Any] = {kind.__name__: kind for kind in np.random.BitGenerator.__subclasses__()}


def _generator_parts(generator: np.random.Generator) -> Iterable[Any] | None:
    bit_generator = generator.bit_generator
    seed_sequence = bit_generator.seed_seq
    return [seed_sequence.state, bit_generator.state] if isinstance(seed_sequence, np.random.SeedSequence) else None


def _make_generator(seeds: dict[str, Any], state: Any) -> np.random.Generator:
    bit_generator = _BIT_GENERATORS[state["bit_generator"]](np.random.SeedSequence(**seeds))
    bit_generator.state = state
    return np.random.Generator(bit_generator)


def _tensor_parts(tensor: Any) -> Iterable[Any] | None:
    return [tensor.detach().cpu().numpy(), tensor.requires_grad] if tensor.is_leaf else None


def _make_tensor(array: npt.NDArray[Any], requires_grad: bool, is_parameter: bool = False) -> Any:
    import torch

    tensor = torch.from_numpy(array)
    return torch.nn.Parameter(tensor, requires_grad) if is_parameter else tensor.requires_grad_(requires_grad)


FORMS: Mapping[str, documents.Form] = {
    documents.name_of(tuple): documents.Form(list, lambda *items: items),
    documents.name_of(frozenset): documents.Form(list, lambda *items: frozenset(items)),
    documents.name_of(bytes): documents.Form(
        lambda value: [np.frombuffer(value, np.uint8)], lambda array: array.tobytes()
    ),
    documents.name_of(PosixPath): documents.Form(lambda path: [str(path)], Path),
    documents.name_of(ViewArray): documents.Form(lambda array: [array.view], ViewArray),
    documents.name_of(Array): documents.Form(lambda array: [array.dtype, array.shape, array.stype, array.data], Array),
    documents.name_of(random.Random): documents.Form(lambda generator: [generator.getstate()], _make_random),
    documents.name_of(np.random.RandomState): documents.Form(
        lambda generator: [generator.get_state(legacy=False)], _make_random_state
    ),
    documents.name_of(np.random.Generator): documents.Form(_generator_parts, _make_generator),
    "torch.Tensor": documents.Form(_tensor_parts, _make_tensor),
    "torch.nn.parameter.Parameter": documents.Form(_tensor_parts, partial(_make_tensor, is_parameter=True)),
}
"""Forms of values that are built at once."""

FILLED: Mapping[str, Callable[[], Any]] = {
    documents.name_of(kind): kind
    for kind in (list, set, dict, OrderedDict, Counter, ArrayRecord, MetricRecord, ConfigRecord, RecordDict)
}
"""Forms of containers that are built empty and then filled, so they may contain themselves."""


_REFILLED_IN_PLACE = (defaultdict, deque)
"""Containers with their own settings: those of the fresh object are emptied and refilled."""


class PlainState:
    """Serialises the state of objects that are built like `fresh`, and restores it into `fresh`.

    Args:
        fresh: The newly built object. Its present content is remembered, so it may change afterwards.
        values: Dataclasses whose instances are stored by value, field by field.

    Attributes:
        warned: Whether a warning that something can't be stored was already logged.
    """

    def __init__(self, fresh: Any, values: Sequence[type] = ()) -> None:
        self._fresh = fresh
        self._forms = {**FORMS, **{documents.name_of(kind): documents.form_of(kind) for kind in values}}
        self._anchors = _anchors(fresh)
        self._form = _form_digest(self._anchors, values)
        self.warned = False

    def encode(self, state: Any) -> tuple[documents.Document, documents.Arrays]:
        """Return the JSON document and the arrays of an object's state.

        Args:
            state: An object of the same class as `fresh`.

        Raises:
            NotPlainError: If something in it can't be stored.
        """
        writer = _Writer(self._forms, self._anchors)
        return {"form": self._form, "state": writer.document(_state_of(state, ""))}, writer.arrays

    def restore(self, document: documents.Document, arrays: documents.Arrays) -> None:
        """Restore a state into the fresh object, which stays unchanged unless the whole state can be read.

        Raises:
            Exception: Of any type, if it is not the state of such an object.
        """
        if document.get("form") != self._form:
            raise ValueError("it was written by a version of the program that stores another state")
        reader = _Reader(self._forms, arrays, self._anchors)
        state = reader.value(document["state"])
        if state.keys() != vars(self._fresh).keys():
            raise ValueError(f"it holds {', '.join(state)} but {', '.join(vars(self._fresh))} are needed")
        for update in reader.updates:
            update()
        vars(self._fresh).update(state)


def _anchors(fresh: Any) -> dict[str, Any]:
    """Return every object in `fresh`, itself included, that may be more than a plain value, by its place."""
    anchors: dict[str, Any] = {}
    seen: dict[int, Any] = {}  # holds the things, so that no other gets their id

    def visit(value: Any, path: str) -> None:
        if type(value) in (*documents.SCALARS, bytes, np.ndarray):
            return
        anchors[path] = value
        if id(value) in seen:
            return
        seen[id(value)] = value
        for place, item in _items(value, path):
            visit(item, place)
        if not _is_fixed(value):
            with suppress(Exception):  # a user's `__getstate__` may raise anything; reported if it is to be stored
                for place, item in _items(_state_of(value, path), path):
                    visit(item, place)

    visit(fresh, "")
    return anchors


def _form_digest(anchors: Mapping[str, Any], values: Sequence[type]) -> str:
    """Return the SHA-256 of the classes and attributes at each place, and of the fields of `values`."""
    with_state = [(path, value) for path, value in anchors.items() if not _is_fixed(value)]
    attributes = [
        (path, documents.name_of(type(value)), sorted(getattr(value, "__dict__", ()))) for path, value in with_state
    ]
    fields_by_class = [(documents.name_of(kind), documents.field_names(kind)) for kind in values]
    return hashlib.sha256(json.dumps([sorted(attributes), fields_by_class]).encode()).hexdigest()


def _items(value: Any, path: str) -> list[tuple[str, Any]]:
    """Return the places and items of a container; items of a set have no place."""
    if isinstance(value, dict):
        return [(documents.place_in(path, key), item) for key, item in value.items()]
    if isinstance(value, list | tuple | deque):
        return [(documents.place_in(path, index), item) for index, item in enumerate(value)]
    return []


def _is_fixed(value: Any) -> bool:
    """Return whether a value has no state, so that the one in the fresh object can be used."""
    if isinstance(value, FunctionType):
        return value.__closure__ is None
    if isinstance(value, BuiltinFunctionType):
        return value.__self__ is None or isinstance(value.__self__, ModuleType)
    return isinstance(value, type | ModuleType | np.dtype | np.ufunc | logging.Logger)


def _state_of(value: Any, path: str) -> Any:
    """Return an object's state by Python's copy protocol, if that describes the object completely."""
    kind: Any = type(value)
    if kind.__reduce_ex__ is object.__reduce_ex__ and kind.__reduce__ is object.__reduce__:
        try:
            make, arguments, state, *items = value.__reduce_ex__(2)
        except TypeError as error:  # a file, a lock, a thread
            raise documents.not_plain_error(value, path) from error
        if make is vars(copyreg)["__newobj__"] and len(arguments) == 1 and items == [None, None]:
            return state
    raise documents.not_plain_error(value, path)


def _set_state(fresh: Any, state: Any) -> None:
    """Set an object's state as Python's copy protocol does, but remove attributes that the state lacks."""
    if hasattr(fresh, "__setstate__"):
        fresh.__setstate__(state)
        return
    attributes, slots = state if isinstance(state, tuple) else (state, None)
    if attributes is not None:
        vars(fresh).clear()
        vars(fresh).update(attributes)
    for name, value in (slots or {}).items():
        object.__setattr__(fresh, name, value)


class _Writer(documents.ValueWriter):
    """Encodes one state, with references to what was encoded before.

    Args:
        forms: The classes that are stored by value.
        anchors: The objects in the fresh object, by place.
    """

    def __init__(self, forms: Mapping[str, documents.Form], anchors: Mapping[str, Any]) -> None:
        super().__init__(forms)
        self._anchors = anchors
        self._seen: dict[int, tuple[int, Any]] = {}  # holds the things, so that no other gets their id

    def document(self, value: Any, path: str = "") -> documents.Document:
        """Return the document of the value at a place."""
        if id(value) in self._seen:
            return ["same", self._seen[id(value)][0]]
        name = documents.name_of(type(value))
        refills = type(value) in _REFILLED_IN_PLACE and type(self._anchors.get(path)) is type(value)
        if refills or name in FILLED:
            self._register(value)
            if not hasattr(value, "items"):
                content: Any = [
                    self.document(item, documents.place_in(path, index)) for index, item in enumerate(value)
                ]
            elif all(type(key) is str for key in value):
                content = {key: self.document(item, documents.place_in(path, key)) for key, item in value.items()}
            else:
                content = [
                    [self.document(k, path), self.document(v, documents.place_in(path, k))] for k, v in value.items()
                ]
            plain = type(value) is dict and isinstance(content, dict)
            return content if plain else ["refilled" if refills else "filled", name, content]
        document = super().document(value, path)
        if isinstance(document, list) and document[0] == "made":
            self._register(value)
        return document

    def _other(self, value: Any, path: str) -> documents.Document:
        anchor: Any = self._anchors.get(path)
        if isinstance(value, enum.Enum) and type(anchor) is type(value):
            return ["member", value.name]
        if anchor is not value:
            raise documents.not_plain_error(value, path)
        of_anchor = isinstance(value, MethodType) and any(value.__self__ is each for each in self._anchors.values())
        if of_anchor or _is_fixed(value):
            return ["kept"]
        self._register(value)
        return ["object", self.document(_state_of(value, path), path)]

    def _register(self, value: Any) -> None:
        """Number an object, so that later references can name it."""
        self._seen[id(value)] = (len(self._seen), value)


class _Reader(documents.ValueReader):
    """Decodes one state; objects are numbered in the same order as by the writer.

    Args:
        forms: The classes that are stored by value.
        arrays: The arrays stored with the document.
        anchors: The objects in the fresh object, by place.

    Attributes:
        updates: Pending changes to objects of the fresh object.
    """

    def __init__(
        self, forms: Mapping[str, documents.Form], arrays: documents.Arrays, anchors: Mapping[str, Any]
    ) -> None:
        super().__init__(forms, arrays)
        self._anchors = anchors
        self._seen: list[Any] = []
        self.updates: list[Callable[[], None]] = []

    def value(self, document: documents.Document, path: str = "") -> Any:  # noqa: PLR0911 - one case a line
        """Return the value of the document at a place."""
        match document:
            case dict():
                return self._fill(self._registered({}), document, path)
            case ["same", int(number)]:
                return self._seen[number]
            case ["made", *_]:
                return self._registered(super().value(document, path))
            case ["filled", name, content]:
                return self._fill(self._registered(FILLED[name]()), content, path)
            case ["refilled", _, content]:
                fresh = self._registered(self._anchors[path])
                is_mapping = hasattr(fresh, "items")
                items = self._fill({} if is_mapping else [], content, path)
                self.updates += [fresh.clear, partial(fresh.update if is_mapping else fresh.extend, items)]
                return fresh
            case ["member", name]:
                return type(self._anchors[path])[name]
            case ["kept"]:
                return self._anchors[path]
            case ["object", state]:
                anchor = self._registered(self._anchors[path])
                self.updates.append(partial(_set_state, anchor, self.value(state, path)))
                return anchor
        return super().value(document, path)

    def _fill(self, empty: Any, content: documents.Document, path: str) -> Any:
        if hasattr(empty, "items"):
            for key_document, item in content.items() if isinstance(content, dict) else content:
                key = self.value(key_document, path)
                empty[key] = self.value(item, documents.place_in(path, key))
        else:
            add = empty.add if isinstance(empty, set) else empty.append
            for index, item in enumerate(content):
                add(self.value(item, documents.place_in(path, index)))
        return empty

    def _registered(self, value: Any) -> Any:
        self._seen.append(value)
        return value


logger = logging.getLogger("fedscout")

DIGEST_BYTES = 32


@dataclass(frozen=True)
class CheckpointStore:
    """The folder of checkpoints.

    Attributes:
        folder: Holds one file per running trial; None disables checkpoints.
        every_rounds: Rounds between two checkpoints, >= 1.
    """

    folder: Path | None
    every_rounds: int = 10

    def path(self, key: str) -> Path | None:
        """Return the checkpoint file of a trial."""
        return None if self.folder is None else self.folder / f"{key}.checkpoint"

    def due(self, server_round: int) -> bool:
        """Return whether a checkpoint is due after this round."""
        return self.folder is not None and server_round % self.every_rounds == 0

    def save(self, key: str, state: Any, plain: PlainState) -> None:
        """Save a state; if it can't be stored or written, log a warning, and the trial continues without a checkpoint.

        Args:
            key: The trial's checkpoint name.
            state: The trial's state.
            plain: Serialises it.
        """
        path = self.path(key)
        if path is None:
            return
        try:
            write_atomically(path, partial(_write, *plain.encode(state)))
        except documents.NotPlainError as error:
            if not plain.warned:
                logger.warning("trial %s continues without a checkpoint: %s", key[:12], error)
            plain.warned = True
        except Exception as error:  # whatever a user's strategy object raises
            logger.warning("trial %s continues without a checkpoint: %s: %s", key[:12], type(error).__name__, error)

    def restore(self, key: str, plain: PlainState) -> bool:
        """Restore the last state into the fresh object of `plain`; return False if none is readable."""
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
        """Remove a finished trial's file, and temporary files that a killed process left."""
        path = self.path(key)
        if path is None:
            return
        try:
            unfinished = (file for file in path.parent.glob(".*.tmp") if file.name.startswith(f".{path.name}."))
            for file_path in (path, *unfinished):
                if os.path.lexists(file_path):  # where nothing can be written, removing nothing fails as well
                    remove_file(file_path)
        except OSError as error:  # it is of no use any more, and of no harm
            logger.warning("checkpoint %s can't be removed: %s", path, error.strerror)


def read_checkpoint(path: Path) -> tuple[documents.Document, documents.Arrays]:
    """Return the document and the arrays of a file.

    Raises:
        Exception: Of any type, if it can't be read or is damaged.
    """
    if not path.is_file():  # a pipe would be waited for
        raise ValueError("it is not a file")
    arrays = []
    with path.open("rb") as file:
        digest = file.read(DIGEST_BYTES)
        if hashlib.file_digest(file, "sha256").digest() != digest:
            raise ValueError("its content does not match its digest")
        end = file.tell()
        file.seek(DIGEST_BYTES)
        while file.tell() < end:
            arrays.append(read_array(file, allow_pickle=False))
    return json.loads(arrays.pop(0).tobytes()), arrays


def _write(document: documents.Document, arrays: documents.Arrays, path: Path) -> None:
    with path.open("w+b") as file:
        file.write(bytes(DIGEST_BYTES))
        for array in (np.frombuffer(json.dumps(document).encode(), np.uint8), *arrays):
            write_array(file, array, allow_pickle=False)
        file.seek(DIGEST_BYTES)
        digest = hashlib.file_digest(file, "sha256").digest()
        file.seek(0)
        file.write(digest)
