"""Samples of rows, and the count of duplicates that goes on record."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedscout.engine.errors import DataError
from fedscout.engine.seeds import stream
from fedscout.experiments.data.dataset import Dataset, duplicate_rows
from fedscout.experiments.data.server_rows import sample_rows, without_small_clients
from fedscout.experiments.federation import build_federation
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from tests.experiments.data.loading import clients_of, load_dataset
from tests.kits.refusals import refused


def numbered(num_rows: int = 50, num_classes: int = 5) -> Dataset:
    """Rows that say which they are."""
    rows = np.arange(num_rows)
    return Dataset(
        name="numbered",
        features=rows[:, None].astype(np.float32),
        labels=(rows % num_classes).astype(np.int64),
        class_names=tuple(f"c{number}" for number in range(num_classes)),
        feature_names=("row",),
        source="here",
        client_ids=np.array([f"client {row // 10}" for row in rows]),
        facts={"num_rows": num_rows, "num_duplicate_rows": 0, "label": "c"},
    )


def sample(dataset: Dataset, max_rows: int | None, seed: int = 0) -> Dataset:
    return sample_rows(dataset, max_rows, stream(seed, "rows"))


@given(st.integers(2, 49), st.integers(0, 5))
def test_rows_keep_their_order_label_and_client(max_rows: int, seed: int) -> None:
    whole = numbered()
    try:
        part = sample(whole, max_rows, seed)
    except DataError:
        return  # rows of one class: tested below
    rows = part.features[:, 0].astype(int)
    assert part.num_rows == part.facts["num_rows"] == max_rows
    assert part.facts["num_rows_not_sampled"] == 50 - max_rows
    assert (np.diff(rows) > 0).all()
    assert [part.class_names[label] for label in part.labels] == [f"c{row % 5}" for row in rows]
    assert clients_of(part) == [f"client {row // 10}" for row in rows]
    assert part.facts["num_classes_left_out"] == 5 - part.num_classes


def test_same_seed_same_rows_and_smaller_samples_lie_in_larger_ones() -> None:
    whole = numbered()
    rows = {size: set(sample(whole, size).features[:, 0]) for size in (10, 20, 30)}
    assert rows[10] < rows[20] < rows[30]
    assert rows[20] == set(sample(whole, 20).features[:, 0])
    assert rows[20] != set(sample(whole, 20, seed=1).features[:, 0])


def test_every_row_is_as_likely_as_another() -> None:
    drawn = np.zeros(50)
    for seed in range(400):
        drawn[sample(numbered(), 25, seed).features[:, 0].astype(int)] += 1
    # Binomial with 400 draws at one half: standard deviation 10; five of them for fifty rows.
    assert np.abs(drawn - 200).max() < 50


@pytest.mark.parametrize("max_rows", [None, 50, 1000])
def test_enough_is_all(max_rows: int | None) -> None:
    whole = numbered()
    assert sample(whole, max_rows) is whole


def test_classes_that_are_not_drawn_are_left_out() -> None:
    whole = numbered(num_rows=50, num_classes=25)
    part = sample(whole, 8)
    assert part.num_classes == len({int(row) % 25 for row in part.features[:, 0]}) < 25


def test_one_class_is_too_few() -> None:
    whole = numbered(num_classes=2)
    rows = np.arange(50)
    lopsided = replace(whole, labels=(rows == 49).astype(np.int64))
    seeds = [seed for seed in range(50) if 49 not in stream(seed, "rows").permutation(50)[:2]]
    with refused(DataError, key="data set 'numbered'", given="1: c0"):
        sample(lopsided, 2, seeds[0])


def test_the_key_of_the_configuration() -> None:
    config = FederationConfig(max_rows=300, seed=3, num_clients=3, partition={"kind": "iid"})
    federation = build_federation(config, ModelConfig())
    assert len(federation.labels) == 300
    assert federation.partition.sizes.tolist() == [100, 100, 100]
    assert federation.facts["num_rows_not_sampled"] == 1497
    expected = np.sort(stream(3, "rows").permutation(1797)[:300])
    np.testing.assert_array_equal(federation.features, load_dataset("digits").features[expected])


# Natural clients.


def test_small_clients_go_with_all_their_rows() -> None:
    sizes = {"a": 3, "b": 10, "c": 4, "d": 33}
    whole = replace(numbered(), client_ids=np.repeat(list(sizes), list(sizes.values())))
    part = without_small_clients(whole, 4)
    assert clients_of(part) == ["b"] * 10 + ["c"] * 4 + ["d"] * 33
    assert part.features[:, 0].tolist() == list(range(3, 50))
    assert (part.facts["num_small_clients_left_out"], part.facts["num_rows_of_small_clients"]) == (1, 3)
    assert without_small_clients(whole, 3) is whole
    with refused(DataError, key="federation.min_client_rows", given="34"):
        without_small_clients(whole, 34)


def test_data_without_natural_clients_have_no_small_ones() -> None:
    with refused(DataError, key="federation.min_client_rows"):
        build_federation(FederationConfig(min_client_rows=2, max_rows=100), ModelConfig())


def test_without_natural_clients_none_is_small() -> None:
    assert without_small_clients(replace(numbered(), client_ids=None), 1).num_rows == 50


# Duplicates.

FEW = arrays.arrays(
    np.float32, arrays.array_shapes(min_dims=2, max_dims=4, max_side=5), elements=st.sampled_from([0, -0.0, 1])
)


@given(FEW, st.data())
def test_duplicates_are_the_rows_that_sorting_them_would_find(features: np.ndarray, data: st.DataObject) -> None:
    labels = data.draw(arrays.arrays(np.int64, len(features), elements=st.integers(0, 1)))
    table = np.column_stack([features.reshape(len(features), -1), labels])
    expected = len(table) - len(np.unique(table, axis=0))
    assert duplicate_rows(features, labels) == expected
    assert duplicate_rows(features.astype(np.float64), labels) == expected
    assert duplicate_rows(np.abs(features).astype(np.uint8), labels) == expected


def test_duplicates_are_found_across_blocks() -> None:
    features = np.arange(10_000, dtype=np.float32)[:, None] % 6000
    assert duplicate_rows(features, np.zeros(10_000, np.int64)) == 4000
