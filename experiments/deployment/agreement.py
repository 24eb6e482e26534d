"""What the driver and the clients of a real federation have agreed on: how rows become numbers, the classes, the model.

It is one JSON file beside a Flower app (`app_folder.py`), written from the study that chose, and holds no row: of the
study's table it has the statistics that its clients told (`min_release`), names of columns, categories and classes.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from fedscout.engine.data.client_data import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import ConfigurationError
from fedscout.engine.model.parameter_layout import ModelFactory
from fedscout.experiments.config.study_config import StudyConfig
from fedscout.experiments.federations.assembly.build_federation import embedding_source
from fedscout.experiments.federations.datasets.dataset import DataKind, Dataset
from fedscout.experiments.federations.datasets.loaders.dataset_table import load_dataset
from fedscout.experiments.federations.models.model_request import ModelRequest
from fedscout.experiments.federations.models.model_table import build_model


class Agreement(BaseModel):
    """What holds for every client.

    Attributes:
        config: The study's.
        kind: What a row is.
        feature_shape: Of a row as the model sees it.
        class_names: In the order of the model's outputs.
        feature_names: Of a table's features.
        vocabulary_size: Of tokens.
        encoding: How a table's columns become features; None where rows are given as features.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: StudyConfig
    kind: DataKind
    feature_shape: tuple[int, ...]
    class_names: tuple[str, ...]
    feature_names: tuple[str, ...] = ()
    vocabulary_size: int = 0
    encoding: dict[str, Any] | None = None

    @classmethod
    def of_study(cls, config: StudyConfig, dataset: Dataset | None = None) -> Self:
        """Return the agreement that a study amounts to.

        Args:
            config: Of the study.
            dataset: Its rows; None reads what is configured.

        Raises:
            ConfigurationError: If real clients can't do what it does.
            DataError: If its data can't be read.
        """
        federation = config.federation
        if federation.predicts_quantity:
            raise ConfigurationError(
                "a real federation must predict classes: a quantity is standardised over the rows of all clients, "
                "which no one sees there"
            )
        dataset = dataset or load_dataset(federation)
        return cls(
            config=config,
            kind=dataset.kind,
            feature_shape=dataset.features.shape[1:],
            class_names=dataset.class_names,
            feature_names=dataset.feature_names,
            vocabulary_size=dataset.vocabulary_size,
            encoding=None if dataset.encoding is None else dict(dataset.encoding),
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read an agreement.

        Raises:
            ConfigurationError: If there is none.
        """
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise ConfigurationError(f"{path} must be an agreement, but can't be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ConfigurationError(f"{path} must be an agreement, but {place}: {first['msg']}") from error

    @property
    def text(self) -> str:
        """The file's content."""
        return self.model_dump_json(indent=1) + "\n"

    @property
    def digest(self) -> str:
        """SHA-256 of it, in hexadecimal."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @cached_property
    def request(self) -> ModelRequest:
        """What the model is built for."""
        return ModelRequest(
            self.feature_shape, len(self.class_names), self.config.model, self.kind, self.vocabulary_size
        )

    def model(self) -> ModelFactory:
        """Return the factory of the model."""
        return build_model(self.request)

    def without_clients(self) -> Federation:
        """Return the federation with no client's rows: what the driver's machine holds."""
        model, federation = self.model(), self.config.federation
        return Federation(
            name=f"{federation.dataset}, real clients",
            features=np.empty((0, *self.feature_shape), np.float32),
            labels=np.empty(0, np.int64),
            num_classes=len(self.class_names),
            partition=Partition.from_lists([]),
            model=model,
            seed=federation.seed,
            feature_names=self.feature_names,
            class_names=self.class_names,
            embedding=embedding_source(federation.embedding, self.request, model),
            split=federation.split_kind,
            facts={"model": str(model), "data_kind": self.kind},
        )
