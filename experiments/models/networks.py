"""Networks: dense, convolutional, ResNet-18, TextCNN, embedding bag, character LSTM.

All networks return logits, and layers have PyTorch's default initialization unless stated otherwise.

Character LSTM (next-character prediction): B. McMahan, E. Moore, D. Ramage, S. Hampson, B. Agüera y Arcas.
Communication-efficient learning of deep networks from decentralized data. AISTATS 2017, section 3: character vectors of
length 8, two layers of 256 units; the same in S. Caldas et al. LEAF: a benchmark for federated settings.
arXiv:1812.01097, 2018. Deviations: PyTorch's LSTM has two bias vectors where one suffices; a row has one label, the
next character, while the paper's loss covers every position; padding (token 0) after a text is ignored.

Dense net: batch normalization, if any, stands between a hidden layer and its activation: S. Ioffe, C. Szegedy. Batch
normalization: accelerating deep network training by reducing internal covariate shift. ICML 2015. Dropout is applied to
the output of an activation: N. Srivastava et al. Dropout: a simple way to prevent neural networks from overfitting.
JMLR 15, 2014. Deviation: kept outputs are scaled by 1 / (1 − dropout) in training, where the paper scales weights
afterwards.

ResNet-18 for small images: K. He, X. Zhang, S. Ren, J. Sun. Deep residual learning for image recognition. CVPR 2016:
eight blocks of two 3 x 3 convolutions, y = ReLU(F(x) + shortcut(x)) (eq. 1 and 2), with 64, 128, 256 and 512 channels;
the first block of each width except the first halves the image; a shortcut that changes the shape is a 1 x 1
convolution (option B). Deviation for images of a few dozen pixels: the first convolution is 3 x 3 with stride 1 and has
no pooling after it. Group normalization uses groups of 16 channels, one of the divisions studied by Y. Wu, K. He. Group
normalization. ECCV 2018, section 4.1.

TextCNN: Y. Kim. Convolutional neural networks for sentence classification. EMNLP 2014: c = ReLU(w · x + b) over windows
of 3, 4 and 5 words (eq. 2), max-over-time pooling (eq. 3), dropout, logits (eq. 4, 5). Texts are zero-padded at both
ends, as in the author's program, so that texts may have any length. Deviations: vectors are learned from scratch
("CNN-rand") and usually have length 100, where the paper's have 300; weights have no norm constraint.

Embedding bag: the sum of a text's learned word vectors divided by the square root of the number of words, followed by a
linear layer. A. Joulin, E. Grave, P. Bojanowski, T. Mikolov. Bag of tricks for efficient text classification. EACL
2017, section 2; vectors are initialized uniformly in ±1 / length, as in the authors' program, fastText. Deviations: the
square root of the number of words in place of that number, as gradients through a mean are too small for the learning
rates of the other models; words only, without n-grams; a softmax over all classes in place of the hierarchical one;
vectors of length 32 in place of 10.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor, nn

from fedscout.engine.models.dense import ACTIVATIONS
from fedscout.experiments.models.request import GROUP_CHANNELS

PADDING_TOKEN = 0


class CharacterNet(nn.Module):
    """LSTM over characters that classifies by its last state.

    Args:
        vocabulary_size: Number of tokens; the vector of padding (0) is always zero.
        embedding_size: Length of a character's vector.
        widths: Units of each LSTM layer.
        num_classes: Number of outputs.
    """

    def __init__(self, vocabulary_size: int, embedding_size: int, widths: Sequence[int], num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_size, padding_idx=PADDING_TOKEN)
        inputs = (embedding_size, *widths[:-1])
        self.layers = nn.ModuleList(
            nn.LSTM(before, width, batch_first=True) for before, width in zip(inputs, widths, strict=True)
        )
        self.last = nn.Linear(widths[-1], num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of integer tokens `(rows, length)`, shape `(rows, num_classes)`."""
        tokens = tokens.long()
        states = self.embedding(tokens)
        for layer in self.layers:
            states, _ = layer(states)
        rows = torch.arange(len(tokens), device=tokens.device)
        logits: Tensor = self.last(states[rows, _last_positions(tokens)])
        return logits


def _last_positions(tokens: Tensor) -> Tensor:
    """Return the position of the last non-padding token of each row, 0 if there is none."""
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    return torch.where(tokens != PADDING_TOKEN, positions, 0).amax(dim=1)


def pooled_convolutions(
    image_shape: tuple[int, int, int],
    blocks: Sequence[Sequence[int]],
    kernel: int,
    hidden: Sequence[int],
    num_classes: int,
    activation: str = "relu",
    padded: bool = True,
) -> nn.Sequential:
    """Return a network of convolution blocks, each followed by pooling, which halves the image, and dense layers.

    Args:
        image_shape: `(channels, height, width)` of a row.
        blocks: Output channels of each block's convolutions, such as `((32,), (64,))`.
        kernel: Kernel size in pixels, odd.
        hidden: Widths of the hidden dense layers.
        num_classes: Number of outputs.
        activation: Name of the activation.
        padded: Whether convolutions are zero-padded to preserve the image size.
    """
    channels, *sides = image_shape
    activation_layer = ACTIVATIONS[activation].layer
    layers: list[nn.Module] = []
    for block in blocks:
        for outputs in block:
            layers += [nn.Conv2d(channels, outputs, kernel, padding=kernel // 2 if padded else 0), activation_layer()]
            channels = outputs
            sides = sides if padded else [side - kernel + 1 for side in sides]
        layers.append(nn.MaxPool2d(2))
        sides = [side // 2 for side in sides]
    layers.append(nn.Flatten())
    inputs = channels * prod(sides)
    for units in hidden:
        layers += [nn.Linear(inputs, units), activation_layer()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, num_classes))


def dense_net(
    widths: Sequence[int], flatten: bool, batch_norm: bool, activation: str = "relu", dropout: float = 0.0
) -> nn.Sequential:
    """Return a network of fully connected layers with activations between them.

    Args:
        widths: Features, hidden widths, classes: layer i maps `widths[i]` to `widths[i + 1]`.
        flatten: Whether rows have more than one axis.
        batch_norm: Whether hidden layers are normalized.
        activation: Name of the activation.
        dropout: Dropout rate of each hidden layer's outputs.
    """
    layers: list[nn.Module] = [nn.Flatten()] if flatten else []
    for index in range(len(widths) - 1):
        if index > 0:
            layers += [nn.BatchNorm1d(widths[index])] if batch_norm else []
            layers.append(ACTIVATIONS[activation].layer())
            layers += [nn.Dropout(dropout)] if dropout else []
        layers.append(nn.Linear(widths[index], widths[index + 1]))
    return nn.Sequential(*layers)


BLOCKS_EACH = 2


def _norm(channels: int, batch_norm: bool) -> nn.Module:
    return nn.BatchNorm2d(channels) if batch_norm else nn.GroupNorm(channels // GROUP_CHANNELS, channels)


def _convolution(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)  # the norm that follows has a bias


class ResidualBlock(nn.Module):
    """Residual block: two convolutions with a shortcut connection.

    Args:
        inputs: Input channels.
        outputs: Output channels.
        stride: 2 halves the image.
        batch_norm: Batch normalization if true, group normalization otherwise.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, batch_norm: bool) -> None:
        super().__init__()
        self.residual = nn.Sequential(
            _convolution(inputs, outputs, stride),
            _norm(outputs, batch_norm),
            nn.ReLU(),
            _convolution(outputs, outputs),
            _norm(outputs, batch_norm),
        )
        keeps_shape = stride == 1 and inputs == outputs
        self.shortcut: nn.Module = (
            nn.Identity()
            if keeps_shape
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), _norm(outputs, batch_norm))
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return the output, shape `(rows, outputs, height / stride, width / stride)`."""
        return nn.functional.relu(self.residual(images) + self.shortcut(images))  # eq. 1, 2


class ResidualNet(nn.Module):
    """ResNet-18 for small images.

    Args:
        channels: Channels of the images.
        num_classes: Number of outputs.
        widths: Channels of each stage of two blocks.
        batch_norm: Batch normalization if true, group normalization otherwise.
    """

    def __init__(self, channels: int, num_classes: int, widths: Sequence[int], batch_norm: bool) -> None:
        super().__init__()
        self.stem = nn.Sequential(_convolution(channels, widths[0]), _norm(widths[0], batch_norm), nn.ReLU())
        blocks, inputs = [], widths[0]
        for stage, outputs in enumerate(widths):
            for index in range(BLOCKS_EACH):
                halves = index == 0 and stage > 0
                blocks.append(ResidualBlock(inputs, outputs, 2 if halves else 1, batch_norm))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(inputs, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return the logits of images `(rows, channels, height, width)`, shape `(rows, num_classes)`."""
        logits: Tensor = self.last(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits


KERNEL_WIDTHS = (3, 4, 5)


class TextNet(nn.Module):
    """TextCNN.

    Args:
        vocabulary_size: Number of tokens; the vector of padding (0) is always zero.
        embedding_size: Length of a token's vector.
        maps: Feature maps of each kernel width.
        dropout: Dropout rate of the features.
        num_classes: Number of outputs.
    """

    def __init__(self, vocabulary_size: int, embedding_size: int, maps: int, dropout: float, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_size, padding_idx=PADDING_TOKEN)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(embedding_size, maps, width, padding=width - 1) for width in KERNEL_WIDTHS
        )
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(maps * len(KERNEL_WIDTHS), num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of integer tokens `(rows, length)`, shape `(rows, num_classes)`."""
        vectors = self.embedding(tokens.long()).transpose(1, 2).unsqueeze(2)  # images one pixel high, channels last
        # A maximum commutes with ReLU, and leaves fewer elements.
        pooled = [
            nn.functional.relu(_conv1d(convolution, vectors).amax(dim=(2, 3))) for convolution in self.convolutions
        ]
        logits: Tensor = self.last(self.dropout(torch.cat(pooled, dim=1)))
        return logits


def _conv1d(convolution: nn.Module, vectors: Tensor) -> Tensor:
    """Return a 1-D convolution computed as a 2-D one, which saves PyTorch rearranging the data."""
    assert isinstance(convolution, nn.Conv1d)
    padding = (0, int(convolution.padding[0]))
    return nn.functional.conv2d(vectors, convolution.weight.unsqueeze(2), convolution.bias, padding=padding)


class EmbeddingBag(nn.Module):
    """Scaled sum of word vectors, followed by a linear layer.

    Args:
        vocabulary_size: Number of tokens; the vector of padding (0) is always zero.
        embedding_size: Length of a token's vector.
        num_classes: Number of outputs.
    """

    def __init__(self, vocabulary_size: int, embedding_size: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, embedding_size, padding_idx=PADDING_TOKEN)
        with torch.no_grad():
            self.embedding.weight[1:].uniform_(-1 / embedding_size, 1 / embedding_size)
        self.last = nn.Linear(embedding_size, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of integer tokens `(rows, length)`, shape `(rows, num_classes)`."""
        num_words = (tokens != PADDING_TOKEN).sum(dim=1, keepdim=True).clamp_min(1)
        logits: Tensor = self.last(self.embedding(tokens.long()).sum(dim=1) / num_words.sqrt())
        return logits
