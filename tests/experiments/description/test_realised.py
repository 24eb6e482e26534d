"""The realised heterogeneity: closed forms, sampling error, invariance, and what is left out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedscout.detectors import CLIENT_QUERIES, DetectionConfig, HeterogeneityReport
from fedscout.detectors.detect import detect
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Release
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.experiments.description import Description, describe_federation, realised
from fedscout.experiments.scenarios.effects import FeatureNoise
from fedscout.experiments.scenarios.labels import ShiftLabels
from tests.detectors.federations import federation, gaussian_clients
from tests.experiments.description.federations import by_counts, federation_of

# Labels


# Sizes and rows


def test_rows_are_dealt_not_dealt_or_repeated() -> None:
    clients = [[0, 1, 2, 3, 4, 4], [4, 5, 6, 7, 8, 0], [10, 11, 12, 13, 14]]  # 9 and 15 to 19 nobody's
    found = realised(federation_of(np.arange(20) % 2, clients, 2))
    assert (found.num_rows, found.num_rows_assigned, found.num_rows_unassigned) == (20, 14, 6)
    assert found.num_rows_repeated == 3  # row 4 three times, row 0 twice
    assert found.num_rows_assigned + found.num_rows_repeated == 6 + 6 + 5


# Who is measured


def test_clients_too_small_to_answer_are_left_out_and_said_to_be() -> None:
    large = [[30, 10], [20, 20]]
    found = realised(by_counts([*large, [0, 4], [0, 0]]))
    alone = realised(by_counts(large))
    assert (found.num_clients, found.num_empty_clients, found.num_measured_clients) == (4, 1, 2)
    for name in ("quantity_ratio", "quantity_gini", "label_hellinger", "label_skew", "heterogeneity_index"):
        assert getattr(found, name) == getattr(alone, name)
    assert found.client_rows.smallest == 0
    (note,) = found.notes
    assert "2 of 4 clients" in note
    assert "5 rows" in note
    assert realised(by_counts([*large, [0, 4]], release=Release(4))).num_measured_clients == 3


@pytest.mark.parametrize("counts", [[[30, 10]], [[30, 10], [2, 1]], [[1, 1], [2, 1]]])
def test_distances_take_two_clients(counts: list[list[int]]) -> None:
    found = realised(by_counts(counts))
    assert found.num_measured_clients < 2
    assert found.label_hellinger is None
    assert found.label_skew is None
    assert found.feature_hellinger is None
    assert found.num_features_compared == 0
    json.dumps(found.model_dump(mode="json"), allow_nan=False)


def test_of_many_clients_pairs_are_drawn_by_seed_and_the_rest_is_over_all() -> None:
    generator = np.random.default_rng(0)
    source = by_counts(generator.integers(5, 50, (30, 3)))
    settings = DetectionConfig(max_pairwise_clients=6)
    found, everyone = realised(source, settings), realised(source)
    assert found.num_paired_clients == 6
    assert any("6 of 30 clients" in note for note in found.notes)
    assert found.label_skew == everyone.label_skew
    assert found.quantity_gini == everyone.quantity_gini
    assert found == realised(source, settings)
    drawn = {realised(source, settings, seed).label_hellinger for seed in range(4)}
    assert len(drawn) == 4


# Laws


@pytest.mark.slow
@given(st.integers(0, 2**32), st.integers(2, 12))
def test_the_order_of_clients_does_not_matter(seed: int, num_clients: int) -> None:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 4, 300)
    owners = generator.integers(0, num_clients, 300)
    clients = [np.flatnonzero(owners == client) for client in range(num_clients)]
    order = generator.permutation(num_clients)
    one = realised(federation_of(labels, clients, 4)).model_dump()
    other = realised(federation_of(labels, [clients[client] for client in order], 4)).model_dump()
    farthest, renumbered = one.pop("label_skew_client"), other.pop("label_skew_client")
    assert (farthest is None) == (renumbered is None)
    for name, value in one.items():
        exact = value is None or name == "notes"
        assert other[name] == (value if exact else pytest.approx(value, rel=1e-9, abs=1e-9)), name


# Features


def test_moments_count_a_row_as_often_as_it_is_held() -> None:
    # Client 1 holds row 3 ten times: its value 9 then makes up a third of 30 rows, whose mean is 3 and variance 18
    # (times 30/29). Bins are placed by these: 9 is sqrt(2) deviations above the mean, 0 is 1/sqrt(2) below.
    features = np.zeros((21, 1))
    features[20] = 9.0
    found = realised(federation_of(np.zeros(21), [range(20), [20] * 10], 2, features))
    assert found.feature_hellinger == pytest.approx(1.0)
    assert found.feature_wasserstein == pytest.approx(9 / np.sqrt(18 * 30 / 29), abs=0.25)


def test_features_of_many_are_drawn_by_seed() -> None:
    features = np.random.default_rng(1).normal(size=(100, 4, 5))
    source = federation_of(np.arange(100) % 2, [range(50), range(50, 100)], 2, features)
    found, all_of_them = realised(source, max_features=6), realised(source, max_features=20)
    assert (found.num_features, found.num_features_compared) == (20, 6)
    assert "6 of 20 " in found.notes[0]
    assert (all_of_them.num_features_compared, all_of_them.notes) == (20, ())
    assert found == realised(source, max_features=6)
    assert len({realised(source, seed=seed, max_features=6).feature_hellinger for seed in range(4)}) == 4


# Corruption


def test_what_a_corrupted_client_has_is_what_counts() -> None:
    # Both clients hold eight rows of class 0 for two of class 1; the second one's labels are all turned round.
    source = by_counts([[80, 20], [80, 20]], transforms={1: (ShiftLabels(),)})
    found, mirrored = realised(source), realised(by_counts([[80, 20], [20, 80]]))
    assert found.label_skew == mirrored.label_skew
    assert found.label_hellinger == mirrored.label_hellinger


# Other kinds of data


def test_texts_are_compared_by_their_labels_alone() -> None:
    tokens = np.array([[1, 2, 0]] * 10 + [[3, 4, 0]] * 10, float)
    found = realised(
        federation_of(np.arange(20) % 2, [range(10), range(10, 20)], 2, tokens, facts={"data_kind": "tokens"})
    )
    assert (found.feature_hellinger, found.feature_wasserstein) == (None, None)
    assert found.label_hellinger == pytest.approx(0, abs=1e-7)
    assert any("texts" in note for note in found.notes)


def test_clients_that_play_have_nothing_to_compare() -> None:
    found = realised(by_counts([[10, 0], [0, 10], [1, 0]], task=object()))
    assert found.num_clients == 3
    assert (found.quantity_ratio, found.label_skew, found.label_hellinger, found.feature_hellinger) == (None,) * 4
    (note,) = found.notes
    assert "episodes" in note


# A description and a detection of the same clients that tell all report the same figures under the same names.


ROUNDING = 1e-12
"""Figures are sums of the same numbers, not always in the same order."""

SHARED = (
    *("quantity_ratio", "quantity_variation", "quantity_gini"),
    *(f"{what}_{distance}" for what in ("label", "feature") for distance in ("hellinger", "wasserstein")),
)


def report_of(source: Federation, settings: DetectionConfig, seed: int) -> HeterogeneityReport:
    grid = LocalGrid(source, CLIENT_QUERIES)
    return detect(grid, grid.initial_vectors, LocalTraining(), settings, seed)


def skewed(sizes: list[int], **others: Any) -> Federation:
    """Return clients whose sizes, labels and features differ."""
    clients = gaussian_clients(sizes)
    shifted = [
        (rows + 0.3 * number, np.minimum(labels + (np.arange(len(labels)) < 3 * number), 2))
        for number, (rows, labels) in enumerate(clients)
    ]
    return federation(shifted, num_classes=3, min_release=1, **others)


CASES: Mapping[str, tuple[Federation, dict[str, Any]]] = {
    "few clients": (skewed([30, 45, 60, 20]), {}),
    "many clients": (skewed([20 + client for client in range(24)]), {}),
    "small and corrupted ones": (
        skewed([30, 3, 60, 20, 0, 41], transforms={2: (ShiftLabels(),), 5: (FeatureNoise(2.0, 0.5), ShiftLabels())}),
        {},
    ),
    "drawn pairs": (skewed([20 + client for client in range(12)]), {"max_pairwise_clients": 5}),
    "one client": (skewed([50]), {}),
}


@pytest.mark.parametrize("case", CASES)
def test_figures_of_detection_and_description_are_equal(case: str) -> None:
    source, given = CASES[case]
    settings = DetectionConfig(outlier_repetitions=1, outlier_min_flags=1, outlier_rounds=1, **given)
    report, description = report_of(source, settings, seed=3), describe_federation(source, settings, seed=3)
    for name in SHARED:
        expected = getattr(report.metrics, name)
        assert getattr(description.realised, name) == (expected and pytest.approx(expected, rel=ROUNDING)), name
    assert description.realised.label_skew == report.label_skew.value
    _assert_same_clients(description, report)


def _assert_same_clients(description: Description, report: HeterogeneityReport) -> None:
    measured = [client for client in description.clients if client.heterogeneity_index is not None]
    assert [client.client for client in measured] == [facts.client for facts in report.clients]
    for client, facts in zip(measured, report.clients, strict=True):
        assert (client.num_rows, client.label_counts) == (facts.num_rows, facts.label_counts)
        assert client.heterogeneity_index == facts.heterogeneity_index
        assert client.label_divergence == report.label_skew.client_values.get(client.client)
    assert len(description.clients) - len(measured) == len(report.withheld)
