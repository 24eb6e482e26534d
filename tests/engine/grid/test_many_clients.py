"""What a round does and holds depends on who takes part, not on who is registered."""

from __future__ import annotations

import sys
import tracemalloc
from types import FrameType
from typing import Any

import numpy as np

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.host_grid import ONE_BY_ONE
from fedscout.engine.messages.calls import Session
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.strategies import FedAvgSpec
from tests.engine.federations import NUM_CLASSES, NUM_FEATURES, dense
from tests.engine.results import completed

FEW, MANY = ONE_BY_ONE, 10 * ONE_BY_ONE
ROWS = 3
SAMPLED = 20

NUMBER_BYTES = 8
NODE_BYTES = 36 + NUMBER_BYTES
"""Of a node's id in Flower's list of all: a Python integer and a pointer to it."""


def registered(num_clients: int) -> Federation:
    """The first clients are the same, however many there are."""
    num_rows = num_clients * ROWS
    features = np.random.default_rng(0).normal(size=(num_rows, NUM_FEATURES)).astype(np.float32)
    labels = np.arange(num_rows) % NUM_CLASSES
    offsets = np.arange(0, num_rows + 1, ROWS)
    return Federation("many", features, labels, NUM_CLASSES, Partition(np.arange(num_rows), offsets), dense)


def trained(host: ClientHost) -> Trial:
    session = Session(training=LocalTraining(batch_size=4), num_scored=SAMPLED)
    settings = TrialSettings(FedAvgSpec(), num_rounds=2, num_sampled=SAMPLED, session=session)
    return completed(settings, host)


def num_calls(host: ClientHost) -> int:
    """Return how many functions, Python's and C's, a trial calls."""
    count = 0

    def called(_: FrameType, event: str, __: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        trained(host)
    finally:
        sys.setprofile(None)
    return count


def peak_bytes(host: ClientHost) -> int:
    """Return the most that a trial holds at once beyond what was there."""
    tracemalloc.start()
    try:
        trained(host)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_trial_calls_as_many_functions_whoever_is_registered() -> None:
    """From so many on that some are dealt to hosts without being weighed."""
    before, few, many = (ClientHost(registered(num), {}) for num in (FEW, FEW, MANY))
    trained(before)  # what is imported on the way does not count

    assert num_calls(many) < 1.01 * num_calls(few)


def test_a_registered_client_costs_a_few_numbers() -> None:
    """In the driver: its node's id, twice in lists of them, its rows, its host, and the order of all by size."""
    few, many = (ClientHost(registered(num), {}) for num in (FEW, MANY))
    trained(few)

    more = (peak_bytes(many) - peak_bytes(few)) / (MANY - FEW)
    assert more < NODE_BYTES + 8 * NUMBER_BYTES


def test_a_host_forgets_clients_that_took_part_long_ago(monkeypatch: Any) -> None:
    """And draws their splits again alike."""
    federation = registered(200)
    unbounded = trained(ClientHost(federation, {}))
    monkeypatch.setattr("fedscout.engine.client.host.CLIENTS_KEPT", 5)
    host = ClientHost(federation, {})
    bounded = trained(host)

    assert host._client.cache_info().currsize == 5
    assert np.array_equal(unbounded.round_accuracy, bounded.round_accuracy)
    assert unbounded.client_accuracy == bounded.client_accuracy
