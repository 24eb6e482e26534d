"""What a selection policy wants of a round's clients, and what hosts tell of them before replies are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedscout.engine.contracts.client_selection import DoubleArray, Losses, RoundReport
from fedscout.engine.messages.host_calls import TrainResults, Watched
from fedscout.engine.metrics.row_losses import RowMeans

NOTHING = RowMeans.of(0, None)


class ClientReports:
    """Deals out what a policy wants of a round's train calls, and gathers their results.

    Attributes:
        watched: What the policy has to do with this round; None without one.
    """

    def __init__(self) -> None:
        self.watched: Watched | None = None
        self._results: list[TrainResults] = []

    def to_measure(self) -> tuple[int, ...]:
        """Return who measures without training; whoever asks first has them do it."""
        if self.watched is None or not self.watched.measured:
            return ()
        measured, self.watched = self.watched.measured, replace(self.watched, measured=())
        return measured

    def wanted_of(self, trained: Iterable[int], measured: tuple[int, ...]) -> Watched | None:
        """Return what the policy wants of a call's clients; None without one."""
        if self.watched is None:
            return None
        assigned = self.watched.assigned
        return replace(self.watched, measured=measured, assigned={c: assigned[c] for c in trained if c in assigned})

    def add(self, results: Iterable[TrainResults]) -> None:
        """Take in what hosts answered, without the models; nothing is kept without a policy."""
        if self.watched is None:
            return
        self._results += [replace(one, vectors=None, total=None, companions={}, states={}) for one in results]

    def take(self, server_round: int, seconds: Mapping[int, float], round_seconds: float) -> RoundReport:
        """Return what a policy's round told, and forget the round.

        Args:
            server_round: From 1.
            seconds: Simulated, by client; who is not named took none.
            round_seconds: Of the whole round.
        """
        assert self.watched is not None
        observed, self.watched = self.watched.observed, None
        results, self._results = self._results, []
        trained = {
            client: (num_examples, num_steps, loss)
            for one in results
            for client, num_examples, num_steps, loss in zip(
                one.clients, one.num_examples, one.num_steps, one.losses, strict=True
            )
        }
        training, validation = (_joined(results, part) for part in ("train", "validation"))
        norms = {client: norm for one in results for client, norm in one.update_norms.items()}
        clients = sorted({*trained, *training, *validation})
        told = [trained.get(client, (training.get(client, NOTHING).num_examples, 0, np.nan)) for client in clients]
        return RoundReport(
            server_round=server_round,
            clients=np.array(clients, np.int64),
            trained=np.array([client in trained for client in clients], np.bool_),
            num_examples=np.array([num_examples for num_examples, _, _ in told], np.int64),
            num_steps=np.array([num_steps for _, num_steps, _ in told], np.int64),
            seconds=np.array([seconds.get(client, 0.0) for client in clients]),
            loss=np.array([loss for _, _, loss in told]),
            update_norm=np.array([norms.get(client, np.nan) for client in clients]),
            training=_losses(clients, training) if observed.training_losses else None,
            validation=_losses(clients, validation) if observed.validation_losses else None,
            failures={client: reason for one in results for client, reason in one.failures.items()},
            round_seconds=round_seconds,
        )


def _joined(results: Sequence[TrainResults], part: str) -> dict[int, RowMeans]:
    return {client: means for one in results for client, means in one.received_losses.get(part, {}).items()}


def _losses(clients: Sequence[int], means: Mapping[int, RowMeans]) -> Losses:
    """Return the columns of some clients' means."""

    def column(name: str) -> DoubleArray:
        return np.array([getattr(means.get(client, NOTHING), name) for client in clients], np.float64)

    return Losses(*(column(name) for name in ("cross_entropy", "squared", "miss", "entropy")))
