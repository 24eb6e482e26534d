"""Who scores the models of a trial: all clients, or as many as the session says (`Session.num_scored`).

With very many clients the scores of some thousands say as much, and a round costs what those cost that take part. They
are drawn once, from the seed: the same in every round and for every strategy, so that rounds and strategies are
compared on the same clients. A confirmation's seeds draw others.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import IntArray
from fedscout.engine.messages.host_calls import FederationFacts
from fedscout.engine.messages.session import Session
from fedscout.engine.seeds import stream


def scored_clients(facts: FederationFacts, session: Session) -> IntArray | None:
    """Return the clients that score models, ascending; None where all do.

    Clients that join after the training are drawn apart from those that take part, as many if there are so many.

    Args:
        facts: Of the federation.
        session: Of the trial.
    """
    if session.num_scored is None or session.num_scored >= facts.num_clients:
        return None
    unseen = np.array(sorted(facts.unseen), np.int64)
    seen = np.setdiff1d(np.arange(facts.num_clients), unseen, assume_unique=True) if len(unseen) else facts.num_clients
    drawn = []
    for group, clients in enumerate((seen, unseen)):
        size = clients if isinstance(clients, int) else len(clients)
        generator = stream(session.seed, "scored-clients", group)
        drawn.append(generator.choice(clients, min(size, session.num_scored), replace=False) if size else unseen)
    return np.sort(np.concatenate(drawn))
