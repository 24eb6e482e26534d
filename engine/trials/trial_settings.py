"""What is asked of a trial."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedscout.engine.contracts.client_selection import SelectionChoice
from fedscout.engine.contracts.trial_strategy import TrialStrategy
from fedscout.engine.messages.session import Session


@dataclass(frozen=True)
class TrialSettings:
    """Everything that decides a trial's result, given the federation, and what names the trial.

    Attributes:
        strategy: What is tried.
        num_rounds: Rounds to train from the start, >= 1.
        num_sampled: Clients that train in a round.
        selection: Who trains in a round; None leaves that to the strategy. Validation rows that it needs, or the
            strategy, are cut from the training rows, if the session has none.
        full_rounds: Rounds of the full training that a shorter one is the beginning of; None is `num_rounds`.
        session: What the trial fixes for all its messages. What the strategy needs and its client algorithm are put
            there here; without a limit of its own, no part of a round may take longer than the whole trial.
        timeout_seconds: After which the trial fails; None waits.
        keep_model: Whether the trial carries its final model: the global one, also where clients use others.
        config_hash: Of all else that decides results.
        phase: `baseline`, `search`, `tuned-baseline`, `confirmation` or `train`.
        generation: Of the searcher, from 1; 0 outside the search.
        whole: Whether it is a full training. A shorter one keeps its end as a checkpoint, from which a longer one of
            the same settings goes on. That only saves time: a trial that finds none starts at round 1 and ends with
            the same bits.
        key: The identity of the trial, a SHA-256 in hexadecimal; holds the code of a user's own strategy.
        checkpoint: Name of its checkpoint: the key of the full training that a shorter one is the beginning of.
    """

    strategy: TrialStrategy
    num_rounds: int
    num_sampled: int
    session: Session = field(default_factory=Session)
    timeout_seconds: float | None = None
    keep_model: bool = False
    config_hash: str = ""
    phase: str = ""
    generation: int = 0
    whole: bool = True
    full_rounds: int | None = None
    selection: SelectionChoice | None = None
    key: str = field(init=False)
    checkpoint: str = field(init=False)

    def __post_init__(self) -> None:
        needs = self.strategy.needs()
        share = max(needs.validation_share, _validation_share(self.selection))
        session = replace(
            self.session,
            needs=needs,
            algorithm=self.strategy.client_algorithm(),
            round_timeout_seconds=self.session.round_timeout_seconds or self.timeout_seconds,
            validation_fraction=self.session.validation_fraction or share,
        )
        identity: dict[str, Any] = {
            "config": self.config_hash,
            "phase": self.phase,
            "strategy": {"kind": self.strategy.kind, **self.strategy.parameters()},
            "seed": session.seed,
            "learning_rate": session.training.learning_rate,
        }
        if session.client_table is not None:
            identity["client_table"] = session.client_table.digest()
        code = dict(self.strategy.code())
        if self.selection is not None:
            identity["selection"] = {"kind": self.selection.kind, **self.selection.parameters()}
            code |= self.selection.code()
        if code:
            identity["code"] = code
        checkpoint = _digest(identity)
        key = checkpoint if self.whole else _digest({**identity, "num_rounds": self.num_rounds})
        for name, value in (("session", session), ("key", key), ("checkpoint", checkpoint)):
            object.__setattr__(self, name, value)  # frozen for everybody else

    def on_seed(self, seed: int) -> TrialSettings:
        """Return the same on another seed."""
        return replace(self, session=replace(self.session, seed=seed))


def _validation_share(selection: SelectionChoice | None) -> float:
    return 0.0 if selection is None else selection.validation_share


def _digest(identity: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
