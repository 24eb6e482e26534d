"""A host's answers depend on the call and on the federation, not on what the host did before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedscout.engine.client.host import SEEDS_KEPT, ClientHost
from fedscout.engine.contracts.algorithm import TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.split import split_client
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages.calls import HostCall, Session
from fedscout.engine.messages.contents import train_config
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import integer, stream
from fedscout.engine.training.algorithm_runs import train_client
from fedscout.engine.training.loop import RowsWork
from tests.engine.federations import (
    CORRUPTED,
    EMPTY,
    QUERIES,
    SIZES,
    counting,
    dense,
    dropping,
    normalised,
    plain_model,
    uneven_federation,
)

TRAINING = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.1)


def train_call(host: ClientHost, clients: tuple[int, ...], server_round: int = 1, backend: str = "auto") -> HostCall:
    config = train_config(TRAINING, 3, server_round, "individual")
    session = Session(seed=3, training=TRAINING, backend=backend)
    return HostCall(clients, session, config, host.initial_vector(3))


def evaluate_call(host: ClientHost, clients: tuple[int, ...], session: Session) -> HostCall:
    return HostCall(clients, session, base_config(session, 1), host.initial_vector(3))


@pytest.mark.parametrize("backend", ["auto", "loop"])
@pytest.mark.parametrize("factory", [dense, normalised, counting, dropping])
def test_training_does_not_depend_on_the_host_s_history(factory: ModelFactory, backend: str) -> None:
    """One host serves three clients in turn; three fresh hosts serve one each."""
    clients = (0, 1, 5)
    host = ClientHost(uneven_federation(factory), QUERIES)
    host.train(train_call(host, (1, 0), server_round=7))
    together = host.train(train_call(host, clients, backend=backend))

    assert together.failures == {}
    for client, vector in zip(clients, together.vectors, strict=True):
        torch.rand(client + 1)
        fresh = ClientHost(uneven_federation(factory), QUERIES)
        alone = fresh.train(train_call(fresh, (client,), backend=backend))
        assert np.array_equal(alone.vectors[0], vector)


def test_dropout_draws_anew_in_every_round_and_for_every_seed() -> None:
    """With one batch of all rows the order of rows does not matter; what differs is the mask."""
    host = ClientHost(uneven_federation(dropping), QUERIES)
    vector = host.initial_vector(0)
    whole = LocalTraining(batch_size=10**6)
    session = Session(test_fraction=0.0)

    def trained(seed: int, server_round: int) -> np.ndarray:
        config = train_config(whole, seed, server_round, "individual")
        vectors = host.train(HostCall((0,), session, config, vector)).vectors
        return vectors[0]

    assert np.array_equal(trained(0, 1), trained(0, 1))
    assert np.abs(trained(0, 1) - trained(0, 2)).max() > 1e-3
    assert np.abs(trained(0, 1) - trained(1, 1)).max() > 1e-3


def test_torch_s_generator_is_put_back() -> None:
    host = ClientHost(uneven_federation(dropping), QUERIES)
    before = torch.get_rng_state()

    host.train(train_call(host, (0, 1)))

    assert torch.equal(torch.get_rng_state(), before)


def test_a_client_trains_on_its_training_part_with_the_round_s_batches(host: ClientHost) -> None:
    call = train_call(host, (CORRUPTED,), server_round=4, backend="loop")
    data = uneven_federation().client_data(CORRUPTED).own
    split = split_client(data.labels[data.rows], 3, CORRUPTED, 0.2)
    rows = type(data)(data.features, data.labels, data.rows[split.train])
    from fedscout.engine.models.flat import new_model

    asked = TrainRequest(torch.from_numpy(call.vector), TRAINING)
    update = train_client(new_model(dense, 0), asked, RowsWork(CORRUPTED, stream(3, "batches", 4, CORRUPTED), {}, rows))
    results = host.train(replace(call, session=replace(call.session, backend="loop")))

    assert np.array_equal(results.vectors[0], update.vector)
    assert results.num_examples == [len(split.train)]


def test_the_initial_model_is_the_seed_s(host: ClientHost) -> None:
    from fedscout.engine.models.flat import new_model

    assert np.array_equal(host.initial_vector(9), new_model(dense, integer(9, "initial-model")).vector.numpy())
    assert not np.array_equal(host.initial_vector(9), host.initial_vector(10))


@pytest.mark.parametrize("part", ["test", "validation"])
def test_evaluation_reads_the_part_asked_for_in_both_views(host: ClientHost, part: str) -> None:
    """The same rows of a client, as it has them and as they were before corruption."""
    session = Session(seed=3, evaluate_on=part, validation_fraction=0.25)
    results = host.evaluate(evaluate_call(host, tuple(range(len(SIZES))), session))
    module = plain_model(dense, host.initial_vector(3)).eval()

    for client, score in results.own.items():
        clean = results.clean.get(client, score)
        data = uneven_federation().client_data(client)
        positions = getattr(split_client(data.own.labels[data.own.rows], 3, client, 0.2, 0.25), part)
        correct = []
        for view in (data.own, data.clean):
            features, labels = view.take(positions)
            correct.append(int((module(torch.from_numpy(features)).argmax(1).numpy() == labels).sum()))
        assert score.num_examples == clean.num_examples == len(positions)
        assert [score.num_correct, clean.num_correct] == correct
        assert (score.loss_sum == clean.loss_sum) == (client != CORRUPTED or not len(positions))
    assert sorted(results.own) == list(range(len(SIZES)))
    assert list(results.clean) == [CORRUPTED]


def test_old_splits_are_forgotten_and_drawn_again_alike(host: ClientHost) -> None:
    """More seeds than are kept; the first one's split comes out the same."""

    def losses(seed: int) -> list[float]:
        results = host.evaluate(evaluate_call(host, (0, 1), Session(seed=seed)))
        return [score.loss_sum for score in results.own.values()]

    first = losses(0)
    others = [losses(seed) for seed in range(1, SEEDS_KEPT + 3)]

    assert losses(0) == first
    assert any(other != first for other in others)


def test_facts(host: ClientHost) -> None:
    facts = host.facts()

    assert facts.num_clients == 7
    assert facts.client_rows.tolist() == list(SIZES)
    assert facts.num_classes == 3
    assert facts.layout.size == 53
    assert facts.corrupted_clients == (CORRUPTED,)
    assert SIZES[EMPTY] == 0
