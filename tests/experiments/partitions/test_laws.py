"""What every partition of the table must obey."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays

from fedscout.engine.errors import ConfigurationError, DataError
from fedscout.experiments.partitions.labels import PartitionRequest, PartitionResult, whole_rows
from fedscout.experiments.partitions.table import PARTITIONS
from tests.experiments.partitions.requests import class_counts, deal, label_distance, noise
from tests.kits.refusals import refused

FIXED_BY_DATA = {kind for kind, partition in PARTITIONS.items() if partition.fixes_num_clients}
REPEATING = {kind for kind, partition in PARTITIONS.items() if partition.repeats_rows}
# What may leave rows out, and is told so in the documents.
LEAVES_OUT = {"shard", "counts", "fds_wgc"}
FEATURES = {"fds_vop", "fds_wgc", "sfdl", "sldf"}
LABELS_AT_RANDOM = {"iid", "quantity_skew", "linear", "square", "exponential", "sldf"}
RANDOM = set(PARTITIONS) - FEATURES
# Kinds for which 10,000 clients are impossible with a data set of any common size.
NEVER_TEN_THOUSAND = {"linear", "square", "exponential", "fds_wgc"}
DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "partitions.md"
KINDS = pytest.mark.parametrize("kind", PARTITIONS)


def choices(kind: str, num_clients: int, num_classes: int) -> dict[str, Any]:
    """Return settings under which a kind must be able to deal equally many rows of each class."""
    if kind == "counts":
        return {"counts": tuple((2,) * num_classes for _ in range(num_clients))}
    return {"min_size": 1} if "min_size" in PARTITIONS[kind].reads else {}


@pytest.mark.slow
@KINDS
@settings(max_examples=12)
@given(data=st.data())
def test_rows_go_to_one_client_each_and_none_is_empty(kind: str, data: st.DataObject) -> None:
    num_classes = data.draw(st.integers(2, 4))
    num_clients = num_classes * data.draw(st.integers(1, 6 // num_classes))
    labels = np.repeat(np.arange(num_classes), data.draw(st.integers(120, 140)))
    seed = data.draw(st.integers(0, 2**32))
    settings = choices(kind, num_clients, num_classes)
    dealt = deal(kind, labels, num_clients, seed, features=noise(len(labels)), **settings)
    partition = dealt.partition

    assert partition.num_clients == num_clients
    assert partition.rows.dtype == partition.offsets.dtype == np.int64
    assert partition.sizes.min() >= 1
    for client in range(num_clients):
        assert len(np.unique(partition.client(client))) == partition.sizes[client]
    if kind not in REPEATING:
        assert len(np.unique(partition.rows)) == len(partition.rows)
    if kind not in LEAVES_OUT:
        assert sorted(partition.rows.tolist()) == list(range(len(labels)))
    assert len(json.dumps(dealt.facts)) < 500


@KINDS
def test_seed_fixes_the_partition(kind: str) -> None:
    labels = np.arange(800) % 3
    features, settings = noise(800), choices(kind, 6, 3)
    first, again, other = (deal(kind, labels, 6, seed, features=features, **settings).partition for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.rows, again.rows)
    np.testing.assert_array_equal(first.offsets, again.offsets)
    assert not np.array_equal(first.rows, other.rows)


@pytest.mark.parametrize("kind", sorted(LABELS_AT_RANDOM))
def test_labels_are_independent_of_clients(kind: str) -> None:
    # Rows sorted by class, so that a partition that deals them in order would show. Of n rows in C classes, p each, a
    # count differs from np by less than five of its standard deviations √(np(1 − p)), which half of Σ|count/n − p|
    # turns into at most C·5·√(p(1 − p)/n)/2, averaged over clients.
    num_classes, num_rows = 4, 4000
    labels = np.repeat(np.arange(num_classes), num_rows // num_classes)
    partition = deal(kind, labels, 4, features=noise(num_rows), **choices(kind, 4, num_classes)).partition
    limit = (num_classes * 5 * np.sqrt(0.25 * 0.75 / partition.sizes) / 2).mean()
    assert label_distance(labels, partition) < limit


@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - FIXED_BY_DATA))
def test_number_of_clients_is_at_most_that_of_rows(kind: str) -> None:
    with refused(DataError, key="federation.num_clients", given=21):
        deal(kind, np.arange(20) % 3, 21, features=noise(20))


@pytest.mark.parametrize("kind", sorted(kind for kind, item in PARTITIONS.items() if "min_size" in item.reads))
@pytest.mark.timeout(20)
def test_minimum_size_is_reached_or_refused(kind: str) -> None:
    labels = np.arange(1200) % 3
    is_refused = False
    for min_size in (1, 20, 80, 1201):
        try:
            partition = deal(kind, labels, 6, features=noise(1200), min_size=min_size).partition
        except DataError:
            is_refused = True
        else:
            assert partition.sizes.min() >= min_size
            assert not is_refused  # what was refused stays refused as the minimum grows
    assert is_refused


@pytest.mark.parametrize("kind", sorted(RANDOM - {"natural", "lds"}))
def test_rows_of_a_client_are_in_no_order(kind: str) -> None:
    # Of rows that are neither sorted by label nor by number about half are followed by a larger number.
    labels = np.repeat(np.arange(3), 1000)
    rows = deal(kind, labels, 3, **choices(kind, 3, 3)).partition.client(0)
    if kind == "counts":
        rows = deal(kind, labels, 1, counts=((500, 500, 500),)).partition.client(0)
    rising = sum(first < second for first, second in pairwise(rows.tolist()))
    assert abs(rising - len(rows) / 2) < 5 * np.sqrt(len(rows))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", sorted(set(PARTITIONS) - NEVER_TEN_THOUSAND - {"counts"}))
@pytest.mark.slow
@pytest.mark.timeout(20)
def test_ten_thousand_clients(kind: str) -> None:
    labels = np.arange(60_000) % 10
    settings: dict[str, Any] = choices(kind, 10_000, 10)
    if kind == "heterogeneity_index":
        settings["levels"] = (0.6, 0.8, 1.0)
    partition = deal(kind, labels, 10_000, features=noise(60_000, 4), **settings).partition
    assert partition.num_clients == 10_000
    assert partition.sizes.min() >= 1
    assert len(np.unique(partition.rows)) == len(partition.rows)


@pytest.mark.parametrize("kind", sorted(NEVER_TEN_THOUSAND))
@pytest.mark.timeout(20)
def test_ten_thousand_clients_are_refused_at_once_where_they_are_impossible(kind: str) -> None:
    key = "federation.num_clients" if kind == "fds_wgc" else "federation.partition.kind"
    with refused(DataError, key=key, names="10000"):
        deal(kind, np.arange(60_000) % 10, 10_000, features=noise(60_000, 4), min_size=1)


@KINDS
def test_document_names_the_keys_that_a_kind_reads(kind: str) -> None:
    (row,) = [
        line.split("|")
        for line in DOCUMENT.read_text().splitlines()
        if line.startswith(f"| `{kind}` | ") and line.count("|") == 5
    ]
    assert row[3].strip() == ", ".join(f"`{name}`" for name in PARTITIONS[kind].reads)


# Skew is monotone in the knob, from one extreme to the other.


NUM_CLIENTS, NUM_CLASSES = 10, 10
LABELS = np.repeat(np.arange(NUM_CLASSES), 300)
# Total variation distance of a client with c of C equal classes is (C − c)/C: 0.9 for one class.
ONE_CLASS = 0.9
# A kind, its knob from weak to strong, and what the distance is at both ends, if known.
LABEL_KNOBS: list[tuple[str, str, list[Any], float | None, float | None]] = [
    ("dirichlet", "alpha", [1e5, 1.0, 0.1, 0.01], 0.0, None),
    ("inner_dirichlet", "alpha", [1e5, 1.0, 0.1, 0.01], 0.0, None),
    ("pathological", "classes_per_client", [10, 7, 4, 2, 1], 0.0, ONE_CLASS),
    ("classes_per_client", "class_share", [1.0, 0.7, 0.4, 0.2, 0.1], 0.0, ONE_CLASS),
    ("heterogeneity_index", "levels", [(0.0,), (0.3,), (0.6,), (1.0,)], 0.0, ONE_CLASS),
    ("shard", "shards_per_client", [30, 10, 3, 1], None, ONE_CLASS),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "knob", "values", "weakest", "strongest"), LABEL_KNOBS)
def test_label_skew(kind: str, knob: str, values: list[Any], weakest: float | None, strongest: float | None) -> None:
    def distance(value: Any) -> float:
        dealt = [deal(kind, LABELS, NUM_CLIENTS, seed, **{knob: value}).partition for seed in range(4)]
        return float(np.mean([label_distance(LABELS, partition) for partition in dealt]))

    distances = [distance(value) for value in values]
    assert distances == sorted(distances)
    assert distances[-1] > distances[0] + 0.1
    if weakest is not None:
        # With all clients' mixtures alike, the 300 rows of a client are rounded to whole ones or, at worst, drawn: ten
        # counts with p = 0.1, each within three of its standard deviations √(0.09/300) on average.
        assert distances[0] == pytest.approx(weakest, abs=10 * 3 * np.sqrt(0.09 / 300) / 2)
    if strongest is not None:
        assert distances[-1] == pytest.approx(strongest, abs=0.01)


def test_laws_of_growing_sizes() -> None:
    labels = np.zeros(3000, np.int64)
    shares = {"linear": np.arange(1, 6), "square": np.arange(1, 6) ** 2, "exponential": np.exp(np.arange(1, 6))}
    for kind, weights in shares.items():
        sizes = deal(kind, labels, 5).partition.sizes
        # Rounded down, and what is left goes to the last.
        expected = 3000 * weights / weights.sum()
        assert (np.abs(sizes[:-1] - expected[:-1]) < 1).all()
        assert sizes.sum() == 3000
        assert deal(kind, labels, 1).partition.sizes.tolist() == [3000]


# IID: equal sizes, and labels as chance has them.


@given(st.integers(1, 300), st.data())
def test_sizes_differ_by_one_at_most(num_rows: int, data: st.DataObject) -> None:
    num_clients = data.draw(st.integers(1, num_rows))
    sizes = deal("iid", np.zeros(num_rows, np.int64), num_clients).partition.sizes
    assert sizes.max() - sizes.min() <= 1


# Natural clients own the rows that bear their name.


def natural_deal(names: list[str] | None, num_clients: int | None = None) -> PartitionResult:
    labels = np.zeros(len(names or range(5)), np.int64)
    ids = None if names is None else np.array(names)
    return PARTITIONS["natural"].partition(
        PartitionRequest(labels, num_clients, np.random.default_rng(0), client_ids=ids)
    )


@given(st.lists(st.sampled_from(["bern", "oslo", "rome", "riga"]), min_size=1, max_size=60))
def test_each_client_has_its_rows_and_no_others(names: list[str]) -> None:
    names += ["bern", "oslo"]
    result = natural_deal(names)
    owners = result.facts["client_names"]

    assert owners == tuple(sorted(set(names)))
    assert sorted(result.partition.rows.tolist()) == list(range(len(names)))
    for client, owner in enumerate(owners):
        assert {names[row] for row in result.partition.client(client)} == {owner}


def test_clients_are_at_least_two_and_as_many_as_said() -> None:
    assert natural_deal(["a", "b", "a"], num_clients=2).partition.sizes.tolist() == [2, 1]
    with refused(DataError, key="federation.num_clients", given="10"):
        natural_deal(["a", "b", "a"], num_clients=10)
    with refused(DataError, key="federation.partition.kind", names="federation.client_column"):
        natural_deal(None)
    with refused(DataError, key="the column of clients"):
        natural_deal(["rome", "rome"])


# Quantity skew: sizes as drawn, labels at random.


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.integers(0, 500), st.integers(0, 99))
def test_whole_rows_add_up_and_are_within_one(weights: list[float], num_rows: int, seed: int) -> None:
    shares = np.array(weights) + 1e-3
    shares /= shares.sum()
    counts = whole_rows(shares, num_rows, np.random.default_rng(seed))
    assert counts.sum() == num_rows
    assert np.abs(counts - shares * num_rows).max() < 1 + 1e-6


@pytest.mark.slow
def test_shares_have_the_second_moment_of_the_distribution() -> None:
    # A symmetric Dirichlet(α) over K has E Σ p² = (α + 1)/(Kα + 1); of 10⁴ rows, rounding is 10⁻⁴ of a share.
    seconds = []
    for seed in range(100):
        partition = deal("quantity_skew", np.zeros(10_000, np.int64), 5, seed, alpha=0.5, min_size=1).partition
        seconds.append(((partition.sizes / 10_000) ** 2).sum())
    error = np.std(seconds) / np.sqrt(len(seconds))
    assert np.mean(seconds) == pytest.approx(1.5 / 3.5, abs=5 * error + 2e-3)


# A given matrix of counts: dealt to the row, or refused with what does not fit.


COUNTED = np.repeat(np.arange(3), [30, 20, 10])


@given(arrays(np.int64, st.tuples(st.integers(1, 5), st.just(3)), elements=st.integers(0, 2)))
def test_counts_are_as_given(counts: np.ndarray) -> None:
    counts[:, 0] += 1  # nobody is empty
    given_counts = tuple(tuple(int(cell) for cell in row) for row in counts)
    partition = deal("counts", COUNTED, None, counts=given_counts).partition
    np.testing.assert_array_equal(class_counts(COUNTED, partition), counts)
    assert len(np.unique(partition.rows)) == counts.sum()


@pytest.mark.parametrize(
    ("counts", "num_clients", "given"),
    [
        (None, None, "nothing"),
        (((1, 1),), None, 2),
        (((31, 0, 0),), None, 31),
        (((5, 5, 6), (5, 5, 6)), None, 12),
        (((1, 1, 1), (0, 0, 0)), None, "none for client 1"),
        (((1, 1, 1),), 10, 10),
    ],
)
def test_counts_that_misfit(counts: tuple[tuple[int, ...], ...] | None, num_clients: int | None, given: object) -> None:
    key = "federation.partition.counts" if num_clients is None else "federation.num_clients"
    with refused(ConfigurationError if counts is None else DataError, key=key, given=given):
        deal("counts", COUNTED, num_clients, counts=counts)
