"""Scores where clients have models of their own: kept, or tuned on their rows before they are scored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.contracts.client_algorithm import (
    ClientAlgorithm,
    Clients,
    ClientState,
    Descent,
    Finished,
    LocalFacts,
    LocalRun,
)
from fedscout.engine.contracts.client_update import ClientScore
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.data.client_data import Samples
from fedscout.engine.metrics.metric import Metric
from fedscout.engine.model.parameter_layout import ParameterLayout
from fedscout.engine.training.local_training import Outcome
from fedscout.engine.training.training_backends import MOST_CLIENTS, Trainer

MODELS_BYTES_TOGETHER = 2**26
"""Of clients' own models that are made and scored together, at least one; an algorithm holds each some times."""


def personal_scores(
    algorithm: ClientAlgorithm,
    trainer: Trainer,
    layout: ParameterLayout,
    received: Tensor,
    clients: Mapping[int, Samples],
    states: Mapping[int, ClientState],
    config: Mapping[str, Any],
    seed: int,
    metric: Metric | None = None,
) -> dict[int, ClientScore | Exception]:
    """Score each client's own model on its rows; the exception stands where there is no score.

    Args:
        algorithm: Makes the models.
        trainer: Scores them.
        layout: Of the model.
        received: The global model, shape `(size,)`.
        clients: The rows of each.
        states: What clients kept; none of those that never trained.
        config: The message's scalars.
        seed: The trial's.
        metric: What is measured beside accuracy and loss.
    """

    def scored(group: Mapping[int, Samples]) -> dict[int, ClientScore | Exception]:
        known = Clients(received, layout, [states.get(client) or {} for client in group], config)
        try:
            return trainer.scores(algorithm.scored(known), group, seed, metric)
        except Exception as error:  # user code may raise anything; who shares its group depends on the host
            if len(group) == 1:
                return dict.fromkeys(group, error)
        return {client: score for one in group for client, score in scored({one: group[one]}).items()}

    found: dict[int, ClientScore | Exception] = {}
    most = min(MOST_CLIENTS, max(1, MODELS_BYTES_TOGETHER // received.nbytes))
    for first in range(0, len(clients), most):
        found |= scored({client: clients[client] for client in [*clients][first : first + most]})
    return found


@dataclass(frozen=True)
class Tuning(ClientAlgorithm):
    """Trains what clients are scored with in place of what they send, in whatever way clients are trained.

    Attributes:
        algorithm: Whose.
    """

    algorithm: ClientAlgorithm

    @property
    def one_by_one(self) -> bool:  # type: ignore[override]  # that of another
        """Whether clients are trained one after the other."""
        return self.algorithm.one_by_one

    def settings(self, facts: LocalFacts) -> LocalTraining:
        """Return those of the other."""
        return self.algorithm.settings(facts)

    def train(self, run: LocalRun) -> Finished:
        """Return what clients tune as if it went up."""
        vectors = self.algorithm.tuned(run)
        nothing = torch.zeros(len(vectors))
        return Finished(Descent(vectors, nothing, nothing), vectors)


def tuned_scores(
    trainer: Trainer,
    outcomes: Sequence[Outcome],
    parts: Mapping[int, Samples],
    seed: int,
    metric: Metric | None = None,
) -> dict[int, ClientScore | Exception]:
    """Score clients with what each has tuned; an exception stands for itself.

    Args:
        trainer: Scores them.
        outcomes: Of `Tuning`.
        parts: The rows that each is scored on.
        seed: The trial's.
        metric: What is measured beside accuracy and loss.
    """
    tuned = {work.client: update for work, update in outcomes}
    failed = {client: update for client, update in tuned.items() if isinstance(update, Exception)}
    models = {client: update.vector for client, update in tuned.items() if not isinstance(update, Exception)}
    if not models:
        return {**failed}
    vectors = torch.from_numpy(np.stack([*models.values()]))
    return {**failed, **trainer.scores(vectors, {client: parts[client] for client in models}, seed, metric)}
