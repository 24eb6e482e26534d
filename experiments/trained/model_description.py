"""What one must know of a model to use it: how rows become its inputs, and what its outputs mean.

It is values alone, in one JSON file beside the weights (`trained_model.py`) and in the agreement of a real federation
(`agreement.py`). It holds no row: of a table it has names of columns, categories and classes and the statistics that
clients told (`federation.min_release`), of texts the words of the vocabulary.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedscout.engine.arrays import FloatArray
from fedscout.engine.data.client_data import TargetScale
from fedscout.engine.errors import DataError, Fault, LogError
from fedscout.engine.fault_text import details
from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.engine.runtime.json_file import read_json_object
from fedscout.experiments.federations.datasets.dataset import DataKind
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.models.model_request import ModelRequest
from fedscout.experiments.federations.models.model_settings import ModelSettings
from fedscout.experiments.federations.models.model_table import build_model

DESCRIPTION_FILE = "model.json"
Part = TypeVar("Part", bound=BaseModel)


class ModelDescription(BaseModel):
    """A model's inputs, layers and outputs.

    Attributes:
        rows: Which data it was trained on; of a table, which column is the label and which the group.
        kind: What a row is.
        feature_shape: Of a row as the model sees it.
        class_names: In the order of the model's outputs; where a quantity is predicted, of its tenths.
        feature_names: Of a table's features.
        vocabulary_size: Of tokens.
        encoding: How a table's columns, or its texts, become features; None where rows are given as features.
        model: The layers.
        target: The quantity that is predicted; empty where classes are.
        scale: By which the quantity is standardised.
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
        """What the model is built for."""
        num_outputs = 1 if self.scale is not None else len(self.class_names)
        return ModelRequest(
            self.feature_shape, num_outputs, self.model, self.kind, self.vocabulary_size, self.scale is not None
        )

    @property
    def factory(self) -> ModelFactory:
        """The factory of the model."""
        return build_model(self.request)

    def checked_features(self, features: Any) -> FloatArray:
        """Return rows that are features already, float32, shape `(num_rows, *feature_shape)`.

        Raises:
            DataError: If they are not of the model's shape, or not finite numbers.
        """
        values = np.asarray(features)
        if values.shape[1:] != self.feature_shape:
            shape = ", ".join(map(str, self.feature_shape))
            raise DataError(Fault("an array of rows", f"have the shape (rows, {shape}) of the model", values.shape))
        if values.dtype.kind not in "fiub" or not np.isfinite(values).all():
            raise DataError(Fault("an array of rows", "hold finite numbers"))
        return values.astype(np.float32)


def part_of(part: type[Part], config: BaseModel) -> Part:
    """Return the fields of a configuration that a part of it has, as that part."""
    return part(**{name: getattr(config, name) for name in part.model_fields})


def read_description(folder: Path) -> ModelDescription:
    """Read the description of the model in a folder.

    Raises:
        LogError: If there is none, or it can't be read.
    """
    from fedscout.experiments.config.config_keys import fault_text  # the whole configuration, which no client reads

    path = folder / DESCRIPTION_FILE
    try:
        return ModelDescription.model_validate(read_json_object(path), strict=False)
    except ValidationError as error:
        raise LogError(Fault(path, f"describe a model of this version: {fault_text(details(error)[0])}")) from error
    except FileNotFoundError as error:
        raise LogError(
            Fault(folder, f"hold a trained model (fedscout train --out), but has no {DESCRIPTION_FILE}")
        ) from error
    except (OSError, ValueError) as error:
        raise LogError(Fault(path, f"describe a model, but can't be read: {error}")) from error
