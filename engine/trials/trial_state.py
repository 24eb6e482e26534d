"""Where a running trial stands after a round; this is what a checkpoint holds."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ArrayRecord
from flwr.serverapp.strategy import Strategy

from fedscout.engine.contracts.client_selection import SelectionPolicy
from fedscout.engine.contracts.trial_strategy import Cohort
from fedscout.engine.errors import TrialError
from fedscout.engine.grid.evaluation import Evaluation
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.message_contents import train_config
from fedscout.engine.messages.message_keys import FLAT_KEY, GROUP_KEY, ROUND_KEY, SEED_KEY
from fedscout.engine.messages.several_models import holds_several
from fedscout.engine.messages.view_array import read_array
from fedscout.engine.trials.trial_settings import TrialSettings


@dataclass
class TrialState:
    """Where a trial stands.

    Attributes:
        strategy: Keeps what it likes between rounds.
        arrays: The model, or several, as the strategy is handed it.
        train_config: Of messages, as the strategy left it.
        evaluate_config: Likewise.
        server_round: Last round that was finished, 0 before the first.
        client_states: What clients keep, by client.
        rounds: What was measured in every round, by column of the log.
        last_evaluation: Scores after the last round.
        dropped: Reasons of clients that failed in training, by `round:client`.
        skipped: Why the strategy gave no model, by round.
        partly_skipped: Of several models, why it gave none to some clients, by round.
        unmoved: By client, in how many rounds that was so.
        seconds: Spent so far, by phase.
        sent_bytes: Of the train messages of all finished rounds, `down` and `up`.
        unscored: Round and training loss of a model that the next train messages will have scored.
        policy: Chooses who trains, and keeps what it likes between rounds; None leaves that to the strategy.
        trained_rounds: In how many rounds each client has trained, where a policy chooses.
        far_clients: What each said of whether it lies far from every cell of a table of settings, 0 or 1.
        num_choosable: Clients that the policy was built to choose from; who joins later has a number beyond.
    """

    strategy: Strategy
    arrays: dict[str, npt.NDArray[Any]]
    train_config: dict[str, Any]
    evaluate_config: dict[str, Any]
    server_round: int = 0
    client_states: dict[int, Any] = field(default_factory=dict)
    rounds: dict[str, list[float]] = field(default_factory=dict)
    last_evaluation: Evaluation | None = None
    dropped: dict[str, str] = field(default_factory=dict)
    skipped: dict[int, str] = field(default_factory=dict)
    partly_skipped: dict[int, str] = field(default_factory=dict)
    unmoved: dict[int, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    sent_bytes: dict[str, int] = field(default_factory=dict)
    unscored: tuple[int, float] | None = None
    policy: SelectionPolicy | None = None
    trained_rounds: dict[int, int] = field(default_factory=dict)
    far_clients: dict[int, float] = field(default_factory=dict)
    num_choosable: int = 0

    def take_model(self, record: ArrayRecord, server_round: int, integers: Container[str] = ()) -> None:
        """Take what a strategy returned, as float32 (some of Flower's return float64).

        Args:
            record: The model, or several.
            server_round: Of whose end it is.
            integers: Names of the model's integer buffers, whose mean may be a fraction: they stay as they are.

        Raises:
            TrialError: If it holds NaN or inf.
        """
        arrays: dict[str, npt.NDArray[Any]] = {}
        several = holds_several([*record])
        for name, array in record.items():
            kept_as = None if name in integers or (several and name == GROUP_KEY) else np.float32
            with np.errstate(over="ignore"):
                arrays[name] = np.asarray(read_array(array), dtype=kept_as)
            if not np.isfinite(arrays[name]).all():
                raise TrialError(f"round {server_round}: the aggregated parameters are not finite (diverged)")
        self.arrays = arrays

    def finish(self, server_round: int, sent_bytes: Mapping[str, int]) -> None:
        """End a round, whose train messages carried so much."""
        self.server_round = server_round
        self.sent_bytes = {way: self.sent_bytes.get(way, 0) + count for way, count in sent_bytes.items()}

    def bytes_a_round(self, way: str) -> float | None:
        """Return the mean over the finished rounds, `down` or `up`; None before the first."""
        return self.sent_bytes[way] / self.server_round if self.sent_bytes and self.server_round else None


def cohort_of(settings: TrialSettings, grid: HostGrid[Any]) -> Cohort:
    """Return the facts on which the strategy depends; a shorter training's are those of the full one."""
    training, facts = settings.session.training, grid.facts
    return Cohort(
        facts.num_seen,
        settings.num_sampled,
        training.learning_rate,
        training.optimizer,
        training.momentum,
        facts.layout.layers,
        num_rounds=settings.full_rounds or settings.num_rounds,
        server_rows=facts.server_rows,
        server_labels=facts.server_labels,
        classifies=facts.classifies,
        chosen=settings.selection is not None,
        own_settings=settings.session.client_table is not None,
    )


def _policy(settings: TrialSettings, cohort: Cohort) -> SelectionPolicy | None:
    return None if settings.selection is None else settings.selection.build(cohort)


def first_state(settings: TrialSettings, grid: HostGrid[Any]) -> TrialState:
    """Return a trial before its first round."""
    session, needs = settings.session, settings.session.needs
    vector = grid.initial_vector(session.seed)
    arrays = grid.facts.layout.split(vector) if needs.arrays == "named" else {FLAT_KEY: vector}
    config = train_config(session.training, session.seed, 1, needs.replies, needs.initial_loss)
    del config[ROUND_KEY]  # strategies write it
    cohort = cohort_of(settings, grid)
    return TrialState(
        strategy=settings.strategy.build(cohort),
        policy=_policy(settings, replace(cohort, num_clients=grid.facts.num_clients)),
        arrays=dict(arrays),
        train_config=config,
        evaluate_config={SEED_KEY: session.seed},
        num_choosable=grid.facts.num_clients,
    )
