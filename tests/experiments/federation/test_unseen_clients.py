"""Who joins after the training."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import ConfigurationError
from fedscout.experiments.data.dataset import Dataset
from fedscout.experiments.federation import build_federation, draw_unseen
from fedscout.experiments.federation_config import FederationConfig, ModelConfig
from tests.kits.refusals import refused


def test_so_many_are_drawn_by_the_seed_and_more_hold_the_fewer() -> None:
    draws = [draw_unseen(FederationConfig(unseen_clients=count), 10) for count in range(10)]
    assert [len(draw) for draw in draws] == list(range(10))
    assert all(fewer < more for fewer, more in pairwise(draws))
    assert set().union(*(draw_unseen(FederationConfig(unseen_clients=1, seed=seed), 10) for seed in range(99))) == {
        *range(10)
    }


@pytest.mark.parametrize("given", [{"dataset": "wine"}, {"dataset": "cartpole"}])
def test_the_federation_is_otherwise_the_same(given: dict[str, Any]) -> None:
    config = FederationConfig(**given, num_clients=5)
    plain = build_federation(config, ModelConfig())
    held = build_federation(config.model_copy(update={"unseen_clients": 2}), ModelConfig())
    assert (plain.num_clients, plain.num_seen, plain.unseen) == (5, 5, frozenset())
    assert (held.num_clients, held.num_seen, len(held.unseen)) == (5, 3, 2)
    assert np.array_equal(plain.partition.rows, held.partition.rows)
    assert plain.facts == held.facts


def test_none_left_of_natural_clients_is_refused() -> None:
    """Whose number only the data tell."""
    rows = np.arange(30, dtype=np.float32).reshape(30, 1)
    natural = Dataset("own", rows, np.arange(30) % 2, ("a", "b"), ("x",), "here", 1.0, np.repeat(["k", "l", "m"], 10))
    config = FederationConfig.model_validate({"partition": {"kind": "natural"}, "unseen_clients": 3})
    with refused(ConfigurationError, key="federation.unseen_clients", given="3"):
        build_federation(config, ModelConfig(), dataset=natural)
