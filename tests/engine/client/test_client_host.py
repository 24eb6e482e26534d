"""A host's answers depend on the call and on the federation alone: training, scores, queries, attacks, server work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedscout.detectors.queries import CLIENT_QUERIES
from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.client.updates import Embedding, ServerModel, products_on
from fedscout.engine.config import HostDevice
from fedscout.engine.contracts.algorithm import AttackInputs, UpdateAttack
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Answer, QueryInputs, RowAggregate
from fedscout.engine.data.federation import EmbeddingSource, Federation
from fedscout.engine.errors import TrialError
from fedscout.engine.grid import host_grid
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts
from fedscout.engine.messages import calls
from fedscout.engine.messages.keys import FUNCTION_KEY
from fedscout.engine.models.flat import new_model
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.seeds import integer, stream
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.trial import run_trial
from tests.engine import federations
from tests.engine.choices import FEDAVG, FLOWER_CHOICES, spec_of
from tests.engine.grid.test_local_grid import WatchedGrid
from tests.engine.grid.test_watchdog import OneByOne
from tests.engine.results import completed, started_hosts, trained_by
from tests.engine.training.test_device_training import images
from tests.ray_processes import NUM_HOSTS

TRAINING = LocalTraining(local_epochs=2, batch_size=8, learning_rate=0.1)


@pytest.mark.parametrize("backend", ["auto", "loop"])
@pytest.mark.parametrize(
    "factory", [federations.dense, federations.normalised, federations.counting, federations.dropping]
)
def test_training_does_not_depend_on_the_host_s_history(factory: ModelFactory, backend: str) -> None:
    """One host serves three clients in turn; three fresh hosts serve one each."""
    clients = (0, 1, 5)
    host = ClientHost(federations.uneven_federation(factory), federations.QUERIES)
    session = calls.Session(seed=3, training=TRAINING, backend=backend)
    trained_by(host, (1, 0), replace(session, seed=7, backend="auto"))
    together = trained_by(host, clients, session)

    assert together.failures == {}
    for client, vector in zip(clients, together.vectors, strict=True):
        torch.rand(client + 1)
        fresh = ClientHost(federations.uneven_federation(factory), federations.QUERIES)
        alone = trained_by(fresh, (client,), session)
        assert np.array_equal(alone.vectors[0], vector)


# -- What detectors see of images --------------------------------------------------------------------------------------


def rows_of(inputs: QueryInputs) -> Answer:
    features = np.concatenate([features for features, _ in inputs.data.chunks()])
    outputs = np.concatenate(list(inputs.outputs(inputs.arrays["model"].astype(np.float32))))
    labels = inputs.data.labels[inputs.data.rows]
    values = {"features": features, "labels": labels, "outputs": outputs}
    return {name: RowAggregate(value, len(labels)) for name, value in values.items()}


def test_the_penultimate_layer_s_outputs_are_the_features() -> None:
    """relu(W x + b) of the first layer, computed by hand."""
    data = federations.uneven_federation().client_data(0).own
    embedded = Embedding(EmbeddingSource(federations.dense), seed=4).of(data)
    module = new_model(federations.dense, integer(4, "embedding")).module
    features = torch.from_numpy(data.features[data.rows])
    expected = torch.relu(features @ module[0].weight.T + module[0].bias)
    np.testing.assert_allclose(embedded.features, expected.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(embedded.labels[embedded.rows], data.labels[data.rows])
    assert len(embedded) == len(data)


def test_hosts_answer_queries_on_embeddings_but_run_models_on_rows() -> None:
    plain = federations.uneven_federation()
    queries = {"rows": rows_of}
    asked = ClientHost(replace(plain, embedding=EmbeddingSource(federations.dense)), queries)
    vector = asked.initial_vector(0)
    call = calls.HostCall((0, 1), calls.Session(), {FUNCTION_KEY: "rows"}, arrays={"model": vector})
    embedded, raw = asked.query(call), ClientHost(plain, queries).query(call)
    assert embedded.failures == raw.failures == {}
    for with_embedding, without in zip(embedded.arrays, raw.arrays, strict=True):
        assert with_embedding["features"].shape[1] == 5
        assert without["features"].shape[1] == 6
        np.testing.assert_array_equal(with_embedding["labels"], without["labels"])
        np.testing.assert_array_equal(with_embedding["outputs"], without["outputs"])


# -- Detectors' queries to a host on a device, here the core in a GPU's place: what a core says, but for rounding ------


IN_LANES = HostDevice("cpu", in_lanes=True)


def asked(federation: Federation, device: HostDevice, name: str) -> calls.QueryResults:
    host = ClientHost(federation, CLIENT_QUERIES, device)
    arrays = {"model": host.initial_vector(3)} if name == "mean_output" else {}
    clients = tuple(range(federation.num_clients))
    call = calls.HostCall(clients, calls.Session(), {FUNCTION_KEY: name, "max_features": 1000}, arrays=arrays)
    return host.query(call)


def embedded() -> Federation:
    federation = images()
    return replace(federation, embedding=EmbeddingSource(federation.model))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["feature_moments", "mean_output"])
@pytest.mark.parametrize("make", [federations.uneven_federation, images, embedded])
def test_answers_are_those_of_a_core(make: Callable[[], Federation], name: str) -> None:
    there, here = (asked(make(), device, name) for device in (IN_LANES, HostDevice()))
    assert there.clients == here.clients
    assert len(there.clients) >= 4
    for one, other in zip(there.arrays, here.arrays, strict=True):
        for part in one.keys() | other.keys():
            np.testing.assert_allclose(one[part], other[part], rtol=1e-5, atol=1e-6)


def test_products_are_of_float64() -> None:
    """(1 + 2^-30)² = 1 + 2^-29 + 2^-60, of which float32 would keep 1."""
    rows = np.full((1, 1), 1 + 2.0**-30)
    assert products_on(torch.device("cpu"))(rows)[0, 0] == 1 + 2.0**-29


# -- What attackers send: in place of their own update alone, after training in any way, before merging ----------------


@dataclass(frozen=True)
class Attack:
    """Sends what a function makes of what an attacker knows, alone or with accomplices."""

    sent: Callable[[AttackInputs], FloatArray]
    colluders: tuple[int, ...] = ()

    def __call__(self, inputs: AttackInputs) -> FloatArray:
        return self.sent(inputs)


def times(factor: float) -> Attack:
    """Sends x + factor (y - x), in small whole powers of two: exact."""
    return Attack(lambda inputs: inputs.received + np.float32(factor) * (inputs.trained - inputs.received))


def plus(number: float) -> Attack:
    return Attack(lambda inputs: inputs.trained + np.float32(number))


def conspiracy(*colluders: int) -> Attack:
    """Sends the sum over all colluders."""
    return Attack(lambda inputs: inputs.colluders.sum(axis=0), colluders)


DRAWN = Attack(lambda inputs: inputs.generator.random(inputs.received.shape, dtype=np.float32))


def broken(_: AttackInputs) -> FloatArray:
    raise ArithmeticError("the attacker's mistake")


def attacked(attacks: Mapping[int, tuple[UpdateAttack, ...]], source: Federation | None = None) -> Federation:
    return replace(source or federations.uneven_federation(), attacks=attacks)


def first_round(
    federation: Federation, spec: TrialSettings, chosen: tuple[int, ...] | None = None
) -> tuple[FloatArray, calls.TrainResults]:
    """Return what a trial's first train call sends to its host, and the host's answer, if `chosen` were its clients."""
    host = ClientHost(federation, federations.QUERIES)
    grid = WatchedGrid(host, session=spec.session)
    run_trial(replace(spec, num_rounds=1), grid)
    (call,) = [call for method, call in grid.calls_made if method == "train"]
    call = call if chosen is None else replace(call, clients=chosen)
    return np.asarray(call.vector), host.train(call)


def individual(**changes: Any) -> TrialSettings:
    return spec_of(FLOWER_CHOICES["fedavg-individual"], **changes)


SOURCES = {
    "block": (federations.uneven_federation(federations.dense), "auto"),
    "loop": (federations.uneven_federation(federations.dense), "loop"),
    "normalised": (federations.uneven_federation(federations.normalised), "auto"),
    "task": (federations.guessing_federation(), "auto"),
}


@pytest.mark.parametrize("name", SOURCES)
def test_an_attack_sees_received_and_trained_parameters_and_changes_nobody_else(name: str) -> None:
    """Buffers go up as they were trained."""
    source, backend = SOURCES[name]
    spec = individual(backend=backend)
    received, honest = first_round(source, spec)
    _, sent = first_round(attacked({0: (times(-2.0),), federations.CORRUPTED: (plus(1.0),)}, source), spec)
    trained = np.array(honest.vectors)
    expected = trained.copy()
    n = ClientHost(source, federations.QUERIES).facts().layout.num_trainable
    assert (n < len(received)) == (name == "normalised")
    expected[0, :n] = received[:n] + np.float32(-2) * (trained[0, :n] - received[:n])
    position = honest.clients.index(federations.CORRUPTED)
    expected[position, :n] = trained[position, :n] + np.float32(1)
    np.testing.assert_array_equal(sent.vectors, expected)
    assert not np.array_equal(trained, expected)


def test_draws_are_by_seed_round_client_and_place() -> None:
    received, sent = first_round(attacked({0: (DRAWN,), 1: (plus(0.0), DRAWN)}), individual(seed=7))
    for row, place in ((0, 0), (1, 1)):
        drawn = stream(7, "attack", 1, row, place).random(received.shape, dtype=np.float32)
        np.testing.assert_array_equal(sent.vectors[row], drawn)
    assert not np.array_equal(sent.vectors[0], sent.vectors[1])


def test_an_attack_that_raises_is_the_client_s_failure() -> None:
    result = completed(spec_of(FEDAVG), attacked({1: (Attack(broken),)}))
    dropped = [key for key, told in result.dropped_clients.items() if told.startswith("ArithmeticError")]
    assert dropped == ["1:1", "2:1", "3:1"]


@pytest.mark.parametrize("name", ["block", "loop", "normalised"])
def test_an_attacker_knows_its_accomplices_honest_updates(name: str) -> None:
    """Whether the server chose them or not, attackers themselves or not, and nothing of those without rows."""
    source, backend = SOURCES[name]
    spec = individual(backend=backend)
    _, honest = first_round(source, spec)
    group = (0, 1, federations.EMPTY, federations.CORRUPTED)
    federation = attacked({0: (conspiracy(*group),), 1: (times(3.0), conspiracy(*group)), 3: (plus(1.0),)}, source)
    n = ClientHost(source, federations.QUERIES).facts().layout.num_trainable
    told = [honest.vectors[honest.clients.index(client)] for client in (0, 1, federations.CORRUPTED)]
    total = np.sum(told, axis=0)[:n]
    for chosen in (federations.ABLE, (0, 2), (1,)):
        sent = first_round(federation, spec, chosen)[1]
        assert sent.clients == [client for client in chosen if client in honest.clients]
        for client, vector in zip(sent.clients, sent.vectors, strict=True):
            if client in (0, 1):
                np.testing.assert_array_equal(vector[:n], total)
            elif client != 3:
                np.testing.assert_array_equal(vector, honest.vectors[honest.clients.index(client)])


def test_an_accomplice_that_misses_the_round_tells_nothing() -> None:
    _, honest = first_round(federations.uneven_federation(), individual())
    federation = replace(attacked({0: (conspiracy(0, 1, 2),)}), dropout={1: 1 - 1e-12})
    _, sent = first_round(federation, individual())
    np.testing.assert_array_equal(sent.vectors[0], honest.vectors[0] + honest.vectors[2])


DRAWING = {
    0: (DRAWN,),
    1: (conspiracy(1, 2),),
    2: (conspiracy(1, 2), times(0.25)),
    3: (times(-1.0), DRAWN),
    federations.CORRUPTED: (times(4.0),),
}


# -- Work on the server's rows: the model as functions, one answer on any grid, failures that are told -----------------


SESSION = calls.Session(seed=3)


@dataclass(frozen=True)
class Steps:
    """Plain gradient descent on drawn rows; also says what it drew."""

    num_steps: int = 3

    def run(self, context: calls.ServerContext, arrays: calls.Arrays) -> calls.Arrays:
        vector = torch.from_numpy(np.array(arrays["model"]))
        for _ in range(self.num_steps):
            rows = context.generator.permutation(context.num_rows)[:20]
            labels = context.labels[rows]
            _, gradient = context.gradient(vector, lambda out, y=labels: nn.functional.cross_entropy(out, y), rows)
            vector[: context.layout.num_trainable] -= 0.1 * gradient
        return {"model": vector.numpy(), "outputs": context.outputs(vector).numpy(), "drawn": rows}


@dataclass(frozen=True)
class Fails:
    def run(self, context: calls.ServerContext, arrays: calls.Arrays) -> calls.Arrays:
        raise ArithmeticError(f"no way with {sorted(arrays)}")


def federation_of(model: Any = federations.dense) -> Federation:
    return federations.with_server_rows(federations.uneven_federation(model), labelled=True)


@pytest.mark.parametrize("model", [federations.dense, federations.normalised, federations.dropping])
@pytest.mark.parametrize("rows", [None, np.array([5, 0, 41])])
def test_outputs_and_gradients_are_those_of_the_plain_module(model: Any, rows: Any) -> None:
    """In evaluation mode, in float64 by autograd."""
    federation = federation_of(model)
    context = ServerModel.of(federation, new_model(model, seed=1), np.random.default_rng(0))
    vector = new_model(model, seed=9).vector.clone()
    module = federations.plain_model(model, vector.numpy()).double().eval()
    server = federation.server
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
        first = grid.serve(Steps(1), model)
        np.testing.assert_equal(grid.serve(Steps(1), model), first)
        drawn[server_round] = first["drawn"].tolist()
        assert drawn[server_round] == stream(3, "server", server_round).permutation(60)[:20].tolist()
    assert drawn[1] != drawn[2]


@pytest.mark.parametrize(
    ("federation", "told"),
    [
        (federation_of(), r"^round 4: ArithmeticError .*\['a'\]$"),
        (federations.uneven_federation(), r"^round 4: ValueError .*federation\.server_rows"),
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
    np.testing.assert_equal([*grid.serve_each(Steps(), inputs)], alone)
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


def test_a_host_has_one_call_of_large_inputs_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the round's host on, so that trials do not all begin with the first."""
    grid = SeveralHosts(federation_of())
    grid.server_round = 2
    model = {"model": grid.initial_vector(3)}
    monkeypatch.setattr(host_grid, "INPUT_BYTES_TOGETHER", 2 * model["model"].nbytes)
    assert len([*grid.serve_each(Steps(1), [model] * 9)]) == 9
    on_the_way: set[int] = set()
    for what, host, _ in grid.events:
        assert (host in on_the_way) == (what == "fetched")
        on_the_way ^= {host}
    assert [event[1:] for event in grid.events if event[0] == "called"] == [(2, 2), (0, 2), (1, 2), (2, 2), (0, 1)]


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
    model = {"model": local.initial_vector(3)}
    for server_round in (1, 2):
        local.server_round = ray.server_round = server_round
        np.testing.assert_equal(ray.serve(Steps(), model), local.serve(Steps(), model))
        several = [{"model": local.initial_vector(seed)} for seed in range(5)]
        np.testing.assert_equal([*ray.serve_each(Steps(), several)], [*local.serve_each(Steps(), several)])
        with pytest.raises(TrialError, match=f"round {server_round}: ArithmeticError"):
            ray.serve(Fails(), model)
    assert ray.take_compute_seconds() > 0
