"""What clients send, measured on their validation rows: for algorithms that ask for it, and for no other."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm, Validation
from fedscout.engine.contracts.client_update import ClientScore, ClientUpdate
from fedscout.engine.contracts.train_request import TrainRequest
from fedscout.engine.data.client_data import Samples
from fedscout.engine.training.client_settings import facts_of
from fedscout.engine.training.local_training import RowsWork

Scores = Callable[[Tensor, Mapping[int, Samples], int], Mapping[int, ClientScore | Exception]]
"""Of models, one a client, the rows of each client and the trial's seed."""


def with_validation(
    scores: Scores,
    asked: TrainRequest,
    block: Sequence[RowsWork],
    updates: Sequence[ClientUpdate | Exception],
    has_labels: bool,
) -> Sequence[ClientUpdate | Exception]:
    """Return updates with the sums that their algorithm makes of validation rows; as they are if it looks at none.

    Args:
        scores: Scores models.
        asked: By the train message.
        block: Clients that were trained together.
        updates: Of each, or what it ended with.
        has_labels: Whether clients hold labelled rows.
    """
    algorithm = asked.algorithm
    trained = {place: update for place, update in enumerate(updates) if isinstance(update, ClientUpdate)}
    if algorithm is None or not algorithm.validates or not trained:
        return updates
    rows = {place: part for place in trained if (part := block[place].validation) is not None}
    vectors = torch.from_numpy(np.stack([trained[place].vector for place in rows]))
    found = list(updates)
    for place, score in scores(vectors, rows, asked.seed).items():
        found[place] = _reported(algorithm, asked, block[place], trained[place], score, has_labels)
    return found


def _reported(
    algorithm: ClientAlgorithm,
    asked: TrainRequest,
    work: RowsWork,
    update: ClientUpdate,
    score: ClientScore | Exception,
    has_labels: bool,
) -> ClientUpdate | Exception:
    if isinstance(score, Exception):
        return score
    validation = Validation(score.num_examples, score.num_correct, score.loss_sum, update.sums)
    try:
        sums = algorithm.validated(facts_of(asked, work.client, work.data, has_labels), validation)
    except Exception as error:  # user code may raise anything; a client's failure is an answer
        return error
    return replace(update, sums={**update.sums, **sums})
