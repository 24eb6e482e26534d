"""Specifications with one digest give one model, and models that differ have two digests."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from fedscout.engine.messages.calls import Cohort
from fedscout.strategies import StrategySpec, space_of
from tests.strategies.rounds import final_model, made

UNIFORM = made("fedavg", sample_scaling="uniform")


def everyone(n: int) -> Cohort:
    return Cohort(num_clients=n, num_sampled=n, client_learning_rate=0.2)


EQUIVALENTS: list[tuple[StrategySpec, StrategySpec, int]] = [
    (made("fedprox", proximal_mu=0), made("fedavg"), 5),
    (made("fedprox", proximal_mu=0, sample_scaling="uniform"), UNIFORM, 5),
    (made("fedavgm", server_learning_rate=1, server_momentum=0), made("fedavg"), 5),
    (made("qfedavg", q=0), UNIFORM, 5),
    (made("bulyan", num_malicious_nodes=0), UNIFORM, 7),
    (made("multikrum", num_malicious_nodes=2, num_nodes_to_select=1), made("krum", num_malicious_nodes=2), 6),
    (made("multikrum", num_malicious_nodes=0, num_nodes_to_select=6), made("fedavg"), 6),
    (made("fedtrimmedavg", beta=0.24), UNIFORM, 4),
    (made("fedtrimmedavg", beta=0.25), made("fedmedian"), 4),
    (made("fedtrimmedavg", beta=0.49), made("fedmedian"), 5),
    (made("fedtrimmedavg", beta=0.21), made("fedtrimmedavg", beta=0.29), 10),
    (made("fedmedian"), UNIFORM, 2),
    (made("fedmedian"), made("fedavg"), 1),
    (UNIFORM, made("fedavg"), 1),
]


def test_a_proximal_term_has_no_twin_and_reaches_flower() -> None:
    """Its server is FedAvg's, so no model of the server tells them apart."""
    spec = made("fedprox", proximal_mu=0.1)
    assert spec.simplest(everyone(5)) == spec
    built: Any = spec.build(everyone(5))
    assert built.proximal_mu == 0.1


STRANGERS: list[tuple[StrategySpec, StrategySpec, int]] = [
    (UNIFORM, made("fedavg"), 5),
    (made("fedmedian"), UNIFORM, 3),
    (made("fedavgm", server_learning_rate=1, server_momentum=0.1), made("fedavg"), 5),
    (made("fedavgm", server_learning_rate=0.9, server_momentum=0), made("fedavg"), 5),
    (made("fedtrimmedavg", beta=0.19), made("fedtrimmedavg", beta=0.21), 10),
    (made("krum", num_malicious_nodes=0), made("krum", num_malicious_nodes=3), 7),
    (made("multikrum", num_malicious_nodes=1, num_nodes_to_select=5), made("fedavg"), 6),
    (made("bulyan", num_malicious_nodes=1), UNIFORM, 7),
    (made("qfedavg", q=0.5), UNIFORM, 5),
]


@pytest.mark.parametrize(("spec", "other", "n"), EQUIVALENTS, ids=str)
def test_equivalents_are_one(spec: StrategySpec, other: StrategySpec, n: int) -> None:
    assert spec.canonical(everyone(n)) == other.canonical(everyone(n))
    assert spec.digest(everyone(n)) == other.digest(everyone(n))
    np.testing.assert_allclose(final_model(spec, everyone(n)), final_model(other, everyone(n)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("spec", "other", "n"), STRANGERS, ids=str)
def test_strangers_are_two(spec: StrategySpec, other: StrategySpec, n: int) -> None:
    assert spec.digest(everyone(n)) != other.digest(everyone(n))
    assert not np.allclose(final_model(spec, everyone(n)), final_model(other, everyone(n)), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 7, 8])
def test_the_simplest_twin_of_anything_drawn_gives_the_same_model(n: int) -> None:
    space = space_of(everyone(n))
    generator = np.random.default_rng(n)
    for _ in range(60):
        spec = space.random(generator)
        simplest = spec.simplest(space.cohort)
        assert simplest.faults(space.cohort) == []
        assert simplest.simplest(space.cohort) == simplest
        np.testing.assert_allclose(
            final_model(spec, space.cohort, 1), final_model(simplest, space.cohort, 1), rtol=1e-5, atol=1e-5
        )


@pytest.mark.parametrize("n", [3, 4, 5, 6, 9, 100])
def test_trimmed_means_are_twins_exactly_if_they_trim_alike(n: int) -> None:
    cohort = everyone(n)
    by_cut: dict[int, set[str]] = {}
    for percent in range(50):
        spec = made("fedtrimmedavg", beta=percent / 100)
        by_cut.setdefault(int(percent / 100 * n), set()).add(spec.digest(cohort))
    assert all(len(digests) == 1 for digests in by_cut.values())
    assert len(set.union(*by_cut.values())) == len(by_cut)


def test_a_specification_that_does_not_fit_has_no_twin() -> None:
    spec = made("multikrum", num_malicious_nodes=4, num_nodes_to_select=5)
    assert spec.simplest(everyone(5)) == spec


def test_canonical_json_is_one_text() -> None:
    """Whole numbers and negative zero are the same values as their other spellings."""
    cohort = everyone(5)
    below, above = (made("fedavgm", server_learning_rate=0.5, server_momentum=zero) for zero in (-0.0, 0.0))
    assert below.canonical(cohort) == above.canonical(cohort)
    assert '"fedavgm"' in above.canonical(cohort)  # no equivalent, which has no momentum to tell
    text = made("qfedavg", q=1).canonical(cohort)
    assert text == '{"kind":"qfedavg","q":1.0}'
    assert json.loads(text) == {"kind": "qfedavg", "q": 1.0}
