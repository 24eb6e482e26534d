"""A host's answers depend on the call and on the federation, not on what the host did before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from fedscout.detectors.feature_skew import FEATURE_MOMENTS
from fedscout.detectors.queries import CLIENT_QUERIES, MEAN_OUTPUT
from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import Embedding, products_on
from fedscout.engine.config import HostDevice
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Answer, QueryInputs, RowAggregate, Samples
from fedscout.engine.data.federation import EmbeddingSource, Federation
from fedscout.engine.data.split import split_client
from fedscout.engine.grid.replies import base_config
from fedscout.engine.messages.calls import HostCall, QueryResults, Session
from fedscout.engine.messages.contents import train_config
from fedscout.engine.messages.keys import FUNCTION_KEY
from fedscout.engine.models.flat import new_model
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import integer
from tests.engine.federations import (
    CORRUPTED,
    QUERIES,
    SIZES,
    counting,
    dense,
    dropping,
    normalised,
    plain_model,
    uneven_federation,
)
from tests.engine.training.test_device_training import images

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


# -- What detectors see of images --------------------------------------------------------------------------------------


def rows_of(inputs: QueryInputs) -> Answer:
    features = np.concatenate([features for features, _ in inputs.data.chunks()])
    outputs = np.concatenate(list(inputs.outputs(inputs.arrays["model"].astype(np.float32))))
    labels = inputs.data.labels[inputs.data.rows]
    values = {"features": features, "labels": labels, "outputs": outputs}
    return {name: RowAggregate(value, len(labels)) for name, value in values.items()}


def samples() -> Samples:
    return uneven_federation().client_data(0).own


def test_the_penultimate_layer_s_outputs_are_the_features() -> None:
    """relu(W x + b) of the first layer, computed by hand."""
    data = samples()
    embedded = Embedding(EmbeddingSource(dense), seed=4).of(data)
    module = new_model(dense, integer(4, "embedding")).module
    features = torch.from_numpy(data.features[data.rows])
    expected = torch.relu(features @ module[0].weight.T + module[0].bias)
    np.testing.assert_allclose(embedded.features, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(embedded.labels[embedded.rows], data.labels[data.rows])
    assert len(embedded) == len(data)


class Unflattening(nn.Unflatten):
    """The engine binds parameters to one vector, so that a module without any gets one that it does not use."""

    def __init__(self) -> None:
        super().__init__(1, (2, 3))
        self.unused = nn.Parameter(torch.zeros(1))


def test_an_extractor_s_own_output_counts_and_is_flattened() -> None:
    data = samples()
    embedded = Embedding(EmbeddingSource(Unflattening, penultimate=False), seed=0).of(data)
    np.testing.assert_array_equal(embedded.features, data.features[data.rows])


def test_hosts_answer_queries_on_embeddings_but_run_models_on_rows() -> None:
    plain = uneven_federation()
    queries = {"rows": rows_of}
    asked = ClientHost(replace(plain, embedding=EmbeddingSource(dense)), queries)
    vector = asked.initial_vector(0)
    call = HostCall((0, 1), Session(), {FUNCTION_KEY: "rows"}, arrays={"model": vector})
    embedded, raw = asked.query(call), ClientHost(plain, queries).query(call)
    assert embedded.failures == raw.failures == {}
    for with_embedding, without in zip(embedded.arrays, raw.arrays, strict=True):
        assert with_embedding["features"].shape[1] == 5
        assert without["features"].shape[1] == 6
        np.testing.assert_array_equal(with_embedding["labels"], without["labels"])
        np.testing.assert_array_equal(with_embedding["outputs"], without["outputs"])


# -- Detectors' queries to a host on a device, here the core in a GPU's place: what a core says, but for rounding ------


IN_LANES = HostDevice("cpu", in_lanes=True)


def asked(federation: Federation, device: HostDevice, name: str) -> QueryResults:
    host = ClientHost(federation, CLIENT_QUERIES, device)
    arrays = {"model": host.initial_vector(3)} if name == MEAN_OUTPUT else {}
    clients = tuple(range(federation.num_clients))
    return host.query(HostCall(clients, Session(), {FUNCTION_KEY: name, "max_features": 1000}, arrays=arrays))


def embedded() -> Federation:
    federation = images()
    return replace(federation, embedding=EmbeddingSource(federation.model))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [FEATURE_MOMENTS, MEAN_OUTPUT])
@pytest.mark.parametrize("make", [uneven_federation, images, embedded])
def test_answers_are_those_of_a_core(make: Callable[[], Federation], name: str) -> None:
    there, here = (asked(make(), device, name) for device in (IN_LANES, HostDevice()))
    assert there.clients == here.clients
    assert len(there.clients) >= 4
    for one, other in zip(there.arrays, here.arrays, strict=True):
        assert one.keys() == other.keys()
        for part in one:
            np.testing.assert_allclose(one[part], other[part], rtol=1e-5, atol=1e-6)


def test_products_are_of_float64() -> None:
    """(1 + 2^-30)² = 1 + 2^-29 + 2^-60, of which float32 would keep 1."""
    import torch

    rows = np.full((1, 1), 1 + 2.0**-30)
    assert products_on(torch.device("cpu"))(rows)[0, 0] == 1 + 2.0**-29
