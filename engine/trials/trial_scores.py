"""The scores of a trial's models: on the round trip that sends a model out for training, or on one of their own."""

from __future__ import annotations

from collections.abc import Iterator
from math import isnan
from typing import Any

import numpy as np
from flwr.app import ArrayRecord

from fedscout.engine.errors import TrialError
from fedscout.engine.grid.evaluation import Evaluation
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.session import Session
from fedscout.engine.messages.several_models import holds_several
from fedscout.engine.messages.view_array import view_record
from fedscout.engine.trials.trial_clock import TrialClock
from fedscout.engine.trials.trial_state import TrialState


class TrialScores:
    """Has the model after each round scored by every client, and keeps what comes of it in the trial's state.

    Args:
        grid: Of the trial.
        state: Says whether its model waits for scores.
        clock: Of the trial.
        session: Says what is measured on which part of the clients' rows.
    """

    def __init__(self, grid: HostGrid[Any], state: TrialState, clock: TrialClock, session: Session) -> None:
        self._grid = grid
        self._state = state
        self._clock = clock
        self._session = session
        self._part = session.evaluate_on

    def ask_with_training(self, arrays: ArrayRecord) -> None:
        """Have the model scored by the train messages that are sent next, if it waits for that.

        Several models are scored at once: there may be some that no message of the round sends.
        """
        if holds_several([*arrays]):
            self.ask_now()
        elif self._state.unscored is not None:
            self._grid.evaluate_with_next_training(arrays)

    def take(self) -> None:
        """Keep the scores of the model that the clients have just been sent, or ask for them."""
        evaluation = self._grid.take_evaluation()
        if evaluation is None:
            self.ask_now()
        elif self._state.unscored is not None:
            self.keep(evaluation, *self._state.unscored)

    def ask_now(self) -> None:
        """Score the model on a round trip of its own, if it waits for scores."""
        if self._state.unscored is not None:
            server_round, train_loss = self._state.unscored
            self._state.unscored = None  # asked once, also if that fails
            self.keep(self.of(server_round), server_round, train_loss)

    def notes(self) -> Iterator[str]:
        """Yield that a finite model gave outputs that are not numbers in some rounds, which have no score."""
        losses, facts = np.array(self._state.rounds.get("round_loss", ())), self._grid.facts
        rounds = 1 + np.flatnonzero(np.isnan(losses))
        if facts.holds_rows and len(rounds):
            normalised = any("BatchNorm" in layer for layer in facts.layout.layers)
            why = "; a server's step beyond its clients can make variances of batch normalisation negative"
            yield (
                f"its outputs were not numbers in {len(rounds)} of {len(losses)} rounds, first in round {rounds[0]}, "
                f"which have no score{why if normalised else ''}"
            )

    def refuse_missing(self) -> None:
        """Go on unless the last round has no score.

        Raises:
            TrialError: If the outputs of its model are not numbers.
        """
        measure = "accuracy" if self._session.metric is None else "metric"
        rounds = [self._state.rounds.get(f"round_{view}{measure}", ()) for view in ("", "clean_")]
        evaluation = self._state.last_evaluation
        if evaluation is not None and evaluation.is_missing and any(isnan(scores[-1]) for scores in rounds if scores):
            raise TrialError(f"round {len(rounds[0])}: the model's outputs are not numbers (diverged)")

    def of(self, server_round: int) -> Evaluation:
        """Return the scores of the model as it is."""
        return self._grid.evaluate_all(view_record(self._state.arrays), self._clock.left(server_round))

    def keep(self, evaluation: Evaluation, server_round: int, train_loss: float) -> None:
        """Write down a round.

        Raises:
            TrialError: If a client could not be evaluated, or none has rows for that.
        """
        self._state.unscored = None
        if evaluation.failures:
            client, reason = next(iter(evaluation.failures.items()))
            raise TrialError(f"round {server_round}: client {client} could not be evaluated: {reason}")
        if not evaluation.num_examples.sum():
            raise TrialError(f"no client has rows to evaluate on ({self._part})")
        if evaluation.of_unseen is not None and not evaluation.of_unseen.num_examples.sum():
            raise TrialError(f"no unseen client has rows to evaluate on ({self._part})")
        measured = {**self._measured(evaluation), "round_train_loss": train_loss}
        for column, value in measured.items():
            self._state.rounds.setdefault(column, []).append(value)
        self._state.last_evaluation = evaluation

    def _measured(self, evaluation: Evaluation) -> dict[str, float]:
        """Return what a round's columns hold.

        Raises:
            TrialError: If the rows have no score by the metric.
        """
        measured = {
            "round_accuracy": evaluation.accuracy,
            "round_clean_accuracy": evaluation.clean_accuracy,
            "round_loss": evaluation.weighted(evaluation.losses),
            "round_clean_loss": evaluation.weighted(evaluation.clean_losses),
        }
        if evaluation.of_received is not None:
            measured["round_global_accuracy"] = evaluation.of_received.accuracy
        if evaluation.of_unseen is not None:
            measured["round_new_client_accuracy"] = evaluation.of_unseen.accuracy
        return {**measured, **self._scores(evaluation)}

    def _scores(self, evaluation: Evaluation) -> dict[str, float]:
        """Return the columns of the session's metric and of the worst clients, as far as they are asked for."""
        session = self._session
        found = {} if session.metric is None else _metrics(evaluation)
        if session.worst_clients:
            found["round_worst_clients"] = evaluation.worst_clients()
            found["round_clean_worst_clients"] = evaluation.worst_clients(clean=True)
        missing = any(isnan(score) for score in found.values()) and not evaluation.is_missing
        if session.metric is not None and missing:
            name = session.metric.name
            raise TrialError(f"the rows to evaluate on ({self._part}) have no {name}: too many have the same label")
        return found


def _metrics(evaluation: Evaluation) -> dict[str, float]:
    """Return the columns of the session's metric, if it has one."""
    found = {
        "round_metric": evaluation.metric,
        "round_clean_metric": evaluation.clean_metric,
        "round_global_metric": None if evaluation.of_received is None else evaluation.of_received.metric,
        "round_new_client_metric": None if evaluation.of_unseen is None else evaluation.of_unseen.metric,
    }
    return {column: value for column, value in found.items() if value is not None}
