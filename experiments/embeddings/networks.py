"""Pretrained networks for embeddings (ONNX, ResNet-18), with their tokenizers and weight files.

ONNX networks run in ONNX Runtime on the CPU. Text networks take `input_ids`, `attention_mask` and `token_type_ids` as
far as they have such inputs, like exported transformers. If the output is a vector per token, it is averaged over the
text's non-padding tokens (N. Reimers, I. Gurevych, Sentence-BERT, EMNLP 2019, section 3); vectors are normalized to
unit length. Texts are tokenized by the network's tokenizer, a `tokenizer.json` of Hugging Face. Image networks take one
batch, standardized as for torchvision's networks; a feature map is averaged over pixels.

ResNet-18 as published, without its classifier, gives 512 features per image: K. He, X. Zhang, S. Ren, J. Sun. Deep
residual learning for image recognition. CVPR 2016: a 7 × 7 convolution and 3 × 3 max pooling, both with stride 2
(section 4.1, table 1), eight blocks of two 3 × 3 convolutions, batch normalization, shortcuts of option B, and global
average pooling. Parameters have torchvision's names, in whose layout weights are distributed; its classifier, `fc`, is
ignored. The ResNet-18 of the model table differs: it is trainable and for small images.

Images are resized bilinearly, gray ones repeated on three channels, and standardized by the mean and standard deviation
of ImageNet's channels, as torchvision's published weights expect (documentation of `ResNet18_Weights.IMAGENET1K_V1`).

Weights are read from safetensors or PyTorch files; of the latter only tensors are loaded.
"""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError, first_line
from fedscout.engine.text import listed
from fedscout.experiments.text import extra_module

WIDTHS = (64, 128, 256, 512)
BLOCKS_EACH = 2
CHANNELS = 3
SIZE = 224
"""Pixels to which pictures are resized, as ImageNet's are."""

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    """Two convolutions with a shortcut connection; stride 2 halves the image."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the output, shape `(rows, outputs, height / stride, width / stride)`."""
        residual = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(pictures)))))
        return torch.relu(residual + self.downsample(pictures))


class ResNet18Features(nn.Module):
    """ResNet-18 without its classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(CHANNELS, WIDTHS[0], 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTHS[0])
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        inputs = WIDTHS[0]
        for stage, width in enumerate(WIDTHS, 1):
            blocks = [BasicBlock(inputs, width, 1 if stage == 1 else 2)]
            blocks += [BasicBlock(width, width, 1) for _ in range(BLOCKS_EACH - 1)]
            self.add_module(f"layer{stage}", nn.Sequential(*blocks))
            inputs = width

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the features, shape `(rows, 512)`.

        Args:
            pictures: Standardized images, shape `(rows, 3, height, width)`.
        """
        features: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(pictures))))
        for stage in range(1, len(WIDTHS) + 1):
            features = self.get_submodule(f"layer{stage}")(features)
        return features.mean(dim=(2, 3))


def standardised(pixels: Tensor, size: int) -> Tensor:
    """Return resized and standardized images, shape `(rows, 3, size, size)`.

    Args:
        pixels: In `[0, 1]`, shape `(rows, 1 or 3, height, width)`.
        size: Height and width in pixels.
    """
    resized = nn.functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    colours = resized.expand(-1, CHANNELS, -1, -1)
    mean, deviation = (torch.tensor(values).view(1, CHANNELS, 1, 1) for values in (MEAN, DEVIATION))
    return (colours - mean) / deviation


MOST_TOKENS = 512
"""Of a text that a transformer reads, where the file does not say: so many places have BERT and its descendants."""


class Tokens:
    """A Hugging Face tokenizer.

    Args:
        path: File of the tokenizer.

    Raises:
        ConfigurationError: If the library is not installed.
        DataError: If the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        tokenizers = extra_module("tokenizers", "embeddings", "--tokenizer")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise DataError.of(path, problem=f"can't be read as a tokenizer: {first_line(error)}") from None
        if self._tokenizer.truncation is None:
            self._tokenizer.enable_truncation(MOST_TOKENS)
        self._tokenizer.enable_padding(**(self._tokenizer.padding or {}))

    def padded(self, texts: Sequence[str]) -> dict[str, list[list[int]]]:
        """Return the inputs of a transformer by their usual names, padded to the longest text."""
        encodings: list[Any] = self._tokenizer.encode_batch(list(texts))
        return {
            "input_ids": [encoding.ids for encoding in encodings],
            "attention_mask": [encoding.attention_mask for encoding in encodings],
            "token_type_ids": [encoding.type_ids for encoding in encodings],
        }


WHOLE_TEXT = "sentence_embedding"
"""The output of a network that does the pooling itself, by the name that exporters give it."""


class _Session:
    """An ONNX Runtime session.

    Args:
        path: File of the network.

    Raises:
        ConfigurationError: If the library is not installed.
        DataError: If the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        runtime = extra_module("onnxruntime", "embeddings", "--weights in ONNX")
        try:
            self._session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's own derive of nothing else
            raise DataError.of(path, problem=f"can't be read as a network in ONNX: {first_line(error)}") from None
        self.path = path
        self.inputs = [model_input.name for model_input in self._session.get_inputs()]
        names = [model_output.name for model_output in self._session.get_outputs()]
        self._output = WHOLE_TEXT if WHOLE_TEXT in names else names[0]

    def run(self, given: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the network's output.

        Raises:
            DataError: If the network rejects the inputs, or its output is not finite.
        """
        try:
            (output,) = self._session.run([self._output], dict(given))
        except Exception as error:  # as above
            raise DataError.of(self.path, f"accept its inputs: {first_line(error)}") from None
        if not np.isfinite(output).all():
            raise DataError.of(self.path, "return finite numbers")
        array: npt.NDArray[Any] = output
        return array

    def refused(self, shape: tuple[int, ...]) -> DataError:
        """Return an error for an output of an unsupported shape."""
        return DataError.of(self.path, "return a vector for each row", f"an output of shape {shape}")


class OnnxTexts:
    """Text embeddings of unit length by an ONNX network.

    Args:
        path: File of the network.
        tokens: Its tokenizer.

    Raises:
        DataError: If the network requires other inputs.
    """

    def __init__(self, path: Path, tokens: Tokens) -> None:
        self._session = _Session(path)
        self._tokens = tokens
        supported = {*tokens.padded([""])}
        if not {*self._session.inputs} <= supported:
            names = ", ".join(self._session.inputs)
            raise DataError.of(path, f"take only {', '.join(supported)} to embed texts", f"the inputs {names}")

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """Return the embeddings of texts, shape `(texts, features)`."""
        inputs = {name: np.array(rows, np.int64) for name, rows in self._tokens.padded(texts).items()}
        vectors = self._session.run({name: inputs[name] for name in self._session.inputs})
        if vectors.ndim == 3:
            is_text = inputs["attention_mask"][:, :, None]
            vectors = (vectors * is_text).sum(axis=1) / np.maximum(is_text.sum(axis=1), 1)
        if vectors.ndim != 2:
            raise self._session.refused(vectors.shape)
        return unit_length(vectors)


class OnnxPictures:
    """Image embeddings by an ONNX network.

    Args:
        path: File of the network.
        size: Height and width in pixels to which images are resized.

    Raises:
        DataError: If the network has more than one input.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._session = _Session(path)
        self._size = size
        if len(self._session.inputs) != 1:
            names = ", ".join(self._session.inputs)
            raise DataError.of(path, "take only pictures without --tokenizer", f"the inputs {names}")

    def vectors(self, pictures: FloatArray) -> FloatArray:
        """Return the embeddings of images, shape `(pictures, features)`."""
        images = standardised(torch.from_numpy(pictures), self._size).numpy()
        vectors = self._session.run({self._session.inputs[0]: images})
        if vectors.ndim == 4:
            vectors = vectors.mean(axis=(2, 3))
        if vectors.ndim != 2:
            raise self._session.refused(vectors.shape)
        return vectors.astype(np.float32)


def unit_length(vectors: npt.NDArray[np.floating]) -> FloatArray:
    """Return vectors normalized to length 1; zero vectors stay zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


SAFE, TORCH = (".safetensors",), (".pt", ".pth")
CLASSIFIER = "fc."
COUNTER = "num_batches_tracked"
"""Batch counter of batch normalisation: unused in inference, and missing from some files."""

MOST_NAMED = 3


def load_weights(network: nn.Module, path: Path) -> None:
    """Load the weights of a file into a network.

    Raises:
        DataError: If the file can't be read, or its tensors do not match the network.
    """
    content = read_tensors(path)
    expected = {name: value for name, value in network.state_dict().items() if not name.endswith(COUNTER)}
    loaded = {
        name: value for name, value in content.items() if not name.startswith(CLASSIFIER) and not name.endswith(COUNTER)
    }
    faults = []
    if missing := [name for name in expected if name not in loaded]:
        faults.append(f"lacks {listed(missing, MOST_NAMED)}")
    if unknown := [name for name in loaded if name not in expected]:
        faults.append(f"has {listed(unknown, MOST_NAMED)}")
    for name, value in expected.items():
        if name in loaded and loaded[name].shape != value.shape:
            faults.append(f"{name} is {tuple(loaded[name].shape)} in place of {tuple(value.shape)}")
    if faults:
        problems = "; ".join(faults[:MOST_NAMED])
        raise DataError.of(path, f"hold the weights of a ResNet-18 by torchvision's names: it {problems}")
    network.load_state_dict(loaded, strict=False)


def file_digest(path: Path) -> str:
    """Return a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a file by name.

    Raises:
        DataError: If it can't be read, or holds anything else.
    """
    suffix = path.suffix.lower()
    if suffix not in (*SAFE, *TORCH):
        raise DataError.of("--weights", f"be a file of {', '.join((*SAFE, *TORCH, '.onnx'))}", path)
    try:
        content = _read_safe(path) if suffix in SAFE else _read_torch(path)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise DataError.of(path, problem=f"can't be read as weights: {first_line(error)}") from None
    if not (isinstance(content, dict) and all(isinstance(value, Tensor) for value in content.values())):
        raise DataError.of(path, "hold tensors by name, as a state_dict does")
    return content


def _read_safe(path: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _read_torch(path: Path) -> Any:
    import torch

    return torch.load(path, map_location="cpu", weights_only=True)
