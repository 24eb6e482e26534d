"""The Flower app of a real client, its rows, and the agreement with the driver.

```python
app = client_app("federation.json")                    # rows: data=PATH in --node-config
app = client_app("federation.json", rows=read_rows)    # rows: returned by a function of the data owner
```

An agreement defines, for the driver and all clients of a real federation, how rows become numbers, the classes, and the
model. It is one JSON file beside a Flower app (`driver.py`), written from the study that chose the strategy, and holds
no row: for a table it holds the statistics that the study's clients released (`min_release`) and the names of columns,
categories and classes. It includes the study's configuration for the driver; a client's process, which starts for every
message, does not parse it.

A client's rows come from its owner's file or folder, from arrays of its owner's code, or from a simulated partition:

| source | content | how it becomes rows |
| --- | --- | --- |
| `data` of the node's configuration | a CSV or Parquet table | by the agreement's encoding of columns and classes |
| | a folder of images | as `federation.dataset` reads one, at the agreement's image size |
| a function | `(features, labels)` of the model's shape, a DataFrame, or a path | likewise |
| neither, but `partition-id` | the study's own data | the rows of the simulated client with that number |

Messages between a driver and real clients hold only values of the engine and client algorithms of the strategies.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Error, Message
from flwr.clientapp import ClientApp

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.client_table import METRICS, SettingsLookup
from fedscout.engine.contracts.config import LocalTraining
from fedscout.engine.data.client import Partition, QueryTable
from fedscout.engine.data.federation import Federation, Names
from fedscout.engine.errors import ConfigurationError, DataError, Fault
from fedscout.engine.messages.calls import Session
from fedscout.engine.metrics import ACCURACY
from fedscout.engine.nodes.client import REFUSED, ClientNode
from fedscout.engine.nodes.policy import OwnerPolicy, read_policy
from fedscout.engine.nodes.wire import ACTION, DOCUMENT_KEY, Wire, algorithms_of
from fedscout.engine.runtime.files import read_json_object
from fedscout.engine.text import listed, reading_document, shown
from fedscout.experiments.data.columns import ColumnRoles, discrete, with_missing
from fedscout.experiments.data.dataset import Dataset, DatasetRequest
from fedscout.experiments.data.images import client_pictures
from fedscout.experiments.data.table_files import read_frame
from fedscout.experiments.data.table_formats import for_place, read_table
from fedscout.experiments.data.tables import encoded_rows
from fedscout.experiments.models.request import ModelSettings
from fedscout.experiments.models.table import embedding_source
from fedscout.experiments.trained import ModelDescription, shared_fields
from fedscout.search.client_settings import ClientSettingsConfig

if TYPE_CHECKING:
    import pandas as pd

    from fedscout.experiments.config import StudyConfig


class Agreement(ModelDescription):
    """The model, its training, and the data format, which are the same for every client.

    Attributes:
        embedding: What detectors compare, see `federation.embedding`.
        data_seed: Seed of the embedding network, and of a simulated client's rows.
        training: Local training for messages that do not specify it, such as those of other programs.
        test_fraction: Share of each client's rows kept for tests, for such messages.
        seed: Seed of split and batches, for such messages.
        settings: Table from which clients choose their own learning rates, batch sizes and epochs; None where all train
            alike.
        study: The study's configuration, as JSON.
    """

    embedding: str
    data_seed: int
    training: LocalTraining
    test_fraction: float
    seed: int
    settings: SettingsLookup | None = None
    study: dict[str, Any]

    @classmethod
    def of_study(cls, config: StudyConfig, dataset: Dataset | None = None) -> Self:
        """Return the agreement for a study's configuration.

        Args:
            config: Configuration of the study.
            dataset: Data of the study; None loads the configured data set.

        Raises:
            ConfigurationError: If the study uses something that real clients do not support.
            DataError: If its data can't be read.
        """
        from fedscout.experiments.data.loaders.table import load_dataset
        from fedscout.experiments.reinforcement import ENVIRONMENTS
        from fedscout.experiments.studies.checks import lookup_of
        from fedscout.search.study import ASKS_A_LANGUAGE_MODEL

        federation = config.federation
        if federation.dataset in ENVIRONMENTS:
            raise ConfigurationError.of("a real federation", "hold rows", f"the environment {federation.dataset}")
        dataset = dataset or load_dataset(federation)
        if dataset.targets is not None:
            raise ConfigurationError.of(
                "a real federation",
                "predict classes: a regression target is standardized over the rows of all clients, which nobody sees",
            )
        settings, search = config.client_settings, config.search
        faults = [
            Fault(f"search.{key}", f"{must} on real clients", given)
            for key, refused, must, given in (
                ("kind", search.kind in ASKS_A_LANGUAGE_MODEL, "ask no language model", search.kind),
                ("objective", search.objective == "time_to_accuracy", "need no simulated clock", search.objective),
                ("warm_start", bool(search.warm_start), "be left out", list(search.warm_start)),
            )
            if refused
        ]
        if faults:
            raise ConfigurationError(faults)
        if settings.kind is not None and config.metric_name != ACCURACY:
            must = "be left out with client_settings on real clients, as its sums reveal rows"
            raise ConfigurationError.of("training.metric", must, config.metric_name)
        if settings.kind is not None and settings.metric not in METRICS:
            must = f"be {' or '.join(METRICS)} on real clients, which receive no code"
            raise ConfigurationError.of("client_settings.metric", must, settings.metric)
        return cls(
            rows=shared_fields(DatasetRequest, federation),
            kind=dataset.kind,
            feature_shape=dataset.features.shape[1:],
            class_names=dataset.class_names,
            feature_names=dataset.feature_names,
            vocabulary_size=dataset.vocabulary_size,
            encoding=None if dataset.encoding is None else dict(dataset.encoding),
            model=shared_fields(ModelSettings, config.model),
            embedding=federation.embedding,
            data_seed=federation.seed,
            training=config.training.local(),
            test_fraction=config.training.test_fraction,
            seed=config.seed,
            settings=None if settings.kind is None else lookup_of(settings, dataset.num_classes),
            study=config.model_copy(update={"client_settings": ClientSettingsConfig()}).model_dump(mode="json"),
        )

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the agreement in a file.

        Raises:
            ConfigurationError: If the file can't be read or is no agreement.
        """
        with reading_document(path, ConfigurationError, "be an agreement"):
            return cls.model_validate(read_json_object(path))

    @property
    def text(self) -> str:
        """The file's content."""
        return self.model_dump_json(indent=1) + "\n"

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the agreement, in hexadecimal."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @cached_property
    def config(self) -> StudyConfig:
        """The study's configuration."""
        from fedscout.experiments.config import StudyConfig

        return StudyConfig.model_validate(self.study)

    @property
    def session(self) -> Session:
        """The session for messages that do not specify one."""
        return Session(seed=self.seed, training=self.training, test_fraction=self.test_fraction)

    @property
    def names(self) -> Names:
        """Names of classes and features; names of clients are not shared."""
        return Names((), self.class_names, self.feature_names)

    def without_clients(self) -> Federation:
        """Return the federation without any client's rows, as the driver has it."""
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


Arrays = tuple[npt.ArrayLike, npt.ArrayLike]
RowsOf = Callable[["Context"], "Arrays | pd.DataFrame | str | Path"]
"""Returns a client's rows for Flower's context: features and labels, a table, or a path to one."""


def client_federation(agreement: Agreement, number: int, context: Context, rows_of: RowsOf | None) -> Federation:
    """Return a federation that consists of one client.

    Args:
        agreement: The agreement.
        number: Client number, from which its random streams derive.
        context: Flower's context; its `node_config` may hold `data` or `partition-id`.
        rows_of: Function of the data owner that returns the rows.

    Raises:
        DataError: If the rows can't be read or do not match the agreement.
    """
    node = context.node_config
    if rows_of is not None:
        return _federation_of_rows(agreement, number, rows_of(context), node)
    if "data" in node:
        return _federation_of_rows(agreement, number, str(node["data"]), node)
    share = node.get("partition-id")
    if not isinstance(share, int) or isinstance(share, bool):
        raise DataError.of(
            "a client",
            "have rows: data=PATH in --node-config, a function given to client_app, or "
            "partition-id=N for the rows of a simulated client",
            shown(dict(node)),
        )
    from fedscout.experiments.federation import build_federation  # all that a study loads

    config = agreement.config
    simulated = build_federation(config.federation, config.model)
    if not 0 <= share < simulated.num_clients:
        raise DataError.of("partition-id", f"be one of the study's {simulated.num_clients} clients", share)
    return simulated.alone(share, number)


def _federation_of_rows(agreement: Agreement, number: int, rows: Any, node: Any) -> Federation:
    if isinstance(rows, str | Path) and Path(rows).expanduser().is_dir():
        features, labels, groups = _pictures(agreement, Path(rows).expanduser())
    elif isinstance(rows, tuple):
        features, labels, groups = *_arrays(agreement, *rows), None
    else:
        features, labels, groups = _table(agreement, rows, node)
    if not len(labels):
        raise DataError.of("a client", "hold at least one row", "none")
    return replace(
        agreement.without_clients(),
        features=features,
        labels=labels,
        groups=groups,
        partition=Partition.from_lists([*[[]] * number, np.arange(len(labels))]),
    )


def _table(agreement: Agreement, rows: Any, node: Any) -> tuple[FloatArray, IntArray, IntArray | None]:
    """Return the rows of a table, encoded as the agreement defines."""
    request = agreement.rows
    name = str(rows) if isinstance(rows, str | Path) else "DataFrame"
    if agreement.encoding is None:
        raise DataError.of(
            "a client's rows",
            f"be arrays of the model's shape {agreement.feature_shape}",
            f"the table {name}",
            f"the study's data set {request.dataset!r} does not define how columns become features",
        )
    place = Path(name)
    table = read_table(place, for_place(place, request)) if name != "DataFrame" else read_frame(rows, ())
    table = with_missing(table, request.missing_values, {request.client_column, request.group_column})
    label = str(node.get("label", request.label))
    if label not in table.column_names:
        raise DataError.of(
            "label", f"name a column of {name}", repr(label), f"its columns: {listed(table.column_names)}"
        )
    group = request.group_column if request.group_column in table.column_names else None
    roles = ColumnRoles(label, group=group)
    table, _ = roles.labelled_rows(name, table)
    labels = _class_numbers(agreement, discrete(name, table, label).tolist())
    groups = roles.groups(name, table)
    return encoded_rows(name, table, agreement.encoding), labels, groups


def _arrays(agreement: Agreement, features: npt.ArrayLike, labels: npt.ArrayLike) -> tuple[FloatArray, IntArray]:
    """Return rows that already are features."""
    values, label_array = agreement.checked_features(features), np.asarray(labels)
    if label_array.shape != values.shape[:1]:
        raise DataError.of("a client's labels", f"have the shape ({len(values)},) of its rows", label_array.shape)
    return values, _class_numbers(agreement, label_array.tolist())


def _pictures(agreement: Agreement, folder: Path) -> tuple[FloatArray, IntArray, None]:
    """Return the images of a folder."""
    if agreement.kind != "image":
        raise DataError.of("a client's rows", f"be of the kind {agreement.kind}", f"the folder {folder}")
    features, labels = client_pictures(folder, agreement.rows, agreement.feature_shape[0] == 1)
    if features.shape[1:] != agreement.feature_shape:
        raise DataError.of("pictures", f"have the shape {agreement.feature_shape} of the agreement", features.shape[1:])
    return features, _class_numbers(agreement, labels), None


def _class_numbers(agreement: Agreement, labels: list[Any]) -> IntArray:
    """Return each row's class number."""
    class_numbers = {name: number for number, name in enumerate(agreement.class_names)}
    unknown = {str(label) for label in labels} - class_numbers.keys()
    if unknown:
        raise DataError.of(
            "a client's rows", f"be of the classes {listed([*class_numbers])} of the agreement", listed([*unknown])
        )
    return np.array([class_numbers[str(label)] for label in labels], dtype=np.int64)


STRATEGIES = "fedscout.strategies"


def wire() -> Wire:
    """Return a serializer for all messages."""
    from fedscout.strategies import table as strategy_table  # which imports every strategy's clients

    assert strategy_table
    return Wire(algorithms_of(STRATEGIES))


def wire_of(message: Message) -> Wire:
    """Return a serializer for a message, without strategies if it names none, as importing them takes a second."""
    return wire() if STRATEGIES in document_of(message) else Wire()


def document_of(message: Message) -> str:
    """Return the JSON document in a message of this program's driver; empty for other messages."""
    record = message.content.config_records.get(DOCUMENT_KEY)
    return "" if record is None else str(record.get(DOCUMENT_KEY, ""))


logger = logging.getLogger("fedscout")

QUERY = '"query"'


def client_app(
    agreement: str | Path, rows: RowsOf | None = None, policy: str | Path | OwnerPolicy | None = None
) -> ClientApp:
    """Return the app that a SuperNode runs on its owner's data.

    It answers a fedscout driver (`RealFederation`) and the `train` and `evaluate` messages of any Flower strategy. The
    module describes where rows come from.

    Args:
        agreement: File of the agreement, which defines the data format and the model.
        rows: Function that returns the client's rows; None uses `data` or `partition-id` of the node's configuration.
        policy: What the owner allows, or its file; None uses the file that `policy` of the node's configuration names,
            and without one the defaults of `OwnerPolicy`.

    Raises:
        ConfigurationError: If agreement or policy can't be read.
    """
    client_agreement = Agreement.read(Path(agreement))
    given_policy = policy if policy is None or isinstance(policy, OwnerPolicy) else read_policy(Path(policy))

    def federation_of(number: int, terms: str, context: Context) -> Federation:
        if terms not in ("", client_agreement.digest):
            raise DataError.of("the driver's agreement", "match that of this client")
        return client_federation(client_agreement, number, context, rows)

    def answer(message: Message, context: Context) -> Message:
        policy_file = context.node_config.get("policy")
        try:
            owner_policy = given_policy or (
                OwnerPolicy() if policy_file is None else read_policy(Path(str(policy_file)))
            )
        except ConfigurationError as error:
            logger.error("%s", error)
            return Message(Error(REFUSED, "can't read its owner's policy; see the client's log"), reply_to=message)
        node = ClientNode(federation_of, _queries(message), owner_policy, wire_of(message), client_agreement.session)
        return node.app()(message, context)

    app = ClientApp()
    for category in (app.train, app.evaluate, app.query):
        category()(answer)
        category(ACTION)(answer)
    return app


def _queries(message: Message) -> QueryTable:
    """Return the known queries if the message may contain one, as a process answers a single message."""
    if QUERY not in document_of(message):
        return {}
    from fedscout.detectors import CLIENT_QUERIES

    return CLIENT_QUERIES
