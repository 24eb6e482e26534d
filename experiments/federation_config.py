"""The configuration of a federation and of the model that it trains."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from experiments.datasets.table import DATASETS, is_own_data
from experiments.models.settings import ModelSettings
from experiments.models.table import MODELS
from experiments.partitions.settings import PartitionSettings
from experiments.partitions.table import PARTITIONS
from experiments.scenarios.table import SCENARIOS

DEFAULT_PARTITION = "dirichlet"
DEFAULT_NUM_CLIENTS = 10


def _one_of(names: Collection[str]) -> AfterValidator:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(f"must be one of {', '.join(names)}, got {name!r}")
        return name

    return AfterValidator(check)


def _data_set(name: str) -> str:
    if name not in DATASETS and not is_own_data(name):
        raise ValueError(
            f"must be one of {', '.join(DATASETS)}, or a path of one's own data, or hf:owner/name, got {name!r}"
        )
    return name


def _model(name: str) -> str:
    if name not in MODELS and ":" not in name:
        raise ValueError(f"must be one of {', '.join(MODELS)}, or package.module:factory of one's own, got {name!r}")
    return name


DatasetName = Annotated[str, AfterValidator(_data_set), Field(json_schema_extra={"examples": list(DATASETS)})]
PartitionName = Annotated[str, _one_of(PARTITIONS), Field(json_schema_extra={"enum": list(PARTITIONS)})]
ScenarioName = Annotated[str, _one_of(SCENARIOS), Field(json_schema_extra={"enum": list(SCENARIOS)})]
ModelName = Annotated[str, AfterValidator(_model), Field(json_schema_extra={"examples": list(MODELS)})]


class PartitionConfig(PartitionSettings):
    """How rows are dealt to clients."""

    kind: PartitionName | None = Field(
        default=None, description="nothing means dirichlet, or what the scenario fixes if one is given"
    )


class ModelConfig(ModelSettings):
    """The model that every client trains."""

    kind: ModelName = Field(
        default="auto", description="auto picks by the data, or package.module:factory of one's own"
    )


class FederationConfig(BaseModel):
    """Which data, dealt how, to how many clients, corrupted in which way.

    `partition.kind` and `num_clients` are filled in once it is known what they depend on: a federation without a
    scenario is dealt by Dirichlet to ten clients; with a scenario `partition` stays as it is by default, with natural
    clients `num_clients` stays empty unless given. A configuration that is written out and read again is the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    dataset: DatasetName = Field(default="digits", description="a name, a path of one's own data, or hf:owner/name")
    label: str | None = Field(default=None, description="column to predict, where the files have several candidates")
    client_column: str | None = Field(default=None, description="column of the natural clients")
    text_column: str | None = Field(default=None, description="column of texts, in one's own data")
    folder: Path | None = Field(default=None, description="the data files; nothing means the folder FEDSCOUT_DATA")
    scenario: ScenarioName | None = Field(default=None, description="a known heterogeneity; fixes the partition")
    partition: PartitionConfig = Field(default=PartitionConfig(), description="how rows are dealt to clients")
    num_clients: int | None = Field(
        default=None, ge=1, le=1_000_000, description="nothing means 10, or as many as there are natural clients"
    )
    seed: int = Field(default=0, ge=0, description="of partition and corruption")
    min_release: int = Field(default=5, ge=1, description="fewest rows over which a client answers a query")

    @field_validator("partition")
    @classmethod
    def _complete_partition(cls, partition: PartitionConfig, info: ValidationInfo) -> PartitionConfig:
        if "scenario" not in info.data:  # itself at fault, and reported as such
            return partition
        scenario = info.data["scenario"]
        if scenario is None:
            return partition if partition.kind else partition.model_copy(update={"kind": DEFAULT_PARTITION})
        if partition != PartitionConfig():
            given = ", ".join(f"{key}={value}" for key, value in partition if value != getattr(PartitionConfig(), key))
            raise ValueError(f"must be left out where a scenario fixes it, got {given} beside scenario={scenario}")
        return partition

    @field_validator("num_clients")
    @classmethod
    def _complete_num_clients(cls, num_clients: int | None, info: ValidationInfo) -> int | None:
        partition = info.data.get("partition")
        if num_clients is None and (partition is None or partition.kind != "natural"):
            return DEFAULT_NUM_CLIENTS
        return num_clients
