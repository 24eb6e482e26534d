"""Trained models: their description, files, and predictions on new rows.

A description states how rows become the model's inputs and what its outputs mean. It is one JSON file, stored beside
the weights and in the agreement of a real federation (`client.py`). It holds no row: for a table it holds the names of
columns, categories and classes and the statistics that clients released (`federation.min_release`), for texts the words
of the vocabulary.

Weights are saved in the safetensors format, which holds only tensors, and as a PyTorch file. If there are several
models, each has its own files, `model_0.safetensors` and so on, in the order in which the trial's notes list their
clients.

Predictions are made on a table, a folder of images, or rows that already are features. Rows are encoded by the
description, so that unseen categories, missing values and dates are encoded as in training. Outputs are bit-identical
to those of the trial's own evaluation: the same layers on the same chunks of rows, on one thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from fedscout.engine.arrays import FloatArray
from fedscout.engine.data.client import Samples, TargetScale
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError, DataError, Fault, LogError, StrategyError, first_line
from fedscout.engine.models.layout import ModelFactory, ParameterLayout
from fedscout.engine.runtime.files import read_json_object, remove_file, write_atomically
from fedscout.engine.text import reading_document, shown
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.state import kept_model, shares_nothing
from fedscout.experiments.data.columns import with_missing
from fedscout.experiments.data.dataset import DataKind, DatasetRequest
from fedscout.experiments.data.images import pictures_alone
from fedscout.experiments.data.own import ADDRESS, own_place
from fedscout.experiments.data.table_files import read_frame
from fedscout.experiments.data.table_formats import for_place, read_table
from fedscout.experiments.data.tables import encoded_rows
from fedscout.experiments.models.request import ModelRequest, ModelSettings
from fedscout.experiments.models.table import build_model
from fedscout.search.ledger import trainings_of
from fedscout.strategies import StrategySpec

if TYPE_CHECKING:
    import pandas as pd

    from fedscout.experiments.config import StudyConfig


DESCRIPTION_FILE = "model.json"
Part = TypeVar("Part", bound=BaseModel)


class ModelDescription(BaseModel):
    """A model's inputs, layers and outputs.

    Attributes:
        rows: The training data; for a table, also its label and group columns.
        kind: Kind of a row.
        feature_shape: Shape of a row as input of the model.
        class_names: In the order of the model's outputs; for regression, names of the target's deciles.
        feature_names: Names of a table's features.
        vocabulary_size: Number of tokens.
        encoding: How a table's columns, or texts, become features; None where rows are given as features.
        model: Settings of the layers.
        target: Regression target; empty for classification.
        scale: Standardization of the regression target.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    rows: DatasetRequest
    kind: DataKind
    feature_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    vocabulary_size: int = 0
    encoding: dict[str, Any] | None = None
    model: ModelSettings
    target: str = ""
    scale: TargetScale | None = None

    @cached_property
    def request(self) -> ModelRequest:
        """The request from which the model is built."""
        num_outputs = 1 if self.scale is not None else len(self.class_names)
        return ModelRequest(
            self.feature_shape, num_outputs, self.model, self.kind, self.vocabulary_size, self.scale is not None
        )

    @property
    def factory(self) -> ModelFactory:
        """The factory of the model."""
        return build_model(self.request)

    def checked_features(self, features: Any) -> FloatArray:
        """Return rows that already are features as float32, shape `(num_rows, *feature_shape)`.

        Raises:
            DataError: If they do not have the model's shape, or are not finite numbers.
        """
        values = np.asarray(features)
        if values.shape[1:] != self.feature_shape:
            shape = ", ".join(map(str, self.feature_shape))
            raise DataError.of("an array of rows", f"have the shape (rows, {shape}) of the model", values.shape)
        if values.dtype.kind not in "fiub" or not np.isfinite(values).all():
            raise DataError.of("an array of rows", "hold finite numbers")
        return values.astype(np.float32)


def shared_fields(part: type[Part], config: BaseModel) -> Part:
    """Return an instance of `part` with the fields that it shares with a configuration."""
    return part(**{name: getattr(config, name) for name in part.model_fields})


def read_description(folder: Path) -> ModelDescription:
    """Return the description of the model in a folder.

    Raises:
        LogError: If there is none, or it can't be read.
    """
    path = folder / DESCRIPTION_FILE
    with reading_document(path, LogError, "describe a model of fedscout train --out"):
        return ModelDescription.model_validate(read_json_object(path), strict=False)


PREDICTION, PICTURE, PROBABILITY = "prediction", "picture", "probability of {}"


@dataclass(frozen=True)
class TrainedModel:
    """A trained model, or one for each group of clients.

    Attributes:
        folder: Folder of the model.
        description: How rows become its inputs, and what its outputs mean.
        vectors: Parameters and buffers of each model, shape `(models, size)`.
    """

    folder: Path
    description: ModelDescription
    vectors: FloatArray

    def predict(self, rows: str | Path | pd.DataFrame | npt.ArrayLike, group: int | None = None) -> pd.DataFrame:
        """Return the model's prediction for each row, in order.

        Args:
            rows: Path of a table with the training columns or of a folder of images; a DataFrame; or features of the
                model's shape.
            group: Index of the model where each group of clients has its own, from 0.

        Returns:
            `prediction`, a class name or the regression target in its own unit; for classes also `probability of
            CLASS`, float32 in `[0, 1]`; for images also `picture`, the path below the folder.

        Raises:
            UserError: If the rows can't be read, or differ in form from the training data.
        """
        import pandas as pd

        if (group is None) != (len(self.vectors) == 1) or (group is not None and not 0 <= group < len(self.vectors)):
            condition = f"be 0 to {len(self.vectors) - 1}" if len(self.vectors) > 1 else "be left out"
            raise ConfigurationError.of(
                "the group", f"{condition}, as {self.folder} holds {len(self.vectors)} models", group
            )
        features, names = self._features(rows)
        outputs = self._outputs(features, self.vectors[group or 0])
        scale, classes = self.description.scale, self.description.class_names
        columns: dict[str, Any] = names
        if scale is not None:
            columns[PREDICTION] = outputs[:, 0].astype(np.float64) * scale.deviation + scale.mean
        else:
            columns[PREDICTION] = np.array(classes, dtype=object)[outputs.argmax(axis=1)]
            columns |= {PROBABILITY.format(name): outputs[:, place] for place, name in enumerate(classes)}
        return pd.DataFrame(columns)

    def _features(self, rows: Any) -> tuple[FloatArray, dict[str, Any]]:
        """Return rows as features, with the columns that identify them."""
        import pandas as pd

        if isinstance(rows, pd.DataFrame):
            return self._encoded("DataFrame", read_frame(rows, ())), {}
        if not isinstance(rows, str | Path):
            return self.description.checked_features(rows), {}
        path = Path(rows).expanduser()
        if not ADDRESS.match(str(rows)) and not path.exists():
            raise DataError.of("the rows", "be the path of a table or of a folder of images", shown(str(rows)))
        if path.is_dir():
            return self._pictures(path)
        name = str(rows) if ADDRESS.match(str(rows)) else str(path.absolute())
        request = self.description.rows.model_copy(update={"dataset": name})
        location = own_place(request)
        if isinstance(location, list):
            raise DataError.of("the rows", "be from one table", shown(str(rows)))
        return self._encoded(str(rows), read_table(location, for_place(location, request))), {}

    def _encoded(self, name: str, table: Any) -> FloatArray:
        if self.description.encoding is None:
            shape = ", ".join(map(str, self.description.feature_shape))
            raise DataError.of(
                "rows",
                f"be an array of the shape (rows, {shape}) given in Python",
                f"the table {name}",
                f"the data set {self.description.rows.dataset!r} does not define how columns become features",
            )
        if not len(table):
            raise DataError.of(f"the table {name}", "hold at least one row", "none")
        request = self.description.rows
        table = with_missing(table, request.missing_values, {request.client_column, request.group_column})
        return encoded_rows(name, table, self.description.encoding)

    def _pictures(self, folder: Path) -> tuple[FloatArray, dict[str, Any]]:
        shape = self.description.feature_shape
        if self.description.kind != "image":
            raise DataError.of("the rows", "be a table, like the training data", f"the folder {folder}")
        features, names = pictures_alone(folder, self.description.rows, shape[0] == 1)
        return self.description.checked_features(features), {PICTURE: names}

    def _outputs(self, features: FloatArray, vector: FloatArray) -> FloatArray:
        import torch

        from fedscout.engine.config import torch_settings_kept
        from fedscout.engine.models.flat import new_model
        from fedscout.engine.training.loop import model_outputs

        data = Samples(features, np.zeros(len(features), np.int64), np.arange(len(features)))
        classifies = self.description.scale is None
        with torch_settings_kept():
            torch.set_num_threads(1)  # as hosts do: multithreaded sums differ in the last bits
            model = new_model(self.description.factory, seed=0)
            return np.concatenate([*model_outputs(model, data, vector, softmax=classifies)])


def load(folder: str | Path, code: str | None = None) -> TrainedModel:
    """Return the model that `fedscout train --out`, or a real federation, has written to a folder.

    Args:
        folder: The folder.
        code: `package.module:factory` of a custom model; required, as code named by the folder is not trusted.

    Raises:
        ConfigurationError: If the model is code that was not named.
        LogError: If the folder holds no model, or its files are inconsistent.
    """
    folder = Path(folder).expanduser()
    description = read_description(folder)
    kind = description.model.kind
    if ":" in kind and kind != code:
        raise ConfigurationError(
            f"{folder} names code as its model: {shown(kind)}. To allow it to run, add --code {kind}"
            if code is None
            else Fault("the code of the model", f"be {shown(kind)}", shown(code))
        )
    paths = sorted(folder.glob("model_*.safetensors"), key=_number) or [folder / "model.safetensors"]
    return TrainedModel(folder, description, np.stack([_vector(path, description) for path in paths]))


def _number(path: Path) -> tuple[int, str]:
    digits = path.stem.removeprefix("model_")
    return int(digits) if digits.isdecimal() else -1, path.name


def _vector(path: Path, description: ModelDescription) -> FloatArray:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    from fedscout.engine.models.flat import new_model

    try:
        if not path.is_file():
            raise LogError.of(path.parent, f"hold the weights {path.name}, but does not")
        return new_model(description.factory, seed=0).layout.join(load_file(path))
    except (OSError, ValueError, SafetensorError) as error:
        raise LogError.of(path, f"hold the weights of the model beside it: {first_line(error)}") from error


SAFE_FILE, TORCH_FILE, ROUNDS_FILE = "model{}.safetensors", "model{}.pt", "rounds.parquet"
SEVERAL = "each group of clients has its own model and files; model_0 is that of the first group"
MODEL_FILES = re.compile(r"model(_\d+)?\.(safetensors|pt)")


def what_is_kept(spec: StrategySpec, layout: ParameterLayout) -> str | None:
    """Return a sentence on what the model files will hold; None if it is the model that every client uses.

    Args:
        spec: Strategy to be trained.
        layout: Layout of the model.

    Raises:
        StrategyError: If no parameters are shared.
    """
    algorithm = spec.client_algorithm()
    if shares_nothing(algorithm, layout):
        key, must = "a strategy whose clients share something", "be trained if the model is kept"
        raise StrategyError.of(key, must, f"{spec.label}, whose parameters all stay with their clients")
    sentences = [SEVERAL if spec.grouped else None, kept_model(algorithm, layout)]
    return "; ".join(filter(None, sentences)) or None


def leaves_model(spec: StrategySpec, federation: Federation) -> bool:
    """Return whether training produces a model that clients share."""
    from fedscout.engine.models.flat import new_model  # torch, which most strategies do without here

    algorithm = spec.client_algorithm()
    personal = algorithm is not None and algorithm.personal
    return not personal or not shares_nothing(algorithm, new_model(federation.model, seed=0).layout)


def write_training(
    folder: Path, config: StudyConfig, federation: Federation, settings: TrialSettings, trial: Trial
) -> None:
    """Write the model of a simulated training.

    Args:
        folder: Folder of the study.
        config: Configuration of the study.
        federation: Federation, with its rows for regression.
        settings: Settings of the trial.
        trial: Trial with its model.
    """
    assert trial.vector is not None
    parts, place = trainings_of(settings, config.training.repetitions), 0
    if trial.repetition_fitness is not None:  # the model is that of the training that is the median
        place = trial.repetition_fitness.index(trial.fitness)
    session = parts[place].session
    scale = federation.target_scale(session.seed, session.test_fraction, session.validation_fraction)
    description = ModelDescription(
        rows=shared_fields(DatasetRequest, config.federation),
        class_names=federation.class_names,
        model=shared_fields(ModelSettings, config.model),
        target=federation.target_name,
        scale=scale,
        **federation.reading,
    )
    write_model(folder, description, trial.vector)


def write_model(folder: Path, description: ModelDescription, vector: npt.NDArray[np.float32]) -> None:
    """Write one model or several, as a description and named tensors for `load_state_dict`.

    Files of an earlier training with another number of models are removed.

    Args:
        folder: Output folder.
        description: How rows are read, and what the outputs mean.
        vector: Parameters and buffers, shape `(size,)` or `(models, size)`.
    """
    import torch
    from safetensors.torch import save_file

    from fedscout.engine.models.flat import new_model

    layout = new_model(description.factory, seed=0).layout
    models = (
        {"": vector} if vector.ndim == 1 else {f"_{place}": model_vector for place, model_vector in enumerate(vector)}
    )
    written = set()
    for number, model_vector in models.items():
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in layout.split(model_vector).items()}
        safe, plain = (folder / name.format(number) for name in (SAFE_FILE, TORCH_FILE))
        write_atomically(safe, partial(save_file, tensors))
        write_atomically(plain, partial(torch.save, tensors))
        written |= {safe, plain}
    plain_description = shared_fields(ModelDescription, description)  # of an agreement
    write_atomically(
        folder / DESCRIPTION_FILE, lambda path: path.write_text(plain_description.model_dump_json(indent=1) + "\n")
    )
    for path in folder.iterdir():
        if MODEL_FILES.fullmatch(path.name) and path not in written:
            remove_file(path)


def write_rounds(folder: Path, trial: Trial) -> None:
    """Write the measurements of each round, one row per round."""
    import pandas as pd

    measured = {f"round_{name}": values for name, values in trial.rounds.items() if len(values) == trial.num_rounds}
    rounds = pd.DataFrame({"round": range(1, trial.num_rounds + 1), **measured})
    write_atomically(folder / ROUNDS_FILE, lambda temporary: rounds.to_parquet(temporary, index=False))
