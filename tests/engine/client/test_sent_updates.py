"""What attackers send: in place of their own update alone, after training in any way, before merging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest

from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import AttackInputs, UpdateAttack
from fedscout.engine.data.federation import Federation
from fedscout.engine.messages.calls import TrainResults
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDAVG, FLOWER_CHOICES, spec_of
from tests.engine.contracts.test_client_task import federation as players
from tests.engine.federations import ABLE, CORRUPTED, EMPTY, QUERIES, dense, normalised, uneven_federation
from tests.engine.grid.test_local_grid import WatchedGrid
from tests.engine.results import local_result


class Alone:
    """Attacks without accomplices."""

    colluders: ClassVar[tuple[int, ...]] = ()


@dataclass(frozen=True)
class Times(Alone):
    """Sends x + factor (y - x), in small whole powers of two: exact."""

    factor: float

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        return inputs.received + np.float32(self.factor) * (inputs.trained - inputs.received)


@dataclass(frozen=True)
class Plus(Alone):
    """Adds a number."""

    number: float

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        return inputs.trained + np.float32(self.number)


class Drawn(Alone):
    """Sends random numbers in [0, 1)."""

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        return inputs.generator.random(inputs.received.shape, dtype=np.float32)


@dataclass(frozen=True)
class Conspiracy:
    """Sends the sum over all colluders."""

    colluders: tuple[int, ...]

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        return inputs.colluders.sum(axis=0)


class Broken(Alone):
    """Raises."""

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        raise ArithmeticError("the attacker's mistake")


def attacked(attacks: Mapping[int, tuple[UpdateAttack, ...]], source: Federation | None = None) -> Federation:
    return replace(source or uneven_federation(), attacks=attacks)


def first_round(
    federation: Federation, spec: TrialSettings, chosen: tuple[int, ...] | None = None
) -> tuple[FloatArray, TrainResults]:
    """Return what a trial's first train call sends to its host, and the host's answer, if `chosen` were its clients."""
    host = ClientHost(federation, QUERIES)
    grid = WatchedGrid(host, session=spec.session)
    run_trial(replace(spec, num_rounds=1), grid)
    (call,) = [call for method, call in grid.calls_made if method == "train"]
    call = call if chosen is None else replace(call, clients=chosen)
    return np.asarray(call.vector), host.train(call)


INDIVIDUAL = spec_of(FLOWER_CHOICES["fedavg-individual"])
SOURCES = {
    "block": (uneven_federation(dense), "auto"),
    "loop": (uneven_federation(dense), "loop"),
    "normalised": (uneven_federation(normalised), "auto"),
    "task": (players(), "auto"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_attack_sees_received_and_trained_parameters_and_changes_nobody_else(name: str) -> None:
    """Buffers go up as they were trained."""
    source, backend = SOURCES[name]
    spec = spec_of(FLOWER_CHOICES["fedavg-individual"], backend=backend)
    received, honest = first_round(source, spec)
    _, sent = first_round(attacked({0: (Times(-2.0),), CORRUPTED: (Plus(1.0),)}, source), spec)
    trained = np.array(honest.vectors)
    expected = trained.copy()
    n = ClientHost(source, QUERIES).facts().layout.num_trainable
    assert (n < len(received)) == (name == "normalised")
    expected[0, :n] = received[:n] + np.float32(-2) * (trained[0, :n] - received[:n])
    position = honest.clients.index(CORRUPTED)
    expected[position, :n] = trained[position, :n] + np.float32(1)
    np.testing.assert_array_equal(sent.vectors, expected)
    assert not np.array_equal(trained, expected)


@pytest.mark.parametrize("merged", [True, False])
def test_the_mean_is_over_what_is_sent(merged: bool) -> None:
    """FedAvg's own formula by hand, Σ n_k y_k / Σ n_k with 2x − y_0 in place of y_0: c = 1 turns the update round.

    Merged, products are rounded to multiples of a unit (see `exact_mean`); single ones are summed in float32.
    """
    received, honest = first_round(uneven_federation(), INDIVIDUAL)
    vectors = np.array(honest.vectors, np.float64)
    vectors[0] = 2 * received.astype(np.float64) - vectors[0]
    weights = np.array(honest.num_examples, np.float64)
    expected = weights @ vectors / weights.sum()

    spec = replace(spec_of(FEDAVG) if merged else INDIVIDUAL, num_rounds=1)
    result = local_result(spec, attacked({0: (Times(-1.0),)}))

    np.testing.assert_allclose(result.vector, expected, rtol=0, atol=1e-6)
    unattacked = local_result(spec, uneven_federation()).vector
    assert np.abs(unattacked - expected).max() > 1e-3


def test_draws_are_by_seed_round_client_and_place() -> None:
    spec = spec_of(FLOWER_CHOICES["fedavg-individual"], seed=7)
    received, sent = first_round(attacked({0: (Drawn(),), 1: (Plus(0.0), Drawn())}), spec)
    for row, place in ((0, 0), (1, 1)):
        drawn = stream(7, "attack", 1, row, place).random(received.shape, dtype=np.float32)
        np.testing.assert_array_equal(sent.vectors[row], drawn)
    assert not np.array_equal(sent.vectors[0], sent.vectors[1])


def test_an_attack_that_raises_is_the_client_s_failure() -> None:
    result = local_result(spec_of(FEDAVG), attacked({1: (Broken(),)}))
    assert result.status == "completed"
    dropped = [key for key, told in result.dropped_clients.items() if told.startswith("ArithmeticError")]
    assert dropped == ["1:1", "2:1", "3:1"]


@pytest.mark.parametrize("name", ["block", "loop", "normalised"])
def test_an_attacker_knows_its_accomplices_honest_updates(name: str) -> None:
    """Whether the server chose them or not, attackers themselves or not, and nothing of those without rows."""
    source, backend = SOURCES[name]
    spec = spec_of(FLOWER_CHOICES["fedavg-individual"], backend=backend)
    _, honest = first_round(source, spec)
    group = (0, 1, EMPTY, CORRUPTED)
    federation = attacked({0: (Conspiracy(group),), 1: (Times(3.0), Conspiracy(group)), 3: (Plus(1.0),)}, source)
    n = ClientHost(source, QUERIES).facts().layout.num_trainable
    total = np.array([honest.vectors[honest.clients.index(client)] for client in (0, 1, CORRUPTED)]).sum(axis=0)[:n]
    for chosen in (ABLE, (0, 2), (1,)):
        sent = first_round(federation, spec, chosen)[1]
        assert sent.clients == [client for client in chosen if client in honest.clients]
        for client, vector in zip(sent.clients, sent.vectors, strict=True):
            if client in (0, 1):
                np.testing.assert_array_equal(vector[:n], total)
            elif client != 3:
                np.testing.assert_array_equal(vector, honest.vectors[honest.clients.index(client)])


def test_an_accomplice_that_misses_the_round_tells_nothing() -> None:
    _, honest = first_round(uneven_federation(), INDIVIDUAL)
    federation = replace(attacked({0: (Conspiracy((0, 1, 2)),)}), dropout={1: 1 - 1e-12})
    _, sent = first_round(federation, INDIVIDUAL)
    np.testing.assert_array_equal(sent.vectors[0], honest.vectors[0] + honest.vectors[2])


DRAWING = {
    0: (Drawn(),),
    1: (Conspiracy((1, 2)),),
    2: (Conspiracy((1, 2)), Times(0.25)),
    3: (Times(-1.0), Drawn()),
    CORRUPTED: (Times(4.0),),
}
