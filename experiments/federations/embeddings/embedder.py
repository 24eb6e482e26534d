"""A network that somebody has trained, as what it makes of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.experiments.federations.embeddings.onnx_network import OnnxPictures, OnnxTexts
from fedscout.experiments.federations.embeddings.resnet18_features import ResNet18Features, standardised
from fedscout.experiments.federations.embeddings.tokens import Tokens
from fedscout.experiments.federations.embeddings.weight_file import file_digest, load_weights

BATCH_ROWS = 64
ONNX = ".onnx"

Rows = Literal["pictures", "texts"]


@dataclass(frozen=True)
class Embedder:
    """What turns rows into vectors.

    Attributes:
        of: What rows it takes: pictures in `[0, 1]`, float32, shape `(rows, 1 or 3, height, width)`, or texts.
        record: What it is: method, files by name and SHA-256, or the seed of random weights.
        vectors: Of some rows, float32, shape `(rows, features)`.
    """

    of: Rows
    record: dict[str, Any]
    vectors: Callable[[Any], FloatArray]

    def embedded(self, rows: FloatArray | Sequence[str]) -> FloatArray:
        """Return the vectors of all rows, shape `(num_rows, features)`."""
        starts = range(0, len(rows), BATCH_ROWS)
        return np.concatenate([self.vectors(rows[start : start + BATCH_ROWS]) for start in starts])


def embedder(weights: Path | None, tokenizer: Path | None, seed: int | None, size: int) -> Embedder:
    """Return a network with the weights of a file, or random ones by a seed; just one of the two must be given.

    Args:
        weights: Of pictures, a ResNet-18 by torchvision's names or any network in ONNX; of texts, any network in ONNX.
        tokenizer: Of texts, how they are cut into the network's tokens.
        seed: Of a random ResNet-18.
        size: Pixels to which pictures are resized.

    Raises:
        ConfigurationError: If both or none are, or texts are to be embedded by random weights.
        DataError: If a file can't be used.
    """
    if (weights is None) == (seed is None):
        raise ConfigurationError(
            Fault(
                "--weights",
                ("name a file of a trained network's weights, or --random the seed of random ones, not both"),
            )
        )
    if weights is None:
        if tokenizer is not None:
            raise ConfigurationError(
                Fault("--weights", "name a file where --tokenizer does: random ones are of pictures")
            )
        torch.manual_seed(seed or 0)
        return _resnet18(ResNet18Features().eval(), {"random_seed": seed}, size)
    if tokenizer is not None:
        return _of_texts(weights, tokenizer)
    if weights.suffix.lower() == ONNX:
        network = OnnxPictures(weights, size)
        return Embedder("pictures", {"method": "ONNX", "size": size, **_file(weights)}, network.vectors)
    resnet18 = ResNet18Features().eval()
    load_weights(resnet18, weights)
    return _resnet18(resnet18, _file(weights), size)


def _of_texts(weights: Path, tokenizer: Path) -> Embedder:
    network = OnnxTexts(weights, Tokens(tokenizer))
    return Embedder("texts", {"method": "ONNX", **_file(weights), "tokenizer": _file(tokenizer)}, network.vectors)


def _resnet18(network: ResNet18Features, weights: dict[str, Any], size: int) -> Embedder:
    def vectors(pictures: FloatArray) -> FloatArray:
        with torch.inference_mode():
            found: FloatArray = network(standardised(torch.from_numpy(pictures), size)).numpy()
        return found

    return Embedder("pictures", {"method": "ResNet-18", "size": size, **weights}, vectors)


def _file(path: Path) -> dict[str, str]:
    return {"file": path.name, "sha256": file_digest(path)}
