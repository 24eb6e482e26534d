"""Policies in trials: they are told what they ask for, and choose as many as train in a round."""

from __future__ import annotations

from typing import Any

import pytest

from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.engine.client.host import ClientHost
from fedscout.strategies import FedAvgSpec
from fedscout.strategies.selection.table import parse_selection
from tests.engine.federations import normalised, uneven_federation
from tests.strategies.by_hand import SIZES, result_of
from tests.strategies.selection.test_policies import CHOICES

NUM_SAMPLED, NUM_ROUNDS = 3, 5


@pytest.fixture(scope="module")
def host() -> ClientHost:
    return ClientHost(uneven_federation(normalised, SIZES, min_release=1), CLIENT_QUERIES)


@pytest.mark.parametrize("document", CHOICES, ids=str)
def test_so_many_clients_train_in_each_round(host: ClientHost, document: dict[str, Any]) -> None:
    spec = parse_selection(document)
    trial = result_of(host, FedAvgSpec(), num_sampled=NUM_SAMPLED, num_rounds=NUM_ROUNDS, selection=spec)
    assert sum(trial.client_rounds) == NUM_SAMPLED * NUM_ROUNDS
