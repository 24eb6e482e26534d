"""The grid over `ClientHost` actors on Ray: one laptop or a cluster, by where the actors are.

The federation is put into the object store once (once a node, that is); hosts read it without a copy. Hosts are
handles and can be passed to any number of trial tasks, whose calls they serve in turn. A host that dies is restarted
by Ray from the same federation and its unanswered calls are repeated, with the same bits.

What a client keeps stays in the object store if it is large, and calls carry a reference. Such a state is a return
value of the call that made it, so it belongs to the trial's process and outlives its host: it is freed when the trial
replaces it or ends, however that ends, and is only lost with the node where it lies. The trial then goes on from its
last checkpoint, for which states are fetched. While a host trains, the states of before are kept for a repetition; so
where they take much room it is sent some clients at a time, and has old and new states of these alone.

A large model that is not summed on its host comes as an object of its own, too, and is read where it lies: whatever of
them a strategy keeps is all that is kept. Hosts hand over models and states as soon as a block of clients is trained.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from flwr.app import MessageType
from ray.exceptions import RayError

from fedscout.engine.arrays import FloatArray
from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.errors import EngineError
from fedscout.engine.grid.client_states import StateReference, keep
from fedscout.engine.grid.host_grid import HostGrid
from fedscout.engine.grid.jobs import Job
from fedscout.engine.grid.ray_calls import RayCall, Send, gathered, lost
from fedscout.engine.grid.ray_hosts import RayHosts, lost_host
from fedscout.engine.messages.added_sums import group_size
from fedscout.engine.messages.host_calls import LARGE_VECTOR_BYTES, HostCall, Part, state_bytes
from fedscout.engine.messages.message_keys import REPLY_KEY
from fedscout.engine.messages.session import Session

INLINE_BYTES = 2**19
"""Larger models are put into the object store once a job instead of travelling with each call; so are smaller ones if
all calls together would carry more than `INLINE_TOTAL_BYTES`."""

INLINE_TOTAL_BYTES = 2**23

SUM_BYTES = 8
"""Of a parameter in an exact sum."""

LARGE_STATE_BYTES = LARGE_VECTOR_BYTES
"""From here on a client's state stays in the object store, an object a client, which is freed when it is replaced.

Measured on 2026-11-22 on 2 busy cores of an AMD EPYC with Ray 2.55.1: two hosts, 50 clients that make one step each, by
value and by reference. Fastest round in ms, states of 62k floats 37 and 72, 125k 65 and 130, 250k 191 and 183, 1M 556
and 375; SCAFFOLD with 1M 735 and 848, Ditto 968 and 863: so on one machine, where copies are all that it saves, it
costs nothing from 1 MiB on. Most memory in MiB, 191 of which are one state a client: SCAFFOLD 629 and 439 in the object
store and 374 and 62 more in the hosts; Ditto with 10 of 50 clients a round 1297 and 267 in the store, as a value is a
view of all that came with it.
"""


STATES_BYTES_TOGETHER = 2**28
"""Of the clients of a host that are trained by one call, at least one.

A call more costs some milliseconds and moves a sum of 8 bytes a parameter, 16 with companions, to the store and back.
"""


class RayGrid(HostGrid[RayCall]):
    """A grid over running hosts. Cheap to make: every trial has its own, over shared hosts.

    Args:
        hosts: From `start_hosts`.
        session: What the trial fixes.
        merge_on_hosts: See `HostGrid`.
    """

    def __init__(self, hosts: RayHosts, session: Session | None = None, merge_on_hosts: bool = True) -> None:
        super().__init__(hosts.facts, len(hosts.actors), session=session, merge_on_hosts=merge_on_hosts)
        self._hosts = hosts
        self._sent: tuple[FloatArray, Any] | None = None
        keeps_states = self.session.algorithm is not None or not self.facts.holds_rows
        self._large_states = keeps_states and 4 * self.facts.layout.size >= LARGE_STATE_BYTES

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        (vector,) = self.initial_vectors([seed])
        return vector

    def initial_vectors(self, seeds: Sequence[int]) -> list[FloatArray]:
        """Return the initial models of some seeds, in order; hosts make them side by side."""
        hosts = itertools.cycle(self._hosts.actors)
        try:
            vectors: list[FloatArray] = ray.get([next(hosts).initial_vector.remote(seed) for seed in seeds])
        except RayError as error:
            raise EngineError(lost_host(error)) from error
        return vectors

    def state_values(self) -> dict[int, ClientState]:
        """Return what clients keep, by value; what is large is a view of the object store."""
        lying = {c: state.reference for c, state in self.client_states.items() if isinstance(state, StateReference)}
        try:
            values = ray.get(list(lying.values()))
        except RayError as error:
            raise lost(error) from error
        return {**self.client_states, **dict(zip(lying, values, strict=True))}

    def close(self) -> None:
        """Take back what is on its way, and let go of what lies in the object store."""
        super().close()
        self._sent = None
        for client in [c for c, state in self.client_states.items() if isinstance(state, StateReference)]:
            del self.client_states[client]

    def _start(self, host: int, method: str, call: HostCall) -> RayCall:
        reference = None
        if call.vector is not None and call.vector.nbytes > min(INLINE_BYTES, INLINE_TOTAL_BYTES // self._num_hosts):
            if self._sent is None or self._sent[0] is not call.vector:
                self._sent = (call.vector, ray.put(call.vector))
            reference = self._sent[1]
            call = replace(call, vector=None)
        actor, lying = self._hosts.actors[host], self._lying(call.states)
        if lying:
            call = replace(call, states={c: state for c, state in call.states.items() if c not in lying})
        apart = self._apart(call) if method == "train" and call.clients else ()
        if not apart:
            beside = [tuple(lying), *lying.values()] if lying else []
            return RayCall(actor.perform.remote(method, call, reference, *beside), host)
        sends: list[Send] = []
        for part in self._in_parts(call) if "states" in apart else [call]:
            train = actor.train_apart.options(num_returns=1 + len(apart) * len(part.clients), max_task_retries=0)
            of = {client: lying[client] for client in {*part.clients, *part.evaluated} & lying.keys()}
            asked = (LARGE_STATE_BYTES, apart, part, reference, tuple(of), tuple(of.values()))
            sends.append(partial(_send, train, asked))
        return RayCall.sent(sends, host, apart)

    def _in_parts(self, call: HostCall) -> list[HostCall]:
        """Return a training by the clients that are trained together, as their states take much room."""
        most = max(1, STATES_BYTES_TOGETHER // (4 * self.facts.layout.size))
        first, *others = (call.clients[start : start + most] for start in range(0, len(call.clients), most))
        watched = None if call.watched is None else replace(call.watched, measured=())
        rest = (replace(call, clients=some, evaluated=(), call_id=self._call_id(), watched=watched) for some in others)
        return [replace(call, clients=first), *rest]

    def _apart(self, call: HostCall) -> tuple[Part, ...]:
        """Return what of a training lies beside its results, an object a client, as it is large."""
        sends_large = call.config[REPLY_KEY] != "merged" and 4 * self.facts.layout.size >= LARGE_VECTOR_BYTES
        algorithm = call.session.algorithm
        accompanied = sends_large and algorithm is not None and bool(algorithm.companions)
        wanted: dict[Part, bool] = {"vectors": sends_large, "companions": accompanied, "states": self._large_states}
        return tuple(part for part, is_wanted in wanted.items() if is_wanted)

    def _launch(self, job: Job[RayCall], clients: Collection[int]) -> None:
        super()._launch(job, clients)
        if job.message_type == MessageType.TRAIN and job.merged and self._merge_on_hosts:
            self._add_in_groups(job.handles)

    def _add_in_groups(self, calls: Sequence[RayCall]) -> None:
        """Have the first host of each group add the sums of all its hosts."""
        if any(call.further for call in calls):
            return
        size = group_size(len(calls), self._hosts.num_nodes, SUM_BYTES * self.facts.layout.size)
        for start in range(0, len(calls) if size > 1 else 0, size):
            members = calls[start : start + size]
            group = self._hosts.actors[members[0].host].with_one_sum.remote(*(call.results for call in members))
            for place, call in enumerate(members):
                call.group, call.place = group, place

    def _lying(self, states: Mapping[int, Any]) -> dict[int, Any]:
        """Return references of large states by client; one that is here as a value, as after a resume, is put there."""
        lying = {}
        for client, kept in states.items():
            state = kept
            if not isinstance(kept, StateReference) and state_bytes(kept) >= LARGE_STATE_BYTES:
                state = self.client_states[client] = StateReference(ray.put(kept))
                self._large_states = True
            if isinstance(state, StateReference):
                lying[client] = state.reference
        return lying

    def _gather(self, handles: Sequence[RayCall], timeout: float | None) -> list[Any] | None:
        return gathered(handles, timeout, lambda part: keep(self.client_states, part.states))

    def _give_up(self, handles: Sequence[RayCall]) -> None:
        for call in handles:
            ray.cancel(call.results)


def _send(train: Any, asked: tuple[Any, ...], before: Any) -> Sequence[Any]:
    """Send a part of a training, told the answer to those before; return the references of what it will give."""
    *what, owners, states = asked
    references: Sequence[Any] = train.remote(*what, before, owners, *states)
    return references
