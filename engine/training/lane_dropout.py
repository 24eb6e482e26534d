"""Dropout of clients in lanes: `torch.func` can't draw, so masks are drawn outside and come with each batch.

Each client has a generator of its own (`layer_draws`) and draws batch after batch, layer after layer, of the rows that
count, whichever lane it is in. In lanes a layer of dropout lets everything through, and a hook puts its mask on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn

from fedscout.engine.arrays import IntArray


class LaneDropout:
    """The layers of dropout of one module; entered while clients are in lanes.

    Args:
        module: Any of whose layers are plain dropout of single elements; layers that draw otherwise are left as are.
    """

    def __init__(self, module: nn.Module) -> None:
        self._layers = [part for part in module.modules() if type(part) is nn.Dropout and 0 < part.p < 1]
        self._calls: list[tuple[tuple[int, ...], float]] = []
        self._notes = True
        self._masks: Iterator[Tensor] | None = None
        self._undo: list[tuple[nn.Module, bool, torch.utils.hooks.RemovableHandle]] = []

    def __enter__(self) -> Self:
        for layer in self._layers:
            self._undo.append((layer, layer.training, layer.register_forward_hook(self._put_on)))
            layer.eval()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            layer, training, handle = self._undo.pop()
            handle.remove()
            layer.train(training)

    def known(self) -> None:
        """Take it that what went through until now is how a batch goes through: which layers, in which order."""
        self._notes = False

    @property
    def draws(self) -> bool:
        """Whether there are any."""
        return bool(self._calls)

    def drawn(self, generators: Sequence[torch.Generator], sizes: IntArray, num_rows: int) -> list[Tensor]:
        """Return factors of each layer's inputs, 0 or 1 / (1 − p), 0 of padding; shape `(lanes, rows, *row_shape)`.

        Args:
            generators: Of the client of each lane that has one.
            sizes: Rows of its batch that count, by lane.
            num_rows: Of a batch, padding included.
        """
        masks = [torch.zeros(len(sizes), num_rows, *shape) for shape, _ in self._calls]
        for lane, generator in enumerate(generators):
            for mask, (_, share) in zip(masks, self._calls, strict=True):
                mask[lane, : sizes[lane]].bernoulli_(1 - share, generator=generator)
        for mask, (_, share) in zip(masks, self._calls, strict=True):
            mask.div_(1 - share)
        return masks

    @contextmanager
    def wearing(self, masks: Sequence[Tensor]) -> Iterator[None]:
        """Put masks of one client on what goes through meanwhile, in the order of the layers' calls."""
        self._masks = iter(masks)
        try:
            yield
        finally:
            self._masks = None

    def _put_on(self, layer: nn.Module, inputs: tuple[Tensor, ...], outputs: Tensor) -> Tensor | None:
        assert isinstance(layer, nn.Dropout)
        if self._notes:
            self._calls.append((tuple(outputs.shape[1:]), layer.p))
        mask = None if self._masks is None else next(self._masks, None)
        return None if mask is None else outputs * mask
