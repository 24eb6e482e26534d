"""A module and its vector are the same memory."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.models.layout import ModelFactory, ParameterLayout, TensorSlot
from tests.engine.federations import counting, dense, normalised


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

    def __init__(self) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(3, 4, 3)
        self.normalisation = nn.BatchNorm2d(4)
        self.last = nn.Linear(4 * 6 * 6, 2)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = self.normalisation(self.convolution(rows))
        result: torch.Tensor = self.last(images.view(len(rows), -1))
        return result


class ViewingInTraining(Viewing):
    """Does so in training only."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        images: torch.Tensor = self.normalisation(self.convolution(rows))
        result: torch.Tensor = self.last(images.view(len(rows), -1) if self.training else images.flatten(1))
        return result


def convolving() -> nn.Module:
    """Has everything that a trial could leave changed: statistics, a count, and a layer that draws numbers."""
    return nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout(0.5), nn.Flatten(), nn.Linear(4 * 6 * 6, 2))
    )


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


@pytest.mark.parametrize("factory", [dense, normalised, counting, convolving, Viewing, Tied, Indexing])
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
    np.testing.assert_array_equal(model.layout.join(arrays), model.vector.numpy())


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


@pytest.mark.parametrize("factory", [dense, normalised])
def test_parameters_gradients_and_buffers_are_views(factory: ModelFactory) -> None:
    model = FlatModel(factory())
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))

    model.load(torch.full_like(model.vector, 0.25))
    held = [*model.module.parameters(), *(b for b in model.module.buffers() if b.is_floating_point())]
    assert all(torch.all(tensor == 0.25) for tensor in held)

    model.gradient.zero_()
    model.module(rows).square().sum().backward()
    gradients = torch.cat([parameter.grad.reshape(-1) for parameter in model.module.parameters()])
    assert torch.equal(gradients, model.gradient)
    assert model.gradient.abs().sum() > 0

    model.weights.add_(1.0)
    assert all(torch.all(parameter == 1.25) for parameter in model.module.parameters())
    with torch.no_grad():
        next(model.module.parameters()).fill_(7.0)
    assert torch.all(model.vector[:30] == 7.0)


@pytest.mark.parametrize(
    ("factory", "row_shape", "expected"),
    [
        pytest.param(convolving, (3, 8, 8), torch.channels_last, id="convolutions"),
        pytest.param(lambda: nn.Conv2d(1, 4, 3), (1, 8, 8), torch.channels_last, id="one channel"),
        pytest.param(Viewing, (3, 8, 8), torch.contiguous_format, id="view"),
        pytest.param(ViewingInTraining, (3, 8, 8), torch.contiguous_format, id="view in training"),
        pytest.param(
            lambda: nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), (3, 8, 8), torch.contiguous_format, id="none"
        ),
        pytest.param(convolving, (5, 8, 8), torch.contiguous_format, id="images that do not fit"),
        pytest.param(dense, (6,), torch.contiguous_format, id="no images"),
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


SHAPES = st.lists(st.lists(st.integers(0, 3), max_size=3).map(tuple), min_size=1, max_size=6)
LAYOUT = ParameterLayout(
    parameters=(TensorSlot("w", (2, 3)), TensorSlot("b", (2,))), buffers=(TensorSlot("mean", (2,)), TensorSlot("n", ()))
)


@given(SHAPES, st.data())
def test_join_undoes_split(shapes: list[tuple[int, ...]], data: st.DataObject) -> None:
    slots = [TensorSlot(f"t{i}", shape) for i, shape in enumerate(shapes)]
    cut = data.draw(st.integers(0, len(slots)))
    layout = ParameterLayout(tuple(slots[:cut]), tuple(slots[cut:]))
    vector = np.arange(layout.size, dtype=np.float32)

    arrays = layout.split(vector)

    assert {name: array.shape for name, array in arrays.items()} == {slot.name: slot.shape for slot in slots}
    assert np.array_equal(layout.join(arrays), vector)
    assert np.array_equal(layout.join(dict(reversed(arrays.items()))), vector)


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
