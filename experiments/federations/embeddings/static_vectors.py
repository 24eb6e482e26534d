"""Texts as the mean of their tokens' vectors, of unit length: what a table of trained vectors makes of a sentence.

So are texts embedded by WordLlama and Model2Vec, whose files hold one matrix, a row a token. The mean over tokens is
the pooling of N. Reimers, I. Gurevych, Sentence-BERT, EMNLP 2019, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError
from fedscout.experiments.federations.embeddings.tokens import Tokens
from fedscout.experiments.federations.embeddings.weight_file import read_tensors


class StaticVectors:
    """A vector for each token.

    Args:
        path: A file that holds one matrix, shape `(tokens, features)`.
        tokens: By which the matrix' rows are numbered.

    Raises:
        DataError: If it holds anything else.
    """

    def __init__(self, path: Path, tokens: Tokens) -> None:
        content = read_tensors(path)
        matrices = [tensor for tensor in content.values() if tensor.dim() == 2 and tensor.is_floating_point()]
        if len(content) != 1 or not matrices:
            shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in list(content.items())[:3])
            raise DataError(f"{path} must hold one matrix, a row a token, to embed texts, got {shapes or 'nothing'}")
        self._path = path
        self._vectors: FloatArray = matrices[0].to(torch.float32).numpy()
        self._tokens = tokens

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """Return the vectors of texts, shape `(texts, features)`; zeros where a text has no token.

        Raises:
            DataError: If the tokenizer knows tokens for which there is no vector.
        """
        found = np.zeros((len(texts), self._vectors.shape[1]), np.float32)
        for row, numbers in enumerate(self._tokens.of(texts)):
            if max(numbers, default=0) >= len(self._vectors):
                raise DataError(
                    f"{self._path} must have a vector for every token of --tokenizer: it has {len(self._vectors)}, "
                    f"and a text holds token {max(numbers)}"
                )
            if numbers:
                found[row] = self._vectors[numbers].mean(axis=0)
        return unit_length(found)


def unit_length(vectors: npt.NDArray[np.floating]) -> FloatArray:
    """Return vectors of length 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)
