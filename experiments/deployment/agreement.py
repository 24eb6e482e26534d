"""What the driver and the clients of a real federation have agreed on: how rows become numbers, the classes, the model.

It is one JSON file beside a Flower app (`app_folder.py`), written from the study that chose, and holds no row: of the
study's table it has the statistics that its clients told (`min_release`), names of columns, categories and classes. The
study's configuration lies beside, for the driver; a client's process, which starts for every message, does not read it.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from pydantic import ValidationError

from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.settings_lookup import METRICS, SettingsLookup
from fedscout.engine.contracts.settings_table import SettingsCell, SettingsTable
from fedscout.engine.data.client_data import Partition
from fedscout.engine.data.federation import Federation
from fedscout.engine.data.names import Names
from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.messages.session import Session
from fedscout.engine.metrics.metric_table import ACCURACY
from fedscout.experiments.federations.datasets.dataset import Dataset
from fedscout.experiments.federations.datasets.dataset_request import DatasetRequest
from fedscout.experiments.federations.models.embedding_choice import embedding_source
from fedscout.experiments.federations.models.model_settings import ModelSettings
from fedscout.experiments.trained.model_description import ModelDescription, part_of
from fedscout.search.client_settings_config import ClientSettingsConfig

if TYPE_CHECKING:
    from fedscout.experiments.config.study_config import StudyConfig


class Agreement(ModelDescription):
    """What holds for every client: the model, and how it is trained.

    Attributes:
        embedding: What detectors compare, see `federation.embedding`.
        data_seed: Of that network, and of a simulated client's rows.
        training: Of messages that say nothing of it, as those of other programs.
        test_fraction: Share of each client's rows kept for tests, likewise.
        seed: Of split and batches, likewise.
        settings: By which clients choose rates, batches and epochs of their own, a `SettingsLookup` as JSON; None where
            all train alike.
        study: The whole configuration, as JSON.
    """

    embedding: str
    data_seed: int
    training: LocalTraining
    test_fraction: float
    seed: int
    settings: dict[str, Any] | None = None
    study: dict[str, Any]

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
        from fedscout.experiments.federations.datasets.loaders.dataset_table import load_dataset
        from fedscout.experiments.federations.environments.environment_table import ENVIRONMENTS
        from fedscout.experiments.studies.client_settings import warn_of_table

        federation = config.federation
        if federation.predicts_quantity:
            raise ConfigurationError(
                Fault(
                    "a real federation",
                    (
                        "predict classes: a quantity is standardised over the rows of all clients, which no "
                        "one sees there"
                    ),
                )
            )
        if federation.dataset in ENVIRONMENTS:
            raise ConfigurationError(Fault("a real federation", "hold rows", f"the environment {federation.dataset}"))
        settings = config.client_settings
        if settings.kind is not None and config.metric_name != ACCURACY:
            raise ConfigurationError(
                Fault(
                    "training.metric",
                    "be left out beside client_settings on real clients, as its sums tell rows",
                    config.metric_name,
                )
            )
        dataset = dataset or load_dataset(federation)
        agreement = cls(
            rows=part_of(DatasetRequest, federation),
            kind=dataset.kind,
            feature_shape=dataset.features.shape[1:],
            class_names=dataset.class_names,
            feature_names=dataset.feature_names,
            vocabulary_size=dataset.vocabulary_size,
            encoding=None if dataset.encoding is None else dict(dataset.encoding),
            model=part_of(ModelSettings, config.model),
            embedding=federation.embedding,
            data_seed=federation.seed,
            training=config.training.local(),
            test_fraction=config.training.test_fraction,
            seed=config.seed,
            settings=None if settings.kind is None else _lookup_document(settings, dataset.num_classes),
            study=config.model_copy(update={"client_settings": ClientSettingsConfig()}).model_dump(mode="json"),
        )
        if settings.kind is not None:
            warn_of_table(config, str(agreement.factory))
        return agreement

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read an agreement.

        Raises:
            ConfigurationError: If there is none.
        """
        try:
            return cls.model_validate_json(path.read_text())
        except OSError as error:
            raise ConfigurationError(Fault(path, f"be an agreement, but can't be read: {error.strerror}")) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"]))
            raise ConfigurationError(Fault(path, f"be an agreement, but {place}: {first['msg']}")) from error

    @property
    def text(self) -> str:
        """The file's content."""
        return self.model_dump_json(indent=1) + "\n"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of it, in hexadecimal."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @cached_property
    def config(self) -> StudyConfig:
        """The study's configuration."""
        from fedscout.experiments.config.study_config import StudyConfig

        return StudyConfig.model_validate(self.study)

    @property
    def lookup(self) -> SettingsLookup | None:
        """The table of client settings, if there is one."""
        if self.settings is None:
            return None
        table = self.settings["table"]
        cells = tuple(SettingsCell(**cell) for cell in table["cells"])
        return SettingsLookup(**{**self.settings, "table": SettingsTable(cells, table["threshold"])})

    @property
    def session(self) -> Session:
        """What holds for messages that say nothing of it."""
        return Session(seed=self.seed, training=self.training, test_fraction=self.test_fraction)

    @property
    def names(self) -> Names:
        """Names of classes and features; those of clients stay with their owners."""
        return Names((), self.class_names, self.feature_names)

    def without_clients(self) -> Federation:
        """Return the federation with no client's rows: what the driver's machine holds."""
        factory = self.factory
        return Federation(
            name=f"{self.rows.dataset}, real clients",
            features=np.empty((0, *self.feature_shape), np.float32),
            labels=np.empty(0, np.int64),
            num_classes=len(self.class_names),
            partition=Partition.from_lists([]),
            model=factory,
            seed=self.data_seed,
            feature_names=self.feature_names,
            class_names=self.class_names,
            embedding=embedding_source(self.embedding, self.request, factory),
            split=self.rows.split_kind,
            facts={"model": str(factory), "data_kind": self.kind},
        )


def _lookup_document(settings: ClientSettingsConfig, num_classes: int) -> dict[str, Any]:
    """Return a table of client settings as it travels.

    Raises:
        ConfigurationError: If it is of other classes, or clients could not measure what it is looked up by.
    """
    table, provenance = settings.read()
    if provenance.get("num_classes", num_classes) != num_classes:
        raise ConfigurationError(
            Fault(
                "client_settings.path",
                f"be a table for {num_classes} classes, as the study has",
                f"{settings.path} for {provenance['num_classes']}",
            )
        )
    if settings.metric not in METRICS:
        raise ConfigurationError(
            Fault(
                "client_settings.metric",
                f"be {' or '.join(METRICS)} on real clients, which are sent no code",
                settings.metric,
            )
        )
    return asdict(SettingsLookup(table, settings.metric, epsilon=settings.epsilon))
