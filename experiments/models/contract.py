"""What a model is built for: the shape of a row, the number of classes and the user's choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from engine.errors import DataError
from engine.federation import ModelFactory


@dataclass(frozen=True)
class ModelRequest:
    """The facts that fix a model's layers.

    Attributes:
        feature_shape: Shape of one row, such as `(64,)`.
        num_classes: Number of classes.
        hidden: Widths of the hidden layers of a dense net.

    Raises:
        DataError: If a row holds nothing, or there are fewer than two classes.
    """

    feature_shape: tuple[int, ...]
    num_classes: int
    hidden: tuple[int, ...] = (64, 32)

    def __post_init__(self) -> None:
        if self.num_features < 1 or not self.feature_shape:
            raise DataError(f"a row must hold at least one feature, got rows of shape {self.feature_shape}")
        if self.num_classes < 2:
            raise DataError(f"a model needs at least two classes, got {self.num_classes}")

    @property
    def num_features(self) -> int:
        """Numbers in one row."""
        return prod(self.feature_shape)


ModelBuilder = Callable[[ModelRequest], ModelFactory]
