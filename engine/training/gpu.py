"""Training and scoring on a GPU: clients side by side if the model permits it, else one after the other.

Clients are scored under one model in slabs of one size, filled with the rows of all clients. Slabs are used only if a
test shows that a row's outputs do not depend on its place in a slab, and a client's losses are summed separately, in
the order of its rows. So a client's score has the same bits for any set of clients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.arrays import IntArray
from fedscout.engine.config import HostDevice
from fedscout.engine.contracts.algorithm import ClientScore, ClientUpdate, Descent, Steps, TrainRequest
from fedscout.engine.data.client import Samples, TargetScale, by_source
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import EngineError
from fedscout.engine.metrics import Metric
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.training.algorithm_runs import LockstepRun, known_of, updates_by
from fedscout.engine.training.backends import MOST_CLIENTS, LoopTrainer, Trainer
from fedscout.engine.training.gpu_lanes import MOST_LANES, USUAL_ROWS, ClientLanes, ResidentRows
from fedscout.engine.training.loop import RowsWork, mean_loss, measured, metric_statistics
from fedscout.engine.training.vectorised import layer_generators

SLAB_ROWS = 1024


class SlabScores:
    """Scores clients with the rows of one source.

    Args:
        model: On the device; overwritten.
        rows: On the same device.
        probe: Rows for the test of slabs, the same on all hosts; at least one.

    Attributes:
        serve: Whether a row has bit-identical outputs at any place of a slab.
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
            metric: Measured in addition to accuracy and loss.
        """
        self._model.load(vector)
        numbers = np.concatenate([data.rows for data in clients])
        parts = [(outputs.cpu(), answers.cpu()) for outputs, answers in self._outputs(clients[0], numbers)]
        outputs = torch.cat([part for part, _ in parts]) if parts else torch.empty(0, 1)
        answers = torch.cat([part for _, part in parts]) if parts else torch.empty(0)
        stops = np.cumsum([len(data) for data in clients])
        return [
            _score(data, outputs[start:stop], answers[start:stop], metric)
            for data, (start, stop) in zip(clients, pairwise([0, *stops]), strict=True)
        ]

    def _outputs(self, data: Samples, numbers: IntArray) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield outputs and targets of rows of a source, slab by slab."""
        self._model.module.eval()
        for start in range(0, len(numbers), SLAB_ROWS):
            slab_rows = numbers[start : start + SLAB_ROWS]
            on_device = self._rows.reach(data, np.resize(slab_rows, SLAB_ROWS))
            outputs = self._model.outputs(on_device.features.index_select(0, on_device.places))
            yield outputs[: len(slab_rows)], on_device.answers[: len(slab_rows)]

    @torch.no_grad()
    def _same_at_any_place(self, probe: Samples) -> bool:
        numbers = np.resize(probe.rows, SLAB_ROWS)
        forward, backward = (next(self._outputs(probe, rows))[0] for rows in (numbers, numbers[::-1]))
        return torch.equal(forward, backward.flip(0))


def _score(data: Samples, outputs: Tensor, answers: Tensor, metric: Metric | None) -> ClientScore:
    """Return a client's score from the model's outputs on its rows, given in memory that NumPy reads."""
    losses = mean_loss(outputs, answers, reduction="none").double().numpy() if len(data) else np.zeros(0)
    hits = int((outputs.argmax(dim=1) == answers).sum()) if data.scale is None and len(data) else 0
    statistics = metric_statistics(metric, data, outputs, answers) if metric is not None and len(data) else None
    return measured(data, hits, float(losses.sum()), metric, statistics)


PROBE_ROWS = 4096
"""The first clients' first rows, on which lanes are tried."""

WHOLE = TargetScale(0.0, 1.0)
"""Target scale of that probe."""


@dataclass(frozen=True)
class LaneRun(LockstepRun):
    """Run of clients side by side.

    Attributes:
        lanes: The lanes in which they train.
        generators: The generator of each client's layers, which continues from one training to the next.
    """

    lanes: ClientLanes
    generators: Sequence[torch.Generator]

    @classmethod
    def of(cls, lanes: ClientLanes, model: FlatModel, request: TrainRequest, works: Sequence[RowsWork]) -> Self:
        """Return the run of clients, each with training rows."""
        common = known_of(request, model.layout, works)
        return cls(**common, lanes=lanes, works=works, generators=layer_generators(request, works))

    def _made(self, start: Tensor, steps: Steps) -> Descent:
        """Run the steps in lanes."""
        return self.lanes.descend(start, self.works, steps, self.received, self.generators)


class DeviceTrainer(LoopTrainer):
    """Trains clients on the model's device.

    Args:
        model: Scratch model, overwritten.
        lanes: The lanes in which clients train; None trains one after the other.
        slabs: Scores clients together; None scores one client after the other.
    """

    def __init__(self, model: FlatModel, lanes: ClientLanes | None, slabs: SlabScores | None) -> None:
        super().__init__(model)
        self._lanes = lanes
        self._slabs = slabs

    def description(self) -> str:
        """Return a description of the training backend."""
        return (
            super().description() if self._lanes is None else f"{self._lanes.num_lanes(USUAL_ROWS)} clients in parallel"
        )

    def memory_note(self) -> str:
        """Return a note that memory ran out and how many clients train together since; empty if it did not."""
        if self._lanes is None or not self._lanes.num_halved:
            return ""
        return (
            f"a host's device ran out of memory and then trained {self.description()}; "
            "engine.clients_together sets fewer"
        )

    def scores(
        self, vectors: Tensor, clients: Mapping[int, Samples], seed: int, metric: Metric | None = None
    ) -> dict[int, ClientScore | Exception]:
        """Score a model on each client's rows; an exception replaces the score of a client that fails."""
        if self._slabs is None or vectors.numel() > self._model.layout.size:
            return super().scores(vectors, clients, seed, metric)
        scores: dict[int, ClientScore | Exception] = {}
        for members in by_source(clients):
            group_scores: Sequence[ClientScore] | None = None
            with suppress(Exception):  # one client's rows may not fit
                group_scores = self._slabs.scores(vectors.view(-1), [clients[client] for client in members], metric)
            if group_scores is None:  # each is scored alone, and who fails is named; what the exception held is let go
                return super().scores(vectors, clients, seed, metric)
            scores |= zip(members, group_scores, strict=True)
        return {client: scores[client] for client in clients}

    def _blocks(self, request: TrainRequest, works: Sequence[RowsWork]) -> Iterator[Sequence[RowsWork]]:
        """Yield the clients that are trained together: those that read the same arrays."""
        if self._lanes is None:
            yield from super()._blocks(request, works)
            return
        yield from ([work] for work in works if not len(work.data))
        nonempty = {number: work for number, work in enumerate(works) if len(work.data)}
        for members in by_source({number: work.data for number, work in nonempty.items()}):
            for start in range(0, len(members), MOST_CLIENTS):
                yield [nonempty[number] for number in members[start : start + MOST_CLIENTS]]

    def _train_block(self, request: TrainRequest, works: Sequence[RowsWork]) -> Sequence[ClientUpdate]:
        if self._lanes is None or not len(works[0].data):
            return super()._train_block(request, works)
        return updates_by(request.algorithm, LaneRun.of(self._lanes, self._model, request, works))


def device_trainers(federation: Federation, device: HostDevice) -> dict[str, Trainer]:
    """Return the trainers on the device by the `backend` that a session may choose.

    Raises:
        EngineError: If the model does not work there.
    """
    torch_device = device.opened()
    model = new_model(federation.model, seed=0, device=torch_device)
    rows = ResidentRows(torch_device, share=device.share)
    probe_rows = federation.partition.rows[:PROBE_ROWS]
    if not len(probe_rows):
        return dict.fromkeys(("auto", "loop"), LoopTrainer(model))
    probe = Samples(federation.features, federation.labels, probe_rows, federation.targets, WHOLE)
    max_lanes = device.most_together or min(MOST_LANES, 2 ** (federation.num_clients - 1).bit_length())
    try:
        slabs = SlabScores(model, rows, probe)
    except Exception as error:  # the user's module may say anything
        raise EngineError(
            f"the model must run on {device.kind}, but fails there with {type(error).__name__}: {error}; "
            "engine.device=cpu runs it on the CPU"
        ) from error
    lanes = ClientLanes(model, rows, probe, max_lanes)
    loop = DeviceTrainer(model, None, slabs if slabs.serve else None)
    together = DeviceTrainer(model, lanes, slabs if slabs.serve else None)
    return {"auto": together if lanes.serve else loop, "loop": loop}
