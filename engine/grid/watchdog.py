"""A client that hangs: how a host gets out of it, and which client it was.

A process that hangs can't help itself, so a watchdog thread ends it when a call takes longer than it may. Whoever
restarts the host repeats the call, and the note that the watchdog left tells it to take the clients one by one. The one
that hangs again is noted by name and left out from then on:

    first attempt    all clients at once          longer than the limit ─► note "slow", the process ends
    second attempt   client by client             client 7 longer than the limit ─► note "7 hangs", the process ends
    third attempt    client by client, without 7  answer, in which client 7 has failed

A host that is killed for another reason leaves no note, so nobody is blamed for that. The limit counts from when the
host takes up a call, not while the call waits for those of other trials. Code that holds the interpreter's lock for
ever is not got out of: the watchdog needs it, too.

On the simulated clock a client that never answers takes until the round's deadline, and without one as long as the
limit, after which nobody waits for it.

A strategy that waits for more nodes than there will ever be, as Flower's sampling does without an end.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

from fedscout.engine.errors import TrialError
from fedscout.engine.messages.calls import EvaluateResults, HostCall, QueryResults, ServeResults, TrainResults

EXIT_CODE = 70


@dataclass(frozen=True)
class Note:
    """What earlier attempts at a call have found.

    Attributes:
        hanging: Clients that did not finish alone, each with what it did: `train`, `evaluate` or `query`.
    """

    hanging: frozenset[tuple[str, int]] = field(default_factory=frozenset)


class Notes(Protocol):
    """Where notes survive a process."""

    def read(self, call_id: str) -> bytes | None:
        """Return a call's note."""
        ...

    def write(self, call_id: str, note: bytes) -> None:
        """Replace a call's note."""
        ...

    def remove(self, call_id: str) -> None:
        """Forget it."""
        ...


Results = TrainResults | EvaluateResults | QueryResults | ServeResults
Perform = Callable[[str, HostCall], Results]


def end_process() -> None:
    """End this process at once, whatever its other threads do."""
    os._exit(EXIT_CODE)


@contextmanager
def limited(seconds: float, then: Callable[[], None]) -> Iterator[None]:
    """Call `then` from another thread if the block takes longer than `seconds`."""
    timer = threading.Timer(seconds, then)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def perform_watched(
    perform: Perform, method: str, call: HostCall, notes: Notes, end: Callable[[], None] = end_process
) -> list[Results]:
    """Do a call within its limit.

    Args:
        perform: Does a call.
        method: `train`, `measure`, `evaluate`, `query` or `serve`.
        call: Its session has a limit.
        notes: Of earlier attempts.
        end: Ends this process.

    Returns:
        One result, or one a client: none of work on the server, which has no clients, if it took too long.
    """
    limit = call.session.round_timeout_seconds
    assert limit is not None
    found = notes.read(call.call_id)
    if found is None:
        with limited(limit, partial(_note, notes, call, Note(), end)):
            return [perform(method, call)]
    note: Note = pickle.loads(found)  # noqa: S301 - our own note
    results: list[Results] = []
    for step, part in _alone(method, call):
        client = (step, part.clients[0])
        if client in note.hanging:
            results.append(_failure(step, part, limit))
            continue
        worse = Note(note.hanging | {client})
        with limited(limit, partial(_note, notes, call, worse, end)):
            results.append(perform(step, part))
    notes.remove(call.call_id)
    return [TrainResults(evaluation=r) if method == "train" and isinstance(r, EvaluateResults) else r for r in results]


def _alone(method: str, call: HostCall) -> Iterator[tuple[str, HostCall]]:
    """Yield the call's work, one client at a time."""
    for client in call.evaluated:
        yield "evaluate", replace(call, clients=(client,), evaluated=())
    watched, measured = call.watched, () if call.watched is None else call.watched.measured
    for client in call.clients if method != "measure" else ():
        alone = None if watched is None else replace(watched, measured=())
        yield method, replace(call, clients=(client,), evaluated=(), watched=alone)
    for client in measured:
        assert watched is not None
        yield "measure", replace(call, clients=(client,), evaluated=(), watched=replace(watched, measured=(client,)))


def _failure(method: str, call: HostCall, limit: float) -> Results:
    (client,) = call.clients
    failures = {client: f"did not finish within {limit:g} s ({method})"}
    deadline = call.session.deadline_seconds
    waited = {client: limit if deadline is None else deadline}
    if method == "train":
        return TrainResults(failures=failures, hanging=[client], durations=waited)
    if method == "measure":
        return TrainResults(durations=waited)
    return EvaluateResults(failures=failures) if method == "evaluate" else QueryResults(failures=failures)


def _note(notes: Notes, call: HostCall, note: Note, end: Callable[[], None]) -> None:
    notes.write(call.call_id, pickle.dumps(note))
    end()


def refuse_hanging(results: Iterable[TrainResults], server_round: int) -> None:
    """Return if no client was left out of a training for taking too long.

    Raises:
        TrialError: If one was.
    """
    reasons = {client: result.failures[client] for result in results for client in result.hanging}
    if reasons:
        client = min(reasons)
        raise TrialError(f"round {server_round}: client {client} {reasons[client]}")


MAX_IDLE_POLLS = 15
"""Flower asks for nodes once a second while it waits."""

PAUSE_SECONDS = 0.5
"""Whoever asks again after a shorter time was not waiting."""


class IdlePolls:
    """Counts how often nodes were asked for, with pauses and without a message being sent."""

    def __init__(self) -> None:
        self._last_asked, self._pauses = 0.0, 0

    def asked(self, num_clients: int) -> None:
        """Count a poll.

        Raises:
            TrialError: If it is one too many.
        """
        now = time.monotonic()
        self._pauses += now - self._last_asked > PAUSE_SECONDS
        self._last_asked = now
        if self._pauses > MAX_IDLE_POLLS:
            raise TrialError(f"the strategy waits for more clients than the {num_clients} that there are")

    def sent(self) -> None:
        """Begin anew, as messages are sent."""
        self._pauses = 0
