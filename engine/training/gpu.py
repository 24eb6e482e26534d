"""The way of training on a GPU: clients side by side where they leave room on it, one after the other where not.

The scores of many clients under one model on a device: all their rows in slabs of one size.

A row's outputs do not depend on its place in a slab, which is tried before slabs are used, and a client's losses are
summed by itself, in the order of its rows. So its score has the same bits whoever is scored with it.
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
from fedscout.engine.contracts.algorithm import ClientAlgorithm, ClientScore, ClientUpdate, Steps, TrainRequest
from fedscout.engine.data.client import Samples, TargetScale, by_source
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import EngineError
from fedscout.engine.metrics import Metric
from fedscout.engine.models.flat import FlatModel, new_model
from fedscout.engine.training.algorithm_runs import TogetherRun, known_of, updates_by
from fedscout.engine.training.backends import MOST_CLIENTS, LoopTrainer, Trainer, num_own_steps
from fedscout.engine.training.gpu_lanes import MOST_LANES, USUAL_ROWS, ClientLanes, ResidentRows
from fedscout.engine.training.loop import RowsWork, mean_loss, measured, metric_statistics
from fedscout.engine.training.vectorised import BlockDescent, layer_generators

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


PROBE_ROWS = 4096
"""The first clients' first rows, on which lanes are tried."""

WHOLE = TargetScale(0.0, 1.0)
"""By which a target is read for that."""


@dataclass(frozen=True)
class LaneRun(TogetherRun):
    """Clients side by side.

    Attributes:
        lanes: Where they train.
        generators: Of each, from which its layers draw, on and on from one training to the next.
    """

    lanes: ClientLanes
    generators: Sequence[torch.Generator]

    @classmethod
    def of(cls, lanes: ClientLanes, model: FlatModel, asked: TrainRequest, works: Sequence[RowsWork]) -> Self:
        """Return the run of some clients, each with rows."""
        known = known_of(asked, model.layout, works, [len(work.data) for work in works])
        return cls(**known, lanes=lanes, works=works, generators=layer_generators(asked, works))

    def _made(self, start: Tensor, steps: Steps) -> BlockDescent:
        """Make the steps in lanes."""
        return self.lanes.descend(start, self.works, steps, self.received, self.generators)


class DeviceTrainer(LoopTrainer):
    """Clients on the device where the model is.

    Args:
        model: Scratch model, overwritten.
        lanes: In which clients train; None trains one after the other.
        slabs: In which their rows are scored; None scores one client after the other.
    """

    def __init__(self, model: FlatModel, lanes: ClientLanes | None, slabs: SlabScores | None) -> None:
        super().__init__(model)
        self._lanes = lanes
        self._slabs = slabs

    def told(self) -> str:
        """Return how clients are trained, in some words."""
        return super().told() if self._lanes is None else f"{self._lanes.num_lanes(USUAL_ROWS)} clients side by side"

    def memory_note(self) -> str:
        """Return that memory ran out, if it did, and what was done about it."""
        if self._lanes is None or not self._lanes.num_halved:
            return ""
        return f"the memory of a host's device ran out: {self.told()} from then on; engine.clients_together sets fewer"

    def scores(
        self, vectors: Tensor, clients: Mapping[int, Samples], seed: int, metric: Metric | None = None
    ) -> dict[int, ClientScore | Exception]:
        """Score a model on each client's rows; the exception stands where there is no score."""
        if self._slabs is None or vectors.numel() > self._model.layout.size:
            return super().scores(vectors, clients, seed, metric)
        scores: dict[int, ClientScore | Exception] = {}
        for members in by_source(clients):
            found: Sequence[ClientScore] | None = None
            with suppress(Exception):  # one client's rows may not fit
                found = self._slabs.scores(vectors.view(-1), [clients[client] for client in members], metric)
            if found is None:  # each is scored alone, and who fails is named; what the exception held is let go
                return super().scores(vectors, clients, seed, metric)
            scores |= zip(members, found, strict=True)
        return {client: scores[client] for client in clients}

    def _mixes(self, asked: TrainRequest) -> bool:
        """Return whether clients in lanes train plainly, or by an algorithm that says so."""
        return self._lanes is not None and (asked.algorithm is None or asked.algorithm.mixes)

    def _blocks(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Iterator[Sequence[RowsWork]]:
        """Yield the clients that are trained together: those that read the same arrays."""
        if self._lanes is None:
            yield from super()._blocks(asked, works)
            return
        yield from ([work] for work in works if not len(work.data))
        filled = {number: work for number, work in enumerate(works) if len(work.data)}
        for alike in by_source({number: work.data for number, work in filled.items()}):
            members = sorted(alike, key=lambda number: -num_own_steps(filled[number]))
            for start in range(0, len(members), MOST_CLIENTS):
                yield [filled[number] for number in members[start : start + MOST_CLIENTS]]

    def _train_block(self, asked: TrainRequest, works: Sequence[RowsWork]) -> Sequence[ClientUpdate]:
        if self._lanes is None or not len(works[0].data):
            return super()._train_block(asked, works)
        return updates_by(asked.algorithm or ClientAlgorithm(), LaneRun.of(self._lanes, self._model, asked, works))


def device_trainers(federation: Federation, device: HostDevice) -> dict[str, Trainer]:
    """Return the ways that a session may choose as its `backend`, with a model of their own on the device.

    Raises:
        EngineError: If the model does not work there.
    """
    opened = device.opened()
    model, rows = new_model(federation.model, seed=0, device=opened), ResidentRows(opened, share=device.share)
    known = federation.partition.rows[:PROBE_ROWS]
    if not len(known):
        return dict.fromkeys(("auto", "loop"), LoopTrainer(model))
    probe = Samples(federation.features, federation.labels, known, federation.targets, WHOLE)
    most = device.most_together or min(MOST_LANES, 2 ** (federation.num_clients - 1).bit_length())
    try:
        slabs = SlabScores(model, rows, probe)
    except Exception as error:  # the user's module may say anything
        raise EngineError(
            f"the model must work on {device.kind}, and fails there with {type(error).__name__}: {error}; "
            "engine.device=cpu leaves it on the cores"
        ) from error
    lanes = ClientLanes(model, rows, probe, most)
    loop = DeviceTrainer(model, None, slabs if slabs.serve else None)
    together = DeviceTrainer(model, lanes, slabs if slabs.serve else None)
    return {"auto": together if lanes.serve else loop, "loop": loop}
