"""Whether a client takes part in a round, and how long it takes: in a simulation, drawn by seed, round and client.

Nothing waits: seconds are added up, and a client that would come after the deadline is left out. What a round costs a
client is its `Device`'s; a client without one takes no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from fedscout.engine.data.device import Device, RoundWork
from fedscout.engine.seeds import stream


class AbsentError(Exception):
    """A client that takes no part in a round by the federation's design; the reason of its missing reply names it."""


def misses(dropout: Mapping[int, float], seed: int, server_round: int, client: int) -> bool:
    """Return whether the client misses the round."""
    probability = dropout.get(client, 0.0)
    return probability > 0 and float(stream(seed, "dropout", server_round, client).random()) < probability


def simulated_seconds(device: Device, work: RoundWork, seed: int, server_round: int, client: int) -> float:
    """Return how long the client takes for the round."""
    late = device.mean_seconds * float(stream(seed, "latency", server_round, client).exponential())
    return replace(device, shift_seconds=device.shift_seconds + late).least_seconds(work)


def check_takes_part(
    dropout: Mapping[int, float],
    seconds: float,
    deadline_seconds: float | None,
    seed: int,
    server_round: int,
    client: int,
) -> None:
    """Return if the client takes part.

    Args:
        dropout: See `Federation`.
        seconds: That the client takes for the round.
        deadline_seconds: That it may take; None is as long as it takes.
        seed: Of the trial.
        server_round: From 1.
        client: Who.

    Raises:
        AbsentError: If it misses the round, or would answer after the deadline.
    """
    if misses(dropout, seed, server_round, client):
        raise AbsentError("the client misses this round")
    if deadline_seconds is not None and seconds > deadline_seconds:
        raise AbsentError(f"the client takes {seconds:.3g} simulated seconds, the deadline is {deadline_seconds:g}")


def round_seconds(durations: Iterable[float], deadline_seconds: float | None) -> float:
    """Return how long the server waits for clients: for the slowest, or until the deadline."""
    slowest = max(durations, default=0.0)
    return slowest if deadline_seconds is None else min(slowest, deadline_seconds)
