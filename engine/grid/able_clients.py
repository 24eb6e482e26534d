"""Who can train at all in the rounds of a session, as a driver knows it: whoever can't would be asked for ever in vain.

A client is left out only where that is certain. Of how many rows it trains on a driver knows the number, and where rows
come in groups, of which whole ones are drawn, only that they are no more than it holds. What a message says of local
training beside the session, as a user's own strategy may have it do, nobody expects.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fedscout.engine.contracts.client_selection import SelectionPolicy
from fedscout.engine.data.client_split import num_training_rows
from fedscout.engine.grid.expected_durations import shortest_seconds
from fedscout.engine.messages.host_calls import FederationFacts
from fedscout.engine.messages.session import Session

Mask = npt.NDArray[np.bool_]


def abstaining_clients(facts: FederationFacts, session: Session) -> Mask:
    """Return who has too few training rows to take part, shape `(num_clients,)`."""
    rows = facts.client_rows
    if not facts.grouped:
        rows = num_training_rows(rows, session.test_fraction, session.validation_fraction)
    return np.asarray(rows < facts.least_training_rows)


def late_clients(facts: FederationFacts, session: Session, policy: SelectionPolicy) -> Mask:
    """Return whose every round ends after the session's deadline, shape `(num_clients,)`.

    Args:
        facts: Of the clients.
        session: Of the trial.
        policy: Says who trains. One that may have clients withhold tensors spares them sending a part that nobody
            knows beforehand.
    """
    if session.deadline_seconds is None:
        return np.zeros(facts.num_clients, np.bool_)
    sends_all = type(policy).assign is SelectionPolicy.assign
    return shortest_seconds(facts, session, sends_all) > session.deadline_seconds


def able_clients(facts: FederationFacts, session: Session, policy: SelectionPolicy) -> Mask:
    """Return who may train where a policy chooses, shape `(num_clients,)`; takes what `late_clients` takes."""
    able = ~(abstaining_clients(facts, session) | late_clients(facts, session, policy))
    able[[*facts.unseen]] = False
    return able
