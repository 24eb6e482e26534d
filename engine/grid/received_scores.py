"""Scores on the way: the model that is sent out for training is scored by every client on the same round trip.

So a round costs one round trip in place of two. Whoever drives the rounds asks for it (`ask`) before the messages are
sent; the first training that sends that very model then carries it: its calls name all clients of each host
(`HostCall.evaluated`), which score the received model before anybody trains (`ClientHost.train`), and the scores come
back with what was trained (`TrainResults.evaluation`). The driver takes them (`take`). Here is what it decides: which
training carries the scoring, and which scores are known already.

Where clients have parameters of their own, scores depend on what they keep as well, so scores are known for one version
of the states only.

A strategy that drives its rounds itself asks for nothing; then all trainings are followed (`follow`), counted by their
sendings.
"""

from __future__ import annotations

import numpy as np

from fedscout.engine.arrays import FloatArray
from fedscout.engine.grid.evaluation import Evaluation


class ReceivedScores:
    """The scores of the models that one grid sends out.

    Args:
        seed: Of the trial; what a message trains with another seed is not scored.

    Attributes:
        told_rounds: Of each sending of train messages so far, which round its messages say they are of; None if none.
        by_training: If followed, each client's score of the model that the n-th training sent out, by n; nothing for
            a sending of several models.
        followed: Whether all trainings are.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.told_rounds: list[int | None] = []
        self.by_training: dict[int, Evaluation] = {}
        self.followed = False
        self._sends_one_model = False
        self._asked: FloatArray | None = None
        self._last: tuple[FloatArray, int, Evaluation] | None = None

    def ask(self, vector: FloatArray | None) -> None:
        """Have a model scored by the next training that sends it; None takes that back."""
        self._asked = vector

    def take(self) -> Evaluation | None:
        """Return what was asked for; None if no training sent that model."""
        waiting, self._asked = self._asked is not None, None
        return None if waiting or self._last is None else self._last[-1]

    def known(self, vector: FloatArray, states_version: int, seed: int) -> Evaluation | None:
        """Return the last scores, if they were of this model and of clients in these states."""
        if self._last is None or seed != self._seed:
            return None
        scored, version, evaluation = self._last
        return evaluation if version == states_version and _same(scored, vector) else None

    def keep(
        self, vector: FloatArray, states_version: int, evaluation: Evaluation, training: int | None = None
    ) -> Evaluation:
        """Remember a model's scores, of a training that is followed under its number."""
        self._last = (vector, states_version, evaluation)
        if training is not None:
            self.by_training[training] = evaluation
        return evaluation

    @property
    def trainings(self) -> int:
        """Sendings of train messages so far."""
        return len(self.told_rounds)

    def count(self, num_models: int, told_round: int | None) -> None:
        """Count one sending of train messages that hold so many models, and say that they are of a round."""
        self.told_rounds.append(told_round)
        self._sends_one_model = num_models == 1

    def number(self, seed: int) -> int | None:
        """Return the number under which a training of the last sending is followed; None if it is not."""
        return self.trainings if self.followed and self._sends_one_model and seed == self._seed else None

    def carried(self, vector: FloatArray, states_version: int, seed: int) -> bool:
        """Return whether the training that sends this model carries its scoring."""
        training = self.number(seed)
        if training is not None:
            known = self.known(vector, states_version, seed)
            if known is not None:
                self.by_training[training] = known
            return known is None
        if seed != self._seed or self._asked is None or not _same(self._asked, vector):
            return False
        self._asked = None
        return True


def _same(one: FloatArray, other: FloatArray) -> bool:
    """Whether two models have the same values; one that is not finite never has."""
    return one is other or bool(np.array_equal(one, other))
