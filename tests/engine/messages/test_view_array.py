"""An array that serialises late is, to everybody who looks, the array that serialised at once."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, RecordDict
from flwr.common.serde import array_record_from_proto, array_record_to_proto

from fedscout.engine.messages.contents import ViewArray, read_array, view_record

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
KINDS: dict[str, npt.NDArray[Any]] = {
    "matrix": VALUES,
    "Fortran order": np.asfortranarray(VALUES),
    "every other column": VALUES[:, ::2],
    "scalar": np.array(2.5),
    "empty": np.empty((0, 4), np.float32),
    "integers": np.array([1, -2, 3]),
    "big endian": VALUES.astype(">f4"),
    "NaN": np.array([np.nan, np.inf, -0.0], np.float16),
    "truth": np.array([True, False]),
}
each_kind = pytest.mark.parametrize("values", KINDS.values(), ids=KINDS)


@each_kind
def test_numpy_gives_what_the_bytes_give(values: npt.NDArray[Any]) -> None:
    ours, flowers = ViewArray(values).numpy(), Array(values).numpy()
    np.testing.assert_array_equal(ours, flowers)
    assert (ours.dtype, ours.shape) == (flowers.dtype, flowers.shape)
    assert (ours.flags.c_contiguous, ours.flags.f_contiguous) == (
        flowers.flags.c_contiguous,
        flowers.flags.f_contiguous,
    )
    assert ours.flags.writeable
    assert ours.flags.owndata


@each_kind
def test_the_fields_are_those_of_the_array_that_serialised_at_once(values: npt.NDArray[Any]) -> None:
    ours, flowers = ViewArray(values), Array(values)
    for name in ("dtype", "shape", "stype", "data"):
        assert getattr(ours, name) == getattr(flowers, name)
    assert type(ours) is Array
    np.testing.assert_array_equal(ours.numpy(), flowers.numpy())


@each_kind
def test_equality_is_that_of_the_bytes(values: npt.NDArray[Any]) -> None:
    assert ViewArray(values) == Array(values)
    assert Array(values) == ViewArray(values)
    assert ViewArray(values) == ViewArray(values)
    other = np.append(values, values.dtype.type(1))
    assert ViewArray(values) != ViewArray(other)
    assert Array(values) != ViewArray(other)
    assert ViewArray(values) != "an array"


def test_writing_into_what_numpy_gave_changes_nothing_else() -> None:
    base = VALUES.copy()
    array = ViewArray(base)
    array.numpy()[:] = -1
    np.testing.assert_array_equal(array.numpy(), VALUES)
    np.testing.assert_array_equal(base, VALUES)


def test_what_is_read_in_place_can_t_be_written() -> None:
    base = VALUES.copy()
    read = read_array(ViewArray(base))
    assert np.shares_memory(read, base)
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1
    base[0] = 1  # the owner's own array stays writable


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda array: pickle.loads(pickle.dumps(array))])
def test_copies_are_plain_arrays_of_their_own(copied: Callable[[Array], Array]) -> None:
    base = VALUES.copy()
    array = ViewArray(base)
    other = copied(array)
    assert type(other) is Array
    assert other == Array(VALUES)
    base[:] = 0
    np.testing.assert_array_equal(other.numpy(), VALUES)


def test_a_record_travels_as_flowers_does() -> None:
    arrays = {"w": VALUES, "b": np.zeros(3)}
    ours, flowers = view_record(arrays), ArrayRecord({name: Array(array) for name, array in arrays.items()})
    assert RecordDict({"arrays": ours}).object_id == RecordDict({"arrays": flowers}).object_id
    assert array_record_to_proto(view_record(arrays)) == array_record_to_proto(flowers)
    assert array_record_from_proto(array_record_to_proto(view_record(arrays))) == flowers
    assert view_record(arrays).count_bytes() == flowers.count_bytes()
    for mine, theirs in zip(view_record(arrays).to_numpy_ndarrays(), flowers.to_numpy_ndarrays(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ArrayRecord(dict(view_record(arrays))) == flowers
    assert pickle.loads(pickle.dumps(view_record(arrays))) == flowers


def test_a_field_that_is_set_counts() -> None:
    array = ViewArray(VALUES)
    before = ViewArray(VALUES).object_id
    array.data = Array(2 * VALUES).data
    np.testing.assert_array_equal(array.numpy(), 2 * VALUES)
    assert array.object_id != before


def test_objects_are_refused_and_unknown_names_are_missing() -> None:
    with pytest.raises(ValueError, match="objects"):
        ViewArray(np.array([object()]))
    with pytest.raises(AttributeError, match="values"):
        ViewArray(VALUES).values  # noqa: B018


@pytest.mark.slow
def test_serialising_lets_the_values_go() -> None:
    base = VALUES.copy()
    array, watched = ViewArray(base), weakref.ref(base)
    del base
    assert watched() is not None
    assert array.data
    gc.collect()
    assert watched() is None
