"""Clients' own models: scored some at a time, with the same scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from fedscout.engine.client import host as host_module
from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import ClientAlgorithm, Clients
from fedscout.engine.messages.calls import HostCall, Session
from tests.engine.federations import ABLE, QUERIES, uneven_federation

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Own(ClientAlgorithm):
    """Scored with what each has kept; notes how many are scored together."""

    personal = True
    together: list[int] = field(default_factory=list)

    def scored(self, clients: Clients) -> Tensor:
        self.together.append(len(clients.states))
        return clients.kept("own", clients.received)


@pytest.mark.parametrize(("models", "together"), [(1, [1] * 6), (4, [4, 2]), (0.5, [1] * 6), (100, [6])])
def test_no_more_models_are_made_than_fit(models: float, together: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    host, generator = ClientHost(uneven_federation(), QUERIES), np.random.default_rng(3)
    vector = host.initial_vector(3)
    states: dict[int, Any] = {
        client: {"own": generator.normal(size=vector.shape).astype(np.float32)} for client in ABLE
    }

    def scores(algorithm: Own) -> Any:
        config = {"seed": 3, "server-round": 1}
        call = HostCall(tuple(ABLE), Session(seed=3, algorithm=algorithm), config, vector, states=states)
        return host.evaluate(call).own

    at_once, apart = Own(), Own()
    expected = scores(at_once)
    monkeypatch.setattr(host_module, "MODELS_BYTES_TOGETHER", int(models * vector.nbytes))
    assert scores(apart) == expected
    assert (at_once.together, apart.together) == ([6, 1], [*together, 1])  # one's rows are corrupted
    assert len({score.loss_sum for score in expected.values()}) == 6
