"""The table of models: a new one is its layers in `networks`, a function that reads the request, and one line here.

Layers are named by their import path, so that a model can be checked and sent without torch.

What detectors compare in place of a row, by the user's choice.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedscout.engine.data.federation import EmbeddingSource
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.models.layout import ModelFactory
from fedscout.engine.text import did_you_mean
from fedscout.experiments.models.request import (
    GROUP_CHANNELS,
    IMAGE_AXES,
    TOKENS,
    ImportedModel,
    ModelBuilder,
    ModelRequest,
    is_import_path,
)

LENET_SMALLEST_SIDE = 16
"""Of which the second pooling leaves one pixel: 16 - 4 = 12, halved 6, 6 - 4 = 2, halved 1."""
CNN2_SMALLEST_SIDE = 4
MOST_CHARACTERS = 512
"""Larger vocabularies are of words."""
RESNET_WIDTHS = (64, 128, 256, 512)


def _network(name: str, path: str, **arguments: Any) -> ImportedModel:
    return ImportedModel(name, f"{__package__}.networks:{path}", tuple(arguments.items()))


def _dense_net(request: ModelRequest, hidden: tuple[int, ...], batch_norm: bool = False) -> ImportedModel:
    """Return a net with these hidden widths, between the features and the classes of the request."""
    widths = (request.num_features, *hidden, request.num_classes)
    chosen = _activation(request)
    if request.settings.dropout:
        chosen["dropout"] = request.settings.dropout
    kind, normalised = "dense" if hidden else "linear", {"batch norm": ""} if batch_norm else {}
    name = f"{kind} {'-'.join(map(str, widths))}{_with({**normalised, **chosen})}"
    flatten = len(request.feature_shape) > 1
    return _network(name, "dense_net", widths=widths, flatten=flatten, batch_norm=batch_norm, **chosen)


def _activation(request: ModelRequest) -> dict[str, Any]:
    """Return the activation as an argument; none where it is the usual one, so that such a model is named as ever."""
    return {} if request.settings.activation in (None, "relu") else {"activation": request.settings.activation}


def _with(chosen: Mapping[str, Any]) -> str:
    """Return what a name says of such choices, such as ` with batch norm, dropout 0.5`."""
    return " with " + ", ".join(f"{key} {value}".rstrip() for key, value in chosen.items()) if chosen else ""


def linear(request: ModelRequest) -> ImportedModel:
    """Multinomial logistic regression: one fully connected layer, logits at the end."""
    request.check("linear")
    return _dense_net(request, ())


def dense(request: ModelRequest) -> ImportedModel:
    """A dense net; a row of more than one axis, such as an image, is flattened first."""
    request.check("dense", reads=("hidden", "norm", "activation", "dropout"))
    return _dense_net(request, request.hidden(64, 32), request.norm("dense", "none", "batch") == "batch")


def dense_large(request: ModelRequest) -> ImportedModel:
    """The net 1024-512-256-128-64 with batch normalisation."""
    request.check("dense_large", reads=("activation", "dropout"))
    return _dense_net(request, (1024, 512, 256, 128, 64), batch_norm=True)


def dqn(request: ModelRequest) -> ImportedModel:
    """The value network of deep Q-learning on a few numbers, such as CartPole's four: one value an action.

    V. Mnih et al. Human-level control through deep reinforcement learning. Nature 518, 2015. There convolutions read
    the screen; here two hidden layers of 64 read the state itself. `num_classes` is the number of actions.
    """
    request.check("dqn", reads=("hidden", "activation"))
    return _dense_net(request, request.hidden(64, 64))


def embedding_classifier(request: ModelRequest) -> ImportedModel:
    """A classifier on top of precomputed embeddings: linear, or with hidden layers if they are asked for.

    The embeddings are those of a pre-trained network that stays as it is, such as one sentence vector a text:
    N. Reimers, I. Gurevych. Sentence-BERT: sentence embeddings using Siamese BERT-networks. EMNLP 2019, where logistic
    regression on top is the usual probe. Only the classifier is trained, and sent.
    """
    request.check("embedding_classifier", reads=("hidden",), data_kinds=("embedding", "table"))
    return _dense_net(request, request.hidden())


def lenet(request: ModelRequest) -> ImportedModel:
    """LeNet-5 for images of any number of channels: two convolutions with pooling, three dense layers.

    Y. LeCun, L. Bottou, Y. Bengio, P. Haffner. Gradient-based learning applied to document recognition. Proceedings of
    the IEEE 86(11), 1998. As usual today with ReLU and maximum pooling, and without the original's partial connections.
    """
    request.check("lenet", reads=("activation",))
    reason = ", as its second pooling has nothing left of fewer"
    shape = request.image_shape("lenet", LENET_SMALLEST_SIDE, reason)
    chosen = _activation(request)
    return _network(f"lenet{_with(chosen)}", "lenet", image_shape=shape, num_classes=request.num_classes, **chosen)


def cnn2(request: ModelRequest) -> ImportedModel:
    """Two convolutions and two dense layers: the convolution net of federated averaging.

    B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas. Communication-efficient learning of deep networks
    from decentralized data. AISTATS 2017, section 3: two 5 x 5 convolutions of 32 and 64 channels, each with maximum
    pooling by two, 512 units, ReLU; 1,663,370 parameters on 28 x 28 pixels and ten classes.
    """
    return _pooled_convolutions(request, "cnn2", ((32,), (64,)), kernel=5)


def cnn4(request: ModelRequest) -> ImportedModel:
    """Four convolutions and two dense layers: two pairs of small convolutions, each pair followed by a pooling.

    Pairs of 3 x 3 convolutions in place of one larger: K. Simonyan, A. Zisserman. Very deep convolutional networks for
    large-scale image recognition. ICLR 2015. Here the first two blocks only, of 32 and 64 channels, and 512 units, the
    usual size for CIFAR-10; without dropout.
    """
    return _pooled_convolutions(request, "cnn4", ((32, 32), (64, 64)), kernel=3)


def _pooled_convolutions(
    request: ModelRequest, kind: str, blocks: tuple[tuple[int, ...], ...], kernel: int
) -> ImportedModel:
    request.check(kind, reads=("hidden", "activation"))
    shape = request.image_shape(kind, 2 ** len(blocks), ", as its last pooling has nothing left of fewer")
    chosen = _activation(request)
    return _network(
        f"{kind}{_with(chosen)}",
        "pooled_convolutions",
        image_shape=shape,
        blocks=blocks,
        kernel=kernel,
        hidden=request.one_hidden(kind, 512),
        num_classes=request.num_classes,
        **chosen,
    )


def resnet18(request: ModelRequest) -> ImportedModel:
    """ResNet-18 for small images; `hidden` are the channels of its four stages.

    Group normalisation is the default, as batch statistics of clients with different labels disagree: K. Hsieh,
    A. Phanishayee, O. Mutlu, P. Gibbons. The non-IID data quagmire of decentralized machine learning. ICML 2020.
    """
    request.check("resnet18", reads=("hidden", "norm"))
    channels, _, _ = request.image_shape("resnet18", 1)
    norm = request.norm("resnet18", "group", "batch")
    widths = request.hidden(*RESNET_WIDTHS)
    step = GROUP_CHANNELS if norm == "group" else 1
    if len(widths) != len(RESNET_WIDTHS) or any(width % step for width in widths):
        multiples = f"multiples of {step}" if step > 1 else "widths"
        raise ConfigurationError(
            Fault(
                "model.hidden",
                f"be {len(RESNET_WIDTHS)} {multiples} with model.kind=resnet18 and {norm} norm",
                list(widths),
            )
        )
    thinner = "" if widths == RESNET_WIDTHS else f" of {'-'.join(map(str, widths))} channels"
    return _network(
        f"resnet18{thinner} with {norm} norm",
        "ResidualNet",
        channels=channels,
        num_classes=request.num_classes,
        widths=widths,
        batch_norm=norm == "batch",
    )


def embedding_bag(request: ModelRequest) -> ImportedModel:
    """A bag of embeddings: each text is the sum of its words' learned vectors."""
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
    """TextCNN: convolutions over a text's words; `hidden` is the number of feature maps of each width."""
    request.check("textcnn", reads=("hidden", "embedding_size", "dropout"), data_kinds=TOKENS)
    maps, dropout = request.one_hidden("textcnn", 100), request.settings.dropout
    return _network(
        f"textcnn of {maps} maps a width, {request.vocabulary_size} tokens",
        "TextNet",
        vocabulary_size=request.vocabulary_size,
        embedding_size=request.settings.embedding_size or 100,
        maps=maps,
        dropout=0.5 if dropout is None else dropout,
        num_classes=request.num_classes,
    )


def char_lstm(request: ModelRequest) -> ImportedModel:
    """The next character of a text, by an LSTM; `hidden` are the units of each LSTM layer."""
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
    """The model that suits the rows."""
    return MODELS[automatic_kind(request)](request)


def automatic_kind(request: ModelRequest) -> str:
    """Return the kind of model that suits rows of this kind and shape.

    Images from 16 pixels a side: lenet; from 4: cnn2. Tokens whose classes are the tokens themselves, as where
    the next character is to be told: char_lstm; other tokens: embedding_bag. Embeddings: embedding_classifier. Else:
    dense.
    """
    shape = request.feature_shape
    match request.data_kind:
        case "image" if len(shape) == IMAGE_AXES and min(shape[1:]) >= CNN2_SMALLEST_SIDE:
            return "lenet" if min(shape[1:]) >= LENET_SMALLEST_SIDE else "cnn2"
        case "tokens":
            # Few tokens, and classes for at least half of them: a rare character may never be a label.
            is_characters = request.vocabulary_size <= MOST_CHARACTERS
            tells_next = is_characters and 2 * request.num_classes >= request.vocabulary_size
            return "char_lstm" if tells_next else "embedding_bag"
        case "embedding":
            return "embedding_classifier"
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
"""Each raises a `ConfigurationError` where a setting does not go with it, and a `DataError` for other rows."""


def model_fault(kind: str) -> str | None:
    """Return what is wrong with the name of a model, or None."""
    if kind in MODELS or is_import_path(kind):
        return None
    meant = did_you_mean(kind, MODELS)
    return f"must be one of {', '.join(MODELS)}, or package.module:factory of one's own, got {kind!r}{meant}"


def build_model(request: ModelRequest) -> ModelFactory:
    """Return the factory of the model that the settings name, a picklable value whose `str` is its name.

    Raises:
        ConfigurationError: If there is no such model, a setting does not go with it, or it does not work.
        DataError: If it does not fit the data.
    """
    kind = request.settings.kind
    if fault := model_fault(kind):
        raise ConfigurationError(Fault("model.kind", problem=fault))
    if kind in MODELS:
        return MODELS[kind](request)
    from fedscout.experiments.models.own import own_model

    return own_model(request)


EMBEDDED_KINDS = ("image", "tokens")
"""Rows whose single values say little."""


def embedding_source(choice: str, request: ModelRequest, model: ModelFactory) -> EmbeddingSource | None:
    """Return the network whose view of rows detectors compare, or None to compare the features.

    Args:
        choice: `auto`, `features`, or `package.module:factory` of a network that turns rows into vectors.
        request: What the task's model was built for.
        model: The task's model.

    Raises:
        ConfigurationError: If the user's network can't be used, or there is no such choice.
    """
    if choice == "features" or (choice == "auto" and request.data_kind not in EMBEDDED_KINDS):
        return None
    if choice == "auto":
        return EmbeddingSource(model)
    if not is_import_path(choice):
        raise ConfigurationError(
            Fault("federation.embedding", "be auto, features or package.module:factory", repr(choice))
        )
    from fedscout.experiments.models.own import own_extractor

    return EmbeddingSource(own_extractor(choice, request), penultimate=False)
