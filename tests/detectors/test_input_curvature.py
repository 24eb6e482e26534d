"""The input curvature: the largest eigenvalue of E[x xᵀ], and the step that it allows."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors.queries import input_curvature
from fedscout.engine.data.client import QueryInputs, Samples


def curvature_of(rows: np.ndarray, shown: np.ndarray | None = None) -> float:
    def samples(features: np.ndarray) -> Samples:
        return Samples(features.astype(np.float32), np.zeros(len(features), np.int64), np.arange(len(features)))

    inputs = QueryInputs(samples(rows if shown is None else shown), 2, {}, {}, model_inputs=samples(rows))
    answer = input_curvature(inputs)["curvature"]
    assert answer.rows == len(rows)
    return float(answer.values[0])


@pytest.mark.parametrize("shape", [(40, 7), (30, 3, 4, 5)], ids=["more rows than columns", "pictures"])
def test_it_is_the_squared_largest_singular_value(shape: tuple[int, ...]) -> None:
    rows = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    expected = np.linalg.norm(rows.reshape(len(rows), -1), ord=2) ** 2 / len(rows)
    assert curvature_of(rows) == pytest.approx(expected, rel=0.02)


def test_it_is_of_the_models_inputs_not_of_embeddings() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 3))
    assert curvature_of(2 * rows, shown=rows) == pytest.approx(4 * curvature_of(rows), rel=1e-6)


def test_token_numbers_have_none() -> None:
    assert np.isnan(curvature_of(np.random.default_rng(0).integers(0, 900, size=(20, 8))))
    assert np.isfinite(curvature_of(np.random.default_rng(0).integers(0, 2, size=(20, 8))))


def test_gradient_descent_on_a_logistic_model_is_stable_up_to_eight_over_it() -> None:
    """Its loss has a curvature of at most λ / 4, so steps below 8 / λ shrink and far larger ones grow at the optimum.

    At w = 0 with balanced labels of mirrored rows, 0 is the optimum and λ / 4 the curvature there.
    """
    rows = np.random.default_rng(0).normal(size=(50, 4))
    mirrored = np.concatenate([rows, rows])
    labels = np.repeat([0.0, 1.0], 50)
    curvature = curvature_of(mirrored)
    start = 1e-6 * np.linalg.eigh(mirrored.T @ mirrored)[1][:, -1]
    for factor, grows in ((0.95, False), (1.05, True)):
        weights = start.copy()
        for _ in range(50):
            gradient = mirrored.T @ (1 / (1 + np.exp(-mirrored @ weights)) - labels) / len(labels)
            weights -= factor * 8 / curvature * gradient
        assert (np.linalg.norm(weights) > np.linalg.norm(start)) == grows
