"""Convolutions with poolings by two, then dense layers and the logits; layers have torch's default initialisation."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from fedscout.engine.model.activations import ACTIVATIONS

LENET_KERNEL = 5
LENET_CHANNELS = (6, 16)
LENET_HIDDEN = (120, 84)


def pooled_convolutions(
    image_shape: tuple[int, int, int],
    blocks: Sequence[Sequence[int]],
    kernel: int,
    hidden: int,
    num_classes: int,
    activation: str = "relu",
) -> nn.Sequential:
    """Build blocks of convolutions, each followed by a pooling, and one hidden dense layer.

    Convolutions are padded with zeros to keep an image's size, so that a block halves it.

    Args:
        image_shape: `(channels, height, width)` of a row.
        blocks: Output channels of each block's convolutions, such as `((32,), (64,))`.
        kernel: Pixels a side, odd.
        hidden: Width of the dense layer.
        num_classes: Outputs.
        activation: By name.
    """
    channels, height, width = image_shape
    between = ACTIVATIONS[activation].layer
    layers: list[nn.Module] = []
    for block in blocks:
        for outputs in block:
            layers += [nn.Conv2d(channels, outputs, kernel, padding=kernel // 2), between()]
            channels = outputs
        layers.append(nn.MaxPool2d(2))
        height, width = height // 2, width // 2
    return nn.Sequential(
        *layers,
        nn.Flatten(),
        nn.Linear(channels * height * width, hidden),
        between(),
        nn.Linear(hidden, num_classes),
    )


def lenet(image_shape: tuple[int, int, int], num_classes: int, activation: str = "relu") -> nn.Sequential:
    """Build LeNet-5: two convolutions without padding, each with a pooling, and three dense layers."""
    between = ACTIVATIONS[activation].layer
    channels, height, width = image_shape
    layers: list[nn.Module] = []
    for outputs in LENET_CHANNELS:
        layers += [nn.Conv2d(channels, outputs, LENET_KERNEL), between(), nn.MaxPool2d(2)]
        channels = outputs
        height, width = (height - LENET_KERNEL + 1) // 2, (width - LENET_KERNEL + 1) // 2
    layers.append(nn.Flatten())
    inputs = channels * height * width
    for units in LENET_HIDDEN:
        layers += [nn.Linear(inputs, units), between()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, num_classes))
