"""A strategy that brings its own `start`: how its rounds are told apart, so that it is measured as all others are.

The record of round r is the score of the model after it. That is, in this order:

1. for the last round, the model that `start` returns;
2. the model that it last hands to `evaluate_fn(r, model)`, as Flower's own `start` does after every round;
3. if it trains at most once a round, the model that its next training sends out.

Rounds go by the numbers that it gives them. Where it begins to count anew, as one that calls Flower's `start` twice,
they are counted on. A round that leaves the model as it was is listed as skipped. A `start` that ends early leaves its
model as it is for the rounds that are left. One whose rounds can't be told apart
is refused: its fitness would be the mean over something else than that of other strategies.
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
        settings: Of the trial.
        state: Before its first round; is told who failed and which rounds gave no model.
        grid: On which nothing was trained yet.
        score: Scores a model, told after which round.
        on_round: Told each round that `evaluate_fn` is called for.

    Raises:
        TrialError: If it gives no model, or rounds that can't be told apart.
    """
    strategy, num_rounds = state.strategy, settings.num_rounds
    name = type(strategy).__name__
    told: dict[int, Evaluation] = {}
    counted = _CountedOn()
    grid.follow_trainings()

    def evaluate_fn(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        number = counted.round(server_round, grid.trainings)
        if number > num_rounds:
            raise TrialError(f"{name}.start must train {num_rounds} rounds, got round {number} to evaluate")
        evaluation = told[number] = score(arrays, number)
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
        raise TrialError(f"{name}.start gave no model{_failed([*state.dropped.values()])}")
    rounds = trained_rounds(grid.told_rounds, num_rounds)
    trained = max([*rounds[-1:], *told, 0]) or num_rounds
    known = {**_sent(rounds, grid.received_scores), **told}
    if missing := [r for r in range(1, trained) if r not in known]:
        raise TrialError(
            f"{name}.start must call evaluate_fn(round, arrays) after each of its {num_rounds} rounds, or send one "
            f"training a round; it sent {grid.trainings} and left out {', '.join(map(str, missing))}"
        )
    final = score(result.arrays, num_rounds)
    records = [known.get(0), *(known[r] if r < trained else final for r in range(1, num_rounds + 1))]
    for r in range(1, trained + 1):
        if records[r] is records[r - 1]:  # known, as the model was the same
            failures = [reason for place, reason in state.dropped.items() if place.startswith(f"{r}:")]
            state.skipped[r] = f"{name}.start kept the model before it{_failed(failures)}"
    return [record for record in records[1:] if record is not None]


def _failed(reasons: Sequence[str]) -> str:
    return f", clients failed {len(reasons)} times: {reasons[0]}" if reasons else ""


class _CountedOn:
    """Numbers of the rounds that `evaluate_fn` is called for."""

    def __init__(self) -> None:
        self._before = self._last = self._trainings = 0

    def round(self, told: int, trainings: int) -> int:
        """Return the number of a round, told what `start` calls it and how many trainings there were."""
        if told < self._last and (told == 0 or trainings > self._trainings):  # not an earlier round's model once more
            self._before += self._last
        self._last, self._trainings = told, trainings
        return self._before + told


def trained_rounds(told: Sequence[int | None], num_rounds: int) -> list[int]:
    """Return the round of each training, ascending; none if there are more trainings than rounds.

    Args:
        told: What each says it is; None if nothing.
        num_rounds: That there are. If the numbers exceed it, trainings are counted.
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


def _sent(rounds: Sequence[int], scores: Mapping[int, Evaluation]) -> dict[int, Evaluation]:
    """Return by round the scores of the model after it, as far as a training has sent it.

    Args:
        rounds: Of the trainings.
        scores: Of the models that they sent, by their number from 1.
    """
    known: dict[int, Evaluation] = {}
    for number, (first, stop) in enumerate(pairwise([0, *rounds]), start=1):
        if number in scores:
            known |= dict.fromkeys(range(first, stop), scores[number])
    return known
