"""Who misses rounds, and how long they take."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedscout.engine.data.client import Partition
from fedscout.engine.data.devices import (
    AbsentError,
    Device,
    RoundWork,
    check_takes_part,
    misses,
    round_seconds,
    simulated_seconds,
)
from fedscout.engine.data.federation import Federation
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial, TrialSettings
from tests.engine.choices import FEDAVG, FLOWER_CHOICES, Choice, spec_of
from tests.engine.federations import uneven_federation
from tests.engine.results import local_result

ROUNDS = 4
NOTHING = RoundWork(0, 0, 0)


def without_rows(federation: Federation, client: int) -> Federation:
    """The same rows for everyone but this client, who has none and fails in every round."""
    parts = [federation.partition.client(other) for other in range(federation.num_clients)]
    parts[client] = parts[client][:0]
    return replace(federation, partition=Partition.from_lists(parts))


def absent(trial: Trial) -> list[str]:
    return [key for key, reason in trial.dropped_clients.items() if reason.startswith(AbsentError.__name__)]


def spec(**changes: object) -> TrialSettings:
    return spec_of(FEDAVG, num_rounds=ROUNDS, **changes)


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_a_client_misses_its_share_of_the_rounds(probability: float) -> None:
    """Of 2,000 rounds, within four standard deviations √(2000 p (1 − p)) of the expected number."""
    missed = sum(misses({3: probability}, 0, server_round, 3) for server_round in range(2000))
    assert abs(missed - 2000 * probability) < 4 * np.sqrt(2000 * probability * (1 - probability))
    assert not any(misses({3: probability}, 0, server_round, 2) for server_round in range(50))


def test_latency_is_a_shifted_exponential() -> None:
    shift, mean = 2.0, 3.0
    device = Device(shift_seconds=shift, mean_seconds=mean)
    seconds = [simulated_seconds(device, NOTHING, 0, server_round, 1) for server_round in range(2000)]
    assert min(seconds) >= shift
    assert stats.kstest(np.array(seconds) - shift, stats.expon(scale=mean).cdf).pvalue > 1e-3


def test_draws_depend_on_seed_round_and_client_alone() -> None:
    device = Device(shift_seconds=1.0, mean_seconds=1.0)
    draws = {
        (s, r, c): simulated_seconds(device, NOTHING, s, r, c) for s in range(2) for r in range(3) for c in range(3)
    }
    assert len(set(draws.values())) == len(draws)
    assert draws[1, 2, 0] == 1.0 + stream(1, "latency", 2, 0).exponential()


def test_the_server_waits_for_the_slowest_or_until_the_deadline() -> None:
    assert round_seconds([1.0, 5.0, 0.0], None) == 5
    assert round_seconds([1.0, 0.0], 2.0) == 1
    assert round_seconds([1.0, 5.0], 2.0) == 2
    assert round_seconds([], None) == 0


def test_who_comes_late_is_left_out_and_told() -> None:
    check_takes_part({}, 1.0, 2.0, 0, 1, 0)
    check_takes_part({}, 5.0, None, 0, 1, 1)
    check_takes_part({}, 5.0, 5.0, 0, 1, 1)  # at the deadline is in time
    with pytest.raises(AbsentError, match=r"\b5\b.*\b2$"):
        check_takes_part({}, 5.0, 2.0, 0, 1, 1)


@pytest.mark.parametrize("choice", [FEDAVG, FLOWER_CHOICES["fedavg-individual"]])
def test_a_client_that_always_misses_might_as_well_not_be_asked(choice: Choice) -> None:
    """The model is the one of a federation in which that client fails; every round names it among the dropped."""
    federation = replace(uneven_federation(), dropout={0: 1 - 1e-12})
    result = local_result(replace(spec_of(choice), num_rounds=ROUNDS, keep_model=True), federation)
    assert result.status == "completed"
    assert absent(result) == [f"{server_round}:0" for server_round in range(1, ROUNDS + 1)]
    vectors = [
        local_result(replace(spec_of(choice), num_rounds=ROUNDS, keep_model=True), other).vector
        for other in (without_rows(uneven_federation(), 0), uneven_federation())
    ]
    np.testing.assert_allclose(result.vector, vectors[0], rtol=0, atol=1e-6)
    assert np.abs(result.vector - vectors[1]).max() > 1e-4


def test_a_round_that_everybody_misses_keeps_the_model() -> None:
    """Of four rounds, one: the seed is the first under which the draws say so."""
    often = dict.fromkeys(range(3), 0.6)

    def empty_rounds(seed: int) -> list[int]:
        return [r for r in range(1, ROUNDS + 1) if all(misses(often, seed, r, client) for client in often)]

    seed = next(seed for seed in range(1000) if empty_rounds(seed) == [3])
    federation = replace(uneven_federation(sizes=(20, 20, 20)), dropout=often)
    result = local_result(spec(seed=seed, num_sampled=3), federation)
    assert (result.status, result.error, list(result.skipped_rounds)) == ("completed", None, ["3"])
    losses = list(result.round_loss)
    assert losses[1] == losses[2] != losses[3]
    assert [bool(np.isnan(loss)) for loss in result.round_train_loss] == [False, False, True, False]


def test_a_trial_of_which_most_rounds_were_missed_fails() -> None:
    everybody = dict.fromkeys(range(7), 1 - 1e-12)
    result = local_result(spec(), replace(uneven_federation(), dropout=everybody))
    assert (result.status, result.fitness) == ("failed", 0.0)
    assert re.match(r"3 of 4 .*round 1: FedAvg .*\b7 clients, 7 of", result.error)


def test_simulated_seconds_add_up_and_cost_none() -> None:
    devices = {1: Device(shift_seconds=10.0), 5: Device(shift_seconds=1000.0)}
    federation = replace(uneven_federation(), devices=devices)
    result = local_result(spec(), federation)
    assert result.seconds["simulated"] == 1000.0 * ROUNDS
    assert result.round_seconds == (1000.0,) * ROUNDS
    cut = local_result(spec(deadline_seconds=60.0), federation)
    assert cut.seconds["simulated"] == 60.0 * ROUNDS
    assert absent(cut) == [f"{server_round}:5" for server_round in range(1, ROUNDS + 1)]
    plain = local_result(spec(), uneven_federation())
    assert ("simulated" in plain.seconds, plain.round_seconds) == (False, None)
