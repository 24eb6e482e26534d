"""Effects: whom they choose, how strong they are, what is sent, and which strategies withstand attacks."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays
from pydantic import ValidationError
from scipy import stats
from scipy.fft import dctn

from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import AttackInputs, UpdateAttack
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import ClientTransform, Partition
from fedscout.engine.data.federation import Device, Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort, Session
from fedscout.engine.seeds import stream
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.data.dataset import DataKind
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.scenarios.effects import (
    EffectRequest,
    FeatureDrop,
    FeatureNoise,
    GaussianUpdate,
    JpegCompression,
    LittleIsEnough,
    ScaledUpdate,
    ScenarioPlan,
)
from fedscout.experiments.scenarios.labels import RandomLabelFlip, RenameLabels, ShiftLabels
from fedscout.experiments.scenarios.table import EFFECTS, parse_effects, stack_effects
from fedscout.strategies import parse_strategy
from tests.engine.choices import rounds_of
from tests.kits.refusals import refused

NEEDED: dict[str, dict[str, Any]] = {
    "feature_noise": {"std": 0.5},
    "label_flip": {"rate": 0.2},
    "feature_drop": {"share": 0.5},
    "feature_scale": {"factor": 3.0},
    "jpeg": {"quality": 50},
    "class_skew": {"share": 0.35},
    "latency": {"mean_seconds": 3.0},
    "devices": {"seconds_per_step": 0.1},
    "dropout": {"probability": 0.4},
}
ONE_AND_TEN = {"shift_seconds": 1.0, "mean_seconds": 10.0}
ON_UPDATES = ["sign_flip", "scaled_update", "gaussian_update", "little_is_enough"]
ON_DATA = [kind for kind in EFFECTS if kind not in {"latency", "devices", "dropout", "class_skew", *ON_UPDATES}]


def request(
    num_clients: int = 4, rows_each: int = 20, num_classes: int = 3, sizes: list[int] | None = None, **others: Any
) -> EffectRequest:
    sizes = sizes or [rows_each] * num_clients
    partition = Partition.from_lists(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))
    labels = np.arange(sum(sizes), dtype=np.int64) % num_classes
    shape = (3, 8, 8) if others.get("data_kind") == "image" else (6,)
    return EffectRequest(partition, labels, num_classes, shape, **{"seed": 0, **others})


def plan(*effects: dict[str, Any], **federation: Any) -> ScenarioPlan:
    if any(effect["kind"] == "jpeg" for effect in effects):
        federation = {"data_kind": "image", **federation}
    return stack_effects(parse_effects(list(effects)), request(**federation))


def effect(kind: str, **keys: Any) -> dict[str, Any]:
    return {"kind": kind, **NEEDED.get(kind, {}), **keys}


def clients_of(result: ScenarioPlan, place: int = 0) -> list[int]:
    return result.facts["effects"][place]["clients"]


# Whom an effect is for.


@pytest.mark.parametrize("kind", EFFECTS)
@pytest.mark.parametrize(("num_clients", "affected"), [(1, 0), (2, 1), (3, 2), (30, 2)])
def test_without_a_choice_it_is_the_published_client(kind: str, num_clients: int, affected: int) -> None:
    assert clients_of(plan(effect(kind), num_clients=num_clients)) == [affected]


@pytest.mark.parametrize("kind", EFFECTS)
def test_only_the_chosen_clients_get_anything(kind: str) -> None:
    result = plan(effect(kind, clients=[3, 1]))
    changed = (result.transforms, result.dropout, result.timings, result.attacks)
    assert {client for what in changed for client in what} == (set() if kind == "class_skew" else {1, 3})
    assert result.affected_clients == ((1, 3) if kind in {*ON_DATA, *ON_UPDATES, "class_skew"} else ())
    assert clients_of(result) == [1, 3]


@given(st.integers(1, 200), st.floats(0, 1, exclude_min=True), st.integers(0, 100))
def test_a_share_is_the_nearest_number_of_clients_and_at_least_one(num_clients: int, share: float, seed: int) -> None:
    chosen = clients_of(plan(effect("poisoning", clients=share), num_clients=num_clients, rows_each=1, seed=seed))
    assert len(chosen) == max(1, round(share * num_clients))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(num_clients))


def test_a_larger_share_holds_the_clients_of_a_smaller_one() -> None:
    plans = [plan(effect("poisoning", clients=share), num_clients=50) for share in (0.1, 0.2, 0.5, 1.0)]
    chosen = [set(clients_of(planned)) for planned in plans]
    assert [len(clients) for clients in chosen] == [5, 10, 25, 50]
    assert all(small < large for small, large in pairwise(chosen))


def test_another_effect_changes_neither_who_is_chosen_nor_how_much() -> None:
    flips = {"kind": "label_flip", "clients": 0.3, "alpha": 2, "beta": 5}
    alone = plan(flips, num_clients=40)
    behind = plan(effect("poisoning", clients=0.5), effect("dropout", clients=0.2), flips, num_clients=40)
    assert behind.facts["effects"][2] == alone.facts["effects"][0]


def test_who_holds_no_row_is_not_affected() -> None:
    for kind in (*ON_DATA, *ON_UPDATES):
        assert plan(effect(kind, clients="all"), sizes=[20, 0, 20]).affected_clients == (0, 2), kind


@pytest.mark.parametrize(
    "nothing",
    [
        {"kind": "feature_noise", "std": 0},
        {"kind": "label_flip", "rate": 0},
        {"kind": "feature_drop", "share": 0},
        {"kind": "feature_scale", "factor": 1},
        {"kind": "concept_shift", "permutation": [0, 1, 2]},
    ],
    ids=lambda given: given["kind"],
)
def test_an_effect_of_no_strength_affects_nobody_but_keeps_later_random_numbers(nothing: dict[str, Any]) -> None:
    result = plan({**nothing, "clients": [1]}, effect("feature_noise", clients=[2]))
    assert result.affected_clients == (2,)
    # A client's random numbers go by place, so a study from strength zero upwards varies nothing else.
    assert len(plan(nothing, effect("label_flip")).transforms[2]) == 2


# How strong it is.


def test_noise_is_in_units_of_the_standardised_feature() -> None:
    result = plan({"kind": "feature_noise", "mean": 1, "std": 0.5}, feature_unit=0.25)
    assert result.transforms[2] == (FeatureNoise(0.25, 0.125),)


def test_scales_one_after_the_other_multiply() -> None:
    result = plan({"kind": "feature_scale", "factor": 0.5}, {"kind": "feature_scale", "factor": 3})
    features, labels = rows(2, 2, (6,))
    scaled = features
    for transform in result.transforms[2]:
        scaled, same = transform(scaled, labels, 3, np.random.default_rng(0))
        assert (same == labels).all()
    assert (scaled == np.float32(1.5) * features).all()
    assert scaled.dtype == np.float32


@given(st.floats(0, 1), st.lists(st.integers(0, 60), min_size=1, max_size=5))
def test_flips_are_as_many_as_recorded(rate: float, sizes: list[int]) -> None:
    result = plan({"kind": "label_flip", "rate": rate, "clients": "all"}, sizes=sizes)
    (record,) = result.facts["effects"]
    assert record["flipped_rows"] == [round(rate * size) for size in sizes]
    assert record["rates"] == [rate] * len(sizes)
    assert result.affected_clients == tuple(k for k, flipped in enumerate(record["flipped_rows"]) if flipped)


@pytest.mark.parametrize(("alpha", "beta"), [(5, 95), (2, 2), (25, 75)])
def test_rates_are_beta_distributed(alpha: float, beta: float) -> None:
    num_clients, flips = 4000, {"kind": "label_flip", "alpha": alpha, "beta": beta, "clients": "all"}
    result = plan(flips, num_clients=num_clients, rows_each=1)
    rates = np.array(result.facts["effects"][0]["rates"])
    assert [result.transforms[client] for client in range(3)] == [(RandomLabelFlip(float(r)),) for r in rates[:3]]
    mean = alpha / (alpha + beta)
    variance = mean * (1 - mean) / (alpha + beta + 1)
    assert ((rates >= 0) & (rates <= 1)).all()
    assert rates.mean() == pytest.approx(mean, abs=5 * np.sqrt(variance / num_clients))
    # A variance estimate's relative standard error is √((κ − 1)/n); a Beta kurtosis κ here is below 4.
    assert rates.var() == pytest.approx(variance, rel=5 * np.sqrt(3 / num_clients))


@given(st.integers(2, 20), st.floats(0, 1, exclude_min=True), st.integers(0, 100))
def test_a_drawn_permutation_is_one_cycle(num_classes: int, share: float, seed: int) -> None:
    result = plan({"kind": "concept_shift", "share": share}, num_classes=num_classes, rows_each=40, seed=seed)
    (names,) = result.transforms[2]
    assert sorted(names.names) == list(range(num_classes))
    moved = [old for old, new in enumerate(names.names) if old != new]
    assert len(moved) == max(2, round(share * num_classes))
    met, place = 0, moved[0]
    while met == 0 or place != moved[0]:
        met, place = met + 1, names.names[place]
    assert met == len(moved)


def test_concept_shift_affects_who_holds_a_class_that_moved() -> None:
    # Client 0 holds class 0 alone, clients 1 and 2 the others.
    own = replace(request(num_clients=3, rows_each=10), labels=np.repeat([0, 1, 2], 10))
    result = stack_effects(parse_effects({"kind": "concept_shift", "clients": "all", "permutation": [0, 2, 1]}), own)
    assert result.affected_clients == (1, 2)
    assert result.facts["effects"][0]["moved_rows"] == [0, 10, 10]


def test_latency_by_client_and_by_row() -> None:
    times = {"kind": "latency", "shift_seconds": 1, "mean_seconds": 10, "clients": "all"}
    assert plan(times, sizes=[5, 20]).devices == {0: Device(**ONE_AND_TEN), 1: Device(**ONE_AND_TEN)}
    by_row = plan({**times, "per_row": True}, sizes=[5, 20]).devices
    assert by_row == {c: Device(**{k: n * v for k, v in ONE_AND_TEN.items()}) for c, n in ((0, 5), (1, 20))}


# On rows of other kinds.


@pytest.mark.parametrize(
    ("kind", "fitting"),
    [
        *((kind, {"table", "image"}) for kind in ("feature_noise", "corrupted", "feature_scale")),
        ("jpeg", {"image"}),
        ("poisoning", {"table", "image", "tokens"}),
    ],
)
def test_what_changes_measurements_or_pictures_is_refused_on_other_rows(kind: str, fitting: set[DataKind]) -> None:
    for data_kind in ("table", "image", "tokens"):
        if data_kind in fitting:
            assert plan(effect(kind), data_kind=data_kind).affected_clients == (2,)
            continue
        with refused(ConfigurationError, key="federation.scenario.0.kind"):
            plan(effect(kind), data_kind=data_kind)


def test_all_that_does_not_fit_the_federation_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan(
            effect("poisoning", clients=[1, 4, 7]),
            {"kind": "concept_shift", "permutation": [1, 0]},
            effect("feature_noise"),
            data_kind="tokens",
        )
    assert [fault.key for fault in caught.value.faults] == [
        f"federation.scenario.{key}" for key in ("0.clients", "1.permutation", "2.kind")
    ]


# Devices that a scenario gives to clients: values, classes and log-normal ones.


STEP = {"kind": "devices", "clients": "all", "seconds_per_step": 0.5}


def devices(*effects: dict[str, Any], **federation: int) -> dict[int, Device]:
    return plan(*effects, rows_each=1, **federation).devices


def test_effects_stack_value_by_value() -> None:
    up = {"kind": "devices", "clients": [0], "bytes_per_second_up": 10.0, "latency_seconds": 9.0}
    latency = {"kind": "latency", "clients": "all", "shift_seconds": 1.0, "mean_seconds": 2.0}
    found = devices(STEP, up, latency)
    both = Device(seconds_per_step=0.5, shift_seconds=1.0, mean_seconds=2.0)
    assert found == {0: replace(both, bytes_per_second_up=10.0), 1: both, 2: both, 3: both}
    assert devices(latency, up)[0].shift_seconds == 9.0


def test_drawn_values_are_log_normal_and_each_client_s_own() -> None:
    drawn = devices({**STEP, "sigma": 0.7}, num_clients=2000)
    logs = np.log([drawn[client].seconds_per_step / 0.5 for client in range(2000)]) / 0.7
    assert stats.kstest(logs, stats.norm.cdf).pvalue > 1e-3
    some = devices({**STEP, "sigma": 0.7, "clients": [5, 9]}, num_clients=2000)
    assert some == {client: drawn[client] for client in (5, 9)}


def test_classes_have_their_shares() -> None:
    classes = [{"share": 0.5, "seconds_per_step": 1.0}, {"share": 0.3, "latency_seconds": 4.0}, {"share": 0.2}]
    found = devices({"kind": "devices", "clients": "all", "classes": classes}, num_clients=50)
    counts = Counter(found.values())
    assert counts == {Device(seconds_per_step=1.0): 25, Device(shift_seconds=4.0): 15, Device(): 10}
    assert found != devices({"kind": "devices", "clients": "all", "classes": classes}, num_clients=50, seed=1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"seconds_per_step": None}, "got neither"),
        ({"classes": [{"share": 1}]}, "got both"),
        ({"seconds_per_step": -1}, "0.seconds_per_step"),
        ({"bytes_per_second_up": 0}, "0.bytes_per_second_up"),
        ({"seconds_per_step": None, "classes": [{"share": 1}], "sigma": 1}, "sigma"),
        ({"seconds_per_step": None, "classes": [{"share": 0.5}]}, "got 0.5"),
        ({"seconds_per_step": float("nan")}, "0.seconds_per_step"),
        ({"seconds_per_step": None, "classes": [{"share": 1, "speed": 2}]}, "0.classes.0.speed"),
    ],
)
def test_faulty_values_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        parse_effects({**STEP, **changes})


# Attacks on updates and corrupted rows: closed forms, and what a federation holds of them.


CLIENTS, ROUNDS = 10, 12
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


@given(vectors, vectors, st.floats(-20, 20))
def test_an_update_is_scaled_and_rounded_once(received: FloatArray, trained: FloatArray, factor: float) -> None:
    """Within half a float32 step of x + c (y - x), beside which float64 is exact."""
    sent = sends(ScaledUpdate(factor), received, trained)
    start, end = received.astype(np.float64), trained.astype(np.float64)
    exact = start + factor * (end - start)
    assert sent.dtype == np.float32
    assert (np.abs(sent - exact) <= 0.5001 * np.spacing(np.abs(exact).astype(np.float32)) + 1e-12).all()


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


def test_accomplices_send_their_mean_less_deviations_by_hand() -> None:
    """Models 1, 2, 6: mean 3, squared distances 4, 1, 9, a deviation of √(14/3); what was trained does not count."""
    zero = np.zeros(1, np.float32)
    models = [np.array([value], np.float32) for value in (1, 2, 6)]
    for z in (0.0, 1.5):
        sent = sends(LittleIsEnough((0, 1, 2), z), zero, zero + 50, *models)
        np.testing.assert_array_equal(sent, np.float32([3 - z * np.sqrt(14 / 3)]))


# What a federation holds of it.


def test_a_federation_holds_attacks_and_untouched_rows() -> None:
    effects = [
        {"kind": "sign_flip", "clients": [1], "factor": 2.0},
        {"kind": "poisoning", "clients": [3]},
        {"kind": "scaled_update", "clients": [1, 3], "factor": 10.0},
        {"kind": "gaussian_update", "clients": [4], "std": 0.25},
        {"kind": "little_is_enough", "clients": [7, 8], "z": 1.0},
    ]
    federation = build(*effects, dataset="wine")
    assert federation.attacks == {
        1: (ScaledUpdate(-2.0), ScaledUpdate(10.0)),
        3: (ScaledUpdate(10.0),),
        4: (GaussianUpdate(0.25),),
        7: (LittleIsEnough((7, 8), 1.0),),
        8: (LittleIsEnough((7, 8), 1.0),),
    }
    assert federation.affected_clients == (1, 3, 4, 7, 8)
    assert [client for client in range(CLIENTS) if federation.client_data(client).corrupted] == [3]
    assert federation.facts["effects"] == effects
    assert pickle.loads(pickle.dumps(federation.attacks)) == federation.attacks


def test_players_don_t_know_what_others_keep() -> None:
    scenario = [{"kind": "little_is_enough", "clients": [0, 1]}]
    config = FederationConfig.model_validate({"dataset": "cartpole", "num_clients": 3, "scenario": scenario})
    with refused(ConfigurationError, key="federation.scenario.0.kind"):
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
    assert attacked.rounds["train_loss"][0] == honest.rounds["train_loss"][0]
    assert attacked.rounds["accuracy"][0] == attacked.rounds["clean_accuracy"][0]


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
    return result.rounds["clean_accuracy"][-1]


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


# Corruption: noise with the moments asked for, labels wrong at the rate asked for, arguments untouched.


OF_ROWS = [FeatureNoise(1.0, 0.5), RandomLabelFlip(0.3), ShiftLabels(), FeatureDrop(2), RenameLabels((2, 0, 3, 1))]
TRANSFORMS = [
    *((transform, shape) for transform in OF_ROWS for shape in ((3,), (4, 4, 2))),
    *((JpegCompression(30), shape) for shape in ((1, 28, 28), (3, 5, 7))),
]


def rows(num_rows: int, num_classes: int, shape: tuple[int, ...] = (3,)) -> tuple[np.ndarray, np.ndarray]:
    features = np.linspace(-2, 2, num_rows * int(np.prod(shape)), dtype=np.float32).reshape(num_rows, *shape)
    return features, np.arange(num_rows, dtype=np.int64) % num_classes


@pytest.mark.parametrize(("transform", "shape"), TRANSFORMS)
@pytest.mark.parametrize("num_rows", [0, 1, 50])
def test_contract(transform: ClientTransform, shape: tuple[int, ...], num_rows: int) -> None:
    features, labels = rows(num_rows, 4, shape)
    features.setflags(write=False)
    labels.setflags(write=False)
    copies = (transform, pickle.loads(pickle.dumps(transform)))
    results = [copy(features, labels, 4, np.random.default_rng(3)) for copy in copies]
    for new_features, new_labels in results:
        assert (new_features.shape, new_features.dtype) == (features.shape, np.float32)
        assert (new_labels.shape, new_labels.dtype) == (labels.shape, np.int64)
        assert ((new_labels >= 0) & (new_labels < 4)).all()
        assert not np.shares_memory(new_features, features)
        assert not np.shares_memory(new_labels, labels)
        np.testing.assert_array_equal(new_features, results[0][0])
        np.testing.assert_array_equal(new_labels, results[0][1])


@pytest.mark.parametrize(("mean", "deviation"), [(0.0, 0.5), (-0.1, 0.1), (1.0, 0.0)])
def test_noise_has_the_moments_asked_for(mean: float, deviation: float) -> None:
    features, labels = rows(2000, 2, (50,))
    noisy, same = FeatureNoise(mean, deviation)(features, labels, 2, np.random.default_rng(0))
    noise = noisy.astype(np.float64) - features

    # The mean of n Gaussian numbers has standard error σ/√n, their deviation σ/√(2n); sums are rounded to float32.
    assert noise.mean() == pytest.approx(mean, abs=5 * deviation / np.sqrt(noise.size) + 1e-6)
    assert noise.std() == pytest.approx(deviation, abs=5 * deviation / np.sqrt(2 * noise.size) + 1e-6)
    np.testing.assert_array_equal(same, labels)


@given(st.integers(0, 200), st.integers(2, 12), st.floats(0, 1), st.integers(0, 1000))
def test_random_flip_hits_exactly_the_rate(num_rows: int, num_classes: int, rate: float, seed: int) -> None:
    features, labels = rows(num_rows, num_classes)
    same, flipped = RandomLabelFlip(rate)(features, labels, num_classes, np.random.default_rng(seed))
    assert (flipped != labels).sum() == round(rate * num_rows)
    np.testing.assert_array_equal(same, features)


def test_random_flip_prefers_no_row_and_no_class() -> None:
    num_rows, num_classes, rate = 30_000, 4, 0.3
    features, labels = rows(num_rows, num_classes)
    _, flipped = RandomLabelFlip(rate)(features, labels, num_classes, np.random.default_rng(0))

    wrong = flipped != labels
    for part in np.array_split(wrong, 10):
        assert part.mean() == pytest.approx(rate, abs=5 * np.sqrt(rate * (1 - rate) / len(part)))
    for new in range(num_classes):
        came_from = np.bincount(labels[wrong & (flipped == new)], minlength=num_classes)
        assert came_from[new] == 0
        # 30 % of 7,500 rows of each other class, a third of them to this one.
        assert np.delete(came_from, new) == pytest.approx(750, abs=5 * np.sqrt(7500 * 0.1 * 0.9))


@pytest.mark.parametrize("num_classes", [2, 3, 10])
def test_shift_leaves_no_label_and_is_consistent(num_classes: int) -> None:
    features, labels = rows(100, num_classes)
    same, shifted = ShiftLabels()(features, labels, num_classes, np.random.default_rng(0))
    mapping = {(int(old), int(new)) for old, new in zip(labels, shifted, strict=True)}

    assert len(mapping) == num_classes  # one new class for each old one …
    assert {new for _, new in mapping} == set(range(num_classes))  # … and each used once …
    assert all(old != new for old, new in mapping)  # … none its own
    np.testing.assert_array_equal(same, features)


@given(st.integers(1, 30), st.integers(0, 30), st.integers(0, 1000))
def test_drop_empties_so_many_features_and_the_same_in_all_rows(num_features: int, num_dropped: int, seed: int) -> None:
    features = np.random.default_rng(seed).normal(5, 1, (8, num_features)).astype(np.float32)
    labels = np.zeros(8, np.int64)
    less, same = FeatureDrop(num_dropped)(features, labels, 2, np.random.default_rng(seed))

    empty = (less == 0).all(axis=0)
    assert empty.sum() == min(num_dropped, num_features)
    np.testing.assert_array_equal(less[:, ~empty], features[:, ~empty])
    np.testing.assert_array_equal(same, labels)


# JPEG: what is lost follows from the standard's table, worked out here by the cosine transform itself.


# ITU-T T.81, Annex K, table K.1: luminance.
TABLE = np.array([
    [16, 11, 10, 16, 24, 40, 51, 61],
    [12, 12, 14, 19, 26, 58, 60, 55],
    [14, 13, 16, 24, 40, 57, 69, 56],
    [14, 17, 22, 29, 51, 87, 80, 62],
    [18, 22, 37, 56, 68, 109, 103, 77],
    [24, 35, 55, 64, 81, 104, 113, 92],
    [49, 64, 78, 87, 103, 121, 120, 101],
    [72, 92, 95, 98, 112, 100, 103, 99],
])  # fmt: skip


def steps(quality: int) -> np.ndarray:
    percent = 5000 // quality if quality < 50 else 200 - 2 * quality
    return np.clip((TABLE * percent + 50) // 100, 1, 255)


def coefficients(pixels: np.ndarray) -> np.ndarray:
    """Return the cosine transform of blocks of 8 × 8 pixels, 0 to 255."""
    return dctn(pixels.astype(np.float64) - 128, axes=(-2, -1), norm="ortho")


def compressed(pixels: np.ndarray, quality: int) -> np.ndarray:
    """Return pixels, 0 to 255, after the effect."""
    features = (pixels / 255).astype(np.float32)
    labels = np.zeros(len(pixels), np.int64)
    after, _ = JpegCompression(quality)(features, labels, 2, np.random.default_rng(0))
    return np.rint(after * 255)


def smooth_blocks(num_rows: int) -> np.ndarray:
    """Return waves with some grain, as pictures are, of which nothing is cut off at black or white."""
    generator = np.random.default_rng(0)
    y, x = np.mgrid[:8, :8]
    waves = generator.uniform(0, 0.6, (2, num_rows, 1, 1, 1))
    grain = generator.normal(0, 8, (num_rows, 1, 8, 8))
    return np.rint(128 + 40 * np.sin(waves[0] * x + waves[1] * y) + grain)


@pytest.mark.parametrize("quality", [5, 10, 25])
def test_a_grey_block_is_what_the_standard_makes_of_it(quality: int) -> None:
    pixels = smooth_blocks(100)
    step, before, after = steps(quality), coefficients(pixels), coefficients(compressed(pixels, quality))
    # Pixels are rounded after all, 64 of them by up to a half: no coefficient is further off than their norm.
    rounding = 4
    assert (np.abs(after - np.rint(after / step) * step) <= rounding).all()  # whole steps of the table
    assert (np.abs(after - before) <= step / 2 + rounding).all()  # and the nearest ones
