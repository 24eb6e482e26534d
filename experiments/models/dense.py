"""A dense net: fully connected layers with ReLU between them, logits at the end.

A row of more than one axis, such as an image, is flattened first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from engine.errors import ConfigurationError
from experiments.models.contract import ModelRequest

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class DenseModel:
    """Factory of a dense net, picklable. Layers have torch's default initialisation.

    Attributes:
        widths: Features, hidden widths, classes: the layer i maps `widths[i]` to `widths[i + 1]`.
        flatten: Whether rows have more than one axis.
    """

    widths: tuple[int, ...]
    flatten: bool = False

    def __call__(self) -> nn.Module:
        """Build the net from torch's current random state."""
        from torch import nn

        layers: list[nn.Module] = [nn.Flatten()] if self.flatten else []
        for index in range(len(self.widths) - 1):
            if index > 0:
                layers.append(nn.ReLU())
            layers.append(nn.Linear(self.widths[index], self.widths[index + 1]))
        return nn.Sequential(*layers)


def dense(request: ModelRequest) -> DenseModel:
    """Return the factory of a net with the hidden widths asked for.

    Raises:
        ConfigurationError: If there is no hidden layer, or one without units.
    """
    hidden = request.settings.hidden
    if not hidden or min(hidden) < 1:
        raise ConfigurationError(
            f"model.hidden must name the width, >= 1, of at least one hidden layer, got {list(hidden)}; "
            "a net without hidden layers is model.kind=linear"
        )
    widths = (request.num_features, *hidden, request.num_classes)
    return DenseModel(widths=widths, flatten=len(request.feature_shape) > 1)
