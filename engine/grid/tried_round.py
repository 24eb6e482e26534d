"""A round that is tried on one host, to foresee what others take."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from fedscout.engine.grid.jobs import base_config
from fedscout.engine.messages.host_calls import HostCall, TrainResults
from fedscout.engine.messages.session import Session

if TYPE_CHECKING:
    from fedscout.engine.client.client_host import ClientHost


def tried_round(host: ClientHost, session: Session, clients: Sequence[int], local_epochs: int = 1) -> TrainResults:
    """Have some clients score the initial model and train.

    Args:
        host: Of all clients.
        session: Of the training that is to come.
        clients: Who, ascending.
        local_epochs: For how long.
    """
    shorter = replace(session, training=session.training.model_copy(update={"local_epochs": local_epochs}))
    config, vector = base_config(shorter, server_round=1), host.initial_vector(session.seed)
    return host.train(HostCall(tuple(clients), shorter, config, vector, evaluated=tuple(clients)))
