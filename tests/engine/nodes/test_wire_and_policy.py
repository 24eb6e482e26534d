"""What may travel arrives as it was, what is forged is refused; what an owner does not allow is not answered."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SType
from hypothesis import given, settings, strategies as st
from torch import nn

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.contracts.client_table import SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages import calls
from fedscout.engine.messages.values import NotPlainError
from fedscout.engine.metrics import OF_CLASSES
from fedscout.engine.nodes import wire
from fedscout.engine.nodes.client import TRIALS_KEPT, KeptStates, LostStateError, mark
from fedscout.engine.nodes.policy import LEDGER, OwnerPolicy, read_policy
from fedscout.strategies import parse_strategy
from fedscout.strategies.table import STRATEGIES
from tests.engine.federations import dense, uneven_federation
from tests.engine.nodes.node_link import (
    FIRST_NODE,
    SIZES,
    WIRE,
    NodeLink,
    linked,
    node_of,
    over_nodes,
    owner_of,
    told_in,
)
from tests.engine.nodes.test_node_grid import SESSION, settings_of

VECTOR = np.array([0.1, -0.0, np.inf, np.nan, 1e-45], np.float32)
TABLE = SettingsLookup(SettingsTable((SettingsCell(0.5, 100, 0.1, 16, 3), SettingsCell(1.0, 20, 1e-5, 4, 1)), 0.5))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal in type and bits, NaN being NaN."""
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray | np.generic):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, Mapping):
        return len(one) == len(other) and all(map(same, one.items(), other.items()))
    if is_dataclass(one):
        return all(same(getattr(one, each.name), getattr(other, each.name)) for each in fields(one))
    if isinstance(one, float):
        return repr(one) == repr(other)  # 0.0 is not -0.0
    return bool(one == other)


def call(session: calls.Session | None = None, **changes: Any) -> wire.NodeCall:
    """Return a call of one client."""
    given: dict[str, Any] = {"config": {"seed": 3, "learning-rate": 0.1, "reply": "merged", "flag": True}, **changes}
    called = calls.HostCall((3,), session or calls.Session(), vector=VECTOR, **given)
    return wire.NodeCall("train", called, "a" * 64, '{"x": 1}')


VALUES: dict[str, Any] = {
    "greeting": wire.Greeting(asks_rows=False, terms="{}"),
    "introduction": wire.Introduction("Köln\n", None, 10, True, "ab", "1.0"),
    "auxiliary vectors, states, scoring": call(
        auxiliary={"control": VECTOR, "other": VECTOR[::2]},
        states={3: {"kept-after-round": np.array([4.0], np.float32)}, 4: {}},
        evaluated=(3,),
        call_id="x",
    ),
    "counts of batches": call(arrays={"1.num_batches_tracked": np.array(7), "order": np.array([[2, 0, 1]])}),
    "a query": wire.NodeCall(
        "query", calls.HostCall((0,), calls.Session(), {"function": "counts"}, arrays={"bins": np.eye(3)})
    ),
    "watched": call(
        watched=calls.RoundSelection(
            calls.ReportRequest(True, True, True, True), (3,), {3: calls.Assignment(epochs=2, withheld=0.25)}
        )
    ),
    "a table of settings": call(calls.Session(client_table=TABLE)),
    "a training": calls.TrainResults(
        *([3], [17], [9], [float("nan")], [float("inf")]),
        vectors=[VECTOR],
        auxiliary={"control-change": [VECTOR]},
        sums={"path": [2.5]},
        states={3: {}},
        failures={3: "why"},
        evaluation=calls.EvaluateResults({3: ClientScore(4, 0.5, float("nan"), (), 0.25)}, failures={3: "none"}),
        received_losses={"train": {3: ClientScore(4, 1, 2.0, statistics=np.array([1.0, 2.0, np.nan, 0.5]))}},
        update_norms={3: 1.5},
    ),
    "counts": calls.EvaluateResults(sums={"own": np.arange(6, dtype=np.int32).reshape(3, 2)}, seconds=0.5),
    "answers": calls.QueryResults(
        *([3], [17]), arrays=[{"sum": np.arange(4.0), "one": np.float64(2.5), "in columns": np.ones((2, 3)).T}]
    ),
}
VALUES |= {f"metric {name}": call(calls.Session(metric=make())) for name, make in OF_CLASSES.items()}
for kind in (*STRATEGIES, "krum+fedbn", "fedadam+fedprox", "rfa+fedsam"):
    if kind != "custom":
        spec = parse_strategy({"kind": kind, **({"noise_multiplier": 1.0} if kind == "dp_fedavg" else {})})
        VALUES[kind] = call(calls.Session(algorithm=spec.client_algorithm(), needs=spec.needs()))


@pytest.mark.parametrize("name", VALUES)
def test_a_value_arrives_as_it_was(name: str) -> None:
    assert same(WIRE.opened(WIRE.packed(VALUES[name])), VALUES[name])


@dataclass(frozen=True)
class Own(ClientAlgorithm):
    """An algorithm of a user's own, which is code."""


@pytest.mark.parametrize(
    "session",
    [
        calls.Session(algorithm=Own()),
        calls.Session(client_table=SettingsLookup(TABLE.table, "os:abort")),
        calls.Session(client_table=SettingsLookup(TABLE.table, folder="/tmp")),
    ],
)
def test_what_is_code_is_not_sent(session: calls.Session) -> None:
    for sent in (call(session), wire.NodeCalls((call(session),))):
        with pytest.raises(NotPlainError):
            WIRE.packed(sent)


def content(document: Any, arrays: Mapping[str, Array] | None = None) -> RecordDict:
    """Return a message that somebody wrote by hand."""
    text = document if isinstance(document, str) else json.dumps(document)
    return RecordDict(
        {wire.DOCUMENT_KEY: ConfigRecord({wire.DOCUMENT_KEY: text}), wire.VALUES_KEY: ArrayRecord(dict(arrays or {}))}
    )


def document_of(value: Any) -> Any:
    """Return the document of a value."""
    return json.loads(str(WIRE.packed(value).config_records[wire.DOCUMENT_KEY][wire.DOCUMENT_KEY]))


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
    keys: Any = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    return [path, *(place for key in keys for place in places(document[key], (*path, key)))]


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
    if isinstance(opened, wire.NodeCall):
        assert isinstance(opened.trial, str)
        assert all(type(client) is int for client in (*opened.call.clients, *opened.call.evaluated))
        assert isinstance(opened.call.session, calls.Session)
        assert isinstance(opened.call.config, dict)


def npy(shape: str, of: str = "<f4", values: bytes = bytes(8)) -> Array:
    """Return an array whose bytes say what they like of themselves."""
    text = f"{{'descr': '{of}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return Array("float32", (2,), SType.NUMPY, b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + values)


BOMBS: dict[str, tuple[Any, dict[str, Array]]] = {
    "nested deeply": ("[" * 10**6, {}),
    "nested beyond what is read": ('["made", "builtins.list",' * 900 + "1" + "]" * 900, {}),
    "of a million elements": (["made", "builtins.dict", *range(10**6)], {}),
    "longer than any": (" " * 2**24 + "1", {}),
    "a whole number without end": ("9" * 10**6, {}),
    "a power of ten": (["made", "fractions.Fraction", "1e999999999"], {}),
    "fractions by the million million": (["made", "numpy.ndarray", ["made", "builtins.tuple", 10**6, 10**6]], {}),
    "a shape that is not there": (["array", 0], {"0": npy("(10**9,)", values=b"")}),
    "a larger shape": (["array", 0], {"0": npy("(1000000000000,)")}),
    "a shape below nothing": (["array", 0], {"0": npy("(-1, -2)")}),
    "objects": (["array", 0], {"0": npy("(1,)", "|O")}),
    "an archive": (["array", 0], {"0": Array("float32", (2,), SType.NUMPY, b"PK\x03\x04 and more")}),
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


FORGED = {
    "an import path as a metric": ('"metric": "heterogeneity"', '"metric": "antigravity:fly"', "metric"),
    "a number beyond floats": ('"validation_share": 0.0', f'"validation_share": 1{"0" * 400}', "validation_share of"),
    "a folder of modules": ('"folder": ""', '"folder": "/tmp"', "metric"),
    **{
        f"the class {name}": ('"fedscout.engine.nodes.wire.NodeCalls"', f'"{name}"', name)
        for name in ("subprocess.Popen", "fedscout.engine.data.federation.Device", "builtins.eval", "builtins.set")
    },
}


@pytest.mark.parametrize("name", FORGED)
def test_a_message_can_name_no_other_class_nor_module_nor_hold_a_number_of_another_type(name: str) -> None:
    (old, new, refused), path = FORGED[name], [*sys.path]
    text = json.dumps(document_of(wire.NodeCalls((call(calls.Session(client_table=TABLE)),))))
    assert old in text
    with pytest.raises(ValueError, match=refused):
        WIRE.opened(content(text.replace(old, new), {"0": Array(VECTOR)}))
    assert "antigravity" not in sys.modules
    assert sys.path == path


# -- What an owner does not allow is refused in one line, no word of the rows leaves with it, and ε is never forgotten -


MARKER = 123456.75
"""Stands in a row; no text that leaves its client may hold it."""


class Careless(nn.Module):
    """A user's model whose error tells of its rows."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = dense()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if (features == MARKER).any():
            raise ValueError(f"can't use {features[features == MARKER].tolist()}")
        outputs: torch.Tensor = self.inner(features)
        return outputs


MARKED = uneven_federation(sizes=SIZES)
"""Four clients; the first has the marker in rows of its training part."""

MARKED.features[MARKED.partition.client(0)[:20]] = MARKER


def ask(owner: Any, method: Any, session: calls.Session = SESSION, config: Mapping[str, Any] = {}, **call: Any) -> Any:
    """Return what a new node with the first client's rows answers to a call, or why it does not."""
    link = NodeLink()
    link.connect(5, 0, MARKED, owner, CLIENT_QUERIES)
    given = {"clients": (0,), "vector": None if method == "query" else np.zeros(53, np.float32), **call}
    asked = calls.HostCall(session=session, config={**base_config(session, 1), **config}, **given)
    content = WIRE.packed(wire.NodeCalls((wire.NodeCall(method, asked),)))
    (reply,) = link.send_and_receive([Message(content, 5, f"{method}.{wire.ACTION}")])
    if reply.has_error():
        return str(reply.error.reason)
    (told,) = told_in(reply)
    return told.reason if isinstance(told, wire.Refusal) else told


MEASURED = calls.RoundSelection(calls.ReportRequest(training_losses=True), (0,))
REFUSALS: dict[str, tuple[dict[str, Any], wire.Method, dict[str, Any], str]] = {
    "training": ({"trains": False}, "train", {}, "training"),
    "scoring": ({"scores": False}, "evaluate", {}, "scoring"),
    "a loss of the received model": ({"scores": False}, "train", {"config": {"initial-loss": True}}, "scoring"),
    "scoring on the way": ({"scores": False}, "train", {"clients": (), "evaluated": (0,)}, "scoring"),
    "measuring": ({"scores": False}, "train", {"clients": (), "watched": MEASURED}, "scoring"),
    "a query": ({"queries": ()}, "query", {"config": {"function": "label_counts"}}, "'label_counts'"),
    "two clients": ({}, "train", {"clients": (0, 1)}, "one client"),
    "a client beyond all": ({}, "train", {"clients": (10**12,)}, "one client"),
    "a client below all": ({}, "train", {"clients": (-1,)}, "one client"),
    "no client": ({}, "train", {"clients": ()}, "one client"),
    "no model": ({}, "train", {"vector": None}, "model"),
}


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_is_one_line(what: str) -> None:
    changes, method, call, reason = REFUSALS[what]
    told = ask(owner_of(**changes), method, **call)
    assert isinstance(told, str)
    assert reason in told
    assert "\n" not in told


def test_who_may_not_be_trained_on_may_be_scored_on_the_way() -> None:
    told = ask(owner_of(trains=False), "train", evaluated=(0,))
    assert (told.clients, [*told.evaluation.own], [*told.failures]) == ([], [0], [0])


def test_losses_are_no_way_around_the_owner() -> None:
    watched = calls.RoundSelection(calls.ReportRequest(training_losses=True, validation_losses=True, update_norms=True))
    told = ask(owner_of(scores=False), "train", watched=watched, evaluated=(0,))
    assert (told.clients, told.evaluation, told.received_losses) == ([0], None, {})


def test_few_validation_rows_are_measured_by_nobody_who_abstains() -> None:
    """A validation part of one row, chosen by the driver, would tell that row's label."""
    session = replace(SESSION, validation_fraction=0.04)
    watched = calls.RoundSelection(calls.ReportRequest(training_losses=True, validation_losses=True))
    told = ask(owner_of(small_clients="abstain"), "train", session, watched=watched)
    assert told.received_losses["train"][0].num_examples > 5
    assert told.received_losses["validation"][0].num_examples == 0


def test_losses_of_a_table_s_client_tell_no_number_of_rows() -> None:
    """What a policy asks for would tell the cell."""
    watched = calls.RoundSelection(calls.ReportRequest(training_losses=True))
    plain, hidden = (
        ask(owner_of(), "train", replace(SESSION, client_table=table), watched=watched).received_losses["train"][0]
        for table in (None, TABLE)
    )
    assert (plain.num_examples > 5, hidden.num_examples) == (True, 1)
    np.testing.assert_allclose(hidden.statistics, plain.statistics / plain.num_examples)


def test_nothing_at_the_driver_holds_a_word_of_rows(caplog: pytest.LogCaptureFixture) -> None:
    careless = replace(MARKED, model=Careless)
    link, roster = linked(careless)
    link.connect(node_of(1), 1, careless, owner_of(queries=(), trains=False))
    with caplog.at_level(logging.DEBUG, "fedscout"):
        trial = over_nodes(settings_of("fedavg", careless), roster, careless)
    content = RecordDict({"arrays": ArrayRecord({"flat": Array(np.zeros(53, np.float32))})})
    by_flower = [*link.send_and_receive([Message(content, FIRST_NODE, kind) for kind in ("train", "evaluate")])]
    assert ["ValueError" in str(reply.error.reason) for reply in by_flower] == [True, True]
    link.heard += by_flower
    reasons = [message.error.reason for message in link.heard if message.has_error()]
    documents = [message for message in link.heard if message.has_content() and "document" in message.content]
    told = [value for message in documents for value in told_in(message) if not isinstance(value, wire.NodeCall)]
    at_driver = [record.getMessage() for record in caplog.records if record.module in ("grid", "trial")]
    assert any("ValueError" in reason for reason in trial.dropped_clients.values())
    assert str(MARKER) in caplog.text, "the client's own log says what went wrong"
    assert at_driver
    assert any(isinstance(value, calls.TrainResults) for value in told)
    assert str(MARKER) not in json.dumps([reasons, at_driver, trial.dropped_clients, list(map(repr, told))])


FILES = {
    "not there": None,
    "no TOML": b"trains = yes",
    "no text": b"\xff\xfe\x00",
    "nested deeply": b"queries = " + b"[" * 10**5,
    "unknown key": b"train = true",
    "epsilon without folder": b"epsilon = 1.0",
    "epsilon without end": b'epsilon = inf\nfolder = "x"',
    "several faults": b'trains = 3\nepsilon = -1\nfolder = 7\nsmall_clients = "hide"',
}


@pytest.mark.parametrize("name", FILES)
def test_a_bad_policy_file_is_one_line(name: str, tmp_path: Path) -> None:
    path, content = tmp_path / "policy.toml", FILES[name]
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigurationError) as refusal:
        read_policy(path)
    assert "\n" not in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_policy_file_s_folder_starts_where_the_file_lies(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('queries = ["label_counts"]\nepsilon = 2\nfolder = "kept"\n')
    assert read_policy(path) == OwnerPolicy(queries=("label_counts",), epsilon=2.0, folder=tmp_path / "kept")


NOISE = {"epsilon": 1.0, "delta": 1e-6, "clip": 3.0, "noise": "secure", "noise_seed": 5}
COUNTS, SUMS = {"function": "private_counts"}, {"function": "private_sums"}


class Budget:
    """A client with an ε of 2, asked by processes that come and go."""

    def __init__(self, folder: Path) -> None:
        self.ledger, self.owner = folder / LEDGER, owner_of(epsilon=2.0, folder=folder)

    def ask(self, config: Mapping[str, Any] = COUNTS, seed: int = 3, **noise: Any) -> Any:
        """Return what a new process answers."""
        return ask(self.owner, "query", replace(SESSION, seed=seed), {**NOISE, **noise, **config})


@pytest.fixture
def budget(tmp_path: Path) -> Budget:
    """Nothing of it is spent."""
    pytest.importorskip("opendp")
    return Budget(tmp_path)


def counts_of(told: Any) -> list[float]:
    """Return the numbers of an answer."""
    assert isinstance(told, calls.QueryResults), told
    (arrays,) = told.arrays
    values: list[float] = arrays["counts"].tolist()
    return values


def test_an_answer_is_given_once_and_then_repeated(budget: Budget) -> None:
    first = counts_of(budget.ask())
    assert [counts_of(budget.ask()) for _ in range(3)] == [first] * 3
    assert budget.ask(SUMS).arrays, "of the same ε: half of it is for either query"
    entries = json.loads(budget.ledger.read_text())
    assert sum(entry["epsilon"] for entry in entries.values()) == 1


@pytest.mark.parametrize("change", [{"seed": 4}, {"noise_seed": 6}, {"clip": 2.0}, {"server-round": 9}, {"x": "y"}])
def test_other_terms_cost_again_until_nothing_is_left(change: dict[str, Any], budget: Budget) -> None:
    first, second = counts_of(budget.ask()), counts_of(budget.ask(**change))
    assert "epsilon" in budget.ask(**change, more=1)
    assert (counts_of(budget.ask()), counts_of(budget.ask(**change))) == (first, second), "repeated all the same"


@pytest.mark.parametrize(
    "terms",
    [
        *({"epsilon": epsilon} for epsilon in (2.5, float("inf"), float("nan"), 0.0, -1.0, True, "1")),
        {"noise": "seeded"},
        *({"function": name} for name in ("label_counts", "mean_output", "no such query")),
    ],
)
def test_what_gives_away_more_is_refused(terms: dict[str, Any], budget: Budget) -> None:
    told = budget.ask({**COUNTS, **terms})
    if isinstance(told, calls.QueryResults):
        assert not told.arrays
        (told,) = told.failures.values()
    assert "\n" not in told
    assert any(word in told for word in ("noise", "epsilon", "answers", "query"))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"a": 1}', '{"a": {"epsilon": -5, "answers": {}}}', '{"a": {"epsilon": NaN}}']
)
def test_a_damaged_ledger_refuses_and_stays_as_it_is(content: str, budget: Budget) -> None:
    budget.ledger.write_text(content)
    told = budget.ask()
    assert isinstance(told, str)
    assert "log" in told
    assert budget.ledger.read_text() == content


def test_models_and_scores_are_no_answers_and_cost_nothing(budget: Budget) -> None:
    assert isinstance(ask(budget.owner, "train", replace(SESSION, training=LocalTraining())), calls.TrainResults)
    assert isinstance(ask(budget.owner, "evaluate"), calls.EvaluateResults)
    assert not budget.ledger.exists()


# -- What a client keeps between rounds, in memory and in its owner's folder -------------------------------------------


TRIAL = "a" * 64


def state(value: float) -> dict[str, np.ndarray[Any, Any]]:
    """Return a state."""
    return {"x": np.full(2, value, np.float32)}


def test_a_damaged_file_is_as_none(tmp_path: Path) -> None:
    KeptStates(RecordDict(), tmp_path).keep(TRIAL, 1, state(1))
    (file,) = tmp_path.rglob("*.npz")
    for content in (b"", b"PK\x03\x04 and no more", file.read_bytes()[:-40]):
        file.write_bytes(content)
        with pytest.raises(LostStateError):
            KeptStates(RecordDict(), tmp_path).find(TRIAL, mark(1))


@pytest.mark.parametrize("told", [[], [np.nan], [np.inf], [1.5], [1.0, 2.0]])
def test_a_mark_that_is_none_stands_for_nothing(told: list[float]) -> None:
    kept = KeptStates(RecordDict())
    kept.keep(TRIAL, 1, state(1))
    with pytest.raises(LostStateError):
        kept.find(TRIAL, {"kept-after-round": np.array(told, np.float32)})


def test_an_earlier_run_of_a_trial_does_not_outlive_its_next_one_nor_disturb_another_trial(tmp_path: Path) -> None:
    """The state after the first round of a new run must not be taken for an older one than the last run's."""
    kept, other = KeptStates(RecordDict(), tmp_path), "b" * 64
    kept.keep(other, 9, state(5))
    for server_round in (8, 9):
        kept.keep(TRIAL, server_round, state(server_round), mark(8))
    kept.keep(TRIAL, 1, state(0))
    for again in (kept, KeptStates(RecordDict(), tmp_path)):
        assert again.find(TRIAL, mark(1))["x"].tolist() == [0, 0]
        assert again.find(other, mark(9))["x"].tolist() == [5, 5]
        with pytest.raises(LostStateError):
            again.find(TRIAL, mark(9))


def test_a_client_keeps_what_the_driver_has_however_often_it_was_late(tmp_path: Path) -> None:
    kept = KeptStates(RecordDict(), tmp_path)
    kept.keep(TRIAL, 1, state(1))
    for late in (2, 3, 4):
        kept.keep(TRIAL, late, state(0), mark(1))
        assert kept.find(TRIAL, mark(1))["x"].tolist() == [1, 1]


def test_what_is_kept_does_not_grow_without_end(tmp_path: Path) -> None:
    memory = RecordDict()
    kept = KeptStates(memory, tmp_path)
    for trial in range(2 * TRIALS_KEPT):
        marked = None
        for server_round in (1, 2, 3):
            marked = kept.keep(f"{trial:x}".ljust(64, "0"), server_round, state(0), marked)
    assert sum(len(record) for record in memory.array_records.values()) == 2 * TRIALS_KEPT
    assert len([*tmp_path.rglob("*.npz")]) == TRIALS_KEPT
