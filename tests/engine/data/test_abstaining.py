"""Clients with few rows that abstain: neither trained nor scored, and the trial goes on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedscout.engine.data.client import Partition, Release
from fedscout.engine.data.devices import AbsentError
from fedscout.engine.data.federation import Federation
from fedscout.engine.trials.record import Trial
from tests.engine.choices import FLOWER_CHOICES, spec_of
from tests.engine.federations import SIZES, uneven_federation
from tests.engine.results import local_result

ABSTAINING = Release(5, "abstain")
TRAINING = (0, 1, 3, 5)
"""With at least five training rows; the clients of 40, 17, 12 and 33 rows."""


def result_of(federation: Federation, choice: str = "fedavg") -> Trial:
    return local_result(spec_of(FLOWER_CHOICES[choice]), federation)


@pytest.mark.parametrize("choice", ["fedavg", "fedavg-individual", "fedmedian"])
def test_a_trial_goes_as_if_they_held_nothing(choice: str) -> None:
    federation = uneven_federation()
    without = [federation.partition.client(c) if c in TRAINING else [] for c in range(len(SIZES))]
    abstained = result_of(replace(federation, release=ABSTAINING), choice)
    expected = result_of(replace(federation, partition=Partition.from_lists(without)), choice)
    assert abstained.status == expected.status == "completed"
    np.testing.assert_allclose(abstained.vector, expected.vector, rtol=0, atol=1e-6)  # exact sums scale with all rows


def test_their_absence_is_counted_and_tells_no_number() -> None:
    result = result_of(replace(uneven_federation(), release=ABSTAINING))
    missing = {f"{server_round}:{client}" for server_round in (1, 2, 3) for client in {*range(7)} - {*TRAINING}}
    assert set(result.dropped_clients) == missing
    (reason,) = set(result.dropped_clients.values())
    assert reason.startswith(AbsentError.__name__)
    assert not any(character.isdigit() for character in reason)


def test_only_who_tests_on_enough_rows_is_scored() -> None:
    """A fifth of 40 and of 33 rows is enough, of 17 and 12 it is not."""
    result = result_of(replace(uneven_federation(), release=ABSTAINING))
    assert result.status == "completed"
    assert result.client_num_examples == (8, 0, 0, 0, 0, 7, 0)
    assert result_of(uneven_federation()).client_num_examples == (8, 3, 0, 2, 0, 7, 1)


def test_where_all_abstain_the_trial_says_so() -> None:
    result = result_of(replace(uneven_federation(), release=Release(100, "abstain")))
    assert result.status == "failed"
    assert "(test)" in str(result.error)
