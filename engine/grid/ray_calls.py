"""A call to a host actor: what comes back, and sending it again where Ray does not.

Ray repeats a call whose host died, and keeps for that whatever was put into the object store for a call as long as
something that it returned is referred to. Of a call whose clients' states stay in the store that would be every round's
model. So Ray is told not to repeat those, and they are repeated here.

Where a group of hosts adds its sums before they come here, and that fails, each host's answer is fetched by itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
)

from fedscout.engine.errors import EngineError, LostStatesError
from fedscout.engine.grid.client_states import StateReference
from fedscout.engine.grid.ray_hosts import RESTARTS, lost_host


@dataclass
class RayCall:
    """References of what a call will give.

    Attributes:
        results: Of the clients together.
        host: Who does it.
        clients: Those that may keep something large.
        states: Of these clients.
        send: Sends the call once more and returns both; None where Ray does so itself.
        repeats_left: How often that may be done.
        group: Of the answers of a group of calls, with one sum among them; None of a call whose answer comes alone.
        place: Of this call's answer there.
    """

    results: Any
    host: int
    clients: Sequence[int] = ()
    states: Sequence[Any] = ()
    send: Callable[[], Sequence[Any]] | None = None
    repeats_left: int = RESTARTS
    group: Any = None
    place: int = 0

    @classmethod
    def sent(cls, send: Callable[[], Sequence[Any]], host: int, clients: Sequence[int]) -> RayCall:
        """Send a call that is repeated here."""
        results, *states = send()
        return cls(results, host, clients, states, send)

    @property
    def reference(self) -> Any:
        """Of what is to be fetched."""
        return self.results if self.group is None else self.group

    def answer(self, fetched: Any) -> Any:
        """Return this call's answer in what was fetched."""
        return fetched if self.group is None else fetched[self.place]

    def sent_again(self) -> bool:
        """Send the call again if its host died under it; return whether that was so."""
        if self.send is None or not self.repeats_left:
            return False
        try:
            ray.get(self.results, timeout=0)
        except (RayActorError, NodeDiedError, OutOfMemoryError):
            self.results, *self.states = self.send()
            self.repeats_left -= 1
            return True
        except RayError:
            return False  # it is still on its way, or failed in another manner
        return False

    def parts(self, results: Any) -> Iterator[Any]:
        """Yield the clients' results, of which a watched call has several, with references of the large states."""
        references = dict(zip(self.clients, self.states, strict=True))
        for part in results if isinstance(results, list) else [results]:
            if references:
                part.states |= {client: StateReference(references[client]) for client in part.large}
            yield part


def gathered(calls: Sequence[RayCall], timeout: float | None) -> list[Any] | None:
    """Return the results of calls, in order, or None if they are not all done within `timeout` seconds.

    Raises:
        LostStatesError: If something was lost that can't be made again.
        EngineError: If a host was lost for good.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            references = [*dict.fromkeys(call.reference for call in calls)]  # a group's is fetched once
            fetched = dict(zip(references, ray.get(references, timeout=left), strict=True))
        except GetTimeoutError:
            return None
        except RayError as error:
            if any(call.group is not None for call in calls):
                for call in calls:
                    call.group = None
            elif not sum(call.sent_again() for call in calls):
                raise lost(error) from error
        else:
            return [part for call in calls for part in call.parts(call.answer(fetched[call.reference]))]


def lost(error: RayError) -> EngineError:
    """Return what is raised for an error of Ray's: an object that is lost may have come with a task's failure."""
    is_object = isinstance(getattr(error, "cause", None) or error, ObjectLostError)
    return (LostStatesError if is_object else EngineError)(lost_host(error))
