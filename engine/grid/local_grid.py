"""Grid in the caller's own process, for debugging and as the reference that every other grid must equal.

grid = LocalGrid(federation, queries=CLIENT_QUERIES, session=Session(seed=0))
vector = grid.initial_vector(seed=0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedscout.engine.arrays import FloatArray
from fedscout.engine.client.host import ClientHost
from fedscout.engine.data.client import QueryTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.messages.calls import HostCall, Session

Thunk = Callable[[], Any]


class LocalGrid(HostGrid[Thunk]):
    """A grid that performs the work when its replies are collected. Sets torch to one thread, as every host does.

    Args:
        federation: The federation, or a host that already holds it.
        queries: Table of the queries that clients answer; ignored if `federation` is a host.
        session: Settings that are fixed for the trial.
        merge_on_hosts: See `HostGrid`.
    """

    def __init__(
        self,
        federation: Federation | ClientHost,
        queries: QueryTable | None = None,
        session: Session | None = None,
        merge_on_hosts: bool = True,
    ) -> None:
        self.host = federation if isinstance(federation, ClientHost) else ClientHost(federation, queries or {})
        super().__init__(self.host.facts(), num_hosts=1, session=session, merge_on_hosts=merge_on_hosts)

    def initial_vectors(self, seeds: Sequence[int]) -> list[FloatArray]:
        """Return the initial models of some seeds, in order, each of shape `(params,)`."""
        return [self.host.initial_vector(seed) for seed in seeds]

    def _start(self, host: int, method: str, call: HostCall) -> Thunk:
        return lambda: getattr(self.host, method)(call)

    def _gather(self, handles: Sequence[Thunk], timeout: float | None) -> list[Any]:
        return [handle() for handle in handles]
