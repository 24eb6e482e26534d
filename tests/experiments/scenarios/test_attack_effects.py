"""Attacks on updates: their closed forms, what a federation holds of them, and which strategies withstand them."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedscout.detectors import CLIENT_QUERIES, DetectionConfig
from fedscout.detectors.detect import detect
from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import AttackInputs, UpdateAttack
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, start_hosts
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.scenarios.features import GaussianUpdate, LittleIsEnough, ScaledUpdate
from fedscout.strategies import parse_strategy
from tests.engine.choices import rounds_of
from tests.kits.refusals import refused
from tests.ray_processes import NUM_HOSTS

CLIENTS, ROUNDS = 10, 12
ATTACKERS = [0, 1]
FEDAVG = {"kind": "fedavg"}
vectors = arrays(np.float32, 20, elements=st.floats(-100, 100, width=32))


def build(*effects: dict[str, Any], dataset: str = "digits", **federation: Any) -> Federation:
    keys = {"dataset": dataset, "num_clients": CLIENTS, "partition": {"kind": "iid"}, **federation}
    if effects:
        keys["scenario"] = list(effects)
    return build_federation(FederationConfig.model_validate(keys), ModelConfig())


def spec_of(strategy: dict[str, Any], num_rounds: int, num_sampled: int, num_clients: int = CLIENTS) -> TrialSettings:
    return TrialSettings(
        strategy=parse_strategy(strategy, Cohort(num_clients, num_sampled, 0.2)),
        num_rounds=num_rounds,
        num_sampled=num_sampled,
        session=Session(training=LocalTraining(local_epochs=2, batch_size=16, learning_rate=0.2)),
        keep_model=True,
    )


def trial(federation: Federation, strategy: dict[str, Any], num_rounds: int = ROUNDS) -> Trial:
    spec = spec_of(strategy, num_rounds, federation.num_clients, federation.num_clients)
    return run_trial(spec, LocalGrid(ClientHost(federation, {}), session=spec.session))


def sends(attack: UpdateAttack, received: FloatArray, trained: FloatArray, *colluders: FloatArray) -> FloatArray:
    """Return what an attack sends."""
    known = np.array(colluders, np.float32).reshape(len(colluders), len(received))
    return attack(AttackInputs(received, trained, known, stream(3, "noise")))


# What is sent.


@given(vectors, vectors)
def test_factor_one_is_honest_to_the_last_bit(received: FloatArray, trained: FloatArray) -> None:
    """So is the complement of a turned update, x - c (y - x) with c = -1, which is the same value."""
    np.testing.assert_array_equal(sends(ScaledUpdate(1.0), received, trained), trained)


@given(vectors, vectors, st.floats(-20, 20))
def test_an_update_is_scaled_and_rounded_once(received: FloatArray, trained: FloatArray, factor: float) -> None:
    """Within half a float32 step of x + c (y - x), beside which float64 is exact."""
    sent = sends(ScaledUpdate(factor), received, trained)
    start, end = received.astype(np.float64), trained.astype(np.float64)
    exact = start + factor * (end - start)
    assert sent.dtype == np.float32
    assert (np.abs(sent - exact) <= 0.5001 * np.spacing(np.abs(exact).astype(np.float32)) + 1e-12).all()


def test_by_hand() -> None:
    """x = 1, y = 3: turned round 1 - 2, at four times the length 1 - 8, ten times as long 1 + 20."""
    received, trained = np.array([1], np.float32), np.array([3], np.float32)
    assert [float(sends(ScaledUpdate(c), received, trained)[0]) for c in (-1, -4, 10)] == [-1, -7, 21]


@pytest.mark.parametrize("deviation", [0.5, 3.0])
def test_noise_has_its_deviation_and_holds_nothing_of_the_training(deviation: float) -> None:
    """Of 100,000 draws, within five standard errors: σ/√n of the mean, σ/√(2n) of the deviation."""
    n = 100_000
    received = np.linspace(-1, 1, n, dtype=np.float32)
    sent = sends(GaussianUpdate(deviation), received, np.full(n, 7, np.float32))
    noise = sent.astype(np.float64) - received
    assert noise.mean() == pytest.approx(0, abs=5 * deviation / np.sqrt(n))
    assert noise.std() == pytest.approx(deviation, abs=5 * deviation / np.sqrt(2 * n))
    np.testing.assert_array_equal(sent, sends(GaussianUpdate(deviation), received, np.zeros(n, np.float32)))


def test_no_noise_sends_what_was_received() -> None:
    received = np.linspace(-1, 1, 5, dtype=np.float32)
    np.testing.assert_array_equal(sends(GaussianUpdate(0.0), received, received + 1), received)


def test_accomplices_send_their_mean_less_deviations_by_hand() -> None:
    """Models 1, 2, 6: mean 3, squared distances 4, 1, 9, a deviation of √(14/3); what was trained does not count."""
    zero = np.zeros(1, np.float32)
    models = [np.array([value], np.float32) for value in (1, 2, 6)]
    for z in (0.0, 1.5):
        sent = sends(LittleIsEnough((0, 1, 2), z), zero, zero + 50, *models)
        np.testing.assert_array_equal(sent, np.float32([3 - z * np.sqrt(14 / 3)]))


# What a federation holds of it.


def test_a_federation_holds_attacks_and_untouched_rows() -> None:
    federation = build(
        {"kind": "sign_flip", "clients": [1], "factor": 2},
        {"kind": "poisoning", "clients": [3]},
        {"kind": "scaled_update", "clients": [1, 3]},
        {"kind": "gaussian_update", "clients": [4], "std": 0.25},
        {"kind": "little_is_enough", "clients": [7, 8], "z": 1},
        dataset="wine",
    )
    assert federation.attacks == {
        1: (ScaledUpdate(-2.0), ScaledUpdate(10.0)),
        3: (ScaledUpdate(10.0),),
        4: (GaussianUpdate(0.25),),
        7: (LittleIsEnough((7, 8), 1.0),),
        8: (LittleIsEnough((7, 8), 1.0),),
    }
    assert federation.affected_clients == (1, 3, 4, 7, 8)
    assert [client for client in range(CLIENTS) if federation.client_data(client).corrupted] == [3]
    assert federation.facts["effects"] == [
        {"kind": "sign_flip", "clients": [1], "factor": 2.0},
        {"kind": "poisoning", "clients": [3]},
        {"kind": "scaled_update", "clients": [1, 3], "factor": 10.0},
        {"kind": "gaussian_update", "clients": [4], "std": 0.25},
        {"kind": "little_is_enough", "clients": [7, 8], "z": 1.0},
    ]
    assert pickle.loads(pickle.dumps(federation.attacks)) == federation.attacks


def test_players_don_t_know_what_others_keep() -> None:
    scenario = [{"kind": "little_is_enough", "clients": [0, 1]}]
    config = FederationConfig.model_validate({"dataset": "cartpole", "num_clients": 3, "scenario": scenario})
    with refused(ConfigurationError, key="federation.scenario"):
        build_federation(config, ModelConfig())


@pytest.mark.parametrize(
    "nothing",
    [{"kind": "scaled_update", "clients": "all", "factor": 1}, {"kind": "little_is_enough", "clients": [4]}],
    ids=lambda given: given["kind"],
)
def test_an_attack_that_changes_nothing_is_the_honest_trial(nothing: dict[str, Any]) -> None:
    """Of colluders, one alone: the mean of its own model, which does not deviate from itself."""
    honest = trial(build(dataset="wine"), FEDAVG, num_rounds=3)
    federation = build(nothing, dataset="wine")
    same = trial(federation, FEDAVG, num_rounds=3)
    assert federation.affected_clients == ()
    assert federation.attacks
    np.testing.assert_array_equal(same.vector, honest.vector)
    assert rounds_of(same) == rounds_of(honest)


def test_scores_and_losses_are_of_honest_rows_and_training() -> None:
    """Of the first round, whose received model no attacker has had a hand in."""
    honest, attacked = (
        trial(build(*effects, dataset="wine"), FEDAVG, num_rounds=1)
        for effects in ((), ({"kind": "sign_flip", "clients": "all"},))
    )
    assert attacked.round_train_loss[0] == honest.round_train_loss[0]
    assert attacked.round_accuracy[0] == attacked.round_clean_accuracy[0]


EVERY_KIND = (
    {"kind": "sign_flip", "clients": [0]},
    {"kind": "scaled_update", "clients": [1]},
    {"kind": "gaussian_update", "clients": [2, 3, 4]},
    {"kind": "little_is_enough", "clients": [4, 5, 6]},
)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.parametrize("num_hosts", NUM_HOSTS)
def test_any_number_of_hosts_sends_the_same(ray_session: None, num_hosts: int) -> None:
    """Half of the clients are chosen in a round, so colluders are often not among them, or on the other host."""
    federation = build(*EVERY_KIND, dataset="wine")
    host, hosts = ClientHost(federation, {}), start_hosts(federation, {}, num_hosts)
    try:
        for strategy in (FEDAVG, {"kind": "fedmedian"}):
            spec = spec_of(strategy, num_rounds=4, num_sampled=CLIENTS // 2)
            by_ray = run_trial(spec, RayGrid(hosts, spec.session))
            local = run_trial(spec, LocalGrid(host, session=spec.session))
            assert local.status == "completed"
            np.testing.assert_array_equal(by_ray.vector, local.vector)
            assert rounds_of(by_ray) == rounds_of(local)
    finally:
        hosts.stop()


@pytest.mark.parametrize("kind", ["scaled_update", "gaussian_update"])
def test_detectors_that_train_see_the_attackers(kind: str) -> None:
    """And those of rows don't: the attackers' rows are as everybody's."""
    federation = build({"kind": kind, "clients": ATTACKERS})
    grid = LocalGrid(federation, CLIENT_QUERIES)
    report = detect(grid, grid.initial_vectors, LocalTraining(), DetectionConfig(), seed=0)
    found = {finding.name: finding for finding in report.calibrated}
    assert {name: finding.flagged_clients for name, finding in found.items() if finding.detected} == {
        "outliers": tuple(ATTACKERS)
    }
    assert not report.label_skew.detected
    assert not report.feature_skew.detected


# Who withstands it.

ATTACKS: dict[str, tuple[dict[str, Any], ...]] = {
    "sign_flip": ({"kind": "sign_flip", "factor": 4},),
    "scaled_update": ({"kind": "scaled_update"},),
    "gaussian_update": ({"kind": "gaussian_update"},),
    "model replacement": ({"kind": "poisoning"}, {"kind": "scaled_update"}),
}
ROBUST = {
    "fedmedian": {"kind": "fedmedian"},
    "fedtrimmedavg": {"kind": "fedtrimmedavg", "beta": 0.2},
    "krum": {"kind": "krum", "num_malicious_nodes": 2},
    "multikrum": {"kind": "multikrum", "num_malicious_nodes": 2, "num_nodes_to_select": 8},
    "rfa": {"kind": "rfa"},
    "centered_clipping": {"kind": "centered_clipping"},
    "bulyan": {"kind": "bulyan", "num_malicious_nodes": 3},
}
MANY_CLIENTS = 15
"""The fewest of whom a fifth attacks and Bulyan's 4 f + 3 clients are there."""


@cache
def accuracy(strategy: str, attack: str | None, num_clients: int) -> float:
    """Return the accuracy on the honest labels of all clients after the last round on digits, IID clients.

    A fifth of them attacks.
    """
    attackers = list(range(num_clients // 5))
    effects = [{**effect, "clients": attackers} for effect in ATTACKS.get(str(attack), ())]
    result = trial(build(*effects, num_clients=num_clients), ROBUST.get(strategy, FEDAVG))
    assert result.status == "completed", result.error
    return result.round_clean_accuracy[-1]


@pytest.mark.sampled(14)
@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("strategy", ROBUST)
def test_a_fifth_of_attackers_breaks_the_mean_and_not_what_is_robust(strategy: str, attack: str) -> None:
    """A robust strategy loses at most 0.05 to them, and FedAvg is at least 0.1 behind it."""
    num_clients = MANY_CLIENTS if strategy == "bulyan" else CLIENTS
    assert accuracy(strategy, attack, num_clients) > accuracy(strategy, None, num_clients) - 0.05
    assert accuracy("fedavg", attack, num_clients) < accuracy(strategy, attack, num_clients) - 0.1
    assert accuracy("fedavg", None, num_clients) > 0.9
