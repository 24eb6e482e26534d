"""Weights from a file that the user has: safetensors, or PyTorch's own format, of which tensors alone are read."""

from __future__ import annotations

import hashlib
import pickle
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from fedscout.engine.errors import DataError, Fault, first_line
from fedscout.engine.fault_text import listed

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
        raise DataError(f"{path} can't be read as weights: {first_line(error)}") from None
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
