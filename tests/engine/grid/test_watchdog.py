"""A call that takes too long is repeated client by client, and the client that hangs is left out."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientScore
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Device
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.watchdog import Results, perform_with_timeout
from fedscout.engine.messages import calls
from fedscout.engine.messages.contents import send_query, train_config
from tests.engine.federations import ABLE, QUERIES, SIZES, uneven_federation
from tests.engine.nodes.test_wire_and_policy import same
from tests.engine.results import trained

LIMIT = 0.2
NOTHING = calls.Session(round_timeout_seconds=LIMIT)


class Ended(BaseException):
    """Stands for the end of the process."""


class Notebook(dict[str, bytes]):
    """Notes in memory."""

    read, write, remove = dict.get, dict.__setitem__, dict.__delitem__


@dataclass
class Machine:
    """Repeats a call whose process ended, as Ray does; a step that hangs waits until the watchdog has struck."""

    hangs: set[tuple[str, int]]
    notebook: Notebook = field(default_factory=Notebook)
    attempts: int = 0
    done: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    struck: threading.Event = field(default_factory=threading.Event)

    def perform(self, method: str, call: calls.HostCall) -> Results:
        steps = [("evaluate", client) for client in call.evaluated] + [(method, client) for client in call.clients]
        if self.hangs.intersection(steps):
            assert self.struck.wait(30), "the watchdog never came"
            self.struck.clear()
            raise Ended
        self.done.append((method, call.clients))
        made: dict[str, Callable[[], Results]] = {
            "train": lambda: calls.TrainResults(clients=list(call.clients)),
            "evaluate": lambda: calls.EvaluateResults(dict.fromkeys(call.clients, ClientScore(1, 1, 0.0))),
            "query": lambda: calls.QueryResults(clients=list(call.clients)),
        }
        return made[method]()

    def answer(self, method: str, call: calls.HostCall) -> list[Results]:
        while True:
            self.attempts += 1
            try:
                return perform_with_timeout(self.perform, method, call, self.notebook, lambda _: self.struck.set())
            except Ended:
                assert self.notebook, "the process ended without a note"


def until_found(machine: Machine, perform: Callable[..., Results], call: calls.HostCall) -> list[Any]:
    """Repeat a training whose process ends, until it has results."""
    while True:
        with suppress(Ended):
            return perform_with_timeout(perform, "train", call, machine.notebook, lambda _: machine.struck.set())


def answered(result: Results) -> list[int]:
    return list(result.own) if isinstance(result, calls.EvaluateResults) else result.clients


@pytest.mark.sampled(3)
@pytest.mark.slow
@pytest.mark.parametrize("method", ["train", "evaluate", "query"])
@pytest.mark.parametrize("hanging", [{2}, {1, 3}, {1, 2, 3}])
def test_who_hangs_has_failed_and_the_others_have_not(method: str, hanging: set[int]) -> None:
    """One attempt with all, one for each client that hangs alone, and one without them."""
    machine = Machine(hangs={(method, client) for client in hanging})

    results = machine.answer(method, calls.HostCall((1, 2, 3), NOTHING, {}, call_id="a"))

    assert [client for result in results for client in answered(result)] == sorted({1, 2, 3} - hanging)
    failures = {client: reason for result in results for client, reason in result.failures.items()}
    assert failures.keys() == hanging
    assert all(f"{LIMIT:g} s" in reason and method in reason for reason in failures.values())
    assert machine.attempts == len(hanging) + 2
    assert machine.notebook == {}


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize(("deadline", "waited"), [(None, 1.0), (7.0, 7.0)])
@pytest.mark.parametrize("clock", [False, True])
def test_who_hangs_is_waited_for_until_deadline_or_limit(deadline: float | None, waited: float, clock: bool) -> None:
    """A round takes each of the others half a second; without devices nothing takes time."""
    federation = uneven_federation()
    if clock:
        federation = replace(federation, devices=dict.fromkeys(range(len(SIZES)), Device(shift_seconds=0.5)))
    host, machine = ClientHost(federation, QUERIES), Machine(hangs={("train", 1)})
    session = calls.Session(seed=3, round_timeout_seconds=1.0, deadline_seconds=deadline)
    config = dict(train_config(LocalTraining(batch_size=8), 3, 1, "individual"))
    call = calls.HostCall((0, 1), session, config, host.initial_vector(0), call_id="a")

    def perform(method: str, part: calls.HostCall) -> Results:
        return machine.perform(method, part) if 1 in part.clients else host.train(part)

    grid = LocalGrid(host, session=session)
    grid._count_durations(until_found(machine, perform, call))
    assert grid.take_durations() == ({0: 0.5, 1: waited} if clock else {})


def test_a_client_may_hang_in_scoring_and_train_all_the_same() -> None:
    machine = Machine(hangs={("evaluate", 2)})

    results = machine.answer("train", calls.HostCall((1, 2), NOTHING, {}, evaluated=(1, 2), call_id="a"))

    assert [client for result in results for client in answered(result)] == [1, 2]
    scored = [result.evaluation for result in results if result.evaluation is not None]
    assert [client for evaluation in scored for client in evaluation.own] == [1]
    assert [set(evaluation.failures) for evaluation in scored] == [set(), {2}]


@pytest.mark.slow
def test_a_client_may_hang_in_measuring_and_train_next_time() -> None:
    """It tells no losses, and is no failure of the training, for which it was not chosen."""
    host = ClientHost(uneven_federation(), QUERIES)
    machine = Machine(hangs={("train", 3)})
    watched = calls.RoundSelection(calls.ReportRequest(training_losses=True), (3, 5), {0: calls.Assignment(epochs=2)})
    vector = host.initial_vector(0)
    config = train_config(LocalTraining(batch_size=8), 3, 1, "individual")
    call = calls.HostCall((0, 1), replace(NOTHING, seed=3), dict(config), vector, call_id="a", watched=watched)

    def perform(method: str, part: calls.HostCall) -> Results:
        stuck = [("train", client) for client in (part.watched.measured if part.watched else ())]
        if machine.hangs.intersection(stuck):
            assert machine.struck.wait(30)
            machine.struck.clear()
            raise Ended
        return getattr(host, method)(part)

    told = until_found(machine, perform, replace(call, session=replace(call.session, round_timeout_seconds=1.0)))
    together = host.train(replace(call, watched=replace(watched, measured=(5,))))
    assert [client for one in told for client in one.clients] == together.clients == [0, 1]
    assert [steps for one in told for steps in one.num_steps] == together.num_steps
    losses = {client: score for one in told for client, score in one.received_losses.get("train", {}).items()}
    assert same(losses, together.received_losses["train"])
    assert sorted(losses) == [0, 1, 5]
    assert not any(one.failures for one in told)


class OneByOne(LocalGrid):
    """Its host answers every call as it does after one that took too long."""

    def _gather(self, handles, timeout):  # type: ignore[no-untyped-def]
        del timeout
        return [part for handle in handles for part in handle()]

    def _start(self, host, method, call):  # type: ignore[no-untyped-def]
        notebook = Notebook({call.call_id: pickle.dumps(frozenset())})
        return lambda: perform_with_timeout(lambda step, part: getattr(self.host, step)(part), method, call, notebook)


@pytest.mark.parametrize("reply", ["merged", "individual"])
def test_results_client_by_client_are_those_of_all_at_once(host: ClientHost, reply: str) -> None:
    """To the bit: training merged or not, scores that come with it, and queries."""

    def talk(grid: HostGrid[LocalGrid]) -> tuple[list[float], list[float], list[tuple[int, bytes]]]:
        vector = grid.initial_vector(0)
        grid.scores.ask(vector)
        config = train_config(LocalTraining(batch_size=8), 3, 1, reply)  # type: ignore[arg-type]
        answers = trained(grid, vector, config)
        assert set(answers.refused) == set(range(len(SIZES))) - set(ABLE)
        evaluation = grid.scores.take()
        counts = send_query(grid, "label-counts", {"offset": np.zeros(3)})
        arrays = [(client, arrays["counts"].tobytes()) for client, arrays in counts.arrays.items()]
        return answers.vectors.ravel().tolist(), evaluation.losses.tolist(), arrays

    session = calls.Session(seed=3, round_timeout_seconds=60.0)
    federation = ClientHost(uneven_federation(), QUERIES)
    assert talk(OneByOne(federation, session=session)) == talk(LocalGrid(host, session=session))
