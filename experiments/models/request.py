"""Requests for models and their settings.

What a model is built for: the shape of a row, the number of classes and the user's choices.

What a user may set about the model.

A model that is found by its import path wherever it is built; so who only names it need not import torch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.engine.models.layout import ModelFactory
from fedscout.experiments.data.dataset import DataKind

if TYPE_CHECKING:
    from torch import nn


GROUP_CHANNELS = 16
"""Of group normalisation."""


NormName = Literal["none", "batch", "group"]
ActivationName = Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid"]


class ModelSettings(BaseModel):
    """The model that every client trains. What is left out is the model's own choice; `docs/models.md` lists it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str = "auto"
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] | None = Field(
        default=None, min_length=1, max_length=16, description="widths of the hidden layers; nothing means the model's"
    )
    norm: NormName | None = Field(
        default=None, description="batch or none of dense, group or batch of resnet18; nothing means the model's"
    )
    activation: ActivationName | None = Field(
        default=None, description="between layers, of dense nets and convolutions; nothing means relu"
    )
    embedding_size: int | None = Field(
        default=None, ge=1, le=4096, description="length of a token's vector, of text models; nothing means the model's"
    )
    dropout: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description="share left out in training of a dense net's hidden outputs, or a text's features; nothing means "
        "none, or textcnn's",
    )


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
            raise DataError(Fault("the classes of a model", "be at least two", self.num_classes))

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
                Fault(
                    f"model.kind={kind}",
                    f"have images of shape (channels, height, width) with at least {smallest} pixels a side{reason}",
                    f"rows of shape {shape}",
                )
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


@dataclass(frozen=True)
class ImportedModel:
    """Factory of a module, picklable. Its `str` is its name.

    Attributes:
        name: For people.
        path: `package.module:factory`.
        arguments: Names and values that the factory is called with.
        folders: Put last on the import path of the process that builds the module.
    """

    name: str
    path: str
    arguments: tuple[tuple[str, Any], ...]
    folders: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> nn.Module:
        """Build the module from torch's current random state."""
        module: nn.Module = getattr(imported(self.path, self.folders), name_in(self.path))(**dict(self.arguments))
        return module


def is_import_path(kind: str) -> bool:
    """Whether it has the form `package.module:factory`."""
    module, _, name = kind.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def name_in(path: str) -> str:
    """Return the name that an import path gives in its module."""
    return path.partition(":")[2]


def imported(path: str, folders: Sequence[str]) -> ModuleType:
    """Import the module; the first time, when it may draw numbers, leaves torch's random state as any later time."""
    import torch

    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
    with torch.random.fork_rng(devices=[]):
        return importlib.import_module(path.partition(":")[0])
