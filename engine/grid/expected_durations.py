"""What a round is expected to take each client on the simulated clock, as a driver knows it: without a draw.

Of a client the driver knows how many rows it holds and what share of them trains; where rows come in groups, of which
whole ones are drawn, that is near the truth. Where clients play, an epoch counts as one step. Companions that a server
sends are not known beforehand and left out of the bytes; those that go up are counted. That a client will hang nobody
expects.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.data.client_split import num_training_rows
from fedscout.engine.data.device import Device, RoundWork
from fedscout.engine.messages.host_calls import FederationFacts
from fedscout.engine.messages.session import Session
from fedscout.engine.messages.travelling_values import client_bytes_down, client_bytes_up

DoubleArray = npt.NDArray[np.float64]


def expected_seconds(facts: FederationFacts, session: Session) -> DoubleArray:
    """Return the mean duration of each client's round, shape `(num_clients,)`; 0 of clients without a device."""
    return _each(facts, session, Device.expected_seconds)


def least_seconds(facts: FederationFacts, session: Session) -> DoubleArray:
    """Return the least duration of each client's round, shape `(num_clients,)`."""
    return _each(facts, session, Device.least_seconds)


def shortest_seconds(facts: FederationFacts, session: Session, sends_all: bool = True) -> DoubleArray:
    """Return what no round of a client is shorter than, likewise: the least duration with the least work there can be.

    Of rows in groups that is a step an epoch, and where clients have settings of their own a single step.

    Args:
        facts: Of the clients.
        session: Of the trial.
        sends_all: Whether each client sends its whole model; else nothing counts that goes up.
    """
    algorithm, steps = session.algorithm, _steps(facts, session)
    chooses = algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings
    if session.client_table is not None or chooses:
        steps = np.minimum(steps, 1)
    elif facts.grouped:
        steps = np.minimum(steps, session.training.local_epochs)
    return _each(facts, session, Device.least_seconds, steps, sends_all)


def probe_seconds(facts: FederationFacts, session: Session) -> DoubleArray:
    """Return what it takes each client to receive the model and measure it, without training, likewise."""
    epochs = session.training.local_epochs
    return _each(facts, session, lambda device, work: device.probe_seconds(work, epochs))


def _each(
    facts: FederationFacts,
    session: Session,
    seconds: Callable[[Device, RoundWork], float],
    steps: IntArray | None = None,
    sends_all: bool = True,
) -> DoubleArray:
    """Return a duration of each client's, from its device and its work."""
    down = client_bytes_down(facts.layout, session.algorithm, ())
    up = client_bytes_up(facts.layout, session.algorithm) if sends_all else 0
    steps = _steps(facts, session) if steps is None else steps
    found = np.zeros(facts.num_clients)
    for client, device in facts.devices.items():
        found[client] = seconds(device, RoundWork(int(steps[client]), down, up))
    return found


def _steps(facts: FederationFacts, session: Session) -> IntArray:
    """Return the optimiser steps of each client's round, shape `(num_clients,)`."""
    rows = num_training_rows(facts.client_rows, session.test_fraction, session.validation_fraction)
    return session.training.num_steps(rows) if facts.holds_rows else np.full(len(rows), session.training.local_epochs)
