"""The six scenarios: as published for four clients, and by the same laws for any number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client import ClientTransform, Partition
from fedscout.engine.errors import DataError
from fedscout.experiments.partitions.base import PartitionRequest
from fedscout.experiments.scenarios.base import EffectRequest
from fedscout.experiments.scenarios.features import FeatureNoise
from fedscout.experiments.scenarios.labels import RandomLabelFlip, ShiftLabels
from fedscout.experiments.scenarios.table import BEARING_SCENARIOS
from tests.kits.refusals import refused

DEALT_IID = [name for name in BEARING_SCENARIOS if name != "label_skew"]
ONE_CLIENT = ["noisy_labels", "label_poisoning", "corrupted_client"]


@dataclass(frozen=True)
class Planned:
    partition: Partition
    transforms: Mapping[int, tuple[ClientTransform, ...]]
    affected_clients: tuple[int, ...]


def plan(name: str, labels: IntArray, num_clients: int = 4, seed: int = 0, feature_unit: float = 1.0) -> Planned:
    deal = BEARING_SCENARIOS[name].deal(PartitionRequest(labels, num_clients, np.random.default_rng(seed)))
    num_classes = int(labels.max()) + 1
    request = EffectRequest(deal.partition, labels, num_classes, (6,), seed, feature_unit=feature_unit)
    planned = BEARING_SCENARIOS[name].plan(deal, request)
    assert (planned.partition, planned.dropout, planned.timings) == (None, {}, {})
    return Planned(deal.partition, planned.transforms, planned.affected_clients)


def by_counts(*counts: int) -> IntArray:
    return np.repeat(np.arange(len(counts)), counts)


def shares(plan: Planned, labels: IntArray, label: int) -> list[float]:
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


@pytest.mark.parametrize("name", BEARING_SCENARIOS)
def test_more_clients_than_rows(name: str) -> None:
    key = "federation.scenario" if name == "label_skew" else "federation.num_clients"
    with refused(DataError, key=key, names="got 9"):
        plan(name, by_counts(4, 4), num_clients=9)


def test_iid_affects_nobody() -> None:
    result = plan("iid", by_counts(50, 50))
    assert not result.transforms
    assert result.affected_clients == ()


@pytest.mark.parametrize("name", ONE_CLIENT)
@pytest.mark.parametrize(("num_clients", "affected"), [(1, 0), (2, 1), (3, 2), (4, 2), (30, 2)])
def test_the_affected_client_is_the_third(name: str, num_clients: int, affected: int) -> None:
    result = plan(name, by_counts(60, 60), num_clients)
    assert result.affected_clients == (affected,)
    assert set(result.transforms) == {affected}


def test_what_is_done_to_the_one_client() -> None:
    labels = by_counts(60, 60)
    assert plan("noisy_labels", labels).transforms[2] == (RandomLabelFlip(0.3),)
    assert plan("label_poisoning", labels).transforms[2] == (ShiftLabels(),)
    assert plan("corrupted_client", labels).transforms[2] == (FeatureNoise(1.0, 0.5), ShiftLabels())


def test_feature_skew_gives_each_client_its_noise_in_turn() -> None:
    published = [FeatureNoise(0.0, 0.1), FeatureNoise(0.0, 0.5), FeatureNoise(1.0, 0.1), FeatureNoise(-0.1, 0.1)]
    result = plan("feature_skew", by_counts(60, 60), num_clients=6)
    assert [result.transforms[client] for client in range(6)] == [(published[client % 4],) for client in range(6)]
    assert result.affected_clients == (0, 1, 2, 3, 4, 5)


def test_noise_is_in_units_of_the_standardised_feature() -> None:
    labels = by_counts(60, 60)
    assert plan("feature_skew", labels, feature_unit=0.25).transforms[1] == (FeatureNoise(0.0, 0.125),)
    assert plan("corrupted_client", labels, feature_unit=0.25).transforms[2][0] == FeatureNoise(0.25, 0.125)


def test_label_skew_as_published() -> None:
    # Shares .9 + .7 + .5 + .1 = 2.2 of class 0 and 1.8 of class 1: 1,100 and 900 rows are just enough for 500 a client.
    labels = by_counts(1100, 900)
    result = plan("label_skew", labels)

    assert result.partition.sizes.tolist() == [500] * 4
    assert shares(result, labels, 0) == [0.9, 0.7, 0.5, 0.1]
    assert result.affected_clients == (0, 1, 3)


def test_label_skew_reaches_the_published_divergence() -> None:
    # Closed form: JS, base 2, of (.1, .9) from the overall (.55, .45); four equal clients give 0.1789 at most.
    labels = by_counts(1100, 900)
    client = np.array([0.1, 0.9])
    assert shares(plan("label_skew", labels), labels, 0)[3] == client[0]
    overall = np.array([0.55, 0.45])
    middle = (client + overall) / 2
    divergence = ((client * np.log2(client / middle)).sum() + (overall * np.log2(overall / middle)).sum()) / 2
    assert divergence == pytest.approx(0.1789, abs=5e-5)


@pytest.mark.parametrize(("counts", "size"), [((530, 452), 240), ((2200, 100), 55), ((452, 530), 240)])
def test_label_skew_is_as_large_as_the_classes_allow(counts: tuple[int, int], size: int) -> None:
    # floor(min(frequent/2.2, rare/1.8)): 530/2.2 = 240.9 and 452/1.8 = 251.1; 100/1.8 = 55.6.
    assert plan("label_skew", by_counts(*counts)).partition.sizes.tolist() == [size] * 4


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
