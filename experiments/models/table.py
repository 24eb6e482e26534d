"""Table of models by kind, and the choice of the embedding network that detectors use.

A new model needs layers in `networks`, a builder function that reads the request, and an entry in `MODELS`. Layers are
named by their import path, so that a model can be checked and sent without PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedscout.engine.data.federation import EmbeddingSource
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.text import did_you_mean
from fedscout.experiments.data.dataset import DataKind
from fedscout.experiments.models.request import GROUP_CHANNELS, NUMBERS, ImportedModel, ModelRequest, is_import_path

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
    return _dense_net(request, ())


def dense(request: ModelRequest) -> ImportedModel:
    """Return a dense network; rows of more than one axis, such as images, are flattened first."""
    return _dense_net(request, request.hidden(64, 32), request.norm("none", "batch") == "batch")


def dense_large(request: ModelRequest) -> ImportedModel:
    """Return the network 1024-512-256-128-64 with batch normalization."""
    return _dense_net(request, (1024, 512, 256, 128, 64), batch_norm=True)


def dqn(request: ModelRequest) -> ImportedModel:
    """Return the value network of deep Q-learning on low-dimensional states, such as CartPole's: one value per action.

    V. Mnih et al. Human-level control through deep reinforcement learning. Nature 518, 2015. Deviation: two hidden
    layers of 64 on the state itself in place of convolutions on the screen. `num_classes` is the number of actions.
    """
    return _dense_net(request, request.hidden(64, 64))


def embedding_classifier(request: ModelRequest) -> ImportedModel:
    """Return a classifier on precomputed embeddings: linear, or with hidden layers if configured.

    The embeddings come from a frozen pretrained network, such as one sentence vector per text: N. Reimers, I. Gurevych.
    Sentence-BERT: sentence embeddings using Siamese BERT-networks. EMNLP 2019, where logistic regression is the usual
    probe. Only the classifier is trained and sent.
    """
    return _dense_net(request, request.hidden())


def lenet(request: ModelRequest) -> ImportedModel:
    """Return LeNet-5 for images of any number of channels: two convolutions with pooling, three dense layers.

    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. Proceedings of
    the IEEE 86(11), 1998. Deviation, as is common: ReLU, max pooling, and no partial connections.
    """
    return _pooled_convolutions(request, ((6,), (16,)), 5, (120, 84), LENET_SMALLEST_SIDE, padded=False)


def cnn2(request: ModelRequest) -> ImportedModel:
    """Return the convolutional network of the FedAvg paper: two convolutions and two dense layers.

    B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-efficient learning of deep networks
    from decentralized data. AISTATS 2017, section 3: two 5 x 5 convolutions of 32 and 64 channels, each with 2 x 2 max
    pooling, 512 units, ReLU; 1,663,370 parameters on 28 x 28 pixels and ten classes.
    """
    return _pooled_convolutions(request, ((32,), (64,)), 5, (request.one_hidden(512),))


def cnn4(request: ModelRequest) -> ImportedModel:
    """Return two pairs of small convolutions, each pair followed by pooling, and two dense layers.

    Pairs of 3 x 3 convolutions in place of one larger: K. Simonyan, A. Zisserman. Very deep convolutional networks for
    large-scale image recognition. ICLR 2015. Deviation: only the first two blocks, of 32 and 64 channels, and 512
    units, the usual size for CIFAR-10; no dropout.
    """
    return _pooled_convolutions(request, ((32, 32), (64, 64)), 3, (request.one_hidden(512),))


def _pooled_convolutions(
    request: ModelRequest,
    blocks: tuple[tuple[int, ...], ...],
    kernel: int,
    hidden: tuple[int, ...],
    smallest_side: int = CNN2_SMALLEST_SIDE,
    padded: bool = True,
) -> ImportedModel:
    shape = request.image_shape(smallest_side, ", as its last pooling leaves nothing of smaller ones")
    options = _activation(request)
    return _network(
        f"{request.settings.kind}{_name_suffix(options)}",
        "pooled_convolutions",
        image_shape=shape,
        blocks=blocks,
        kernel=kernel,
        hidden=hidden,
        num_classes=request.num_classes,
        padded=padded,
        **options,
    )


def resnet18(request: ModelRequest) -> ImportedModel:
    """Return ResNet-18 for small images; `hidden` are the channels of its four stages.

    Group normalization is the default, as batch statistics differ between clients with different labels: K. Hsieh, A.
    Phanishayee, O. Mutlu, P. Gibbons. The non-IID data quagmire of decentralized machine learning. ICML 2020.
    """
    channels, _, _ = request.image_shape(1)
    norm = request.norm("group", "batch")
    widths = request.hidden(*RESNET_WIDTHS)
    step = GROUP_CHANNELS if norm == "group" else 1
    if len(widths) != len(RESNET_WIDTHS) or any(width % step for width in widths):
        multiples = f"multiples of {step}" if step > 1 else "widths"
        raise ConfigurationError.of(
            "model.hidden", f"be {len(RESNET_WIDTHS)} {multiples} with {request.key} and {norm} norm", list(widths)
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
    maps, dropout = request.one_hidden(100), request.settings.dropout
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
    embedding_size, widths = request.settings.embedding_size or 8, request.hidden(256, 256)
    return _network(
        f"char_lstm {'-'.join(map(str, (embedding_size, *widths, request.num_classes)))}",
        "CharacterNet",
        vocabulary_size=request.vocabulary_size,
        embedding_size=embedding_size,
        widths=widths,
        num_classes=request.num_classes,
    )


def automatic_kind(request: ModelRequest) -> str:
    """Return the default kind of model for rows of this kind and shape.

    Images of at least 16 pixels a side: lenet; of at least 4: cnn2. Tokens whose classes are the tokens themselves, as
    in next-character prediction: char_lstm; other tokens: embedding_bag. Otherwise: dense.
    """
    shape = request.feature_shape
    match request.data_kind:
        case "image" if len(shape) == 3 and min(shape[1:]) >= CNN2_SMALLEST_SIDE:
            return "lenet" if min(shape[1:]) >= LENET_SMALLEST_SIDE else "cnn2"
        case "tokens":
            # Few tokens, and classes for at least half of them: a rare character may never be a label.
            is_characters = request.vocabulary_size <= MOST_CHARACTERS
            predicts_next_token = is_characters and 2 * request.num_classes >= request.vocabulary_size
            return "char_lstm" if predicts_next_token else "embedding_bag"
    return "dense"


@dataclass(frozen=True)
class ModelKind:
    """Entry of the table of models.

    Attributes:
        build: Raises a `ConfigurationError` for an unsupported value, and a `DataError` for unsupported rows.
        reads: Settings that it uses; all others must be left out.
        data_kinds: Kinds of rows that it supports.
    """

    build: Callable[[ModelRequest], ModelFactory]
    reads: tuple[str, ...] = ()
    data_kinds: tuple[DataKind, ...] = NUMBERS


AUTO = "auto"
CONVOLUTIONAL = ("lenet", "cnn2", "cnn4", "resnet18")
MODELS: Mapping[str, ModelKind] = {
    "linear": ModelKind(linear),
    "dense": ModelKind(dense, ("hidden", "norm", "activation", "dropout")),
    "dense_large": ModelKind(dense_large, ("activation", "dropout")),
    "lenet": ModelKind(lenet, ("activation",)),
    "cnn2": ModelKind(cnn2, ("hidden", "activation")),
    "cnn4": ModelKind(cnn4, ("hidden", "activation")),
    "resnet18": ModelKind(resnet18, ("hidden", "norm")),
    "embedding_bag": ModelKind(embedding_bag, ("embedding_size",), ("tokens",)),
    "textcnn": ModelKind(textcnn, ("hidden", "embedding_size", "dropout"), ("tokens",)),
    "char_lstm": ModelKind(char_lstm, ("hidden", "embedding_size"), ("tokens",)),
    "embedding_classifier": ModelKind(embedding_classifier, ("hidden",), ("table",)),
    "dqn": ModelKind(dqn, ("hidden", "activation")),
}
KINDS = (AUTO, *MODELS)


def model_fault(kind: str) -> str | None:
    """Return why a model kind is invalid, or None."""
    if kind in KINDS or is_import_path(kind):
        return None
    suggestion = did_you_mean(kind, KINDS)
    return f"must be one of {', '.join(KINDS)}, or your own package.module:factory, got {kind!r}{suggestion}"


def build_model(request: ModelRequest) -> ModelFactory:
    """Return the model factory for the settings, a picklable value whose `str` is its name.

    Raises:
        ConfigurationError: If the kind is unknown, a setting does not apply to it, or the model does not work.
        DataError: If the model does not fit the data.
    """
    settings = request.settings
    if fault := model_fault(settings.kind):
        raise ConfigurationError.of("model.kind", problem=fault)
    if settings.kind == AUTO:
        request = replace(request, settings=settings.model_copy(update={"kind": automatic_kind(request)}))
    if model := MODELS.get(request.settings.kind):
        request.check(model.reads, model.data_kinds)
        return model.build(request)
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
