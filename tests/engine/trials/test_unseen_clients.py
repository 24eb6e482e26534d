"""Who is scored by which model: clients that join after the training, a few of many, and a model a group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import UpdateAttack
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.split import split_client
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.selection import scored_clients
from fedscout.engine.messages.calls import Session
from fedscout.engine.messages.contents import (
    flat_record,
    metrics_of,
    read_array,
    several_models,
    view_record,
)
from fedscout.engine.messages.keys import FLAT_KEY, FUNCTION_KEY
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from fedscout.experiments.scenarios.features import LittleIsEnough
from tests.engine.choices import FEDAVG, Choice, Variates, rounds_of, spec_of
from tests.engine.federations import QUERIES, dense, plain_model, uneven_federation
from tests.engine.grid.test_local_grid import WatchedGrid, messages
from tests.engine.results import completed, local_result
from tests.engine.trials.test_resume import assert_going_on

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


# -- Where few of many clients score the models: they are the same in every round, and training is as it would be ------


def scored_run(federation: Federation, num_scored: int | None, choice: Choice = FEDAVG) -> Trial:
    return completed(spec_of(choice, num_sampled=federation.num_seen, num_scored=num_scored), federation)


@pytest.mark.parametrize("choice", [FEDAVG, replace(FEDAVG, algorithm=Variates())], ids=["plain", "with states"])
def test_their_scores_are_those_that_they_have_among_all(choice: Choice) -> None:
    few, all_of_them = scored_run(uneven_federation(), 4, choice), scored_run(uneven_federation(), None, choice)

    assert np.array_equal(few.vector, all_of_them.vector)
    assert len(few.client) == 4
    among_all = dict(zip(all_of_them.client, all_of_them.client_accuracy, strict=True))
    assert few.client_accuracy == tuple(among_all[client] for client in few.client)
    weights = np.array(few.client_num_examples)
    assert few.round_accuracy[-1] == pytest.approx(np.dot(few.client_accuracy, weights) / weights.sum())


@pytest.mark.parametrize("num_scored", [7, 1000])
def test_as_many_as_there_are_is_all(num_scored: int) -> None:
    assert rounds_of(scored_run(uneven_federation(), num_scored)) == rounds_of(scored_run(uneven_federation(), None))


def test_nobody_else_scores_in_any_round() -> None:
    spec = spec_of(FEDAVG, num_scored=2, num_rounds=4)
    grid = WatchedGrid(uneven_federation(), QUERIES, session=spec.session)
    trial = run_trial(spec, grid)

    calls = [(call.clients if method == "evaluate" else call.evaluated) for method, call in grid.calls_made]
    assert [{*clients} for clients in calls if clients] == [{*trial.client}] * 4


def test_clients_that_join_later_are_drawn_apart() -> None:
    trial = scored_run(replace(uneven_federation(), unseen=UNSEEN), 2)

    assert len(trial.client) == 2
    assert not UNSEEN & {*trial.client}
    assert trial.round_new_client_accuracy is not None


@pytest.mark.parametrize(("least", "able"), [(1, {0, 1, 3, 5, 6}), (4, {0, 5, 6})])
def test_nobody_is_drawn_who_has_no_rows_to_be_scored_on(least: int, able: set[int]) -> None:
    """Of so many rows each a fifth is tested on; of one row there is none, and fewer than the least abstain."""
    facts = LocalGrid(uneven_federation(), QUERIES).facts
    facts = replace(facts, client_rows=np.array([40, 17, 1, 5, 0, 20, 33]), least_training_rows=least)
    drawn = [scored_clients(facts, Session(seed=seed, num_scored=2)) for seed in range(30)]
    assert {len(clients) for clients in drawn if clients is not None} == {2}
    assert {client for clients in drawn if clients is not None for client in clients.tolist()} == able


def test_the_seed_draws_them() -> None:
    facts = LocalGrid(uneven_federation(), QUERIES).facts
    drawn = [scored_clients(facts, Session(seed=seed, num_scored=3)).tolist() for seed in (0, 0, 1, 2, 3)]

    assert drawn[0] == drawn[1]
    assert len({tuple(clients) for clients in drawn}) > 1
    assert all(clients == sorted({*clients}) and len(clients) == 3 for clients in drawn)
    assert scored_clients(facts, Session()) is None


def test_a_strategy_that_evaluates_others_is_answered_by_them() -> None:
    """Not from the scores of those few, which the grid knows."""
    grid = LocalGrid(uneven_federation(), QUERIES, session=Session(num_scored=2))
    arrays = flat_record(grid.initial_vector(0))
    known = {*grid.evaluate_all(arrays).clients}
    replies = list(grid.send_and_receive(messages(grid, "evaluate", arrays=arrays)))

    assert len(known) == 2
    assert len(replies) == 7
    alone = LocalGrid(uneven_federation(), QUERIES).evaluate_all(arrays)
    assert [metrics_of(reply)["accuracy"] for reply in replies] == alone.accuracies.tolist()


# -- A strategy with a model for each group of clients: who is scored by what, with any grid, and through a checkpoint


GROUP = np.array([0, 1, 1, 0, 0, 2, 1])


class Shifted(FedAvg):
    """FedAvg, whose model three groups use as it is, a little larger, and with another sign."""

    factors = np.array([1, 1.1, -1], np.float32)[:, None]
    group = GROUP

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        flat = read_array(arrays[FLAT_KEY])
        record = view_record({FLAT_KEY: flat[0] if flat.ndim == 2 else flat})
        return super().configure_train(server_round, record, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, Any]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return several_models(read_array(arrays[FLAT_KEY]) * self.factors, self.group), metrics


CHOICE = Choice(Shifted)


def test_each_client_is_scored_under_its_group_s_model(host: ClientHost) -> None:
    spec = spec_of(CHOICE)
    trial = local_result(spec, host)
    assert trial.error is None
    assert trial.vector.shape == (3, 53)
    for group, vector in enumerate(trial.vector):
        alone = LocalGrid(host, session=spec.session).evaluate_all(flat_record(vector))
        for client in np.flatnonzero(group == GROUP):
            assert trial.client_accuracy[client] == alone.accuracies[client]
            assert trial.client_clean_accuracy[client] == alone.clean.accuracies[client]
    assert trial.round_accuracy[-1] == pytest.approx(
        np.dot(trial.client_accuracy, trial.client_num_examples) / sum(trial.client_num_examples), rel=1e-12
    )
    (note,) = trial.notes
    assert note.endswith(" 0, 3-4; 1-2, 6; 5")


def test_a_group_that_all_are_in_is_scored_as_one_model(host: ClientHost) -> None:
    plain, shifted = (spec_of(choice, num_sampled=4) for choice in (Choice(FedAvg), CHOICE))
    expected, found = (local_result(spec, host) for spec in (plain, shifted))
    first = GROUP == 0  # its model is FedAvg's
    assert np.array(found.client_accuracy)[first].tolist() == np.array(expected.client_accuracy)[first].tolist()
    np.testing.assert_array_equal(found.vector[0], expected.vector)


@pytest.mark.parametrize("algorithm", [None, Variates()])
def test_a_resumed_trial_is_an_uninterrupted_one(host: ClientHost, tmp_path: Path, algorithm: Any) -> None:
    assert_going_on(spec_of(Choice(Shifted, algorithm=algorithm), num_rounds=4), host, tmp_path, stopped_in=3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"factors": np.array([[1], [np.inf], [1]], np.float32)}, "diverged"),
        ({"group": np.append(GROUP, 0)}, "ValueError: group"),
    ],
)
def test_models_that_can_t_be_used_fail_the_trial(host: ClientHost, changes: dict[str, Any], reason: str) -> None:
    spec = spec_of(Choice(type("Unusable", (Shifted,), changes)))
    trial = local_result(spec, host)
    assert (trial.status, trial.vector, rounds_of(trial)) == ("failed", None, [])
    assert reason in str(trial.error)
