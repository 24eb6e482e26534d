"""Layers of plain stacks of convolutions: forward, and backward written out by hand.

Images have their channels last in memory. What a layer computes is what torch's does; how differs where torch's own way
leaves most of a vector register empty, which a rule of the layer's shape decides, so that every host does the same:

| layer | where | instead |
| --- | --- | --- |
| convolution, forward and by the weights | the first, of few output channels | pairs of pixels, see `quick_layers` |
| convolution, by the input | input channels do not fill half registers | channels first in memory |
| maximum pooling by two, forward | of fewer channels than a register holds | maxima of columns, then of rows |

Of equal maxima the first in the order of rows gets the gradient, as with torch.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedscout.engine.model.activations import Activation
from fedscout.engine.model.quick_layers import fits_pairs, in_pairs, is_pairable, paired_kernel, vector_lanes

_aten = torch.ops.aten
HALF_REGISTER = 8
"""float32 numbers."""


class Layer(ABC):
    """One layer; its parameters and their gradients are views of the flat model."""

    @abstractmethod
    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """Return the outputs, and what `backward` looks at; may overwrite the inputs."""

    @abstractmethod
    def backward(self, delta: Tensor, kept: Any, wanted: bool) -> Tensor:
        """Write the gradient of the parameters and return that by the inputs, anything where it is not wanted.

        Args:
            delta: The gradient by the outputs, which may be overwritten.
            kept: What `forward` kept.
            wanted: Whether a layer below needs the gradient by the inputs.
        """

    def answer(self, inputs: Tensor) -> Tensor:
        """Return the outputs alone."""
        return self.forward(inputs)[0]


@dataclass(frozen=True)
class Convolution(Layer):
    """A convolution over images.

    Attributes:
        module: The layer.
        pairs: Whether it computes two neighbouring pixels as one where their number is even.
    """

    module: nn.Conv2d
    pairs: bool

    @classmethod
    def of(cls, module: nn.Conv2d, is_first: bool) -> Convolution | None:
        """Return the layer, or None if it is padded by something else than numbers of zeros."""
        if module.padding_mode != "zeros" or isinstance(module.padding, str):
            return None
        return cls(module, is_first and fits_pairs(module))

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """Return the outputs, and the images with the kernel of pairs if there is one."""
        part = self.module
        if self.pairs and is_pairable(part, inputs):
            kernel, biases = paired_kernel(part.weight, part.bias)
            pairs = nn.functional.conv2d(inputs, kernel, biases, stride=(1, 2), padding=part.padding)
            return in_pairs(pairs), (inputs, kernel)
        sums = nn.functional.conv2d(
            inputs, part.weight, part.bias, part.stride, part.padding, part.dilation, part.groups
        )
        return sums.contiguous(memory_format=torch.channels_last), (inputs, None)  # of one channel, they are first

    def backward(self, delta: Tensor, kept: Any, wanted: bool) -> Tensor:
        """Write the gradient of weights and bias."""
        inputs, kernel = kept
        if kernel is not None:
            self._backward_of_pairs(delta, inputs, kernel)
        else:
            _, weight, bias = self._pulled(delta, inputs, [False, True, self.module.bias is not None])
            _gradient(self.module.weight).copy_(weight)
            if bias is not None:
                _gradient(self.module.bias).copy_(bias)
        return self._by_inputs(delta, inputs) if wanted else delta

    def _pulled(self, delta: Tensor, inputs: Tensor, mask: list[bool]) -> tuple[Tensor, Tensor, Tensor | None]:
        part = self.module
        shape = (part.stride, part.padding, part.dilation, False, (0, 0), part.groups)
        found: tuple[Tensor, Tensor, Tensor | None] = _aten.convolution_backward(
            delta, inputs, part.weight, [part.out_channels], *shape, mask
        )
        return found

    def _by_inputs(self, delta: Tensor, inputs: Tensor) -> Tensor:
        if self.module.in_channels % HALF_REGISTER == 0:
            return self._pulled(delta, inputs, [True, False, False])[0]
        first = inputs.new_empty(inputs.shape)  # of which only shape and order matter
        pulled = self._pulled(delta.contiguous(), first, [True, False, False])[0]
        return pulled.contiguous(memory_format=torch.channels_last)

    def _backward_of_pairs(self, delta: Tensor, inputs: Tensor, kernel: Tensor) -> None:
        """Both halves of the paired kernel are the weights, one column apart."""
        part, count = self.module, self.module.out_channels
        rows, _, height, width = delta.shape
        pairs = delta.permute(0, 2, 3, 1).reshape(rows, height, width // 2, 2 * count).permute(0, 3, 1, 2)
        _, both, biases = _aten.convolution_backward(
            pairs, inputs, kernel, [2 * count], (1, 2), part.padding, (1, 1), False, (0, 0), 1, [False, True, True]
        )
        torch.add(both[:count, :, :, :-1], both[count:, :, :, 1:], out=_gradient(part.weight))
        if part.bias is not None:
            torch.add(biases[:count], biases[count:], out=_gradient(part.bias))


@dataclass(frozen=True)
class Pooling(Layer):
    """A maximum pooling, whatever its sizes."""

    module: nn.MaxPool2d

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """Return the maxima, and where they are."""
        part = self.module
        outputs, places = nn.functional.max_pool2d(
            inputs, part.kernel_size, part.stride, part.padding, part.dilation, part.ceil_mode, return_indices=True
        )
        return outputs, (inputs, places)

    def backward(self, delta: Tensor, kept: Any, wanted: bool) -> Tensor:
        """Return the gradient, at the maxima."""
        inputs, places = kept
        part = self.module
        sizes = (_pair(part.kernel_size), _pair(part.stride), _pair(part.padding), _pair(part.dilation))
        last = delta.contiguous(memory_format=torch.channels_last)
        pulled: Tensor = _aten.max_pool2d_with_indices_backward(last, inputs, *sizes, part.ceil_mode, places)
        return pulled


class HalvingPooling(Pooling):
    """A maximum pooling by two: maxima of whole rows of numbers, which fill registers whatever the channels."""

    def answer(self, inputs: Tensor) -> Tensor:
        """Return the maxima."""
        rows, channels, height, width = inputs.shape
        if height % 2 or width % 2:
            return super().answer(inputs)
        lines = _channels_last(inputs).view(rows, height // 2, 2, width * channels)
        pairs = torch.maximum(lines[:, :, 0], lines[:, :, 1]).view(rows, height // 2, width // 2, 2, channels)
        return torch.maximum(pairs[..., 0, :], pairs[..., 1, :]).permute(0, 3, 1, 2)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """Return the maxima, and which columns and rows had them as floats: torch multiplies by these fastest."""
        rows, channels, height, width = inputs.shape
        if channels >= vector_lanes() or height % 2 or width % 2:
            return super().forward(inputs)
        columns = _channels_last(inputs).view(rows, height, width // 2, 2, channels)
        left, right = columns[..., 0, :], columns[..., 1, :]
        on_right = torch.gt(right, left, out=left.new_empty(left.shape))
        lines = torch.maximum(left, right).view(rows, height // 2, 2, -1)
        upper, lower = lines[:, :, 0], lines[:, :, 1]
        below = torch.gt(lower, upper, out=lower.new_empty(lower.shape))
        maxima = torch.maximum(upper, lower).view(rows, height // 2, width // 2, channels)
        return maxima.permute(0, 3, 1, 2), (on_right, below)

    def backward(self, delta: Tensor, kept: Any, wanted: bool) -> Tensor:
        """Return the gradient, at the maxima."""
        on_right, below = kept
        if not below.is_floating_point():  # the places of torch's own
            return super().backward(delta, kept, wanted)
        lines = delta.new_empty((len(delta), delta.shape[2], 2, below.shape[2]))
        of_rows = _channels_last(delta).view(below.shape)
        torch.mul(of_rows, below, out=lines[:, :, 1])
        torch.sub(of_rows, lines[:, :, 1], out=lines[:, :, 0])
        rows, height, width, channels = on_right.shape
        pulled = delta.new_empty((rows, height, width, 2, channels))
        of_columns = lines.view(on_right.shape)
        torch.mul(of_columns, on_right, out=pulled[..., 1, :])
        torch.sub(of_columns, pulled[..., 1, :], out=pulled[..., 0, :])
        return pulled.view(rows, height, 2 * width, channels).permute(0, 3, 1, 2)


def pooling(module: nn.MaxPool2d) -> Pooling:
    """Return the layer of a pooling that returns no indices."""
    halves = _pair(module.kernel_size) == _pair(module.stride) == (2, 2)
    plain = _pair(module.padding) == (0, 0) and _pair(module.dilation) == (1, 1)
    return (HalvingPooling if halves and plain else Pooling)(module)


@dataclass(frozen=True)
class Activated(Layer):
    """A function of single numbers."""

    activation: Activation

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """Return its values."""
        return self.activation.apply(inputs), inputs

    def backward(self, delta: Tensor, kept: Any, wanted: bool) -> Tensor:
        """Return the gradient by its arguments."""
        return self.activation.pull(delta, kept)


class Flattened(Layer):
    """All numbers of a row, channels first as torch's layer has them."""

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """Return a matrix."""
        return inputs.reshape(len(inputs), -1), inputs.shape

    def backward(self, delta: Tensor, kept: Any, wanted: bool) -> Tensor:
        """Return the gradient as images."""
        return delta.view(kept).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class Dense(Layer):
    """A linear layer."""

    module: nn.Linear

    def forward(self, inputs: Tensor) -> tuple[Tensor, Any]:
        """Return the outputs."""
        return nn.functional.linear(inputs, self.module.weight, self.module.bias), inputs

    def backward(self, delta: Tensor, kept: Any, wanted: bool) -> Tensor:
        """Write the gradient of weights and bias."""
        torch.mm(delta.t(), kept, out=_gradient(self.module.weight))
        if self.module.bias is not None:
            torch.sum(delta, dim=0, out=_gradient(self.module.bias))
        return torch.mm(delta, self.module.weight) if wanted else delta


def _channels_last(images: Tensor) -> Tensor:
    return images.permute(0, 2, 3, 1).contiguous()


def _gradient(parameter: Tensor | None) -> Tensor:
    assert parameter is not None
    assert parameter.grad is not None
    return parameter.grad


def _pair(size: Any) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else tuple(size)
