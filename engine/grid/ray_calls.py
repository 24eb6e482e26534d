"""A call to a host actor: what comes back, and sending it again where Ray does not.

Ray repeats a call whose host died, and keeps for that whatever was put into the object store for a call as long as
something that it returned is referred to. Of a call whose clients' states stay in the store that would be every round's
model. So Ray is told not to repeat those, and they are repeated here.

Where a group of hosts adds its sums before they come here, and that fails, each host's answer is fetched by itself.

A training whose states take much room is sent part by part: the next clients' once those before are done, whose old
states nobody refers to any more. Each part is told what came before and adds it to its answer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from fedscout.engine.messages.added_sums import Answer
from fedscout.engine.messages.host_calls import Part, TrainResults

Send = Callable[[Any], Sequence[Any]]
"""Sends a part of a call, told the reference of the answer to those before, or None; returns references."""


@dataclass
class RayCall:
    """References of what a call will give, or the part of it that was sent last.

    Attributes:
        results: Of the clients together.
        host: Who does it.
        beside: By what lies beside the results, of each client's in the order in which clients finish.
        send: Sends that once more and returns all of its references, results last; None where Ray does so itself.
        repeats_left: How often that may be done.
        group: Of the answers of a group of calls, with one sum among them; None of a call whose answer comes alone.
        place: Of this call's answer there.
        further: Parts to be sent, in order.
    """

    results: Any
    host: int
    beside: Mapping[Part, Sequence[Any]] = field(default_factory=dict)
    send: Callable[[], Sequence[Any]] | None = None
    repeats_left: int = RESTARTS
    group: Any = None
    place: int = 0
    further: Sequence[Send] = ()
    _num_settled: int = field(default=0, init=False)

    @classmethod
    def sent(cls, sends: Sequence[Send], host: int, apart: Sequence[Part]) -> RayCall:
        """Send a call, or its first part, that is repeated here; `apart` is what lies beside its results."""
        call = cls(None, host, dict.fromkeys(apart, ()), further=sends)
        call._send_next(None)
        return call

    def _send_next(self, before: Any) -> None:
        following, *self.further = self.further
        self.send = partial(following, before)
        self._take(self.send())

    def _take(self, references: Sequence[Any]) -> None:
        *beside, self.results = references
        self.beside = {
            part: [*settled[: self._num_settled], *beside[n :: len(self.beside)]]
            for n, (part, settled) in enumerate(self.beside.items())
        }

    def go_on(self) -> Iterator[TrainResults]:
        """Send the next part, as the one before is done; yield first what all until then have kept.

        Raises:
            RayError: If that one failed.
        """
        several = _several(ray.get(self.results))
        self._num_settled = sum(len(part.slots) for part in several)
        for part in several:
            yield self._with_states(part, self._references(several))
        self._send_next(self.results)

    @property
    def reference(self) -> Any:
        """Of its answer, which others may have a part in."""
        return self.results if self.group is None else self.group

    @property
    def references(self) -> list[Any]:
        """Of all that is fetched."""
        return [self.reference, *self.beside.get("vectors", ()), *self.beside.get("companions", ())]

    def sent_again(self) -> bool:
        """Send the call again if its host died under it; return whether that was so."""
        if self.send is None or not self.repeats_left:
            return False
        try:
            ray.get(self.results, timeout=0)
        except (RayActorError, NodeDiedError, OutOfMemoryError):
            self._take(self.send())
            self.repeats_left -= 1
            return True
        except RayError:
            return False  # it is still on its way, or failed in another manner
        return False

    def parts(self, fetched: Mapping[Any, Any]) -> Iterator[Any]:
        """Yield the clients' results, several of a watched call, with what is large of them and references of states.

        Args:
            fetched: What lay under each of the references of all calls.
        """
        answer = fetched[self.reference]
        several = _several(answer if self.group is None else answer[self.place])
        references = self._references(several)
        for part in several:
            if "vectors" in references:
                part.vectors = [fetched[references["vectors"][client]] for client in part.clients]
            if "companions" in references:
                each = [fetched[references["companions"][client]] for client in part.clients]
                part.companions = {name: [vectors[name] for vectors in each] for name in (each[0] if each else ())}
            yield self._with_states(part, references)

    def _references(self, several: Sequence[TrainResults]) -> dict[Part, dict[int, Any]]:
        """Return what lies beside results, by client."""
        finished = [client for part in several for client in part.slots] if self.beside else []
        return {part: dict(zip(finished, each, strict=False)) for part, each in self.beside.items()}

    def _with_states(self, part: TrainResults, references: Mapping[Part, Mapping[int, Any]]) -> TrainResults:
        if "states" in references:
            part.states |= {client: StateReference(references["states"][client]) for client in part.large}
        return part


def _several(answer: Answer) -> list[TrainResults]:
    return answer if isinstance(answer, list) else [answer]


def gathered(
    calls: Sequence[RayCall], timeout: float | None, note: Callable[[TrainResults], None] = lambda _: None
) -> list[Any] | None:
    """Return the results of calls, in order, or None if they are not all done within `timeout` seconds.

    Args:
        calls: Parts that were not sent are sent meanwhile.
        timeout: None waits for ever.
        note: Told what clients of such a call have kept, ahead of its next part.

    Raises:
        LostStatesError: If something was lost that can't be made again.
        EngineError: If a host was lost for good.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            if unfinished := {call.results: call for call in calls if call.further}:
                done, _ = ray.wait([*unfinished], timeout=left)
                for results in done:
                    for part in unfinished[results].go_on():
                        note(part)
                if not done:
                    return None
                continue
            references = [*dict.fromkeys(one for call in calls for one in call.references)]  # a group's is fetched once
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
            return [part for call in calls for part in call.parts(fetched)]


def lost(error: RayError) -> EngineError:
    """Return what is raised for an error of Ray's: an object that is lost may have come with a task's failure."""
    is_object = isinstance(getattr(error, "cause", None) or error, ObjectLostError)
    return (LostStatesError if is_object else EngineError)(lost_host(error))
