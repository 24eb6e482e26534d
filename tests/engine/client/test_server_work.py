"""Work on the server's rows: the model as functions, one answer on any grid, failures that are told."""

from __future__ import annotations

import importlib
import pickle
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedscout.engine.client.updates import ServerModel
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import TrialError
from fedscout.engine.grid import host_grid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts
from fedscout.engine.messages.calls import Arrays, ServerContext, ServesWork, Session
from fedscout.engine.models.flat import new_model
from fedscout.engine.seeds import stream
from tests.engine.federations import dense, dropping, normalised, plain_model, uneven_federation
from tests.engine.federations import with_server_rows as with_rows
from tests.engine.grid.test_hanging import OneByOne
from tests.engine.grid.test_local_grid import WatchedGrid
from tests.engine.results import started_hosts
from tests.ray_processes import NUM_HOSTS

SESSION = Session(seed=3)


@dataclass(frozen=True)
class Steps:
    """Plain gradient descent on drawn rows; also says what it drew."""

    num_steps: int = 3

    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        vector = torch.from_numpy(np.array(arrays["model"]))
        for _ in range(self.num_steps):
            rows = context.generator.permutation(context.num_rows)[:20]
            labels = context.labels[rows]
            _, gradient = context.gradient(vector, lambda out, y=labels: nn.functional.cross_entropy(out, y), rows)
            vector[: context.layout.num_trainable] -= 0.1 * gradient
        return {"model": vector.numpy(), "outputs": context.outputs(vector).numpy(), "drawn": rows}


@dataclass(frozen=True)
class Fails:
    def run(self, context: ServerContext, arrays: Arrays) -> Arrays:
        raise ArithmeticError(f"no way with {sorted(arrays)}")


def federation_of(model: Any = dense, labelled: bool = True) -> Federation:
    return with_rows(uneven_federation(model), labelled=labelled)


def context_of(model: Any, num_rows: int = 60, labelled: bool = True) -> ServerContext:
    federation = with_rows(uneven_federation(model), num_rows, labelled)
    return ServerModel.of(federation, new_model(model, seed=1), np.random.default_rng(0))


@pytest.mark.parametrize("model", [dense, normalised, dropping])
@pytest.mark.parametrize("rows", [None, np.array([5, 0, 41])])
def test_outputs_and_gradients_are_those_of_the_plain_module(model: Any, rows: Any) -> None:
    """In evaluation mode, in float64 by autograd."""
    context = context_of(model)
    vector = new_model(model, seed=9).vector.clone()
    module = plain_model(model, vector.numpy()).double().eval()
    server = federation_of(model).server
    chosen = np.arange(60) if rows is None else rows
    expected = module(torch.from_numpy(server.features[chosen]).double())
    np.testing.assert_allclose(context.outputs(vector, rows), expected.detach(), rtol=0, atol=1e-6)
    labels = torch.from_numpy(server.labels[chosen])
    loss = nn.functional.cross_entropy(expected, labels)
    loss.backward()  # type: ignore[no-untyped-call]
    before = vector.clone()
    value, gradient = context.gradient(vector, lambda outputs: nn.functional.cross_entropy(outputs, labels), rows)
    by_hand = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
    assert value == pytest.approx(loss.item(), abs=1e-6)
    np.testing.assert_allclose(gradient, by_hand, rtol=0, atol=1e-6)
    assert torch.equal(vector, before)


def test_random_numbers_are_those_of_seed_and_round() -> None:
    grid = LocalGrid(federation_of(), session=SESSION)
    model = {"model": grid.initial_vector(3)}
    drawn = {}
    for server_round in (1, 2):
        grid.server_round = server_round
        first, second = (grid.serve(Steps(1), model) for _ in range(2))
        assert all(np.array_equal(first[name], second[name]) for name in first)
        drawn[server_round] = first["drawn"].tolist()
        assert drawn[server_round] == stream(3, "server", server_round).permutation(60)[:20].tolist()
    assert drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("federation", "told"),
    [
        (federation_of(), r"^round 4: ArithmeticError .*\['a'\]$"),
        (uneven_federation(), r"^round 4: ValueError .*federation\.server_rows"),
    ],
)
def test_failing_work_fails_the_trial_with_its_reason(federation: Federation, told: str) -> None:
    grid = LocalGrid(federation, session=SESSION)
    grid.server_round = 4
    with pytest.raises(TrialError, match=told):
        grid.serve(Fails(), {"a": np.ones(1)})


def test_work_on_each_input_is_that_on_it_alone_in_order() -> None:
    grid = LocalGrid(federation_of(), session=SESSION)
    inputs = [{"model": grid.initial_vector(seed)} for seed in range(5)]
    alone = [grid.serve(Steps(), one) for one in inputs]
    together = [*grid.serve_each(Steps(), inputs)]
    assert len(together) == 5
    for one, other in zip(alone, together, strict=True):
        assert all(np.array_equal(one[name], other[name]) for name in one)
    assert [*grid.serve_each(Steps(), [])] == []


class SeveralHosts(LocalGrid):
    """Pretends that there are three, and notes who is called and fetched when."""

    def __init__(self, federation: Federation) -> None:
        super().__init__(federation, session=SESSION)
        self._num_hosts = 3
        self.events: list[tuple[str, int, int]] = []
        self.taken_back = 0

    def _start(self, host, method, call):  # type: ignore[no-untyped-def]
        self.events.append(("called", host, len(call.inputs)))
        perform = super()._start(host, method, call)

        def fetched() -> Any:
            self.events.append(("fetched", host, len(call.inputs)))
            return perform()

        return fetched

    def _give_up(self, handles):  # type: ignore[no-untyped-def]
        self.taken_back += len(handles)


def test_inputs_are_dealt_to_all_hosts_from_the_round_s_on() -> None:
    grid = SeveralHosts(federation_of())
    grid.server_round = 2
    model = {"model": grid.initial_vector(3)}
    assert len([*grid.serve_each(Steps(1), [model] * 7)]) == 7
    assert [event for event in grid.events if event[0] == "called"] == [
        ("called", 2, 3),
        ("called", 0, 3),
        ("called", 1, 1),
    ]
    grid.events.clear()
    grid.serve(Steps(1), model)
    assert grid.events == [("called", 2, 1), ("fetched", 2, 1)]


def test_a_host_has_one_call_of_large_inputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    grid = SeveralHosts(federation_of())
    model = {"model": grid.initial_vector(3)}
    monkeypatch.setattr(host_grid, "INPUT_BYTES_TOGETHER", 2 * model["model"].nbytes)
    assert len([*grid.serve_each(Steps(1), [model] * 9)]) == 9
    on_the_way: set[int] = set()
    for what, host, _ in grid.events:
        assert (host in on_the_way) == (what == "fetched")
        on_the_way ^= {host}
    assert [event[1:] for event in grid.events if event[0] == "called"] == [(0, 2), (1, 2), (2, 2), (0, 2), (1, 1)]


def test_where_one_input_fails_the_calls_behind_it_are_taken_back() -> None:
    grid = SeveralHosts(federation_of())
    with pytest.raises(TrialError, match="round 0: ArithmeticError"):
        [*grid.serve_each(Fails(), [{"a": np.ones(1)}] * 3)]
    assert grid.taken_back == 2


def test_work_that_takes_too_long_fails_the_trial() -> None:
    grid = OneByOne(federation_of(), session=replace(SESSION, round_timeout_seconds=2.5))
    grid.server_round = 7
    with pytest.raises(TrialError, match=r"^round 7: .*\b2\.5 s$"):
        grid.serve(Steps(), {"model": grid.initial_vector(3)})


def test_own_work_reaches_a_process_without_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_server_work.py").write_text(
        "class Two:\n    def run(self, context, arrays):\n        return {'rows': context.num_rows * arrays['two']}\n"
    )
    grid = WatchedGrid(federation_of(), session=SESSION)
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        work = importlib.import_module("own_server_work").Two()
        assert grid.serve(work, {"two": np.array([2])})["rows"].tolist() == [120]
    sys.modules.pop("own_server_work")
    assert str(tmp_path) not in sys.path
    ((_, call),) = grid.calls_made
    assert grid.host.serve(pickle.loads(pickle.dumps(call))).outputs[0]["rows"].tolist() == [120]
    sys.path.remove(str(tmp_path))


@pytest.fixture(scope="module", params=NUM_HOSTS, ids=str)
def hosts(ray_session: None, request: pytest.FixtureRequest) -> Iterator[RayHosts]:
    with started_hosts(federation_of(), request.param) as started:
        yield started


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.timeout(120)
def test_hosts_on_ray_give_the_bits_of_the_local_grid(hosts: RayHosts) -> None:
    """Another host each round; a failure is told likewise, and does not end the host."""
    local, ray = LocalGrid(federation_of(), session=SESSION), RayGrid(hosts, SESSION)
    assert isinstance(local, ServesWork)
    assert isinstance(ray, ServesWork)
    model = {"model": local.initial_vector(3)}
    for server_round in (1, 2):
        local.server_round = ray.server_round = server_round
        found, expected = ray.serve(Steps(), model), local.serve(Steps(), model)
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
        several = [{"model": local.initial_vector(seed)} for seed in range(5)]
        for one, other in zip(ray.serve_each(Steps(), several), local.serve_each(Steps(), several), strict=True):
            assert all(np.array_equal(one[name], other[name]) for name in other)
        with pytest.raises(TrialError, match=f"round {server_round}: ArithmeticError"):
            ray.serve(Fails(), model)
    assert ray.take_compute_seconds() > 0
