"""Bytes a round by hand: a net of 53 parameters, four bytes each, to eight clients."""

from __future__ import annotations

import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.trials.record import Trial
from fedscout.strategies import (
    DittoSpec,
    FedAvgSpec,
    FedNovaSpec,
    FedPerSpec,
    KrumSpec,
    LocalOnlySpec,
    ScaffoldSpec,
    StrategySpec,
)
from tests.strategies.by_hand import SIZES, host_of, result_of

MODEL = 53 * 4
NUM_ROUNDS = 3


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return host_of()


def run(host: ClientHost, strategy: StrategySpec, num_sampled: int = 5, merge_on_hosts: bool = True) -> Trial:
    return result_of(host, strategy, merge_on_hosts, num_sampled=num_sampled, num_rounds=NUM_ROUNDS)


@pytest.mark.parametrize("strategy", [FedAvgSpec(), DittoSpec(), FedNovaSpec(), KrumSpec()], ids=lambda one: one.kind)
@pytest.mark.parametrize("merge_on_hosts", [True, False])
def test_a_model_goes_down_and_one_comes_up(host: ClientHost, strategy: StrategySpec, merge_on_hosts: bool) -> None:
    trial = run(host, strategy, merge_on_hosts=merge_on_hosts)
    assert (trial.bytes_down, trial.bytes_up) == (5 * MODEL, 5 * MODEL)


@pytest.mark.parametrize("merge_on_hosts", [True, False])
def test_scaffold_s_are_twice_as_many(host: ClientHost, merge_on_hosts: bool) -> None:
    """Up in every round; down from the second on, as the server's control variate is 0 before."""
    trial = run(host, ScaffoldSpec(), merge_on_hosts=merge_on_hosts)
    assert trial.bytes_up == 2 * 5 * MODEL
    assert trial.bytes_down == 5 * MODEL * (1 + 2 + 2) / 3


@pytest.mark.parametrize(
    ("strategy", "num_values"), [(FedPerSpec(), 35), (LocalOnlySpec(), 0)], ids=["fedper", "local"]
)
@pytest.mark.parametrize("merge_on_hosts", [True, False])
def test_what_stays_at_home_is_not_counted(
    host: ClientHost, strategy: StrategySpec, num_values: int, merge_on_hosts: bool
) -> None:
    """Of the net's two layers, 6·5 + 5 and 5·3 + 3."""
    trial = run(host, strategy, merge_on_hosts=merge_on_hosts)
    assert (trial.bytes_down, trial.bytes_up) == (5 * num_values * 4, 5 * num_values * 4)


@pytest.mark.parametrize(("strategy", "times"), [(FedAvgSpec(), 1), (ScaffoldSpec(), 2)], ids=["fedavg", "scaffold"])
def test_a_client_that_fails_is_sent_a_model_and_sends_none(strategy: StrategySpec, times: int) -> None:
    """One of five holds no rows."""
    trial = run(host_of(sizes=(*SIZES[:4], 0)), strategy)
    assert trial.bytes_up == times * 4 * MODEL
    assert trial.bytes_down == 5 * MODEL * (1 if times == 1 else 5 / 3)
