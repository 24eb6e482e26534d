"""The nets that peers are given: the layers and names of ours, written as torch's users do.

TextCNN without dropout: Y. Kim, "Convolutional neural networks for sentence classification", EMNLP 2014; vectors of
length 100, a hundred maps of each width.

ResNet-18 for small pictures with group normalisation: K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for
image recognition", CVPR 2016; Y. Wu, K. He, "Group normalization", ECCV 2018. The first convolution is 3 x 3 with
stride one, no pooling follows it, groups are of 16 channels. 11 million parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

KERNEL_WIDTHS = (3, 4, 5)
SIZE, MAPS = 100, 100
STAGE_CHANNELS = (64, 128, 256, 512)
BLOCKS_EACH = 2
GROUP_CHANNELS = 16


class TextNet(nn.Module):
    """The net, for texts of some vocabulary; token 0 is padding."""

    def __init__(self, vocabulary_size: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, SIZE, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(SIZE, MAPS, width, padding=width - 1) for width in KERNEL_WIDTHS)
        self.last = nn.Linear(MAPS * len(KERNEL_WIDTHS), num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of whole numbers `(rows, length)`, shape `(rows, num_classes)`."""
        vectors = self.embedding(tokens.long()).transpose(1, 2)
        largest = [nn.functional.relu(convolution(vectors)).amax(dim=2) for convolution in self.convolutions]
        logits: Tensor = self.last(torch.cat(largest, dim=1))
        return logits


def _normalised(inputs: int, outputs: int, stride: int, side: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, bias=False)
    return convolution, nn.GroupNorm(outputs // GROUP_CHANNELS, outputs)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first, second = _normalised(inputs, outputs, stride, 3), _normalised(outputs, outputs, 1, 3)
        self.residual = nn.Sequential(*first, nn.ReLU(), *second)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normalised(inputs, outputs, stride, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return `(rows, outputs, height / stride, width / stride)`."""
        return nn.functional.relu(self.residual(images) + self.shortcut(images))


class ResidualNet(nn.Module):
    """The net, for pictures of some channels."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_normalised(channels, STAGE_CHANNELS[0], 1, 3), nn.ReLU())
        blocks, inputs = [], STAGE_CHANNELS[0]
        for stage, outputs in enumerate(STAGE_CHANNELS):
            for place in range(BLOCKS_EACH):
                blocks.append(Block(inputs, outputs, 2 if place == 0 and stage else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(inputs, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape `(rows, num_classes)`."""
        logits: Tensor = self.last(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits
