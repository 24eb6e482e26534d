"""Quicker layers are the same network."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.models.convolution import PairedConvolution, quick
from tests.engine.models.test_convolution_stack import (
    CAPABILITIES,
    OTHER_POOLS,
    Factory,
    built,
    hooked,
    images,
    lenet,
)


def gradients(module: nn.Module, parameters: list[nn.Parameter], rows: Tensor) -> Tensor:
    """Gradient of a loss to which every output contributes differently."""
    outputs = module(rows)
    loss = (outputs * torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)).sum()
    return torch.cat([gradient.reshape(-1) for gradient in torch.autograd.grad(loss, parameters)])


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_outputs_and_gradients_are_those_of_the_module(capability: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """float64 leaves only the order of sums: a few units in the last place."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    module = built(lenet).double()
    faster, rows = quick(module), images(5, 3, 20, 20).double()
    parameters = list(module.parameters())

    torch.testing.assert_close(faster(rows), module(rows), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        gradients(faster, parameters, rows), gradients(module, parameters, rows), rtol=1e-12, atol=1e-12
    )
    with torch.no_grad():
        torch.testing.assert_close(faster(rows), module(rows), rtol=1e-12, atol=1e-12)
    assert isinstance(next(faster.children()), PairedConvolution) == (capability == "AVX512")


def test_pooling_before_relu_changes_no_bit() -> None:
    """Whole numbers, so that many maxima are shared: the gradient still goes to the same element."""
    module = built(lambda: nn.Sequential(nn.Conv2d(2, 20, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()))
    convolution = module.get_submodule("0")
    with torch.no_grad():
        for parameter in convolution.parameters():
            parameter.copy_((parameter * 8).round())
    rows, faster = images(6, 2, 8, 8).round(), quick(module)
    parameters = list(module.parameters())

    assert faster is not module
    assert torch.equal(faster(rows), module(rows))
    assert torch.equal(gradients(faster, parameters, rows), gradients(module, parameters, rows))


@pytest.mark.parametrize("width", [9, 10])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "padding"), [((3, 5), 0), (5, 2), ((1, 2), (0, 1)), ((2, 3), (1, 0))])
def test_pairs_of_pixels_are_the_convolution(
    kernel: int | tuple[int, int], padding: int | tuple[int, int], bias: bool, width: int
) -> None:
    convolution = built(lambda: nn.Conv2d(3, 4, kernel, padding=padding, bias=bias)).double()
    assert isinstance(convolution, nn.Conv2d)
    rows, parameters = images(2, 3, 7, width).double(), list(convolution.parameters())
    paired = PairedConvolution(convolution)

    assert paired(rows).stride() == convolution(rows).stride()
    torch.testing.assert_close(paired(rows), convolution(rows), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        gradients(paired, parameters, rows), gradients(convolution, parameters, rows), rtol=1e-12, atol=1e-12
    )


def test_layers_are_shared() -> None:
    """A changed parameter, and the mode, count for both."""
    module = built(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2)))
    faster, rows = quick(module), images(4, 1, 6, 6)
    module.eval()
    with torch.no_grad():
        before = faster(rows)
        module.get_submodule("0").get_parameter("weight").mul_(3)
        after = faster(rows)

        torch.testing.assert_close(after, module(rows))
        assert not torch.allclose(after, before)
        assert torch.equal(module.get_submodule("1").get_buffer("num_batches_tracked"), torch.tensor(0))


class Returning(nn.Sequential):
    """A stack with a mind of its own."""

    def forward(self, rows: Tensor) -> Tensor:
        return -super().forward(rows)  # type: ignore[no-any-return, no-untyped-call]


@pytest.mark.parametrize(
    "factory",
    [
        pytest.param(lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)), id="dense"),
        pytest.param(lambda: nn.Linear(6, 3), id="no stack"),
        pytest.param(lambda: Returning(*lenet().children()), id="a subclass"),
        pytest.param(hooked, id="hooks"),
        pytest.param(nn.Sequential, id="empty"),
    ],
)
def test_other_modules_stay_as_they_are(factory: Factory) -> None:
    module = factory()

    assert quick(module) is module


@pytest.mark.parametrize(
    "settings",
    [{"stride": 2}, {"dilation": 2}, {"groups": 2}, {"padding_mode": "circular", "padding": 1}, {"padding": "same"}],
    ids=str,
)
def test_other_convolutions_stay_as_they_are(settings: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    """All else would fit: two channels, and pixels in pairs."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: "AVX512")
    module = built(lambda: nn.Sequential(nn.Conv2d(2, 2, 3, **settings), nn.Tanh()))  # type: ignore[arg-type]

    assert quick(module) is module


@pytest.mark.parametrize("settings", OTHER_POOLS, ids=str)
def test_other_pools_keep_their_outputs(settings: dict[str, object]) -> None:
    pool = nn.MaxPool2d(**{"kernel_size": 2, **settings})  # type: ignore[arg-type]
    module, rows = nn.Sequential(nn.ReLU(), pool), images(2, 3, 9, 9)

    faster = quick(module)

    assert [type(part) for part in faster.children()] == [nn.MaxPool2d, nn.ReLU]
    assert torch.equal(faster(rows), module(rows))


def test_a_pool_that_returns_places_stays_behind_its_relu() -> None:
    module = nn.Sequential(nn.ReLU(), nn.MaxPool2d(2, return_indices=True))

    assert quick(module) is module
