"""The configuration of a federation and of the model that it trains."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from experiments.datasets.table import DATASETS
from experiments.models.table import MODELS
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


DatasetName = Annotated[str, _one_of(DATASETS), Field(json_schema_extra={"enum": list(DATASETS)})]
PartitionName = Annotated[str, _one_of(PARTITIONS), Field(json_schema_extra={"enum": list(PARTITIONS)})]
ScenarioName = Annotated[str, _one_of(SCENARIOS), Field(json_schema_extra={"enum": list(SCENARIOS)})]
ModelName = Annotated[str, _one_of(MODELS), Field(json_schema_extra={"enum": list(MODELS)})]


class PartitionConfig(BaseModel):
    """How rows are dealt to clients."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: PartitionName | None = Field(
        default=None, description="nothing means dirichlet, or what the scenario fixes if one is given"
    )
    alpha: float = Field(default=0.1, gt=0, le=1e6, description="of dirichlet: small is strong label skew")
    min_size: int = Field(default=5, ge=1, description="of dirichlet: fewest rows of a client")


class FederationConfig(BaseModel):
    """Which data, dealt how, to how many clients, corrupted in which way.

    `partition.kind` and `num_clients` are filled in once it is known what they depend on: a federation without a
    scenario is dealt by Dirichlet to ten clients; with a scenario `partition` stays as it is by default, with natural
    clients `num_clients` stays empty unless given. A configuration that is written out and read again is the same.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    dataset: DatasetName = Field(default="digits", description="the data")
    label: str | None = Field(default=None, description="column to predict, where the files have several candidates")
    client_column: str | None = Field(default=None, description="column of the natural clients")
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


class ModelConfig(BaseModel):
    """The model that every client trains."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: ModelName = Field(default="auto", description="auto picks by the data: dense for tables of numbers")
    hidden: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = Field(
        default=(64, 32), min_length=1, max_length=16, description="widths of the hidden layers of a dense net"
    )
