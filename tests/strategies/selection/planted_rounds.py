"""Rounds of a federation that is not there: tables, losses and reports drawn from a seed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedscout.engine.messages.calls import ClientTable, RoundReport, SelectionPolicy
from tests.strategies.selection import reports

NUM_CLIENTS, NUM_CHOSEN = 20, 4


def report(
    server_round: int, clients: list[int], trained: list[int], cross_entropy: list[float], round_seconds: float = 0.0
) -> RoundReport:
    """Return a report of these clients' losses."""
    told = reports.report(server_round, clients, cross_entropy, trained=np.isin(clients, trained).tolist())
    return replace(told, round_seconds=round_seconds)


def played(policy: SelectionPolicy, rounds: range, clock: bool = True) -> Iterator[tuple[ClientTable, list[int]]]:
    """Yield each round's table and choice; clients come and go, fail, and tell losses that are no numbers."""
    for server_round in rounds:
        drawn = np.random.default_rng([7, server_round])
        present = np.sort(drawn.choice(NUM_CLIENTS, NUM_CLIENTS - 4, replace=False))
        seconds = drawn.lognormal(size=len(present)) if clock else np.zeros(len(present))
        table = ClientTable(present, drawn.integers(5, 50, len(present)), seconds)
        chosen = [
            int(each) for each in policy.choose(server_round, table, NUM_CHOSEN, np.random.default_rng(server_round))
        ]
        yield table, chosen
        failed = set(chosen[: server_round % 3])
        answered = [int(client) for client in present if client not in failed]
        told = drawn.exponential(size=len(answered)) + 2 / server_round
        told[drawn.random(len(answered)) < 0.2] = np.nan
        told[0] = np.inf
        policy.observe(report(server_round, answered, chosen, told.tolist(), round_seconds=seconds.max()))
