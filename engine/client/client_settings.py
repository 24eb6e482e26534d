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
from fedscout.engine.data.client_data import Samples
from fedscout.engine.seeds import stream

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
            training = own_training(asked, work.client, work.data, work.epochs, has_labels)
            groups.setdefault(training, []).append(work)
        except Exception as error:  # user code may raise anything; a client's failure is an answer
            failed.append((work, error))
    return [(replace(asked, training=training), members) for training, members in groups.items()], failed


def own_training(asked: TrainRequest, client: int, data: Samples, times: int, has_labels: bool) -> LocalTraining:
    """Return how a client trains on its rows: as it is asked to, unless its algorithm or a selection policy chooses.

    Args:
        asked: By the train message.
        client: Its index.
        data: The client's training rows.
        times: Epochs are so many times the others'.
        has_labels: Whether clients hold labelled rows.
    """
    training, algorithm = asked.training, asked.algorithm
    if algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings:
        training = algorithm.settings(facts_of(asked, client, data, has_labels))
    return training if times == 1 else training.model_copy(update={"local_epochs": times * training.local_epochs})


def facts_of(asked: TrainRequest, client: int, data: Samples, has_labels: bool) -> LocalFacts:
    """Return what a client knows of itself in a round.

    Args:
        asked: By the train message.
        client: Its index.
        data: Its training rows.
        has_labels: Whether clients hold labelled rows.
    """
    counts = data.label_counts(asked.num_classes) if has_labels else np.empty(0, np.int64)
    generator = stream(asked.seed, "settings", asked.server_round, client)
    return LocalFacts(asked.training, len(data), counts, asked.companions, generator)
