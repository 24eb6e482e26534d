"""Parameters and gradients of many clients' dense nets, layer by layer: in memory come layer, client, element.

So a layer of all clients is one contiguous batch of matrices, the form in which a batched product is fastest, and an
optimiser's step, or a client algorithm's correction, is one operation. Every matrix begins at a multiple of 64 bytes,
since the last bits of a matrix product depend on alignment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedscout.engine.model.dense_stack import DenseStack, LayerViews

ALIGNED = 16
"""float32 numbers in 64 bytes, the alignment of torch's own memory."""


def aligned(size: int, step: int = ALIGNED) -> int:
    """Return `size` rounded up to a multiple of `step`."""
    return -(-size // step) * step


Regions = tuple[list[Tensor], list[Tensor]]
"""Weights, and beside each its gradient."""


class BlockParameters:
    """Parameters and gradients of the clients of a block.

    Args:
        stack: The model.
        start: The vectors at which clients start, shape `(size,)` or `(clients, size)`.
        num_clients: Clients of the block.
        together: Whether all clients make the same number of steps; then they are one region.
    """

    def __init__(self, stack: DenseStack, start: Tensor, num_clients: int, together: bool) -> None:
        self._stack = stack
        self._num_clients = num_clients
        self._together = together
        self._sizes = [size for layer in stack.layers for size in (layer.num_weights, layer.num_outputs)]
        self._weights = self.arranged(start)
        self._gradient = torch.zeros_like(self._weights)
        self._parts = list(zip(self._split(self._weights), self._split(self._gradient), strict=True))
        self._active: tuple[int, Regions] = (-1, ([], []))
        self._layers = list(self._whole_views())
        self._views: dict[tuple[int, int], list[LayerViews]] = {}

    def arranged(self, vectors: Tensor) -> Tensor:
        """Return a copy of vectors in the order of the weights, a flat tensor with zeros between the layers.

        Args:
            vectors: Shape `(size,)`, the same for all clients, or `(clients, size)`.
        """
        num_elements = sum(aligned(size) for size in self._sizes) * self._num_clients
        memory = torch.zeros(num_elements, dtype=vectors.dtype)
        rows, start = vectors.reshape(-1, vectors.shape[-1]), 0
        for part, size in zip(self._split(memory), self._sizes, strict=True):
            part[:, :size] = rows[:, start : start + size]
            start += size
        return memory

    def _split(self, memory: Tensor) -> list[Tensor]:
        """Return a view a tensor of the model, shape `(clients, its padded size)`."""
        parts, start = [], 0
        for size in self._sizes:
            length = aligned(size) * self._num_clients
            parts.append(memory[start : start + length].view(self._num_clients, -1))
            start += length
        return parts

    def layers(self, start: int, stop: int) -> Sequence[LayerViews]:
        """Return views of the clients `start` to `stop`, layer after layer."""
        found = self._views.get((start, stop))
        if found is None:
            found = self._views[start, stop] = [layer.part(start, stop - start) for layer in self._layers]
        return found

    def _whole_views(self) -> Iterator[LayerViews]:
        for number, layer in enumerate(self._stack.layers):
            shape = (self._num_clients, layer.num_outputs, layer.num_inputs)
            weight, weight_gradient = (part[:, : layer.num_weights].view(shape) for part in self._parts[2 * number])
            bias, bias_gradient = (part[:, : layer.num_outputs] for part in self._parts[2 * number + 1])
            yield LayerViews.of(weight, bias, weight_gradient, bias_gradient, layer.activation)

    def regions(self, num_clients: int) -> Regions:
        """Return weights and gradients of the first clients, as an optimiser sees them."""
        if num_clients != self._active[0]:  # views take a noticeable part of a small step
            parts = [(self._weights, self._gradient)] if self._together else self._parts
            first = parts if self._together else [(w[:num_clients], g[:num_clients]) for w, g in parts]
            self._active = num_clients, ([weights for weights, _ in first], [gradient for _, gradient in first])
        return self._active[1]

    def regions_of(self, arranged: Tensor, num_clients: int) -> Sequence[Tensor]:
        """Return of vectors arranged as the weights what lies beside each of `regions(num_clients)`."""
        return [arranged] if self._together else [part[:num_clients] for part in self._split(arranged)]

    def vectors(self) -> Tensor:
        """Return one flat vector a client, shape `(clients, size)`, a copy."""
        pieces = [weights[:, :size] for (weights, _), size in zip(self._parts, self._sizes, strict=True)]
        return torch.cat(pieces, dim=1)
