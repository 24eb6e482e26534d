"""Training on a device: lanes are the loop's gradient, a client's bits are its own. Here the device is the core."""

from __future__ import annotations

import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn

from fedscout.engine.client.host import ClientHost
from fedscout.engine.config import CPU, HostDevice, torch_settings_kept
from fedscout.engine.contracts.algorithm import ClientAlgorithm
from fedscout.engine.contracts.client_table import SettingsCell, SettingsLookup, SettingsTable
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import EngineError
from fedscout.engine.messages.calls import Session, TrainResults
from fedscout.engine.metrics import Auroc
from fedscout.engine.models.flat import new_model
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.training import backends, gpu_lanes
from fedscout.engine.training.backends import score_clients
from fedscout.engine.training.gpu import SlabScores
from fedscout.engine.training.gpu_lanes import ClientLanes, LanePlan, ResidentRows
from fedscout.engine.training.loop import descend
from fedscout.strategies.methods.averaging import ProximalGradient
from tests.engine.choices import FLOWER_CHOICES, spec_of
from tests.engine.federations import (
    ABLE,
    NUM_CLASSES,
    NUM_FEATURES,
    QUERIES,
    dense,
    dropping,
    normalised,
    quantities,
    uneven_federation,
    wide,
)
from tests.engine.results import local_result, ray_result, started_hosts, trained_by
from tests.engine.training.test_vectorised import TOLERANCE, TRAININGS
from tests.engine.trials.test_resume import assert_same
from tests.ray_processes import NUM_HOSTS

IN_LANES = HostDevice("cpu", in_lanes=True)
SIDE_BY_SIDE = "cpu, 8 clients in parallel"
"""Eight is the next power of two to the seven of `SIZES`."""

ALONE = "cpu, one client at a time"
GPU = HostDevice.gpu()


def convolving() -> nn.Module:
    """Two convolutions, a pooling and group normalisation."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(2, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(256, NUM_CLASSES),
    )


def images() -> Federation:
    """Six clients of small images."""
    generator, sizes = np.random.default_rng(4), (40, 33, 9, 16, 1, 25)
    features = generator.normal(size=(sum(sizes), 3, 8, 8)).astype(np.float32)
    rows = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    labels = generator.integers(NUM_CLASSES, size=sum(sizes))
    return Federation("images", features, labels, NUM_CLASSES, Partition.from_lists(rows), convolving)


def host_of(model: ModelFactory = wide, device: HostDevice = IN_LANES) -> ClientHost:
    """Return a host of the uneven federation."""
    return ClientHost(uneven_federation(model), QUERIES, device)


def trained(
    host: ClientHost, clients: Sequence[int], training: LocalTraining, measured: bool = False, **changes: Any
) -> TrainResults:
    session = Session(seed=5, training=training, **changes)
    return trained_by(host, clients, session, evaluated=tuple(clients) if measured else ())


def assert_same_bits(some: TrainResults, together: TrainResults) -> None:
    """Of each client that is in the first."""
    for client, vector in zip(some.clients, some.vectors, strict=True):
        assert np.array_equal(vector, together.vectors[together.clients.index(client)])


def wide_dropping() -> nn.Module:
    """A dense net with two layers of dropout."""
    hidden = (nn.Linear(NUM_FEATURES, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 16), nn.ReLU(), nn.Dropout(0.5))
    return nn.Sequential(*hidden, nn.Linear(16, NUM_CLASSES))


def alpha_dropping() -> nn.Module:
    """A dense net with a dropout that is not plain."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 5), nn.SELU(), nn.AlphaDropout(0.5), nn.Linear(5, NUM_CLASSES))


class Doubling(nn.Module):
    """Says twice as much while it is trained."""

    def forward(self, rows: Tensor) -> Tensor:
        return rows * 2 if self.training else rows


def doubling() -> nn.Module:
    """A dense net with such a layer."""
    return nn.Sequential(nn.Linear(NUM_FEATURES, 16), Doubling(), nn.Linear(16, NUM_CLASSES))


CASES: dict[str, tuple[Callable[[], Federation], tuple[int, ...]]] = {
    "dense": (lambda: uneven_federation(wide), ABLE),
    "dropout": (lambda: uneven_federation(wide_dropping), ABLE),
    "images": (images, tuple(range(6))),
    "quantities": (quantities, tuple(client for client in ABLE if client != 5)),
}
MODES = {"modes": (lambda: uneven_federation(doubling), ABLE)}


def on_both(
    case: str, training: LocalTraining, device: HostDevice = IN_LANES, **changes: Any
) -> tuple[TrainResults, TrainResults]:
    """Return what a device gives, whose models have moved, and what the core gives: the same but for rounding."""
    make, clients = {**CASES, **MODES}[case]
    host = ClientHost(make(), QUERIES, device)
    one, other = (trained(each, clients, training, True, **changes) for each in (host, ClientHost(make(), QUERIES)))
    assert one.clients == other.clients == list(clients)
    assert one.num_steps == other.num_steps
    np.testing.assert_allclose(one.vectors, other.vectors, rtol=0, atol=TOLERANCE)
    assert np.abs(one.vectors - host.initial_vector(0)).max(axis=1).min() > 1e-4
    if device == IN_LANES:
        np.testing.assert_allclose(one.losses, other.losses, rtol=1e-5)
    return one, other


@pytest.mark.sampled(10)
@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TRAININGS)
def test_lanes_are_the_loop(case: str, name: str) -> None:
    one, other = on_both(case, TRAININGS[name])
    for client, score in other.evaluation.own.items():
        found = one.evaluation.own[client]
        assert found.num_examples == score.num_examples
        assert found.loss_sum == pytest.approx(score.loss_sum, rel=1e-6)
        np.testing.assert_equal(found.num_correct, score.num_correct)


@pytest.mark.slow
@settings(deadline=None, max_examples=30)
@given(st.lists(st.sampled_from(ABLE), min_size=1, unique=True), st.sampled_from([*TRAININGS]), st.booleans())
def test_a_client_has_its_bits_whoever_trains_beside_it(chosen: list[int], name: str, own_settings: bool) -> None:
    host, training = host_of(), TRAININGS[name]
    table = table_for(training) if own_settings else None
    assert_same_bits(*(trained(host, sorted(clients), training, client_table=table) for clients in (chosen, ABLE)))


OWN = ((2, 1.5, 4, 1), (14, 0.5, 9, 2), (26, 1.0, 7, 4), (32, 0.1, 20, 3))
"""Of clients of so many training rows: multiples of a training's rate, batches and epochs."""


def table_for(training: LocalTraining) -> SettingsLookup:
    cells = (SettingsCell(0.5, rows, rate * training.learning_rate, *others) for rows, rate, *others in OWN)
    return SettingsLookup(SettingsTable(tuple(cells)))


@pytest.mark.sampled(6)
@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [None, ProximalGradient(0.5)], ids=["plainly", "fedprox"])
@pytest.mark.parametrize("case", ["dense", "images"])
@pytest.mark.parametrize("name", ["plain", "momentum", "adam", "rmsprop", "adadelta"])
def test_lanes_of_clients_own_settings_are_the_loop(name: str, case: str, algorithm: ClientAlgorithm | None) -> None:
    on_both(case, TRAININGS[name], client_table=table_for(TRAININGS[name]), algorithm=algorithm)


@pytest.mark.stress
@pytest.mark.ray
@pytest.mark.parametrize("num_hosts", NUM_HOSTS)
def test_ray_s_hosts_give_the_local_grid_s_bits(ray_session: None, num_hosts: int) -> None:
    host = host_of()
    with started_hosts(uneven_federation(wide), num_hosts, device=IN_LANES) as hosts:
        assert hosts.facts.trained_on == SIDE_BY_SIDE
        for kind in ("fedavg", "fedmedian"):
            spec = spec_of(FLOWER_CHOICES[kind], metric=Auroc())
            assert_same(ray_result(spec, hosts), local_result(spec, host))


@pytest.mark.parametrize("model", [normalised, alpha_dropping])
def test_layers_that_mix_rows_or_draw_are_trained_one_client_after_the_other(model: ModelFactory) -> None:
    lanes, core = host_of(model), host_of(model, CPU)
    assert lanes.facts().trained_on == ALONE
    one = trained(lanes, (0, 1, 3, 5), TRAININGS["epochs"])
    other = trained(core, (0, 1, 3, 5), TRAININGS["epochs"], backend="loop")
    np.testing.assert_array_equal(one.vectors, other.vectors)


def lean(monkeypatch: pytest.MonkeyPatch, *num_arguments: int) -> None:
    """Have the trials of lanes with so many arguments find other bits in the first lane."""
    tried = ClientLanes._tried_gradient

    def changed(lanes: ClientLanes, *shape: Any, **named: Any) -> dict[str, Tensor]:
        gradient = tried(lanes, *shape, **named)
        for part in gradient.values() if len(shape) in num_arguments else ():
            part[0] *= 1 + 1e-6
        return gradient

    monkeypatch.setattr(ClientLanes, "_tried_gradient", changed)


def test_lanes_whose_bits_depend_on_the_place_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_of().facts().trained_on == SIDE_BY_SIDE
    lean(monkeypatch, 2, 4)
    assert host_of().facts().trained_on == ALONE


@pytest.mark.parametrize("leans", [False, True])
def test_few_clients_go_in_few_lanes_where_that_has_the_same_bits(leans: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    plan_of, used = LanePlan.of, []

    def noted(works: Any, training: LocalTraining, num_lanes: int, num_rows: int) -> LanePlan:
        used.append(num_lanes)
        return plan_of(works, training, num_lanes, num_rows)

    monkeypatch.setattr(LanePlan, "of", noted)
    if leans:
        lean(monkeypatch, 5)  # of the first few alone
    assert trained(host_of(), (0,), TRAININGS["plain"]).clients == [0]
    assert used == ([8] if leans else [1])


@pytest.mark.parametrize("pseudo_label_weight", [0.0, 0.5])
def test_lanes_train_in_training_mode(pseudo_label_weight: float) -> None:
    """And who tells pseudo-labels does so in evaluation mode."""
    assert host_of(doubling).facts().trained_on == SIDE_BY_SIDE
    on_both("modes", TRAININGS["plain"].model_copy(update={"pseudo_label_weight": pseudo_label_weight}))


class OnCores(nn.Linear):
    """Works on cores alone."""

    def forward(self, rows: Tensor) -> Tensor:
        raise RuntimeError("tensors on cuda:0 and cpu")


def test_a_module_that_does_not_work_there_is_told() -> None:
    with pytest.raises(EngineError, match=r"RuntimeError: .*engine\.device=cpu"):
        host_of(partial(OnCores, NUM_FEATURES, NUM_CLASSES))


@pytest.fixture
def scarce(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Memory for three lanes; the numbers of lanes that were tried."""
    plan_of, asked = LanePlan.of, []

    def small(works: Any, training: LocalTraining, num_lanes: int, num_rows: int) -> LanePlan:
        plan = plan_of(works, training, num_lanes, num_rows)  # the batches are drawn by then
        asked.append(num_lanes)
        if asked[-1] > 3:
            raise torch.OutOfMemoryError("no room")
        return plan

    monkeypatch.setattr(LanePlan, "of", small)
    return asked


def test_where_memory_runs_out_half_as_many_go_on_and_it_is_told_once(scarce: list[int]) -> None:
    host = host_of()
    one, other = (trained(each, ABLE, TRAININGS["plain"]) for each in (host, host_of(device=CPU)))

    first = scarce.index(4)
    assert scarce[first : first + 2] == [4, 2]
    assert max(scarce[first + 1 :]) == 2
    assert not one.failures
    np.testing.assert_allclose(one.vectors, other.vectors, rtol=0, atol=TOLERANCE)
    assert "2 clients" in one.memory_note
    spec = spec_of(FLOWER_CHOICES["fedavg"])
    notes = local_result(spec, host).notes
    assert notes.count(one.memory_note) == 1


def test_memory_for_nobody_is_the_client_s_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> LanePlan:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(LanePlan, "of", none)
    results = trained(host_of(), ABLE, TRAININGS["plain"])
    assert sorted(results.failures) == list(ABLE)
    assert "memory" in results.failures[0]


def test_lanes_are_as_many_as_the_model_leaves_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**changes: object) -> str:
        return host_of(device=replace(IN_LANES, **changes)).facts().trained_on

    assert told(most_together=4) == "cpu, 4 clients in parallel"
    assert told(most_together=5) == "cpu, 4 clients in parallel"
    size = 4 * (NUM_FEATURES * 16 + 16 + 16 * NUM_CLASSES + NUM_CLASSES) * gpu_lanes.COPIES
    outputs = 4 * 2 * 32 * (16 + 16 + NUM_CLASSES)
    monkeypatch.setattr(gpu_lanes, "LANE_BYTES", 3 * (size + outputs))
    assert told() == "cpu, 2 clients in parallel"
    monkeypatch.setattr(gpu_lanes, "LANE_BYTES", size)
    assert told() == ALONE


DATA = uneven_federation(wide).client_data(0).own


@pytest.mark.parametrize("room", [None, DATA.features.nbytes, DATA.features.nbytes - 1, 0, "none after all"])
def test_rows_that_do_not_fit_are_sent_with_their_block(room: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, asked, send = DATA.rows[[[3, 5, 3], [1, 0, 5]]], [], gpu_lanes.sent

    def scarce(tensor: Tensor, device: torch.device) -> Tensor:
        if len(tensor) == len(DATA.features):
            asked.append(tensor)
            raise torch.OutOfMemoryError("no room")
        return send(tensor, device)

    fits = room is None or room == DATA.features.nbytes
    if room == "none after all":
        monkeypatch.setattr(gpu_lanes, "sent", scarce)
    kept = ResidentRows(torch.device("cpu"), None if room == "none after all" else room)
    for _ in range(2):
        found = kept.reach(DATA, rows)
        assert np.array_equal(found.features[found.places].numpy(), DATA.features[rows])
        assert np.array_equal(found.answers.numpy(), DATA.labels[rows])
        assert (len(found.features) == len(DATA.features)) == fits
    assert len(asked) == (room == "none after all"), "tried once"


def test_a_process_has_its_torch_back_as_it_was() -> None:
    with torch_settings_kept():
        torch.utils.deterministic.fill_uninitialized_memory = False
        torch.set_num_threads(torch.get_num_threads() + 1)
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.allow_tf32 = False
        threads = torch.get_num_threads()
    assert torch.get_num_threads() == threads - 1
    assert not torch.are_deterministic_algorithms_enabled()
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cudnn.allow_tf32
    assert torch.utils.deterministic.fill_uninitialized_memory


@pytest.mark.slow
def test_nothing_of_torch_s_compiler_is_loaded_where_there_is_no_gpu() -> None:
    program = (
        "import sys\n"
        "from fedscout.engine.config import CPU, torch_settings_kept\n"
        "with torch_settings_kept():\n"
        "    CPU.opened()\n"
        "print(sorted(name for name in sys.modules if name.startswith('torch._inductor')))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_a_gpu_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(EngineError, match=r"engine\.device=cuda"):
        host_of(device=GPU)


def test_clients_are_scored_alone_once_what_failed_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a slab that did not fit had taken would else be in the way of the clients one by one."""
    host = host_of()
    expected = trained(host, ABLE, TRAININGS["plain"], measured=True).evaluation
    held: list[weakref.ref[Tensor]] = []
    gone: list[bool] = []

    def none(*_: object) -> list[Any]:
        taken = torch.zeros(8)
        held.append(weakref.ref(taken))
        raise torch.OutOfMemoryError("no room")

    def noted(*given: Any) -> Any:
        gone.append(held[-1]() is None)
        return score_clients(*given)

    monkeypatch.setattr(SlabScores, "scores", none)
    monkeypatch.setattr(backends, "score_clients", noted)
    found = trained(host, ABLE, TRAININGS["plain"], measured=True).evaluation
    assert gone
    assert all(gone)
    assert found.own.keys() == expected.own.keys()


# -- Layers in bfloat16: what they round and what they leave, in the loop and in lanes, and that nothing else changes


@pytest.mark.parametrize("case", ["dense", "images"])
def test_steps_are_those_of_torch_under_autocast(case: str) -> None:
    """Two steps over all rows of the first client, written out, bit by bit; rows in the order that is drawn.

    So layers round as torch's do, and steps add up in float32.
    """
    federation = CASES[case][0]()
    data = federation.client_data(0).own
    model = new_model(federation.model, seed=1)
    module = new_model(federation.model, seed=1).module
    images_last = torch.channels_last if data.features.ndim == 4 else torch.contiguous_format
    optimizer = torch.optim.SGD(module.parameters(), lr=0.05)
    orders = np.random.default_rng(2)
    for _ in range(2):
        rows = data.rows[orders.permutation(len(data))]
        features = torch.from_numpy(data.features[rows]).clone().contiguous(memory_format=images_last)
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            outputs = module(features)
        nn.functional.cross_entropy(outputs.float(), torch.from_numpy(data.labels[rows])).backward()
        optimizer.step()

    training = LocalTraining(local_epochs=2, batch_size=1000, learning_rate=0.05, precision="bfloat16")
    descend(model, data, training, np.random.default_rng(2))

    expected = torch.cat([parameter.detach().reshape(-1) for parameter in module.parameters()])
    assert torch.equal(model.weights, expected)


@pytest.mark.parametrize("case", ["dense", "images"])
def test_lanes_are_as_far_from_float32_as_the_loop_is(case: str) -> None:
    """Other kernels round other sums, as often and by as much."""
    make, clients = CASES[case]
    narrow = LocalTraining(learning_rate=0.05, precision="bfloat16")
    exact, loop, lanes = (
        np.stack(trained(ClientHost(make(), QUERIES, *device), clients, training).vectors or [])
        for training, device in ((LocalTraining(learning_rate=0.05), []), (narrow, []), (narrow, [IN_LANES]))
    )
    loop_apart, lanes_apart = (np.linalg.norm(vectors - exact) for vectors in (loop, lanes))
    assert loop_apart / 2 < lanes_apart < 2 * loop_apart
    assert loop_apart > 1e-4


# -- On a GPU itself: the core's results but for rounding, and the same bits for any number of hosts. See `make gpu` ---


@pytest.fixture
def torch_as_it_was() -> Iterator[None]:
    with torch_settings_kept():
        yield


def on_gpu(test: Any) -> Any:
    """Mark a test that needs a GPU, and leave torch as it was."""
    there = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU and a PyTorch that is built for it")
    return pytest.mark.gpu(there(pytest.mark.usefixtures("torch_as_it_was")(test)))


@on_gpu
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", TRAININGS)
def test_a_gpu_is_the_core(case: str, name: str) -> None:
    on_both(case, TRAININGS[name], GPU)


@on_gpu
@pytest.mark.parametrize("model", [dense, wide, normalised, dropping])
@pytest.mark.parametrize("chosen", [(0,), (0, 3), (0, 1, 3, 5)])
def test_a_client_on_a_gpu_has_its_bits_whoever_trains_beside_it(model: ModelFactory, chosen: Sequence[int]) -> None:
    host = host_of(model, GPU)
    assert_same_bits(*(trained(host, clients, TRAININGS["epochs"]) for clients in (chosen, (0, 1, 3, 5))))


@on_gpu
@pytest.mark.parametrize("name", ["plain", "momentum", "adam"])
def test_clients_of_a_table_are_those_of_the_core_whoever_trains_beside_them(name: str) -> None:
    table = table_for(TRAININGS[name])
    together, _ = on_both("dense", TRAININGS[name], GPU, client_table=table)
    assert_same_bits(trained(host_of(device=GPU), ABLE[::2], TRAININGS[name], client_table=table), together)


@on_gpu
@pytest.mark.ray
@pytest.mark.parametrize("num_hosts", [1, 2])
def test_hosts_that_share_a_gpu_give_the_bits_of_one(ray_session: None, num_hosts: int) -> None:
    spec = spec_of(FLOWER_CHOICES["fedadam"])
    local = local_result(spec, host_of(device=GPU))
    with started_hosts(uneven_federation(wide), num_hosts, device=GPU, gpu_share=1 / num_hosts) as hosts:
        assert hosts.facts.trained_on.startswith("cuda (")
        assert_same(ray_result(spec, hosts), local)
