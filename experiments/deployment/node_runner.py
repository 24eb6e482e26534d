"""Runs trials over the clients of a real federation, one after the other, as their devices do one thing at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedscout.engine.client.client_host import ClientHost
from fedscout.engine.messages.host_calls import FederationFacts
from fedscout.engine.messages.session import Session
from fedscout.engine.nodes.node_call import Wire
from fedscout.engine.nodes.node_grid import NodeGrid
from fedscout.engine.nodes.node_roster import NodeRoster
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.trial import run_trial
from fedscout.engine.trials.trial_record import Trial
from fedscout.engine.trials.trial_runner import Progress
from fedscout.engine.trials.trial_settings import TrialSettings


@dataclass
class NodeRunner:
    """A `TrialRunner` over nodes.

    Attributes:
        roster: The clients.
        server: The driver's own side.
        wire: Writes and reads messages.
        store: Where checkpoints go.
        terms: Digest of what was agreed on.
        tell: Told what happens, a line each.
    """

    roster: NodeRoster
    server: ClientHost
    wire: Wire
    store: CheckpointStore
    terms: str
    tell: Callable[[str], None]

    @property
    def facts(self) -> FederationFacts:
        """What is known of the federation now."""
        return self.grid(Session()).facts

    @property
    def num_hosts(self) -> int:
        """One a client."""
        return len(self.roster.members)

    def grid(self, session: Session) -> NodeGrid:
        """Return a grid for messages outside a trial."""
        return self._grid(session)

    def _grid(self, session: Session, trial: str = "") -> NodeGrid:
        return NodeGrid(self.roster, self.server, self.wire, session, trial, self.terms)

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Run trials in order."""
        for position, settings in enumerate(batch):

            def on_round(done: int, of: TrialSettings = settings) -> None:
                self.tell(f"{of.phase} {of.strategy.label}: round {done} of {of.num_rounds}")
                if progress is not None:
                    progress({of.key: done})

            grid = self._grid(settings.session, settings.checkpoint)
            yield position, run_trial(settings, grid, self.store, on_round)

    def forget(self, key: str) -> None:
        """Remove the trial's checkpoint."""
        self.store.discard(key)

    def close(self) -> None:
        """Nothing was started."""
