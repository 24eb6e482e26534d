"""Parts of a client's rows: disjoint, of one size, drawn, and carried by a train message to the client's host."""

from __future__ import annotations

import numpy as np

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import RowPart
from fedscout.engine.messages.contents import train_config
from fedscout.engine.messages.exchange import Training, exchange
from tests.detectors.federations import RecordingGrid, federation, gaussian_clients


def test_parts_are_disjoint_and_drawn() -> None:
    parts = [RowPart(index, 7, seed=3).positions(30, client=5) for index in range(5)]
    assert [len(part) for part in parts] == [7, 7, 7, 7, 2]
    assert sorted(np.concatenate(parts)) == list(range(30))
    assert parts[0].tolist() != RowPart(0, 7, seed=3).positions(30, client=6).tolist()


def test_rows_of_a_group_lie_together() -> None:
    groups = np.arange(30) // 5
    parts = [RowPart(index, 10, seed=3).positions(30, 5, groups) for index in range(3)]
    assert sorted(np.concatenate(parts)) == list(range(30))
    assert all(len({*groups[part].tolist()}) == 2 for part in parts)
    assert parts[0].tolist() != RowPart(0, 10, seed=4).positions(30, 5, groups).tolist()


def test_a_message_carries_a_part() -> None:
    part = RowPart(2, 7, 2**62)
    assert RowPart.from_config({"seed": 1, **part.to_config()}) == part
    assert RowPart.from_config({"seed": 1}) is None


def test_clients_train_on_the_part_that_is_asked_for() -> None:
    """As on that part alone, all of it; who holds fewer rows does not answer."""
    clients = gaussian_clients([30, 12])
    grid = RecordingGrid(federation(clients))
    config = train_config(LocalTraining(batch_size=100), 0, 1, "individual")
    part = RowPart(1, 7, seed=3)
    start = grid.initial_vector(0)
    _, (answers,) = exchange(grid, [], [Training(start, {**config, **part.to_config()})])
    assert answers.clients == (0,)
    assert answers.num_examples.tolist() == [7]
    assert answers.refused[1].startswith("AbsentError")
    rows = part.positions(30, client=0)
    alone = RecordingGrid(federation([(clients[0][0][rows], clients[0][1][rows])]))
    _, (expected,) = exchange(alone, [], [Training(start, {**config, **RowPart(0, 7, 0).to_config()})])
    np.testing.assert_allclose(answers.vectors, expected.vectors, atol=1e-6)
