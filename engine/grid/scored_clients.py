"""Who scores the models of a trial: all clients, or as many as the session says (`Session.num_scored`).

With very many clients the scores of some thousands say as much, and a round costs what those cost that take part. They
are drawn once, from the seed: the same in every round and for every strategy, so that rounds and strategies are
compared on the same clients. A confirmation's seeds draw others. Nobody is drawn who certainly has no rows to be scored
on, or so few that it abstains.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedscout.engine.arrays import IntArray
from fedscout.engine.data.client_split import num_part_rows
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
    joins = np.zeros(facts.num_clients, np.bool_)
    joins[[*facts.unseen]] = True
    has_rows = _scorable(facts, session)
    drawn = []
    for group, clients in enumerate((np.flatnonzero(~joins & has_rows), np.flatnonzero(joins & has_rows))):
        generator = stream(session.seed, "scored-clients", group)
        drawn.append(generator.choice(clients, min(len(clients), session.num_scored), replace=False))
    return np.sort(np.concatenate(drawn))


def _scorable(facts: FederationFacts, session: Session) -> npt.NDArray[np.bool_]:
    """Return who may have rows to be scored on, shape `(num_clients,)`; of rows in groups only a bound is known."""
    if not facts.holds_rows:
        return np.ones(facts.num_clients, np.bool_)
    rows = facts.client_rows
    if not facts.grouped:
        rows = num_part_rows(rows, session.test_fraction, session.validation_fraction)[session.evaluate_on]
    return np.asarray(rows >= max(1, facts.least_training_rows))
