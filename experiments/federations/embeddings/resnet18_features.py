"""ResNet-18 as published, without its classifier: 512 numbers a picture.

K. He, X. Zhang, S. Ren, J. Sun. Deep residual learning for image recognition. CVPR 2016: a 7 × 7 convolution and a
3 × 3 maximum, both of stride 2 (section 4.1, table 1), eight blocks of two 3 × 3 convolutions, batch normalisation,
shortcuts of option B, and the mean over pixels. Names of parameters are those of torchvision, in whose layout weights
are passed around; its `fc`, the classifier, is not read. `federations/models` has another net of this name for small
pictures, which trains.

Pictures are resized bilinearly, gray ones repeated on three channels, and standardised by the mean and the deviation of
ImageNet's channels, as torchvision's published weights expect (its documentation of `ResNet18_Weights.IMAGENET1K_V1`).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

NUM_FEATURES = 512
WIDTHS = (64, 128, 256, 512)
BLOCKS_EACH = 2
CHANNELS = 3
SIZE = 224
"""Pixels to which pictures are resized, as ImageNet's are."""

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut; stride 2 halves the picture."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, pictures: Tensor) -> Tensor:
        """Return `(rows, outputs, height / stride, width / stride)`."""
        residual = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(pictures)))))
        return torch.relu(residual + self.downsample(pictures))


class ResNet18Features(nn.Module):
    """From pictures to vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(CHANNELS, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = WIDTHS[0]
        for stage, width in enumerate(WIDTHS, 1):
            blocks = [BasicBlock(inputs, width, 1 if stage == 1 else 2)]
            blocks += [BasicBlock(width, width, 1) for _ in range(BLOCKS_EACH - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            inputs = width

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the features, shape `(rows, 512)`.

        Args:
            pictures: Standardised, shape `(rows, 3, height, width)`.
        """
        found: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(pictures))))
        for stage in range(1, len(WIDTHS) + 1):
            found = self.get_submodule(f"layer{stage}")(found)
        return found.mean(dim=(2, 3))


def standardised(pixels: Tensor, size: int) -> Tensor:
    """Return pictures as the network is to see them, shape `(rows, 3, size, size)`.

    Args:
        pixels: In `[0, 1]`, shape `(rows, 1 or 3, height, width)`.
        size: Pixels of height and width.
    """
    resized = nn.functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    colours = resized.expand(-1, CHANNELS, -1, -1)
    mean, deviation = (torch.tensor(values).view(1, CHANNELS, 1, 1) for values in (MEAN, DEVIATION))
    return (colours - mean) / deviation
