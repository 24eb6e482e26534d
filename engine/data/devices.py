"""Devices and availability of clients: simulated round durations, dropout and deadlines.

With τ optimiser steps, and b_down and b_up bytes received and sent, a client's round lasts

    shift + E + τ · seconds a step + b_down / bandwidth down + b_up / bandwidth up,

with E exponential: the shifted exponential distribution by which stragglers are usually modelled (K. Lee, M. Lam, R.
Pedarsani, D. Papailiopoulos and K. Ramchandran, "Speeding Up Distributed Machine Learning Using Codes", IEEE
Transactions on Information Theory 64(3), 2018), plus the time for computation and communication (F. Lai, Y. Dai, S.
Singapuram, J. Liu, X. Zhu, H. V. Madhyastha and M. Chowdhury, "FedScale: Benchmarking Model and System Performance of
Federated Learning at Scale", ICML 2022).

Participation and durations are drawn from (seed, round, client). The simulation does not wait: seconds are added up,
and a client that would answer after the deadline is left out. A client without a `Device` takes no time.
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
    """A client's work in a round.

    Attributes:
        num_steps: Optimiser steps.
        bytes_down: Bytes that it receives.
        bytes_up: Bytes that it sends.
    """

    num_steps: int
    bytes_down: int
    bytes_up: int


@dataclass(frozen=True)
class Device:
    """A client's machine and network link; with the defaults, a round takes no time.

    Attributes:
        seconds_per_step: Seconds per optimiser step, >= 0.
        bytes_per_second_down: Bandwidth from the server, > 0.
        bytes_per_second_up: Bandwidth to the server, > 0.
        shift_seconds: Constant part of each round's duration, >= 0.
        mean_seconds: Mean of the additional exponential time, >= 0.
    """

    seconds_per_step: float = 0.0
    bytes_per_second_down: float = inf
    bytes_per_second_up: float = inf
    shift_seconds: float = 0.0
    mean_seconds: float = 0.0

    def least_seconds(self, work: RoundWork) -> float:
        """Return the duration of a round without the exponential time."""
        transfer = work.bytes_down / self.bytes_per_second_down + work.bytes_up / self.bytes_per_second_up
        return self.shift_seconds + work.num_steps * self.seconds_per_step + transfer

    def expected_seconds(self, work: RoundWork) -> float:
        """Return the mean duration of a round."""
        return self.least_seconds(work) + self.mean_seconds

    def probe_seconds(self, work: RoundWork, local_epochs: int) -> float:
        """Return the time for a client to receive the model and measure it on its rows, without training.

        The client sends some numbers, which take no time, and performs the forward passes of one of the round's epochs:
        the corresponding share of the time of the round's steps, and of the shift, as the shift of a shifted
        exponential grows with the work (Lee et al. 2018). Nothing is drawn.
        """
        trained = self.shift_seconds + work.num_steps * self.seconds_per_step
        return FORWARD_SHARE * trained / local_epochs + work.bytes_down / self.bytes_per_second_down


class AbsentError(Exception):
    """Raised when a client misses a round by the federation's design; reported as the reason of its missing reply."""


def misses(dropout: Mapping[int, float], seed: int, server_round: int, client: int) -> bool:
    """Return whether the client drops out of the round."""
    probability = dropout.get(client, 0.0)
    return probability > 0 and float(stream(seed, "dropout", server_round, client).random()) < probability


def simulated_seconds(device: Device, work: RoundWork, seed: int, server_round: int, client: int) -> float:
    """Return the simulated duration of the client's round."""
    delay = device.mean_seconds * float(stream(seed, "latency", server_round, client).exponential())
    return replace(device, shift_seconds=device.shift_seconds + delay).least_seconds(work)


def check_takes_part(
    dropout: Mapping[int, float],
    seconds: float,
    deadline_seconds: float | None,
    seed: int,
    server_round: int,
    client: int,
) -> None:
    """Check that the client takes part in the round.

    Args:
        dropout: See `Federation`.
        seconds: Simulated duration of the client's round.
        deadline_seconds: Maximum duration; None for no deadline.
        seed: Seed of the trial.
        server_round: From 1.
        client: Index of the client.

    Raises:
        AbsentError: If it misses the round, or would answer after the deadline.
    """
    if misses(dropout, seed, server_round, client):
        raise AbsentError("the client misses this round")
    if deadline_seconds is not None and seconds > deadline_seconds:
        raise AbsentError(f"the client takes {seconds:.3g} simulated seconds, the deadline is {deadline_seconds:g}")


def round_seconds(durations: Iterable[float], deadline_seconds: float | None) -> float:
    """Return how long the server waits: for the slowest client, or until the deadline."""
    slowest = max(durations, default=0.0)
    return slowest if deadline_seconds is None else min(slowest, deadline_seconds)
