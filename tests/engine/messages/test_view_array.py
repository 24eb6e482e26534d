"""What messages hold: arrays that serialise late, several models in a record, addresses and identities."""

from __future__ import annotations

import gc
import pickle
import weakref
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.serde import array_record_from_proto, array_record_to_proto
from flwr.supercore.task_identity import TaskIdentity

from fedscout.engine.client.host import ClientHost
from fedscout.engine.messages.contents import (
    ViewArray,
    addressed,
    claim_task_identity,
    give_id,
    models_of,
    read_array,
    several_models,
    view_record,
)
from tests.engine.federations import SIZES

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


def test_what_is_read_in_place_can_t_be_written() -> None:
    base = VALUES.copy()
    read = read_array(ViewArray(base))
    assert np.shares_memory(read, base)
    with pytest.raises(ValueError, match="read-only"):
        read[0] = 1
    base[0] = 1  # the owner's own array stays writable


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


# -- Several global models in one record: which clients use which, and what is refused ---------------------------------


NUM_CLIENTS = len(SIZES)


def test_each_model_comes_with_its_clients(host: ClientHost) -> None:
    layout = host.facts().layout
    vectors = np.arange(3 * layout.size, dtype=np.float32).reshape(3, -1)
    found = models_of(several_models(vectors, np.array([2, 0, 2, 2, 0, 2, 2])), layout, NUM_CLIENTS)
    assert [list(clients) for _, clients in found] == [[1, 4], [], [0, 2, 3, 5, 6]]
    np.testing.assert_array_equal([vector for vector, _ in found], vectors)


def test_clients_in_no_group_use_the_model_of_most(host: ClientHost) -> None:
    layout = host.facts().layout
    record = several_models(np.zeros((3, layout.size), np.float32), np.array([2, -1, 1, 1, 0]))
    assert [list(clients) for _, clients in models_of(record, layout, NUM_CLIENTS)] == [[4], [1, 2, 3, 5, 6], [0]]


@pytest.mark.parametrize(
    ("models", "group", "told"),
    [
        ((53,), [0] * 7, r"^flat .*\b53\).*\(53,\)$"),
        ((2, 52), [0] * 7, r"^flat .*\b53\).*\(2, 52\)$"),
        ((2, 53), [0] * 8, r"^group .*\b7\b.*int64 \(8,\)$"),
        ((2, 53), [0.0] * 7, r"^group .*\b7\b.*float64 \(7,\)$"),
        ((2, 53), [0, 1, 2], r"^group .*\b2 models.*\[0, 1, 2\]$"),
        ((2, 53), [0, -2, 0], r"^group .*\b2 models.*\[0, -2, 0\]$"),
        ((2, 53), [-1, -1], r"^group .*\b2 models.*\[-1, -1\]$"),
    ],
)
def test_other_records_are_refused(host: ClientHost, models: tuple[int, ...], group: list[Any], told: str) -> None:
    record = ArrayRecord({"flat": Array(np.zeros(models, np.float32)), "group": Array(np.array(group))})
    with pytest.raises(ValueError, match=told):
        models_of(record, host.facts().layout, NUM_CLIENTS)


# -- Copies of a message are the messages that Flower would make -------------------------------------------------------


def test_a_reply_to_a_copy_comes_from_its_addressee() -> None:
    content = RecordDict({"config": ConfigRecord({"a": 1})})
    _, second = addressed(Message(content, 2, "query", group_id="1"), [2, 5])
    reply = Message(RecordDict({}), reply_to=second)
    assert reply.metadata.src_node_id == 5
    assert reply.metadata.group_id == "1"


# -- What Flower's own runtime would tell of messages ------------------------------------------------------------------


def test_a_reply_names_the_message_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where Flower keeps the id is private: this fails when it moves."""
    monkeypatch.setattr(TaskIdentity, "_run_id", None)
    claim_task_identity(run_id=3)
    message = Message(RecordDict(), 5, "query")
    assert (message.metadata.run_id, message.metadata.src_node_id) == (3, 1)
    give_id(message, "7")
    assert message.metadata.message_id == "7"
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "7"
    claim_task_identity()
    assert TaskIdentity.run_id == 3, "a run that Flower's own runtime has begun is not taken over"


def test_a_field_that_is_set_counts() -> None:
    array = ViewArray(VALUES)
    before = ViewArray(VALUES).object_id
    array.data = Array(2 * VALUES).data
    np.testing.assert_array_equal(array.numpy(), 2 * VALUES)
    assert array.object_id != before
