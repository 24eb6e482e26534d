"""Watchdog for hanging clients: ends a host's process that exceeds its time limit, and identifies the client.

A hanging process can't recover by itself, so a watchdog thread ends it when a call exceeds its time limit. The host is
restarted and the call repeated; the note that the watchdog stored makes the host process the clients one by one. A
client that hangs again is noted by index and left out from then on:

    first attempt    all clients at once          exceeds the limit ─► note "slow", the process ends
    second attempt   client by client             client 7 exceeds the limit ─► note "7 hangs", the process ends
    third attempt    client by client, without 7  answer, in which client 7 has failed

A host that is killed for another reason leaves no note, so no client is blamed for that. The limit counts from the
start of a call on the host; the time in which the call waits for those of other trials is excluded. Code that never
releases the interpreter lock can't be interrupted, because the watchdog needs the lock, too.

On the simulated clock, a client that never answers takes until the round's deadline, or without a deadline as long as
the time limit, after which it is no longer waited for.

`IdlePolls` detects a strategy that waits for more nodes than will ever exist, as Flower's sampling does without end.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

from fedscout.engine.errors import TrialError
from fedscout.engine.messages.calls import EvaluateResults, HostCall, QueryResults, ServeResults, TrainResults
from fedscout.engine.runtime.ray import HeadNotes

EXIT_CODE = 70


Results = TrainResults | EvaluateResults | QueryResults | ServeResults
Perform = Callable[[str, HostCall], Results]


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


def perform_with_timeout(
    perform: Perform, method: str, call: HostCall, notes: HeadNotes, end: Callable[[int], object] = os._exit
) -> list[Results]:
    """Perform a call within its time limit.

    Args:
        perform: Performs a call.
        method: `train`, `evaluate`, `query` or `serve`.
        call: The call; its session has a time limit.
        notes: Notes of earlier attempts: the clients that did not finish alone, each with its work.
        end: Ends this process with a code at once, whatever its other threads do.

    Returns:
        One result, or one per client; empty for server-side work, which has no clients, if it exceeded the limit.
    """
    limit = call.session.round_timeout_seconds
    assert limit is not None

    def give_up(noted: frozenset[tuple[str, int]]) -> None:
        notes.write(call.call_id, pickle.dumps(noted))
        end(EXIT_CODE)

    stored = notes.read(call.call_id)
    if stored is None:
        with limited(limit, partial(give_up, frozenset())):
            return [perform(method, call)]
    hanging: frozenset[tuple[str, int]] = pickle.loads(stored)  # noqa: S301 - our own note
    results: list[Results] = []
    for step, client, part in _client_by_client(method, call):
        if (step, client) in hanging:
            results.append(_failure(step, client, part, limit))
            continue
        with limited(limit, partial(give_up, hanging | {(step, client)})):
            results.append(perform(step, part))
    notes.remove(call.call_id)
    return [TrainResults(evaluation=r) if method == "train" and isinstance(r, EvaluateResults) else r for r in results]


def _client_by_client(method: str, call: HostCall) -> Iterator[tuple[str, int, HostCall]]:
    """Yield the work of a call, one client at a time."""
    for client in call.evaluated:
        yield "evaluate", client, replace(call, clients=(client,), evaluated=())
    watched = call.watched
    for client in call.clients:
        alone = None if watched is None else replace(watched, measured=())
        yield method, client, replace(call, clients=(client,), evaluated=(), watched=alone)
    if watched is not None:
        for client in watched.measured:
            alone = replace(watched, measured=(client,))
            yield method, client, replace(call, clients=(), evaluated=(), watched=alone)


def _failure(method: str, client: int, call: HostCall, limit: float) -> Results:
    failures = {client: f"did not finish within {limit:g} s ({method})"}
    deadline = call.session.deadline_seconds
    durations = {client: limit if deadline is None else deadline}
    if method == "train":
        return TrainResults(failures=failures if call.clients else {}, durations=durations)  # else it only measures
    return EvaluateResults(failures=failures) if method == "evaluate" else QueryResults(failures=failures)


MAX_IDLE_POLLS = 15
"""Flower asks for nodes once a second while it waits."""

PAUSE_SECONDS = 0.5
"""Whoever asks again after a shorter time was not waiting."""


class IdlePolls:
    """Counts polls for nodes with pauses in between while no message is sent."""

    def __init__(self) -> None:
        self._last_poll, self._pauses = 0.0, 0

    def count(self, num_clients: int) -> None:
        """Count a poll.

        Raises:
            TrialError: If there were more than `MAX_IDLE_POLLS` pauses.
        """
        now = time.monotonic()
        self._pauses += now - self._last_poll > PAUSE_SECONDS
        self._last_poll = now
        if self._pauses > MAX_IDLE_POLLS:
            raise TrialError(f"the strategy waits for more clients than the {num_clients} in the federation")

    def sent(self) -> None:
        """Reset the count, as messages are sent."""
        self._pauses = 0
