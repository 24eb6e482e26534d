"""ResNet-18 for small pictures with group normalisation, as our peers are given it: the layers and names of ours.

K. He, X. Zhang, S. Ren, J. Sun. Deep residual learning for image recognition. CVPR 2016. Y. Wu, K. He. Group
normalization. ECCV 2018. The first convolution is 3 x 3 with stride one, no pooling follows it, groups are of 16
channels. 11 million parameters.
"""

from __future__ import annotations

from torch import Tensor, nn

WIDTHS = (64, 128, 256, 512)
BLOCKS_EACH = 2
GROUP_CHANNELS = 16


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
        self.stem = nn.Sequential(*_normalised(channels, WIDTHS[0], 1, 3), nn.ReLU())
        blocks, inputs = [], WIDTHS[0]
        for stage, outputs in enumerate(WIDTHS):
            for place in range(BLOCKS_EACH):
                blocks.append(Block(inputs, outputs, 2 if place == 0 and stage else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(inputs, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape `(rows, num_classes)`."""
        logits: Tensor = self.last(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits
