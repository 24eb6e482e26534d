"""Run a strategy that overrides Flower's `Strategy.start`, measured as any other strategy.

The record of round r is the score of the model after it, which is the first of these that exists:

1. for the last round, the model that `start` returns;
2. the model of the last call `evaluate_fn(r, model)`, which Flower's own `start` makes after every round;
3. if `start` trains at most once per round, the model that the next training sends out.

Rounds are identified by the numbers that the strategy gives them. If it restarts the count, for example by calling
Flower's `start` twice, the numbers continue. A round that leaves the model unchanged is recorded as skipped. If `start`
ends early, its model is the model of all remaining rounds. A strategy whose rounds can't be identified is rejected: its
fitness would be a mean over other rounds than that of other strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

from fedscout.engine.errors import TrialError
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.replies import Evaluation
from fedscout.engine.messages.contents import view_record
from fedscout.engine.trials.record import TrialSettings
from fedscout.engine.trials.state import TrialState

WITHOUT_LIMIT_SECONDS = 3600.0
"""Flower's own default."""


def run_own_start(
    settings: TrialSettings,
    state: TrialState,
    grid: HostGrid[Any],
    score: Callable[[ArrayRecord, int], Evaluation],
    on_round: Callable[[int], None],
) -> list[Evaluation]:
    """Run the strategy's `start` and return each client's score of the model after every round, in order.

    Args:
        settings: Settings of the trial.
        state: The state before the first round; failed clients and skipped rounds are added to it.
        grid: A grid on which nothing was trained yet.
        score: Scores a model; called with the model and its round.
        on_round: Called with each round, from 1, for which `evaluate_fn` is called.

    Raises:
        TrialError: If `start` returns no model, or its rounds can't be identified.
    """
    strategy, num_rounds = state.strategy, settings.num_rounds
    name = type(strategy).__name__
    evaluated: dict[int, Evaluation] = {}
    round_counter = _RoundCounter()
    grid.scores.followed = True

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        number = round_counter.round(server_round, grid.scores.trainings)
        if number > num_rounds:
            raise TrialError(f"{name}.start must train {num_rounds} rounds, got round {number} to evaluate")
        evaluation = evaluated[number] = score(arrays, number)
        if number:
            on_round(number)
        loss = evaluation.weighted(evaluation.losses)
        return MetricRecord(
            {"accuracy": evaluation.accuracy, "loss": loss, "num-examples": int(evaluation.num_examples.sum())}
        )

    try:
        result = strategy.start(
            grid=grid,
            initial_arrays=view_record(state.arrays),
            num_rounds=num_rounds,
            timeout=settings.timeout_seconds or WITHOUT_LIMIT_SECONDS,
            train_config=ConfigRecord(dict(state.train_config)),
            evaluate_config=ConfigRecord(dict(state.evaluate_config)),
            evaluate_fn=evaluate_fn,
        )
    finally:
        state.dropped |= grid.take_train_failures()
    if not result.arrays:
        raise TrialError(f"{name}.start returned no model{_failures_text([*state.dropped.values()])}")
    rounds = trained_rounds(grid.scores.message_rounds, num_rounds)
    last_trained = max([*rounds[-1:], *evaluated, 0]) or num_rounds
    evaluation_of = {**_scores_of_sent_models(rounds, grid.scores.by_training), **evaluated}
    if missing := [r for r in range(1, last_trained) if r not in evaluation_of]:
        raise TrialError(
            f"{name}.start must call evaluate_fn(round, arrays) after each of its {num_rounds} rounds, or send one "
            f"training per round; it sent {grid.scores.trainings} and left out rounds {', '.join(map(str, missing))}"
        )
    final = score(result.arrays, num_rounds)
    records = [
        evaluation_of.get(0),
        *(evaluation_of[r] if r < last_trained else final for r in range(1, num_rounds + 1)),
    ]
    for r in range(1, last_trained + 1):
        if records[r] is records[r - 1]:  # known, as the model was the same
            failures = [reason for place, reason in state.dropped.items() if place.startswith(f"{r}:")]
            state.skipped[r] = f"{name}.start kept the previous model{_failures_text(failures)}"
    return [record for record in records[1:] if record is not None]


def _failures_text(reasons: Sequence[str]) -> str:
    return f", clients failed {len(reasons)} times: {reasons[0]}" if reasons else ""


class _RoundCounter:
    """Continuous numbers of the rounds for which `evaluate_fn` is called."""

    def __init__(self) -> None:
        self._offset = self._last = self._trainings = 0

    def round(self, told: int, trainings: int) -> int:
        """Return the continuous number of a round, from the strategy's number and the trainings so far."""
        if told < self._last and (told == 0 or trainings > self._trainings):  # not an earlier round's model once more
            self._offset += self._last
        self._last, self._trainings = told, trainings
        return self._offset + told


def trained_rounds(told: Sequence[int | None], num_rounds: int) -> list[int]:
    """Return the round of each training, ascending; an empty list if there are more trainings than rounds.

    Args:
        told: The round number in each training's messages; None if there is none.
        num_rounds: Rounds of the trial. If the numbers exceed it, trainings are counted instead.
    """
    if len(told) > num_rounds:
        return []
    rounds: list[int] = []
    before = last = 0
    for number in told:
        if number is None or not number + before - last > 0:
            before = last
        last = before + max(1, number or 1)
        rounds.append(last)
    return rounds if last <= num_rounds else [*range(1, len(told) + 1)]


def _scores_of_sent_models(rounds: Sequence[int], scores: Mapping[int, Evaluation]) -> dict[int, Evaluation]:
    """Return, by round, the scores of the model after it, for rounds whose model a later training sent out.

    Args:
        rounds: The round of each training.
        scores: Scores of the models that the trainings sent, by number of the training, from 1.
    """
    evaluation_of: dict[int, Evaluation] = {}
    for number, (first, stop) in enumerate(pairwise([0, *rounds]), start=1):
        if number in scores:
            evaluation_of |= dict.fromkeys(range(first, stop), scores[number])
    return evaluation_of
