"""Conversations held together: each hears its own answers, and what all of them send travels together."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors.conversation import CLIENTS, Conversation, hold, run_lockstep
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import LABEL_COUNTS
from fedscout.engine.messages.contents import train_config
from fedscout.engine.messages.exchange import Query, Training
from tests.detectors.federations import RecordingGrid, federation, gaussian_clients

SIZES = (10, 20, 30)


@pytest.fixture
def grid() -> RecordingGrid:
    return RecordingGrid(federation(gaussian_clients(SIZES)))


def rows_of(*clients: int) -> Conversation[list[int]]:
    """Ask client after client how many rows it has."""
    rows = []
    for client in clients:
        (answers,), _ = yield [Query(LABEL_COUNTS, clients=[client])], []
        rows.append(int(answers.arrays[client]["counts"].sum()))
    return rows


def trained_rows(grid: RecordingGrid, *seeds: int) -> Conversation[list[int]]:
    """Ask all clients, in one sending, to train from the models of some seeds."""
    config = train_config(LocalTraining(), 0, 1, "merged")
    _, answers = yield [], [Training(grid.initial_vector(seed), config) for seed in seeds]
    return [int(own.num_examples.sum()) for own in answers]


def test_each_conversation_hears_its_own_answers_and_the_longest_sets_the_number_of_exchanges(
    grid: RecordingGrid,
) -> None:
    talks = {"up": rows_of(0, 1, 2), "models": trained_rows(grid, 1, 2), "down": rows_of(2, 1), "none": rows_of()}
    results = run_lockstep(grid, talks)
    assert results == {"up": [10, 20, 30], "models": [48, 48], "down": [30, 20], "none": []}  # 80 % train
    assert [[kind for kind, _, _ in contents] for contents in grid.exchanges] == [
        ["query", "query", "train", "train"],
        ["query", "query"],
        ["query"],
    ]


def test_silent_conversations_send_nothing(grid: RecordingGrid) -> None:
    assert hold(grid, rows_of()) == []
    assert run_lockstep(grid, {}) == {}
    assert grid.exchanges == []


def test_a_conversation_that_fails_fails_the_holder(grid: RecordingGrid) -> None:
    def broken() -> Conversation[None]:
        yield [Query(LABEL_COUNTS)], []
        raise ArithmeticError("broken")

    with pytest.raises(ArithmeticError, match="broken"):
        run_lockstep(grid, {"up": rows_of(0, 1), "broken": broken()})


def test_own_work_and_waiting_are_timed_apart(grid: RecordingGrid) -> None:
    def busy() -> Conversation[None]:
        yield [Query(LABEL_COUNTS)], []
        np.linalg.svd(np.random.default_rng(0).normal(size=(300, 300)))

    timings = {"busy": 1.0}
    run_lockstep(grid, {"busy": busy(), "idle": rows_of(0)}, timings)
    assert set(timings) == {"busy", "idle", CLIENTS}
    assert timings["busy"] - 1.0 > timings["idle"] >= 0
    assert timings[CLIENTS] > 0
