"""What detectors compare where rows are images or token numbers: embeddings instead of raw values.

Distances of pixels or of token numbers say little. The features are then what a fixed network makes of a row: an
extractor of the user's, or the input of the task's own last fully connected layer, freshly initialised from the
federation's seed. Every client derives the same network, so nothing is sent for it; random convolutional features keep
enough of a row for this (K. Jarrett, K. Kavukcuoglu, M. Ranzato and Y. LeCun, "What is the best multi-stage
architecture for object recognition?", ICCV 2009).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.data.client_data import Samples
from fedscout.engine.data.federation import EmbeddingSource
from fedscout.engine.model.flat_model import new_model
from fedscout.engine.seeds import integer
from fedscout.engine.training.local_training import chunks


@dataclass
class _LastInput:
    """Remembers what the fully connected layer that ran last was given."""

    rows: Tensor | None = None

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.rows = inputs[0]


class Embedding:
    """The network, built.

    Args:
        source: Which network.
        seed: Of the federation.
        device: Where it runs.
    """

    def __init__(self, source: EmbeddingSource, seed: int, device: torch.device | None = None) -> None:
        self._model = new_model(source.network, integer(seed, "embedding"), device)
        self._model.module.eval()
        self._last = _LastInput()
        if source.penultimate:
            for module in self._model.module.modules():
                if isinstance(module, nn.Linear):
                    module.register_forward_pre_hook(self._last)

    @torch.no_grad()
    def of(self, data: Samples) -> Samples:
        """Return a client's rows with their embeddings as features, shape `(num_rows, width)`."""
        parts: list[FloatArray] = []
        for features, _ in chunks(self._model, data):
            self._last.rows = None
            outputs = self._model.module(features)
            rows = outputs if self._last.rows is None else self._last.rows
            parts.append(rows.reshape(len(features), -1).float().cpu().numpy().copy())
        labels: IntArray = data.labels[data.rows]
        return Samples(np.concatenate(parts), labels, np.arange(len(data)))
