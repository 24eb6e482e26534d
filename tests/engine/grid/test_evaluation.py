"""Per-client scores from hosts' sums."""

from __future__ import annotations

import itertools
import math

import numpy as np

from fedscout.engine.contracts.algorithm import ClientScore
from fedscout.engine.grid.replies import fold_evaluation
from fedscout.engine.messages.calls import EvaluateResults

HOSTS = [
    EvaluateResults({5: ClientScore(10, 9, 2.0)}, {5: ClientScore(10, 10, 1.0)}, {2: "out of memory"}),
    EvaluateResults({3: ClientScore(0, 0, 0.0), 0: ClientScore(4, 1, 8.0)}, {0: ClientScore(4, 2, 6.0)}),
    EvaluateResults(),
]


def test_clients_are_sorted_and_sums_become_shares() -> None:
    """Client 0: 1 of 4 rows and a loss of 8/4; client 5: 9 of 10 and 2/10; client 3 has no rows."""
    for hosts in itertools.permutations(HOSTS):
        evaluation = fold_evaluation(hosts)

        assert evaluation.clients == (0, 3, 5)
        assert evaluation.num_examples.tolist() == [4, 0, 10]
        assert evaluation.accuracies.tolist() == [0.25, 0.0, 0.9]
        assert evaluation.losses.tolist() == [2.0, 0.0, 0.2]
        assert evaluation.clean_accuracies.tolist() == [0.5, 0.0, 1.0]
        assert evaluation.clean_losses.tolist() == [1.5, 0.0, 0.1]
        assert evaluation.failures == {2: "out of memory"}


def test_the_weighted_mean_is_over_rows() -> None:
    evaluation = fold_evaluation(HOSTS)

    assert evaluation.weighted(evaluation.accuracies) == np.float64(10) / 14
    assert math.isclose(evaluation.weighted(evaluation.losses), 10 / 14)


def test_without_rows_there_is_no_mean() -> None:
    evaluation = fold_evaluation([EvaluateResults({1: ClientScore(0, 0, 0.0)})])

    assert math.isnan(evaluation.weighted(evaluation.accuracies))
    assert fold_evaluation([]).clients == ()
