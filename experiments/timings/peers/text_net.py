"""TextCNN without dropout, as our peers are given it: the layers and names of ours, written as torch's users do.

Y. Kim. Convolutional neural networks for sentence classification. EMNLP 2014. Vectors of length 100, a hundred maps of
each width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTHS = (3, 4, 5)
SIZE, MAPS = 100, 100


class TextNet(nn.Module):
    """The net, for texts of some vocabulary; token 0 is padding."""

    def __init__(self, vocabulary_size: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, SIZE, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(SIZE, MAPS, width, padding=width - 1) for width in WIDTHS)
        self.last = nn.Linear(MAPS * len(WIDTHS), num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of whole numbers `(rows, length)`, shape `(rows, num_classes)`."""
        vectors = self.embedding(tokens.long()).transpose(1, 2)
        largest = [nn.functional.relu(convolution(vectors)).amax(dim=2) for convolution in self.convolutions]
        logits: Tensor = self.last(torch.cat(largest, dim=1))
        return logits
