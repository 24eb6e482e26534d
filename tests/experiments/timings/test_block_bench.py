"""What a block's products are."""

from __future__ import annotations

import pytest

from fedscout.experiments.timings.kernels import block_timings

WEIGHTS = (254 * 64, 64 * 32, 32 * 2)


def test_operations_are_those_counted_by_hand() -> None:
    """For each row every weight once forward, once by the weights, and once by the rows but for the first layer."""
    training, scoring = block_timings(turns=1)

    assert scoring.operations == 20 * 256 * 2 * sum(WEIGHTS)
    assert training.operations == 20 * 256 * 2 * (3 * sum(WEIGHTS) - WEIGHTS[0])


@pytest.mark.slow
def test_products_are_a_part_of_the_whole() -> None:
    for timing in block_timings(turns=20):
        assert 0 < timing.products_seconds < timing.seconds
