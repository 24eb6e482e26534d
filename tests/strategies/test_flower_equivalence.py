"""A specification builds exactly what one would write by hand with Flower."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp import strategy as flower

from fedscout.engine.messages.calls import Cohort, EngineNeeds
from fedscout.engine.messages.contents import claim_task_identity
from fedscout.strategies import BUILT_IN_KINDS, StrategySpec
from fedscout.strategies.specification import node_counts
from tests.strategies.rounds import grid_of, made, models

COHORT = Cohort(num_clients=9, num_sampled=7, client_learning_rate=0.25)
NODES = {
    "fraction_train": 7 / 9,
    "fraction_evaluate": 1.0,
    "min_train_nodes": 7,
    "min_evaluate_nodes": 9,
    "min_available_nodes": 9,
}
ADAPTIVE = {"eta": 0.2, "eta_l": 0.25, "tau": 1e-2}

BY_HAND: dict[str, tuple[StrategySpec, flower.Strategy]] = {
    "fedavg": (made("fedavg"), flower.FedAvg(**NODES)),
    "fedavg, uniform": (
        made("fedavg", sample_scaling="uniform"),
        flower.FedAvg(**NODES, weighted_by_key="num-clients"),
    ),
    "fedprox": (made("fedprox", proximal_mu=0.3), flower.FedProx(**NODES, proximal_mu=0.3)),
    "fedavgm": (
        made("fedavgm", server_learning_rate=0.7, server_momentum=0.6),
        flower.FedAvgM(**NODES, server_learning_rate=0.7, server_momentum=0.6),
    ),
    "fedadagrad": (made("fedadagrad", eta=0.2, tau=1e-2), flower.FedAdagrad(**NODES, **ADAPTIVE)),
    "fedadam": (
        made("fedadam", eta=0.2, tau=1e-2, beta_1=0.8, beta_2=0.95),
        flower.FedAdam(**NODES, **ADAPTIVE, beta_1=0.8, beta_2=0.95),
    ),
    "fedyogi": (
        made("fedyogi", eta=0.2, tau=1e-2, beta_1=0.8, beta_2=0.95, sample_scaling="uniform"),
        flower.FedYogi(**NODES, **ADAPTIVE, beta_1=0.8, beta_2=0.95, weighted_by_key="num-clients"),
    ),
    "fedmedian": (made("fedmedian"), flower.FedMedian(**NODES)),
    "fedtrimmedavg": (made("fedtrimmedavg", beta=0.3), flower.FedTrimmedAvg(**NODES, beta=0.3)),
    "krum": (made("krum", num_malicious_nodes=2), flower.Krum(**NODES, num_malicious_nodes=2)),
    "multikrum": (
        made("multikrum", num_malicious_nodes=1, num_nodes_to_select=3),
        flower.MultiKrum(**NODES, num_malicious_nodes=1, num_nodes_to_select=3),
    ),
    "bulyan": (made("bulyan", num_malicious_nodes=1), flower.Bulyan(**NODES, num_malicious_nodes=1)),
    "qfedavg": (made("qfedavg", q=1.5), flower.QFedAvg(client_learning_rate=0.25, q=1.5, **NODES)),
}


def test_every_built_in_strategy_is_compared() -> None:
    assert {spec.kind for spec, _ in BY_HAND.values()} == set(BUILT_IN_KINDS)
    assert len(BUILT_IN_KINDS) == 12


@pytest.mark.parametrize("name", BY_HAND)
def test_aggregates_are_flowers_bit_for_bit(name: str) -> None:
    spec, by_hand = BY_HAND[name]
    built = spec.build(COHORT)
    assert isinstance(built, type(by_hand))
    for ours, theirs in zip(models(built, 9), models(by_hand, 9), strict=True):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", BY_HAND)
def test_the_client_rate_is_the_cohorts(name: str) -> None:
    built = BY_HAND[name][0].build(COHORT)
    for attribute in ("eta_l", "client_learning_rate"):
        assert getattr(built, attribute, 0.25) == 0.25


def test_exactly_the_sampled_number_of_clients_trains() -> None:
    """Flower samples max(int(n * fraction), min_train_nodes) clients."""
    for num_clients in range(1, 301):
        for num_sampled in range(1, num_clients + 1):
            counts = node_counts(Cohort(num_clients, num_sampled, 0.1))
            assert max(int(num_clients * counts["fraction_train"]), counts["min_train_nodes"]) == num_sampled
            assert counts["min_available_nodes"] == counts["min_evaluate_nodes"] == num_clients


@pytest.mark.parametrize(("num_clients", "num_sampled"), [(1, 1), (49, 1), (10, 3), (7, 7)])
def test_configure_addresses_the_cohort(num_clients: int, num_sampled: int) -> None:
    claim_task_identity()
    built = made("fedavg").build(Cohort(num_clients, num_sampled, 0.1))
    arrays = ArrayRecord({"flat": Array(np.zeros(2, np.float32))})
    assert len(list(built.configure_train(1, arrays, ConfigRecord(), grid_of(num_clients)))) == num_sampled
    assert len(list(built.configure_evaluate(1, arrays, ConfigRecord(), grid_of(num_clients)))) == num_clients


def test_needs_follow_from_what_a_strategy_reads() -> None:
    """Those that read the mean alone get it merged; those that compare replies get one each."""
    merged = {kind for kind, (spec, _) in BY_HAND.items() if spec.needs().replies == "merged"}
    assert merged == {"fedavg", "fedavg, uniform", "fedprox", "fedavgm", "fedadagrad", "fedadam", "fedyogi"}
    assert BY_HAND["fedyogi"][0].needs().weighted_by == "num-clients"
    assert BY_HAND["fedadam"][0].needs() == EngineNeeds("flat", "merged", "num-examples", initial_loss=False)
    assert [kind for kind, (spec, _) in BY_HAND.items() if spec.needs().initial_loss] == ["qfedavg"]
    assert {spec.needs().arrays for spec, _ in BY_HAND.values()} == {"flat"}
    assert [kind for kind, (spec, _) in BY_HAND.items() if spec.client_algorithm() is not None] == ["fedprox"]
