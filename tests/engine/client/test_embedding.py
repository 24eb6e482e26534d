"""What detectors see of images."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import nn

from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import Embedding
from fedscout.engine.data.client import Answer, QueryInputs, RowAggregate, Samples
from fedscout.engine.data.federation import EmbeddingSource
from fedscout.engine.messages.calls import HostCall, Session
from fedscout.engine.messages.keys import FUNCTION_KEY
from fedscout.engine.models.flat import new_model
from fedscout.engine.seeds import integer
from tests.engine.federations import dense, uneven_federation


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


def test_seed_fixes_the_network() -> None:
    data = samples()
    first, again, other = (Embedding(EmbeddingSource(dense), seed).of(data).features for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-3


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
