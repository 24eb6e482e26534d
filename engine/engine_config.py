"""The configuration of the machinery: it changes how long a study takes, never its results.

But for the last bits on a GPU, which sums in another order than a core: see `fedscout.engine.host_device`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedscout.engine.errors import ConfigurationError, Fault
from fedscout.engine.host_device import CPU, HostDevice


class EngineConfig(BaseModel):
    """Where and how trials run. Left out of a study's identity, as results do not depend on it but for rounding."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grid: Literal["auto", "ray", "local"] = Field(
        default="auto", description="Ray actors, this process alone, or whichever is sooner by an estimate"
    )
    num_hosts: int | None = Field(default=None, ge=1, le=10_000, description="host actors; nothing means one a CPU")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="where hosts train: on cores, on GPUs, or on GPUs where there are any"
    )
    hosts_per_gpu: int | None = Field(
        default=None, ge=1, le=64, description="that share one; nothing finds out by one round of training"
    )
    clients_together: int | None = Field(
        default=None, ge=1, le=4096, description="side by side on a GPU; nothing leaves that to the model's size"
    )
    address: str | None = Field(default=None, description="of a running Ray cluster, or auto; nothing starts Ray here")
    checkpoint_every_rounds: int = Field(default=10, ge=1, description="rounds between checkpoints of a trial")
    object_store_bytes: int | None = Field(default=None, ge=80 * 2**20, description="of a Ray that is started here")

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        host, _, port = (address or "auto").rpartition(":")
        if address in (None, "auto") or (host and "://" not in host and port.isdecimal()):
            return address
        hint = ": from outside a cluster, submit the command as a job (docs/cluster.md)" if "://" in host else ""
        raise ValueError(f"must be that of a running Ray, host:port, or auto, got {address!r}{hint}")

    @model_validator(mode="after")
    def _ray_has_an_address(self) -> Self:
        if self.grid == "local" and self.address is not None:
            raise ValueError(f"address must be left out with engine.grid=local, got {self.address!r}")
        return self

    @property
    def may_stay(self) -> bool:
        """Whether work may be done in this process if that is sooner: nothing is said of Ray."""
        silent = {self.num_hosts, self.address, self.object_store_bytes, self.hosts_per_gpu} == {None}
        return self.grid == "auto" and silent and self.device != "cuda"

    def hosts_each_gpu(self, num_gpus: int, measured: Callable[[], int]) -> int:
        """Return how many hosts share each of some GPUs.

        Args:
            num_gpus: At least one.
            measured: Finds out how many keep one busy, where nothing is said.

        Raises:
            ConfigurationError: If more hosts are asked for than may share them.
        """
        if self.hosts_per_gpu is None:
            return measured() if self.num_hosts is None else -(-self.num_hosts // num_gpus)
        if self.num_hosts is not None and self.num_hosts > num_gpus * self.hosts_per_gpu:
            raise ConfigurationError(
                Fault(
                    "engine.num_hosts",
                    (
                        f"be at most {num_gpus * self.hosts_per_gpu} where "
                        f"engine.hosts_per_gpu={self.hosts_per_gpu} share each of {num_gpus} GPUs"
                    ),
                    self.num_hosts,
                )
            )
        return self.hosts_per_gpu

    def host_device(self, has_gpu: bool) -> HostDevice:
        """Return what hosts train on.

        Args:
            has_gpu: Whether there is one where they will be.

        Raises:
            ConfigurationError: If one is asked for and there is none.
        """
        if self.device == "cuda" and not has_gpu:
            raise ConfigurationError("engine.device=cuda needs a GPU that Ray or PyTorch finds, of which there is none")
        return HostDevice.gpu(self.clients_together) if has_gpu and self.device != "cpu" else CPU
