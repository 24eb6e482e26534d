"""Where trials run: in this process one after the other, or as Ray tasks over shared hosts.

Both give the same results; the first is the reference and the debugger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from engine.checkpoint import CheckpointStore
from engine.errors import EngineError
from engine.grid import HostGrid
from engine.host_calls import FederationFacts
from engine.session import Session
from engine.trial import TrialResult, TrialSpec, run_trial

Progress = Callable[[Mapping[str, int]], None]
"""Told the rounds done by each running trial, keyed by the trial's key."""

POLL_SECONDS = 0.25


class TrialRunner(Protocol):
    """Runs trials of one federation."""

    @property
    def facts(self) -> FederationFacts:
        """What is known of the federation."""
        ...

    @property
    def num_hosts(self) -> int:
        """Over how many hosts the clients are spread."""
        ...

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a grid for messages outside a trial, such as a detector's."""
        ...

    def run(self, specs: Sequence[TrialSpec], progress: Progress | None = None) -> Iterator[tuple[int, TrialResult]]:
        """Run trials and yield `(position in specs, result)` as they finish."""
        ...

    def forget(self, key: str) -> None:
        """Remove what was kept to resume a trial that is now in the log."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


@dataclass
class LocalRunner:
    """Runs trials in this process.

    Attributes:
        host: The one host, an `engine.client_host.ClientHost`.
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
        from engine.local_grid import LocalGrid

        return LocalGrid(self.host, session=session)

    def run(self, specs: Sequence[TrialSpec], progress: Progress | None = None) -> Iterator[tuple[int, TrialResult]]:
        """Run trials in order."""
        for position, spec in enumerate(specs):

            def on_round(done: int, key: str = spec.key) -> None:
                if progress is not None:
                    progress({key: done})

            yield position, run_trial(spec, self.grid(spec.session()), self.store, on_round)

    def forget(self, key: str) -> None:
        """Remove the trial's checkpoint."""
        self.store.discard(key)

    def close(self) -> None:
        """Nothing was started."""


@dataclass
class RayRunner:
    """Runs trials as Ray tasks, at most `parallel` at once.

    Attributes:
        hosts: Running hosts, an `engine.ray_grid.RayHosts`.
        store: Where checkpoints go.
        parallel: Admission: candidates at once.
        search_path: Folders put last on the tasks' import path.
    """

    hosts: Any
    store: CheckpointStore
    parallel: int
    search_path: tuple[str, ...] = ()

    @property
    def facts(self) -> FederationFacts:
        """What is known of the federation."""
        facts: FederationFacts = self.hosts.facts
        return facts

    @property
    def num_hosts(self) -> int:
        """Number of host actors."""
        return len(self.hosts.actors)

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a `RayGrid` over the hosts."""
        from engine.ray_grid import RayGrid

        return RayGrid(self.hosts, session)

    def run(self, specs: Sequence[TrialSpec], progress: Progress | None = None) -> Iterator[tuple[int, TrialResult]]:
        """Run trials side by side."""
        import ray
        from ray.exceptions import RayError

        from engine.trial_task import RoundBoard, start_trial

        board = RoundBoard() if progress is not None else None
        waiting = list(enumerate(specs))
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.parallel:
                    position, spec = waiting.pop(0)
                    task = start_trial(self.hosts, spec, self.store, self.search_path, board)
                    running[task] = position
                done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS if board else None)
                if board is not None and progress is not None:
                    progress(board.rounds())
                for task in done:
                    position = running.pop(task)
                    try:
                        result = ray.get(task)
                    except RayError as error:
                        raise EngineError(f"a trial's task was lost: {_reason(error)}") from error
                    yield position, result
        finally:
            for task in running:
                ray.cancel(task, force=True)
            if board is not None:
                board.close()

    def forget(self, key: str) -> None:
        """Remove the trial's checkpoint."""
        self.store.discard(key)

    def close(self) -> None:
        """End the hosts."""
        self.hosts.stop()


def _reason(error: Exception) -> str:
    """Return the cause in a line; Ray wraps an error of the task into one of its own."""
    cause = getattr(error, "cause", None) or error
    return next(iter(str(cause).strip().splitlines()), type(cause).__name__)
