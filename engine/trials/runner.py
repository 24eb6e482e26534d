"""Runners of trials: sequentially in this process; `RayRunner` runs them as Ray tasks over shared hosts.

Both give the same results; the local runner is the reference and suits debugging.
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
"""Called with the finished rounds of each running trial, by the trial's key."""


class TrialSource(Protocol):
    """Provides the results of requested trials."""

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Run trials and yield `(position in batch, result)` as they finish."""

    def forget(self, key: str) -> None:
        """Remove the checkpoint of a trial that is now in the log."""


class OpensGrids(Protocol):
    """Provides grids for messages outside of trials."""

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a grid for messages outside a trial, such as a detector's."""


class TrialRunner(TrialSource, OpensGrids, Protocol):
    """Runs trials of one federation."""

    @property
    def facts(self) -> FederationFacts:
        """The facts about the federation."""

    @property
    def num_hosts(self) -> int:
        """Number of hosts over which the clients are distributed."""

    def close(self) -> None:
        """Stop everything that the runner started."""


@dataclass
class LocalRunner:
    """Runs trials in this process.

    Attributes:
        host: The only host, a `fedscout.engine.client.host.ClientHost`.
        store: Stores the checkpoints.
    """

    host: Any
    store: CheckpointStore = field(default_factory=lambda: CheckpointStore(None))

    @property
    def facts(self) -> FederationFacts:
        """The facts about the federation."""
        facts: FederationFacts = self.host.facts()
        return facts

    @property
    def num_hosts(self) -> int:
        """Number of hosts: 1, this process."""
        return 1

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a `LocalGrid`."""
        from fedscout.engine.grid.local_grid import LocalGrid

        return LocalGrid(self.host, session=session)

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Run trials in order and yield `(position in batch, result)`."""
        for position, settings in enumerate(batch):

            def on_round(done: int, key: str = settings.key) -> None:
                if progress is not None:
                    progress({key: done})

            yield position, run_trial(settings, self.grid(settings.session), self.store, on_round)

    def forget(self, key: str) -> None:
        """Remove the trial's checkpoint."""
        self.store.discard(key)

    def close(self) -> None:
        """Do nothing, as nothing was started."""
