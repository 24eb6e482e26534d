"""A strategy with a model for each group of clients: who is scored by what, with any grid, and through a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg

from fedscout.engine.client.host import ClientHost
from fedscout.engine.grid.local_grid import LocalGrid
from fedscout.engine.messages.contents import flat_record, read_array, several_models, view_record
from fedscout.engine.messages.keys import FLAT_KEY
from tests.engine.choices import Choice, Variates, rounds_of, spec_of
from tests.engine.results import local_result
from tests.engine.trials.test_resume import assert_going_on

GROUP = np.array([0, 1, 1, 0, 0, 2, 1])


class Shifted(FedAvg):
    """FedAvg, whose model three groups use as it is, a little larger, and with another sign."""

    factors = np.array([1, 1.1, -1], np.float32)[:, None]
    group = GROUP

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        flat = read_array(arrays[FLAT_KEY])
        record = view_record({FLAT_KEY: flat[0] if flat.ndim == 2 else flat})
        return super().configure_train(server_round, record, config, grid)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, Any]:
        arrays, metrics = super().aggregate_train(server_round, replies)
        return several_models(read_array(arrays[FLAT_KEY]) * self.factors, self.group), metrics


CHOICE = Choice(Shifted)


def test_each_client_is_scored_under_its_group_s_model(host: ClientHost) -> None:
    spec = spec_of(CHOICE)
    trial = local_result(spec, host)
    assert trial.error is None
    assert trial.vector.shape == (3, 53)
    for group, vector in enumerate(trial.vector):
        alone = LocalGrid(host, session=spec.session).evaluate_all(flat_record(vector))
        for client in np.flatnonzero(group == GROUP):
            assert trial.client_accuracy[client] == alone.accuracies[client]
            assert trial.client_clean_accuracy[client] == alone.clean_accuracies[client]
    assert trial.round_accuracy[-1] == pytest.approx(
        np.dot(trial.client_accuracy, trial.client_num_examples) / sum(trial.client_num_examples), rel=1e-12
    )
    (note,) = trial.notes
    assert note.endswith(" 0, 3-4; 1-2, 6; 5")


def test_a_group_that_all_are_in_is_scored_as_one_model(host: ClientHost) -> None:
    plain, shifted = (spec_of(choice, num_sampled=4) for choice in (Choice(FedAvg), CHOICE))
    expected, found = (local_result(spec, host) for spec in (plain, shifted))
    first = GROUP == 0  # its model is FedAvg's
    assert np.array(found.client_accuracy)[first].tolist() == np.array(expected.client_accuracy)[first].tolist()
    np.testing.assert_array_equal(found.vector[0], expected.vector)


@pytest.mark.parametrize("algorithm", [None, Variates()])
def test_a_resumed_trial_is_an_uninterrupted_one(host: ClientHost, tmp_path: Path, algorithm: Any) -> None:
    assert_going_on(spec_of(Choice(Shifted, algorithm=algorithm), num_rounds=4), host, tmp_path, stopped_in=3)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"factors": np.array([[1], [np.inf], [1]], np.float32)}, "diverged"),
        ({"group": np.append(GROUP, 0)}, "ValueError: group"),
    ],
)
def test_models_that_can_t_be_used_fail_the_trial(host: ClientHost, changes: dict[str, Any], reason: str) -> None:
    spec = spec_of(Choice(type("Unusable", (Shifted,), changes)))
    trial = local_result(spec, host)
    assert (trial.status, trial.vector, rounds_of(trial)) == ("failed", None, [])
    assert reason in str(trial.error)
