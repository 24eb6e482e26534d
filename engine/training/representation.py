"""A model's representation of rows: what goes into its last linear layer."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedscout.engine.model.flat_model import FlatModel


class Representation:
    """Watches the last linear layer of a model while it is entered.

    Args:
        model: Whose.
    """

    def __init__(self, model: FlatModel) -> None:
        self._model = model
        self._handle: RemovableHandle | None = None
        self._latest: Tensor | None = None

    def __enter__(self) -> Self:
        linear = [layer for layer in self._model.module.modules() if isinstance(layer, nn.Linear)]
        if linear:
            self._handle = linear[-1].register_forward_pre_hook(self._see)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handle is not None:
            self._handle.remove()
        self._handle = self._latest = None

    def latest(self) -> Tensor:
        """Return that of the rows that went through the model last, shape `(rows, width)`.

        Raises:
            ValueError: If the model has no linear layer, or nothing went through it.
        """
        if self._latest is None:
            raise ValueError("a representation is what goes into a linear layer, of which the model has none")
        return self._latest

    def under(self, vector: Tensor, features: Tensor) -> Tensor:
        """Return that of rows under another model, in evaluation mode and without a gradient; all else stays.

        Args:
            vector: The other model, shape `(size,)`.
            features: The rows.
        """
        model, latest, training = self._model, self._latest, self._model.module.training
        present = model.vector.clone()
        try:
            with torch.no_grad():
                model.vector.data.copy_(vector)  # unseen by autograd, which needs what is put back before it looks
                model.module.eval()
                model.outputs(features)
            return self.latest()
        finally:
            model.vector.data.copy_(present)
            model.module.train(training)
            self._latest = latest

    def _see(self, layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        del layer
        self._latest = inputs[0].float()
