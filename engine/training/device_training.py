"""The way of training on a GPU: clients side by side where they leave room on it, one after the other where not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Steps
from fedscout.engine.contracts.client_update import ClientScore, ClientUpdate
from fedscout.engine.contracts.train_request import TrainRequest
from fedscout.engine.data.client_data import Samples, TargetScale, by_source
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import EngineError
from fedscout.engine.host_device import HostDevice
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.model.flat_model import FlatModel, new_model
from fedscout.engine.training.algorithm_runs import TogetherRun, known_of, updates_by
from fedscout.engine.training.client_lanes import MOST_LANES, USUAL_ROWS, ClientLanes
from fedscout.engine.training.layer_draws import layer_generators
from fedscout.engine.training.local_training import RowsWork
from fedscout.engine.training.resident_rows import ResidentRows
from fedscout.engine.training.slab_scores import SlabScores
from fedscout.engine.training.training_backends import MOST_CLIENTS, LoopTrainer, Trainer, num_own_steps
from fedscout.engine.training.vectorised_training import BlockDescent

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
