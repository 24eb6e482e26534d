"""Trained networks as embedders: ONNX, ResNet-18, and their weight files.

Any network in ONNX, the exchange format, run by ONNX Runtime on the core.

Of texts it takes `input_ids`, `attention_mask` and `token_type_ids`, as far as it has such inputs, as transformers are
exported. Where it gives a vector for each token, their mean over the text is taken, without padding (N. Reimers,
I. Gurevych, Sentence-BERT, EMNLP 2019, section 3), and brought to unit length. Of pictures it takes one batch,
standardised as for torchvision's networks; where it gives a map, its mean over pixels is taken.

ResNet-18 as published, without its classifier: 512 numbers a picture.

K. He, X. Zhang, S. Ren, J. Sun. Deep residual learning for image recognition. CVPR 2016: a 7 × 7 convolution and a
3 × 3 maximum, both of stride 2 (section 4.1, table 1), eight blocks of two 3 × 3 convolutions, batch normalisation,
shortcuts of option B, and the mean over pixels. Names of parameters are those of torchvision, in whose layout weights
are passed around; its `fc`, the classifier, is not read. `federations/models` has another net of this name for small
pictures, which trains.

Pictures are resized bilinearly, gray ones repeated on three channels, and standardised by the mean and the deviation of
ImageNet's channels, as torchvision's published weights expect (its documentation of `ResNet18_Weights.IMAGENET1K_V1`).

From texts to a network's tokens, by the tokenizer that goes with it: the `tokenizer.json` of Hugging Face.

Weights from a file that the user has: safetensors, or PyTorch's own format, of which tensors alone are read.
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
from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.engine.text import listed
from fedscout.experiments.text import extra_module

NUM_FEATURES = 512
WIDTHS = (64, 128, 256, 512)
BLOCKS_EACH = 2
CHANNELS = 3
SIZE = 224
"""Pixels to which pictures are resized, as ImageNet's are."""

MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    """Two convolutions beside a shortcut; stride 2 halves the picture."""

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
        """Return `(rows, outputs, height / stride, width / stride)`."""
        residual = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(pictures)))))
        return torch.relu(residual + self.downsample(pictures))


class ResNet18Features(nn.Module):
    """From pictures to vectors."""

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
            pictures: Standardised, shape `(rows, 3, height, width)`.
        """
        found: Tensor = self.maxpool(torch.relu(self.bn1(self.conv1(pictures))))
        for stage in range(1, len(WIDTHS) + 1):
            found = self.get_submodule(f"layer{stage}")(found)
        return found.mean(dim=(2, 3))


def standardised(pixels: Tensor, size: int) -> Tensor:
    """Return pictures as the network is to see them, shape `(rows, 3, size, size)`.

    Args:
        pixels: In `[0, 1]`, shape `(rows, 1 or 3, height, width)`.
        size: Pixels of height and width.
    """
    resized = nn.functional.interpolate(pixels, (size, size), mode="bilinear", antialias=True)
    colours = resized.expand(-1, CHANNELS, -1, -1)
    mean, deviation = (torch.tensor(values).view(1, CHANNELS, 1, 1) for values in (MEAN, DEVIATION))
    return (colours - mean) / deviation


MOST_TOKENS = 512
"""Of a text that a transformer reads, where the file does not say: so many places have BERT and its descendants."""


class Tokens:
    """Cuts texts.

    Args:
        path: The file.

    Raises:
        ConfigurationError: If the library is not installed.
        DataError: If the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        tokenizers = extra_module("tokenizers", "embeddings", "--tokenizer")
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises nothing more special
            raise DataError(Fault(path, problem=f"can't be read as a tokenizer: {first_line(error)}")) from None
        if self._tokenizer.truncation is None:
            self._tokenizer.enable_truncation(MOST_TOKENS)
        self._tokenizer.enable_padding(**(self._tokenizer.padding or {}))

    def padded(self, texts: Sequence[str]) -> dict[str, list[list[int]]]:
        """Return what a transformer takes of texts, by the usual names of its inputs, each as long as the longest."""
        found: list[Any] = self._tokenizer.encode_batch(list(texts))
        return {
            "input_ids": [one.ids for one in found],
            "attention_mask": [one.attention_mask for one in found],
            "token_type_ids": [one.type_ids for one in found],
        }


WHOLE_TEXT = "sentence_embedding"
"""The output of a network that does the pooling itself, by the name that exporters give it."""


class _Session:
    """A network that is loaded.

    Args:
        path: The file.

    Raises:
        ConfigurationError: If the library is not installed.
        DataError: If the file can't be read.
    """

    def __init__(self, path: Path) -> None:
        runtime = extra_module("onnxruntime", "embeddings", "--weights in ONNX")
        try:
            self._session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's own derive of nothing else
            raise DataError(Fault(path, problem=f"can't be read as a network in ONNX: {first_line(error)}")) from None
        self.path = path
        self.inputs = [wanted.name for wanted in self._session.get_inputs()]
        names = [given.name for given in self._session.get_outputs()]
        self._output = WHOLE_TEXT if WHOLE_TEXT in names else names[0]

    def run(self, given: Mapping[str, npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return the network's output.

        Raises:
            DataError: If it does not take what it is given.
        """
        try:
            (found,) = self._session.run([self._output], dict(given))
        except Exception as error:  # as above
            raise DataError(Fault(self.path, f"take what it is given: {first_line(error)}")) from None
        if not np.isfinite(found).all():
            raise DataError(Fault(self.path, "give finite numbers"))
        array: npt.NDArray[Any] = found
        return array

    def refused(self, shape: tuple[int, ...]) -> DataError:
        """Return what is wrong with an output of that shape."""
        return DataError(Fault(self.path, "give a vector for each row", f"an output of shape {shape}"))


class OnnxTexts:
    """Texts as vectors of unit length.

    Args:
        path: The network.
        tokens: Its tokenizer.

    Raises:
        DataError: If the network takes other inputs.
    """

    def __init__(self, path: Path, tokens: Tokens) -> None:
        self._session = _Session(path)
        self._tokens = tokens
        known = {*tokens.padded([""])}
        if not {*self._session.inputs} <= known:
            names = ", ".join(self._session.inputs)
            raise DataError(Fault(path, f"take {', '.join(known)} alone to embed texts", f"the inputs {names}"))

    def vectors(self, texts: Sequence[str]) -> FloatArray:
        """Return the vectors of texts, shape `(texts, features)`."""
        given = {name: np.array(rows, np.int64) for name, rows in self._tokens.padded(texts).items()}
        found = self._session.run({name: given[name] for name in self._session.inputs})
        if found.ndim == 3:
            is_text = given["attention_mask"][:, :, None]
            found = (found * is_text).sum(axis=1) / np.maximum(is_text.sum(axis=1), 1)
        if found.ndim != 2:
            raise self._session.refused(found.shape)
        return unit_length(found)


class OnnxPictures:
    """Pictures as vectors.

    Args:
        path: The network.
        size: Pixels to which pictures are resized.

    Raises:
        DataError: If the network takes more than pictures.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._session = _Session(path)
        self._size = size
        if len(self._session.inputs) != 1:
            names = ", ".join(self._session.inputs)
            raise DataError(Fault(path, "take pictures alone, without --tokenizer", f"the inputs {names}"))

    def vectors(self, pictures: FloatArray) -> FloatArray:
        """Return the vectors of pictures, shape `(pictures, features)`."""
        seen = standardised(torch.from_numpy(pictures), self._size).numpy()
        found = self._session.run({self._session.inputs[0]: seen})
        if found.ndim == 4:
            found = found.mean(axis=(2, 3))
        if found.ndim != 2:
            raise self._session.refused(found.shape)
        return found.astype(np.float32)


def unit_length(vectors: npt.NDArray[np.floating]) -> FloatArray:
    """Return vectors of length 1; zeros stay zeros."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / np.where(lengths > 0, lengths, 1)).astype(np.float32)


SAFE, TORCH = (".safetensors",), (".pt", ".pth")
CLASSIFIER = "fc."
COUNTER = "num_batches_tracked"
"""Of batch normalisation: nothing that is computed rests on it, and some files lack it."""

MOST_NAMED = 3


def load_weights(network: nn.Module, path: Path) -> None:
    """Give a network the weights of a file.

    Raises:
        DataError: If the file can't be read, or holds another network's weights.
    """
    content = read_tensors(path)
    wanted = {name: value for name, value in network.state_dict().items() if not name.endswith(COUNTER)}
    given = {
        name: value for name, value in content.items() if not name.startswith(CLASSIFIER) and not name.endswith(COUNTER)
    }
    faults = []
    if missing := [name for name in wanted if name not in given]:
        faults.append(f"lacks {listed(missing, MOST_NAMED)}")
    if unknown := [name for name in given if name not in wanted]:
        faults.append(f"has {listed(unknown, MOST_NAMED)}")
    for name, value in wanted.items():
        if name in given and given[name].shape != value.shape:
            faults.append(f"{name} is {tuple(given[name].shape)} in place of {tuple(value.shape)}")
    if faults:
        told = "; ".join(faults[:MOST_NAMED])
        raise DataError(Fault(path, f"hold the weights of a ResNet-18 by torchvision's names: it {told}"))
    network.load_state_dict(given, strict=False)


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
        raise DataError(Fault("--weights", f"be a file of {', '.join((*SAFE, *TORCH, '.onnx'))}", path))
    try:
        content = _read_safe(path) if suffix in SAFE else _read_torch(path)
    except (OSError, RuntimeError, ValueError, EOFError, KeyError, pickle.UnpicklingError) as error:
        raise DataError(Fault(path, problem=f"can't be read as weights: {first_line(error)}")) from None
    if not (isinstance(content, dict) and all(isinstance(value, Tensor) for value in content.values())):
        raise DataError(Fault(path, "hold tensors by name, as a state_dict does"))
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
