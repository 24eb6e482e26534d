"""Configuration of a federation and of its model."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator

from fedscout.engine.data.client import SmallClients
from fedscout.engine.text import did_you_mean
from fedscout.experiments.data.dataset import DatasetRequest, names_files_of_clients
from fedscout.experiments.data.loaders.table import DATASETS, is_own_data
from fedscout.experiments.models.request import ModelSettings
from fedscout.experiments.models.table import KINDS, model_fault
from fedscout.experiments.partitions.labels import PartitionSettings
from fedscout.experiments.partitions.table import PARTITIONS, settings_not_read
from fedscout.experiments.reinforcement import ENVIRONMENTS, PhysicsConfig
from fedscout.experiments.scenarios.effects import ScenarioEffect
from fedscout.experiments.scenarios.table import EFFECTS, EXAMPLE, SCENARIOS, EffectChoice, parse_effects

DEFAULT_PARTITION = "dirichlet"
NATURAL = "natural"
IID = "iid"
GIVEN = "given"
"""The name of data passed in Python."""

DEFAULT_NUM_CLIENTS = 10


def _partition(name: str) -> str:
    if name not in PARTITIONS:
        raise ValueError(f"must be one of {', '.join(PARTITIONS)}, got {name!r}{did_you_mean(name, PARTITIONS)}")
    return name


def _data_set(name: str, others: Collection[str] = (*ENVIRONMENTS, GIVEN)) -> str:
    known = [*DATASETS, *(other for other in others if other != GIVEN)]
    if name not in {*known, *others} and not is_own_data(name):
        raise ValueError(
            f"must be one of {', '.join(known)}, or a path to your own data, or hf:owner/name, "
            f"got {name!r}{did_you_mean(name, known)}"
        )
    return name


def _model(name: str) -> str:
    if fault := model_fault(name):
        raise ValueError(fault)
    return name


def _scenario(given: Any) -> Any:
    if given is None or (isinstance(given, str) and given in SCENARIOS):
        return given
    if isinstance(given, str) or not isinstance(given, Mapping | list | tuple | ScenarioEffect):
        raise ValueError(
            f"must be one of {', '.join(SCENARIOS)}, or a list of effects ({', '.join(EFFECTS)}), such as "
            f"[{EXAMPLE}], got {given!r}{did_you_mean(given, SCENARIOS)}"
        )
    return parse_effects(given)


def _count_or_share(given: Any) -> Any:
    is_count = isinstance(given, int) and not isinstance(given, bool) and given >= 1
    if given is None or is_count or (isinstance(given, float) and 0 < given < 1):
        return given
    raise ValueError(f"must be a whole number of rows, 1 or more, or a fraction of all rows in (0, 1), got {given!r}")


DatasetName = Annotated[
    str, AfterValidator(_data_set), Field(json_schema_extra={"examples": [*DATASETS, *ENVIRONMENTS]})
]
PartitionName = Annotated[str, AfterValidator(_partition), Field(json_schema_extra={"enum": list(PARTITIONS)})]
ScenarioName = Annotated[str, Field(json_schema_extra={"enum": list(SCENARIOS)})]
ScenarioChoice = Annotated[ScenarioName | tuple[EffectChoice, ...] | None, BeforeValidator(_scenario)]
ServerRows = Annotated[int | float | None, BeforeValidator(_count_or_share)]
ModelName = Annotated[str, AfterValidator(_model), Field(json_schema_extra={"examples": list(KINDS)})]


class PartitionConfig(PartitionSettings):
    """Partition of rows over clients."""

    kind: PartitionName | None = Field(
        default=None,
        description="by default dirichlet, natural if there is a client column, or what the scenario fixes",
    )


class ModelConfig(ModelSettings):
    """The model that every client trains."""

    kind: ModelName = Field(
        default="auto", description="auto chooses by the data; or package.module:factory of your own"
    )


def _refuse_settings_not_read(partition: PartitionConfig) -> None:
    assert partition.kind is not None
    if surplus := settings_not_read(partition):
        reads = ", ".join(PARTITIONS[partition.kind].reads) or "no others"
        surplus_text = ", ".join(f"{key}={value}" for key, value in surplus.items())
        raise ValueError(f"must contain only keys that kind={partition.kind} reads ({reads}), got {surplus_text}")


class FederationConfig(DatasetRequest):
    """Data set, partition, number of clients, and scenario of a federation.

    `partition.kind` and `num_clients` are completed from other keys: without a published scenario, rows are partitioned
    by a Dirichlet distribution over ten clients, or by the client column if one is given; with a published scenario,
    `partition` keeps its default. With natural clients, `num_clients` stays empty unless given. Validating a dumped
    configuration gives the same configuration.
    """

    dataset: DatasetName = Field(
        default="digits", description="name of a data set, path or address of your own data, or hf:owner/name"
    )
    scenario: ScenarioChoice = Field(
        default=None,
        description="a published scenario, which fixes the partition, or a list of effects on top of the partition",
    )
    partition: PartitionConfig = Field(default=PartitionConfig(), description="how rows are assigned to clients")
    physics: tuple[PhysicsConfig, ...] = Field(
        default=(), description="reinforcement learning: physics of some clients, such as [{clients: [2], gravity: 20}]"
    )
    embedding: str = Field(
        default="auto",
        description=(
            "representation that detectors compare: auto (last hidden layer for images and "
            "tokens, else the features), features, or package.module:factory of your own network"
        ),
    )
    num_clients: int | None = Field(
        default=None,
        ge=1,
        le=1_000_000,
        description="number of clients; 10 by default, or the number of natural clients",
    )
    unseen_clients: int = Field(
        default=0,
        ge=0,
        description=(
            "number of clients, drawn by federation.seed, that never train or answer queries and "
            "are evaluated as new clients"
        ),
    )
    server_rows: ServerRows = Field(
        default=None, description="rows held by the server and by no client: a number, or a fraction of all"
    )
    server_dataset: str | None = Field(
        default=None,
        description="data set of the server's rows (all of them, or server_rows); the clients' own by default",
    )
    server_labels: bool = Field(default=False, description="whether the server has the labels of its rows")
    seed: int = Field(default=0, ge=0, description="seed of partition and corruption")
    small_clients: SmallClients = Field(
        default="train",
        description="whether clients with fewer training or test rows than min_release train all the same or abstain",
    )

    @property
    def num_seen(self) -> int | None:
        """Number of clients that take part; None if the data determine it."""
        return None if self.num_clients is None else self.num_clients - self.unseen_clients

    @property
    def known_partition(self) -> PartitionConfig | None:
        """The partition settings if they alone determine the partition; None otherwise."""
        if self.scenario == IID:
            return PartitionConfig(kind=IID)
        effects = () if isinstance(self.scenario, str) else self.effects
        dealt_by_this = self.partition.kind is not None and self.dataset not in ENVIRONMENTS
        return self.partition if dealt_by_this and not any(effect.changes_partition for effect in effects) else None

    @property
    def effects(self) -> tuple[ScenarioEffect, ...]:
        """Effects of the scenario on clients, in order."""
        return SCENARIOS[self.scenario].effects if isinstance(self.scenario, str) else self.scenario or ()

    @property
    def has_clock(self) -> bool:
        """Whether clients' rounds take simulated time."""
        return any(effect.takes_time for effect in self.effects)

    @field_validator("partition")
    @classmethod
    def _complete_partition(cls, partition: PartitionConfig, info: ValidationInfo) -> PartitionConfig:
        if "scenario" not in info.data:  # itself at fault, and reported as such
            return partition
        scenario = info.data["scenario"]
        if not isinstance(scenario, str):
            has_natural_clients = info.data.get("client_column") or names_files_of_clients(info.data.get("dataset", ""))
            kind = NATURAL if has_natural_clients and partition == PartitionConfig() else DEFAULT_PARTITION
            partition = partition if partition.kind else partition.model_copy(update={"kind": kind})
            _refuse_settings_not_read(partition)
            return partition
        if partition != PartitionConfig():
            overrides = ", ".join(
                f"{key}={value}" for key, value in partition if value != getattr(PartitionConfig(), key)
            )
            raise ValueError(f"must be left out if a scenario fixes it, got {overrides} with scenario={scenario}")
        return partition

    @field_validator("physics")
    @classmethod
    def _only_environments_have_physics(
        cls, physics: tuple[PhysicsConfig, ...], info: ValidationInfo
    ) -> tuple[PhysicsConfig, ...]:
        dataset = info.data.get("dataset")
        if physics and dataset is not None and dataset not in ENVIRONMENTS:
            raise ValueError(
                f"must be left out if clients hold rows: only {', '.join(ENVIRONMENTS)} uses it, "
                f"got {len(physics)} with dataset={dataset}"
            )
        return physics

    @field_validator("server_dataset")
    @classmethod
    def _another_data_set(cls, server_dataset: str | None, info: ValidationInfo) -> str | None:
        if server_dataset is None:
            return None
        _data_set(server_dataset, others=())
        if server_dataset == info.data.get("dataset"):
            raise ValueError(
                f"must differ from federation.dataset={server_dataset}, whose rows clients hold; "
                "federation.server_rows reserves some of those rows for the server"
            )
        return server_dataset

    @field_validator("server_labels")
    @classmethod
    def _labels_of_rows(cls, server_labels: bool, info: ValidationInfo) -> bool:
        are_validated = {"server_rows", "server_dataset"} <= info.data.keys()
        if server_labels and are_validated and info.data["server_rows"] is info.data["server_dataset"] is None:
            raise ValueError("must be false if the server holds no rows (federation.server_rows), got true")
        return server_labels

    @field_validator("num_clients")
    @classmethod
    def _complete_num_clients(cls, num_clients: int | None, info: ValidationInfo) -> int | None:
        partition = info.data.get("partition")
        fixed = partition is not None and partition.kind is not None and PARTITIONS[partition.kind].fixes_num_clients
        return DEFAULT_NUM_CLIENTS if num_clients is None and not fixed else num_clients

    @field_validator("unseen_clients")
    @classmethod
    def _leave_a_client(cls, unseen_clients: int, info: ValidationInfo) -> int:
        num_clients = info.data.get("num_clients")
        if num_clients is not None and unseen_clients >= num_clients:
            raise ValueError(f"must leave at least one of {num_clients} clients to train, got {unseen_clients}")
        return unseen_clients
