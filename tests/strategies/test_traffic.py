"""Bytes a round by hand: a net of 53 parameters, four bytes each, to eight clients."""

from __future__ import annotations

import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.trials.record import Trial
from fedscout.strategies import StrategySpec
from tests.strategies.by_hand import SIZES, host_of, result_of
from tests.strategies.rounds import made

MODEL = 53 * 4
NUM_ROUNDS = 3


def run(host: ClientHost, strategy: StrategySpec, num_sampled: int = 5, merge_on_hosts: bool = True) -> Trial:
    return result_of(host, strategy, merge_on_hosts, num_sampled=num_sampled, num_rounds=NUM_ROUNDS)


@pytest.mark.parametrize("merge_on_hosts", [True, False])
@pytest.mark.parametrize(
    ("kind", "num_values"),
    [*((kind, 53) for kind in ("fedavg", "ditto", "fednova", "krum")), ("fedper", 35), ("local", 0)],
)
def test_a_model_goes_down_and_one_comes_up(host: ClientHost, kind: str, num_values: int, merge_on_hosts: bool) -> None:
    """What stays at home is not counted: of the net's two layers, 6·5 + 5 and 5·3 + 3, FedPer shares the first."""
    trial = run(host, made(kind), merge_on_hosts=merge_on_hosts)
    assert (trial.bytes_down, trial.bytes_up) == (5 * num_values * 4, 5 * num_values * 4)


@pytest.mark.parametrize("merge_on_hosts", [True, False])
def test_scaffold_s_are_twice_as_many(host: ClientHost, merge_on_hosts: bool) -> None:
    """Up in every round; down from the second on, as the server's control variate is 0 before."""
    trial = run(host, made("scaffold"), merge_on_hosts=merge_on_hosts)
    assert trial.bytes_up == 2 * 5 * MODEL
    assert trial.bytes_down == 5 * MODEL * (1 + 2 + 2) / 3


@pytest.mark.parametrize(("kind", "times"), [("fedavg", 1), ("scaffold", 2)])
def test_a_client_that_fails_is_sent_a_model_and_sends_none(kind: str, times: int) -> None:
    """One of five holds no rows."""
    trial = run(host_of(sizes=(*SIZES[:4], 0)), made(kind))
    assert trial.bytes_up == times * 4 * MODEL
    assert trial.bytes_down == 5 * MODEL * (1 if times == 1 else 5 / 3)
