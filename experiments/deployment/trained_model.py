"""A trained model on disk, as safetensors, which hold numbers alone, and as PyTorch's own; its rounds as Parquet."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.engine.runtime.atomic_file import write_atomically
from fedscout.engine.trials.trial_record import Trial

SAFE_FILE, TORCH_FILE, ROUNDS_FILE = "model.safetensors", "model.pt", "rounds.parquet"


def write_model(folder: Path, model: ModelFactory, vector: npt.NDArray[np.float32]) -> None:
    """Write a model, the first of several: its tensors by name, as `load_state_dict` takes them.

    Args:
        folder: Where to.
        model: Its factory.
        vector: Its parameters and buffers, shape `(size,)` or `(models, size)`.
    """
    import torch
    from safetensors.torch import save_file

    from fedscout.engine.model.flat_model import new_model

    flat = new_model(model, seed=0)
    arrays = flat.layout.split(vector if vector.ndim == 1 else vector[0])
    tensors = {name: torch.from_numpy(np.array(array)) for name, array in arrays.items()}
    write_atomically(folder / SAFE_FILE, lambda temporary: save_file(tensors, str(temporary)))
    write_atomically(folder / TORCH_FILE, lambda temporary: torch.save(tensors, temporary))


def write_rounds(folder: Path, trial: Trial) -> None:
    """Write what was measured in each round, a row each."""
    import pandas as pd

    columns: dict[str, Any] = {
        name: list(values)
        for name, values in asdict(trial).items()
        if name.startswith("round_") and isinstance(values, tuple) and values
    }
    num_rounds = len(columns["round_accuracy"])
    rounds = pd.DataFrame(
        {"round": range(1, num_rounds + 1), **{name: v for name, v in columns.items() if len(v) == num_rounds}}
    )
    write_atomically(folder / ROUNDS_FILE, lambda temporary: rounds.to_parquet(temporary, index=False))
