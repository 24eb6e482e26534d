"""What is counted of a model's step."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from fedscout.experiments.benchmarks.engine.kernel_bench import KernelTiming, kernel_timings, table_lines
from fedscout.experiments.benchmarks.engine.kernel_ways import WAYS, WayTiming
from fedscout.experiments.benchmarks.engine.kernel_ways import table_lines as ways_table

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


def test_a_way_that_fails_has_a_dash_and_its_reason() -> None:
    timings = [
        WayTiming(model="net", way="ours", seconds=0.002),
        WayTiming(model="net", way="torch.compile", seconds=None, failure="no compiler"),
    ]
    assert ways_table(timings)[-2:] == ["| net | 2.00 | – |", "torch.compile, net: no compiler"]


@pytest.mark.parametrize("way", ["autograd", "channels last", "bfloat16", "grouped"])
def test_every_way_descends(way: str) -> None:
    """Of a linear model on one image of ones the first step moves the bias by −0.001 (p − y), all p being a tenth."""

    def linear() -> nn.Module:
        module = nn.Sequential(nn.Flatten(), nn.Linear(12, 10))
        for parameter in module.parameters():
            nn.init.zeros_(parameter)
        made.append(module)
        return module

    made: list[nn.Module] = []
    step = WAYS[way][0](linear, torch.ones(1, 3, 2, 2), torch.zeros(1, dtype=torch.int64))
    moved = torch.full((10,), -0.0001)
    moved[0] = 0.0009
    step()
    if way != "grouped":  # whose weights are a stack of the modules'
        assert torch.allclose(made[-1].state_dict()["1.bias"], moved, rtol=1e-2)
    assert len(made) == WAYS[way][1]
