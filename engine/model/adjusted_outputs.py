"""Outputs that are adjusted client by client ahead of the cross-entropy, so that many clients can do so at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

OUT_OF_IT = -1e9
"""The shift of a class that shall have no part in a loss: its probability is 0."""


@dataclass(frozen=True)
class Adjusted:
    """What is made of a model's outputs ahead of the cross-entropy, client by client: scale * outputs + shift.

    Attributes:
        scale: Shape `(clients, classes)`; None is 1.
        shift: Likewise, finite; None is 0. `OUT_OF_IT` takes a class out of the loss.
    """

    scale: Tensor | None = None
    shift: Tensor | None = None

    def of(self, clients: slice) -> Adjusted:
        """Return that of some clients."""
        return Adjusted(*(None if part is None else part[clients] for part in (self.scale, self.shift)))

    def to(self, device: torch.device) -> Adjusted:
        """Return the same on a device."""
        return Adjusted(*(None if part is None else part.to(device) for part in (self.scale, self.shift)))

    def __call__(self, outputs: Tensor) -> Tensor:
        """Return adjusted outputs, shape `(clients, rows, classes)`."""
        scaled = outputs if self.scale is None else outputs * self.scale[:, None]
        return scaled if self.shift is None else scaled + self.shift[:, None]
