"""Any network in ONNX, the exchange format, run by ONNX Runtime on the core.

Of texts it takes `input_ids`, `attention_mask` and `token_type_ids`, as far as it has such inputs, as transformers are
exported. Where it gives a vector for each token, their mean over the text is taken, without padding (N. Reimers,
I. Gurevych, Sentence-BERT, EMNLP 2019, section 3), and brought to unit length. Of pictures it takes one batch,
standardised as for torchvision's networks; where it gives a map, its mean over pixels is taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fedscout.engine.arrays import FloatArray
from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.experiments.extras import extra_module
from fedscout.experiments.federations.embeddings.resnet18_features import standardised
from fedscout.experiments.federations.embeddings.tokens import Tokens

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
        runtime = extra_module("onnxruntime", "embeddings", "--weights in ONNX need the library onnxruntime")
        try:
            self._session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
        except Exception as error:  # the library's own derive of nothing else
            raise DataError(f"{path} can't be read as a network in ONNX: {first_line(error)}") from None
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
