"""A policy chooses for every strategy, whatever it compares, keeps or groups, or is refused with the reason."""

from __future__ import annotations

import numpy as np
import pytest

from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.engine.client.host import ClientHost
from fedscout.engine.messages.calls import ClientTable, Cohort
from fedscout.engine.seeds import stream
from fedscout.strategies import CHOSEN_BY_NAME_KINDS, FedAvgSpec, parse_strategy
from fedscout.strategies.selection.bandits import FlashSpec
from fedscout.strategies.selection.oort import PyramidFLSpec
from fedscout.strategies.selection.policies import RandomSpec, SelectionSpec
from fedscout.strategies.table import BUILT_IN_KINDS
from tests.engine.federations import normalised, uneven_federation, with_server_rows
from tests.strategies.by_hand import SIZES, result_of

NUM_SAMPLED, NUM_ROUNDS = 5, 3
KINDS = [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS, "fedadam+fedprox"]

FITTING = {"bulyan": {"num_malicious_nodes": 0}, "fedavgm": {"server_momentum": 0.1}}
"""Parameters that fit five clients, and a momentum that carries no running variance of batch norm below zero."""


UNFIT = {"dp_fedavg": "drawn uniformly", "fedbuff": "idle clients"}
"""Strategies that no policy chooses for, and what they say."""


@pytest.fixture(scope="module")
def host() -> ClientHost:
    federation = uneven_federation(normalised, SIZES, min_release=1)
    return ClientHost(with_server_rows(federation, labelled=True), CLIENT_QUERIES)


@pytest.mark.sampled(12)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exactly_the_chosen_clients_train(host: ClientHost, kind: str) -> None:
    cohort = Cohort(len(SIZES), NUM_SAMPLED, 0.1, server_rows=100, server_labels=True, chosen=True)
    if kind in UNFIT:
        assert UNFIT[kind] in parse_strategy(kind).faults(cohort)[0]
        return
    spec = parse_strategy({"kind": kind, **FITTING.get(kind, {})}, cohort)
    trial = result_of(host, spec, num_sampled=NUM_SAMPLED, num_rounds=NUM_ROUNDS, selection=RandomSpec())
    assert sum(trial.client_rounds) == NUM_SAMPLED * NUM_ROUNDS
    assert max(trial.client_rounds) <= NUM_ROUNDS
    assert not trial.dropped_clients


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fedavg", "krum", "scaffold", "fedbn", "communities"])
@pytest.mark.parametrize("policy", [FlashSpec(), PyramidFLSpec()], ids=str)
def test_policies_that_measure_and_assign_choose_for_unlike_strategies(
    host: ClientHost, kind: str, policy: SelectionSpec
) -> None:
    """FLASH has everybody measure, and all train in its first round; PyramidFL has clients withhold tensors."""
    cohort = Cohort(len(SIZES), NUM_SAMPLED, 0.1, chosen=True)
    spec = parse_strategy(kind, cohort)
    trial = result_of(host, spec, num_sampled=NUM_SAMPLED, num_rounds=NUM_ROUNDS, selection=policy)
    first = len(SIZES) if isinstance(policy, FlashSpec) else NUM_SAMPLED
    assert sum(trial.client_rounds) == first + NUM_SAMPLED * (NUM_ROUNDS - 1)
    assert max(trial.client_rounds) <= NUM_ROUNDS
    assert not trial.dropped_clients
    assert trial.round_accuracy[-1] > 0
    apart = result_of(host, spec, False, num_sampled=NUM_SAMPLED, num_rounds=NUM_ROUNDS, selection=policy)
    assert (apart.client_rounds, apart.round_accuracy) == (trial.client_rounds, trial.round_accuracy)


def test_all_strategies_meet_the_same_choice(host: ClientHost) -> None:
    rounds = {
        result_of(host, parse_strategy(kind), selection=RandomSpec()).client_rounds
        for kind in ("fedavg", "scaffold", "fedmedian")
    }
    assert len(rounds) == 1


def test_with_everybody_asked_there_is_nothing_to_choose() -> None:
    (fault,) = RandomSpec().faults(Cohort(len(SIZES), len(SIZES), 0.1))
    assert (fault.key, fault.given) == ("selection.kind", "training.fraction_train that selects 8 of 8")


def test_each_client_is_as_likely_as_another(host: ClientHost) -> None:
    """400 rounds of 5 of 8: each trains in 250 of them on average, with a deviation below 10."""
    policy = RandomSpec().build(Cohort(len(SIZES), NUM_SAMPLED, 0.1))
    table = ClientTable(np.arange(8), np.array(SIZES), np.zeros(8))
    counts = np.zeros(8)
    for server_round in range(1, 401):
        counts[policy.choose(server_round, table, 5, stream(0, "selection", server_round))] += 1
    assert counts.sum() == 2000
    assert abs(counts - 250).max() < 40
    assert result_of(host, FedAvgSpec(), selection=RandomSpec(), num_rounds=1).selection == "random"
