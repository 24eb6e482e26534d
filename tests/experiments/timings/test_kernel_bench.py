"""What is counted of a model's step."""

from __future__ import annotations

from fedscout.experiments.timings.kernels import KernelTiming, kernel_timings, table_lines

LENET_FORWARD = 2 * (28 * 28 * 6 * 75 + 10 * 10 * 16 * 150 + 400 * 120 + 120 * 84 + 84 * 10)
FIRST_LAYER = 2 * 28 * 28 * 6 * 75


def test_operations_of_lenet_are_those_counted_by_hand() -> None:
    """Backward takes each layer's product twice, by the weights and by what comes in, the first layer's once."""
    timing = next(kernel_timings(turns=1))

    assert timing.step_operations == 32 * (3 * LENET_FORWARD - FIRST_LAYER)
    assert timing.step_seconds > timing.scored_row_seconds > 0


def test_the_rate_is_of_a_step() -> None:
    timing = KernelTiming(model="net", step_seconds=0.5, scored_row_seconds=1e-6, step_operations=2 * 10**9)

    assert table_lines({}, [timing])[-1] == "| net | 500.00 | 2.000 | 4 | 1.0 |"
