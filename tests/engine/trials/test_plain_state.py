"""A state read into an object built afresh is the state that was written; nothing that it names is called."""

from __future__ import annotations

import enum
import json
import os
import random
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from hypothesis import given, settings, strategies as st

from fedscout.engine.messages.contents import ViewArray, view_record
from fedscout.engine.messages.values import NotPlainError
from fedscout.engine.trials.checkpoint import PlainState
from tests.engine.nodes.test_wire_and_policy import same


@dataclass
class Holder:
    """Has one attribute that is tried."""

    held: Any = None


@dataclass(frozen=True)
class Score:
    """Stored by value."""

    name: str
    values: Any


def read_into(fresh: Holder, plain: PlainState, holder: Holder, values: tuple[type, ...] = ()) -> Any:
    """Return what another holder has that was read from what this one wrote."""
    document, arrays = plain.encode(holder)
    PlainState(fresh, values).restore(json.loads(json.dumps(document)), [array.copy() for array in arrays])
    return fresh.held


def again(value: Any, make: Callable[[], Any] = lambda: None) -> Any:
    """Return a value that was written and read; what its holder was built with is `make`'s."""
    holder = Holder(make())
    plain = PlainState(holder, (Score,))
    holder.held = value
    return read_into(Holder(make()), plain, holder, (Score,))


keys = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.tuples(st.integers(), st.text()))
plain_values = st.recursive(
    st.one_of(keys, st.floats(), st.integers(-(2**200), 2**200), st.frozensets(st.integers()), st.sets(st.text())),
    lambda inner: st.one_of(
        st.lists(inner), st.lists(inner).map(tuple), st.dictionaries(keys, inner), st.dictionaries(st.text(), inner)
    ),
    max_leaves=20,
)


@settings(max_examples=50)
@given(plain_values)
def test_plain_values_come_back_as_they_were(value: Any) -> None:
    assert same(again(value), value)


@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(10)[::-2],
        np.array(np.nan),
        np.empty((0, 3), np.int16),
        np.array(["a", "bcd"]),
        np.float32(0.1),
        np.float64("nan"),
        np.bool_(True),
        np.datetime64("2026-01-02", "s"),
        Path("some/where"),
        OrderedDict(b=1, a=2),
        Counter("abba"),
        Score("x", (1, np.float64(2))),
        ConfigRecord({"lr": 0.5, "names": ["a", "b"], "raw": b"\0"}),
        MetricRecord({"loss": float("inf"), "counts": [1, 2]}),
    ],
    ids=str,
)
def test_a_value_comes_back(value: Any) -> None:
    assert same(again(value), value)


def test_flowers_arrays_come_back_in_their_form() -> None:
    vector = np.arange(5, dtype=np.float32)
    plain, viewed = ArrayRecord({"a": Array(vector)}), view_record({"a": vector})

    assert again(plain) == plain
    assert type(again(plain)["a"]) is Array
    assert type(again(viewed)["a"]) is ViewArray
    assert np.array_equal(again(viewed)["a"].numpy(), vector)


def test_memory_with_two_names_is_stored_once_and_shared_again() -> None:
    vector = np.arange(1000.0)
    names = [vector, view_record({"flat": vector}), vector[:]]
    _, arrays = PlainState(Holder()).encode(Holder(names))
    assert len(arrays) == 1

    first, record, third = again(names)
    first[0] = -1
    assert third[0] == record["flat"].numpy()[0] == -1


def test_two_names_of_one_thing_stay_so() -> None:
    inner: list[Any] = [1]
    inner.append(inner)
    left, right = again({"left": inner, "right": (inner, {2: inner})}).values()

    assert left is right[0] is right[1][2] is left[1]


@pytest.mark.parametrize(
    ("make", "draw"),
    [
        (partial(random.Random, 3), lambda generator: generator.gauss(0, 1)),
        (partial(np.random.default_rng, 3), lambda generator: generator.normal()),
        (lambda: np.random.Generator(np.random.MT19937(3)), lambda generator: generator.normal()),
        (partial(np.random.RandomState, 3), lambda generator: generator.normal()),
        (partial(np.random.default_rng, 3), lambda generator: generator.spawn(1)[0].normal()),
    ],
)
def test_generators_go_on_where_they_were(make: Callable[[], Any], draw: Callable[[Any], float]) -> None:
    generator = make()
    draw(generator)
    copied = again(generator, make)
    assert [draw(copied) for _ in range(5)] == [draw(generator) for _ in range(5)]


class Inner:
    """Something of a user's own that a strategy holds."""

    def __init__(self) -> None:
        self.steps = 0
        self.log: list[float] = []


class Outer:
    """Wraps another, as Flower's strategies for privacy do, and holds functions."""

    def __init__(self) -> None:
        self.inner = Inner()
        self.twice = self.inner
        self.parts = [Inner(), {"deep": Inner()}]
        self.weigh = lambda rows: rows * 2
        self.act = self.count
        self.recent: deque[int] = deque(maxlen=2)
        self.by_name: dict[str, list[int]] = defaultdict(list)
        self.inner.first = True

    def count(self) -> int:
        self.inner.steps += 1
        return self.inner.steps

    def live(self) -> None:
        for number in range(3):
            self.count()
            self.recent.append(number)
            self.by_name["a"].append(number)
        self.parts[1]["deep"].log.append(0.5)
        self.new = "attribute"
        del self.inner.first


def test_objects_of_the_fresh_one_get_their_state() -> None:
    outer = Outer()
    plain = PlainState(Holder(outer))
    outer.live()
    held = read_into(Holder(Outer()), plain, Holder(outer))

    assert type(held) is Outer
    assert (held.inner.steps, held.new, held.recent, held.recent.maxlen) == (3, "attribute", deque([1, 2]), 2)
    assert held.parts[1]["deep"].log == [0.5]
    assert held.by_name["unknown"] == []
    assert held.by_name["a"] == [0, 1, 2]
    assert held.twice is held.inner
    assert not hasattr(held.inner, "first")
    assert held.act() == 4
    assert held.inner.steps == 4
    assert held.weigh(2) == 4


class WithoutFile:
    """Says itself what its state is."""

    def __init__(self) -> None:
        self.file = os.devnull
        self.number = 0

    def __getstate__(self) -> dict[str, int]:
        return {"number": self.number}

    def __setstate__(self, state: dict[str, int]) -> None:
        self.number = state["number"] + 100


class Slotted:
    """Has no `__dict__`."""

    __slots__ = ("number",)

    def __init__(self) -> None:
        self.number = 0


class Mood(enum.Enum):
    CALM = 0
    WILD = 1


def test_an_objects_own_idea_of_its_state_is_used() -> None:
    for kind, number in ((WithoutFile, 107), (Slotted, 7)):
        holder = Holder(kind())
        holder.held.number = 7
        assert read_into(Holder(kind()), PlainState(holder), holder).number == number
    assert again(Mood.WILD, lambda: Mood.CALM) is Mood.WILD


def test_a_server_side_model_and_its_optimiser_go_on() -> None:
    """Another step gives the same parameters as without interruption."""

    def build() -> dict[str, Any]:
        torch.manual_seed(0)
        module = torch.nn.Linear(3, 2)
        return {"module": module, "optimiser": torch.optim.Adam(module.parameters(), 0.1)}

    def step(parts: dict[str, Any]) -> torch.Tensor:
        parts["optimiser"].zero_grad()
        parts["module"](torch.ones(4, 3)).square().sum().backward()
        parts["optimiser"].step()
        return parts["module"].weight

    original = Holder(build())
    plain = PlainState(original)
    step(original.held)
    resumed = read_into(Holder(build()), plain, original)

    assert isinstance(resumed["module"].weight, torch.nn.Parameter)
    assert torch.equal(step(resumed), step(original.held))


def counting() -> Callable[[], int]:
    numbers = [1]
    return lambda: numbers[0]


@pytest.mark.parametrize(
    ("value", "make"),
    [
        (Inner(), lambda: None),
        (lambda: 1, lambda: None),
        (counting(), counting),
        (np.array([object()]), lambda: None),
        (os.system, lambda: os.getpid),
        (iter([1, 2]), lambda: iter([1, 2])),
        (Mood.WILD, lambda: None),
    ],
)
def test_what_a_fresh_object_does_not_hold_is_named(value: Any, make: Callable[[], Any]) -> None:
    holder = Holder({"deep": [1, make()]})
    plain = PlainState(holder)
    holder.held["deep"][1] = value
    with pytest.raises(NotPlainError, match=r"^held\.deep\[1\]"):
        plain.encode(holder)


@pytest.mark.parametrize(
    "node",
    [
        ["made", "os.system", "touch planted"],
        ["made", "subprocess.Popen", ["filled", "builtins.list", ["touch", "planted"]]],
        ["filled", "tests.engine.trials.test_plain_state.Outer", []],
        ["object", {"steps": 1}],
        ["kept"],
        ["member", "WILD"],
        ["scalar", "O", "00"],
        ["array", 3],
        ["call", "os.system"],
        ["same", 99],
        [],
    ],
    ids=str,
)
def test_a_document_names_nothing_but_what_the_table_has(node: Any) -> None:
    """Nor is anything changed by one of which a part can't be read."""
    fresh = Holder({"inner": Inner()})
    plain = PlainState(fresh)
    document, _ = plain.encode(fresh)
    document["state"] = {"held": {"inner": ["object", {"steps": 5, "log": []}], "more": node}}
    with pytest.raises(Exception):  # noqa: B017, PT011 - of whatever kind
        plain.restore(document, [])
    assert fresh.held["inner"].steps == 0


@dataclass
class Later(Holder):
    """What a later version makes of a holder."""

    more: int = 1


@dataclass(frozen=True)
class LaterScore(Score):
    """Likewise of a score."""

    more: int = 1


@pytest.mark.parametrize(
    ("state", "fresh", "value"),
    [(Holder(1), Later(), Score), (Holder([Holder(1)]), Holder([Later()]), Score), (Holder(1), Holder(), LaterScore)],
    ids=["itself", "what it holds", "what is stored by value"],
)
def test_the_state_of_another_version_is_refused(state: Any, fresh: Any, value: type) -> None:
    """Where a class has other attributes, wherever its object lies."""
    document, arrays = PlainState(state, (Score,)).encode(state)
    with pytest.raises(ValueError, match="version"):
        PlainState(fresh, (value,)).restore(document, arrays)
