"""A client on a machine of its own: answers what a driver asks, as far as its owner allows.

It is a `ClientHost` of one client, so what it computes is what a simulation computes of the same rows. Two kinds of
messages are answered:

- calls of this program's drivers (`node_call`);
- `train` and `evaluate` messages of any Flower strategy: arrays by the model's names or as one flat vector, and a
  configuration with the keys of local training, what it leaves out being as `Session` has it.

Reasons that go back hold nothing of the rows; what goes wrong with them is told in the client's own log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version

from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedscout.engine.client.client_host import ClientHost
from fedscout.engine.data.client_query import QueryTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.release import Privacy, Release, WithheldError
from fedscout.engine.errors import FedscoutError
from fedscout.engine.fault_text import shown
from fedscout.engine.grid.jobs import base_config
from fedscout.engine.messages.client_half import one_learning_rate
from fedscout.engine.messages.host_calls import EvaluateResults, HostCall, QueryResults, TrainResults
from fedscout.engine.messages.message_contents import flat_vector
from fedscout.engine.messages.message_keys import (
    ARRAYS_KEY,
    FLAT_KEY,
    FUNCTION_KEY,
    METRICS_KEY,
    NUM_EXAMPLES_KEY,
    RATE_KEY,
    REPLY_KEY,
    ROUND_KEY,
)
from fedscout.engine.messages.session import Session
from fedscout.engine.nodes.kept_states import KeptStates, LostStateError
from fedscout.engine.nodes.node_call import ACTION, Greeting, Introduction, NodeCall, Wire, model_digest
from fedscout.engine.nodes.owner_policy import OwnerPolicy, RefusedError
from fedscout.engine.nodes.privacy_ledger import PrivacyLedger

logger = logging.getLogger("fedscout")

REFUSED = 1001
"""Error code of what an owner or a client refuses; Flower's own lie below 100."""

FederationOf = Callable[[int, str, Context], Federation]
"""Told a client's number, what was agreed on and Flower's context, a federation in which that client holds its rows."""


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
            except (RefusedError, WithheldError) as refusal:
                reason = str(refusal)
            except FedscoutError as error:
                logger.error("%s", error)
                reason = "can't use its data as agreed; its own log says why"
            except Exception as error:
                logger.exception("a message could not be answered")
                reason = f"failed with {type(error).__name__}; its own log says where"
            logger.warning("not answered: %s", reason)
            return Message(Error(REFUSED, reason), reply_to=message)

        return handle

    def _host(self, client: int, terms: str, context: Context, privacy: Privacy | None = None) -> ClientHost:
        """Return what does a client's work, with the owner's word on what leaves it."""
        federation = self._federation_of(client, terms, context)
        release = Release(self._owner.min_release, self._owner.small_clients, privacy)
        return ClientHost(replace(federation, release=release), self._queries)

    def _called(self, message: Message, context: Context) -> RecordDict:
        """Answer a driver of this program."""
        try:
            asked = self._wire.opened(message.content)
        except ValueError as error:
            raise RefusedError(f"can't read the message: {error}") from error
        if isinstance(asked, Greeting):
            return self._wire.packed(self._introduction(asked, context))
        if not isinstance(asked, NodeCall) or asked.method not in ("train", "measure", "evaluate", "query"):
            raise RefusedError(f"can't answer {shown(type(asked).__name__)}")
        return self._wire.packed(self._done(asked, context))

    def _introduction(self, greeting: Greeting, context: Context) -> Introduction:
        facts = self._host(0, greeting.terms, context).facts()
        position, rows = _position(context), int(facts.client_rows[0])
        return Introduction(
            name=str(context.node_config.get("name", context.node_id if position is None else position)),
            position=position,
            num_rows=rows if greeting.asks_rows and rows >= self._owner.min_release else 0,
            grouped=facts.grouped,
            model=model_digest(facts),
            version=version("fedscout"),
        )

    def _done(self, asked: NodeCall, context: Context) -> TrainResults | EvaluateResults | QueryResults:
        """Return what one client's part of the work gives."""
        call = asked.call
        self._owner.check(asked.method, str(call.config.get(FUNCTION_KEY, "")))
        if call.evaluated and not self._owner.scores:
            call = replace(call, evaluated=())
        measured = () if call.watched is None else call.watched.measured
        (client,) = {*call.clients, *call.evaluated, *measured}
        if asked.method == "query":
            return self._answer(asked, client, context)
        host = self._host(client, asked.terms, context)
        kept = KeptStates(context.state, self._owner.folder)
        try:
            states = {one: kept.find(asked.trial, marked) for one, marked in call.states.items() if marked}
        except LostStateError:
            return TrainResults(
                failures={client: "lost what it kept for this training, and begins anew"}, states={client: {}}
            )
        call = replace(call, states=states, config={**call.config, REPLY_KEY: "individual"})
        results: TrainResults | EvaluateResults = getattr(host, asked.method)(call)
        if isinstance(results, TrainResults):
            server_round = int(call.config[ROUND_KEY])
            results.states = {
                one: kept.keep(asked.trial, server_round, state) if state else {}
                for one, state in results.states.items()
            }
        return results

    def _answer(self, asked: NodeCall, client: int, context: Context) -> QueryResults:
        """Answer a query, within the owner's ε if there is one."""
        owner, call = self._owner, asked.call
        if owner.epsilon is None or owner.folder is None:
            return self._host(client, asked.terms, context).query(call)
        ledger, name = PrivacyLedger(owner.folder, owner.epsilon, owner.delta), str(call.config[FUNCTION_KEY])
        terms = {key: value for key, value in call.config.items() if key != FUNCTION_KEY}
        told = ledger.repeated(name, terms)
        if told is None:
            host = self._host(client, asked.terms, context, ledger.spend(terms))
            results = host.query(call)
            for arrays in results.arrays:
                ledger.note(name, terms, arrays)
            return results
        rows = int(self._host(client, asked.terms, context).facts().client_rows[client])
        return QueryResults([client], [rows], [told])

    def _plain_training(self, message: Message, context: Context) -> RecordDict:
        """Answer a train message of any Flower strategy."""
        self._owner.check("train")
        host, call, record = self._plain_call(message, context)
        (client,) = call.clients
        results = host.train(call)
        if results.failures:
            raise RefusedError(results.failures[client])
        assert results.vectors is not None
        arrays = {FLAT_KEY: results.vectors[0], **host.facts().layout.split(results.vectors[0])}
        metrics = MetricRecord({NUM_EXAMPLES_KEY: results.num_examples[0], "loss": results.losses[0]})
        trained = ArrayRecord({name: Array(arrays[name]) for name in record})
        return RecordDict({ARRAYS_KEY: trained, METRICS_KEY: metrics})

    def _plain_scoring(self, message: Message, context: Context) -> RecordDict:
        """Answer an evaluate message of any Flower strategy."""
        self._owner.check("evaluate")
        host, call, _ = self._plain_call(message, context)
        (client,) = call.clients
        results = host.evaluate(call)
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
            vector = flat_vector(records[0], host.facts().layout)
        except ValueError as error:
            raise RefusedError(f"can't use the model that it was sent: {error}") from error
        own = {key: value for record in message.content.config_records.values() for key, value in record.items()}
        told = own.get(ROUND_KEY)
        config = {**base_config(self._session, told if isinstance(told, int) else 1), **own}
        config[RATE_KEY] = one_learning_rate(config, self._session.training.learning_rate)
        config[REPLY_KEY] = "individual"
        return host, HostCall((client,), self._session, config, vector), records[0]


def _position(context: Context) -> int | None:
    """Return the place among the clients that the owner gave this one."""
    given = context.node_config.get("partition-id")
    return given if isinstance(given, int) and not isinstance(given, bool) else None
