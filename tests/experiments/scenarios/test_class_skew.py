"""Rows change hands until some clients have most of theirs of one class, and FLASH's heterogeneities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Partition
from fedscout.engine.data.devices import Device, RoundWork, simulated_seconds
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.scenarios.base import EffectRequest, ScenarioPlan
from fedscout.experiments.scenarios.table import parse_effects, stack_effects
from tests.kits.refusals import refused


def request_of(sizes: list[int], labels: IntArray, seed: int = 0, num_classes: int = 3) -> EffectRequest:
    """Return clients of such sizes with rows at random; rows that are left are nobody's."""
    rows = np.random.default_rng(99).permutation(len(labels))
    partition = Partition(rows[: sum(sizes)], np.cumsum([0, *sizes]))
    return EffectRequest(partition, labels, num_classes, (2,), seed)


def skewed(request: EffectRequest, *others: Mapping[str, Any], **keys: Any) -> ScenarioPlan:
    return stack_effects(parse_effects([*others, {"kind": "class_skew", **keys}]), request)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 40), min_size=4, max_size=12),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.5, 0.8, 1.0]),
)
def test_laws(sizes: list[int], seed: int, share: float) -> None:
    labels = np.random.default_rng(seed).integers(3, size=sum(sizes) + 5).astype(np.int64)
    request = request_of(sizes, labels, seed)
    try:
        plan = skewed(request, clients=0.3, share=share)
    except DataError:
        return  # no class has so many rows as a large client asks for
    (record,) = plan.facts["effects"]
    assert plan.partition is not None
    before, after = request.partition, plan.partition
    assert after.sizes.tolist() == before.sizes.tolist()
    assert sorted(after.rows) == sorted(before.rows)
    wanted = {client: round(share * sizes[client]) for client in plan.affected_clients}
    rest = sum(sizes[client] - wanted[client] for client in wanted)
    few_others = sum(size for client, size in enumerate(sizes) if client not in wanted) < 3 * rest
    for client, label, count in zip(plan.affected_clients, record["classes"], record["rows_of_class"], strict=True):
        own, had = after.client(client), before.client(client)
        assert (labels[own] == label).sum() == count
        assert count == wanted[client] or (count > wanted[client] and few_others)
        kept = np.isin(had, own)
        assert (labels[had[kept]] == label).sum() == min(count, (labels[had] == label).sum())
    again = skewed(request, clients=0.3, share=share)
    assert again.partition is not None
    assert np.array_equal(again.partition.rows, after.rows)


def test_the_rest_of_iid_rows_is_uniform_over_the_other_classes() -> None:
    """15 of 50 clients of 200 rows; their rest, 600 rows of nine equal classes each, by χ² and its 1e-4 quantile."""
    labels = np.repeat(np.arange(10), 1000)
    request = request_of([200] * 50, labels, num_classes=10)
    plan = skewed(request, clients=0.3)
    assert plan.partition is not None
    (record,) = plan.facts["effects"]
    rest = np.zeros(9)
    for client, label in zip(plan.affected_clients, record["classes"], strict=True):
        counts = np.bincount(labels[plan.partition.client(client)], minlength=10)
        assert counts[label] == 160
        rest += np.delete(counts, label)
    assert len(plan.affected_clients) == 15
    assert rest.sum() == 15 * 40
    expected = rest.sum() / 9
    # places of the others are not the same classes for every client, but each is uniform: eight degrees of freedom
    assert float(((rest - expected) ** 2 / expected).sum()) < 31.8


def test_all_clients_can_be_skewed_as_far_as_classes_go() -> None:
    labels = np.repeat(np.arange(4), 250)
    plan = skewed(request_of([100] * 10, labels, num_classes=4), clients="all", share=0.5)
    assert plan.partition is not None
    for client in range(10):
        assert np.bincount(labels[plan.partition.client(client)]).max() >= 50
    with refused(DataError, key="federation.scenario.class_skew"):
        skewed(request_of([100] * 10, labels, num_classes=4), clients="all", share=1.0)


def test_rows_change_hands_before_labels_are_flipped_wherever_the_effect_stands() -> None:
    labels = np.random.default_rng(3).integers(3, size=400).astype(np.int64)
    request = request_of([40] * 10, labels)
    flip = {"kind": "label_flip", "clients": "all", "rate": 0.2}
    first = stack_effects(parse_effects([{"kind": "class_skew", "clients": 0.3}, flip]), request)
    last = skewed(request, flip, clients=0.3)
    assert first.partition is not None
    assert last.partition is not None
    assert np.array_equal(first.partition.rows, last.partition.rows)
    assert first.transforms == last.transforms
    assert [record["kind"] for record in last.facts["effects"]] == ["label_flip", "class_skew"]


@pytest.mark.parametrize("shape", [5, 15, 25])
def test_rates_of_wrong_labels_follow_the_beta_distribution(shape: int) -> None:
    """Mean a/100 and variance a(100 − a)/(100² · 101) of Beta(a, 100 − a), over 4,000 clients: four standard errors."""
    labels = np.zeros(4000, np.int64)
    effect = {"kind": "label_flip", "clients": "all", "alpha": shape, "beta": 100 - shape}
    (record,) = stack_effects(parse_effects(effect), request_of([1] * 4000, labels)).facts["effects"]
    rates, variance = np.array(record["rates"]), shape * (100 - shape) / (100**2 * 101)
    assert rates.mean() == pytest.approx(shape / 100, abs=4 * np.sqrt(variance / 4000))
    assert rates.var() == pytest.approx(variance, rel=4 * np.sqrt(2.5 / 4000))


@pytest.mark.parametrize("name", ["flash_skew", "flash_noise", "flash_both"])
def test_the_source_s_heterogeneities(name: str) -> None:
    built = [
        build_federation(FederationConfig(dataset="digits", scenario=name, num_clients=50, seed=seed), ModelConfig())
        for seed in (0, 0, 1)
    ]
    federation = built[0]
    assert np.array_equal(federation.partition.rows, built[1].partition.rows)
    assert not np.array_equal(federation.partition.rows, built[2].partition.rows)
    assert len(set(federation.partition.rows.tolist())) == len(federation.partition.rows)
    shares = [np.bincount(federation.labels[federation.partition.client(c)]).max() for c in range(50)]
    dominated = [shares[c] >= round(0.8 * federation.partition.sizes[c]) for c in range(50)]
    assert sum(dominated) == (0 if name == "flash_noise" else 15)
    assert len(federation.transforms) == (0 if name == "flash_skew" else 50)
    assert federation.devices == {
        c: Device(shift_seconds=float(n), mean_seconds=10.0 * n)
        for c, n in enumerate(federation.partition.sizes.tolist())
    }


def test_latency_is_n_and_an_exponential_time_of_mean_lambda_n_in_each_round() -> None:
    """The source's lat(t) = α n + Exp(mean λ n), α = 1, λ = 10 and n = 7: mean 77, standard deviation 70."""
    device, work = Device(shift_seconds=7.0, mean_seconds=70.0), RoundWork(1, 0, 0)
    seconds = np.array([simulated_seconds(device, work, 0, server_round, 3) for server_round in range(2000)])
    assert seconds.min() >= 7
    assert seconds.mean() == pytest.approx(77, abs=4 * 70 / np.sqrt(2000))
    assert len(set(seconds.tolist())) == 2000
    plan = stack_effects(
        parse_effects({"kind": "latency", "clients": [1], "shift_seconds": 1, "mean_seconds": 10, "per_row": True}),
        request_of([3, 7], np.zeros(10, np.int64)),
    )
    assert plan.timings == {1: {"shift_seconds": 7.0, "mean_seconds": 70.0}}


def test_where_there_are_no_classes_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^federation\.scenario\.0\.kind .*class_skew"):
        build_federation(FederationConfig(dataset="diabetes", scenario="flash_skew"), ModelConfig())  # type: ignore[arg-type]
    effects = parse_effects({"kind": "class_skew"})
    with refused(ConfigurationError, key="federation.scenario"):
        build_federation(FederationConfig(dataset="cartpole", scenario=effects), ModelConfig())
