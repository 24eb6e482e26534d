"""Detectors that talk to clients at the same time.

A conversation is a generator: it yields what it wants to send, is handed the answers, and returns its result. Each
detector is thus written as if it were alone, and several are held together, step by step, so that what they send
travels in common exchanges:

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

from fedscout.engine.messages.contents import QueryAnswers, TrainAnswers
from fedscout.engine.messages.exchange import Query, Training, exchange

Result = TypeVar("Result")
Sending = tuple[list[Query], list[Training]]
Answers = tuple[list[QueryAnswers], list[TrainAnswers]]
Conversation = Generator[Sending, Answers, Result]

CLIENTS = "clients"
"""Under which name the waiting for answers is timed."""


def hold(grid: Grid, conversation: Conversation[Result]) -> Result:
    """Hold one conversation and return its result."""
    result: Result = hold_together(grid, {"": conversation})[""]
    return result


def hold_together(
    grid: Grid, conversations: Mapping[str, Conversation[Any]], timings: dict[str, float] | None = None
) -> dict[str, Any]:
    """Hold conversations in lockstep: what all of them want next is one exchange.

    Args:
        grid: Where the clients are.
        conversations: By name.
        timings: Is added the seconds that each conversation spends at its own work, by its name, and those of waiting
            for clients, as `CLIENTS`.

    Returns:
        The result of each.
    """
    spent = {} if timings is None else timings
    results: dict[str, Any] = {}
    heard: dict[str, Answers | None] = dict.fromkeys(conversations)  # a generator's first step takes None
    while heard:
        sendings: dict[str, Sending] = {}
        for name, answers in heard.items():
            with timed(spent, name):
                try:
                    sendings[name] = conversations[name].send(answers)  # type: ignore[arg-type]
                except StopIteration as stop:
                    results[name] = stop.value
        with timed(spent, CLIENTS):
            heard = dict(_exchange_all(grid, sendings))
    return results


@contextmanager
def timed(timings: dict[str, float], name: str) -> Iterator[None]:
    """Add the seconds of the block to `timings[name]`."""
    began = time.perf_counter()
    try:
        yield
    finally:
        timings[name] = timings.get(name, 0.0) + time.perf_counter() - began


def _exchange_all(grid: Grid, sendings: Mapping[str, Sending]) -> Iterator[tuple[str, Answers]]:
    """Send what all conversations want in one exchange and yield each one's answers."""
    queries = [query for own, _ in sendings.values() for query in own]
    trainings = [training for _, own in sendings.values() for training in own]
    answers = exchange(grid, queries, trainings)
    query_answers, train_answers = iter(answers[0]), iter(answers[1])
    for name, (own_queries, own_trainings) in sendings.items():
        yield name, ([next(query_answers) for _ in own_queries], [next(train_answers) for _ in own_trainings])
