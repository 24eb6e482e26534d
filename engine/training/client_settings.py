"""Settings of each client's own: clients for which a table, an algorithm or a selection policy chooses alike.

The table comes first, so an algorithm is told of the settings from the client's cell and may change them; a policy's
epochs are times those. What a message says of rate, batches and epochs a table overrides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, LocalFacts
from fedscout.engine.contracts.client_update import ClientUpdate
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.settings_lookup import FAR_KEY
from fedscout.engine.contracts.train_request import TrainRequest
from fedscout.engine.data.client_data import Samples
from fedscout.engine.seeds import stream
from fedscout.engine.training.local_training import Outcome, RowsWork

_MIXED = {"learning_rate", "batch_size", "local_epochs"}

Alike = list[tuple[TrainRequest, Sequence[RowsWork]]]


def by_settings(
    asked: TrainRequest, works: Sequence[RowsWork], has_labels: bool, mixes: bool = False
) -> tuple[Alike, list[Outcome]]:
    """Return what is asked of which clients, and those whose settings can't be told.

    Args:
        asked: By the train message.
        works: The clients' parts of the round.
        has_labels: Whether clients hold labelled rows.
        mixes: Whether clients of different rates, batches and epochs may be together, each with its own.
    """
    algorithm = asked.algorithm
    chooses = algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings
    if not chooses and asked.table is None and all(work.epochs == 1 for work in works):
        return [(asked, works)], []
    groups: dict[LocalTraining, list[RowsWork]] = {}
    failed: list[Outcome] = []
    for work in works:
        try:
            own = own_training(asked, work.client, work.data, work.epochs, has_labels)
        except Exception as error:  # user code may raise anything; a client's failure is an answer
            failed.append((work, error))
        else:
            together = own.model_copy(update=asked.training.model_dump(include=_MIXED)) if mixes else own
            groups.setdefault(together, []).append(replace(work, training=own) if mixes else work)
    return [(replace(asked, training=training), members) for training, members in groups.items()], failed


def own_training(asked: TrainRequest, client: int, data: Samples, times: int, has_labels: bool) -> LocalTraining:
    """Return how a client trains on its rows: as asked, unless a table, its algorithm or a selection policy chooses.

    Args:
        asked: By the train message.
        client: Its index.
        data: The client's training rows.
        times: Epochs are so many times the others'.
        has_labels: Whether clients hold labelled rows.
    """
    training, algorithm = asked.training, asked.algorithm
    if asked.table is not None and len(data):
        training = asked.table.settings(training, data.label_counts(asked.num_classes))
    if algorithm is not None and type(algorithm).settings is not ClientAlgorithm.settings:
        training = algorithm.settings(replace(facts_of(asked, client, data, has_labels), training=training))
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


def with_signals(asked: TrainRequest, outcomes: Sequence[Outcome]) -> Sequence[Outcome]:
    """Return the outcomes with what each client says of how far it lies from the table's cells, if it is to."""
    table = asked.table
    if table is None or table.table.threshold is None:
        return outcomes

    def told(work: RowsWork, update: ClientUpdate | Exception) -> Outcome:
        if isinstance(update, Exception):
            return work, update
        says = table.says_far(work.data.label_counts(asked.num_classes), asked.seed, work.client)
        return work, replace(update, sums={**update.sums, FAR_KEY: float(says)})

    return [told(work, update) for work, update in outcomes]
