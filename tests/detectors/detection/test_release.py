"""What leaves a client in answer to a query: aggregates over enough rows, and nothing that tells a single row.

Every entry of the query table is held to the same laws; an entry without inputs here fails the suite.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fedscout.detectors import CLIENT_QUERIES
from fedscout.engine.data.client import Arrays
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.exchange import send_query
from tests.detectors.federations import SmallNet, federation, gaussian_clients, inputs, let_out, samples

NUM_FEATURES = 6
GENERATOR = np.random.default_rng(0)
PRIVATE = {"epsilon": 1.0, "delta": 1e-6, "clip": 3.0, "noise": "seeded", "noise_seed": 0}
MESSAGES: dict[str, tuple[dict[str, np.ndarray], dict[str, Any]]] = {
    "label_counts": ({}, {}),
    "feature_moments": ({}, {"max_features": 100}),
    "feature_centroid": (
        {"mean": GENERATOR.normal(size=NUM_FEATURES), "axes": GENERATOR.normal(size=(NUM_FEATURES, 2))},
        {},
    ),
    "feature_histogram": ({"start": np.full(NUM_FEATURES, -2.0), "width": np.full(NUM_FEATURES, 0.25)}, {"bins": 16}),
    "class_sums": ({}, {"max_features": 100}),
    "label_agreement": (
        {
            "axes": GENERATOR.normal(size=(NUM_FEATURES, 1)),
            "sums": np.array([[-50.0], [50.0]]),
            "counts": np.array([600, 600]),
        },
        {"shifted": True},
    ),
    "private_counts": ({}, PRIVATE),
    "private_sums": ({}, PRIVATE),
    "row_norms": ({"per_deviation": np.ones(NUM_FEATURES)}, {"by_class": True}),
    "group_labels": ({}, {}),
    "group_norms": (
        {"per_deviation": np.ones(NUM_FEATURES), "means": GENERATOR.normal(size=(2, NUM_FEATURES))},
        {"by_class": True},
    ),
    "near_copies": ({}, {}),
    "input_curvature": ({}, {}),
    "mean_output": ({"model": GENERATOR.normal(size=SmallNet(NUM_FEATURES, 2).num_parameters)}, {}),
}


def ask(query: str, features: np.ndarray, labels: np.ndarray) -> Arrays:
    arrays, config = MESSAGES[query]
    return let_out(CLIENT_QUERIES[query](inputs(samples(features, labels), arrays=arrays, config=config)))


def test_every_query_is_held_to_these_laws() -> None:
    assert set(MESSAGES) == set(CLIENT_QUERIES)


@pytest.mark.parametrize("query", sorted(CLIENT_QUERIES))
def test_the_order_of_rows_can_not_be_told(query: str) -> None:
    ((features, labels),) = gaussian_clients([40], NUM_FEATURES)
    order = np.random.default_rng(1).permutation(len(labels))
    answer, permuted = ask(query, features, labels), ask(query, features[order], labels[order])
    for name in answer:
        np.testing.assert_allclose(permuted[name], answer[name], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("query", sorted(CLIENT_QUERIES))
def test_answers_have_the_same_size_for_any_number_of_rows(query: str) -> None:
    few, many = (ask(query, *gaussian_clients([rows], NUM_FEATURES)[0]) for rows in (5, 500))
    assert {name: array.shape for name, array in few.items()} == {name: array.shape for name, array in many.items()}


def tells_a_value(answer: Arrays, features: np.ndarray) -> bool:
    """Return whether a feature value of some row appears, in units of the data or of the answer's own mean."""
    values = features.reshape(-1).astype(np.float64)
    return any(
        bool(np.isclose((array / scale).reshape(-1)[:, None], values, rtol=1e-9, atol=0).any())
        for array in answer.values()
        for scale in (1, len(features))
    )


@pytest.mark.parametrize("query", sorted(CLIENT_QUERIES))
@pytest.mark.parametrize("rows", [5, 6, 50])
def test_no_row_is_in_an_answer(query: str, rows: int) -> None:
    """And it would be told if one were: beside the answer, in an array of it, or times the number of rows."""
    ((features, labels),) = gaussian_clients([rows], NUM_FEATURES)
    features = features.astype(np.float32)
    answer = ask(query, features, labels)
    assert not tells_a_value(answer, features)
    name, array = next(iter(answer.items()))
    assert tells_a_value({**answer, "more": features[-1]}, features)
    assert tells_a_value({**answer, "more": features[0].astype(np.float64) * rows}, features)
    assert tells_a_value({**answer, name: np.append(array, features[rows // 2, 0])}, features)


def test_a_client_with_few_rows_answers_nothing() -> None:
    source = federation(gaussian_clients([4, 5, 30]), min_release=5)
    grid = LocalGrid(source, CLIENT_QUERIES)
    for query, (arrays, config) in MESSAGES.items():
        answers = send_query(grid, query, arrays=arrays, config=config)
        assert set(answers.arrays) == {1, 2}, query
        assert {client: "federation.min_release" in reason for client, reason in answers.refused.items()} == {0: True}
