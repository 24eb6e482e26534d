"""TextCNN: convolutions over a text's words, the largest response of each wherever it is.

Y. Kim. Convolutional neural networks for sentence classification. EMNLP 2014: c = ReLU(w · x + b) over windows of 3, 4
and 5 words (eq. 2), the maximum over time (eq. 3), dropout, logits (eq. 4, 5). Texts are padded with zeros at both
ends, as the author's program does, so that any length will do. Different: vectors are learned from the start (the
paper's "CNN-rand") and usually of length 100, where the paper's are of 300; weights have no bound on their norm.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

KERNEL_WIDTHS = (3, 4, 5)
PADDING_TOKEN = 0


class TextNet(nn.Module):
    """TextCNN.

    Args:
        vocabulary_size: Tokens are below it; the vector of 0, padding, is and stays zero.
        embedding_size: Length of a token's vector.
        maps: Feature maps of each width.
        dropout: Share of the features that are left out in training.
        num_classes: Outputs.
    """

    def __init__(self, vocabulary_size: int, embedding_size: int, maps: int, dropout: float, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_size, padding_idx=PADDING_TOKEN)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(embedding_size, maps, width, padding=width - 1) for width in KERNEL_WIDTHS
        )
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(maps * len(KERNEL_WIDTHS), num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of whole numbers `(rows, length)`, shape `(rows, num_classes)`."""
        vectors = self.embedding(tokens.long()).transpose(1, 2).unsqueeze(2)  # images one pixel high, channels last
        # A maximum commutes with ReLU, and leaves fewer elements.
        largest = [
            nn.functional.relu(_sums(convolution, vectors).amax(dim=(2, 3))) for convolution in self.convolutions
        ]
        logits: Tensor = self.last(self.dropout(torch.cat(largest, dim=1)))
        return logits


def _sums(convolution: nn.Module, vectors: Tensor) -> Tensor:
    """Return a convolution over texts as one over images: torch rearranges those of one axis, forward and backward."""
    assert isinstance(convolution, nn.Conv1d)
    padding = (0, int(convolution.padding[0]))
    return nn.functional.conv2d(vectors, convolution.weight.unsqueeze(2), convolution.bias, padding=padding)
