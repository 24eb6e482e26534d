"""Devices and availability: what a round costs a client in simulated seconds, and which rounds it misses.

What a client's machine and its link are like: what a round costs it in simulated seconds.

With τ optimiser steps, and b bytes that go down and up, a client's round lasts

    shift + E + τ · seconds a step + b_down / bandwidth down + b_up / bandwidth up,

E exponential: the shifted exponential distribution by which the straggling of workers is usually modelled (K. Lee,
M. Lam, R. Pedarsani, D. Papailiopoulos and K. Ramchandran, "Speeding Up Distributed Machine Learning Using Codes", IEEE
Transactions on Information Theory 64(3), 2018), beside what computing and sending take (F. Lai, Y. Dai, S. Singapuram,
J. Liu, X. Zhu, H. V. Madhyastha and M. Chowdhury, "FedScale: Benchmarking Model and System Performance of Federated
Learning at Scale", ICML 2022).

Whether a client takes part in a round, and how long it takes: in a simulation, drawn by seed, round and client.

Nothing waits: seconds are added up, and a client that would come after the deadline is left out. What a round costs a
client is its `Device`'s; a client without one takes no time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import inf

from fedscout.engine.seeds import stream

FORWARD_SHARE = 1 / 3
"""Of a step's time: a backward pass takes about twice as long as a forward pass, being two products for its one."""


@dataclass(frozen=True)
class RoundWork:
    """What a client does in a round.

    Attributes:
        num_steps: Optimiser steps.
        bytes_down: That it receives.
        bytes_up: That it sends.
    """

    num_steps: int
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class Device:
    """A client's machine and its link; as it stands, a round takes no time.

    Attributes:
        seconds_per_step: Of an optimiser step, >= 0.
        bytes_per_second_down: From the server, > 0.
        bytes_per_second_up: To the server, > 0.
        shift_seconds: That every round takes at least, whatever is done in it, >= 0.
        mean_seconds: Mean of the exponential time on top, >= 0.
    """

    seconds_per_step: float = 0.0
    bytes_per_second_down: float = inf
    bytes_per_second_up: float = inf
    shift_seconds: float = 0.0
    mean_seconds: float = 0.0

    def least_seconds(self, work: RoundWork) -> float:
        """Return how long a round takes without the exponential time."""
        moved = work.bytes_down / self.bytes_per_second_down + work.bytes_up / self.bytes_per_second_up
        return self.shift_seconds + work.num_steps * self.seconds_per_step + moved

    def expected_seconds(self, work: RoundWork) -> float:
        """Return how long a round takes in the mean."""
        return self.least_seconds(work) + self.mean_seconds

    def probe_seconds(self, work: RoundWork, local_epochs: int) -> float:
        """Return how long a client takes that receives the model and measures it on its rows, and does not train.

        It sends some numbers, which take no time, and makes the forward passes of one of the round's epochs: so much
        of what the round's steps take, and of the shift, as the shift of a shifted exponential grows with the work (Lee
        et al. 2018). Nothing is drawn.
        """
        trained = self.shift_seconds + work.num_steps * self.seconds_per_step
        return FORWARD_SHARE * trained / local_epochs + work.bytes_down / self.bytes_per_second_down


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
