"""From what clients trained to what they send: the one place where an attacker's update is exchanged.

It lies between training, in whichever way, and merging. What else is known of the client stays that of its honest
training: losses, steps, what it keeps for its next round. An attack changes the trainable parameters. Buffers, which
are statistics of batch normalisation, go up as they were trained: attacks are defined on gradients and parameters, and
a turned variance would be negative, a model that tells of itself as it gives no numbers at all.

Accomplices may train on other hosts, and in rounds for which the server did not choose them. So a host trains all of
them once more, from what every host has: with equal bits wherever, and as clients that have kept nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_update import ClientUpdate
from fedscout.engine.contracts.train_request import ClientWork, TrainRequest
from fedscout.engine.contracts.update_attack import AttackInputs, UpdateAttack
from fedscout.engine.seeds import stream
from fedscout.engine.training.local_training import Outcome

Attacks = Mapping[int, tuple[UpdateAttack, ...]]
"""Of each attacker, in order."""


class SentUpdates:
    """What the clients of one call send.

    Args:
        attacks: Of the federation.
        num_trainable: Elements of the vectors that attacks see; they come first.
        asked: By the train message.
        clients: Of the call.
        honest: Trains clients, told ascending, of the call or not; returns the vectors of those that can train, in
            that order, shape `(clients, layout.size)`.
    """

    def __init__(
        self,
        attacks: Attacks,
        num_trainable: int,
        asked: TrainRequest,
        clients: Sequence[int],
        honest: Callable[[tuple[int, ...]], FloatArray],
    ) -> None:
        self._attacks = attacks
        self._num_trainable = num_trainable
        self._asked = asked
        groups = {attack.accomplices for client in clients for attack in attacks.get(client, ())}
        self._known = {group: honest(group)[:, :num_trainable] for group in groups}

    def of(self, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
        """Return the outcomes of honest training with the updates that are sent; a failure stays one."""
        if not self._attacks:
            return outcomes
        return [(work, self._sent(work, update)) for work, update in outcomes]

    def _sent(self, work: ClientWork, update: ClientUpdate | Exception) -> ClientUpdate | Exception:
        """Return what one client sends; of an attacker the exception, if an attack ends with one."""
        attacks, asked = self._attacks.get(work.client, ()), self._asked
        if not attacks or isinstance(update, Exception):
            return update
        parameters = slice(self._num_trainable)
        received, vector = asked.received.numpy()[parameters], update.vector.copy()
        try:
            for place, attack in enumerate(attacks):
                generator = stream(asked.seed, "attack", asked.server_round, work.client, place)
                inputs = AttackInputs(received, vector[parameters], self._known[attack.accomplices], generator)
                with np.errstate(over="ignore", invalid="ignore"):  # what leaves float32's range counts as diverged
                    vector[parameters] = attack(inputs)
        except Exception as error:  # as in training: a client's failure is an answer, not the host's end
            return error
        return replace(update, vector=vector)
