"""What the tests of the search share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from fedscout.engine.messages.contents import claim_task_identity
from fedscout.engine.trials.record import Trial
from fedscout.strategies import KrumSpec, StrategySpec

KRUM = KrumSpec()


@pytest.fixture(autouse=True)
def _identity() -> None:
    """Let trials in this process make Flower messages."""
    claim_task_identity()


@pytest.fixture
def make_record() -> Callable[..., Trial]:
    """Return a maker of log records, of which a test names what matters to it."""

    def make(
        seed: int = 0,
        own: float = 0.0,
        clean: float = 0.0,
        error: str | None = None,
        spec: StrategySpec = KRUM,
        num_rounds: int = 1,
    ) -> Trial:
        return Trial(
            spec,
            strategy=spec.label,
            seed=seed,
            learning_rate=0.2,
            status="failed" if error else "completed",
            error=error,
            fitness=own,
            own_fitness=own,
            clean_fitness=clean,
            round_accuracy=(own,) * num_rounds,
        )

    return make
