"""Tables of clients and reports of rounds, as the engine makes them, from what a test cares about."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from fedscout.engine.messages.calls import ClientTable, Cohort, Losses, RoundReport

Values = float | Sequence[float]


def cohort(num_clients: int = 20, num_sampled: int = 5) -> Cohort:
    """Return the facts of a federation."""
    return Cohort(num_clients, num_sampled, client_learning_rate=0.1)


def table(clients: int | Sequence[int], rows: Values = 10, seconds: Values = 0.0) -> ClientTable:
    """Return who can be reached, by number or as a list; a value for each, or one for all."""
    numbers = np.arange(clients) if isinstance(clients, int) else np.array(clients, np.int64)
    return ClientTable(
        numbers, np.broadcast_to(rows, numbers.shape).astype(np.int64), np.broadcast_to(seconds, numbers.shape) * 1.0
    )


def report(
    server_round: int,
    clients: Sequence[int],
    loss: Values = 1.0,
    *,
    rows: Values = 10,
    update_norm: Values = 1.0,
    trained: bool | Sequence[bool] = True,
    failures: Mapping[int, str] | None = None,
    round_seconds: float = 0.0,
) -> RoundReport:
    """Return what a round told; the loss is that of every row, measured and in training."""
    shape = (len(clients),)
    losses = np.broadcast_to(loss, shape).astype(np.float64)
    measured = Losses(losses, losses**2, -np.expm1(-losses), losses)
    has_trained = np.broadcast_to(trained, shape).astype(bool)
    return RoundReport(
        server_round=server_round,
        clients=np.array(clients, np.int64),
        trained=has_trained,
        num_examples=np.broadcast_to(rows, shape).astype(np.int64),
        num_steps=has_trained.astype(np.int64),
        seconds=np.zeros(shape),
        loss=np.where(has_trained, losses, np.nan),
        update_norm=np.where(has_trained, np.broadcast_to(update_norm, shape), np.nan),
        training=measured,
        validation=measured,
        failures=failures or {},
        round_seconds=round_seconds,
    )
