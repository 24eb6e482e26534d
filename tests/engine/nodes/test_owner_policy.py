"""What an owner does not allow is refused in one line, no word of the rows leaves with it, and ε is never forgotten."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, Message, RecordDict
from torch import nn

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages.calls import (
    EvaluateResults,
    HostCall,
    QueryResults,
    ReportRequest,
    RoundSelection,
    Session,
    TrainResults,
)
from fedscout.engine.nodes.policy import LEDGER, OwnerPolicy, read_policy
from fedscout.engine.nodes.wire import (
    ACTION,
    Method,
    NodeCall,
    NodeCalls,
    Refusal,
    Wire,
)
from tests.engine.federations import QUERIES, dense, uneven_federation
from tests.engine.nodes.node_link import (
    FIRST_NODE,
    SIZES,
    TRUSTING,
    NodeLink,
    linked,
    over_nodes,
    told_in,
)
from tests.engine.nodes.test_node_grid import SESSION, settings_of

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


class Node:
    """One node, asked by hand.

    Args:
        federation: Of which it holds the first client's rows.
        owner: What its owner allows.
    """

    def __init__(self, federation: Federation, owner: OwnerPolicy) -> None:
        self.link, self.wire = NodeLink(), Wire()
        self.link.connect(5, federation, 0, CLIENT_QUERIES, self.wire, owner)
        self.vector = np.zeros(53, np.float32)

    def ask(self, method: Method, session: Session = SESSION, config: Mapping[str, Any] = {}, **call: Any) -> Any:
        """Return what is answered to a call, or why nothing is."""
        given = {"clients": (0,), "vector": None if method == "query" else self.vector, **call}
        asked = NodeCall(method, HostCall(session=session, config={**base_config(session, 1), **config}, **given))
        (reply,) = self.link.send_and_receive([Message(self.wire.packed(NodeCalls((asked,))), 5, f"{method}.{ACTION}")])
        if reply.has_error():
            return str(reply.error.reason)
        (told,) = told_in(self.wire, reply)
        return told.reason if isinstance(told, Refusal) else told


@pytest.fixture
def federation() -> Federation:
    """Four clients; the first has the marker in a row of its training part."""
    made = uneven_federation(sizes=SIZES)
    made.features[made.partition.client(0)[:20]] = MARKER
    return made


def owner_of(**changes: Any) -> OwnerPolicy:
    """Return an owner that allows all but some."""
    return OwnerPolicy(**{**TRUSTING.model_dump(), **changes})


MEASURED = RoundSelection(ReportRequest(training_losses=True), (0,))
REFUSALS: dict[str, tuple[dict[str, Any], Method, dict[str, Any], str]] = {
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
def test_a_refusal_is_one_line(what: str, federation: Federation) -> None:
    changes, method, call, reason = REFUSALS[what]
    told = Node(federation, owner_of(**changes)).ask(method, **call)
    assert isinstance(told, str)
    assert reason in told
    assert "\n" not in told


def test_who_may_not_be_trained_on_may_be_scored_on_the_way(federation: Federation) -> None:
    told = Node(federation, owner_of(trains=False)).ask("train", evaluated=(0,))
    assert isinstance(told, TrainResults)
    assert (told.clients, [*told.evaluation.own], [*told.failures]) == ([], [0], [0])


def test_losses_are_no_way_around_the_owner(federation: Federation) -> None:
    watched = RoundSelection(ReportRequest(training_losses=True, validation_losses=True, update_norms=True))
    told = Node(federation, owner_of(scores=False)).ask("train", watched=watched, evaluated=(0,))
    assert isinstance(told, TrainResults)
    assert (told.clients, told.evaluation, told.received_losses) == ([0], None, {})


def test_few_validation_rows_are_measured_by_nobody_who_abstains(federation: Federation) -> None:
    """A validation part of one row, chosen by the driver, would tell that row's label."""
    session = replace(SESSION, validation_fraction=0.04)
    watched = RoundSelection(ReportRequest(training_losses=True, validation_losses=True))
    told = Node(federation, owner_of(small_clients="abstain")).ask("train", session, watched=watched)
    assert isinstance(told, TrainResults)
    assert told.received_losses["train"][0].num_examples > 5
    assert told.received_losses["validation"][0].num_examples == 0


def test_nothing_at_the_driver_holds_a_word_of_rows(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    careless = replace(federation, model=Careless)
    link, roster, wire = linked(careless, QUERIES)
    link.connect(FIRST_NODE - 17, careless, 1, QUERIES, wire, owner_of(queries=(), trains=False))
    settings = settings_of("fedavg", careless)
    with caplog.at_level(logging.DEBUG, "fedscout"):
        trial = over_nodes(settings, careless, roster, wire)
    content = RecordDict({"arrays": ArrayRecord({"flat": Array(np.zeros(53, np.float32))})})
    by_flower = [*link.send_and_receive([Message(content, FIRST_NODE, kind) for kind in ("train", "evaluate")])]
    assert ["ValueError" in str(reply.error.reason) for reply in by_flower] == [True, True]
    link.heard += by_flower
    reasons = [message.error.reason for message in link.heard if message.has_error()]
    values = [value for message in link.heard if _is_document(message) for value in told_in(wire, message)]
    at_driver = [
        record.getMessage()
        for record in caplog.records
        if record.name == "fedscout" and record.module in ("node_grid", "node_roster", "trial")
    ]
    assert any("ValueError" in reason for reason in trial.dropped_clients.values())
    marker = str(MARKER)
    assert marker in caplog.text, "the client's own log says what went wrong"
    told = [value for value in values if isinstance(value, TrainResults | EvaluateResults | QueryResults)]
    assert told
    assert marker not in json.dumps([reasons, at_driver, trial.dropped_clients, list(map(repr, told))])


FILES = {
    "not there": None,
    "no TOML": b"trains = yes",
    "no text": b"\xff\xfe\x00",
    "nested deeply": b"queries = " + b"[" * 10**5,
    "unknown key": b"train = true",
    "truth as text": b'trains = "yes"',
    "truth as number": b"trains = 1",
    "number as truth": b"min_release = true",
    "too small": b"min_release = 0",
    "queries as text": b'queries = "label_counts"',
    "epsilon without folder": b"epsilon = 1.0",
    "epsilon without end": b'epsilon = inf\nfolder = "x"',
    "no epsilon": b'epsilon = nan\nfolder = "x"',
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

    def __init__(self, federation: Federation, folder: Path) -> None:
        self._federation, self.folder = federation, folder
        self.owner = owner_of(epsilon=2.0, folder=folder)

    def ask(self, config: Mapping[str, Any] = COUNTS, seed: int = 3, **noise: Any) -> Any:
        """Return what a new process answers."""
        session = replace(SESSION, seed=seed)
        return Node(self._federation, self.owner).ask("query", session, {**NOISE, **noise, **config})


@pytest.fixture
def budget(federation: Federation, tmp_path: Path) -> Budget:
    """Nothing of it is spent."""
    pytest.importorskip("opendp")
    return Budget(federation, tmp_path / "owner")


def counts_of(told: Any) -> list[float]:
    """Return the numbers of an answer."""
    assert isinstance(told, QueryResults), told
    (arrays,) = told.arrays
    values: list[float] = arrays["counts"].tolist()
    return values


def test_an_answer_is_given_once_and_then_repeated(budget: Budget) -> None:
    first = counts_of(budget.ask())
    assert [counts_of(budget.ask()) for _ in range(3)] == [first] * 3
    told = budget.ask(SUMS)
    assert isinstance(told, QueryResults)
    assert told.arrays, "of the same ε: half of it is for either query"
    entries = json.loads((budget.folder / LEDGER).read_text())
    assert sum(entry["epsilon"] for entry in entries.values()) == 1


@pytest.mark.parametrize("change", [{"seed": 4}, {"noise_seed": 6}, {"clip": 2.0}, {"server-round": 9}, {"x": "y"}])
def test_other_terms_cost_again_until_nothing_is_left(change: dict[str, Any], budget: Budget) -> None:
    own = {name: value for name, value in change.items() if name == "seed"}
    noise = {name: value for name, value in change.items() if name != "seed"}
    first, second = counts_of(budget.ask()), counts_of(budget.ask(**own, **noise))
    refused = budget.ask(**own, **{**noise, "more": 1})
    assert "epsilon" in refused
    assert (counts_of(budget.ask()), counts_of(budget.ask(**own, **noise))) == (first, second), "repeated all the same"


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
    if isinstance(told, QueryResults):
        assert not told.arrays
        (told,) = told.failures.values()
    assert "\n" not in told
    assert any(word in told for word in ("noise", "epsilon", "answers", "query"))


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"a": 1}', '{"a": {"epsilon": -5, "answers": {}}}', '{"a": {"epsilon": NaN}}']
)
def test_a_damaged_ledger_refuses_and_stays_as_it_is(content: str, budget: Budget) -> None:
    budget.folder.mkdir()
    (budget.folder / LEDGER).write_text(content)
    told = budget.ask()
    assert isinstance(told, str)
    assert "log" in told
    assert (budget.folder / LEDGER).read_text() == content


def test_models_and_scores_are_no_answers_and_cost_nothing(budget: Budget, federation: Federation) -> None:
    node = Node(federation, budget.owner)
    assert isinstance(node.ask("train", replace(SESSION, training=LocalTraining())), TrainResults)
    assert isinstance(node.ask("evaluate"), EvaluateResults)
    assert not (budget.folder / LEDGER).exists()


def _is_document(message: Message) -> bool:
    return message.has_content() and "document" in message.content
