"""From clients' updates to one host's answer: each client's vectors, or their exact sums."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.contracts.client_update import ClientUpdate
from fedscout.engine.messages.exact_mean import ExactScale
from fedscout.engine.messages.host_calls import HostCall, Part, TrainResults, state_bytes
from fedscout.engine.messages.message_keys import NUM_CLIENTS_KEY, NUM_EXAMPLES_KEY, REPLY_KEY
from fedscout.engine.training.local_training import Outcome, RowsWork

NOTHING: FloatArray = np.empty(0, np.float32)


class GatheredUpdates:
    """Gathers what the clients of one call have trained, in any order.

    Args:
        call: Says how replies are wanted.
        received: The global vector, shape `(params,)`.
        max_weight: Which no sum of the federation's weights exceeds.
        keeps_state: Whether clients keep something although no algorithm does.
        num_trainable: Parameters of the model that training moves, which come first; None is all.
    """

    def __init__(
        self,
        call: HostCall,
        received: FloatArray,
        max_weight: int,
        keeps_state: bool = False,
        num_trainable: int | None = None,
    ) -> None:
        algorithm = call.session.algorithm
        self._results = TrainResults()
        self._num_trainable = num_trainable
        self._keeps_state = algorithm is not None or keeps_state
        self._tells_rows = call.session.client_table is None
        self._weighted_by = call.session.needs.weighted_by
        self._norms_from = received if call.watched is not None and call.watched.observed.update_norms else None
        self._companions_weighted_by = {} if algorithm is None else algorithm.companions
        self._merged = call.config[REPLY_KEY] == "merged"
        self._scale = ExactScale.of(received, max_weight)
        self._companion_scales = {
            name: ExactScale.of_companion(call.companions.get(name), max_weight)
            for name in self._companions_weighted_by
        }
        self._vectors: dict[int, FloatArray] = {}
        self._companions: dict[int, Mapping[str, FloatArray]] = {}
        self._untaken: list[int] = []
        self._total = np.zeros(len(received), np.int64)
        self._updates: dict[int, tuple[int, ClientUpdate]] = {}  # without what is large of them

    def failed(self, client: int, error: Exception) -> None:
        """Note a client's failure."""
        self._results.failures[client] = f"{type(error).__name__} in local training: {error}"

    def add(self, outcomes: Sequence[Outcome]) -> None:
        """Take in what some clients have trained."""
        done = []
        for work, update in outcomes:
            failure = update if isinstance(update, Exception) else self._unfit(len(work.data), update)
            if failure is not None:
                self.failed(work.client, failure)
            else:
                assert isinstance(update, ClientUpdate)
                done.append((work, update))
        if not done:
            return
        if self._merged:
            self._sum(done)
        for work, update in done:
            if self._norms_from is not None:
                self._results.update_norms[work.client] = self._norm(update.vector)
            if not self._merged:
                self._vectors[work.client] = np.ascontiguousarray(update.vector, np.float32)
                self._companions[work.client] = update.companions
            self._untaken.append(work.client)
            self._updates[work.client] = (self._rows(work), replace(update, vector=NOTHING, companions={}))

    def _rows(self, work: RowsWork) -> int:
        """Return the training rows that a client says it has: one under a table of settings, as rows tell the cell."""
        return len(work.data) if self._tells_rows else 1

    def _norm(self, vector: FloatArray) -> float:
        """Return ‖y − x‖ over the trainable parameters."""
        assert self._norms_from is not None
        moved = vector[: self._num_trainable].astype(np.float64) - self._norms_from[: self._num_trainable]
        return float(np.linalg.norm(moved))

    def _unfit(self, num_examples: int, update: ClientUpdate) -> ValueError | None:
        """Return why an update has no place in a mean: sums weigh means, for which exact sums leave so much room."""
        for name in {self._weighted_by, *self._companions_weighted_by.values()} - {NUM_CLIENTS_KEY, NUM_EXAMPLES_KEY}:
            weight = update.sums.get(name)
            if weight is None:
                given = ", ".join(sorted(update.sums)) or "none"
                return ValueError(f"the algorithm must report the sum {name!r}, which weighs a mean, got {given}")
            if not 0 <= weight <= num_examples:
                return ValueError(
                    f"the weight {name!r} must be in [0, {num_examples}], the client's rows, got {weight}"
                )
        return None

    def _sum(self, done: Sequence[tuple[RowsWork, ClientUpdate]]) -> None:
        """Add vectors and companions to their exact sums, without clients of which one can't be added."""
        vectors = _stacked([update.vector for _, update in done])
        inside = self._scale.holds(vectors)
        companions = {}
        for name, scale in self._companion_scales.items():
            companions[name] = _stacked([update.companions[name] for _, update in done])
            inside &= scale.holds(companions[name])
        self._results.diverged += [work.client for (work, _), fits in zip(done, inside, strict=True) if not fits]

        def add(total: IntArray, scale: ExactScale, rows: FloatArray, weighted_by: str) -> None:
            weights = np.array([weight_of(weighted_by, self._rows(work), update.sums) for work, update in done])
            scale.add(total, *((rows, weights) if inside.all() else (rows[inside], weights[inside])))

        add(self._total, self._scale, vectors, self._weighted_by)
        totals = self._results.companion_totals
        for name, rows in companions.items():
            total = totals.setdefault(name, np.zeros(rows.shape[1], np.int64))
            add(total, self._companion_scales[name], rows, self._companions_weighted_by[name])

    def taken(self, parts: Sequence[Part], large_bytes: int) -> Iterator[Any]:
        """Yield what of the clients that were added since lies beside the results: of each these parts, in this order.

        Args:
            parts: A model; its companions; a state, in place of which there is None if it is not large.
            large_bytes: From which a state is.
        """
        waiting, self._untaken = self._untaken, []
        self._results.slots += waiting
        for client in waiting:
            for part in parts:
                yield self._part(part, client, large_bytes)

    def _part(self, part: Part, client: int, large_bytes: int) -> Any:
        if part == "states":
            return self._large_state(client, large_bytes)
        return (self._vectors if part == "vectors" else self._companions).pop(client)

    def _large_state(self, client: int, large_bytes: int) -> ClientState | None:
        num_examples, update = self._updates[client]
        if not self._keeps_state or state_bytes(update.state) < large_bytes:
            return None
        self._results.large.append(client)
        self._updates[client] = num_examples, replace(update, state={})
        return update.state

    def results(self) -> TrainResults:
        """Return the answer, its lists in ascending order of the clients, without what was taken."""
        results = self._results
        for client in sorted(self._updates):
            num_examples, update = self._updates[client]
            results.clients.append(client)
            results.num_examples.append(num_examples)
            results.num_steps.append(update.num_steps if self._tells_rows else 1)
            results.losses.append(update.loss)
            if update.initial_loss is not None:
                results.initial_losses.append(update.initial_loss)
            for name, value in update.sums.items():
                results.sums.setdefault(name, []).append(value)
            if self._keeps_state and client not in results.large:
                results.states[client] = update.state
        results.diverged.sort()
        if self._merged:
            results.total = self._total if results.clients else None  # nothing, where only others score
            return results
        if len(self._vectors) == len(results.clients):
            results.vectors = [self._vectors.pop(client) for client in results.clients]
        if len(self._companions) == len(results.clients):
            beside = [self._companions.pop(client) for client in results.clients]
            names = self._companions_weighted_by
            results.companions = {name: [vectors[name] for vectors in beside] for name in names}
        return results


def _stacked(rows: Sequence[FloatArray]) -> FloatArray:
    """Return vectors as the rows of a matrix; of one, which may be large, without a copy."""
    return rows[0][None] if len(rows) == 1 else np.stack(rows)


def weight_of(name: str, num_examples: int, sums: Mapping[str, float]) -> float:
    """Return a client's weight in a mean: 1, its rows or a sum that it reports."""
    if name == NUM_CLIENTS_KEY:
        return 1
    return num_examples if name == NUM_EXAMPLES_KEY else sums[name]
