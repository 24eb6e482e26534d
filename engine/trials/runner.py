"""Where trials run: in this process one after the other, or as Ray tasks over shared hosts.

Both give the same results; the first is the reference and the debugger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.calls import FederationFacts, Session
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.trial import run_trial

Progress = Callable[[Mapping[str, int]], None]
"""Told the rounds done by each running trial, keyed by the trial's key."""


class TrialSource(Protocol):
    """Gives the trials that are asked for."""

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Run trials and yield `(position in batch, result)` as they finish."""
        ...

    def forget(self, key: str) -> None:
        """Remove what was kept to resume a trial that is now in the log."""
        ...


class OpensGrids(Protocol):
    """Whoever is asked for messages outside of trials."""

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a grid for messages outside a trial, such as a detector's."""
        ...


class TrialRunner(TrialSource, OpensGrids, Protocol):
    """Runs trials of one federation."""

    @property
    def facts(self) -> FederationFacts:
        """What is known of the federation."""
        ...

    @property
    def num_hosts(self) -> int:
        """Over how many hosts the clients are spread."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


@dataclass
class LocalRunner:
    """Runs trials in this process.

    Attributes:
        host: The one host, an `fedscout.engine.client.host.ClientHost`.
        store: Where checkpoints go.
    """

    host: Any
    store: CheckpointStore = field(default_factory=lambda: CheckpointStore(None))

    @property
    def facts(self) -> FederationFacts:
        """What is known of the federation."""
        facts: FederationFacts = self.host.facts()
        return facts

    @property
    def num_hosts(self) -> int:
        """One: this process."""
        return 1

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a `LocalGrid`."""
        from fedscout.engine.grid.local_grid import LocalGrid

        return LocalGrid(self.host, session=session)

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Run trials in order."""
        for position, settings in enumerate(batch):

            def on_round(done: int, key: str = settings.key) -> None:
                if progress is not None:
                    progress({key: done})

            yield position, run_trial(settings, self.grid(settings.session), self.store, on_round)

    def forget(self, key: str) -> None:
        """Remove the trial's checkpoint."""
        self.store.discard(key)

    def close(self) -> None:
        """Nothing was started."""
