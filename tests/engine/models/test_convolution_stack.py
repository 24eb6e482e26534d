"""Layers: activations and convolutions whose gradients are written out are autograd's, and quicker ones the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedscout.engine.models import convolution
from fedscout.engine.models.dense import ACTIVATIONS, activation_of

Factory = Callable[[], nn.Module]
CAPABILITIES = ("AVX512", "AVX2", "DEFAULT")
OTHER_POOLS: tuple[dict[str, object], ...] = (
    *({"kernel_size": 3}, {"stride": 1}, {"padding": 1}, {"dilation": 2}),
    *({"ceil_mode": True}, {"kernel_size": (2, 1)}),
)


def images(*shape: int) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return values.contiguous(memory_format=torch.channels_last)


def built(factory: Factory) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return factory()


def lenet() -> nn.Module:
    """LeNet-5 for images of 3 x 20 x 20."""
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 3), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(144, 20), nn.ReLU(), nn.Linear(20, 4)),
    )


def two_alike() -> nn.Module:
    """Wide enough to fill registers, without biases, a pooling of an odd number of pixels."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.GELU(), nn.Conv2d(16, 8, 3, bias=False), nn.Tanh()),
        *(nn.MaxPool2d(2), nn.Conv2d(8, 8, 2, stride=2, groups=2), nn.LeakyReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(32, 4, bias=False)),
    )


def odd_pools() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 5, (3, 2), dilation=2), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1, ceil_mode=True)),
        *(nn.Conv2d(5, 3, 3, padding=(0, 1)), nn.MaxPool2d((2, 1)), nn.ReLU(), nn.Flatten(), nn.Linear(90, 4)),
    )


@pytest.fixture(params=CAPABILITIES, autouse=True)
def _capability(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: request.param)


@pytest.mark.slow
@pytest.mark.parametrize(("factory", "channels"), [(lenet, 3), (two_alike, 1), (odd_pools, 3)])
def test_loss_and_gradient_are_those_of_autograd(factory: Factory, channels: int) -> None:
    """float64 leaves only the order of sums: a few units in the last place. What lay in the gradient is forgotten."""
    module = built(factory).double()
    rows, labels = images(5, channels, 20, 20).double(), torch.tensor([0, 1, 2, 3, 1])
    expected = nn.functional.cross_entropy(module(rows), labels)
    gradients = torch.autograd.grad(expected, list(module.parameters()))
    for parameter in module.parameters():
        parameter.grad = torch.full_like(parameter, 7)
    stack, given = convolution.ConvolutionStack.of(module), rows.clone(memory_format=torch.preserve_format)

    loss = stack.loss_and_gradient(given, labels)

    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(stack.outputs(rows), module(rows).detach(), rtol=1e-12, atol=1e-12)
    for parameter, gradient in zip(module.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-11, atol=1e-12)
    assert torch.equal(given, rows)


@pytest.mark.parametrize("channels", [1, 3, 6, 20])
@pytest.mark.parametrize("size", [(8, 6), (7, 6), (8, 5)])
def test_the_first_of_equal_maxima_gets_the_gradient(channels: int, size: tuple[int, int]) -> None:
    """Whole numbers from 0 to 2, so that nearly all maxima are shared."""
    rows = images(4, channels, *size).abs().floor().clamp_max(2).requires_grad_()
    layer = nn.MaxPool2d(2)
    expected = layer(rows)
    delta = images(*expected.shape)
    (gradient,) = torch.autograd.grad(expected, rows, delta)
    own = convolution.pooling(layer)

    outputs, kept = own.forward(rows.detach())

    assert isinstance(own, convolution.HalvingPooling)
    assert torch.equal(outputs, expected.detach())
    assert torch.equal(own.answer(rows.detach()), expected.detach())
    assert torch.equal(own.backward(delta.clone(memory_format=torch.preserve_format), kept, wanted=True), gradient)


@pytest.mark.parametrize("settings", OTHER_POOLS, ids=str)
def test_other_poolings_are_torch_s(settings: dict[str, object]) -> None:
    layer = nn.MaxPool2d(**{"kernel_size": 2, **settings})  # type: ignore[arg-type]
    rows = images(2, 3, 9, 9)

    assert torch.equal(convolution.pooling(layer).answer(rows), layer(rows))
    if "ceil_mode" not in settings:
        assert type(convolution.pooling(layer)) is convolution.Pooling


def hooked() -> nn.Module:
    module = lenet()
    module.get_submodule("1").register_forward_hook(lambda layer, given, made: made + 1)
    return module


def tied() -> nn.Module:
    layer = nn.Conv2d(3, 3, 3, padding=1)
    return nn.Sequential(layer, nn.ReLU(), layer, nn.Flatten(), nn.Linear(1200, 4))


def frozen() -> nn.Module:
    module = lenet()
    module.get_submodule("0").get_parameter("bias").requires_grad_(requires_grad=False)
    return module


class Returning(nn.Sequential):
    """A stack with a mind of its own."""

    def forward(self, rows: Tensor) -> Tensor:
        return -super().forward(rows)  # type: ignore[no-any-return, no-untyped-call]


NEITHER: dict[str, Factory] = {
    "hooks": hooked,
    "a subclass": lambda: Returning(*lenet().children()),
    "dense": lambda: nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)),
    "empty": nn.Sequential,
}
NO_STACK: dict[str, Factory] = {
    **{**NEITHER, "a layer twice": tied, "not trained": frozen},
    "a norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten()),
    "no linear layer at the end": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()),
    "padding": lambda: nn.Sequential(nn.Conv2d(3, 4, 3, padding="same"), nn.Flatten(), nn.Linear(9, 2)),
}


@pytest.mark.parametrize("name", NO_STACK)
def test_other_modules_are_no_stack(name: str) -> None:
    assert convolution.ConvolutionStack.of(NO_STACK[name]()) is None


# -- Quicker layers are the same network -------------------------------------------------------------------------------


def gradients(module: nn.Module, parameters: list[nn.Parameter], rows: Tensor) -> Tensor:
    """Gradient of a loss to which every output contributes differently."""
    outputs = module(rows)
    loss = (outputs * torch.linspace(-1, 1, outputs.numel()).view(outputs.shape)).sum()
    return torch.cat([gradient.reshape(-1) for gradient in torch.autograd.grad(loss, parameters)])


def test_pairs_are_formed_where_they_fill_a_register() -> None:
    forms = isinstance(next(convolution.quick(lenet()).children()), convolution.PairedConvolution)
    assert forms == (torch.backends.cpu.get_cpu_capability() == "AVX512")


def test_pooling_before_relu_changes_no_bit() -> None:
    """Whole numbers, so that many maxima are shared: the gradient still goes to the same element."""
    module = built(lambda: nn.Sequential(nn.Conv2d(2, 20, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()))
    layer = module.get_submodule("0")
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_((parameter * 8).round())
    rows, faster = images(6, 2, 8, 8).round(), convolution.quick(module)
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
    layer = built(lambda: nn.Conv2d(3, 4, kernel, padding=padding, bias=bias)).double()
    rows, parameters = images(2, 3, 7, width).double(), list(layer.parameters())
    paired = convolution.PairedConvolution(layer)

    assert paired(rows).stride() == layer(rows).stride()
    torch.testing.assert_close(paired(rows), layer(rows), rtol=1e-12, atol=1e-12)
    found, expected = (gradients(each, parameters, rows) for each in (paired, layer))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_layers_are_shared() -> None:
    """A changed parameter, and the mode, count for both."""
    module = built(lambda: nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2)))
    faster, rows = convolution.quick(module), images(4, 1, 6, 6)
    module.eval()
    with torch.no_grad():
        before = faster(rows)
        module.get_submodule("0").get_parameter("weight").mul_(3)
        after = faster(rows)

        torch.testing.assert_close(after, module(rows))
        assert not torch.allclose(after, before)
        assert torch.equal(module.get_submodule("1").get_buffer("num_batches_tracked"), torch.tensor(0))


@pytest.mark.parametrize("factory", [*NEITHER.values(), lambda: nn.Linear(6, 3)])
def test_other_modules_stay_as_they_are(factory: Factory) -> None:
    module = factory()
    assert convolution.quick(module) is module


# -- Activations; `test_vectorised` holds functions and gradients to those of torch's layers ---------------------------


OTHERS = (nn.LeakyReLU(0.2), nn.ELU(2.0), nn.GELU("tanh"), nn.Softplus(), nn.Identity())


@pytest.mark.parametrize(
    ("layer", "known"), [*((each.layer(), each) for each in ACTIVATIONS.values()), *((other, None) for other in OTHERS)]
)
def test_a_layer_is_known_as_what_it_is_and_no_other(layer: nn.Module, known: object) -> None:
    assert activation_of(layer) is known
