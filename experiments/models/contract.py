"""What a model is built for: the shape of a row, the number of classes and the user's choices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from engine.errors import DataError
from engine.federation import ModelFactory
from experiments.datasets.dataset import DataKind
from experiments.models.settings import ModelSettings


@dataclass(frozen=True)
class ModelRequest:
    """The facts that fix a model's layers.

    Attributes:
        feature_shape: Shape of one row, such as `(64,)`.
        num_classes: Number of classes.
        settings: The user's choices.
        data_kind: What a row is.
        vocabulary_size: For tokens: one more than the largest; else 0.

    Raises:
        DataError: If a row holds nothing, or there are fewer than two classes.
    """

    feature_shape: tuple[int, ...]
    num_classes: int
    settings: ModelSettings = field(default_factory=ModelSettings)
    data_kind: DataKind = "table"
    vocabulary_size: int = 0

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
