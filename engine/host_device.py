"""Where a host trains: on its core, or on a GPU that hosts may share. A value; naming one loads no torch.

Results on a GPU differ from a core's in the last bits, as sums are taken in another order; on one kind of GPU they are
the same for any number of hosts and at any time: float32 throughout without TF32, deterministic kernels, and clients
side by side in places of fixed number and size (see `fedscout.engine.training.client_lanes`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from fedscout.engine.errors import EngineError

if TYPE_CHECKING:
    import torch

CUBLAS_WORKSPACE = ":4096:8"
"""Under which cuBLAS repeats its bits, as its manual has it; torch refuses its products otherwise."""


@dataclass(frozen=True)
class HostDevice:
    """What a host trains on, and how.

    Attributes:
        kind: `cpu`, or `cuda`, the GPU that Ray lets the host see, or the first.
        in_lanes: Whether clients are trained side by side by `torch.func`, as on a GPU.
        most_together: Of clients side by side; None leaves that to the model's size.
        share: Of the device, that is the host's.
    """

    kind: Literal["cpu", "cuda"] = "cpu"
    in_lanes: bool = False
    most_together: int | None = None
    share: float = 1.0

    @classmethod
    def gpu(cls, most_together: int | None = None) -> HostDevice:
        """Return a GPU."""
        return cls("cuda", in_lanes=True, most_together=most_together)

    @property
    def on_gpu(self) -> bool:
        """Whether it is one."""
        return self.kind == "cuda"

    def opened(self) -> torch.device:
        """Return the device, ready for work whose bits repeat.

        Raises:
            EngineError: If there is no such device here.
        """
        import torch

        if self.on_gpu:
            if not torch.cuda.is_available():
                raise EngineError(
                    "engine.device=cuda needs a GPU and a PyTorch built for it, of which this host has "
                    f"{torch.cuda.device_count()} and {torch.__version__}"
                )
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", CUBLAS_WORKSPACE)
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
            torch.backends.cudnn.benchmark = False
            torch.use_deterministic_algorithms(True, warn_only=True)
            torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # all is written
        return torch.device(self.kind)

    def name(self) -> str:
        """Return it for people and logs, such as `cuda (NVIDIA H100)`."""
        if not self.on_gpu:
            return self.kind
        import torch

        return f"{self.kind} ({torch.cuda.get_device_name()})"


CPU = HostDevice()


@contextmanager
def torch_settings_kept() -> Iterator[None]:
    """Give this process's PyTorch back as it was before hosts worked in it."""
    import torch

    products, convolutions = torch.backends.cuda.matmul, torch.backends.cudnn
    kept = products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    num_threads, repeats = torch.get_num_threads(), _repeats()
    try:
        yield
    finally:
        products.allow_tf32, convolutions.allow_tf32, convolutions.benchmark = kept
        torch.set_num_threads(num_threads)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
        if _repeats() != repeats:  # setting it loads torch's compiler
            torch.use_deterministic_algorithms(repeats[0], warn_only=repeats[1])


def _repeats() -> tuple[bool, bool]:
    """Return whether torch's kernels are to be deterministic, and whether those that can't be only warn."""
    import torch

    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
