"""On a GPU itself: the core's results but for rounding, and the same bits for any number of hosts. See `make gpu`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from fedscout.engine.client.host import ClientHost
from fedscout.engine.config import HostDevice, torch_settings_kept
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FLOWER_CHOICES, spec_of
from tests.engine.federations import QUERIES, dense, dropping, normalised, uneven_federation, wide
from tests.engine.results import ray_result, started_hosts
from tests.engine.training.test_device_training import CASES, assert_same_bits, table_for, trained
from tests.engine.training.test_vectorised import TOLERANCE, TRAININGS
from tests.engine.trials.test_resume import assert_same

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a PyTorch that is built for it"),
]

GPU = HostDevice.gpu()


@pytest.fixture(autouse=True)
def _torch_as_it_was() -> Iterator[None]:
    with torch_settings_kept():
        yield


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TRAININGS)
def test_a_gpu_is_the_core(case: str, name: str) -> None:
    make, clients = CASES[case]
    one, other = (
        trained(ClientHost(make(), QUERIES, device), clients, TRAININGS[name]) for device in (GPU, HostDevice())
    )
    np.testing.assert_allclose(one.vectors, other.vectors, rtol=0, atol=TOLERANCE)
    assert one.num_steps == other.num_steps


@pytest.mark.parametrize("model", [dense, wide, normalised, dropping])
@pytest.mark.parametrize("chosen", [(0,), (0, 3), (0, 1, 3, 5)])
def test_a_client_has_its_bits_whoever_trains_beside_it(model: ModelFactory, chosen: Sequence[int]) -> None:
    host = ClientHost(uneven_federation(model), QUERIES, GPU)
    assert_same_bits(*(trained(host, clients, TRAININGS["epochs"]) for clients in (chosen, (0, 1, 3, 5))))


@pytest.mark.parametrize("name", ["plain", "momentum", "adam"])
def test_clients_of_a_table_are_those_of_the_core_whoever_trains_beside_them(name: str) -> None:
    training, (make, clients) = TRAININGS[name], CASES["dense"]
    table, host = table_for(training), ClientHost(make(), QUERIES, GPU)
    together, some = (trained(host, chosen, training, table=table) for chosen in (clients, clients[::2]))
    core = trained(ClientHost(make(), QUERIES), clients, training, table=table)
    np.testing.assert_allclose(together.vectors, core.vectors, rtol=0, atol=TOLERANCE)
    assert_same_bits(some, together)


@pytest.mark.ray
@pytest.mark.parametrize("num_hosts", [1, 2])
def test_hosts_that_share_a_gpu_give_the_bits_of_one(ray_session: None, num_hosts: int) -> None:
    federation, spec = uneven_federation(wide), spec_of(FLOWER_CHOICES["fedadam"])
    local = run_trial(spec, LocalGrid(ClientHost(federation, QUERIES, GPU), session=spec.session))
    with started_hosts(federation, num_hosts, device=GPU, gpu_share=1 / num_hosts) as hosts:
        assert hosts.facts.trained_on.startswith("cuda (")
        assert_same(ray_result(spec, hosts), local)
