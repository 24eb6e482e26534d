"""In whatever groups exact sums are added, the total has the same bits, and nothing else of an answer changes."""

from __future__ import annotations

from copy import deepcopy
from math import isqrt

import numpy as np
import pytest

from fedscout.engine.messages.calls import TrainResults
from fedscout.engine.messages.exact_mean import FROM_BYTES, FROM_NODES, Answer, group_size, with_one_sum

NUM_PARAMS = 5


def answers(num_hosts: int) -> list[TrainResults]:
    """Sums of any size in 64 bits; the host 2 only scored."""
    generator = np.random.default_rng(0)

    def total() -> np.ndarray:
        return generator.integers(-(2**62) // num_hosts, 2**62 // num_hosts, NUM_PARAMS)

    return [
        TrainResults(clients=[host], total=total(), auxiliary_totals={"drift": total()})
        if host != 2
        else TrainResults()
        for host in range(num_hosts)
    ]


def in_groups(given: list[TrainResults], size: int) -> list[TrainResults]:
    added: list[Answer] = []
    for start in range(0, len(given), size):
        added += with_one_sum(deepcopy(given[start : start + size]))
    return added


@pytest.mark.parametrize("size", [1, 2, 3, 4, 10])
def test_the_total_of_any_groups_is_that_of_all(size: int) -> None:
    given = answers(10)
    added = in_groups(given, size)

    kept = [one for one in added if one.total is not None]
    assert len(kept) == -(-10 // size) - (size == 1)
    assert np.array_equal(sum(one.total for one in kept), sum(one.total for one in given if one.total is not None))
    drifts = [sum(one.auxiliary_totals["drift"] for one in some) for some in (kept, [*given[:2], *given[3:]])]
    assert np.array_equal(*drifts)
    assert [one.clients for one in added] == [one.clients for one in given]
    assert all(one.in_another_sum != (one.total is not None) for one in added if one.clients)


def test_parts_of_one_answer_are_added_as_well_and_stay_its_parts() -> None:
    given = answers(5)
    first, second = with_one_sum(deepcopy([given[:3], given[3]]))

    assert isinstance(first, list)
    assert [part.clients for part in first] == [[0], [1], []]
    assert np.array_equal(first[0].total, given[0].total + given[1].total + given[3].total)
    assert second.in_another_sum


def test_sums_that_were_read_from_shared_memory_are_not_written_to() -> None:
    given = answers(3)
    given[0].total.flags.writeable = False
    with_one_sum(given)


def test_nobody_trained() -> None:
    assert with_one_sum([TrainResults(), TrainResults()]) == [TrainResults(), TrainResults()]


def test_hosts_on_many_nodes_with_large_models_add_in_groups() -> None:
    assert group_size(100, 100, FROM_BYTES) == 10
    assert group_size(4 * FROM_NODES, FROM_NODES, FROM_BYTES) == isqrt(4 * FROM_NODES)
    assert group_size(100, FROM_NODES - 1, FROM_BYTES) == 1
    assert group_size(100, 100, FROM_BYTES - 1) == 1
