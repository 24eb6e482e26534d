"""What is counted of a model's step."""

from __future__ import annotations

import pytest

from fedscout.experiments.timings.kernels import block_timings, kernel_timings

LENET_FORWARD = 2 * (28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10)
FIRST_LAYER = 2 * 28 * 28 * 6 * 75


def test_operations_of_lenet_are_those_counted_by_hand() -> None:
    """Backward takes each layer's product twice, by the weights and by what comes in, the first layer's once."""
    timing = next(kernel_timings(turns=1))

    assert timing["GFLOP"] == 32 * (3 * LENET_FORWARD - FIRST_LAYER) / 1e9
    assert timing["GFLOP/s"] == pytest.approx(1e3 * timing["GFLOP"] / timing["step of 32 rows, ms"])  # type: ignore[operator]


WEIGHTS = (254 * 64, 64 * 32, 32 * 2)


def test_operations_of_a_block_are_those_counted_by_hand() -> None:
    """For each row every weight once forward, once by the weights, and once by the rows but for the first layer."""
    training, scoring = block_timings(turns=1)

    assert scoring["GFLOP"] == 20 * 256 * 2 * sum(WEIGHTS) / 1e9
    assert training["GFLOP"] == 20 * 256 * 2 * (3 * sum(WEIGHTS) - WEIGHTS[0]) / 1e9
