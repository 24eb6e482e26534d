"""A client on a remote machine: answers a driver's requests within the limits of its owner's policy.

It wraps a `ClientHost` of one client, so its results are those of a simulation on the same rows. Two kinds of messages
are answered:

- calls of this program's drivers (`NodeCall`), without results that only a simulation may see (`presentable`);
- `train` and `evaluate` messages of any Flower strategy: arrays by the model's names or as one flat vector, and a
  configuration with the keys of local training, whose missing keys default to those of `Session`.

Persistent client state stays on the client's machine (`KeptStates`). The driver gets a mark instead: the round after
which the state was stored. A mark is sent, checkpointed and returned as a client's state is in a simulation. The state
is stored in Flower's `context.state`, which ends with the run, and in the owner's folder, if configured, from which a
restarted run resumes. Of each trial two states are kept: the one whose mark the driver sent with this round, and the
one after it. A driver that was killed, or that did not wait for a reply, sends the former's mark again.

Replies to a driver leave out what a simulation would report:

- Only the type of an error is reported, as the text of an error in a model or an algorithm may contain rows. The full
  error is written to the client's own log.
- With a table of client settings (`fedscout.engine.contracts.client_table`) nothing may disclose the cell: scores are
  normalised to one row, and compute time is not reported.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientScore, ClientState
from fedscout.engine.contracts.client_table import FAR_KEY
from fedscout.engine.data.client import Privacy, QueryTable, Release, WithheldError
from fedscout.engine.data.federation import AbsentError, Federation
from fedscout.engine.errors import FedscoutError, TrialError
from fedscout.engine.grid import replies
from fedscout.engine.messages import keys
from fedscout.engine.messages.calls import EvaluateResults, HostCall, QueryResults, Session, TrainResults
from fedscout.engine.nodes import wire
from fedscout.engine.nodes.policy import NO_SCORING, NO_TRAINING, OwnerPolicy, PrivacyLedger, RefusedError, alone_with
from fedscout.engine.runtime.files import write_atomically
from fedscout.engine.text import shown

ROUND = "kept-after-round"

TRIALS_KEPT = 8
"""Of those that a client took part in last."""


class LostStateError(Exception):
    """The state of a mark is not available."""


def is_mark(state: object, server_round: int) -> bool:
    """Return whether a value is the mark of the state after a round."""
    if not isinstance(state, dict) or [*state] != [ROUND]:
        return False
    return isinstance(state[ROUND], np.ndarray) and np.array_equal(state[ROUND], [server_round])


def mark(server_round: int) -> ClientState:
    """Return the mark of the state after a round."""
    return {ROUND: np.array([server_round], np.float32)}


class KeptStates:
    """The stored states of one client: for each trial the arrays of one or two rounds, named `ROUND/NAME`.

    Args:
        memory: Flower's `context.state`.
        folder: Additional persistent storage; None means none.
    """

    def __init__(self, memory: RecordDict, folder: Path | None = None) -> None:
        self._memory, self._folder = memory, folder

    def find(self, trial: str, marked: ClientState) -> ClientState:
        """Return the state of a mark.

        Raises:
            LostStateError: If it is missing or can't be read.
        """
        after = marked.get(ROUND)
        if after is None or after.shape != (1,) or not float(after[0]).is_integer():
            raise LostStateError
        state = _of_round(self._stored(trial), int(after[0]))
        if not state:
            raise LostStateError
        return state

    def keep(self, trial: str, server_round: int, state: ClientState, marked: ClientState | None = None) -> ClientState:
        """Store a state, and return its mark.

        Args:
            trial: The trial's key.
            server_round: The round after which it is stored.
            state: The state, not empty.
            marked: The mark received in this round, if any. Its state is kept as well; all others of the trial are
                removed.
        """
        states = {server_round: state}
        if marked and (before := int(marked[ROUND][0])) != server_round:
            states[before] = _of_round(self._stored(trial), before)
        arrays = {f"{after}/{name}": values for after, each in states.items() for name, values in each.items()}
        key, path = _key(trial), self._path(trial)
        self._memory.pop(key, None)  # the trial is the last one again
        self._memory[key] = ArrayRecord({name: Array(np.ascontiguousarray(values)) for name, values in arrays.items()})
        for old in [each for each in self._memory if each.startswith(_key(""))][:-TRIALS_KEPT]:
            del self._memory[old]
        if path is not None:
            write_atomically(path, lambda temporary: _write(temporary, arrays))
            files = sorted(path.parent.glob("*.npz"), key=lambda each: each.stat().st_mtime_ns)
            for old_file in {*files[:-TRIALS_KEPT]} - {path}:
                old_file.unlink()
        return mark(server_round)

    def _stored(self, trial: str) -> Mapping[str, npt.NDArray[Any]]:
        """Return the arrays of a trial; none if they are missing or can't be read."""
        record, path = self._memory.get(_key(trial)), self._path(trial)
        if isinstance(record, ArrayRecord):
            return {name: array.numpy() for name, array in record.items()}
        if path is None or not path.is_file():
            return {}
        with suppress(Exception), path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
        return {}  # whatever a damaged file has NumPy raise

    def _path(self, trial: str) -> Path | None:
        if self._folder is None or not re.fullmatch(r"[0-9a-f]{64}", trial):
            return None
        return self._folder / "kept" / f"{trial[:32]}.npz"


def _key(trial: str) -> str:
    return f"kept.{trial}"


def _of_round(arrays: Mapping[str, npt.NDArray[Any]], server_round: int) -> ClientState:
    prefix = f"{server_round}/"
    return {name.removeprefix(prefix): values for name, values in arrays.items() if name.startswith(prefix)}


def _write(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    with path.open("wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


logger = logging.getLogger("fedscout")

Results = TypeVar("Results", TrainResults, EvaluateResults, QueryResults, TrainResults | EvaluateResults)

_ERROR = re.compile(r"(?P<kind>\w+) in (?P<work>local training|evaluation|query '[^']*'): .*", re.DOTALL)


def presentable(results: Results, call: HostCall) -> Results:
    """Return results as they may leave the client."""
    hides_cell = call.session.client_table is not None
    results.failures = _without_row_data(results.failures)
    if isinstance(results, TrainResults) and results.evaluation is not None:
        results.evaluation = presentable(results.evaluation, call)
    if hides_cell:
        results.seconds = 0.0
    if hides_cell and isinstance(results, TrainResults):
        results.received_losses = {part: _as_one_row(scores) for part, scores in results.received_losses.items()}
    if hides_cell and isinstance(results, EvaluateResults):
        results.own, results.clean = _as_one_row(results.own), _as_one_row(results.clean)
        results.received, results.sums = _as_one_row(results.received), {}
    return results


def _without_row_data(failures: Mapping[int, str]) -> dict[int, str]:
    """Return failures without text that may disclose rows; absences by design contain none and are kept."""
    reported = {}
    for client, reason in failures.items():
        match = _ERROR.fullmatch(reason)
        if match is None or match["kind"] == AbsentError.__name__:
            reported[client] = reason
        else:
            logger.error("%s", reason)
            reported[client] = f"{match['kind']} in {match['work']}; see the log of its client"
    return reported


def _as_one_row(scores: Mapping[int, ClientScore]) -> dict[int, ClientScore]:
    def mean(score: ClientScore) -> ClientScore:
        rows = score.num_examples
        statistics = None if score.statistics is None else score.statistics / rows
        return ClientScore(1, score.num_correct / rows, score.loss_sum / rows, statistics=statistics)

    return {client: mean(score) if score.num_examples else score for client, score in scores.items()}


MAX_CLIENTS = 2**20
"""Client numbers are below this."""

REFUSED = 1001
"""Error code of a refusal by an owner or a client; Flower's own are below 100."""

FederationOf = Callable[[int, str, Context], Federation]
"""Told a client's number, the digest of what was agreed on and Flower's context, a federation of that client's rows."""


class ClientNode:
    """One client.

    Args:
        federation_of: Returns the federation with the client's rows.
        queries: The supported aggregates.
        owner: The owner's policy.
        wire: Encodes and decodes messages.
        session: Session of messages without one, which come from other programs' strategies.
    """

    def __init__(
        self,
        federation_of: FederationOf,
        queries: QueryTable,
        owner: OwnerPolicy,
        wire: wire.Wire,
        session: Session | None = None,
    ) -> None:
        self._federation_of, self._queries = federation_of, queries
        self._owner, self._wire = owner, wire
        self._session = session or Session()
        self._hosts: dict[tuple[int, str, Privacy | None], ClientHost] = {}  # of one message

    def app(self) -> ClientApp:
        """Return the Flower app for a SuperNode."""
        app = ClientApp()
        app.train()(self._guarded(self._answer_strategy))
        app.evaluate()(self._guarded(self._answer_strategy))
        for category in (app.train, app.evaluate, app.query):
            category(wire.ACTION)(self._guarded(self._answer_driver))
        return app

    def _guarded(self, answer: Callable[[Message, Context], RecordDict]) -> Callable[[Message, Context], Message]:
        """Return a handler that replies to errors with one line, without any data of the rows."""

        def handle(message: Message, context: Context) -> Message:
            try:
                return Message(answer(message, context), reply_to=message)
            except Exception as error:
                return Message(Error(REFUSED, _reason(error)), reply_to=message)

        return handle

    def _host(self, client: int, terms: str, context: Context, privacy: Privacy | None = None) -> ClientHost:
        """Return the host of a client, with the owner's rules for releasing results."""
        host_key = client, terms, privacy
        if host_key not in self._hosts:
            federation = self._federation_of(client, terms, context)
            release = Release(self._owner.min_release, self._owner.small_clients, privacy)
            self._hosts[host_key] = ClientHost(replace(federation, release=release), self._queries)
        return self._hosts[host_key]

    def _answer_driver(self, message: Message, context: Context) -> RecordDict:
        """Answer a message of this program's driver."""
        try:
            request = self._wire.opened(message.content)
        except ValueError as error:
            raise RefusedError(f"can't read the message: {error}") from error
        if isinstance(request, wire.Greeting):
            return self._wire.packed(self._introduction(request, context))
        if not isinstance(request, wire.NodeCalls):
            raise RefusedError(f"can't answer {shown(type(request).__name__)}")
        return self._wire.packed(wire.NodeAnswers(tuple(self._answered(call, context) for call in request.calls)))

    def _introduction(self, greeting: wire.Greeting, context: Context) -> wire.Introduction:
        facts = self._host(0, greeting.terms, context).facts()
        position, rows = _position(context), int(facts.client_rows[0])
        discloses_rows = greeting.asks_rows and rows >= self._owner.min_release
        return wire.Introduction(
            name=str(context.node_config.get("name", context.node_id if position is None else position)),
            position=position,
            num_rows=rows if discloses_rows else 0,
            grouped=facts.grouped,
            model=wire.model_digest(facts),
            version=version("fedscout"),
        )

    def _answered(
        self, node_call: wire.NodeCall, context: Context
    ) -> TrainResults | EvaluateResults | QueryResults | wire.Refusal:
        """Return the result of one call, or the reason why it was refused or failed."""
        try:
            return self._perform(node_call, context)
        except Exception as error:
            return wire.Refusal(_reason(error))

    def _perform(self, node_call: wire.NodeCall, context: Context) -> TrainResults | EvaluateResults | QueryResults:
        """Return the result of one call."""
        call = node_call.call
        measured = () if call.watched is None else call.watched.measured
        clients = {*call.clients, *call.evaluated, *measured}
        if len(clients) != 1 or not 0 <= min(clients) < MAX_CLIENTS:
            raise RefusedError(f"must be called for one client below {MAX_CLIENTS}, got {shown(sorted(clients))}")
        (client,) = clients
        if node_call.method == "query":
            self._owner.check("query", str(call.config.get(keys.FUNCTION_KEY, "")))
            return self._answer(node_call, client, context)
        if call.vector is None:
            raise RefusedError("must receive a model")
        call, reason = self._allowed(node_call)
        states_store = KeptStates(context.state, self._owner.folder)
        marked = call.states.get(client)
        try:
            states = {client: states_store.find(node_call.trial, marked)} if marked else {}
        except LostStateError:
            return _lost_state_results(node_call.method, call, client)
        call = replace(call, states=states, config={**call.config, keys.REPLY_KEY: "individual"})
        host = self._host(client, node_call.terms, context)
        results: TrainResults | EvaluateResults = getattr(host, node_call.method)(_without_seeded_response(call))
        if isinstance(results, TrainResults):
            server_round = int(call.config[keys.ROUND_KEY])
            results.states = {
                number: states_store.keep(node_call.trial, server_round, state, marked) if state else {}
                for number, state in results.states.items()
            }
            if reason:
                results.failures[client] = reason
            self._report_far(call, results, context)
        return presentable(results, call)

    def _allowed(self, node_call: wire.NodeCall) -> tuple[HostCall, str]:
        """Return the part of a call that the owner allows, and why training was removed from it.

        Raises:
            RefusedError: If nothing is allowed.
        """
        call, owner, reason = node_call.call, self._owner, ""
        if node_call.method != "train":
            owner.check(node_call.method)
        if call.clients and not owner.trains:
            if not (call.evaluated and owner.scores):
                raise RefusedError(NO_TRAINING)
            call, reason = replace(call, clients=()), NO_TRAINING
        if not owner.scores:
            if not call.clients or call.config.get(keys.INITIAL_LOSS_KEY):
                raise RefusedError(NO_SCORING)
            watched = call.watched
            if watched is not None:
                observed = replace(watched.observed, training_losses=False, validation_losses=False)
                watched = replace(watched, observed=observed, measured=())
            call = replace(call, evaluated=(), watched=watched)
        return call, reason

    def _report_far(self, call: HostCall, results: TrainResults, context: Context) -> None:
        """Replace the report whether the client is far from a table by a randomised response, if required.

        A simulation derives the random draw from the seed. This draw is known only to the client, and made once per
        table, as repeated draws would disclose the true answer.
        """
        table = call.session.client_table
        if table is None or FAR_KEY not in results.sums or (table.epsilon is None and self._owner.epsilon is None):
            return
        terms = {"epsilon": table.epsilon, "table": table.digest()}

        def response() -> float:
            flips = secrets.SystemRandom().random() < table.lie_probability
            return float(bool(results.sums[FAR_KEY][0]) ^ flips)

        key = f"drawn.{table.digest()}"
        if key not in context.state:
            drawn = self._answer_within_budget(FAR_KEY, terms, response)
            context.state[key] = MetricRecord({"drawn": drawn})
        results.sums[FAR_KEY] = [float(context.state.metric_records[key]["drawn"])]  # type: ignore[arg-type]

    def _answer_within_budget(self, name: str, terms: Mapping[str, Any], answer: Callable[[], float]) -> float:
        owner = self._owner
        if owner.epsilon is None or owner.folder is None:
            return answer()
        with alone_with(owner.folder):
            ledger = PrivacyLedger(owner.folder, owner.epsilon, owner.delta)
            answers = ledger.repeated(name, terms)
            if answers is None:
                ledger.spend(terms)
                answers = {name: np.array(answer())}
                ledger.note(name, terms, answers)
        return float(answers[name])

    def _answer(self, node_call: wire.NodeCall, client: int, context: Context) -> QueryResults:
        """Answer a query, within the owner's ε if there is one."""
        owner, call = self._owner, node_call.call
        if owner.epsilon is None or owner.folder is None:
            return presentable(self._host(client, node_call.terms, context).query(call), call)
        name = str(call.config[keys.FUNCTION_KEY])
        terms = {key: value for key, value in call.config.items() if key != keys.FUNCTION_KEY}
        with alone_with(owner.folder):
            ledger = PrivacyLedger(owner.folder, owner.epsilon, owner.delta)
            answers = ledger.repeated(name, terms)
            if answers is None:
                results = self._host(client, node_call.terms, context, ledger.spend(terms)).query(call)
                for arrays in results.arrays:
                    ledger.note(name, terms, arrays)
                return presentable(results, call)
        rows = int(self._host(client, node_call.terms, context).facts().client_rows[client])
        return QueryResults([client], [rows], [answers])

    def _answer_strategy(self, message: Message, context: Context) -> RecordDict:
        """Answer a train or evaluate message of any Flower strategy."""
        method = cast(wire.Method, message.metadata.message_type.partition(".")[0])
        self._owner.check(method)
        client = _position(context) or 0
        host = self._host(client, "", context)
        facts = host.facts()
        try:
            job = replies.read_job(method, {client: message}, self._session, 1, facts.layout)
        except ValueError as error:
            raise RefusedError(f"can't use the model that it received: {wire.one_line(str(error))}") from error
        except TrialError as error:
            raise RefusedError(str(error)) from error
        job.config[keys.REPLY_KEY] = "individual"
        session = replace(self._session, needs=replace(self._session.needs, arrays="named" if job.named else "flat"))
        call = HostCall((client,), session, job.config, job.vector, job.arrays)
        results: TrainResults | EvaluateResults = presentable(getattr(host, method)(call), call)
        if isinstance(results, TrainResults):
            contents, failures = replies.TrainReplies(facts, session.needs, session.algorithm).train(job, [results])
        else:
            contents, failures = replies.evaluate_contents({client}, replies.fold_evaluation([results]))
        if failures:
            raise RefusedError(failures[client])
        return contents[client]


def _reason(error: Exception) -> str:
    """Return the reason reported to the driver, without any data of the rows; the details are logged locally."""
    if isinstance(error, RefusedError | WithheldError):
        reason = str(error)
    elif isinstance(error, FedscoutError):
        logger.error("%s", error)
        reason = "can't use its data as agreed; see its log"
    else:
        logger.error("a message could not be answered", exc_info=error)
        reason = f"failed with {type(error).__name__}; see its log"
    logger.warning("not answered: %s", reason)
    return reason


def _lost_state_results(method: str, call: HostCall, client: int) -> TrainResults | EvaluateResults:
    """Return the reply of a client whose state is lost: it continues without a state."""
    reason = "lost its state of this training and starts without it"
    scores = EvaluateResults(failures={client: reason})
    if method == "evaluate":
        return scores
    failures = {client: reason} if client in call.clients else {}
    return TrainResults(failures=failures, states={client: {}}, evaluation=scores if call.evaluated else None)


def _without_seeded_response(call: HostCall) -> HostCall:
    """Return a call whose report of a far client has no random draw from the session's seed."""
    table = call.session.client_table
    if table is None or table.epsilon is None:
        return call
    return replace(call, session=replace(call.session, client_table=replace(table, epsilon=None)))


def _position(context: Context) -> int | None:
    """Return the client's position that its owner configured, if any."""
    partition_id = context.node_config.get("partition-id")
    return partition_id if isinstance(partition_id, int) and not isinstance(partition_id, bool) else None
