"""What layers draw in local training, such as dropout's masks: from (seed, round, client), whatever way it is trained.

A loop draws as torch's layers do, from the global generator, which is seeded for each client. Clients that are trained
many at once have a generator each, of the same seed, and draw in the same order: batch after batch, layer after layer,
of the rows that count. So masks are the loop's, whoever shares a block.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.train_request import ClientWork, TrainRequest
from fedscout.engine.model.dense_stack import DenseStack
from fedscout.engine.seeds import integer


def layer_seed(asked: TrainRequest, client: int) -> int:
    """Return the seed of what a client's layers draw in a round."""
    return integer(asked.seed, "layers", asked.server_round, client)


def seed_layers(asked: TrainRequest, client: int, device: torch.device) -> None:
    """Seed torch's global generators, of which layers such as dropout draw."""
    seed = layer_seed(asked, client)
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def layer_generators(asked: TrainRequest, works: Sequence[ClientWork]) -> list[torch.Generator]:
    """Return what the layers of each client draw from, where several are trained at once."""
    return [torch.Generator().manual_seed(layer_seed(asked, work.client)) for work in works]


class LayerDraws:
    """Masks of dropout for the clients of a block, which are drawn on from one training to the next.

    Args:
        stack: The model.
        asked: By the train message.
        works: The clients, in the order of the block.
    """

    def __init__(self, stack: DenseStack, asked: TrainRequest, works: Sequence[ClientWork]) -> None:
        self._widths = [layer.num_outputs for layer in stack.layers[:-1]] if stack.dropout else []
        self._kept_share = 1.0 - stack.dropout
        self._generators = layer_generators(asked, works if self._widths else ())

    def masks(self, start: int, sizes: IntArray, num_rows: int) -> list[Tensor]:
        """Return the factors of each hidden layer's outputs, 0 or 1 / (1 − dropout); an empty list without dropout.

        Args:
            start: First of some neighbours in the block.
            sizes: Rows that count, of each one's batch.
            num_rows: Rows of a batch, padding included, whose factors are 0.
        """
        masks = [torch.zeros(len(sizes), num_rows, width) for width in self._widths]
        for mask in masks:
            for place, size in enumerate(sizes):
                mask[place, :size].bernoulli_(self._kept_share, generator=self._generators[start + place])
            mask.div_(self._kept_share)
        return masks
