"""The work that is timed: data, model and local training of every client, for us and our peers alike.

A round is: every client trains one epoch of plain SGD from the global model, the models are averaged by row count, and
every client scores the new model on its own training data. `dense` is a 254-64-32-2 net on normal features, `tiny` an
8-8-2 net for very many clients, `lenet` LeNet-5 on 3 x 32 x 32 images of 10 classes, `textcnn` a TextCNN on texts of 40
words, `resnet18` a net of 11 million parameters on 3 x 8 x 8 images, where models and not rows are large, and
`resnet18-32` the same net on images of the usual 3 x 32 x 32. Labels are the largest of fixed random linear functions
of the row, so they can be learned.

The nets have the layers and names of ours, written as torch's users do:

- TextCNN without dropout: Y. Kim, "Convolutional neural networks for sentence classification", EMNLP 2014; vectors of
  length 100, a hundred maps of each width.
- ResNet-18 for small pictures with group normalisation: K. He, X. Zhang, S. Ren, J. Sun, "Deep residual learning for
  image recognition", CVPR 2016; Y. Wu, K. He, "Group normalization", ECCV 2018. The first convolution is 3 x 3 with
  stride one, no pooling follows it, groups are of 16 channels. 11 million parameters.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from math import prod
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

WorkName = Literal["dense", "lenet", "textcnn", "tiny", "resnet18", "resnet18-32"]

BATCH_SIZE = 32
LEARNING_RATE = 0.01
HIDDEN: dict[WorkName, tuple[int, ...]] = {"dense": (64, 32), "tiny": (8,)}
"""Hidden layers of the dense nets."""

FEATURE_SHAPES: dict[WorkName, tuple[int, ...]] = {
    "dense": (254,),
    "lenet": (3, 32, 32),
    "textcnn": (40,),
    "tiny": (8,),
    "resnet18": (3, 8, 8),
    "resnet18-32": (3, 32, 32),
}
NUM_CLASSES: dict[WorkName, int] = {"dense": 2, "lenet": 10, "textcnn": 4, "tiny": 2, "resnet18": 10, "resnet18-32": 10}
VOCABULARY_SIZES: dict[WorkName, int] = {"textcnn": 5000}
"""Vocabulary of token rows, drawn uniformly; token 0 is padding."""

LABEL_SEED = 10**6
MODEL_SEED = 0
WARM_UP_ROUNDS = 2


def client_rows(name: WorkName, client: int, num_samples: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return a client's features, shape `(samples, …)`, and labels."""
    shape = FEATURE_SHAPES[name]
    generator, num_tokens = np.random.default_rng(client), VOCABULARY_SIZES.get(name)
    size = (num_samples, *shape)
    drawn = generator.normal(size=size) if num_tokens is None else generator.integers(1, num_tokens, size)
    features = drawn.astype(np.float32)
    centred = features.reshape(num_samples, -1) - (num_tokens or 0) / 2
    labels = (centred @ _directions(name)).argmax(axis=1)
    return features, labels.astype(np.int64)


@cache
def _directions(name: WorkName) -> npt.NDArray[np.float64]:
    """Return the linear functions of a row of which the largest is its label, shape `(inputs, classes)`."""
    return np.random.default_rng(LABEL_SEED).normal(size=(prod(FEATURE_SHAPES[name]), NUM_CLASSES[name]))


def client_tensors(name: WorkName, client: int, num_samples: int, device: str = "cpu") -> tuple[Tensor, Tensor]:
    """Return the same as tensors on a device."""
    features, labels = client_rows(name, client, num_samples)
    return torch.from_numpy(features).to(device), torch.from_numpy(labels).to(device)


KERNEL_WIDTHS = (3, 4, 5)
SIZE, MAPS = 100, 100
STAGE_CHANNELS = (64, 128, 256, 512)
BLOCKS_EACH = 2
GROUP_CHANNELS = 16


class TextNet(nn.Module):
    """The net, for texts of some vocabulary; token 0 is padding."""

    def __init__(self, vocabulary_size: int, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary_size, SIZE, padding_idx=0)
        self.convolutions = nn.ModuleList(nn.Conv1d(SIZE, MAPS, width, padding=width - 1) for width in KERNEL_WIDTHS)
        self.last = nn.Linear(MAPS * len(KERNEL_WIDTHS), num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits of whole numbers `(rows, length)`, shape `(rows, num_classes)`."""
        vectors = self.embedding(tokens.long()).transpose(1, 2)
        largest = [nn.functional.relu(convolution(vectors)).amax(dim=2) for convolution in self.convolutions]
        logits: Tensor = self.last(torch.cat(largest, dim=1))
        return logits


def _normalised(inputs: int, outputs: int, stride: int, side: int) -> tuple[nn.Module, nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, side, stride=stride, padding=side // 2, bias=False)
    return convolution, nn.GroupNorm(outputs // GROUP_CHANNELS, outputs)


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        first, second = _normalised(inputs, outputs, stride, 3), _normalised(outputs, outputs, 1, 3)
        self.residual = nn.Sequential(*first, nn.ReLU(), *second)
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normalised(inputs, outputs, stride, 1))

    def forward(self, images: Tensor) -> Tensor:
        """Return `(rows, outputs, height / stride, width / stride)`."""
        return nn.functional.relu(self.residual(images) + self.shortcut(images))


class ResidualNet(nn.Module):
    """The net, for pictures of some channels."""

    def __init__(self, channels: int, num_classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*_normalised(channels, STAGE_CHANNELS[0], 1, 3), nn.ReLU())
        blocks, inputs = [], STAGE_CHANNELS[0]
        for stage, outputs in enumerate(STAGE_CHANNELS):
            for place in range(BLOCKS_EACH):
                blocks.append(Block(inputs, outputs, 2 if place == 0 and stage else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Linear(inputs, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return logits, shape `(rows, num_classes)`."""
        logits: Tensor = self.last(self.blocks(self.stem(images)).mean(dim=(2, 3)))
        return logits


def model(name: WorkName) -> nn.Module:
    """Build the model from torch's current random state."""
    if name.startswith("resnet18"):
        return ResidualNet(FEATURE_SHAPES[name][0], NUM_CLASSES[name])
    if name == "textcnn":
        return TextNet(VOCABULARY_SIZES[name], NUM_CLASSES[name])
    if name in HIDDEN:
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise((*FEATURE_SHAPES[name], *HIDDEN[name], NUM_CLASSES[name])):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers[:-1])
    first = (nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2))
    second = (nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2))
    head = (nn.Linear(16 * 5 * 5, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, NUM_CLASSES[name]))
    return nn.Sequential(*first, *second, nn.Flatten(), *head)


def initial_model(name: WorkName, device: str = "cpu") -> nn.Module:
    """Return the model from which every peer starts, on a device, in a process with one thread."""
    torch.set_num_threads(1)
    torch.manual_seed(MODEL_SEED)
    return on_device(model(name), device)


def on_device(net: nn.Module, device: str) -> nn.Module:
    """Return a net on a device, which computes in float32 there, as all that is compared does."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    return net.to(device)


def train_epoch(net: nn.Module, features: Tensor, labels: Tensor) -> float:
    """Train a net for one epoch of batches in random order; return the last batch's loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=LEARNING_RATE)
    loss = torch.zeros(())
    order = torch.randperm(len(labels), device=labels.device)
    for start in range(0, len(labels), BATCH_SIZE):
        rows = order[start : start + BATCH_SIZE]
        optimizer.zero_grad()
        loss = cross_entropy(net(features[rows]), labels[rows])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


def num_correct(net: nn.Module, features: Tensor, labels: Tensor) -> int:
    """Return for how many rows a net's answer is right."""
    with torch.no_grad():
        return int((net(features).argmax(dim=1) == labels).sum().item())


@dataclass(frozen=True)
class Task:
    """What is timed; a peer is asked for it on its command line.

    Attributes:
        samples: Rows a client.
        rounds: Rounds to time, after `WARM_UP_ROUNDS` of which the model is forgotten.
        workers: Processes that train, where a peer has a choice.
        device: On which they do, in the words of torch.
        sampled: Clients that train in a round, and as many that score; None is all of them, as in peers always.
    """

    name: WorkName
    clients: int
    samples: int
    rounds: int
    workers: int
    device: str = "cpu"
    sampled: int | None = None

    def text(self) -> str:
        """Return the task as a peer's argument, in JSON."""
        return json.dumps(vars(self))


def read_task(text: str) -> Task:
    """Read a peer's argument."""
    return Task(**json.loads(text))


def report(times: Sequence[float], accuracy: float, libraries: Sequence[str]) -> None:
    """Print a peer's result, one line of JSON: the times are the beginning and the end of each round."""
    document: dict[str, Any] = {
        "round_seconds": [after - before for before, after in pairwise(times)],
        "accuracy": accuracy,
        "versions": {library: version(library) for library in libraries},
    }
    print(json.dumps(document), flush=True)
