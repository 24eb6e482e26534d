"""What may travel arrives as it was; what is forged is a ValueError, imports nothing, and costs little."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import SType
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.contracts.client_table import SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.messages.calls import (
    Assignment,
    EvaluateResults,
    HostCall,
    QueryResults,
    ReportRequest,
    RoundSelection,
    Session,
    TrainResults,
)
from fedscout.engine.messages.values import NotPlainError
from fedscout.engine.metrics import OF_CLASSES, OF_QUANTITIES, RowMeans
from fedscout.engine.nodes.wire import (
    DOCUMENT_KEY,
    VALUES_KEY,
    Greeting,
    Introduction,
    NodeCall,
    NodeCalls,
    Wire,
    algorithms_of,
)
from fedscout.strategies import parse_strategy
from fedscout.strategies.table import STRATEGIES

WIRE = Wire(algorithms_of("fedscout.strategies"))
PAIRS = ["krum+fedbn", "fedadam+fedprox", "rfa+fedsam"]
VECTOR = np.array([0.1, -0.0, np.inf, np.nan, 1e-45], np.float32)
TABLE = SettingsLookup(SettingsTable((SettingsCell(0.5, 100, 0.1, 16, 3), SettingsCell(1.0, 20, 1e-5, 4, 1)), 0.5))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type and bits, NaN being NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic) and one.dtype != object:
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple | np.ndarray):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping):
        return len(one) == len(other) and all(map(same, one.items(), other.items()))
    if is_dataclass(one):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    if isinstance(one, float):
        return repr(one) == repr(other)  # 0.0 is not -0.0
    return bool(one == other)


def call(session: Session | None = None, **changes: Any) -> NodeCall:
    """Return a call of one client."""
    given: dict[str, Any] = {"config": {"seed": 3, "learning-rate": 0.1, "reply": "merged", "flag": True}, **changes}
    return NodeCall("train", HostCall((3,), session or Session(), vector=VECTOR, **given), "a" * 64, '{"x": 1}')


VALUES: dict[str, Any] = {
    "greeting": Greeting(asks_rows=False, terms="{}"),
    "introduction": Introduction("Köln\n", None, 10, True, "ab", "1.0"),
    "auxiliary vectors, states, scoring": call(
        auxiliary={"control": VECTOR, "other": VECTOR[::2]},
        states={3: {"kept-after-round": np.array([4.0], np.float32)}, 4: {}},
        evaluated=(3,),
        call_id="x",
    ),
    "counts of batches": call(arrays={"1.num_batches_tracked": np.array(7), "order": np.array([[2, 0, 1]])}),
    "a query": NodeCall("query", HostCall((0,), Session(), {"function": "counts"}, arrays={"bins": np.eye(3)})),
    "watched": call(
        watched=RoundSelection(ReportRequest(True, True, True, True), (3,), {3: Assignment(epochs=2, withheld=0.25)})
    ),
    "a table of settings": call(Session(client_table=TABLE)),
    "an empty training": TrainResults(),
    "a training": TrainResults(
        *([3], [17], [9], [float("nan")], [float("inf")]),
        vectors=[VECTOR],
        auxiliary={"control-change": [VECTOR]},
        sums={"path": [2.5]},
        states={3: {}},
        failures={3: "why"},
        evaluation=EvaluateResults({3: ClientScore(4, 0.5, float("nan"), (), 0.25)}, failures={3: "none"}),
        received_losses={"train": {3: RowMeans(4, 1.0, 2.0, float("nan"), 0.5)}},
        update_norms={3: 1.5},
    ),
    "fractions": EvaluateResults(sums={"own": np.array([Fraction(3), Fraction(1e30), Fraction(-1, 3)], object)}),
    "counts": EvaluateResults(sums={"own": np.arange(6, dtype=np.int32).reshape(3, 2)}, seconds=0.5),
    "answers": QueryResults(
        *([3], [17]), arrays=[{"sum": np.arange(4.0), "one": np.float64(2.5), "in columns": np.ones((2, 3)).T}]
    ),
}
VALUES |= {f"metric {name}": call(Session(metric=make())) for name, make in {**OF_CLASSES, **OF_QUANTITIES}.items()}
SPECS = {kind: {"kind": kind} for kind in STRATEGIES if kind != "custom"} | {pair: {"kind": pair} for pair in PAIRS}
SPECS["dp_fedavg"] = {"kind": "dp_fedavg", "noise_multiplier": 1.0}


@pytest.mark.parametrize("name", VALUES)
def test_a_value_arrives_as_it_was(name: str) -> None:
    assert same(WIRE.opened(WIRE.packed(VALUES[name])), VALUES[name])


@pytest.mark.parametrize("kind", SPECS)
def test_what_a_strategy_has_its_clients_do_arrives_as_it_was(kind: str) -> None:
    spec = parse_strategy(SPECS[kind])
    asked = call(Session(algorithm=spec.client_algorithm(), needs=spec.needs()))
    assert same(WIRE.opened(WIRE.packed(asked)), asked)


@dataclass(frozen=True)
class Own(ClientAlgorithm):
    """An algorithm of a user's own, which is code."""


@pytest.mark.parametrize(
    "session",
    [
        Session(algorithm=Own()),
        Session(client_table=SettingsLookup(TABLE.table, "os:abort")),
        Session(client_table=SettingsLookup(TABLE.table, folder="/tmp")),
    ],
)
def test_what_is_code_is_not_sent(session: Session) -> None:
    for sent in (call(session), NodeCalls((call(session),))):
        with pytest.raises(NotPlainError):
            WIRE.packed(sent)


def content(document: Any, arrays: Mapping[str, Array] | None = None) -> RecordDict:
    """Return a message that somebody wrote by hand."""
    text = document if isinstance(document, str) else json.dumps(document)
    return RecordDict({DOCUMENT_KEY: ConfigRecord({DOCUMENT_KEY: text}), VALUES_KEY: ArrayRecord(dict(arrays or {}))})


def document_of(value: Any) -> Any:
    """Return the document of a value."""
    return json.loads(str(WIRE.packed(value).config_records[DOCUMENT_KEY][DOCUMENT_KEY]))


NAME = "fedscout.engine.contracts.algorithm.ClientScore"
TEXTS = st.one_of(
    st.sampled_from(
        ["made", "builtins.list", "builtins.dict", "builtins.tuple", "numpy.ndarray", "array", "scalar", NAME, "<f8"]
    ),
    st.text(max_size=5),
)
DOCUMENTS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(TEXTS, inner, max_size=4),
        st.tuples(TEXTS, inner, inner).map(list),
        st.tuples(st.just("made"), st.just(NAME), st.dictionaries(TEXTS, inner, max_size=3)).map(list),
    ),
    max_leaves=12,
)


@settings(max_examples=80, deadline=None)
@given(DOCUMENTS)
def test_a_forged_document_is_a_value_or_a_value_error(document: Any) -> None:
    reason = ""
    try:
        WIRE.opened(content(document))
    except ValueError as error:
        reason = str(error)
    assert "\n" not in reason
    assert len(reason) < 1000


def places(document: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return all places in a document."""
    found = [path]
    items = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, item in items:
        found += places(item, (*path, key))
    return found


ASKED = document_of(VALUES["watched"])


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(places(ASKED)[1:]), DOCUMENTS)
def test_a_call_that_was_tampered_with_has_the_right_types_or_is_refused(place: tuple[Any, ...], instead: Any) -> None:
    document = json.loads(json.dumps(ASKED))
    within = document
    for key in place[:-1]:
        within = within[key]
    within[place[-1]] = instead
    try:
        opened = WIRE.opened(content(document, {"0": Array(VECTOR)}))
    except ValueError:
        return
    if isinstance(opened, NodeCall):
        assert isinstance(opened.trial, str)
        assert all(type(client) is int for client in (*opened.call.clients, *opened.call.evaluated))
        assert isinstance(opened.call.session, Session)
        assert isinstance(opened.call.config, dict)


def npy(shape: str, of: str = "<f4", values: bytes = bytes(8)) -> Array:
    """Return an array whose bytes say what they like of themselves."""
    text = f"{{'descr': '{of}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return Array("float32", (2,), SType.NUMPY, b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values)


def zipped() -> Array:
    """Return an archive in an array's place."""
    file = io.BytesIO()
    np.savez(file, x=np.zeros(3))
    return Array("float32", (2,), SType.NUMPY, file.getvalue())


MADE_TABLE = document_of(NodeCalls((call(Session(client_table=TABLE)),)))
BOMBS: dict[str, tuple[Any, dict[str, Array]]] = {
    "nested deeply": ("[" * 10**6, {}),
    "nested beyond what is read": ('["made", "builtins.list",' * 900 + "1" + "]" * 900, {}),
    "of a million elements": (["made", "builtins.dict", *range(10**6)], {}),
    "longer than any": ("9" * (2**24 + 1), {}),
    "a whole number without end": ("9" * 10**6, {}),
    "a power of ten": (["made", "fractions.Fraction", "1e999999999"], {}),
    "fractions by the million million": (["made", "numpy.ndarray", ["made", "builtins.tuple", 10**6, 10**6]], {}),
    "a shape that is not there": (["array", 0], {"0": npy("(10**9,)", values=b"")}),
    "a larger shape": (["array", 0], {"0": npy("(1000000000000,)")}),
    "a shape below nothing": (["array", 0], {"0": npy("(-1, -2)")}),
    "objects": (["array", 0], {"0": npy("(1,)", "|O")}),
    "an archive": (["array", 0], {"0": zipped()}),
    "an array that is not there": (["array", 1], {"0": Array(VECTOR)}),
    "another type of an array": (["array", 0], {"0": Array("float32", (1,), "torch.Tensor", bytes(4))}),
    "arrays under other names": (["array", 0], {"x": Array(VECTOR)}),
}


@pytest.mark.parametrize("name", BOMBS)
def test_what_would_cost_much_is_refused_at_once(name: str) -> None:
    document, arrays = BOMBS[name]
    message = content(document, arrays)
    started = time.process_time()
    with pytest.raises(ValueError, match=r".") as refusal:
        WIRE.opened(message)
    assert time.process_time() - started < 3
    assert len(str(refusal.value)) < 1000


def forged(document: Any, old: str, new: str) -> RecordDict:
    """Return a message in whose document something was replaced."""
    text = json.dumps(document)
    assert old in text
    return content(text.replace(old, new), {"0": Array(VECTOR)})


def test_a_message_can_have_no_module_imported() -> None:
    path = [*sys.path]
    for old, new in (
        ('"metric": "heterogeneity"', '"metric": "antigravity:fly"'),
        ('"folder": ""', '"folder": "/tmp"'),
    ):
        with pytest.raises(ValueError, match="metric"):
            WIRE.opened(forged(MADE_TABLE, old, new))
    assert "antigravity" not in sys.modules
    assert sys.path == path


def test_no_class_can_be_named_but_those_of_the_table() -> None:
    for name in ("subprocess.Popen", "fedscout.engine.data.devices.Device", "builtins.eval", "builtins.set"):
        with pytest.raises(ValueError, match=name):
            WIRE.opened(content(["made", name, {}]))
