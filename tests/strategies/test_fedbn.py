"""Laws of FedBN."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.trial import run_trial
from fedscout.strategies import FedBNSpec
from fedscout.strategies.methods.personal import OwnBatchNorm
from tests.engine.choices import FLOWER_CHOICES
from tests.engine.choices import spec_of as flower_spec
from tests.engine.federations import normalised
from tests.kits.refusals import refused
from tests.strategies.by_hand import host_of

OWN = slice(35, 45), slice(63, 73)
"""Scale and shift follow the first layer's 6·5 + 5 parameters, the statistics all 63."""


def test_a_model_without_batch_normalisation_is_refused() -> None:
    with refused(StrategyError, key="fedbn", given="layers Linear"):
        FedBNSpec().build(Cohort(8, 5, 0.1, layers=frozenset({"Linear"})))


@pytest.mark.parametrize("name", ["fedavg", "fedadam", "fedavgm", "fedmedian", "fedtrimmedavg", "krum", "qfedavg"])
def test_under_any_server_rule_the_global_layer_stays_where_it_was(name: str) -> None:
    """At its initial 0 and 1, as every rule of Flower's sees no change there; the rest is trained."""
    host = host_of(normalised)
    spec = replace(flower_spec(replace(FLOWER_CHOICES[name], algorithm=OwnBatchNorm())), num_sampled=8)
    result = run_trial(spec, LocalGrid(host, session=spec.session))
    initial = host.initial_vector(spec.session.seed)
    for part in OWN:
        assert np.array_equal(result.vector[part], initial[part])
    assert np.abs(result.vector - initial).max() > 1e-3
