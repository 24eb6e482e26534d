"""A client on a machine of its own: answers what a driver asks, as far as its owner allows.

It is a `ClientHost` of one client, so what it computes is what a simulation computes of the same rows. Two kinds of
messages are answered:

- calls of this program's drivers (`node_call`), without what only a simulation may hear (`presentable_answers`);
- `train` and `evaluate` messages of any Flower strategy: arrays by the model's names or as one flat vector, and a
  configuration with the keys of local training, what it leaves out being as `Session` has it.

Reasons that go back hold nothing of the rows; what goes wrong with them is told in the client's own log.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedscout.engine.client.client_host import ClientHost
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.settings_lookup import FAR_KEY
from fedscout.engine.data.client_query import QueryTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.release import Privacy, Release, WithheldError
from fedscout.engine.errors import FedscoutError, TrialError
from fedscout.engine.fault_text import shown
from fedscout.engine.grid.jobs import base_config
from fedscout.engine.messages.client_half import one_learning_rate
from fedscout.engine.messages.host_calls import EvaluateResults, HostCall, QueryResults, TrainResults
from fedscout.engine.messages.message_contents import flat_vector, integer_buffers
from fedscout.engine.messages.message_keys import (
    ARRAYS_KEY,
    FLAT_KEY,
    FUNCTION_KEY,
    INITIAL_LOSS_KEY,
    METRICS_KEY,
    NUM_EXAMPLES_KEY,
    RATE_KEY,
    REPLY_KEY,
    ROUND_KEY,
)
from fedscout.engine.messages.session import Session
from fedscout.engine.nodes.kept_states import KeptStates, LostStateError, drawn_once
from fedscout.engine.nodes.node_call import (
    ACTION,
    Greeting,
    Introduction,
    NodeAnswers,
    NodeCall,
    NodeCalls,
    Refusal,
    Wire,
    model_digest,
    one_line,
)
from fedscout.engine.nodes.owner_policy import NO_SCORING, NO_TRAINING, OwnerPolicy, RefusedError
from fedscout.engine.nodes.presentable_answers import clip, presentable
from fedscout.engine.nodes.privacy_ledger import PrivacyLedger, alone_with

logger = logging.getLogger("fedscout")

MAX_CLIENTS = 2**20
"""Beyond which no client is numbered."""

REFUSED = 1001
"""Error code of what an owner or a client refuses; Flower's own lie below 100."""

FederationOf = Callable[[int, str, Context], Federation]
"""Told a client's number, the digest of what was agreed on and Flower's context, a federation of that client's rows."""


class ClientNode:
    """One client.

    Args:
        federation_of: Gives its rows.
        queries: The aggregates that it knows.
        owner: What the owner allows.
        wire: Reads and writes messages.
        session: Of messages that bring none: those of other programs' strategies.
    """

    def __init__(
        self,
        federation_of: FederationOf,
        queries: QueryTable,
        owner: OwnerPolicy,
        wire: Wire,
        session: Session | None = None,
    ) -> None:
        self._federation_of, self._queries = federation_of, queries
        self._owner, self._wire = owner, wire
        self._session = session or Session()
        self._hosts: dict[tuple[int, str, Privacy | None], ClientHost] = {}  # of one message

    def app(self) -> ClientApp:
        """Return the Flower app that a SuperNode runs."""
        app = ClientApp()
        app.train()(self._guarded(self._plain_training))
        app.evaluate()(self._guarded(self._plain_scoring))
        for category in (app.train, app.evaluate, app.query):
            category(ACTION)(self._guarded(self._called))
        return app

    def _guarded(self, answer: Callable[[Message, Context], RecordDict]) -> Callable[[Message, Context], Message]:
        """Return a handler whose refusals are one line, without a word of the rows."""

        def handle(message: Message, context: Context) -> Message:
            try:
                return Message(answer(message, context), reply_to=message)
            except Exception as error:
                return Message(Error(REFUSED, _reason(error)), reply_to=message)

        return handle

    def _host(self, client: int, terms: str, context: Context, privacy: Privacy | None = None) -> ClientHost:
        """Return what does a client's work, with the owner's word on what leaves it."""
        known = client, terms, privacy
        if known not in self._hosts:
            federation = self._federation_of(client, terms, context)
            release = Release(self._owner.min_release, self._owner.small_clients, privacy)
            self._hosts[known] = ClientHost(replace(federation, release=release), self._queries)
        return self._hosts[known]

    def _called(self, message: Message, context: Context) -> RecordDict:
        """Answer a driver of this program."""
        try:
            asked = self._wire.opened(message.content)
        except ValueError as error:
            raise RefusedError(f"can't read the message: {error}") from error
        if isinstance(asked, Greeting):
            return self._wire.packed(self._introduction(asked, context))
        if not isinstance(asked, NodeCalls):
            raise RefusedError(f"can't answer {shown(type(asked).__name__)}")
        return self._wire.packed(NodeAnswers(tuple(self._tried(call, context) for call in asked.calls)))

    def _introduction(self, greeting: Greeting, context: Context) -> Introduction:
        facts = self._host(0, greeting.terms, context).facts()
        position, rows = _position(context), int(facts.client_rows[0])
        tells = greeting.asks_rows and rows >= self._owner.min_release
        return Introduction(
            name=str(context.node_config.get("name", context.node_id if position is None else position)),
            position=position,
            num_rows=rows if tells else 0,
            grouped=facts.grouped,
            model=model_digest(facts),
            version=version("fedscout"),
        )

    def _tried(self, asked: NodeCall, context: Context) -> TrainResults | EvaluateResults | QueryResults | Refusal:
        """Return what one call gives, or why it was not done."""
        try:
            return self._done(asked, context)
        except Exception as error:
            return Refusal(_reason(error))

    def _done(self, asked: NodeCall, context: Context) -> TrainResults | EvaluateResults | QueryResults:
        """Return what one client's part of the work gives."""
        if asked.method not in ("train", "measure", "evaluate", "query"):
            raise RefusedError(f"can't do {shown(asked.method)}")
        call = asked.call
        measured = () if call.watched is None else call.watched.measured
        clients = {*call.clients, *call.evaluated, *measured}
        if len(clients) != 1 or not 0 <= min(clients) < MAX_CLIENTS:
            raise RefusedError(f"must be asked as one client below {MAX_CLIENTS}, got {shown(sorted(clients))}")
        (client,) = clients
        if asked.method == "query":
            self._owner.check("query", str(call.config.get(FUNCTION_KEY, "")))
            return self._answer(asked, client, context)
        if call.vector is None:
            raise RefusedError("must be sent a model")
        call, reason = self._allowed(asked)
        kept = KeptStates(context.state, self._owner.folder)
        marked = call.states.get(client)
        try:
            states = {client: kept.find(asked.trial, marked)} if marked else {}
        except LostStateError:
            return _lost(asked.method, call, client)
        call = replace(call, states=states, config={**call.config, REPLY_KEY: "individual"})
        host = self._host(client, asked.terms, context)
        results: TrainResults | EvaluateResults = getattr(host, asked.method)(_told_truly(call))
        if isinstance(results, TrainResults):
            server_round = int(call.config[ROUND_KEY])
            results.states = {
                one: kept.keep(asked.trial, server_round, state, marked) if state else {}
                for one, state in results.states.items()
            }
            if reason:
                results.failures[client] = reason
            self._say_far(call, results, context)
            clip(call, host.facts().layout, results)
        return presentable(results, call)

    def _allowed(self, asked: NodeCall) -> tuple[HostCall, str]:
        """Return what the owner allows of a call, and why a training was left out of it.

        Raises:
            RefusedError: If that is nothing.
        """
        call, owner, reason = asked.call, self._owner, ""
        if asked.method != "train":
            owner.check(asked.method)
        if call.clients and not owner.trains:
            if not (call.evaluated and owner.scores):
                raise RefusedError(NO_TRAINING)
            call, reason = replace(call, clients=()), NO_TRAINING
        if not owner.scores:
            if not call.clients or call.config.get(INITIAL_LOSS_KEY):
                raise RefusedError(NO_SCORING)
            watched = call.watched
            if watched is not None:
                blind = replace(watched.observed, training_losses=False, validation_losses=False)
                watched = replace(watched, observed=blind, measured=())
            call = replace(call, evaluated=(), watched=watched)
        return call, reason

    def _say_far(self, call: HostCall, results: TrainResults, context: Context) -> None:
        """Answer by chance whether the client is far from a table, if so agreed: with a draw that only it knows.

        The draw of a simulation follows from the seed. This one is made once for a table, or several would tell.
        """
        table = call.session.client_table
        if table is None or FAR_KEY not in results.sums or (table.epsilon is None and self._owner.epsilon is None):
            return
        terms = {"epsilon": table.epsilon, "table": table.digest()}

        def response() -> float:
            lies = secrets.SystemRandom().random() < table.lying
            return float(bool(results.sums[FAR_KEY][0]) ^ lies)

        told = drawn_once(context.state, table.digest(), lambda: self._paid_once(FAR_KEY, terms, response))
        results.sums[FAR_KEY] = [told]

    def _paid_once(self, name: str, terms: Mapping[str, Any], answer: Callable[[], float]) -> float:
        owner = self._owner
        if owner.epsilon is None or owner.folder is None:
            return answer()
        with alone_with(owner.folder):
            ledger = PrivacyLedger(owner.folder, owner.epsilon, owner.delta)
            told = ledger.repeated(name, terms)
            if told is None:
                ledger.spend(terms)
                told = {name: np.array(answer())}
                ledger.note(name, terms, told)
        return float(told[name])

    def _answer(self, asked: NodeCall, client: int, context: Context) -> QueryResults:
        """Answer a query, within the owner's ε if there is one."""
        owner, call = self._owner, asked.call
        if owner.epsilon is None or owner.folder is None:
            return presentable(self._host(client, asked.terms, context).query(call), call)
        name = str(call.config[FUNCTION_KEY])
        terms = {key: value for key, value in call.config.items() if key != FUNCTION_KEY}
        with alone_with(owner.folder):
            ledger = PrivacyLedger(owner.folder, owner.epsilon, owner.delta)
            told = ledger.repeated(name, terms)
            if told is None:
                results = self._host(client, asked.terms, context, ledger.spend(terms)).query(call)
                for arrays in results.arrays:
                    ledger.note(name, terms, arrays)
                return presentable(results, call)
        rows = int(self._host(client, asked.terms, context).facts().client_rows[client])
        return QueryResults([client], [rows], [told])

    def _plain_training(self, message: Message, context: Context) -> RecordDict:
        """Answer a train message of any Flower strategy."""
        self._owner.check("train")
        host, call, record = self._plain_call(message, context)
        (client,) = call.clients
        results = host.train(call)
        clip(call, host.facts().layout, results, named=FLAT_KEY not in record)
        results = presentable(results, call)
        if results.failures:
            raise RefusedError(results.failures[client])
        assert results.vectors is not None
        layout, (vector,), (num_steps,) = host.facts().layout, results.vectors, results.num_steps
        arrays = {FLAT_KEY: vector, **layout.split(vector, layout.integers_after(call.arrays, num_steps))}
        sums = {name: values[0] for name, values in results.sums.items()}
        metrics = MetricRecord({NUM_EXAMPLES_KEY: results.num_examples[0], "loss": results.losses[0], **sums})
        trained = ArrayRecord({name: Array(arrays[name]) for name in record})
        return RecordDict({ARRAYS_KEY: trained, METRICS_KEY: metrics})

    def _plain_scoring(self, message: Message, context: Context) -> RecordDict:
        """Answer an evaluate message of any Flower strategy."""
        self._owner.check("evaluate")
        host, call, _ = self._plain_call(message, context)
        (client,) = call.clients
        results = presentable(host.evaluate(call), call)
        if results.failures:
            raise RefusedError(results.failures[client])
        score = results.own[client]
        rows = score.num_examples
        shares = {"accuracy": score.num_correct / max(1, rows), "loss": score.loss_sum / max(1, rows)}
        return RecordDict({METRICS_KEY: MetricRecord({NUM_EXAMPLES_KEY: rows, **shares})})

    def _plain_call(self, message: Message, context: Context) -> tuple[ClientHost, HostCall, ArrayRecord]:
        """Return what does the work, the call that a message amounts to, and the model's record."""
        client = _position(context) or 0
        host = self._host(client, "", context)
        records = [*message.content.array_records.values()]
        if len(records) != 1:
            raise RefusedError(f"must be sent one ArrayRecord, got {len(records)}")
        try:
            layout = host.facts().layout
            vector, integers = flat_vector(records[0], layout), integer_buffers(records[0], layout)
        except ValueError as error:
            raise RefusedError(f"can't use the model that it was sent: {one_line(str(error))}") from error
        own = {key: value for record in message.content.config_records.values() for key, value in record.items()}
        told = own.get(ROUND_KEY)
        config = {**base_config(self._session, told if isinstance(told, int) else 1), **own}
        try:
            config[RATE_KEY] = one_learning_rate(config, self._session.training.learning_rate)
            LocalTraining.from_config(config)
        except TrialError as error:
            raise RefusedError(str(error)) from error
        config[REPLY_KEY] = "individual"
        return host, HostCall((client,), self._session, config, vector, integers), records[0]


def _reason(error: Exception) -> str:
    """Return what the driver is told of an error: nothing of the rows; the client's own log has the rest."""
    if isinstance(error, RefusedError | WithheldError):
        reason = str(error)
    elif isinstance(error, FedscoutError):
        logger.error("%s", error)
        reason = "can't use its data as agreed; its own log says why"
    else:
        logger.error("a message could not be answered", exc_info=error)
        reason = f"failed with {type(error).__name__}; its own log says where"
    logger.warning("not answered: %s", reason)
    return reason


def _lost(method: str, call: HostCall, client: int) -> TrainResults | EvaluateResults:
    """Return the answer of a client that has not what it should have kept: it has nothing from now on."""
    reason = "lost what it kept for this training, and begins anew"
    scores = EvaluateResults(failures={client: reason})
    if method == "evaluate":
        return scores
    failures = {client: reason} if client in call.clients else {}
    return TrainResults(failures=failures, states={client: {}}, evaluation=scores if call.evaluated else None)


def _told_truly(call: HostCall) -> HostCall:
    """Return a call by which a client says whether it is far from a table without a draw from the session's seed."""
    table = call.session.client_table
    if table is None or table.epsilon is None:
        return call
    return replace(call, session=replace(call.session, client_table=replace(table, epsilon=None)))


def _position(context: Context) -> int | None:
    """Return the place among the clients that the owner gave this one."""
    given = context.node_config.get("partition-id")
    return given if isinstance(given, int) and not isinstance(given, bool) else None
