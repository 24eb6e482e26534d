"""The scores of many clients under one model on a device: all their rows in slabs of one size.

A row's outputs do not depend on its place in a slab, which is tried before slabs are used, and a client's losses are
summed by itself, in the order of its rows. So its score has the same bits whoever is scored with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.data.client_data import Samples
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.model.flat_model import FlatModel
from fedscout.engine.training.local_training import measured, metric_statistics
from fedscout.engine.training.mean_loss import mean_loss
from fedscout.engine.training.resident_rows import ResidentRows

SLAB_ROWS = 1024


class SlabScores:
    """Scores clients with the rows of one source.

    Args:
        model: On the device; overwritten.
        rows: On the same.
        probe: Rows on which slabs are tried, the same on all hosts; at least one.

    Attributes:
        serve: Whether a row has the same outputs, bit by bit, wherever in a slab it is.
    """

    def __init__(self, model: FlatModel, rows: ResidentRows, probe: Samples) -> None:
        self._model = model
        self._rows = rows
        self.serve = self._same_at_any_place(probe)

    @torch.no_grad()
    def scores(self, vector: Tensor, clients: Sequence[Samples], metric: Metric | None) -> list[ClientScore]:
        """Evaluate a model on all rows of each client, in evaluation mode.

        Args:
            vector: Shape `(size,)`.
            clients: At least one; all read the same arrays.
            metric: What is measured beside accuracy and loss.
        """
        self._model.load(vector)
        numbers = np.concatenate([data.rows for data in clients])
        parts = [(each.cpu(), said.cpu()) for each, said in self._outputs(clients[0], numbers)]
        outputs = torch.cat([part for part, _ in parts]) if parts else torch.empty(0, 1)
        answers = torch.cat([part for _, part in parts]) if parts else torch.empty(0)
        stops = np.cumsum([len(data) for data in clients])
        return [
            _score(data, outputs[start:stop], answers[start:stop], metric)
            for data, (start, stop) in zip(clients, pairwise([0, *stops]), strict=True)
        ]

    def _outputs(self, data: Samples, numbers: IntArray) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs and answers of rows of a source, slab by slab."""
        self._model.module.eval()
        for start in range(0, len(numbers), SLAB_ROWS):
            counted = numbers[start : start + SLAB_ROWS]
            found = self._rows.reach(data, np.resize(counted, SLAB_ROWS))
            outputs = self._model.outputs(found.features.index_select(0, found.places))
            yield outputs[: len(counted)], found.answers[: len(counted)]

    @torch.no_grad()
    def _same_at_any_place(self, probe: Samples) -> bool:
        numbers = np.resize(probe.rows, SLAB_ROWS)
        there, back = (next(self._outputs(probe, rows))[0] for rows in (numbers, numbers[::-1]))
        return torch.equal(there, back.flip(0))


def _score(data: Samples, outputs: Tensor, answers: Tensor, metric: Metric | None) -> ClientScore:
    """Return a client's score by what the model says of its rows, in any memory that NumPy reads."""
    classifies = data.scale is None
    losses = mean_loss(outputs, answers, reduction="none").double().numpy() if len(data) else np.zeros(0)
    hits = int((outputs.argmax(dim=1) == answers).sum()) if classifies and len(data) else 0
    score = ClientScore.of_rows(len(data), hits if classifies else float("nan"), float(losses.sum()))
    statistics = metric_statistics(metric, data, outputs, answers) if metric is not None and len(data) else None
    return measured(score, metric, statistics)
