"""Models whose layers fail in bfloat16 are refused before anything starts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.studies.checks import check_precision
from tests.engine.federations import NUM_CLASSES, NUM_FEATURES, dense, normalised, uneven_federation
from tests.kits.refusals import refused

NARROW = LocalTraining(precision="bfloat16")


class Copying(nn.Linear):
    """Copies what it says into a place of float32."""

    def forward(self, rows: Tensor) -> Tensor:
        said = super().forward(rows)
        return torch.zeros(len(rows), NUM_CLASSES).index_copy_(0, torch.arange(len(rows)), said)


def copying() -> nn.Module:
    """A model that is such a layer."""
    return Copying(NUM_FEATURES, NUM_CLASSES)


@pytest.mark.parametrize("model", [dense, normalised])
def test_layers_that_take_it_pass_and_draw_nothing(model: type[nn.Module]) -> None:
    before = torch.random.get_rng_state()
    check_precision(NARROW, uneven_federation(model))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_layers_that_fail_are_told() -> None:
    check_precision(LocalTraining(), uneven_federation(copying))
    with refused(ConfigurationError, key="training.precision"):
        check_precision(NARROW, uneven_federation(copying))
