"""The next character of a text, by an LSTM: vectors of characters, LSTM layers, logits from the last state.

B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-efficient learning of deep networks from
decentralized data. AISTATS 2017, section 3: vectors of length 8, two layers of 256; the same in S. Caldas et al. LEAF:
a benchmark for federated settings. arXiv:1812.01097, 2018. Different: torch's LSTM has two biases where one would do; a
row has one label, the character that follows, while the paper's loss is over every position; padding (token 0) behind a
text is not read.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

PADDING_TOKEN = 0


class CharacterNet(nn.Module):
    """The character LSTM.

    Args:
        vocabulary_size: Tokens are below it; the vector of 0, padding, is and stays zero.
        embedding_size: Length of a character's vector.
        widths: Units of each LSTM layer.
        num_classes: Outputs.
    """

    def __init__(self, vocabulary_size: int, embedding_size: int, widths: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_size, padding_idx=PADDING_TOKEN)
        inputs = (embedding_size, *widths[:-1])
        self.layers = nn.ModuleList(
            nn.LSTM(before, width, batch_first=True) for before, width in zip(inputs, widths, strict=True)
        )
        self.last = nn.Linear(widths[-1], num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of whole numbers `(rows, length)`, shape `(rows, num_classes)`."""
        tokens = tokens.long()
        states = self.embedding(tokens)
        for layer in self.layers:
            states, _ = layer(states)
        rows = torch.arange(len(tokens), device=tokens.device)
        logits: Tensor = self.last(states[rows, _last_positions(tokens)])
        return logits


def _last_positions(tokens: Tensor) -> Tensor:
    """Return where the last token of each row is that is no padding, 0 if all are."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    return torch.where(tokens != PADDING_TOKEN, positions, 0).amax(dim=1)
