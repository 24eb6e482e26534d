"""The server's context on a host: the host's own model over the server's rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.server_work import NO_SERVER_ROWS, ServerContext
from fedscout.engine.data.client_data import Samples
from fedscout.engine.data.federation import Federation
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.training.local_training import CHUNK_ROWS, gather


@dataclass(frozen=True)
class ServerModel(ServerContext):
    """Computes with a model that is overwritten.

    Attributes:
        model: Scratch.
        data: The server's rows.
    """

    model: FlatModel
    data: Samples

    @classmethod
    def of(cls, federation: Federation, model: FlatModel, generator: np.random.Generator) -> Self:
        """Return the context of a federation.

        Raises:
            ValueError: If its server holds no rows.
        """
        server = federation.server
        if server is None:
            raise ValueError(NO_SERVER_ROWS)
        rows = np.arange(server.num_rows)
        known = np.zeros(server.num_rows, np.int64) if server.labels is None else server.labels
        return cls(
            layout=model.layout,
            num_classes=federation.num_classes,
            num_rows=server.num_rows,
            labels=None if server.labels is None else torch.from_numpy(np.array(server.labels)),
            generator=generator,
            model=model,
            data=Samples(server.features, known, rows),
        )

    @torch.no_grad()
    def outputs(self, vector: Tensor, rows: IntArray | None = None) -> Tensor:
        """Return a model's outputs, some hundreds of rows at a time."""
        self._load(vector)
        positions = self.data.rows if rows is None else rows
        starts = range(0, len(positions), CHUNK_ROWS)
        return torch.cat([self._forward(positions[start : start + CHUNK_ROWS]) for start in starts])

    def gradient(
        self, vector: Tensor, loss: Callable[[Tensor], Tensor], rows: IntArray | None = None
    ) -> tuple[float, Tensor]:
        """Return a loss and its gradient."""
        self._load(vector)
        self.model.gradient.zero_()
        value = loss(self._forward(self.data.rows if rows is None else rows))
        value.backward()  # type: ignore[no-untyped-call]
        return value.item(), self.model.gradient.clone()

    def _load(self, vector: Tensor) -> None:
        self.model.load(vector)
        self.model.module.eval()

    def _forward(self, positions: IntArray) -> Tensor:
        features, _ = gather(self.model, self.data, positions)
        return self.model.outputs(features)
