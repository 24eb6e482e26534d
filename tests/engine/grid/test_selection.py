"""Who can take part in a round, which host holds whom, and what a round costs in simulated time."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any

import numpy as np
import pytest
from flwr.serverapp.strategy import FedAvg

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm, LocalFacts
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition, Release
from fedscout.engine.data.federation import (
    AbsentError,
    Device,
    Federation,
    RoundWork,
    misses,
    num_part_rows,
    simulated_seconds,
)
from fedscout.engine.grid.host_grid import ONE_BY_ONE, balance
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.selection import able_clients, client_seconds, expected_seconds
from fedscout.engine.messages import calls
from fedscout.engine.messages.contents import flat_record
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.methods.averaging import FedBuffSpec
from fedscout.strategies.methods.drift import ScaffoldSpec
from tests.engine import federations
from tests.engine.choices import FEDADAM, FEDAVG, FLOWER_CHOICES, Choice, Variates, spec_of
from tests.engine.client.test_client_host import DRAWING, attacked
from tests.engine.grid.test_local_grid import messages
from tests.engine.results import completed, local_result, ray_result, started_hosts
from tests.engine.trials.test_client_choice import settings_of
from tests.engine.trials.test_resume import assert_all_same
from tests.engine.trials.test_trial import Whole

UNEVEN, EVERY = federations.uneven_federation(), [*range(len(federations.SIZES))]
MODEL_BYTES = 4 * 53


class First(calls.SelectionPolicy):
    """Chooses the first clients."""

    def choose(self, server_round: int, table: calls.ClientTable, num_chosen: int, generator: Any) -> IntArray:
        return table.clients[:num_chosen]


class Withholding(First):
    """Spares clients a part of what they send."""

    def assign(self, table: calls.ClientTable, chosen: Sequence[int]) -> Mapping[int, calls.Assignment]:
        return {client: calls.Assignment(withheld=0.5) for client in chosen}


class OneEpoch(ClientAlgorithm):
    """Has every client train for one epoch."""

    name = "one-epoch"

    def settings(self, facts: LocalFacts) -> LocalTraining:
        return facts.training.model_copy(update={"local_epochs": 1})


def abstaining(least: int, **changes: Any) -> Federation:
    return replace(UNEVEN, release=Release(least, "abstain"), **changes)


def able(federation: Federation, session: calls.Session | None = None, policy: Any = None) -> list[int]:
    facts = ClientHost(federation, federations.QUERIES).facts()
    return np.flatnonzero(able_clients(facts, session or calls.Session(), policy or First())).tolist()


GROUPS = np.zeros(len(UNEVEN.labels), np.int64)
STEPS = dict.fromkeys(EVERY, Device(seconds_per_step=1.0))
TWO_EPOCHS = calls.Session(training=LocalTraining(batch_size=8, local_epochs=2))


@pytest.mark.parametrize(
    ("federation", "session", "expected"),
    [
        # of 40, 17, 1, 12, 0, 33 and 2 rows a fifth is tested on; 32, 14, 1, 10, 0, 26 and 1 are left to train on
        (abstaining(11), calls.Session(), [0, 1, 5]),
        (abstaining(10), calls.Session(), [0, 1, 3, 5]),
        (abstaining(11), calls.Session(validation_fraction=0.3), [0, 5]),  # of 14 rows 4 are held back
        (federations.uneven_federation(min_release=11), calls.Session(), EVERY),  # small clients train
        # rows of one group are not divided: client 3 may train on all its 12 rows
        (abstaining(11, groups=GROUPS), calls.Session(), [0, 1, 3, 5]),
        (abstaining(13, groups=GROUPS), calls.Session(), [0, 1, 5]),
        (replace(UNEVEN, unseen=frozenset({0, 6})), calls.Session(), [1, 2, 3, 4, 5]),  # who joins later
        # a second a step, batches of eight: 4, 2, 1, 2, 0, 4 and 1 steps an epoch, twice
        (replace(UNEVEN, devices=STEPS), replace(TWO_EPOCHS, deadline_seconds=4.0), [1, 2, 3, 4, 6]),
        (replace(UNEVEN, devices=STEPS), replace(TWO_EPOCHS, deadline_seconds=8.0), EVERY),
        (replace(UNEVEN, devices=STEPS), TWO_EPOCHS, EVERY),
        # a mean delay may be none in some round
        (replace(UNEVEN, devices={0: Device(mean_seconds=1e6)}), calls.Session(deadline_seconds=1.0), EVERY),
        (replace(UNEVEN, devices={1: Device(shift_seconds=5)}), calls.Session(deadline_seconds=1.0), [0, *EVERY[2:]]),
    ],
)
def test_who_can_never_train(federation: Federation, session: calls.Session, expected: list[int]) -> None:
    assert able(federation, session) == expected


def test_only_what_is_certain_counts() -> None:
    """Groups may leave one row, an algorithm may choose one epoch, a policy may have tensors withheld."""
    session, federation = replace(TWO_EPOCHS, deadline_seconds=2.0), replace(UNEVEN, devices=STEPS)
    assert able(federation, session) == [2, 4, 6]
    assert able(replace(federation, groups=GROUPS), session) == EVERY
    assert able(federation, replace(session, algorithm=OneEpoch())) == EVERY
    sending = replace(federation, devices={0: Device(bytes_per_second_up=MODEL_BYTES / 3)})
    assert 0 not in able(sending, session)
    assert 0 in able(sending, session, Withholding())
    receiving = replace(federation, devices={0: Device(bytes_per_second_down=MODEL_BYTES / 3)})
    assert 0 not in able(receiving, session, Withholding())


@pytest.mark.parametrize("validation_fraction", [0.0, 0.3])
def test_who_is_left_out_is_who_never_answers(validation_fraction: float) -> None:
    """Asked in every round, without any delay that is drawn."""
    devices = {client: Device(seconds_per_step=0.25 * client) for client in EVERY}
    federation = abstaining(2, devices=devices)
    settings = spec_of(FEDAVG, deadline_seconds=2.0, validation_fraction=validation_fraction)
    trial = completed(settings, federation)
    failed = [int(key.split(":")[1]) for key in trial.dropped_clients]
    never = [client for client in EVERY if failed.count(client) == settings.num_rounds]
    assert 0 < len(never) < len(EVERY)
    assert able(federation, settings.session) == [client for client in EVERY if client not in never]


# -- Every client has one host, and hosts have equal loads -------------------------------------------------------------


def test_clients_are_balanced_over_hosts() -> None:
    """Longest first, each to the least loaded: 40 | 33, then 17 to the second, 12 to the first, the rest as they fall.

    A row costs one unit and a client one: loads 41 | 34 → 41 | 52 → 54 | 52 → (2 rows) 54 | 55 → (1 row) 56 | 55 →
    (no rows) 56 | 56.
    """
    host_of = balance(np.array(federations.SIZES), 2)

    assert host_of[[0, 5, 1, 3]].tolist() == [0, 1, 1, 0]
    assert host_of[[federations.TWO_ROWS, federations.ONE_ROW, federations.EMPTY]].tolist() == [1, 0, 1]


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


def registered(num_clients: int) -> Federation:
    """The first clients are the same, however many there are."""
    num_rows = num_clients * ROWS
    features = np.random.default_rng(0).normal(size=(num_rows, federations.NUM_FEATURES)).astype(np.float32)
    labels = np.arange(num_rows) % federations.NUM_CLASSES
    offsets = np.arange(0, num_rows + 1, ROWS)
    rows = Partition(np.arange(num_rows), offsets)
    return Federation("many", features, labels, federations.NUM_CLASSES, rows, federations.dense)


def trained(host: ClientHost) -> Trial:
    session = calls.Session(training=LocalTraining(batch_size=4), num_scored=SAMPLED)
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


def test_a_trial_calls_as_many_functions_whoever_is_registered() -> None:
    """From so many on that some are dealt to hosts without being weighed."""
    before, few, many = (ClientHost(registered(num), {}) for num in (FEW, FEW, MANY))
    trained(before)  # what is imported on the way does not count

    assert num_calls(many) < 1.01 * num_calls(few)


def test_a_host_forgets_clients_that_took_part_long_ago(monkeypatch: Any) -> None:
    """And draws their splits again alike."""
    federation = registered(200)
    unbounded = trained(ClientHost(federation, {}))
    monkeypatch.setattr("fedscout.engine.client.host.CLIENTS_KEPT", 5)
    host = ClientHost(federation, {})
    bounded = trained(host)

    assert host._client.cache_info().currsize == 5
    assert np.array_equal(unbounded.rounds["accuracy"], bounded.rounds["accuracy"])
    assert unbounded.clients["accuracy"] == bounded.clients["accuracy"]


# -- Simulated time: who misses rounds, what a round costs a client, and that any hosts tell the same ------------------


SETTINGS = spec_of(FEDAVG, num_rounds=4, num_sampled=5, deadline_seconds=9.0)


DROPPING = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.5, optimizer="adadelta")
OF_TWO_HOSTS: dict[str, tuple[Federation, TrialSettings]] = {
    "a clock": (federations.timed_federation(), SETTINGS),
    "a buffer": (replace(federations.timed_federation(), dropout={}), spec_of(FedBuffSpec(), num_rounds=4)),
    "a policy": (UNEVEN, settings_of(FEDADAM)),
    "layers of dropout": (federations.uneven_federation(federations.dropping), spec_of(FEDAVG, training=DROPPING)),
    "unseen clients": (
        replace(UNEVEN, unseen=frozenset((1, 5))),
        spec_of(replace(FEDAVG, algorithm=Variates()), num_sampled=4),
    ),
    **{
        f"attacks, {name}": (attacked(DRAWING), spec_of(FLOWER_CHOICES[name], num_sampled=4))
        for name in ("fedavg", "fedavg-individual", "fedtrimmedavg")
    },
}


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", OF_TWO_HOSTS)
def test_two_hosts_tell_what_one_tells(ray_session: None, name: str) -> None:
    federation, settings = OF_TWO_HOSTS[name]
    with started_hosts(federation, 2) as hosts:
        by_ray = ray_result(settings, hosts)
    local = local_result(settings, federation)
    assert_all_same(by_ray, local)
    assert by_ray.clients.get("rounds") == local.clients.get("rounds")
    if settings is SETTINGS:
        assert 0 < min(local.rounds["seconds"]) <= max(local.rounds["seconds"]) == 9.0


def test_a_strategy_with_its_own_start_has_a_clock_too() -> None:
    federation = replace(federations.timed_federation(), dropout={})
    settings = (replace(SETTINGS, strategy=Choice(kind), num_sampled=7) for kind in (FedAvg, Whole))
    driven, whole = (local_result(asked, federation) for asked in settings)
    assert driven.rounds.get("seconds") == whole.rounds.get("seconds")
    assert len(whole.rounds.get("seconds") or ()) == 4


def test_durations_are_of_all_who_were_asked_and_handed_over_once() -> None:
    """Also of client 2, which misses the round, and of those that come late; one without a device takes no time."""
    federation = replace(federations.timed_federation(), dropout={2: 1 - 1e-12})
    grid = LocalGrid(federation, session=SETTINGS.session)
    grid.send_and_receive(messages(grid))
    durations = grid.take_durations()
    assert sorted(durations) == [*range(7)]
    assert durations[0] == 0.0 < durations[2]
    assert max(durations.values()) > 9.0
    assert grid.take_durations() == {}


# -- Who misses rounds, and how long they take -------------------------------------------------------------------------


ROUNDS = 4


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_client_misses_its_share_of_the_rounds(probability: float) -> None:
    """Of 2,000 rounds, within four standard deviations √(2000 p (1 − p)) of the expected number."""
    missed = sum(misses({3: probability}, 0, server_round, 3) for server_round in range(2000))
    assert abs(missed - 2000 * probability) < 4 * np.sqrt(2000 * probability * (1 - probability))
    assert not any(misses({3: probability}, 0, server_round, 2) for server_round in range(50))


def test_latency_is_a_shifted_exponential_drawn_by_seed_round_and_client_alone() -> None:
    device, nothing = Device(shift_seconds=2.0, mean_seconds=3.0), RoundWork(0, 0, 0)
    places = itertools.product(range(2), range(3), range(3))
    draws = {place: simulated_seconds(device, nothing, *place) for place in places}
    assert len(set(draws.values())) == len(draws)
    assert draws[1, 2, 0] == 2.0 + 3.0 * stream(1, "latency", 2, 0).exponential()


def test_simulated_seconds_add_up_and_cost_none() -> None:
    devices = {1: Device(shift_seconds=10.0), 5: Device(shift_seconds=1000.0)}
    federation = replace(UNEVEN, devices=devices)
    settings = spec_of(FEDAVG, num_rounds=ROUNDS)
    result = local_result(settings, federation)
    assert result.seconds["simulated"] == 1000.0 * ROUNDS
    assert result.rounds.get("seconds") == (1000.0,) * ROUNDS
    cut = local_result(spec_of(FEDAVG, num_rounds=ROUNDS, deadline_seconds=10.0), federation)
    assert cut.seconds["simulated"] == 10.0 * ROUNDS  # at the deadline is in time
    absent = {key: told for key, told in cut.dropped_clients.items() if told.startswith(AbsentError.__name__)}
    assert [*absent] == [f"{server_round}:5" for server_round in range(1, ROUNDS + 1)]
    assert all("1e+03" in told and told.endswith(" 10") for told in absent.values())
    plain = local_result(settings, UNEVEN)
    assert ("simulated" in plain.seconds, plain.rounds.get("seconds")) == (False, None)


# -- What a round costs a client in simulated time, by hand, and that hosts and driver tell the same -------------------


def probe_seconds(facts: calls.FederationFacts, session: calls.Session) -> FloatArray:
    epochs = session.training.local_epochs
    return client_seconds(facts, session, lambda device, work: device.probe_seconds(work, epochs))


DEVICE = Device(seconds_per_step=0.5, bytes_per_second_down=1000.0, bytes_per_second_up=250.0, shift_seconds=2.0)


def test_a_round_by_hand() -> None:
    """2 + 10·0.5 + 4000/1000 + 4000/250 = 27; a probe of two epochs' steps: (2 + 5)/6 + 4."""
    work = RoundWork(num_steps=10, bytes_down=4000, bytes_up=4000)
    assert DEVICE.least_seconds(work) == 27.0
    assert replace(DEVICE, mean_seconds=3.0).expected_seconds(work) == 30.0
    assert DEVICE.probe_seconds(work, local_epochs=2) == pytest.approx(7 / 6 + 4)
    assert Device().expected_seconds(work) == 0.0


@pytest.mark.parametrize("strategy", [FEDAVG, ScaffoldSpec()])
def test_hosts_and_driver_tell_the_same_and_bytes_are_those_of_the_log(strategy: object) -> None:
    """The slowest client is the one with most rows; with bandwidth alone a round takes the log's bytes of a client."""
    settings = spec_of(strategy, num_rounds=ROUNDS)  # type: ignore[arg-type]
    plain = UNEVEN
    federation = replace(plain, devices=dict.fromkeys(range(plain.num_clients), DEVICE))
    facts = ClientHost(federation, federations.QUERIES).facts()
    expected = expected_seconds(facts, settings.session)
    result = local_result(settings, federation)
    if strategy is FEDAVG:  # which is sent nothing beside the model
        assert result.rounds.get("seconds") == (float(expected.max()),) * ROUNDS
    num_answered = int(np.count_nonzero(plain.partition.sizes))
    up = replace(plain, devices={0: Device(bytes_per_second_up=1.0)})
    moved = local_result(settings, up)
    assert moved.rounds.get("seconds") == (moved.bytes_up / num_answered,) * ROUNDS
    down = local_result(settings, replace(plain, devices={0: Device(bytes_per_second_down=1.0)}))
    assert sum(down.rounds["seconds"]) == ROUNDS * down.bytes_down / settings.num_sampled


def test_a_clock_changes_no_bit_of_the_training() -> None:
    federation = UNEVEN
    timed = replace(federation, devices={1: DEVICE})
    settings = replace(spec_of(FEDAVG, num_rounds=ROUNDS), keep_model=True)
    first, second = local_result(settings, federation).vector, local_result(settings, timed).vector
    assert first.tobytes() == second.tobytes()


def test_what_a_policy_asks_for_is_paid_for() -> None:
    """Client 0 makes twice the epochs and withholds half of its tensors; client 1 only measures the model."""
    federation = replace(UNEVEN, devices=dict.fromkeys(range(7), DEVICE))
    host, settings = ClientHost(federation, federations.QUERIES), spec_of(FEDAVG)
    facts, grid = host.facts(), LocalGrid(host, session=settings.session)
    grid.reports.watched = calls.RoundSelection(
        calls.ReportRequest(training_losses=True), (1,), {0: calls.Assignment(epochs=2, withheld=0.5)}
    )
    list(grid.send_and_receive(messages(grid, clients=(0, 2))))
    durations, carried = grid.take_durations(), grid.take_bytes()
    usual, probes = expected_seconds(facts, settings.session), probe_seconds(facts, settings.session)
    assert (durations[1], durations[2]) == (probes[1], usual[2])
    rows = num_part_rows(facts.client_rows, settings.session.test_fraction, 0.0)["train"]
    steps = int(settings.session.training.num_steps(rows)[0])
    withheld_bytes = 2 * 4 * facts.layout.size - carried["up"]
    assert withheld_bytes > 0
    assert durations[0] == pytest.approx(usual[0] + steps * 0.5 - withheld_bytes / 250.0)


def test_who_would_measure_after_the_deadline_tells_nothing() -> None:
    """A probe takes client 1 longer than the deadline, and client 3 not; both would train late."""
    slow, quick = replace(DEVICE, bytes_per_second_down=10.0), replace(DEVICE, shift_seconds=20.0)
    federation = replace(UNEVEN, devices={1: slow, 3: quick})
    settings = spec_of(FEDAVG, deadline_seconds=12.0)
    grid = LocalGrid(federation, federations.QUERIES, settings.session)
    probes = probe_seconds(grid.facts, settings.session)
    assert probes[3] < 12.0 < probes[1]
    for measured_apart in (False, True):
        grid.reports.watched = calls.RoundSelection(calls.ReportRequest(training_losses=True), (1, 3))
        arrays = flat_record(grid.initial_vector(3))
        if measured_apart:
            grid.measure(arrays)
        list(grid.send_and_receive(messages(grid, clients=[0], arrays=arrays)))
        durations = grid.take_durations()
        assert (durations[1], durations[3]) == (probes[1], probes[3])
        report = grid.reports.take(grid.server_round, durations, 12.0)
        assert report.clients.tolist() == [0, 3]


def test_who_misses_the_round_or_abstains_measures_nothing() -> None:
    """Clients 1, 2 and 3 are asked: the first is absent, the second holds too few rows, the third tells its loss."""
    federation = replace(UNEVEN, dropout={1: 1 - 1e-12}, release=Release(5, "abstain"))
    settings = spec_of(FEDAVG)
    grid = LocalGrid(federation, federations.QUERIES, settings.session)
    grid.reports.watched = calls.RoundSelection(calls.ReportRequest(training_losses=True), (1, federations.ONE_ROW, 3))
    list(grid.send_and_receive(messages(grid, clients=[0])))
    report = grid.reports.take(grid.server_round, {}, 0.0)
    assert (report.clients.tolist(), report.trained.tolist()) == ([0, 3], [True, False])
    assert report.failures == {}
