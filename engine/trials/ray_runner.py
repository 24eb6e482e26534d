"""Concurrent trials as Ray tasks over shared hosts.

A task drives rounds and needs neither a CPU slot nor torch. Tasks run on the driver's node where possible, so that
their checkpoints are written to the study's folder.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedscout.engine.errors import EngineError, LostStatesError, first_line
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.ray_grid import RayGrid, RayHosts
from fedscout.engine.messages.calls import FederationFacts, Session
from fedscout.engine.runtime.files import Storage, mounted_at, storage_of
from fedscout.engine.trials.checkpoint import CheckpointStore
from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.engine.trials.runner import Progress
from fedscout.engine.trials.trial import run_trial

POLL_SECONDS = 0.25
RETRIES = 10
"""A task whose process dies, or whose clients' states are lost, is repeated from its checkpoint; a trial that fails by
itself is a result, not a retry."""


@dataclass
class RayRunner:
    """Runs trials as Ray tasks, at most `parallel` at once.

    Attributes:
        hosts: Shared by all trials.
        store: Stores the checkpoints.
        parallel: Number of candidates that run concurrently.
        search_path: Folders appended to the tasks' import path, for a user's own strategy.
    """

    hosts: RayHosts
    store: CheckpointStore
    parallel: int
    search_path: tuple[str, ...] = ()

    @property
    def facts(self) -> FederationFacts:
        """The facts about the federation."""
        return self.hosts.facts

    @property
    def num_hosts(self) -> int:
        """Number of host actors."""
        return len(self.hosts.actors)

    def grid(self, session: Session) -> HostGrid[Any]:
        """Return a `RayGrid` over the hosts."""
        return RayGrid(self.hosts, session)

    def run(self, batch: Sequence[TrialSettings], progress: Progress | None = None) -> Iterator[tuple[int, Trial]]:
        """Run trials concurrently and yield `(position in batch, result)` as they finish."""
        board = RoundBoard() if progress is not None else None
        waiting = list(enumerate(batch))
        running: dict[Any, int] = {}
        try:
            while waiting or running:
                while waiting and len(running) < self.parallel:
                    position, settings = waiting.pop(0)
                    task = start_trial(self.hosts, settings, self.store, self.search_path, board)
                    running[task] = position
                done, _ = ray.wait(list(running), num_returns=1, timeout=POLL_SECONDS if board else None)
                if board is not None and progress is not None:
                    progress(board.rounds())
                for task in done:
                    position = running.pop(task)
                    try:
                        trial = ray.get(task)
                    except RayError as error:  # Ray wraps an error of the task into one of its own
                        reason = first_line(getattr(error, "cause", None) or error)
                        raise EngineError(f"a trial's task was lost: {reason}") from error
                    yield position, trial
        finally:
            for task in running:
                ray.cancel(task, force=True)
            if board is not None:
                board.close()

    def forget(self, key: str) -> None:
        """Remove the trial's checkpoint."""
        self.store.discard(key)

    def close(self) -> None:
        """Stop the hosts."""
        self.hosts.stop()


def warm_up(num_trials: int) -> list[Any]:
    """Start worker processes for this many concurrent trials; return task references, which the caller must keep."""
    return [_WARM_UP.options(num_cpus=0).remote() for _ in range(num_trials)]


def start_trial(
    hosts: RayHosts,
    settings: TrialSettings,
    store: CheckpointStore,
    search_path: Sequence[str] = (),
    board: RoundBoard | None = None,
) -> Any:
    """Start a trial and return the reference to its `Trial`.

    Args:
        hosts: Shared by any number of trials.
        settings: Settings of the trial.
        store: Stores the trial's checkpoints.
        search_path: Folders appended to the import path, for a user's own strategy.
        board: Receives the rounds done.
    """
    node = ray.get_runtime_context().get_node_id()
    task = _RUN.options(
        num_cpus=0,
        max_retries=RETRIES,
        retry_exceptions=[LostStatesError],
        scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=node, soft=True),
    )
    storage = None if store.folder is None else storage_of(store.folder)
    return task.remote(hosts, settings, store, storage, tuple(search_path), board.actor if board else None)


class RoundBoard:
    """A small actor through which running trials report their rounds to a progress display; it carries no results."""

    def __init__(self) -> None:
        self.actor = _BOARD.options(num_cpus=0, max_restarts=-1).remote()
        self._pending: Any = self.actor.rounds.remote()
        self._latest: Mapping[str, int] = {}

    def rounds(self) -> Mapping[str, int]:
        """Return the latest known round numbers without blocking; the actor may still be starting."""
        ready, _ = ray.wait([self._pending], timeout=0)
        if ready:
            with suppress(RayError):  # it died; Ray restarts it, and only the display knows less for a while
                self._latest = ray.get(self._pending)
            self._pending = self.actor.rounds.remote()
        return self._latest

    def close(self) -> None:
        """Kill the actor."""
        ray.kill(self.actor)


class _Board(dict[str, int]):
    """The number of rounds done by each running trial."""

    def note(self, key: str, rounds: int) -> None:
        self[key] = rounds

    def rounds(self) -> dict[str, int]:
        return dict(self)


def _run(
    hosts: RayHosts,
    settings: TrialSettings,
    store: CheckpointStore,
    kept: Storage | None,
    search_path: Sequence[str],
    board: Any,
) -> Trial:
    for folder in search_path:
        if folder not in sys.path:
            sys.path.append(folder)

    def on_round(rounds: int) -> None:
        if board is not None:
            board.note.remote(settings.key, rounds)

    with nullcontext() if store.folder is None else mounted_at(store.folder, kept):
        return run_trial(settings, RayGrid(hosts, settings.session), store, on_round)


def _warm_up() -> None:
    """Do nothing: importing this module, and all that a trial needs, is what takes time."""


_BOARD: Any = ray.remote(_Board)
_RUN: Any = ray.remote(_run)
_WARM_UP: Any = ray.remote(_warm_up)
"""Made once: Ray sends each remote function that is made to its head, and keeps it there."""
