"""Detectors' queries to a host on a device, here the core in a GPU's place: what a core says, but for rounding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from fedscout.detectors.feature_skew import FEATURE_MOMENTS
from fedscout.detectors.queries import CLIENT_QUERIES, MEAN_OUTPUT
from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import products_on
from fedscout.engine.config import HostDevice
from fedscout.engine.data.federation import EmbeddingSource, Federation
from fedscout.engine.messages.calls import HostCall, QueryResults, Session
from fedscout.engine.messages.keys import FUNCTION_KEY
from tests.engine.federations import uneven_federation
from tests.engine.training.test_device_training import images

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
