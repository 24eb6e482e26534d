"""Several contents in one sending are answered as if each had been sent alone."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import Message

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Session
from fedscout.engine.messages.contents import train_config
from fedscout.engine.messages.exchange import Query, Training, exchange, send_query
from fedscout.engine.messages.keys import ReplyMode
from tests.engine.federations import ABLE, EMPTY, ONE_CLASS, ONE_ROW, QUERIES, SIZES, uneven_federation

COUNTS = Query("label-counts", {"offset": np.float64(0.25).reshape(())}, {"scale": 2.0})


class CountingGrid(LocalGrid):
    """Counts its pushes. Its clients may be spread over several hosts, as far as the routing knows."""

    def __init__(self, num_hosts: int = 1) -> None:
        self.host = ClientHost(uneven_federation(), QUERIES)
        HostGrid.__init__(self, self.host.facts(), num_hosts)
        self.pushes = 0

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        self.pushes += 1
        return super().push_messages(messages)


def training(grid: LocalGrid, seed: int, reply: ReplyMode, clients: tuple[int, ...] | None = None) -> Training:
    config = train_config(LocalTraining(batch_size=8), seed, 1, reply)
    return Training(grid.initial_vector(seed), config, clients)


def plain(answers: Any) -> dict[str, Any]:
    """Return answers as values that can be compared, bit for bit."""
    if isinstance(answers, np.ndarray):
        return {"dtype": str(answers.dtype), "values": answers.tolist()}
    if isinstance(answers, dict):
        return {str(key): plain(value) for key, value in answers.items()}
    if hasattr(answers, "__dataclass_fields__"):
        return {field.name: plain(getattr(answers, field.name)) for field in fields(answers)}
    return answers  # type: ignore[no-any-return]


@pytest.mark.parametrize("num_hosts", [1, 3])
def test_together_equals_one_by_one(num_hosts: int) -> None:
    grid = CountingGrid(num_hosts)
    queries = [COUNTS, Query("broken"), Query("label-counts", {"offset": np.ones(3)}, clients=(0, 5))]
    trainings = [
        *(training(grid, 1, "merged"), training(grid, 1, "individual")),
        *(training(grid, 2, "individual", (0, 3)), training(grid, 2, "merged", ABLE)),
    ]
    answered, trained = exchange(grid, queries, trainings)
    assert grid.pushes == 1
    alone = [send_query(grid, q.function, q.arrays, q.config, q.clients) for q in queries]
    assert [*map(plain, answered)] == [*map(plain, alone)]
    alone_trained = [exchange(grid, trainings=[one])[1][0] for one in trainings]
    assert [*map(plain, trained)] == [*map(plain, alone_trained)]


def test_answers_are_sorted_and_refusals_are_the_requests_own() -> None:
    grid = CountingGrid(3)
    (counts, broken), (trained,) = exchange(grid, [COUNTS, Query("broken")], [training(grid, 1, "individual")])
    large = [client for client, size in enumerate(SIZES) if size >= 5]
    assert list(counts.arrays) == large
    assert list(broken.arrays) == [client for client in large if client != ONE_CLASS]
    assert ONE_CLASS in broken.refused.keys() - counts.refused.keys()
    assert "federation.min_release" in counts.refused[ONE_ROW]
    assert trained.clients == ABLE
    assert set(trained.refused) == {EMPTY}


def test_nothing_to_send_and_nobody_to_ask() -> None:
    grid = CountingGrid()
    assert exchange(grid) == ([], [])
    assert grid.pushes == 0
    (counts,), (trained,) = exchange(grid, [Query("broken", clients=())], [training(grid, 1, "individual", ())])
    assert plain(counts) == {"arrays": {}, "num_examples": {}, "refused": {}}
    assert trained.clients == ()
    assert trained.vectors.shape == (0, grid.facts.layout.size)


# -- A user's own algorithm reaches a process that has never heard of its module ---------------------------------------


READ = "import pickle, sys; session = pickle.load(sys.stdin.buffer); print(session.algorithm, session.seed)"


def test_it_is_imported_from_where_it_was(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "own_algorithms"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "anchors.py").write_text(
        "from dataclasses import dataclass\n"
        "from fedscout.engine.contracts.algorithm import ClientAlgorithm\n"
        "@dataclass(frozen=True)\n"
        "class Anchored(ClientAlgorithm):\n"
        "    strength: float\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    from own_algorithms.anchors import Anchored  # type: ignore[import-not-found]

    sent = pickle.dumps(Session(seed=7, algorithm=Anchored(0.5)))
    told = subprocess.run([sys.executable, "-c", READ], input=sent, capture_output=True, check=True, cwd="/")
    assert told.stdout.decode().split() == ["Anchored(strength=0.5)", "7"]


def test_one_of_this_program_travels_as_it_is() -> None:
    session = Session(algorithm=ClientAlgorithm())
    assert session.__getstate__() == session.__dict__
    assert pickle.loads(pickle.dumps(session)) == session
