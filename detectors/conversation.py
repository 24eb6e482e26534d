"""Detectors as coroutines that exchange messages with clients in lockstep.

A conversation is a generator: it yields the queries and trainings to send, receives the answers, and returns its
result. Each detector is thus written as if it ran alone, and several run in lockstep, so that their messages share
exchanges:

    def tallest(clients: Sequence[int]) -> Conversation[float]:
        (answers,), _ = yield [Query("height", clients=clients)], []
        return max(float(arrays["height"]) for arrays in answers.arrays.values())
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from flwr.serverapp import Grid

from fedscout.engine.messages.contents import Query, QueryAnswers, TrainAnswers, Training, exchange

Result = TypeVar("Result")
Sending = tuple[list[Query], list[Training]]
Answers = tuple[list[QueryAnswers], list[TrainAnswers]]
Conversation = Generator[Sending, Answers, Result]

CLIENTS = "clients"
"""Name of the wait for answers in the timings."""


def hold(grid: Grid, conversation: Conversation[Result]) -> Result:
    """Run one conversation and return its result."""
    result: Result = run_lockstep(grid, {"": conversation})[""]
    return result


def run_lockstep(
    grid: Grid, conversations: Mapping[str, Conversation[Any]], timings: dict[str, float] | None = None
) -> dict[str, Any]:
    """Run conversations in lockstep; each step sends the requests of all of them in one exchange.

    Args:
        grid: Connection to the clients.
        conversations: By name.
        timings: Updated in place with the seconds that each conversation computes, by its name, and the seconds of
            waiting for clients, as `CLIENTS`.

    Returns:
        The result of each conversation, by name.
    """
    seconds = {} if timings is None else timings
    results: dict[str, Any] = {}
    answers_by_name: dict[str, Answers | None] = dict.fromkeys(conversations)  # a generator's first step takes None
    while answers_by_name:
        sendings: dict[str, Sending] = {}
        for name, answers in answers_by_name.items():
            with timed(seconds, name):
                try:
                    sendings[name] = conversations[name].send(answers)  # type: ignore[arg-type]
                except StopIteration as stop:
                    results[name] = stop.value
        with timed(seconds, CLIENTS):
            answers_by_name = dict(_exchange_all(grid, sendings))
    return results


@contextmanager
def timed(timings: dict[str, float], name: str) -> Iterator[None]:
    """Add the duration of the block in seconds to `timings[name]`."""
    began = time.perf_counter()
    try:
        yield
    finally:
        timings[name] = timings.get(name, 0.0) + time.perf_counter() - began


def _exchange_all(grid: Grid, sendings: Mapping[str, Sending]) -> Iterator[tuple[str, Answers]]:
    """Send the requests of all conversations in one exchange and yield the answers to each conversation."""
    queries = [query for requests, _ in sendings.values() for query in requests]
    trainings = [training for _, requests in sendings.values() for training in requests]
    answers = exchange(grid, queries, trainings)
    query_answers, train_answers = iter(answers[0]), iter(answers[1])
    for name, (own_queries, own_trainings) in sendings.items():
        yield name, ([next(query_answers) for _ in own_queries], [next(train_answers) for _ in own_trainings])
