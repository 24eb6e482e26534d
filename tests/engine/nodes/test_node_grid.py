"""Clients on machines of their own give what a simulation of the same rows gives; who lies or leaves costs no trial."""

from __future__ import annotations

import itertools
import json
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from flwr.app import Error, Message, RecordDict
from flwr.serverapp.strategy import (
    DifferentialPrivacyClientSideAdaptiveClipping,
    DifferentialPrivacyClientSideFixedClipping,
    FedAvg,
)

from fedscout.detectors import CLIENT_QUERIES
from fedscout.detectors.detect import detect
from fedscout.detectors.report import DetectionConfig
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore
from fedscout.engine.contracts.client_table import FAR_KEY, SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import DataError, EngineError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages import calls
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
from fedscout.engine.nodes.grid import MAX_ROWS, Exchange, NodeGrid, NodeRoster
from fedscout.engine.nodes.wire import DOCUMENT_KEY, Greeting, Introduction, NodeAnswers
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import parse_strategy
from fedscout.strategies.selection.table import SELECTIONS, parse_selection
from tests.engine.choices import INDIVIDUAL, NAMED, Choice
from tests.engine.federations import normalised, uneven_federation, with_server_rows
from tests.engine.nodes.node_link import (
    FEDERATION,
    FIRST_NODE,
    SIZES,
    WIRE,
    NodeLink,
    join_late,
    linked,
    met,
    node_grid,
    node_of,
    over_nodes,
    owner_of,
    server_side,
    told_in,
)
from tests.engine.trials.test_resume import Interruption, interrupt_in
from tests.engine.trials.test_trial import Whole
from tests.kits.refusals import refused

SESSION = calls.Session(seed=3, training=LocalTraining(local_epochs=2, batch_size=8), round_timeout_seconds=20.0)
NORMALISED = uneven_federation(normalised, sizes=SIZES)
FIVE = uneven_federation(sizes=(40, 17, 26, 31, 22))
WITH_ROWS = with_server_rows(FIVE, labelled=True)
BROKEN = 1
"""The client that does what it should not."""

LIAR = node_of(BROKEN)


def settings_of(
    strategy: Any, federation: Federation = FEDERATION, session: calls.Session = SESSION, **changes: Any
) -> TrialSettings:
    """Return three rounds of a strategy with all clients."""
    num_clients = federation.num_clients
    num_rows = 0 if federation.server is None else federation.server.num_rows
    cohort = calls.Cohort(num_clients, num_clients, 0.2, server_rows=num_rows, server_labels=num_rows > 0)
    spec = strategy if isinstance(strategy, Choice) else parse_strategy(strategy, cohort)
    common: dict[str, Any] = {"num_rounds": 3, "num_sampled": num_clients, "session": session, "keep_model": True}
    return TrialSettings(spec, **{**common, **changes})


def of_selection(kind: str, federation: Federation, num_rounds: int) -> TrialSettings:
    """Return rounds of two clients that a policy selects."""
    changes = {"dimension": 2, "warm_up": 3} if kind == "fedcor" else {}
    selection = parse_selection({"kind": kind, **changes}, calls.Cohort(federation.num_clients, 2, 0.2, chosen=True))
    return settings_of("fedavg", federation, selection=selection, num_sampled=2, num_rounds=num_rounds)


def clipping(wrapper: type, wants: calls.EngineNeeds) -> TrialSettings:
    """Return a trial whose clients clip their updates."""

    def build(**counts: Any) -> Any:
        fixed = wrapper is DifferentialPrivacyClientSideFixedClipping
        bound = {"clipping_norm" if fixed else "initial_clipping_norm": 0.05}
        return wrapper(FedAvg(**counts), 0.01, num_sampled_clients=counts["min_train_nodes"], **bound)

    return settings_of(Choice(build, wants=wants), FIVE)


CLIPPING = {
    f"{wrapper.__name__} {wants.arrays}": clipping(wrapper, wants)
    for wrapper in (DifferentialPrivacyClientSideFixedClipping, DifferentialPrivacyClientSideAdaptiveClipping)
    for wants in (INDIVIDUAL, NAMED)
}
STRATEGIES = ("fedavg", "fedadam", "krum", "qfedavg", "scaffold", "fednova", "fedbn", "ditto", "moon", "communities")
NEEDING_MORE = ("fedbuff", "fedbio", "local", "fine_tuning", "fedex", "fedpop", "rhfl", "fedrod")
SIMULATED: dict[str, tuple[Federation, TrialSettings]] = {
    **{kind: (NORMALISED, settings_of(kind, NORMALISED)) for kind in STRATEGIES},
    **{f"policy {kind}": (FIVE, of_selection(kind, FIVE, num_rounds=5)) for kind in SELECTIONS if kind != "custom"},
    **{kind: (WITH_ROWS, settings_of(kind, WITH_ROWS)) for kind in NEEDING_MORE},
    **{
        f"metric {kind}": (FIVE, settings_of("fedavg", FIVE, replace(SESSION, metric=OF_CLASSES[kind]())))
        for kind in OF_CLASSES
    },
    **{f"Flower's {kind}": (FIVE, settings_of(Choice(kind, wants=NAMED), FIVE)) for kind in (Whole, FedAvg)},
    **{name: (FIVE, settings) for name, settings in CLIPPING.items()},
}


@pytest.mark.sampled(24)
@pytest.mark.parametrize("name", SIMULATED)
def test_a_trial_has_the_bits_of_a_simulation(name: str) -> None:
    """Models, scores and who trained."""
    federation, settings = SIMULATED[name]
    simulated = run_trial(settings, LocalGrid(federation, CLIENT_QUERIES, settings.session))
    real = over_nodes(settings, linked(federation, CLIENT_QUERIES)[1], federation)
    assert np.array_equal(simulated.vector, real.vector)
    for column in ("accuracy", "loss", "metric"):
        assert simulated.rounds.get(column) == real.rounds.get(column)
    assert (simulated.bytes_down, simulated.bytes_up) == (real.bytes_down, real.bytes_up)
    np.testing.assert_equal(dict(simulated.clients), dict(real.clients))  # a client may have no metric, NaN


def trainings_in(link: NodeLink) -> list[calls.TrainResults]:
    """Return what clients told of their training."""
    opened = [told for message in link.heard for told in told_in(message)]
    return [each for each in opened if isinstance(each, calls.TrainResults) and each.clients]


@pytest.mark.parametrize("name", CLIPPING)
def test_what_clients_clip_leaves_them_clipped(name: str) -> None:
    link, roster = linked(FIVE)
    over_nodes(CLIPPING[name], roster, FIVE)
    own, first = server_side(FIVE).initial_vector(3), trainings_in(link)[:5]
    assert len(first) == 5
    assert all(np.linalg.norm(told.vectors[0] - own) < 0.05 * (1 + 1e-5) for told in first)


def test_a_detection_tells_the_same_to_the_last_digit() -> None:
    federation = uneven_federation(sizes=(60, 45, 52, 48), min_release=5)
    link, roster = linked(federation, CLIENT_QUERIES)

    def report(grid: HostGrid[Any]) -> dict[str, Any]:
        found = detect(grid, grid.initial_vectors, SESSION.training, DetectionConfig(), seed=3)
        return found.without_timings().model_dump(mode="json")

    link.heard.clear()
    real = report(node_grid(federation, roster, SESSION))
    assert report(LocalGrid(federation, CLIENT_QUERIES, SESSION)) == real
    assert len(link.heard) == 4 * 2 * federation.num_clients, "four exchanges: a process starts for each message"


# -- Nodes that lie of themselves, and nodes that come and go ----------------------------------------------------------


def asking(reply: Message) -> Message:
    """Return a message that this is a reply to, as far as a reply tells."""
    message = Message(reply.content, reply.metadata.src_node_id, "query")
    message.metadata.__dict__["_message_id"] = reply.metadata.reply_to_message_id
    return message


def refusing(reply: Message) -> Message:
    """Return an error whose reason has many lines."""
    return Message(Error(7, "no\nERROR\x1b[2J" + "x" * 10**5), reply_to=asking(reply))


def introduced_as(**changes: Any) -> Callable[[Message], Message]:
    """Return what has the liar say otherwise who it is."""

    def lie(reply: Message) -> Message:
        reply.content = WIRE.packed(replace(WIRE.opened(reply.content), **changes))
        return reply

    return lie


CLAIMS: dict[str, Callable[[Message], Message]] = {
    "rows beyond all": introduced_as(num_rows=MAX_ROWS + 1),
    "rows below nothing": introduced_as(num_rows=-1),
    "rows as text": introduced_as(num_rows="17"),
    "a name of control characters": introduced_as(name="a\nERROR all is lost\x1b[2J"),
    "no name": introduced_as(name=""),
    "a name without end": introduced_as(name="x" * 10**6),
    "another's name": introduced_as(name="0"),
    "a position as list": introduced_as(position=[1]),
    "another version": introduced_as(version="0\n0"),
    "another model": introduced_as(model="x"),
    "an answer of another kind": lambda reply: Message(WIRE.packed(Greeting()), reply_to=asking(reply)),
    "an error of many lines": refusing,
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_bad_introduction_is_left_out(claim: str, caplog: pytest.LogCaptureFixture) -> None:
    link, _ = linked()
    link.tamper_with(LIAR, CLAIMS[claim])
    roster = met(link)
    assert LIAR in roster.strangers
    assert len(roster.members) == (2 if claim == "another's name" else 3)
    lines = [record.getMessage() for record in caplog.records if str(LIAR) in record.getMessage()]
    with pytest.raises(DataError) as error:
        roster.meet(4, patience=0.0)
    assert len(lines) == 1
    for line in (*lines, str(error.value)):
        assert line.isprintable()
        assert len(line) < 1000


def train(link: NodeLink, roster: NodeRoster, session: calls.Session = SESSION) -> Trial:
    """Train by FedAvg over the nodes that are connected."""
    return over_nodes(settings_of("fedavg", session=session, num_sampled=len(link.apps)), roster)


def test_a_claim_of_many_rows_leaves_the_others_room() -> None:
    """However many rows one claims, the mean of the others' models keeps float32's precision."""
    link, _ = linked()
    link.tamper_with(LIAR, introduced_as(num_rows=MAX_ROWS))
    claimed = met(link)
    assert len(claimed.members) == len(SIZES)
    honest, roster = linked()
    del link.apps[LIAR], honest.apps[LIAR]
    vectors = [train(*nodes).vector for nodes in ((link, claimed), (honest, roster))]
    np.testing.assert_allclose(*vectors, rtol=0, atol=1e-6)


@pytest.mark.parametrize("lingers", [False, True])
def test_who_was_restarted_takes_its_place_and_nobody_that_of_a_client_that_answers(lingers: bool) -> None:
    link, roster = linked()
    if lingers:
        link.tamper_with(FIRST_NODE, lambda _: None)
        roster._timeout = 0.1
    link.connect(99, 0)
    roster.refresh()
    assert roster.members[0].node == (99 if lingers else FIRST_NODE)
    assert lingers or "responds" in roster.strangers[99]


def test_a_node_that_never_answers_is_waited_for_once() -> None:
    link, _ = linked()
    link.tamper_with(LIAR, lambda _: None)
    roster = met(link, at_least=3, patience=0.3)
    started = time.monotonic()
    for _ in range(50):
        roster.refresh()
    assert time.monotonic() - started < 2
    del link.apps[LIAR]
    train(link, roster)


def test_a_reply_counts_once_from_whom_it_was_asked_and_for_what_was_asked() -> None:
    link, _ = linked()
    exchange, pull = Exchange(link), link.pull_messages
    kept: list[Message] = []

    def forged(reply: Message, **metadata: Any) -> Message:
        again = Message(WIRE.packed(Greeting()), reply_to=asking(reply))
        again.metadata.__dict__.update(metadata)
        return again

    def pulled(ids: Any) -> list[Message]:
        arrived = pull([*ids])
        kept.extend(arrived)
        from_another = [forged(reply, _src_node_id=LIAR) for reply in kept]
        return [*from_another, forged(kept[0], _reply_to_message_id="nothing of ours"), *arrived, *arrived, *kept]

    link.pull_messages = pulled  # type: ignore[method-assign]
    requests = [exchange.send(Message(WIRE.packed(Greeting()), FIRST_NODE, "query.fedscout")) for _ in range(2)]
    assert exchange.wait(requests, 1.0)
    for request in requests:
        assert request.reply is not None
        assert request.reply.metadata.src_node_id == FIRST_NODE
        assert isinstance(WIRE.opened(request.reply.content), Introduction)


@pytest.mark.slow
def test_an_answer_after_the_limit_is_not_taken_for_the_next_round_s() -> None:
    link, roster = linked()
    late: list[Message] = []

    def delay(reply: Message) -> Message | None:
        late.append(reply)
        return late[-2] if len(late) > 1 else None

    link.tamper_with(LIAR, delay)
    trial = train(link, roster, replace(SESSION, round_timeout_seconds=0.3))
    assert set(trial.dropped_clients) == {"1:1", "2:1", "3:1"}


def test_a_lost_node_costs_its_rounds_alone(caplog: pytest.LogCaptureFixture) -> None:
    link, roster = linked()
    replies = itertools.count(1)

    def lose(node: int, reply: Message) -> Message:
        if next(replies) == len(SIZES):  # the first round is done
            del link.apps[LIAR]
        return reply

    link.tamper = lose
    trial = train(link, roster)
    assert set(trial.dropped_clients) == {f"{server_round}:{BROKEN}" for server_round in (2, 3)}
    told = [one.message for one in caplog.records if one.name == "fedscout" and "connected" in one.message]
    assert len(told) == 1, "once, not every round"


def test_a_node_may_join_and_leave_every_round() -> None:
    link, roster = linked()
    ids = [LIAR]

    def flap(node: int, reply: Message) -> Message:
        if node == FIRST_NODE and reply.metadata.message_type.startswith("train"):
            ids.append(1000 + len(ids))
            link.apps[ids[-1]] = link.apps.pop(ids[-2])
        return reply

    link.tamper = flap
    over_nodes(settings_of("fedavg", num_rounds=6), roster)
    assert len(ids) == 1 + 6
    assert len(roster.members) == len(SIZES), "it is the client that it was"


@pytest.mark.parametrize("kind", ["oort", "flash"])
def test_a_policy_goes_on_without_whom_it_does_not_know(kind: str) -> None:
    link, roster = linked(FIVE)
    join_late(link, roster)
    settings = of_selection(kind, FEDERATION, num_rounds=4)
    trial = over_nodes(settings, roster, FIVE)
    assert len(trial.clients["id"]) == 5, "it is scored"
    assert trial.clients["rounds"][-1] == 0
    assert any("joined" in note for note in trial.notes)


def test_without_nodes_no_round_is_burnt(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Nobody is connected for five looks after the second round's training."""
    monkeypatch.setattr("fedscout.engine.nodes.grid.PAUSE_SECONDS", 0.01)
    link, roster = linked()
    nodes, look, looks = {**link.apps}, link.get_node_ids, itertools.count(1)
    trainings = itertools.count(1)

    def looked() -> list[int]:
        if not link.apps and next(looks) > 5:
            link.apps |= nodes
        return look()

    def lose(node: int, reply: Message) -> Message:
        if reply.metadata.message_type.startswith("train") and next(trainings) == 2 * len(SIZES):
            link.apps.clear()
        return reply

    link.get_node_ids, link.tamper = looked, lose  # type: ignore[method-assign]
    trial = train(link, roster)
    assert next(looks) > 6
    assert trial.dropped_clients == {}
    assert sum("connected" in record.getMessage() for record in caplog.records) == 1


def test_nobody_for_longer_than_a_round_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedscout.engine.nodes.grid.PAUSE_SECONDS", 0.01)
    link, roster = linked()
    link.apps.clear()
    with pytest.raises(EngineError, match=r"\b0\.1 s"):
        over_nodes(settings_of("fedavg", session=replace(SESSION, round_timeout_seconds=0.1)), roster)


def garbled(reply: Message) -> Message:
    reply.content.config_records["document"]["document"] = '["object", {}]'
    return reply


def of_nan(reply: Message) -> Message:
    answers = told_in(reply)
    for told in answers:
        if getattr(told, "vectors", None) is not None:
            told.vectors = [np.full_like(vector, np.nan) for vector in told.vectors]
    reply.content = WIRE.packed(NodeAnswers(tuple(answers)))
    return reply


FAULTS: dict[str, tuple[Callable[[Message], Message | None], str]] = {
    "nan": (of_nan, "finite"),
    "silent": (lambda _: None, "0.2 s"),
    "refuses": (lambda reply: reply, "training"),
    "garbage": (garbled, "can't be read"),
    "another number of answers": (lambda reply: Message(WIRE.packed(NodeAnswers(())), reply_to=asking(reply)), "match"),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_who_misbehaves_is_left_out(fault: str, caplog: pytest.LogCaptureFixture) -> None:
    (spoil, told), (link, roster) = FAULTS[fault], linked()
    link.tamper_with(LIAR, spoil)
    link.connect(LIAR, BROKEN, owner=owner_of(trains=fault != "refuses"))
    trial = train(link, roster, replace(SESSION, round_timeout_seconds=0.2 if fault == "silent" else 20.0))
    assert set(trial.dropped_clients) == {f"{server_round}:{BROKEN}" for server_round in (1, 2, 3)}
    assert all(told in reason for reason in trial.dropped_clients.values())
    lines = [record.message for record in caplog.records if f"client {BROKEN}" in record.message]
    assert len(lines) == 1 or fault == "silent"
    assert all("\n" not in line for line in lines)


# -- Answers that lie --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sends(ClientAlgorithm):
    """Its clients send a variate along."""

    auxiliary = MappingProxyType({"variate": "num-clients"})


WATCHED = calls.RoundSelection(calls.ReportRequest(training_losses=True, update_norms=True))
CALL = calls.HostCall(
    *((1,), replace(SESSION, algorithm=Sends()), base_config(SESSION, 1), np.zeros(3, np.float32)),
    evaluated=(1,),
    watched=WATCHED,
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
    "evaluation": calls.EvaluateResults({1: ClientScore(4, 2, 1.0)}),
}


def asked(call: calls.HostCall = CALL) -> ExpectedAnswer:
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
    "a loss of many digits": {"losses": [10**400]},
    "steps of many digits": {"num_steps": [10**400]},
    "as many right": {"evaluation": calls.EvaluateResults({1: ClientScore(4, 10**400, 1.0)})},
    "scores of as large a loss": {"evaluation": calls.EvaluateResults({1: ClientScore(4, 2, 10**400)})},
    "no model": {"vectors": None},
    "two models": {"vectors": [np.zeros(3, np.float32)] * 2},
    "a model in a model": {"vectors": [np.zeros((1, 3), np.float32)]},
    "a short model": {"vectors": [np.zeros(2, np.float32)]},
    "a model of doubles": {"vectors": [np.zeros(3)]},
    "a model of NaN": {"vectors": [np.full(3, np.nan, np.float32)]},
    "nothing beside it": {"auxiliary": {}},
    "something else beside it": {"auxiliary": {"x": [np.zeros(3, np.float32)]}},
    "no numbers beside it": {"auxiliary": {"variate": [np.full(3, np.inf, np.float32)]}},
    "a length below nothing": {"update_norms": {1: float("nan")}},
    "no length": {"update_norms": {0: 1.0}},
    "a loss below nothing": {"received_losses": {"train": {1: replace(MEANS, statistics=-LOSSES)}}},
    "losses without end": {"received_losses": {"train": {1: replace(MEANS, statistics=np.inf * LOSSES)}}},
    "losses of another kind": {"received_losses": {"train": {1: replace(MEANS, statistics=LOSSES[1:])}}},
    "losses of more rows": {"received_losses": {"train": {1: replace(MEANS, num_examples=18)}}},
    "what others keep": {"states": {0: {}}},
    "a state and no mark": {"states": {1: {"x": np.zeros(10**6, np.float32)}}},
    "another round's mark": {"states": {1: mark(7)}},
    "a score of more rows": {"evaluation": calls.EvaluateResults({1: ClientScore(18, 1, 1.0)})},
    "more right than rows": {"evaluation": calls.EvaluateResults({1: ClientScore(4, 5, 1.0)})},
    "fewer right than none": {"evaluation": calls.EvaluateResults({1: ClientScore(4, -1, 1.0)})},
    "a loss of scores below nothing": {"evaluation": calls.EvaluateResults({1: ClientScore(4, 1, -1.0)})},
    "a metric that nobody asked for": {"evaluation": calls.EvaluateResults({1: ClientScore(4, 1, 1.0, metric=0.5)})},
    "values withheld": {"num_withheld": 4},
    "far and farther": {"sums": {"far-from-table": [7.0]}},
}
WITH_METRIC = replace(CALL, session=replace(SESSION, metric=OF_CLASSES["macro_f1"]()))
SUMS: list[dict[str, Any]] = [
    *({}, {"unseen": np.zeros((3, 3), np.int64)}, {"own": np.zeros((2, 2), np.int64)}, {"own": np.zeros((3, 3))}),
    *({"own": np.full((3, 3), 18)}, {"own": np.full((3, 3), -1)}, {"own": np.array([[None] * 3] * 3, object)}),
]
VALUES = [np.array([np.nan]), np.array([np.inf]), np.array([1e200]), np.array(["x"])]


def test_an_honest_answer_passes() -> None:
    found = checked_training(calls.TrainResults(**GOOD), asked())
    assert (found.clients, found.num_examples, found.update_norms) == ([1], [17], {1: 0.5})
    assert (found.received_losses, found.auxiliary) == ({"train": {1: MEANS}}, GOOD["auxiliary"])


@pytest.mark.parametrize(
    ("check", "told", "call"),
    [
        *(
            pytest.param(checked_training, calls.TrainResults(**{**GOOD, **lie}), CALL, id=name)
            for name, lie in LIES.items()
        ),
        (checked_training, calls.EvaluateResults(), CALL),
        (checked_scores, calls.TrainResults(), CALL),
        (checked_query, calls.TrainResults(), CALL),
        *(
            (checked_scores, calls.EvaluateResults({1: ClientScore(4, 1, 1.0, metric=0.5)}, sums=sums), WITH_METRIC)
            for sums in SUMS
        ),
        *((checked_query, calls.QueryResults([1], [17], [{"x": value}]), CALL) for value in VALUES),
    ],
)
def test_an_answer_that_lies_is_not_used(check: Any, told: Any, call: calls.HostCall) -> None:
    with pytest.raises(AnswerError) as refusal:
        check(told, asked(call))
    assert str(refusal.value).isprintable()


def test_what_nobody_asked_for_does_not_pass() -> None:
    call = replace(CALL, evaluated=(), watched=None)
    more = {"durations": {0: 1e9}, "large": [0], "total": np.zeros(3, np.int64), "diverged": [0]}
    found = checked_training(calls.TrainResults(**{**GOOD, **more, "failures": {0: "x"}, "seconds": -1.0}), asked(call))
    assert (found.evaluation, found.received_losses, found.update_norms) == (None, {}, {})
    assert (found.durations, found.large, found.total, found.diverged) == ({}, [], None, [])
    assert (found.failures, found.seconds) == ({}, 0.0)


def test_whose_answers_have_another_form_than_most_is_left_out() -> None:
    def told(client: int, *sums: str) -> calls.TrainResults:
        return calls.TrainResults(clients=[client], sums={name: [1.0] for name in sums})

    found = like_most([told(0, "a"), told(1, "b"), told(2, "a"), calls.TrainResults(failures={3: "why"})])
    assert [one.clients for one in found] == [[0], [], [2], []]
    assert [[*one.failures] for one in found] == [[], [1], [], [3]]


# -- A driver that was killed goes on over nodes with the same bits, as long as clients have what they kept ------------


Nodes = tuple[NodeLink, NodeRoster]


def nodes_with(folder: Path | None) -> Nodes:
    """Return nodes whose owners have a folder each."""
    link, roster = linked(NORMALISED)
    for client in range(NORMALISED.num_clients) if folder is not None else ():
        link.connect(node_of(client), client, NORMALISED, owner_of(folder=folder / str(client)))
    return link, roster


def run(nodes: Nodes, settings: TrialSettings, store: Path | None = None, stop_in: int | None = None) -> Trial:
    """Run a trial as a driver that was just started, up to a round."""
    grid = node_grid(NORMALISED, nodes[1], settings.session, settings.checkpoint)
    stop = None if stop_in is None else interrupt_in(stop_in)
    trial = run_trial(settings, grid, CheckpointStore(store, every_rounds=1), stop)
    assert trial.error is None
    return trial


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "lost"), [("scaffold", "nothing"), ("fedbn", "nothing"), ("scaffold", "the run's"), ("ditto", "the run's")]
)
def test_a_killed_driver_has_the_same_bits(kind: str, lost: str, tmp_path: Path) -> None:
    settings = settings_of(kind, NORMALISED, num_rounds=4)
    expected = run(nodes_with(None), settings)
    nodes = nodes_with(tmp_path / "owners" if lost != "nothing" else None)
    with pytest.raises(Interruption):
        run(nodes, settings, tmp_path / "store", stop_in=3)
    if lost == "the run's":  # Flower forgets what it kept for the clients when a run ends
        for _, context in nodes[0].apps.values():
            context.state = RecordDict()
    resumed = run(nodes, settings, tmp_path / "store")
    assert np.array_equal(resumed.vector, expected.vector)
    assert (resumed.rounds["accuracy"], resumed.dropped_clients) == (expected.rounds["accuracy"], {})


def test_what_is_lost_for_good_costs_a_round_and_is_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = settings_of("ditto", NORMALISED, num_rounds=5)
    nodes = nodes_with(tmp_path / "owners")
    with pytest.raises(Interruption):
        run(nodes, settings, tmp_path / "store", stop_in=2)
    nodes[0].apps[LIAR][1].state = RecordDict()
    shutil.rmtree(tmp_path / "owners" / str(BROKEN))
    trial = run(nodes, settings, tmp_path / "store")
    assert set(trial.dropped_clients) == {f"2:{BROKEN}"}
    assert sum("lost its state" in record.message for record in caplog.records if record.name == "fedscout") == 1


# -- Tables of settings over nodes, and what does not go over nodes ----------------------------------------------------


CELLS = SettingsTable((SettingsCell(0.0, 15, 0.3, 4, 3), SettingsCell(0.0, 30, 0.05, 16, 1)), threshold=0.05)


def over_a_table(table: SettingsLookup) -> NodeLink:
    """Train with a table of settings over nodes that do not say how many rows they hold."""
    link, _ = linked(FIVE)
    link.heard.clear()
    roster = met(link, FIVE, FIVE.num_clients, patience=5.0, timeout=5.0, asks_rows=False)
    session = replace(SESSION, client_table=table)
    over_nodes(settings_of("fedavg", FIVE, session, num_rounds=2), roster, FIVE)
    return link


def shapes(value: Any) -> Any:
    """Return a document without the numbers that training shows: losses, and the share of rows that are right."""
    if isinstance(value, dict):
        shown = {"losses", "loss_sum", "num_correct", "sums", "clients", "own", "name", "position"}
        return {key: shapes(item) for key, item in value.items() if key not in shown}
    return [shapes(item) for item in value] if isinstance(value, list) else value


def test_no_message_tells_the_cell_of_a_table() -> None:
    """Clients of 40 and of 17 rows take different cells; but models, losses and scores their answers are the same."""
    of_client: dict[int, list[Any]] = {}
    for message in over_a_table(SettingsLookup(CELLS)).heard:
        if message.metadata.reply_to_message_id:
            (config,) = message.content.config_records.values()
            of_client.setdefault(message.metadata.src_node_id, []).append(shapes(json.loads(str(config[DOCUMENT_KEY]))))
    large, small = of_client[FIRST_NODE], of_client[LIAR]
    assert len(large) == len(small) > 2
    assert large == small
    told = json.dumps([large, small])
    assert not any(f" {rows}" in told for rows in (32, 8, 14, 3, 40, 17)), "rows that train, are tested, are held"


@pytest.mark.slow
def test_who_is_far_from_a_table_is_drawn_by_the_client_and_once() -> None:
    seen = set()
    for _ in range(5):  # all alike once in a million
        trained = trainings_in(over_a_table(SettingsLookup(CELLS, epsilon=0.01)))
        said = {client: {each.sums[FAR_KEY][0] for each in trained if each.clients == [client]} for client in range(5)}
        assert all(len(answers) == 1 for answers in said.values()), "the same in all rounds"
        seen.add(tuple(answer for answers in said.values() for answer in answers))
        if len(seen) > 1:
            break
    assert len(seen) > 1, "the session's seed does not decide"


def test_a_metric_that_tells_the_cell_of_a_table_and_quantities_are_refused_before_anything_trains() -> None:
    _, roster = linked(FIVE)
    session = replace(SESSION, client_table=SettingsLookup(CELLS), metric=OF_CLASSES["macro_f1"]())
    with refused(DataError, key="a table of client settings"):
        node_grid(FIVE, roster, session)
    targets = FIVE.labels.astype(np.float32)
    quantities = server_side(replace(FIVE, targets=targets, num_classes=1), targets=targets[:0])
    with refused(DataError, key="clients on their own machines"):
        NodeGrid(roster, quantities, WIRE, SESSION)
