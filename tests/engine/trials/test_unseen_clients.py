"""Clients that join after the training: they are only scored, and change nothing for the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fedscout.engine.contracts.algorithm import UpdateAttack
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.split import split_client
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import client_of
from fedscout.engine.messages.keys import FUNCTION_KEY
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.scenarios.features import LittleIsEnough
from tests.engine.choices import FEDAVG, Choice, Variates, rounds_of, spec_of
from tests.engine.federations import QUERIES, dense, plain_model, uneven_federation
from tests.engine.grid.test_local_grid import WatchedGrid, messages
from tests.engine.results import completed, local_result, ray_result, started_hosts
from tests.engine.trials.test_resume import assert_all_same

UNSEEN = frozenset((1, 5))
LAST = frozenset((5, 6))
"""Without them the rows are still more than 64, so exact sums have the same unit."""


def without(federation: Federation, unseen: frozenset[int]) -> Federation:
    return replace(federation, unseen=unseen)


def cut(federation: Federation, num_clients: int) -> Federation:
    """Return the federation of the first clients alone, over the same rows."""
    rows, offsets = federation.partition.rows, federation.partition.offsets
    kept = Partition(rows[: offsets[num_clients]], offsets[: num_clients + 1])
    transforms = {client: steps for client, steps in federation.transforms.items() if client < num_clients}
    return replace(federation, partition=kept, transforms=transforms)


def run(federation: Federation, choice: Choice = FEDAVG, **changes: Any) -> Trial:
    return completed(spec_of(choice, num_sampled=federation.num_seen, **changes), federation)


def accuracy(federation: Federation, vector: Any, clients: Sequence[int]) -> float:
    """Return the share of some clients' test rows that a plain model gets right."""
    net, correct, total = plain_model(dense, vector).eval(), 0, 0
    for client in clients:
        own = federation.client_data(client).own
        rows = own.rows[split_client(own.labels[own.rows], 3, client, 0.2).test]
        outputs = net(torch.from_numpy(own.features[rows]))
        correct += int((outputs.argmax(dim=1).numpy() == own.labels[rows]).sum())
        total += len(rows)
    return correct / total


@pytest.mark.parametrize("sampled", [2, 5])
def test_they_are_sent_no_model_to_train_and_are_scored_beside_the_others(sampled: int) -> None:
    federation = without(uneven_federation(), UNSEEN)
    spec = spec_of(replace(FEDAVG, algorithm=Variates()), num_sampled=sampled)
    grid = WatchedGrid(federation, QUERIES, session=spec.session)
    trial = run_trial(spec, grid)
    assert trial.status == "completed"
    trained = [call for method, call in grid.calls_made if method == "train"]
    assert len(trained) == spec.num_rounds
    assert not UNSEEN & {client for call in trained for client in call.clients}
    assert not UNSEEN & grid.client_states.keys()
    assert all(set(call.evaluated) in (set(), set(range(7))) for call in trained)
    assert trial.client == (0, 2, 3, 4, 6)


def test_they_are_no_nodes_of_the_grid() -> None:
    grid = LocalGrid(without(uneven_federation(), UNSEEN), QUERIES)
    assert [client_of(node) for node in grid.get_node_ids()] == [0, 2, 3, 4, 6]


@pytest.mark.parametrize("message_type", ["train", "query", "evaluate"])
def test_a_message_to_one_of_them_is_refused(message_type: str) -> None:
    grid = LocalGrid(without(uneven_federation(), UNSEEN), QUERIES)
    with pytest.raises(ValueError, match=r"\bnode 7\b"):
        grid.push_messages(messages(grid, message_type, [5], config={FUNCTION_KEY: "label-counts"}))


@pytest.mark.parametrize("choice", [FEDAVG, replace(FEDAVG, algorithm=Variates())], ids=["plain", "with states"])
def test_the_others_train_as_if_they_did_not_exist(choice: Choice) -> None:
    """To the last bit; and the score of new clients is that of the final model on their rows."""
    federation = uneven_federation()
    with_them, alone = run(without(federation, LAST), choice), run(cut(federation, 5), choice)
    assert rounds_of(with_them) == rounds_of(alone)
    assert np.array_equal(with_them.vector, alone.vector)
    assert with_them.client_accuracy == alone.client_accuracy
    assert with_them.bytes_up == alone.bytes_up
    assert alone.round_new_client_accuracy is None
    assert with_them.round_new_client_accuracy[-1] == accuracy(federation, with_them.vector, sorted(LAST))


def test_an_attacker_has_no_accomplice_among_them() -> None:
    """The model of one who never trains is nobody's to know."""

    def attacked(*colluders: int) -> Federation:
        attack: tuple[UpdateAttack, ...] = (LittleIsEnough(colluders, 1.5),)
        return replace(uneven_federation(), attacks={0: attack}, unseen=frozenset((1,)))

    assert np.array_equal(run(attacked(0, 1, 3)).vector, run(attacked(0, 3)).vector)
    assert not np.array_equal(run(attacked(0, 1, 3)).vector, run(attacked(0)).vector)


def test_new_clients_without_rows_to_score_are_told() -> None:
    spec = spec_of(FEDAVG, num_sampled=6)
    federation = without(uneven_federation(), frozenset((4,)))
    trial = local_result(spec, federation)
    assert trial.error is not None
    assert {"unseen", "(test)"} <= {*trial.error.split()}


@pytest.mark.stress
@pytest.mark.ray
def test_two_hosts_give_the_local_grid_s_bits(ray_session: None) -> None:
    federation = without(uneven_federation(), UNSEEN)
    spec = spec_of(replace(FEDAVG, algorithm=Variates()), num_sampled=4)
    with started_hosts(federation, 2) as hosts:
        assert_all_same(ray_result(spec, hosts), local_result(spec, federation))
