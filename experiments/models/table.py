"""Requests for models, the table of models by kind, and the choice of the embedding network that detectors use.

A new model needs layers in `networks`, a builder function that reads the request, and an entry in `MODELS`. Layers are
named by their import path (`ImportedModel`), so that a model can be checked and sent without PyTorch.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from fedscout.engine.data.federation import EmbeddingSource
from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.text import did_you_mean
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

TABLE: tuple[DataKind, ...] = ("table",)
TOKENS: tuple[DataKind, ...] = ("tokens",)

IMAGE_AXES = 3


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

    def check(self, kind: str, reads: Collection[str] = (), data_kinds: Collection[DataKind] = NUMBERS) -> None:
        """Check that a model supports such rows and all settings that are set.

        Args:
            kind: Kind of the model.
            reads: Settings that the model supports.
            data_kinds: Kinds of rows that the model supports.

        Raises:
            ConfigurationError: If an unsupported setting is set.
            DataError: If rows are of another kind.
        """
        must = f"be left out with model.kind={kind}, which does not use it"
        faults = [
            Fault(f"model.{name}", must, list(value) if isinstance(value, tuple) else value)
            for name, value in self.settings
            if name not in {"kind", *reads} and value is not None
        ]
        if faults:
            raise ConfigurationError(faults)
        if self.data_kind not in data_kinds:
            advice = "; texts are for embedding_bag, textcnn and char_lstm" if self.data_kind == "tokens" else ""
            raise DataError.of(
                f"model.kind={kind}", f"get rows of kind {' or '.join(data_kinds)}", f"{self.data_kind}{advice}"
            )

    def image_shape(self, kind: str, smallest: int, reason: str = "") -> tuple[int, int, int]:
        """Return `(channels, height, width)` of the rows.

        Args:
            kind: Kind of the model, for messages.
            smallest: Minimum number of pixels per side.
            reason: Why smaller images are not supported, for messages.

        Raises:
            DataError: If rows are no images, or too small.
        """
        shape = self.feature_shape
        if len(shape) != IMAGE_AXES or min(shape[1:]) < smallest:
            raise DataError.of(
                f"model.kind={kind}",
                f"have images of shape (channels, height, width) with at least {smallest} pixels per side{reason}",
                f"rows of shape {shape}",
            )
        channels, height, width = shape
        return channels, height, width

    def hidden(self, *usual: int) -> tuple[int, ...]:
        """Return the configured widths of the hidden layers, or else `usual`."""
        return usual if self.settings.hidden is None else self.settings.hidden

    def one_hidden(self, kind: str, usual: int) -> int:
        """Return the width of a model's only hidden layer.

        Raises:
            ConfigurationError: If several are configured.
        """
        widths = self.hidden(usual)
        if len(widths) != 1:
            raise ConfigurationError.of("model.hidden", f"be one width with model.kind={kind}", list(widths))
        return widths[0]

    def norm(self, kind: str, *allowed: NormName) -> NormName:
        """Return the configured normalization, or else the first allowed one.

        Raises:
            ConfigurationError: If it is not allowed.
        """
        norm = self.settings.norm or allowed[0]
        if norm not in allowed:
            raise ConfigurationError.of("model.norm", f"be {' or '.join(allowed)} with model.kind={kind}", norm)
        return norm


ModelBuilder = Callable[[ModelRequest], ModelFactory]
"""Returns a picklable value whose `str` is its name."""


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


LENET_SMALLEST_SIDE = 16
"""Of which the second pooling leaves one pixel: 16 - 4 = 12, halved 6, 6 - 4 = 2, halved 1."""
CNN2_SMALLEST_SIDE = 4
MOST_CHARACTERS = 512
"""Larger vocabularies consist of words."""
RESNET_WIDTHS = (64, 128, 256, 512)


def _network(name: str, path: str, **arguments: Any) -> ImportedModel:
    return ImportedModel(name, f"{__package__}.networks:{path}", tuple(arguments.items()))


def _dense_net(request: ModelRequest, hidden: tuple[int, ...], batch_norm: bool = False) -> ImportedModel:
    """Return a network with these hidden widths between the features and the classes of the request."""
    widths = (request.num_features, *hidden, request.num_classes)
    options = _activation(request)
    if request.settings.dropout:
        options["dropout"] = request.settings.dropout
    kind, normalised = "dense" if hidden else "linear", {"batch norm": ""} if batch_norm else {}
    name = f"{kind} {'-'.join(map(str, widths))}{_name_suffix({**normalised, **options})}"
    flatten = len(request.feature_shape) > 1
    return _network(name, "dense_net", widths=widths, flatten=flatten, batch_norm=batch_norm, **options)


def _activation(request: ModelRequest) -> dict[str, Any]:
    """Return the activation as an argument; empty for the default, so that the name of the model omits it."""
    return {} if request.settings.activation in (None, "relu") else {"activation": request.settings.activation}


def _name_suffix(chosen: Mapping[str, Any]) -> str:
    """Return the choices as a suffix of the name, such as ` with batch norm, dropout 0.5`."""
    return " with " + ", ".join(f"{key} {value}".rstrip() for key, value in chosen.items()) if chosen else ""


def linear(request: ModelRequest) -> ImportedModel:
    """Return multinomial logistic regression: one fully connected layer."""
    request.check("linear")
    return _dense_net(request, ())


def dense(request: ModelRequest) -> ImportedModel:
    """Return a dense network; rows of more than one axis, such as images, are flattened first."""
    request.check("dense", reads=("hidden", "norm", "activation", "dropout"))
    return _dense_net(request, request.hidden(64, 32), request.norm("dense", "none", "batch") == "batch")


def dense_large(request: ModelRequest) -> ImportedModel:
    """Return the network 1024-512-256-128-64 with batch normalization."""
    request.check("dense_large", reads=("activation", "dropout"))
    return _dense_net(request, (1024, 512, 256, 128, 64), batch_norm=True)


def dqn(request: ModelRequest) -> ImportedModel:
    """Return the value network of deep Q-learning on low-dimensional states, such as CartPole's: one value per action.

    V. Mnih et al. Human-level control through deep reinforcement learning. Nature 518, 2015. Deviation: two hidden
    layers of 64 on the state itself in place of convolutions on the screen. `num_classes` is the number of actions.
    """
    request.check("dqn", reads=("hidden", "activation"))
    return _dense_net(request, request.hidden(64, 64))


def embedding_classifier(request: ModelRequest) -> ImportedModel:
    """Return a classifier on precomputed embeddings: linear, or with hidden layers if configured.

    The embeddings come from a frozen pretrained network, such as one sentence vector per text: N. Reimers, I. Gurevych.
    Sentence-BERT: sentence embeddings using Siamese BERT-networks. EMNLP 2019, where logistic regression is the usual
    probe. Only the classifier is trained and sent.
    """
    request.check("embedding_classifier", reads=("hidden",), data_kinds=TABLE)
    return _dense_net(request, request.hidden())


def lenet(request: ModelRequest) -> ImportedModel:
    """Return LeNet-5 for images of any number of channels: two convolutions with pooling, three dense layers.

    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. Proceedings of
    the IEEE 86(11), 1998. Deviation, as is common: ReLU, max pooling, and no partial connections.
    """
    request.check("lenet", reads=("activation",))
    reason = ", as its second pooling leaves nothing of smaller ones"
    shape = request.image_shape("lenet", LENET_SMALLEST_SIDE, reason)
    options = _activation(request)
    return _network(
        f"lenet{_name_suffix(options)}", "lenet", image_shape=shape, num_classes=request.num_classes, **options
    )


def cnn2(request: ModelRequest) -> ImportedModel:
    """Return the convolutional network of the FedAvg paper: two convolutions and two dense layers.

    B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-efficient learning of deep networks
    from decentralized data. AISTATS 2017, section 3: two 5 x 5 convolutions of 32 and 64 channels, each with 2 x 2 max
    pooling, 512 units, ReLU; 1,663,370 parameters on 28 x 28 pixels and ten classes.
    """
    return _pooled_convolutions(request, "cnn2", ((32,), (64,)), kernel=5)


def cnn4(request: ModelRequest) -> ImportedModel:
    """Return two pairs of small convolutions, each pair followed by pooling, and two dense layers.

    Pairs of 3 x 3 convolutions in place of one larger: K. Simonyan, A. Zisserman. Very deep convolutional networks for
    large-scale image recognition. ICLR 2015. Deviation: only the first two blocks, of 32 and 64 channels, and 512
    units, the usual size for CIFAR-10; no dropout.
    """
    return _pooled_convolutions(request, "cnn4", ((32, 32), (64, 64)), kernel=3)


def _pooled_convolutions(
    request: ModelRequest, kind: str, blocks: tuple[tuple[int, ...], ...], kernel: int
) -> ImportedModel:
    request.check(kind, reads=("hidden", "activation"))
    shape = request.image_shape(kind, 2 ** len(blocks), ", as its last pooling leaves nothing of smaller ones")
    options = _activation(request)
    return _network(
        f"{kind}{_name_suffix(options)}",
        "pooled_convolutions",
        image_shape=shape,
        blocks=blocks,
        kernel=kernel,
        hidden=request.one_hidden(kind, 512),
        num_classes=request.num_classes,
        **options,
    )


def resnet18(request: ModelRequest) -> ImportedModel:
    """Return ResNet-18 for small images; `hidden` are the channels of its four stages.

    Group normalization is the default, as batch statistics differ between clients with different labels: K. Hsieh, A.
    Phanishayee, O. Mutlu, P. Gibbons. The non-IID data quagmire of decentralized machine learning. ICML 2020.
    """
    request.check("resnet18", reads=("hidden", "norm"))
    channels, _, _ = request.image_shape("resnet18", 1)
    norm = request.norm("resnet18", "group", "batch")
    widths = request.hidden(*RESNET_WIDTHS)
    step = GROUP_CHANNELS if norm == "group" else 1
    if len(widths) != len(RESNET_WIDTHS) or any(width % step for width in widths):
        multiples = f"multiples of {step}" if step > 1 else "widths"
        raise ConfigurationError.of(
            "model.hidden",
            f"be {len(RESNET_WIDTHS)} {multiples} with model.kind=resnet18 and {norm} norm",
            list(widths),
        )
    channels_suffix = "" if widths == RESNET_WIDTHS else f" of {'-'.join(map(str, widths))} channels"
    return _network(
        f"resnet18{channels_suffix} with {norm} norm",
        "ResidualNet",
        channels=channels,
        num_classes=request.num_classes,
        widths=widths,
        batch_norm=norm == "batch",
    )


def embedding_bag(request: ModelRequest) -> ImportedModel:
    """Return an embedding bag: each text is the scaled sum of its words' learned vectors."""
    request.check("embedding_bag", reads=("embedding_size",), data_kinds=TOKENS)
    embedding_size = request.settings.embedding_size or 32
    return _network(
        f"embedding_bag {'-'.join(map(str, (request.vocabulary_size, embedding_size, request.num_classes)))}",
        "EmbeddingBag",
        vocabulary_size=request.vocabulary_size,
        embedding_size=embedding_size,
        num_classes=request.num_classes,
    )


def textcnn(request: ModelRequest) -> ImportedModel:
    """Return TextCNN; `hidden` is the number of feature maps per kernel width."""
    request.check("textcnn", reads=("hidden", "embedding_size", "dropout"), data_kinds=TOKENS)
    maps, dropout = request.one_hidden("textcnn", 100), request.settings.dropout
    return _network(
        f"textcnn of {maps} maps per width, {request.vocabulary_size} tokens",
        "TextNet",
        vocabulary_size=request.vocabulary_size,
        embedding_size=request.settings.embedding_size or 100,
        maps=maps,
        dropout=0.5 if dropout is None else dropout,
        num_classes=request.num_classes,
    )


def char_lstm(request: ModelRequest) -> ImportedModel:
    """Return a next-character LSTM; `hidden` are the units of each LSTM layer."""
    request.check("char_lstm", reads=("hidden", "embedding_size"), data_kinds=TOKENS)
    embedding_size, widths = request.settings.embedding_size or 8, request.hidden(256, 256)
    return _network(
        f"char_lstm {'-'.join(map(str, (embedding_size, *widths, request.num_classes)))}",
        "CharacterNet",
        vocabulary_size=request.vocabulary_size,
        embedding_size=embedding_size,
        widths=widths,
        num_classes=request.num_classes,
    )


def automatic(request: ModelRequest) -> ModelFactory:
    """Return the default model for the rows."""
    return MODELS[automatic_kind(request)](request)


def automatic_kind(request: ModelRequest) -> str:
    """Return the default kind of model for rows of this kind and shape.

    Images of at least 16 pixels a side: lenet; of at least 4: cnn2. Tokens whose classes are the tokens themselves, as
    in next-character prediction: char_lstm; other tokens: embedding_bag. Otherwise: dense.
    """
    shape = request.feature_shape
    match request.data_kind:
        case "image" if len(shape) == IMAGE_AXES and min(shape[1:]) >= CNN2_SMALLEST_SIDE:
            return "lenet" if min(shape[1:]) >= LENET_SMALLEST_SIDE else "cnn2"
        case "tokens":
            # Few tokens, and classes for at least half of them: a rare character may never be a label.
            is_characters = request.vocabulary_size <= MOST_CHARACTERS
            predicts_next_token = is_characters and 2 * request.num_classes >= request.vocabulary_size
            return "char_lstm" if predicts_next_token else "embedding_bag"
    return "dense"


MODELS: Mapping[str, ModelBuilder] = {
    "auto": automatic,
    "linear": linear,
    "dense": dense,
    "dense_large": dense_large,
    "lenet": lenet,
    "cnn2": cnn2,
    "cnn4": cnn4,
    "resnet18": resnet18,
    "embedding_bag": embedding_bag,
    "textcnn": textcnn,
    "char_lstm": char_lstm,
    "embedding_classifier": embedding_classifier,
    "dqn": dqn,
}
"""Each raises a `ConfigurationError` for unsupported settings, and a `DataError` for unsupported rows."""


def model_fault(kind: str) -> str | None:
    """Return why a model kind is invalid, or None."""
    if kind in MODELS or is_import_path(kind):
        return None
    suggestion = did_you_mean(kind, MODELS)
    return f"must be one of {', '.join(MODELS)}, or your own package.module:factory, got {kind!r}{suggestion}"


def build_model(request: ModelRequest) -> ModelFactory:
    """Return the model factory for the settings, a picklable value whose `str` is its name.

    Raises:
        ConfigurationError: If the kind is unknown, a setting does not apply to it, or the model does not work.
        DataError: If the model does not fit the data.
    """
    kind = request.settings.kind
    if fault := model_fault(kind):
        raise ConfigurationError.of("model.kind", problem=fault)
    if kind in MODELS:
        return MODELS[kind](request)
    from fedscout.experiments.models.own import own_model

    return own_model(request)


EMBEDDED_KINDS = ("image", "tokens")
"""Rows whose individual values carry little information."""


def embedding_source(choice: str, request: ModelRequest, model: ModelFactory) -> EmbeddingSource | None:
    """Return the network whose embeddings of rows detectors compare, or None to compare the features.

    Args:
        choice: `auto`, `features`, or `package.module:factory` of a network that maps rows to vectors.
        request: Request from which the task's model was built.
        model: The task's model.

    Raises:
        ConfigurationError: If the custom network can't be used, or the choice is unknown.
    """
    if choice == "features" or (choice == "auto" and request.data_kind not in EMBEDDED_KINDS):
        return None
    if choice == "auto":
        return EmbeddingSource(model)
    if not is_import_path(choice):
        raise ConfigurationError.of("federation.embedding", "be auto, features or package.module:factory", repr(choice))
    from fedscout.experiments.models.own import own_extractor

    return EmbeddingSource(own_extractor(choice, request), penultimate=False)
