"""Every client has one host, and hosts have equal loads."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.engine.grid.host_grid import ONE_BY_ONE, balance, shard
from tests.engine.federations import EMPTY, ONE_ROW, SIZES, TWO_ROWS


def test_clients_are_grouped_by_host_ascending_within_each() -> None:
    host_of = np.array([2, 0, 2, 1, 0])

    assert shard([4, 2, 1, 0], host_of) == {0: (1, 4), 2: (0, 2)}
    assert list(shard([0, 3, 1], host_of)) == [0, 1, 2]
    assert shard([], host_of) == {}


def test_clients_are_balanced_over_hosts() -> None:
    """Longest first, each to the least loaded: 40 | 33, then 17 to the second, 12 to the first, the rest as they fall.

    A row costs one unit and a client one: loads 41 | 34 → 41 | 52 → 54 | 52 → (2 rows) 54 | 55 → (1 row) 56 | 55 →
    (no rows) 56 | 56.
    """
    host_of = balance(np.array(SIZES), 2)

    assert host_of[[0, 5, 1, 3]].tolist() == [0, 1, 1, 0]
    assert host_of[[TWO_ROWS, ONE_ROW, EMPTY]].tolist() == [1, 0, 1]


@pytest.mark.parametrize("num_hosts", [1, 3, 7, 20])
def test_every_client_has_one_host(num_hosts: int) -> None:
    host_of = balance(np.array(SIZES), num_hosts)

    assert host_of.shape == (len(SIZES),)
    assert set(host_of.tolist()) <= set(range(num_hosts))
    assert len(set(host_of.tolist())) == min(num_hosts, len(SIZES))


@pytest.mark.parametrize("num_hosts", [1, 3, 16])
def test_hosts_have_equal_loads_where_clients_are_too_many_to_be_weighed_each(num_hosts: int) -> None:
    """As the rest goes to the hosts in turn, by size, loads differ by two clients at most: one weighed, one dealt."""
    rows = np.minimum(np.random.default_rng(0).zipf(1.5, 3 * ONE_BY_ONE), 10**4)

    loads = np.bincount(balance(rows, num_hosts), rows + 1, num_hosts)

    last_weighed = np.sort(rows)[::-1][ONE_BY_ONE - 1] + 1
    assert loads.max() - loads.min() <= 2 * last_weighed
