"""A client on a machine of its own: answers what a driver asks, as far as its owner allows.

It is a `ClientHost` of one client, so what it computes is what a simulation computes of the same rows. Two kinds of
messages are answered:

- calls of this program's drivers (`node_call`), without what only a simulation may hear (`presentable_answers`);
- `train` and `evaluate` messages of any Flower strategy: arrays by the model's names or as one flat vector, and a
  configuration with the keys of local training, what it leaves out being as `Session` has it.

Reasons that go back hold nothing of the rows; what goes wrong with them is told in the client's own log.

What a client keeps between rounds stays on its machine; the driver has a mark, the round after which it was kept.

A mark travels, is checkpointed and comes back as a client's state does in a simulation (`client_states`). What it
stands for lies in Flower's `context.state`, which ends with the run; and in a folder of the owner's, if there is one,
from which a run that is begun again goes on.

Of a trial a client keeps two states: the one whose mark the driver has sent with this round, and the one after it. A
driver that was killed, or that has not waited for an answer, sends the former's mark again.

What a client's answer to a driver leaves out: a simulation tells itself more than machines tell each other.

- Why something failed is told by its kind alone: the text of an error in a model or an algorithm may hold rows. It goes
  to the client's own log.
- Under a table of client settings (`fedscout.engine.contracts.client_table`) nothing may tell the cell: scores are
  shares, as if of one row, and how long it took is not said.
- What a strategy has clients clip (`fedscout.engine.messages.contents`) is clipped before it leaves.
"""

from __future__ import annotations

import logging
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.differential_privacy import KEY_CLIPPING_NORM, KEY_NORM_BIT, compute_adaptive_clip_model_update

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientScore, ClientState
from fedscout.engine.contracts.client_table import FAR_KEY
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Privacy, QueryTable, Release, WithheldError
from fedscout.engine.data.devices import AbsentError
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import FedscoutError, TrialError
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages.calls import EvaluateResults, HostCall, QueryResults, Session, TrainResults
from fedscout.engine.messages.contents import asks_for_clipping, flat_vector, integer_buffers, one_learning_rate
from fedscout.engine.messages.keys import (
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
from fedscout.engine.models.layout import ParameterLayout
from fedscout.engine.nodes.policy import NO_SCORING, NO_TRAINING, OwnerPolicy, PrivacyLedger, RefusedError, alone_with
from fedscout.engine.nodes.wire import (
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
from fedscout.engine.runtime.files import write_atomically
from fedscout.engine.text import shown

ROUND = "kept-after-round"

TRIALS_KEPT = 8
"""Of those that a client took part in last."""


class LostStateError(Exception):
    """What a mark stands for is not here."""


def is_mark(state: object, server_round: int) -> bool:
    """Return whether something stands for a state that was kept after a round."""
    if not isinstance(state, dict) or [*state] != [ROUND]:
        return False
    told = state[ROUND]
    return isinstance(told, np.ndarray) and told.shape == (1,) and bool(told[0] == server_round)


def mark(server_round: int) -> ClientState:
    """Return what stands for a state that was kept after a round."""
    return {ROUND: np.array([server_round], np.float32)}


class KeptStates:
    """The states of one client, by trial and round.

    Args:
        memory: Flower's `context.state`.
        folder: Where they are kept as well; None keeps them nowhere else.
    """

    def __init__(self, memory: RecordDict, folder: Path | None = None) -> None:
        self._memory, self._folder = memory, folder

    def find(self, trial: str, marked: ClientState) -> ClientState:
        """Return what a mark stands for.

        Raises:
            LostStateError: If it is not here, or can't be read.
        """
        server_round = _round_of(marked)
        record = self._memory.get(_key(trial, server_round))
        if isinstance(record, ArrayRecord):
            return {name: array.numpy() for name, array in record.items()}
        path = self._path(trial, server_round)
        if path is None or not path.is_file():
            raise LostStateError
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except Exception as error:  # whatever a damaged file has NumPy raise
            raise LostStateError from error

    def keep(self, trial: str, server_round: int, state: ClientState, marked: ClientState | None = None) -> ClientState:
        """Keep a state, and return its mark.

        Args:
            trial: Whose.
            server_round: After which.
            state: What is kept.
            marked: The mark that came with the round, if one did. What it stands for is kept as well; all else of the
                trial is forgotten.
        """
        rounds = {server_round, *([] if not marked else [_round_of(marked)])}
        self._memory[_key(trial, server_round)] = ArrayRecord(
            {name: Array(np.ascontiguousarray(values)) for name, values in state.items()}
        )
        _forget(self._memory, trial, rounds)
        path = self._path(trial, server_round)
        if path is not None:
            write_atomically(path, lambda temporary: _write(temporary, state))
            _remove(path.parent, rounds)
        return mark(server_round)

    def _path(self, trial: str, server_round: int) -> Path | None:
        if self._folder is None or not re.fullmatch(r"[0-9a-f]{64}", trial):
            return None
        return self._folder / "kept" / trial[:32] / f"{server_round}.npz"


def drawn_once(memory: RecordDict, name: str, draw: Callable[[], float]) -> float:
    """Return what was drawn under a name, and the first time draw it."""
    known = memory.get(f"drawn.{name}")
    if isinstance(known, MetricRecord):
        return float(known["drawn"])  # type: ignore[arg-type]
    drawn = draw()
    memory[f"drawn.{name}"] = MetricRecord({"drawn": drawn})
    return drawn


def _round_of(marked: ClientState) -> int:
    told = marked.get(ROUND)
    if told is None or not np.isfinite(told).all() or not is_mark({ROUND: told}, int(told.flat[0]) if told.size else 0):
        raise LostStateError
    return int(told[0])


def _key(trial: str, server_round: int) -> str:
    return f"kept.{trial}.{server_round}"


def _forget(memory: RecordDict, trial: str, kept: Collection[int]) -> None:
    """Forget other rounds of a trial, and trials that were long ago."""
    rounds: dict[str, list[int]] = {}
    for key in memory:
        if key.startswith("kept."):
            name, _, after = key.removeprefix("kept.").rpartition(".")
            rounds.setdefault(name, []).append(int(after))
    others = [name for name in rounds if name != trial]
    old = [(name, each) for name in others[: max(0, len(rounds) - TRIALS_KEPT)] for each in rounds[name]]
    for name, each in [*old, *((trial, each) for each in rounds[trial] if each not in kept)]:
        del memory[_key(name, each)]


def _remove(folder: Path, kept: Collection[int]) -> None:
    """Remove the files of other rounds, and those of trials that were long ago."""
    for path in folder.glob("*.npz"):
        if path.stem not in map(str, kept):
            path.unlink()
    trials = sorted((each for each in folder.parent.iterdir() if each.is_dir()), key=lambda each: each.stat().st_mtime)
    for old in trials[:-TRIALS_KEPT]:
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)


def _write(path: Path, state: ClientState) -> None:
    with path.open("wb") as file:
        np.savez(file, **dict(state))  # type: ignore[arg-type]


logger = logging.getLogger("fedscout")

Results = TypeVar("Results", TrainResults, EvaluateResults, QueryResults, TrainResults | EvaluateResults)

_ERROR = re.compile(r"(?P<kind>\w+) in (?P<work>local training|evaluation|clipping|query '[^']*'): .*", re.DOTALL)


def presentable(results: Results, call: HostCall) -> Results:
    """Return results as they may leave the client."""
    alike = call.session.client_table is not None
    results.failures = _told(results.failures)
    if isinstance(results, TrainResults) and results.evaluation is not None:
        results.evaluation = presentable(results.evaluation, call)
    if alike:
        results.seconds = 0.0
    if alike and isinstance(results, EvaluateResults):
        results.own, results.clean = _as_one_row(results.own), _as_one_row(results.clean)
        results.received, results.sums = _as_one_row(results.received), {}
    return results


def clip(call: HostCall, layout: ParameterLayout, results: TrainResults, named: bool | None = None) -> None:
    """Clip what a client trained, if it is asked to, as Flower's mod does; whether it was short is told as a sum.

    Args:
        call: What it was asked.
        layout: Of the model.
        results: Its answer, which is changed.
        named: Whether arrays go by the model's names, on which a length's last bits depend; None asks the session.
    """
    if not asks_for_clipping(call.config) or not results.clients:
        return
    assert results.vectors is not None
    assert call.vector is not None
    named = call.session.needs.arrays == "named" if named is None else named
    trained, received = [results.vectors[0].copy()], [call.vector]
    if named:  # the mod measures whatever the record holds, counts of batches included
        counted = layout.integers_after(call.arrays, results.num_steps[0])
        trained = [*layout.split(trained[0], counted).values()]
        received = [*layout.split(call.vector, call.arrays).values()]
    try:
        is_short = compute_adaptive_clip_model_update(trained, received, call.config[KEY_CLIPPING_NORM])
    except ArithmeticError as error:  # an update of length 0, which Flower's clients fail on as well
        (client,) = results.clients
        results.__dict__.update(vars(TrainResults(states=results.states, evaluation=results.evaluation)))
        results.failures[client] = f"{type(error).__name__} in clipping: {error}"
        return
    parts = dict(zip(layout.split(results.vectors[0]), trained, strict=True)) if named else {}
    results.vectors = [layout.join({name: np.asarray(part) for name, part in parts.items()}) if named else trained[0]]
    results.sums[KEY_NORM_BIT] = [float(is_short)]


def _told(failures: Mapping[int, str]) -> dict[int, str]:
    """Return failures without what may tell of rows; who is absent by design says so in words that don't."""
    told = {}
    for client, reason in failures.items():
        found = _ERROR.fullmatch(reason)
        if found is None or found["kind"] == AbsentError.__name__:
            told[client] = reason
        else:
            logger.error("%s", reason)
            told[client] = f"{found['kind']} in {found['work']}; its own log says more"
    return told


def _as_one_row(scores: Mapping[int, ClientScore]) -> dict[int, ClientScore]:
    return {
        client: ClientScore(1, score.num_correct / score.num_examples, score.loss_sum / score.num_examples)
        if score.num_examples
        else score
        for client, score in scores.items()
    }


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
