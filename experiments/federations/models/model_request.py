"""What a model is built for: the shape of a row, the number of classes and the user's choices."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from math import prod

from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.experiments.federations.datasets.dataset import DataKind
from fedscout.experiments.federations.models.model_settings import ModelSettings, NormName

NUMBERS: tuple[DataKind, ...] = ("table", "image", "embedding")
"""Rows whose values are amounts. Token numbers are names."""

TOKENS: tuple[DataKind, ...] = ("tokens",)

IMAGE_AXES = 3


@dataclass(frozen=True)
class ModelRequest:
    """The facts that fix a model's layers.

    Attributes:
        feature_shape: Shape of one row, such as `(64,)`.
        num_classes: Number of classes, which is that of outputs; 1 where a quantity is predicted.
        settings: The user's choices.
        data_kind: What a row is.
        vocabulary_size: For tokens: one more than the largest; else 0.
        predicts_quantity: Whether the one output is a quantity.

    Raises:
        DataError: If a row holds nothing, or there are fewer than two classes.
    """

    feature_shape: tuple[int, ...]
    num_classes: int
    settings: ModelSettings = field(default_factory=ModelSettings)
    data_kind: DataKind = "table"
    vocabulary_size: int = 0
    predicts_quantity: bool = False

    def __post_init__(self) -> None:
        if self.num_features < 1 or not self.feature_shape:
            raise DataError(Fault("a row", "hold at least one feature", f"rows of shape {self.feature_shape}"))
        if self.num_classes < 2 and not self.predicts_quantity:
            raise DataError(f"a model needs at least two classes, got {self.num_classes}")

    @property
    def num_features(self) -> int:
        """Numbers in one row."""
        return prod(self.feature_shape)

    def check(self, kind: str, reads: Collection[str] = (), data_kinds: Collection[DataKind] = NUMBERS) -> None:
        """Check that a model can work with such rows, and that nothing is set that it would not read.

        Args:
            kind: Of the model.
            reads: The settings that it reads.
            data_kinds: What its rows may be.

        Raises:
            ConfigurationError: If something else is set.
            DataError: If rows are of another kind.
        """
        given = {name: value for name, value in self.settings if name not in {"kind", *reads} and value is not None}
        if given:
            raise ConfigurationError(
                [
                    Fault(
                        f"model.{name}",
                        f"be left out with model.kind={kind}, which does not read it",
                        list(value) if isinstance(value, tuple) else value,
                    )
                    for name, value in given.items()
                ]
            )
        if self.data_kind not in data_kinds:
            advice = "; texts are for embedding_bag, textcnn and char_lstm" if self.data_kind == "tokens" else ""
            raise DataError(
                Fault(
                    f"model.kind={kind}",
                    f"be given rows of kind {' or '.join(data_kinds)}",
                    f"{self.data_kind}{advice}",
                )
            )

    def image_shape(self, kind: str, smallest: int, reason: str = "") -> tuple[int, int, int]:
        """Return `(channels, height, width)` of the rows.

        Args:
            kind: Of the model, for messages.
            smallest: Fewest pixels a side.
            reason: What happens to smaller ones, for messages.

        Raises:
            DataError: If rows are no images, or too small.
        """
        shape = self.feature_shape
        if len(shape) != IMAGE_AXES or min(shape[1:]) < smallest:
            raise DataError(
                f"model.kind={kind} needs images of shape (channels, height, width) with at least {smallest} pixels "
                f"a side{reason}, got rows of shape {shape}"
            )
        channels, height, width = shape
        return channels, height, width

    def hidden(self, *usual: int) -> tuple[int, ...]:
        """Return the widths of the hidden layers: those asked for, else the usual ones."""
        return usual if self.settings.hidden is None else self.settings.hidden

    def one_hidden(self, kind: str, usual: int) -> int:
        """Return the width of the only hidden layer of a model.

        Raises:
            ConfigurationError: If several are asked for.
        """
        widths = self.hidden(usual)
        if len(widths) != 1:
            raise ConfigurationError(Fault("model.hidden", f"be one width with model.kind={kind}", list(widths)))
        return widths[0]

    def norm(self, kind: str, *allowed: NormName) -> NormName:
        """Return the normalisation asked for, else the first of those that a model knows.

        Raises:
            ConfigurationError: If it does not know it.
        """
        norm = self.settings.norm or allowed[0]
        if norm not in allowed:
            raise ConfigurationError(Fault("model.norm", f"be {' or '.join(allowed)} with model.kind={kind}", norm))
        return norm


ModelBuilder = Callable[[ModelRequest], ModelFactory]
"""What it returns is a picklable value that tells its name by `str`."""
