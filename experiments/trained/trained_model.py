"""A trained model on disk: as safetensors, which hold numbers alone, and as PyTorch's own; a description; its rounds.

Of several models each has files of its own, `model_0.safetensors` and so on, in the order in which the trial's notes
name their clients.
"""

from __future__ import annotations

import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import StrategyError
from fedscout.engine.model.parameter_layout import ParameterLayout
from fedscout.engine.runtime.atomic_file import remove_file, write_atomically
from fedscout.engine.trials.kept_model import kept_model, shares_nothing
from fedscout.engine.trials.trial_record import Trial
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.models.model_settings import ModelSettings
from fedscout.experiments.trained.model_description import DESCRIPTION_FILE, ModelDescription, part_of
from fedscout.search.repetitions import trainings_of
from fedscout.strategies import StrategySpec

if TYPE_CHECKING:
    from fedscout.engine.trials.trial_settings import TrialSettings
    from fedscout.experiments.config.study_config import StudyConfig

SAFE_FILE, TORCH_FILE, ROUNDS_FILE = "model{}.safetensors", "model{}.pt", "rounds.parquet"
SEVERAL = "each group of clients has a model and files of its own, model_0 the first one's"
MODEL_FILES = re.compile(r"model(_\d+)?\.(safetensors|pt)")


def what_is_kept(spec: StrategySpec, layout: ParameterLayout) -> str | None:
    """Return what the files will hold, a sentence; None where that is the model that every client uses.

    Args:
        spec: What is going to be trained.
        layout: Of the model.

    Raises:
        StrategyError: If nothing will be trained in common.
    """
    algorithm = spec.client_algorithm()
    if shares_nothing(algorithm, layout):
        raise StrategyError(
            f"a strategy whose clients share something must be trained where the model is kept, got {spec.label}: all "
            "that it trains stays with its client"
        )
    told = [SEVERAL if spec.grouped else None, kept_model(algorithm, layout)]
    return "; ".join(filter(None, told)) or None


def leaves_model(spec: StrategySpec, federation: Federation) -> bool:
    """Return whether a training leaves a model that clients have in common."""
    from fedscout.engine.model.flat_model import new_model  # torch, which most strategies do without here

    algorithm = spec.client_algorithm()
    personal = algorithm is not None and algorithm.personal
    return not personal or not shares_nothing(algorithm, new_model(federation.model, seed=0).layout)


def write_training(
    folder: Path, config: StudyConfig, federation: Federation, settings: TrialSettings, trial: Trial
) -> None:
    """Write the model of a simulated training.

    Args:
        folder: Of the study.
        config: Of the study.
        federation: With its rows, where a quantity is predicted.
        settings: Of the trial.
        trial: With its model.
    """
    assert trial.vector is not None
    parts, place = trainings_of(settings, config.training.repetitions), 0
    if trial.repetition_fitness is not None:  # the model is that of the training that is the median
        place = trial.repetition_fitness.index(trial.fitness)
    session = parts[place].session
    scale = federation.target_scale(session.seed, session.test_fraction, session.validation_fraction)
    description = ModelDescription(
        rows=part_of(DatasetRequest, config.federation),
        class_names=federation.class_names,
        model=part_of(ModelSettings, config.model),
        target=federation.target_name,
        scale=scale,
        **federation.reading,
    )
    write_model(folder, description, trial.vector)


def write_model(folder: Path, description: ModelDescription, vector: npt.NDArray[np.float32]) -> None:
    """Write a model, or several: what must be known to use it, and the tensors by name for `load_state_dict`.

    Files of an earlier training, which held another number of models, are removed.

    Args:
        folder: Where to.
        description: How its rows are read, and what its outputs mean.
        vector: Its parameters and buffers, shape `(size,)` or `(models, size)`.
    """
    import torch
    from safetensors.torch import save_file

    from fedscout.engine.model.flat_model import new_model

    layout = new_model(description.factory, seed=0).layout
    models = {"": vector} if vector.ndim == 1 else {f"_{place}": each for place, each in enumerate(vector)}
    written = set()
    for number, each in models.items():
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in layout.split(each).items()}
        safe, plain = (folder / name.format(number) for name in (SAFE_FILE, TORCH_FILE))
        write_atomically(safe, partial(save_file, tensors))
        write_atomically(plain, partial(torch.save, tensors))
        written |= {safe, plain}
    alone = part_of(ModelDescription, description)  # of an agreement
    write_atomically(folder / DESCRIPTION_FILE, lambda path: path.write_text(alone.model_dump_json(indent=1) + "\n"))
    for path in folder.iterdir():
        if MODEL_FILES.fullmatch(path.name) and path not in written:
            remove_file(path)


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
