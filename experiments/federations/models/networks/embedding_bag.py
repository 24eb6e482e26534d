"""A bag of embeddings: the sum of a text's learned word vectors over the root of their number, logits on top.

A. Joulin, E. Grave, P. Bojanowski, T. Mikolov. Bag of tricks for efficient text classification. EACL 2017, section 2;
vectors start uniformly in ±1 / length, as in the authors' program, fastText. Different: the root of the number of words
in place of that number, as gradients by a mean are too small for the rates that other models train with; words alone,
without n-grams; a softmax over all classes in place of the hierarchical one; vectors of length 32 in place of 10.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

PADDING_TOKEN = 0


class EmbeddingBag(nn.Module):
    """Word vectors, added up, and a linear layer.

    Args:
        vocabulary_size: Tokens are below it; the vector of 0, padding, is and stays zero.
        embedding_size: Length of a token's vector.
        num_classes: Outputs.
    """

    def __init__(self, vocabulary_size: int, embedding_size: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_size, padding_idx=PADDING_TOKEN)
        with torch.no_grad():
            self.embedding.weight[1:].uniform_(-1 / embedding_size, 1 / embedding_size)
        self.last = nn.Linear(embedding_size, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of whole numbers `(rows, length)`, shape `(rows, num_classes)`."""
        num_words = (tokens != PADDING_TOKEN).sum(dim=1, keepdim=True).clamp_min(1)
        logits: Tensor = self.last(self.embedding(tokens.long()).sum(dim=1) / num_words.sqrt())
        return logits
