"""A module and its vector are the same memory; the loss of rows whose labels may be wrong."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from torch import Tensor, nn

from fedscout.engine.client.host import ClientHost
from fedscout.engine.contracts.algorithm import TrainRequest
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Samples
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.models.layout import ModelFactory, ParameterLayout, RowLoss, TensorSlot
from fedscout.engine.training.algorithm_runs import LoopRun
from fedscout.engine.training.loop import RowsWork
from fedscout.engine.trials.record import TrialSettings
from fedscout.strategies import FedAvgSpec, parse_strategy
from tests.engine import federations
from tests.engine.results import local_result
from tests.strategies.by_hand import SIZES, TRAINING, Hand, host_of, models, result_of, spec_of, weights_of


class Tied(nn.Module):
    """Two layers that share one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(self.first(rows))
        return result


class Viewing(nn.Module):
    """Does what much code does behind a convolution, and what only works while channels come first in memory."""

    views_in_evaluation = True

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.normalisation = nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 6 * 6, 3)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = self.normalisation(self.convolution(rows))
        views = self.training or self.views_in_evaluation
        result: torch.Tensor = self.last(images.view(len(rows), -1) if views else images.flatten(1))
        return result


class ViewingInTraining(Viewing):
    """Does so in training only."""

    views_in_evaluation = False


def convolving() -> nn.Module:
    """Has everything that a trial could leave changed: statistics, a count, and a layer that draws numbers."""
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(144, 2))


class Indexing(nn.Module):
    """Buffers of all kinds between its layers: in the state dict or not, of numbers, whole numbers and truth values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("order", torch.tensor([[2, 0, 1]]))
        self.register_buffer("scale", torch.tensor([0.5]), persistent=False)
        self.register_buffer("seen", torch.tensor([True, False]))
        self.register_buffer("empty", torch.zeros(0, dtype=torch.int32))
        self.first = nn.Linear(3, 3)
        self.normalisation = nn.BatchNorm1d(3)
        self.last = nn.Linear(3, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        self.scale.add_(self.training)
        result: torch.Tensor = self.last(self.normalisation(self.first(rows[:, self.order[0]]) * self.scale))
        return result


@pytest.mark.parametrize(
    "factory", [federations.dense, federations.normalised, federations.counting, convolving, Viewing, Tied, Indexing]
)
def test_named_arrays_are_flowers_record_of_the_state_dict(factory: ModelFactory) -> None:
    """Names, order, shapes, types and values; a tensor of two names is there twice."""
    module = factory()
    state = copy.deepcopy(module).state_dict()
    model = FlatModel(module)

    arrays = model.layout.split(model.vector.numpy())

    flowers = ArrayRecord(state)
    assert [*arrays] == [*flowers] == [*module.state_dict()]
    for name, array in flowers.items():
        expected = array.numpy()
        assert (arrays[name].shape, arrays[name].dtype) == (expected.shape, expected.dtype)
        np.testing.assert_array_equal(arrays[name], expected)
    assert model.layout.num_trainable == sum(parameter.numel() for parameter in module.parameters())
    for one in (arrays, dict(reversed(arrays.items()))):
        np.testing.assert_array_equal(model.layout.join(one), model.vector.numpy())


def test_of_a_shared_tensor_the_last_entry_counts_as_in_load_state_dict() -> None:
    model, module = FlatModel(Tied()), Tied()
    arrays = {"first.weight": np.ones((4, 4)), "second.weight": np.full((4, 4), 2.0)}

    module.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})

    np.testing.assert_array_equal(model.layout.join(arrays), module.first.weight.detach().numpy().ravel())


def test_integer_buffers_are_loaded_as_load_state_dict_does() -> None:
    """A mean of counts is a fraction, which is cut off; training counts one batch a step."""
    model, module = FlatModel(Indexing()), Indexing()
    arrays = {**model.layout.split(model.vector.numpy()), "normalisation.num_batches_tracked": np.array(7.75)}

    module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
    received = model.layout.integers_of(arrays)
    model.load(model.vector.clone(), {name: torch.from_numpy(np.array(array)) for name, array in received.items()})

    for name in ("order", "seen", "empty", "normalisation.num_batches_tracked"):
        np.testing.assert_array_equal(received[name], module.get_buffer(name).numpy())
        np.testing.assert_array_equal(model.module.get_buffer(name).numpy(), module.get_buffer(name).numpy())
    for trained in (module, model.module):
        trained.train()
        for _ in range(3):
            trained(torch.ones(4, 3))
    after = model.layout.integers_after(received, 3)
    for name, value in after.items():
        np.testing.assert_array_equal(value, module.get_buffer(name).numpy())
        assert value.dtype == module.get_buffer(name).numpy().dtype
    model.load(model.vector.clone())
    assert model.module.get_buffer("scale") == 0.5
    assert model.module.get_buffer("normalisation.num_batches_tracked") == 0


FIRST, LAST = torch.contiguous_format, torch.channels_last


@pytest.mark.parametrize(
    ("factory", "row_shape", "expected"),
    [
        pytest.param(convolving, (3, 8, 8), LAST, id="convolutions"),
        pytest.param(lambda: nn.Conv2d(1, 4, 3), (1, 8, 8), LAST, id="one channel"),
        pytest.param(Viewing, (3, 8, 8), FIRST, id="view"),
        pytest.param(ViewingInTraining, (3, 8, 8), FIRST, id="view in training"),
        pytest.param(lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), (3, 8, 8), FIRST, id="none"),
        pytest.param(convolving, (5, 8, 8), FIRST, id="images that do not fit"),
        pytest.param(federations.dense, (6,), FIRST, id="no images"),
    ],
)
def test_channels_come_last_where_the_module_convolves(
    factory: ModelFactory, row_shape: tuple[int, ...], expected: torch.memory_format
) -> None:
    assert new_model(factory, 0).input_format(row_shape) is expected


@pytest.mark.parametrize("factory", [convolving, Viewing, ViewingInTraining])
@pytest.mark.parametrize("training", [True, False])
def test_trying_a_format_leaves_no_trace(factory: ModelFactory, training: bool) -> None:
    model = new_model(factory, 0)
    vector, random_state = model.vector.clone(), torch.get_rng_state()
    model.module.train(training)

    model.input_format((3, 8, 8))

    assert torch.equal(model.vector, vector)
    assert model.module.state_dict().keys() & {"1.num_batches_tracked", "normalisation.num_batches_tracked"}
    assert all(not buffer for buffer in model.module.buffers() if not buffer.is_floating_point())
    assert all(part.training == training for part in model.module.modules())
    assert torch.equal(torch.get_rng_state(), random_state)


# -- Named tensors and the flat vector are two spellings of the same numbers -------------------------------------------


LAYOUT = ParameterLayout(
    parameters=(TensorSlot("w", (2, 3)), TensorSlot("b", (2,))), buffers=(TensorSlot("mean", (2,)), TensorSlot("n", ()))
)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"w": None}, r"\['b', 'mean', 'n'\]$"),
        ({"extra": np.zeros(1)}, r"'extra'\]$"),
        ({"w": np.zeros((3, 2))}, r"'w' .*\(2, 3\).*\(3, 2\)$"),
        ({"n": np.zeros(1)}, r"'n' .*\(1,\)$"),
    ],
)
def test_join_says_what_is_wrong(change: dict[str, np.ndarray | None], named: str) -> None:
    arrays = {**LAYOUT.split(np.zeros(11, np.float32)), **change}

    with pytest.raises(ValueError, match=named):
        LAYOUT.join({name: array for name, array in arrays.items() if array is not None})


# -- The loss of rows whose labels may be wrong: its gradient, its limits, and that the loop is its definition ---------


ALPHA, BETA = 0.7, 1.5
ROBUST = TRAINING.model_copy(update={"pseudo_label_weight": ALPHA, "reverse_weight": BETA})


def printed(outputs: Tensor, labels: Tensor, told: Tensor, weights: tuple[float, float, float]) -> Tensor:
    """Return the mean loss as sums over classes with log 0 = −4, in float64."""
    found, label = outputs.softmax(dim=1), torch.eye(outputs.shape[1], dtype=outputs.dtype)[labels]
    direct, pseudo = (-(target * found.log()).sum(dim=1) for target in (label, told))
    log_label = torch.where(label > 0, label.clamp(min=1e-300).log(), -4.0)
    reverse = -(found * log_label).sum(dim=1)
    return (weights[0] * direct + weights[1] * pseudo + weights[2] * reverse).mean()


def test_gradient_is_that_of_autograd() -> None:
    """Two clients of three and of five rows, padded to six, in float64; the padding has no share."""
    generator = torch.Generator().manual_seed(5)
    logits = torch.randn((2, 6, 4), generator=generator, dtype=torch.float64) * 3
    told = torch.randn((2, 6, 4), generator=generator, dtype=torch.float64).softmax(dim=2)
    labels = torch.randint(4, (2, 6), generator=generator)
    shares = torch.zeros((2, 6, 1), dtype=torch.float64)
    weights = RowLoss(0.3, ALPHA, 4 * BETA)
    for client, size in enumerate((3, 5)):
        shares[client, :size] = 1 / size
    targets = torch.eye(4, dtype=torch.float64)[labels] * shares
    means, gradient = weights.means_and_gradient(logits.log_softmax(dim=2), targets, shares, told)
    for client, size in enumerate((3, 5)):
        own = logits[client, :size].clone().requires_grad_()
        mean = printed(own, labels[client, :size], told[client, :size], (0.3, ALPHA, BETA))
        mean.backward()  # type: ignore[no-untyped-call]
        assert means[client].item() == pytest.approx(mean.item(), abs=1e-12)
        torch.testing.assert_close(gradient[client, :size], own.grad, rtol=0, atol=1e-12)
        assert not gradient[client, size:].any()
        first = nn.functional.cross_entropy(own, labels[client, :size])
        by_loop = weights.mean(first, own, labels[client, :size], told[client, :size])
        assert by_loop.item() == pytest.approx(mean.item(), abs=1e-12)


def test_a_sure_row_stays_finite() -> None:
    """Probabilities of exactly 0 have a logarithm in no term."""
    logits = torch.tensor([[[400.0, -400.0, 0.0]]])
    told = logits.softmax(dim=2)
    means, gradient = RowLoss(0.0, 1.0, 4.0).means_and_gradient(
        logits.log_softmax(dim=2), torch.tensor([[[0.0, 1.0, 0.0]]]), torch.ones(1, 1, 1), told
    )
    assert means.item() == 4.0
    assert not gradient.any()


@pytest.mark.parametrize("backend", ["auto", "loop"])
def test_rounds_by_hand(backend: str) -> None:
    """Local training in float64, the pseudo-labels those of the model that came, whatever epoch it is."""
    host, hand = host_of(), Hand(federations.uneven_federation(sizes=SIZES))
    spec = spec_of(FedAvgSpec(), training=ROBUST, backend=backend)
    vector: Any = host.initial_vector(spec.session.seed).astype(np.float64)
    for server_round, (clients, found) in enumerate(models(host, spec), start=1):
        received = vector

        def robust(module: nn.Module, features: Tensor, labels: Tensor, received: Any = received) -> Tensor:
            told = hand.loaded(received)(features).softmax(dim=1).detach()
            return printed(module(features), labels, told, (1.0, ALPHA, BETA))

        hand.loss = robust
        trained = [hand.descend(vector, client, server_round)[0] for client in clients]
        vector = weights_of(hand, clients) @ np.array(trained)
        np.testing.assert_allclose(found, vector, rtol=0, atol=3e-6)
    plain = result_of(host, FedAvgSpec()).vector
    assert np.abs(plain - vector).max() > 1e-2


STRATEGIES = [
    *("fedavg", "fedprox", "fedlc", "moon", "symmetric_loss", "scaffold", "fednova", "fedrs", "fedrod", "ditto"),
    *("fedrep", "feddyn", "fedadam", "fedbio", "fedbabu", "fine_tuning", {"kind": "rhfl", "alignment_epochs": 0}),
]
"""Those whose server takes Adam's steps on outputs, as FedDF does, turn rounding into steps of full length."""


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", STRATEGIES, ids=str)
def test_many_at_once_equal_the_loop_under_any_strategy(kind: Any) -> None:
    host, strategy = host_of(), parse_strategy(kind)
    changes: dict[str, Any] = {"training": ROBUST, "num_rounds": 2, "num_sampled": 8}
    block, loop = (result_of(host, strategy, backend=backend, **changes) for backend in ("auto", "loop"))
    plain = result_of(host, strategy, num_rounds=2, num_sampled=8)
    if block.vector is None or loop.vector is None or plain.vector is None:
        np.testing.assert_allclose(list(block.rounds["loss"]), list(loop.rounds["loss"]), rtol=0, atol=2e-5)
        assert list(plain.rounds["loss"]) != list(loop.rounds["loss"])
    else:
        np.testing.assert_allclose(block.vector, loop.vector, rtol=0, atol=2e-5)
        assert np.abs(plain.vector - loop.vector).max() > 1e-3


def test_the_gradient_that_an_algorithm_asks_for_is_of_the_whole_loss() -> None:
    """Of one client that is about to make one step on all its rows."""
    model = new_model(federations.dense, 3)
    data = Samples(*federations.learnable_rows(50), np.arange(50))
    plain, weighed = (
        LoopRun.of(
            model,
            TrainRequest(model.vector.clone(), LocalTraining(batch_size=50, pseudo_label_weight=weight), num_classes=3),
            RowsWork(0, np.random.default_rng(1), {}, data),
        )
        for weight in (0.0, 30.0)
    )
    away = plain.received + 0.3
    assert (weighed.gradient(away) - plain.gradient(away)).abs().max() > 1e-2
    torch.testing.assert_close(weighed.gradient(plain.received), plain.gradient(plain.received), rtol=0, atol=2e-5)


def test_clients_with_a_task_refuse() -> None:
    host = ClientHost(federations.guessing_federation(), federations.QUERIES)
    session = spec_of(FedAvgSpec(), training=ROBUST).session
    settings = TrialSettings(FedAvgSpec(), session=session, num_rounds=1, num_sampled=2)
    result = local_result(settings, host)
    assert "TypeError" in result.error
