"""Configuration of the engine, which changes how long a study takes but not its results, and the hosts' devices.

A `HostDevice` describes where a host trains: on its CPU core, or on a GPU that hosts may share. It is a value that does
not import torch.

Results on a GPU differ from those on a CPU in the last bits, since sums are computed in another order. On one GPU model
they are the same for any number of hosts and in every run: float32 throughout without TF32, deterministic kernels, and
clients side by side in lanes of fixed number and size (see `fedscout.engine.training.gpu_lanes`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fedscout.engine.errors import ConfigurationError, EngineError

if TYPE_CHECKING:
    import torch


CUBLAS_WORKSPACE = ":4096:8"
"""With this value cuBLAS is reproducible (cuBLAS manual); without it torch refuses deterministic products."""


@dataclass(frozen=True)
class HostDevice:
    """The device on which a host trains.

    Attributes:
        kind: `cpu`, or `cuda`: the GPU that Ray makes visible to the host, or the first.
        in_lanes: Whether clients are trained side by side by `torch.func`, as on a GPU.
        most_together: Maximum number of clients side by side; None chooses it by the model's size.
        share: The host's share of the device.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    in_lanes: bool = False
    most_together: int | None = None
    share: float = 1.0

    @classmethod
    def gpu(cls, most_together: int | None = None) -> HostDevice:
        """Return a GPU device."""
        return cls("cuda", in_lanes=True, most_together=most_together)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.kind == "cuda"

    def opened(self) -> torch.device:
        """Return the torch device, configured for reproducible results.

        Raises:
            EngineError: If there is no such device here.
        """
        import torch

        if self.on_gpu:
            if not torch.cuda.is_available():
                raise EngineError(
                    "engine.device=cuda needs a GPU and a PyTorch built for it; this host has "
                    f"{torch.cuda.device_count()} GPUs and PyTorch {torch.__version__}"
                )
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.benchmark = False
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # all is written
        return torch.device(self.kind)

    def name(self) -> str:
        """Return a name for people and logs, such as `cuda (NVIDIA H100)`."""
        if not self.on_gpu:
            return self.kind
        import torch

        return f"{self.kind} ({torch.cuda.get_device_name()})"


CPU = HostDevice()


@contextmanager
def torch_settings_kept() -> Iterator[None]:
    """Restore this process's PyTorch settings after the block, since hosts change them."""
    import torch

    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    flags = products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark
    fills_memory = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    num_threads, deterministic = torch.get_num_threads(), _deterministic_mode()
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark = flags
        torch.set_num_threads(num_threads)
        torch.utils.deterministic.fill_uninitialized_memory = fills_memory  # type: ignore[attr-defined]
        if _deterministic_mode() != deterministic:  # setting it loads torch's compiler
            torch.use_deterministic_algorithms(deterministic[0], warn_only=deterministic[1])


def _deterministic_mode() -> tuple[bool, bool]:
    """Return whether torch uses deterministic algorithms, and whether it only warns if there is none."""
    import torch

    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


class EngineConfig(BaseModel):
    """Where and how trials run. Not part of a study's identity, as results depend on it only by rounding."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    grid: Literal["auto", "ray", "local"] = Field(
        default="auto", description="where clients run: ray, local (this process), or auto, the faster by an estimate"
    )
    num_hosts: int | None = Field(default=None, ge=1, le=10_000, description="host actors; one per CPU by default")
    device: Literal["auto", "cpu", "cuda"] = Field(
        default="auto", description="device on which hosts train; auto uses GPUs if there are any"
    )
    hosts_per_gpu: int | None = Field(
        default=None, ge=1, le=64, description="number of hosts per GPU; by default measured in one round of training"
    )
    clients_together: int | None = Field(
        default=None, ge=1, le=4096, description="clients trained in parallel on a GPU; by default by the model's size"
    )
    address: str | None = Field(
        default=None, description="address of a running Ray cluster, or auto; a local Ray is started by default"
    )
    checkpoint_every_rounds: int = Field(default=10, ge=1, description="rounds between checkpoints of a trial")
    object_store_bytes: int | None = Field(
        default=None, ge=80 * 2**20, description="object store memory in bytes of a Ray started locally"
    )

    @field_validator("address")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        host, _, port = (address or "auto").rpartition(":")
        if address in (None, "auto") or (host and "://" not in host and port.isdecimal()):
            return address
        hint = ": from outside a cluster, submit the command as a job (docs/cluster.md)" if "://" in host else ""
        raise ValueError(f"must be the address of a running Ray cluster, host:port, or auto, got {address!r}{hint}")

    @model_validator(mode="after")
    def _ray_has_an_address(self) -> Self:
        if self.grid == "local" and self.address is not None:
            raise ValueError(f"address must be left out with engine.grid=local, got {self.address!r}")
        return self

    @property
    def allows_in_process(self) -> bool:
        """Whether trials may run in this process if that is faster, because no setting requires Ray or a GPU."""
        silent = {self.num_hosts, self.address, self.object_store_bytes, self.hosts_per_gpu} == {None}
        return self.grid == "auto" and silent and self.device != "cuda"

    def hosts_each_gpu(self, num_gpus: int, measured: Callable[[], int]) -> int:
        """Return how many hosts share each GPU.

        Args:
            num_gpus: At least one.
            measured: Measures how many hosts keep a GPU busy; called if nothing is configured.

        Raises:
            ConfigurationError: If more hosts are requested than may share the GPUs.
        """
        if self.hosts_per_gpu is None:
            return measured() if self.num_hosts is None else -(-self.num_hosts // num_gpus)
        if self.num_hosts is not None and self.num_hosts > num_gpus * self.hosts_per_gpu:
            raise ConfigurationError.of(
                "engine.num_hosts",
                f"be at most {num_gpus * self.hosts_per_gpu} where "
                f"engine.hosts_per_gpu={self.hosts_per_gpu} share each of {num_gpus} GPUs",
                self.num_hosts,
            )
        return self.hosts_per_gpu

    def host_device(self, has_gpu: bool) -> HostDevice:
        """Return the device of the hosts.

        Args:
            has_gpu: Whether a GPU is available to the hosts.

        Raises:
            ConfigurationError: If a GPU is requested and there is none.
        """
        if self.device == "cuda" and not has_gpu:
            raise ConfigurationError.of(
                "engine.device", "be cpu or auto where neither Ray nor PyTorch finds a GPU", "cuda"
            )
        return HostDevice.gpu(self.clients_together) if has_gpu and self.device != "cpu" else CPU
