"""Clients that lie, and nodes that come and go: each a line, and the training goes on."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message
from flwr.clientapp import ClientApp

from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError, EngineError
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages.calls import (
    Cohort,
    EvaluateResults,
    HostCall,
    QueryResults,
    ReportRequest,
    RoundSelection,
    TrainResults,
)
from fedscout.engine.metrics import OF_CLASSES
from fedscout.engine.nodes.answers import (
    AnswerError,
    ExpectedAnswer,
    checked_query,
    checked_scores,
    checked_training,
    like_most,
)
from fedscout.engine.nodes.client import mark
from fedscout.engine.nodes.grid import MAX_ROWS, Exchange, NodeRoster
from fedscout.engine.nodes.wire import Greeting, Introduction, Wire, model_digest
from fedscout.strategies.selection.table import parse_selection
from tests.engine.federations import QUERIES
from tests.engine.nodes.node_link import FIRST_NODE, SIZES, NodeLink, linked, over_nodes, retold, server_side
from tests.engine.nodes.test_node_grid import SESSION, settings_of, train

LIAR = FIRST_NODE - 17
"""The node of the second client."""


def met(link: NodeLink, federation: Federation, at_least: int = 1, patience: float = 0.0) -> NodeRoster:
    """Return the roster of whoever introduces itself well."""
    roster = NodeRoster(link, Wire(), model_digest(server_side(federation).facts()), Greeting(), timeout=0.3)
    roster.meet(at_least, patience, pause=0.05)
    return roster


def introduced_as(**changes: Any) -> Callable[[Message], Message]:
    """Return what has the liar say otherwise who it is."""

    def lie(reply: Message) -> Message:
        told = Wire().opened(reply.content) if reply.has_content() else None
        if isinstance(told, Introduction):
            reply.content = Wire().packed(replace(told, **changes))
        return reply

    return lie


CLAIMS: dict[str, dict[str, Any]] = {
    "rows beyond all": {"num_rows": MAX_ROWS + 1},
    "rows below nothing": {"num_rows": -1},
    "rows by truth": {"num_rows": True},
    "rows as text": {"num_rows": "17"},
    "half a row": {"num_rows": 0.5},
    "a name of control characters": {"name": "a\nERROR all is lost\x1b[2J"},
    "no name": {"name": ""},
    "a name without end": {"name": "x" * 10**6},
    "a name that is none": {"name": 5},
    "another's name": {"name": "0"},
    "a position as text": {"position": "first"},
    "a position as list": {"position": [1]},
    "another version": {"version": "0\n0"},
    "another model": {"model": "x"},
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_bad_introduction_is_left_out(claim: str, federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    link, _, _ = linked(federation, QUERIES)
    link.tamper_with(LIAR, introduced_as(**CLAIMS[claim]))
    with caplog.at_level(logging.WARNING, "fedscout"):
        roster = met(link, federation)
    assert LIAR in roster.strangers
    assert len(roster.members) == (2 if claim == "another's name" else 3)
    lines = [record.getMessage() for record in caplog.records if str(LIAR) in record.getMessage()]
    assert len(lines) == 1
    assert lines[0].isprintable()
    assert len(lines[0]) < 500


def test_a_claim_of_many_rows_leaves_the_others_room(federation: Federation) -> None:
    """However many rows one claims, the mean of the others' models keeps float32's precision."""
    link, _, wire = linked(federation, QUERIES)
    link.tamper_with(LIAR, introduced_as(num_rows=MAX_ROWS))
    roster = met(link, federation)
    assert len(roster.members) == len(SIZES)
    del link.apps[LIAR]
    claimed = train(federation, link, roster, wire)
    honest, honest_roster, _ = linked(federation, QUERIES)
    del honest.apps[LIAR]
    true = train(federation, honest, honest_roster, wire)
    np.testing.assert_allclose(claimed.vector, true.vector, rtol=0, atol=1e-6)


def test_a_reason_of_many_lines_is_one(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    link, _, _ = linked(federation, QUERIES)
    refusal = Error(7, "no\nERROR\x1b[2J" + "x" * 10**5)
    link.tamper_with(LIAR, lambda reply: Message(refusal, reply_to=_asking(reply)))
    with caplog.at_level(logging.WARNING, "fedscout"), pytest.raises(DataError) as error:
        met(link, federation, at_least=4)
    assert str(error.value).isprintable()
    assert all(record.getMessage().isprintable() for record in caplog.records)
    assert len(str(error.value)) < 1000


def _asking(reply: Message) -> Message:
    """Return a message that this is a reply to, as far as a reply tells."""
    asking = Message(reply.content, reply.metadata.src_node_id, "query")
    asking.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return asking


def test_nobody_takes_the_place_of_a_client_that_answers(federation: Federation) -> None:
    link, roster, wire = linked(federation, QUERIES)
    link.connect(99, federation, 0, QUERIES, wire, config={"partition-id": 0})
    roster.refresh()
    assert roster.members[0].node == FIRST_NODE
    assert "responds" in roster.strangers[99]


def test_who_was_restarted_takes_its_place_while_its_old_node_lingers(federation: Federation) -> None:
    link, roster, wire = linked(federation, QUERIES)
    link.tamper_with(FIRST_NODE, lambda _: None)
    link.connect(99, federation, 0, QUERIES, wire, config={"partition-id": 0})
    roster._timeout = 0.1
    roster.refresh()
    assert roster.members[0].node == 99


def test_a_node_that_never_answers_is_waited_for_once(federation: Federation) -> None:
    link, _, wire = linked(federation, QUERIES)
    link.tamper_with(LIAR, lambda _: None)
    roster = met(link, federation, at_least=3, patience=0.3)
    started = time.monotonic()
    for _ in range(50):
        roster.refresh()
    assert time.monotonic() - started < 2
    del link.apps[LIAR]
    assert train(federation, link, roster, wire).status == "completed"


def test_a_reply_counts_once_from_whom_it_was_asked_and_for_what_was_asked(federation: Federation) -> None:
    link, _, wire = linked(federation, QUERIES)
    exchange = Exchange(link)
    kept: list[Message] = []
    pull = link.pull_messages

    def pulled(ids: Any) -> list[Message]:
        ids = [*ids]
        found = pull(ids)
        kept.extend(found)
        forged = []
        for reply in [*kept]:
            again = Message(wire.packed(Greeting()), reply_to=_asking(reply))
            again.metadata.__dict__["_src_node_id"] = LIAR
            forged.append(again)
        stranger = Message(wire.packed(Greeting()), reply_to=_asking(kept[0]))
        stranger.metadata.__dict__["_reply_to_message_id"] = "nothing of ours"
        return [*forged, stranger, *found, *found, *kept]

    link.pull_messages = pulled  # type: ignore[method-assign, assignment]
    requests = [exchange.send(Message(wire.packed(Greeting()), FIRST_NODE, "query.fedscout")) for _ in range(2)]
    assert exchange.wait(requests, 1.0)
    replies = [request.reply for request in requests if request.reply is not None]
    assert all(reply.metadata.src_node_id == FIRST_NODE for reply in replies)
    assert all(isinstance(wire.opened(reply.content), Introduction) for reply in replies)
    assert len(replies) == 2


@pytest.mark.slow
def test_an_answer_after_the_limit_is_not_taken_for_the_next_round_s(federation: Federation) -> None:
    link, roster, wire = linked(federation, QUERIES)
    late: list[Message] = []

    def delay(reply: Message) -> Message | None:
        late.append(reply)
        return late[-2] if len(late) > 1 else None

    link.tamper_with(LIAR, delay)
    trial = train(federation, link, roster, wire, replace(SESSION, round_timeout_seconds=0.3))
    assert trial.status == "completed", trial.error
    assert set(trial.dropped_clients) == {"1:1", "2:1", "3:1"}


def test_a_node_may_join_and_leave_every_round(federation: Federation) -> None:
    link, roster, wire = linked(federation, QUERIES)
    other = link.apps[LIAR]
    ids = iter(range(1000, 2000))
    current = [LIAR]
    rounds = []

    def flap(node: int, reply: Message) -> Message:
        if node == FIRST_NODE and reply.metadata.message_type.startswith("train"):
            rounds.append(node)
            link.apps.pop(current[0], None)
            current[0] = next(ids)
            link.apps[current[0]] = other
        return reply

    link.tamper = flap
    settings = replace(settings_of("fedavg", federation), num_rounds=6)
    trial = over_nodes(settings, federation, roster, wire)
    assert trial.status == "completed", trial.error
    assert len(rounds) == 6
    assert len(roster.members) == len(SIZES), "it is the client that it was"


def _away(link: NodeLink, for_looks: int) -> None:
    """Have nobody connected for some looks, after the second round's training."""
    nodes: dict[int, tuple[ClientApp, Any]] = {}
    trainings, looks = 0, 0
    look = link.get_node_ids

    def looked() -> list[int]:
        nonlocal looks
        looks += bool(nodes)
        if looks > for_looks and nodes:
            link.apps |= nodes
            nodes.clear()
        return look()

    def lose(node: int, reply: Message) -> Message:
        nonlocal trainings
        trainings += reply.metadata.message_type.startswith("train")
        if trainings == 2 * len(SIZES) and not looks:
            nodes.update(link.apps)
            link.apps.clear()
        return reply

    link.get_node_ids = looked  # type: ignore[method-assign]
    link.tamper = lose


def test_while_nobody_is_there_no_round_is_burnt(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedscout.engine.nodes.grid.PAUSE_SECONDS", 0.01)
    link, roster, wire = linked(federation, QUERIES)
    _away(link, for_looks=5)
    settings = replace(settings_of("fedavg", federation), num_rounds=4)
    with caplog.at_level(logging.WARNING, "fedscout"):
        trial = over_nodes(settings, federation, roster, wire)
    assert trial.status == "completed", trial.error
    assert trial.dropped_clients == {}
    assert sum("connected" in record.getMessage() for record in caplog.records) == 1


def test_nobody_for_longer_than_a_round_is_no_result(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscout.engine.nodes.grid.PAUSE_SECONDS", 0.01)
    link, roster, wire = linked(federation, QUERIES)
    link.apps.clear()
    session = replace(SESSION, round_timeout_seconds=0.1)
    settings = settings_of("fedavg", federation, session)
    with pytest.raises(EngineError, match=r"\b0\.1 s"):
        over_nodes(settings, federation, roster, wire)


@dataclass(frozen=True)
class Sends(ClientAlgorithm):
    """Its clients send a variate along."""

    auxiliary = MappingProxyType({"variate": "num-clients"})


CONFIG = base_config(SESSION, 1)
WATCHED = RoundSelection(ReportRequest(training_losses=True, update_norms=True))
CALL = HostCall(
    (1,), replace(SESSION, algorithm=Sends()), CONFIG, np.zeros(3, np.float32), evaluated=(1,), watched=WATCHED
)
LOSSES = np.array([4.0, 4.0, 2.0, 2.0])
MEANS = ClientScore(4, 0, 0.0, statistics=LOSSES)
GOOD: dict[str, Any] = {
    "clients": [1],
    "num_examples": [17],
    "num_steps": [2],
    "losses": [0.5],
    "vectors": [np.zeros(3, np.float32)],
    "auxiliary": {"variate": [np.ones(3, np.float32)]},
    "received_losses": {"train": {1: MEANS}},
    "update_norms": {1: 0.5},
    "evaluation": EvaluateResults({1: ClientScore(4, 2, 1.0)}),
}


def asked(call: HostCall = CALL) -> ExpectedAnswer:
    """Return what the second client, of 17 rows, was asked."""
    return ExpectedAnswer(1, call, 17, 3)


LIES: dict[str, dict[str, Any]] = {
    "for another": {"clients": [0]},
    "for all": {"clients": [0, 1]},
    "no rows": {"num_examples": [0]},
    "rows it has not": {"num_examples": [18]},
    "no steps": {"num_steps": [0]},
    "rows of two": {"num_examples": [1, 1]},
    "no loss": {"losses": []},
    "a loss without end": {"losses": [float("inf")]},
    "no model": {"vectors": None},
    "two models": {"vectors": [np.zeros(3, np.float32)] * 2},
    "a model in a model": {"vectors": [np.zeros((1, 3), np.float32)]},
    "a short model": {"vectors": [np.zeros(2, np.float32)]},
    "a model of doubles": {"vectors": [np.zeros(3)]},
    "a model of NaN": {"vectors": [np.full(3, np.nan, np.float32)]},
    "auxiliary": {"auxiliary": {"x": [np.zeros(3, np.float32)]}},
    "nothing beside it": {"auxiliary": {}},
    "something else beside it": {"auxiliary": {"x": [np.zeros(3, np.float32)]}},
    **{
        f"beside it {name}": {"auxiliary": {"variate": given}}
        for name, given in {
            "no vector": [],
            "two vectors": [np.zeros(3, np.float32)] * 2,
            "a matrix": [np.zeros((1, 3), np.float32)],
            "a short vector": [np.zeros(2, np.float32)],
            "doubles": [np.zeros(3)],
            "no numbers": [np.full(3, np.inf, np.float32)],
        }.items()
    },
    "a length below nothing": {"update_norms": {1: float("nan")}},
    "no length": {"update_norms": {0: 1.0}},
    "a loss below nothing": {"received_losses": {"train": {1: replace(MEANS, statistics=-LOSSES)}}},
    "losses without end": {"received_losses": {"train": {1: replace(MEANS, statistics=np.inf * LOSSES)}}},
    "losses of another kind": {"received_losses": {"train": {1: replace(MEANS, statistics=LOSSES[1:])}}},
    "losses of more rows": {"received_losses": {"train": {1: replace(MEANS, num_examples=18)}}},
    "what others keep": {"states": {0: {}}},
    "a state and no mark": {"states": {1: {"x": np.zeros(10**6, np.float32)}}},
    "another round's mark": {"states": {1: mark(7)}},
    "a score of more rows": {"evaluation": EvaluateResults({1: ClientScore(18, 1, 1.0)})},
    "more right than rows": {"evaluation": EvaluateResults({1: ClientScore(4, 5, 1.0)})},
    "fewer right than none": {"evaluation": EvaluateResults({1: ClientScore(4, -1, 1.0)})},
    "a loss of scores below nothing": {"evaluation": EvaluateResults({1: ClientScore(4, 1, -1.0)})},
    "a metric that nobody asked for": {"evaluation": EvaluateResults({1: ClientScore(4, 1, 1.0, metric=0.5)})},
    "values withheld": {"num_withheld": 4},
    "far and farther": {"sums": {"far-from-table": [7.0]}},
    "scores in its place": {},
}


def test_an_honest_answer_passes() -> None:
    found = checked_training(TrainResults(**GOOD), asked())
    assert (found.clients, found.num_examples, found.update_norms) == ([1], [17], {1: 0.5})
    assert (found.received_losses, found.auxiliary) == ({"train": {1: MEANS}}, GOOD["auxiliary"])


@pytest.mark.parametrize("lie", LIES)
def test_a_training_that_lies_is_not_used(lie: str) -> None:
    told: Any = TrainResults(**{**GOOD, **LIES[lie]}) if LIES[lie] else EvaluateResults()
    with pytest.raises(AnswerError) as refusal:
        checked_training(told, asked())
    assert str(refusal.value).isprintable()


def test_what_nobody_asked_for_does_not_pass() -> None:
    call = replace(CALL, evaluated=(), watched=None)
    more = {"durations": {0: 1e9}, "large": [0], "total": np.zeros(3, np.int64), "diverged": [0]}
    found = checked_training(TrainResults(**{**GOOD, **more, "failures": {0: "x"}, "seconds": -1.0}), asked(call))
    assert (found.evaluation, found.received_losses, found.update_norms) == (None, {}, {})
    assert (found.durations, found.large, found.total, found.diverged) == ({}, [], None, [])
    assert (found.failures, found.seconds) == ({}, 0.0)


SUMS: list[dict[str, Any]] = [
    {},
    {"unseen": np.zeros((3, 3), np.int64)},
    {"own": np.zeros((2, 2), np.int64)},
    {"own": np.full((3, 3), 18)},
    {"own": np.full((3, 3), -1)},
    {"own": np.zeros((3, 3))},
    {"own": np.array([[None] * 3] * 3, object)},
]
VALUES = [np.array([np.nan]), np.array([np.inf]), np.array([1e200]), np.array(["x"])]


@pytest.mark.parametrize(
    ("check", "told"),
    [
        *((checked_scores, EvaluateResults({1: ClientScore(4, 1, 1.0, metric=0.5)}, sums=sums)) for sums in SUMS),
        *((checked_query, QueryResults([1], [17], [{"x": value}])) for value in VALUES),
    ],
)
def test_sums_of_a_metric_are_possible_and_answers_to_queries_can_be_squared(check: Any, told: Any) -> None:
    with pytest.raises(AnswerError):
        check(told, asked(replace(CALL, session=replace(SESSION, metric=OF_CLASSES["macro_f1"]()))))


def test_whose_answers_have_another_form_than_most_is_left_out() -> None:
    def told(client: int, *sums: str) -> TrainResults:
        return TrainResults(clients=[client], sums={name: [1.0] for name in sums})

    found = like_most([told(0, "a"), told(1, "b"), told(2, "a"), TrainResults(failures={3: "why"})])
    assert [one.clients for one in found] == [[0], [], [2], []]
    assert [[*one.failures] for one in found] == [[], [1], [], [3]]


@pytest.mark.parametrize("kind", ["oort", "power_of_choice"])
def test_a_policy_is_not_broken_by_losses_that_are_none(kind: str, federation: Federation) -> None:
    link, roster, wire = linked(federation, QUERIES)

    def spoilt(told: Any) -> Any:
        if isinstance(told, TrainResults):
            told.received_losses = {"train": {1: replace(MEANS, statistics=np.nan * LOSSES)}}
        return told

    link.tamper_with(LIAR, lambda reply: retold(wire, reply, spoilt))
    selection = parse_selection(kind, Cohort(4, 2, 0.2, chosen=True))
    settings = replace(settings_of("fedavg", federation), selection=selection, num_sampled=2, num_rounds=4)
    trial = over_nodes(settings, federation, roster, wire)
    assert trial.status == "completed", trial.error
