"""The six scenarios: as published for four clients, and by the same laws for any number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, reject, settings, strategies as st

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Device, Federation
from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.config import StudyConfig, load_config
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from fedscout.experiments.partitions.labels import PartitionRequest
from fedscout.experiments.scenarios.effects import EffectRequest, FeatureNoise, ScenarioPlan
from fedscout.experiments.scenarios.table import BEARING_SCENARIOS, EFFECTS, parse_effects, stack_effects
from tests.experiments.scenarios.test_effects import effect
from tests.kits.refusals import refused

DEALT_IID = [name for name in BEARING_SCENARIOS if name != "label_skew"]


def plan(name: str, labels: IntArray, num_clients: int = 4, seed: int = 0, feature_unit: float = 1.0) -> ScenarioPlan:
    deal = BEARING_SCENARIOS[name].partition(PartitionRequest(labels, num_clients, np.random.default_rng(seed)))
    num_classes = int(labels.max()) + 1
    request = EffectRequest(deal.partition, labels, num_classes, (6,), seed, feature_unit=feature_unit)
    planned = BEARING_SCENARIOS[name].plan(deal, request)
    assert (planned.partition, planned.dropout, planned.timings) == (None, {}, {})
    return replace(planned, partition=deal.partition)


def by_counts(*counts: int) -> IntArray:
    return np.repeat(np.arange(len(counts)), counts)


def shares(plan: ScenarioPlan, labels: IntArray, label: int) -> list[float]:
    clients = range(plan.partition.num_clients)
    return [float((labels[plan.partition.client(client)] == label).mean()) for client in clients]


@pytest.mark.parametrize("name", BEARING_SCENARIOS)
@pytest.mark.parametrize("num_clients", [1, 2, 3, 4, 10, 23])
def test_laws(name: str, num_clients: int) -> None:
    labels = np.random.default_rng(5).integers(3, size=1500)
    first, again, other = (plan(name, labels, num_clients, seed) for seed in (0, 0, 1))

    assert first.partition.num_clients == num_clients
    assert len(np.unique(first.partition.rows)) == len(first.partition.rows)
    assert first.partition.sizes.max() - first.partition.sizes.min() <= 1
    np.testing.assert_array_equal(first.partition.rows, again.partition.rows)
    assert (first.partition.rows != other.partition.rows).any()
    assert first.affected_clients == tuple(sorted(set(first.affected_clients)))
    assert set(first.transforms) <= set(first.affected_clients) <= set(range(num_clients))


@pytest.mark.parametrize("name", DEALT_IID)
def test_iid_deals_use_all_rows_and_are_the_same_in_all_scenarios(name: str) -> None:
    labels = by_counts(60, 43)
    result = plan(name, labels)
    assert sorted(result.partition.rows.tolist()) == list(range(103))
    np.testing.assert_array_equal(result.partition.rows, plan("iid", labels).partition.rows)


def test_feature_skew_gives_each_client_its_noise_in_turn() -> None:
    published = [FeatureNoise(0.0, 0.1), FeatureNoise(0.0, 0.5), FeatureNoise(1.0, 0.1), FeatureNoise(-0.1, 0.1)]
    result = plan("feature_skew", by_counts(60, 60), num_clients=6)
    assert [result.transforms[client] for client in range(6)] == [(published[client % 4],) for client in range(6)]
    assert result.affected_clients == (0, 1, 2, 3, 4, 5)


@pytest.mark.parametrize(("counts", "size"), [((1100, 900), 500), ((2200, 100), 55), ((452, 530), 240)])
def test_label_skew_has_the_published_shares_of_as_many_rows_as_fit(counts: tuple[int, int], size: int) -> None:
    """Shares .9 + .7 + .5 + .1 = 2.2 of the more frequent class and 1.8 of the other.

    Sizes are floor(min(frequent/2.2, rare/1.8)): 100/1.8 = 55.6; 530/2.2 = 240.9 and 452/1.8 = 251.1.
    """
    labels = by_counts(*counts)
    result = plan("label_skew", labels)
    assert result.partition.sizes.tolist() == [size] * 4
    assert shares(result, labels, int(np.argmax(counts))) == pytest.approx([0.9, 0.7, 0.5, 0.1], abs=1 / size)
    assert result.affected_clients == (0, 1, 3)


def test_label_skew_takes_the_most_frequent_class_and_mirrors_the_others() -> None:
    labels = by_counts(100, 400, 300)
    result = plan("label_skew", labels)
    # The first client that is full: sizes are bounded by 400/2.2 = 181 (and 400/1.8 = 222 for the other two classes).
    assert result.partition.sizes.tolist() == [181] * 4
    for client, share in enumerate((0.9, 0.7, 0.5, 0.1)):
        counts = np.bincount(labels[result.partition.client(client)], minlength=3)
        # Whole rows are within one of the expected ones: classes 0 and 2 share the rest as 1 : 3.
        assert counts == pytest.approx(181 * np.array([(1 - share) / 4, share, (1 - share) * 3 / 4]), abs=1)


def test_label_skew_gives_further_clients_classes_of_their_own() -> None:
    labels = by_counts(*[300] * 10)
    result = plan("label_skew", labels, num_clients=40)
    for client in range(0, 40, 4):
        assert shares(result, labels, client // 4)[client] == pytest.approx(0.9, abs=1 / result.partition.sizes[0])
    # Each class is wanted equally often, so as good as all 3,000 rows fit: 75 for each of 40 clients, less rounding.
    assert result.partition.sizes[0] >= 70


@given(
    st.lists(st.integers(0, 400), min_size=2, max_size=7).filter(lambda counts: sum(map(bool, counts)) > 1),
    st.integers(1, 25),
)
def test_label_skew_deals_equal_clients(counts: list[int], num_clients: int) -> None:
    labels = by_counts(*counts)
    try:
        result = plan("label_skew", labels, num_clients)
    except DataError:
        reject()
    sizes = result.partition.sizes
    assert sizes.min() == sizes.max() >= 10
    assert len(np.unique(result.partition.rows)) == sizes.sum()
    first = int(np.argmax(counts))
    assert shares(result, labels, first)[0] == pytest.approx(0.9, abs=1 / sizes[0])


# Rows change hands until some clients have most of theirs of one class, and FLASH's heterogeneities.


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
def test_laws_of_class_skew(sizes: list[int], seed: int, share: float) -> None:
    labels = np.random.default_rng(seed).integers(3, size=sum(sizes) + 5).astype(np.int64)
    request = request_of(sizes, labels, seed)
    try:
        plan = skewed(request, clients=0.3, share=share)
    except DataError:
        return  # no class has so many rows as a large client asks for
    (record,) = plan.facts["effects"]
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


def test_the_rest_of_iid_rows_is_uniform_over_the_other_classes() -> None:
    """15 of 50 clients of 200 rows; their rest, 600 rows of nine equal classes each, by χ² and its 1e-4 quantile."""
    labels = np.repeat(np.arange(10), 1000)
    request = request_of([200] * 50, labels, num_classes=10)
    plan = skewed(request, clients=0.3)
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
    assert np.array_equal(first.partition.rows, last.partition.rows)
    assert first.transforms == last.transforms
    assert [record["kind"] for record in last.facts["effects"]] == ["label_flip", "class_skew"]


@pytest.mark.parametrize("name", ["flash_skew", "flash_noise", "flash_both"])
def test_the_source_s_heterogeneities(name: str) -> None:
    config = FederationConfig(dataset="digits", scenario=name, num_clients=50)
    federation = build_federation(config, ModelConfig())
    assert len(set(federation.partition.rows.tolist())) == len(federation.partition.rows)
    shares = [np.bincount(federation.labels[federation.partition.client(c)]).max() for c in range(50)]
    dominated = [shares[c] >= round(0.8 * federation.partition.sizes[c]) for c in range(50)]
    assert sum(dominated) == (0 if name == "flash_noise" else 15)
    assert len(federation.transforms) == (0 if name == "flash_skew" else 50)
    assert federation.devices == {
        c: Device(shift_seconds=float(n), mean_seconds=10.0 * n)
        for c, n in enumerate(federation.partition.sizes.tolist())
    }


def test_where_there_are_no_classes_it_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"^federation\.scenario\.0\.kind .*class_skew"):
        build_federation(FederationConfig(dataset="diabetes", scenario="flash_skew"), ModelConfig())  # type: ignore[arg-type]
    effects = parse_effects({"kind": "class_skew"})
    with refused(ConfigurationError, key="federation.scenario.0.kind"):
        build_federation(FederationConfig(dataset="cartpole", scenario=effects), ModelConfig())


# Effects on a federation as the hosts see it: in order, on any partition, and on nobody else.


CLIENTS = 4


def build(*effects: dict[str, Any], **federation: Any) -> Federation:
    keys = {"dataset": "wine", "num_clients": CLIENTS, "partition": {"kind": "iid"}, **federation}
    keys["scenario"] = list(effects)
    return build_federation(FederationConfig.model_validate(keys), ModelConfig())


def view(federation: Federation, client: int) -> tuple[np.ndarray, np.ndarray]:
    samples = federation.client_data(client).own
    return samples.take(np.arange(len(samples)))


def test_effects_go_in_order() -> None:
    """Of 13 features six are dropped, noise too; what was dropped first is noise afterwards."""
    noise, drop = {"kind": "feature_noise", "mean": 3.0, "std": 1.0}, {"kind": "feature_drop", "share": 0.5}
    for effects, empty in (((noise, drop), 6), ((drop, noise), 0)):
        features, _ = view(build(*effects), 2)
        assert (features == 0).all(axis=0).sum() == empty


@pytest.mark.parametrize(
    ("published", "same"),
    [
        ("noisy_labels", {"kind": "label_flip", "rate": 0.3}),
        ("label_poisoning", {"kind": "poisoning"}),
        ("corrupted_client", {"kind": "corrupted"}),
    ],
)
def test_published_scenarios_are_effects_on_an_iid_partition(published: str, same: dict[str, Any]) -> None:
    config = FederationConfig(dataset="wine", num_clients=CLIENTS, scenario=published, seed=3)
    scenario, stacked = build_federation(config, ModelConfig()), build(same, seed=3)
    np.testing.assert_array_equal(stacked.partition.rows, scenario.partition.rows)
    assert stacked.transforms == scenario.transforms
    assert stacked.affected_clients == scenario.affected_clients
    for client in range(CLIENTS):
        for one, other in zip(view(scenario, client), view(stacked, client), strict=True):
            np.testing.assert_array_equal(one, other)


# Effects in the configuration: how they are written, which mistakes are told, and that they survive being written.


def faults(scenario: str) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as caught:
        load_config([f"federation.scenario={scenario}"])
    return caught.value.faults


@pytest.mark.parametrize("kind", EFFECTS)
def test_every_kind_survives_being_written_and_read(kind: str) -> None:
    for clients in ("all", [0, 3], 1.0, None):
        config = load_config([f"federation.scenario={json.dumps(effect(kind, clients=clients))}"])
        assert StudyConfig.model_validate(json.loads(config.model_dump_json())) == config
        assert StudyConfig.model_validate(config.model_dump()) == config
        assert config.digest() != StudyConfig().digest()


@pytest.mark.parametrize(
    ("scenario", "place"),
    [
        ("[]", ""),
        ("poisoning", ""),
        ("[poisoning]", ".0"),
        *((kind, ".0.kind") for kind in ("{rate: 1}", "{kind: flood}", "{kind: [1]}")),
        ("{kind: feature_noise}", ".0.std"),
        ("{kind: feature_noise, std: .inf}", ".0.std"),
        ("{kind: label_flip}", ".0"),
        ("{kind: label_flip, rate: 1.5}", ".0.rate"),
        ("{kind: label_flip, rate: 0.1, beta: 1}", ".0"),
        ("{kind: label_flip, rate: 0.1, rat: 1}", ".0.rat"),
        ("{kind: dropout, probability: 1}", ".0.probability"),
        ("{kind: concept_shift, permutation: [0, 0]}", ".0.permutation"),
        ("{kind: concept_shift, permutation: [1, 0], share: 0.5}", ".0"),
        *(
            (f"{{kind: poisoning, clients: {c}}}", ".0.clients")
            for c in ("2", "true", "0.0", "1.5", "[]", "[-1]", "[1, 1]")
        ),
    ],
)
def test_a_mistake_is_one_line_at_its_place(scenario: str, place: str) -> None:
    (found,) = faults(scenario)
    assert found.startswith(f"federation.scenario{place} ")
    assert "\n" not in found
