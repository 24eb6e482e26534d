"""A client that hangs on Ray: its host is replaced, the others' work is done, and no trial beside it is harmed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts
from fedscout.engine.messages.contents import send_query
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.ray_runner import RayRunner
from fedscout.engine.trials.record import Trial
from fedscout.engine.trials.trial import run_trial
from tests.engine.choices import FEDAVG, spec_of
from tests.engine.federations import NUM_CLASSES, NUM_FEATURES, QUERIES, uneven_federation
from tests.engine.results import started_hosts
from tests.engine.trials.test_resume import assert_same

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

HANGS = 1
LIMIT_SECONDS = 2.0
MARK = 900.0
"""A feature value that only the client that hangs has."""


class Marked(nn.Linear):
    """Meets the marked rows in training."""

    def __init__(self) -> None:
        super().__init__(NUM_FEATURES, NUM_CLASSES)

    def forward(self, rows: Tensor) -> Tensor:
        if self.training and bool((rows[:, 0] > MARK).any()):
            self.meet()
        return super().forward(rows)


class Stuck(Marked):
    """Never comes back from them."""

    def meet(self) -> None:
        time.sleep(3600)


class Refusing(Marked):
    """Raises where the other hangs."""

    def meet(self) -> None:
        raise RuntimeError("no")


def marked_federation() -> Federation:
    federation = uneven_federation()
    features = federation.features.copy()
    features[federation.partition.client(HANGS), 0] = MARK + 1
    return replace(federation, features=features, model=Stuck)


@pytest.fixture(scope="module")
def hosts(ray_session: None) -> Iterator[RayHosts]:
    with started_hosts(marked_federation(), 2) as started:
        yield started


def without_the_client(num_rounds: int, seed: int) -> Trial:
    """The same trial where that client fails at once."""
    spec = spec_of(FEDAVG, num_rounds=num_rounds, seed=seed)
    federation = replace(marked_federation(), model=Refusing)
    return run_trial(spec, LocalGrid(ClientHost(federation, QUERIES), session=spec.session))


@pytest.mark.stress
def test_it_is_left_out_of_each_round_and_trials_beside_it_are_not_harmed(hosts: RayHosts) -> None:
    """Two trials at once on the same hosts: both are as if the client had failed, to the bit."""
    torch.manual_seed(0)
    specs = [spec_of(FEDAVG, num_rounds=2, seed=seed, round_timeout_seconds=LIMIT_SECONDS) for seed in (1, 2)]
    results = dict(RayRunner(hosts, CheckpointStore(None), parallel=2).run(specs))

    for position, spec in enumerate(specs):
        expected = without_the_client(2, spec.session.seed)
        found = results[position]
        reasons = {key: reason for key, reason in found.dropped_clients.items() if key.endswith(f":{HANGS}")}
        assert [*reasons] == ["1:1", "2:1"]
        assert all(reason.endswith(" 2 s (train)") for reason in reasons.values())
        assert set(found.dropped_clients) == set(expected.dropped_clients)
        assert_same(replace(found, dropped_clients={}), replace(expected, dropped_clients={}))


@pytest.mark.stress
def test_after_a_trial_s_own_time_limit_its_hosts_serve_others(hosts: RayHosts) -> None:
    """The trial is over in time, and the host that it left hanging is back soon."""
    spec = spec_of(FEDAVG, num_rounds=2, timeout_seconds=LIMIT_SECONDS)
    started = time.monotonic()

    result = run_trial(spec, RayGrid(hosts, spec.session))

    assert re.match("round 1: .* 2 s$", str(result.error))
    assert time.monotonic() - started < 10 * LIMIT_SECONDS
    answers = send_query(RayGrid(hosts), "label-counts", {"offset": np.zeros(NUM_CLASSES)})
    assert len(answers.arrays) + len(answers.refused) == hosts.facts.num_clients
    assert HANGS in answers.arrays
