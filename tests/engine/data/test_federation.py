"""Partitions, samples and corruption."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client import Samples
from fedscout.engine.data.federation import CLIENTS_NAMED, UNNAMED, Federation, Names
from tests.engine.federations import CORRUPTED, SIZES, Noisy, uneven_federation


@dataclass(frozen=True)
class Times:
    factor: float

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        return features * np.float32(self.factor), labels


@dataclass(frozen=True)
class Plus:
    term: float

    def __call__(
        self, features: FloatArray, labels: IntArray, num_classes: int, generator: np.random.Generator
    ) -> tuple[FloatArray, IntArray]:
        return features + np.float32(self.term), (labels + 1) % num_classes


@pytest.mark.parametrize("num_rows", [1, 2, 5, 6, 7, 100])
def test_chunks_are_the_rows_in_order(num_rows: int) -> None:
    features = np.arange(40, dtype=np.float32).reshape(20, 2)
    samples = Samples(features, np.arange(20), rows=np.array([9, 3, 17, 0, 5, 11]))

    chunks = list(samples.chunks(num_rows))
    every_feature, every_label = samples.take(np.arange(6))

    assert [len(labels) for _, labels in chunks[:-1]] == [num_rows] * (len(chunks) - 1)
    assert np.array_equal(np.concatenate([f for f, _ in chunks]), every_feature)
    assert np.concatenate([labels for _, labels in chunks]).tolist() == every_label.tolist() == [9, 3, 17, 0, 5, 11]


def test_transforms_are_applied_once_each_and_in_order() -> None:
    """(x + 1)·3, which is neither x·3 + 1 nor (x + 2)·3."""
    federation = replace(uneven_federation(), transforms={0: (Plus(1.0), Times(3.0))})
    before = federation.features.copy(), federation.labels.copy()

    data = federation.client_data(0)
    federation.client_data(0)
    clean, labels = data.clean.take(np.arange(SIZES[0]))
    own, own_labels = data.own.take(np.arange(SIZES[0]))

    assert data.corrupted
    assert np.array_equal(own, (clean + np.float32(1)) * np.float32(3))
    assert np.array_equal(own_labels, (labels + 1) % 3)
    assert np.array_equal(clean, before[0][federation.partition.client(0)])
    assert np.array_equal(federation.features, before[0])
    assert np.array_equal(federation.labels, before[1])


def test_corruption_is_repeatable_and_touches_only_its_client() -> None:
    first, second = uneven_federation(), uneven_federation()

    for client in range(len(SIZES)):
        one, two = first.client_data(client).own, second.client_data(client).own
        assert np.array_equal(one.features[one.rows], two.features[two.rows])
        assert first.client_data(client).corrupted == (client == CORRUPTED)


def test_noise_differs_by_client_by_place_and_by_seed() -> None:
    noise = (Noisy(), Noisy())
    federation = replace(uneven_federation(), transforms={0: noise, 1: noise})

    def added(federation: Federation, client: int) -> FloatArray:
        data = federation.client_data(client)
        every = np.arange(10)
        return np.asarray(data.own.take(every)[0] - data.clean.take(every)[0])

    once = added(replace(federation, transforms={0: noise[:1]}), 0)
    twice = added(federation, 0)

    assert not np.allclose(twice, 2 * once, atol=1e-3)
    assert not np.allclose(twice, added(federation, 1), atol=1e-3)
    assert not np.allclose(twice, added(replace(federation, seed=1), 0), atol=1e-3)


# -- Names of clients, classes and features in sentences; positions where there is no name -----------------------------


WARDS = tuple(f"ward {letter}" for letter in "ABCDEFGHIJKLMNOP")
NAMES = Names(WARDS, ("benign", "malignant"), ("age", "sex=f"))


def test_each_is_called_by_its_name_or_else_by_its_position() -> None:
    assert [NAMES.client(1), UNNAMED.client(1), NAMES.client(40)] == ["ward B", "1", "40"]
    assert NAMES.one_client(0) == "client ward A"
    assert NAMES.some_classes([1]) == "class malignant"
    assert NAMES.some_classes([1, 0, 7]) == "classes malignant, benign and 7"
    assert NAMES.some_features([1], ["+1"]) == "feature sex=f (+1)"
    assert NAMES.some_features([1, 0], ["+1", "-2"]) == "features sex=f (+1) and age (-2)"


@pytest.mark.parametrize("count", [1, 2, CLIENTS_NAMED, CLIENTS_NAMED + 1, 16])
def test_of_many_clients_the_first_are_named_and_the_others_counted(count: int) -> None:
    named, _, rest = NAMES.some_clients(range(count)).partition(" and ")
    word, _, listed = named.partition(" ")
    assert word == ("client" if count == 1 else "clients")
    assert listed.split(", ") == list(WARDS[: min(count, CLIENTS_NAMED)])
    assert rest == (f"{count - CLIENTS_NAMED} more" if count > CLIENTS_NAMED else "")
