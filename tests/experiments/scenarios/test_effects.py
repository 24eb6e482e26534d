"""Effects by themselves: whom they choose, how strong they are, and whom they leave alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import stats

from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Device
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.data.dataset import DataKind
from fedscout.experiments.partitions.labels import PartitionRequest
from fedscout.experiments.scenarios.effects import EffectRequest, FeatureNoise, ScenarioPlan
from fedscout.experiments.scenarios.labels import RandomLabelFlip, RenameLabels
from fedscout.experiments.scenarios.table import EFFECTS, SCENARIOS, parse_effects, stack_effects
from tests.kits.refusals import refused

WHOLE: dict[str, dict[str, Any]] = {
    "feature_noise": {"std": 0.5},
    "label_flip": {"rate": 0.2},
    "poisoning": {},
    "corrupted": {},
    "feature_drop": {"share": 0.5},
    "feature_scale": {"factor": 3.0},
    "jpeg": {"quality": 50},
    "concept_shift": {},
    "class_skew": {"share": 0.35},
    "sign_flip": {},
    "scaled_update": {},
    "gaussian_update": {},
    "little_is_enough": {},
    "latency": {"mean_seconds": 3.0},
    "devices": {"seconds_per_step": 0.1},
    "dropout": {"probability": 0.4},
}
ONE_AND_TEN = {"shift_seconds": 1.0, "mean_seconds": 10.0}
ON_UPDATES = ["sign_flip", "scaled_update", "gaussian_update", "little_is_enough"]
ON_DATA = [kind for kind in WHOLE if kind not in {"latency", "devices", "dropout", "class_skew", *ON_UPDATES}]


def request(
    num_clients: int = 4,
    rows_each: int = 20,
    num_classes: int = 3,
    seed: int = 0,
    data_kind: DataKind = "table",
    feature_unit: float = 1.0,
    sizes: list[int] | None = None,
) -> EffectRequest:
    sizes = sizes or [rows_each] * num_clients
    total = sum(sizes)
    return EffectRequest(
        partition=Partition.from_lists(np.split(np.arange(total), np.cumsum(sizes)[:-1])),
        labels=np.arange(total, dtype=np.int64) % num_classes,
        num_classes=num_classes,
        feature_shape=(3, 8, 8) if data_kind == "image" else (6,),
        seed=seed,
        data_kind=data_kind,
        feature_unit=feature_unit,
    )


def plan(*effects: dict[str, Any], **federation: Any) -> ScenarioPlan:
    if any(effect["kind"] == "jpeg" for effect in effects):
        federation = {"data_kind": "image", **federation}
    return stack_effects(parse_effects(list(effects)), request(**federation))


def effect(kind: str, **keys: Any) -> dict[str, Any]:
    return {"kind": kind, **WHOLE[kind], **keys}


def clients_of(result: ScenarioPlan, place: int = 0) -> list[int]:
    return result.facts["effects"][place]["clients"]


def test_every_effect_is_tested() -> None:
    assert set(WHOLE) == set(EFFECTS)


# Whom an effect is for.


@pytest.mark.parametrize("kind", EFFECTS)
@pytest.mark.parametrize(("num_clients", "affected"), [(1, 0), (2, 1), (3, 2), (30, 2)])
def test_without_a_choice_it_is_the_published_client(kind: str, num_clients: int, affected: int) -> None:
    assert clients_of(plan(effect(kind), num_clients=num_clients)) == [affected]


@pytest.mark.parametrize("kind", EFFECTS)
def test_only_the_chosen_clients_get_anything(kind: str) -> None:
    result = plan(effect(kind, clients=[3, 1]))
    changed = (result.transforms, result.dropout, result.timings, result.attacks)
    for what in changed:
        assert set(what) in ({1, 3}, set())
    assert len({client for what in changed for client in what}) == (0 if kind == "class_skew" else 2)
    assert result.affected_clients == ((1, 3) if kind in {*ON_DATA, *ON_UPDATES, "class_skew"} else ())
    assert clients_of(result) == [1, 3]


@given(st.integers(1, 200), st.floats(0, 1, exclude_min=True), st.integers(0, 100))
def test_a_share_is_the_nearest_number_of_clients_and_at_least_one(num_clients: int, share: float, seed: int) -> None:
    chosen = clients_of(plan(effect("poisoning", clients=share), num_clients=num_clients, rows_each=1, seed=seed))
    assert len(chosen) == max(1, round(share * num_clients))
    assert chosen == sorted(set(chosen))
    assert set(chosen) <= set(range(num_clients))


def test_a_larger_share_holds_the_clients_of_a_smaller_one() -> None:
    shares = [
        set(clients_of(plan(effect("poisoning", clients=share), num_clients=50))) for share in (0.1, 0.2, 0.5, 1.0)
    ]
    assert [len(chosen) for chosen in shares] == [5, 10, 25, 50]
    assert all(small < large for small, large in pairwise(shares))


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
    rows, labels = np.arange(12, dtype=np.float32).reshape(2, 6), np.array([0, 1])
    scaled = rows
    for transform in result.transforms[2]:
        scaled, same = transform(scaled, labels, 3, np.random.default_rng(0))
        assert (same == labels).all()
    assert (scaled == np.float32(1.5) * rows).all()
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
    num_clients = 4000
    result = plan(
        {"kind": "label_flip", "alpha": alpha, "beta": beta, "clients": "all"}, num_clients=num_clients, rows_each=1
    )
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
    ((names,),) = [result.transforms[2]]
    assert isinstance(names, RenameLabels)
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


# On tokens.


@pytest.mark.parametrize("kind", ["feature_noise", "corrupted", "feature_scale"])
def test_what_changes_measurements_on_tokens_is_refused(kind: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^federation\.scenario\.0\.kind .* {kind} .*tokens"):
        plan(effect(kind), data_kind="tokens")
    for measured in ("table", "image"):
        assert plan(effect(kind), data_kind=measured).affected_clients == (2,)


@pytest.mark.parametrize("kind", ["table", "tokens"])
def test_only_pictures_can_be_compressed(kind: DataKind) -> None:
    with pytest.raises(ConfigurationError, match=rf"^federation\.scenario\.0\.kind .*jpeg.* {kind}$"):
        plan(effect("jpeg"), data_kind=kind)


@pytest.mark.parametrize("scenario", ["feature_skew", "corrupted_client"])
def test_published_noise_on_tokens_is_refused(scenario: str) -> None:
    labels = np.arange(80, dtype=np.int64) % 2
    tokens = PartitionRequest(labels, 4, np.random.default_rng(0), data_kind="tokens")
    with refused(ConfigurationError, key="federation.scenario"):
        SCENARIOS[scenario].deal(tokens)
    assert SCENARIOS["noisy_labels"].deal(tokens).partition.num_clients == 4


def test_all_that_does_not_fit_the_federation_is_told_at_once() -> None:
    with pytest.raises(ConfigurationError) as caught:
        plan(
            effect("poisoning", clients=[1, 4, 7]),
            {"kind": "concept_shift", "permutation": [1, 0]},
            effect("feature_noise"),
            data_kind="tokens",
        )
    told = {"0.clients": "4, got 4, 7", "1.permutation": "3 classes, got 2", "2.kind": "noise"}
    for fault, (key, named) in zip(caught.value.faults, told.items(), strict=True):
        assert fault.startswith(f"federation.scenario.{key} ")
        assert named in fault


# Devices that a scenario gives to clients: values, classes and log-normal ones.


STEP = {"kind": "devices", "clients": "all", "seconds_per_step": 0.5}


def devices(*effects: dict[str, Any], num_clients: int = 4, seed: int = 0) -> dict[int, Device]:
    return plan(*effects, num_clients=num_clients, rows_each=1, seed=seed).devices


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
    ],
)
def test_faulty_values_are_refused(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ValidationError, match=named):
        parse_effects({**STEP, **changes})
