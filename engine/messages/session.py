"""What a trial fixes for all its messages, so that a strategy that rewrites configurations can't lose it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from fedscout.engine.contracts.client_algorithm import ClientAlgorithm
from fedscout.engine.contracts.local_training_config import LocalTraining
from fedscout.engine.contracts.settings_lookup import SettingsLookup
from fedscout.engine.contracts.trial_strategy import EngineNeeds
from fedscout.engine.messages.own_value import OwnValue, is_own
from fedscout.engine.metrics.metric import Metric

EvaluationPart = Literal["test", "validation", "train"]


@dataclass(frozen=True)
class Session:
    """The engine's side of a run of messages.

    Attributes:
        seed: Fixes split, initial model and batches.
        training: Local training, unless a message says otherwise.
        needs: What the strategy needs; decides how replies come unless a message says otherwise.
        algorithm: What the strategy has its clients do.
        client_table: By which clients choose settings of their own; None has all train alike.
        evaluate_on: The part of each client's rows that evaluation reads.
        metric: What is measured there beside accuracy; None measures nothing more.
        num_scored: Clients that score each model, >= 1, see `fedscout.engine.grid.scored_clients`; None is all.
        worst_clients: Whether the mean score of the worst tenth of the clients is wanted, too.
        test_fraction: Share of test rows a client.
        validation_fraction: Share of validation rows, cut from the training rows.
        backend: `auto` lets the model decide how clients are trained, `loop` forbids the vectorised way.
        round_timeout_seconds: After which a host's part of a round is done client by client, and a client that takes
            as long alone has failed; None waits. See `hanging_clients`.
        hanging_clients: Whether a client that hangs in training is left out of the round, or fails the trial.
        deadline_seconds: Simulated seconds after which a client with latency is too late for the round; None waits.
    """

    seed: int = 0
    training: LocalTraining = field(default_factory=LocalTraining)
    needs: EngineNeeds = field(default_factory=EngineNeeds)
    algorithm: ClientAlgorithm | None = None
    client_table: SettingsLookup | None = None
    evaluate_on: EvaluationPart = "test"
    metric: Metric | None = None
    num_scored: int | None = None
    worst_clients: bool = False
    test_fraction: float = 0.2
    validation_fraction: float = 0.0
    backend: Literal["auto", "loop"] = "auto"
    round_timeout_seconds: float | None = None
    hanging_clients: Literal["drop", "fail"] = "drop"
    deadline_seconds: float | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return what travels; a user's own algorithm brings along where it is imported from."""
        state = dict(self.__dict__)
        if self.algorithm is not None and is_own(self.algorithm):
            state["algorithm"] = OwnValue.of(self.algorithm)
        return state

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Take over what has travelled."""
        algorithm = state["algorithm"]
        opened = algorithm.opened() if isinstance(algorithm, OwnValue) else algorithm
        self.__dict__.update({**state, "algorithm": opened})
