"""Requests for models: model settings, the facts that determine the layers, and models found by import path.

An `ImportedModel` only names its factory, so that it can be handled without importing PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.experiments.data.dataset import DataKind

if TYPE_CHECKING:
    from torch import nn


GROUP_CHANNELS = 16
"""Channels per group of group normalisation."""


NormName = Literal["none", "batch", "group"]
ActivationName = Literal["relu", "leaky_relu", "elu", "gelu", "silu", "tanh", "sigmoid"]


class ModelSettings(BaseModel):
    """The model that every client trains. Unset values take the defaults of the model, listed in `docs/models.md`."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    kind: str = "auto"
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] | None = Field(
        default=None, min_length=1, max_length=16, description="widths of the hidden layers; the model's by default"
    )
    norm: NormName | None = Field(
        default=None,
        description="normalisation: batch or none for dense, group or batch for resnet18; the model's by default",
    )
    activation: ActivationName | None = Field(
        default=None, description="activation of dense nets and convolutions; relu by default"
    )
    embedding_size: int | None = Field(
        default=None, ge=1, le=4096, description="size of token embeddings of text models; the model's by default"
    )
    dropout: float | None = Field(
        default=None,
        ge=0,
        lt=1,
        description=(
            "dropout probability of a dense net's hidden outputs or a text's features; none by default, or textcnn's"
        ),
    )


NUMBERS: tuple[DataKind, ...] = ("table", "image")
"""Rows whose values are amounts. Token numbers are names."""


@dataclass(frozen=True)
class ModelRequest:
    """The facts that determine a model's layers.

    Attributes:
        feature_shape: Shape of one row, such as `(64,)`.
        num_classes: Number of classes, which is the number of outputs; 1 for regression.
        settings: The user's settings.
        data_kind: Kind of a row.
        vocabulary_size: For tokens: one more than the largest; else 0.
        predicts_quantity: Whether the model is a regression model with one output.

    Raises:
        DataError: If a row is empty, or there are fewer than two classes.
    """

    feature_shape: tuple[int, ...]
    num_classes: int
    settings: ModelSettings = field(default_factory=ModelSettings)
    data_kind: DataKind = "table"
    vocabulary_size: int = 0
    predicts_quantity: bool = False

    def __post_init__(self) -> None:
        if self.num_features < 1 or not self.feature_shape:
            raise DataError.of("a row", "hold at least one feature", f"rows of shape {self.feature_shape}")
        if self.num_classes < 2 and not self.predicts_quantity:
            raise DataError.of("the classes of a model", "be at least two", self.num_classes)

    @property
    def num_features(self) -> int:
        """Number of values in one row."""
        return prod(self.feature_shape)

    @property
    def key(self) -> str:
        """The kind of the model, as an argument."""
        return f"model.kind={self.settings.kind}"

    def check(self, reads: Collection[str], data_kinds: Collection[DataKind]) -> None:
        """Check that the model supports such rows and all settings that are set.

        Args:
            reads: Settings that the model supports.
            data_kinds: Kinds of rows that the model supports.

        Raises:
            ConfigurationError: If an unsupported setting is set.
            DataError: If rows are of another kind.
        """
        must = f"be left out with {self.key}, which does not use it"
        faults = [
            Fault(f"model.{name}", must, list(value) if isinstance(value, tuple) else value)
            for name, value in self.settings
            if name not in {"kind", *reads} and value is not None
        ]
        if faults:
            raise ConfigurationError(faults)
        if self.data_kind not in data_kinds:
            advice = "; texts are for embedding_bag, textcnn and char_lstm" if self.data_kind == "tokens" else ""
            raise DataError.of(self.key, f"get rows of kind {' or '.join(data_kinds)}", f"{self.data_kind}{advice}")

    def image_shape(self, smallest: int, reason: str = "") -> tuple[int, int, int]:
        """Return `(channels, height, width)` of the rows.

        Args:
            smallest: Minimum number of pixels per side.
            reason: Why smaller images are not supported, for messages.

        Raises:
            DataError: If rows are no images, or too small.
        """
        shape = self.feature_shape
        if len(shape) != 3 or min(shape[1:]) < smallest:
            raise DataError.of(
                self.key,
                f"have images of shape (channels, height, width) with at least {smallest} pixels per side{reason}",
                f"rows of shape {shape}",
            )
        channels, height, width = shape
        return channels, height, width

    def hidden(self, *usual: int) -> tuple[int, ...]:
        """Return the configured widths of the hidden layers, or else `usual`."""
        return usual if self.settings.hidden is None else self.settings.hidden

    def one_hidden(self, usual: int) -> int:
        """Return the width of a model's only hidden layer.

        Raises:
            ConfigurationError: If several are configured.
        """
        widths = self.hidden(usual)
        if len(widths) != 1:
            raise ConfigurationError.of("model.hidden", f"be one width with {self.key}", list(widths))
        return widths[0]

    def norm(self, *allowed: NormName) -> NormName:
        """Return the configured normalization, or else the first allowed one.

        Raises:
            ConfigurationError: If it is not allowed.
        """
        norm = self.settings.norm or allowed[0]
        if norm not in allowed:
            raise ConfigurationError.of("model.norm", f"be {' or '.join(allowed)} with {self.key}", norm)
        return norm


@dataclass(frozen=True)
class ImportedModel:
    """A picklable module factory. Its `str` is its name.

    Attributes:
        name: Display name.
        path: `package.module:factory`.
        arguments: Names and values of the factory's arguments.
        folders: Appended to the import path of the process that builds the module.
    """

    name: str
    path: str
    arguments: tuple[tuple[str, Any], ...]
    folders: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def __call__(self) -> nn.Module:
        """Return the module, initialized from PyTorch's current random state."""
        module: nn.Module = getattr(imported(self.path, self.folders), name_in(self.path))(**dict(self.arguments))
        return module


def is_import_path(kind: str) -> bool:
    """Return whether it has the form `package.module:factory`."""
    module, _, name = kind.partition(":")
    return name.isidentifier() and all(part.isidentifier() for part in module.split("."))


def name_in(path: str) -> str:
    """Return the name of the factory in an import path."""
    return path.partition(":")[2]


def imported(path: str, folders: Sequence[str]) -> ModuleType:
    """Return the module; importing it leaves PyTorch's random state unchanged, even if it draws numbers."""
    import torch

    for folder in folders:
        if folder not in sys.path:
            sys.path.append(folder)
    with torch.random.fork_rng(devices=[]):
        return importlib.import_module(path.partition(":")[0])
