"""Settings of each client's own: clients for which an algorithm or a selection policy chooses alike train together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedscout.engine.client.gathered_updates import Outcome
from fedscout.engine.client.local_training import RowsWork
from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, LocalFacts
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.train_request import TrainRequest

Alike = list[tuple[TrainRequest, Sequence[RowsWork]]]


def by_settings(asked: TrainRequest, works: Sequence[RowsWork], has_labels: bool) -> tuple[Alike, list[Outcome]]:
    """Return what is asked of which clients, and those whose settings can't be told.

    Args:
        asked: By the train message.
        works: The clients' parts of the round.
        has_labels: Whether clients hold labelled rows.
    """
    algorithm = asked.algorithm
    chooses = algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings
    if not chooses and all(work.epochs == 1 for work in works):
        return [(asked, works)], []
    groups: dict[LocalTraining, list[RowsWork]] = {}
    failed: list[Outcome] = []
    for work in works:
        try:
            training = algorithm.settings(_facts(asked, work, has_labels)) if algorithm and chooses else asked.training
            groups.setdefault(_longer(training, work.epochs), []).append(work)
        except Exception as error:  # user code may raise anything; a client's failure is an answer
            failed.append((work, error))
    return [(replace(asked, training=training), members) for training, members in groups.items()], failed


def _longer(training: LocalTraining, times: int) -> LocalTraining:
    if times == 1:
        return training
    return training.model_copy(update={"local_epochs": times * training.local_epochs})


def _facts(asked: TrainRequest, work: RowsWork, has_labels: bool) -> LocalFacts:
    counts = work.data.label_counts(asked.num_classes) if has_labels else np.empty(0, np.int64)
    return LocalFacts(asked.training, len(work.data), counts)
