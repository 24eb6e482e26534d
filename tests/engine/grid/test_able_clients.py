"""Which clients are asked: who could answer at all, and which host has whom."""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest

from fedscout.engine.arrays import IntArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm, LocalFacts
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition, Release
from fedscout.engine.data.devices import Device
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.host_grid import ONE_BY_ONE, balance, shard
from fedscout.engine.grid.selection import able_clients
from fedscout.engine.messages.calls import Assignment, ClientTable, SelectionPolicy, Session
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.strategies import FedAvgSpec
from tests.engine.choices import FEDAVG, spec_of
from tests.engine.federations import (
    EMPTY,
    NUM_CLASSES,
    NUM_FEATURES,
    ONE_ROW,
    QUERIES,
    SIZES,
    TWO_ROWS,
    dense,
    uneven_federation,
)
from tests.engine.results import completed, local_result

MODEL_BYTES = 4 * 53


class First(SelectionPolicy):
    """Chooses the first clients."""

    def choose(self, server_round: int, table: ClientTable, num_chosen: int, generator: Any) -> IntArray:
        return table.clients[:num_chosen]


class Withholding(First):
    """Spares clients a part of what they send."""

    def assign(self, table: ClientTable, chosen: Sequence[int]) -> Mapping[int, Assignment]:
        return {client: Assignment(withheld=0.5) for client in chosen}


class OneEpoch(ClientAlgorithm):
    """Has every client train for one epoch."""

    name = "one-epoch"

    def settings(self, facts: LocalFacts) -> LocalTraining:
        return facts.training.model_copy(update={"local_epochs": 1})


def abstaining(least: int, **changes: Any) -> Federation:
    return replace(uneven_federation(), release=Release(least, "abstain"), **changes)


def able(federation: Federation, session: Session | None = None, policy: SelectionPolicy | None = None) -> list[int]:
    facts = ClientHost(federation, QUERIES).facts()
    return np.flatnonzero(able_clients(facts, session or Session(), policy or First())).tolist()


def test_who_trains_on_too_few_rows_abstains_for_ever() -> None:
    """Of 40, 17, 1, 12, 0, 33 and 2 rows a fifth is tested on; 32, 14, 1, 10, 0, 26 and 1 are left to train on."""
    assert able(abstaining(11)) == [0, 1, 5]
    assert able(abstaining(10)) == [0, 1, 3, 5]
    assert able(abstaining(11), Session(validation_fraction=0.3)) == [0, 5]  # of 14 rows 4 are held back
    assert able(uneven_federation(min_release=11)) == [*range(len(SIZES))]  # small clients train


def test_of_rows_in_groups_only_who_holds_too_few_is_certain_to_abstain() -> None:
    """Those of one group are not divided: client 3 may train on all its 12 rows."""
    groups = np.zeros(len(uneven_federation().labels), np.int64)
    assert able(abstaining(11, groups=groups)) == [0, 1, 3, 5]
    assert able(abstaining(13, groups=groups)) == [0, 1, 5]


def test_who_joins_later_does_not_train() -> None:
    assert able(replace(uneven_federation(), unseen=frozenset({0, 6}))) == [1, 2, 3, 4, 5]


def steps_take(seconds: float, num_clients: int = len(SIZES)) -> Mapping[int, Device]:
    return dict.fromkeys(range(num_clients), Device(seconds_per_step=seconds))


def test_whose_least_duration_is_beyond_the_deadline_is_late_for_ever() -> None:
    """A second a step, batches of eight: 4, 2, 1, 2, 0, 4 and 1 steps an epoch, twice."""
    federation = replace(uneven_federation(), devices=steps_take(1.0))
    session = Session(training=LocalTraining(batch_size=8, local_epochs=2), deadline_seconds=4.0)
    assert able(federation, session) == [1, 2, 3, 4, 6]
    assert able(federation, replace(session, deadline_seconds=8.0)) == [*range(len(SIZES))]
    assert able(federation, replace(session, deadline_seconds=None)) == [*range(len(SIZES))]


def test_a_mean_delay_may_be_none_in_some_round() -> None:
    federation = replace(uneven_federation(), devices={0: Device(mean_seconds=1e6), 1: Device(shift_seconds=5.0)})
    assert 0 in able(federation, Session(deadline_seconds=1.0))
    assert 1 not in able(federation, Session(deadline_seconds=1.0))


def test_only_what_is_certain_counts() -> None:
    """Groups may leave one row, an algorithm may choose one epoch, a policy may have tensors withheld."""
    session = Session(training=LocalTraining(batch_size=8, local_epochs=2), deadline_seconds=2.0)
    federation = replace(uneven_federation(), devices=steps_take(1.0))
    assert able(federation, session) == [2, 4, 6]
    grouped = replace(federation, groups=np.zeros(len(federation.labels), np.int64))
    assert able(grouped, session) == [*range(len(SIZES))]
    assert able(federation, replace(session, algorithm=OneEpoch())) == [*range(len(SIZES))]
    sending = replace(federation, devices={0: Device(bytes_per_second_up=MODEL_BYTES / 3)})
    assert 0 not in able(sending, session)
    assert 0 in able(sending, session, Withholding())
    receiving = replace(federation, devices={0: Device(bytes_per_second_down=MODEL_BYTES / 3)})
    assert 0 not in able(receiving, session, Withholding())


@pytest.mark.parametrize("validation_fraction", [0.0, 0.3])
def test_who_is_left_out_is_who_never_answers(validation_fraction: float) -> None:
    """Asked in every round, without any delay that is drawn."""
    devices = {client: Device(seconds_per_step=0.25 * client) for client in range(len(SIZES))}
    federation = abstaining(2, devices=devices)
    settings = spec_of(FEDAVG, num_rounds=3, num_sampled=len(SIZES), deadline_seconds=2.0)
    session = replace(settings.session, validation_fraction=validation_fraction)
    settings = replace(settings, session=session)
    trial = local_result(settings, federation)
    assert trial.status == "completed"
    failed = [int(key.split(":")[1]) for key in trial.dropped_clients]
    never = [client for client in range(len(SIZES)) if failed.count(client) == settings.num_rounds]
    assert 0 < len(never) < len(SIZES)
    assert able(federation, settings.session) == [client for client in range(len(SIZES)) if client not in never]


# -- Every client has one host, and hosts have equal loads -------------------------------------------------------------


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


@pytest.mark.parametrize("num_hosts", [1, 3, 16])
def test_hosts_have_equal_loads_where_clients_are_too_many_to_be_weighed_each(num_hosts: int) -> None:
    """As the rest goes to the hosts in turn, by size, loads differ by two clients at most: one weighed, one dealt."""
    rows = np.minimum(np.random.default_rng(0).zipf(1.5, 3 * ONE_BY_ONE), 10**4)

    loads = np.bincount(balance(rows, num_hosts), rows + 1, num_hosts)

    last_weighed = np.sort(rows)[::-1][ONE_BY_ONE - 1] + 1
    assert loads.max() - loads.min() <= 2 * last_weighed


# -- What a round does and holds depends on who takes part, not on who is registered -----------------------------------


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
