"""Grid over `ClientHost` actors on Ray, on one machine or on a cluster.

The federation is put into the object store once per node, and hosts read it without a copy. Host handles can be
passed to any number of trial tasks, whose calls the hosts serve in turn. Ray restarts a host that dies from the same
federation, and its unanswered calls are repeated with bitwise identical results.

Client states: large states stay in the object store, and calls carry a reference. A state is a return value of the
call that created it, so it is owned by the trial's process and outlives its host: it is freed when the trial replaces
it or ends, and is lost only with the node that stores it. The trial then resumes from its last checkpoint, for which
states are fetched. While a host trains, the previous states are retained in case the call is repeated. If states
need much memory, the clients of a host are therefore trained by several calls (parts), so that old and new states
exist at the same time for the clients of one part only. Each part receives the answer of the previous parts and adds
it to its own.

Large models: a large model that is not summed on its host is an object of its own, too, and is read in place, so a
strategy that keeps some models keeps only those in memory. Hosts hand over models and states after each trained block
of clients.

A part's size is a compromise: a call more costs some milliseconds and moves a sum of 8 bytes a parameter, 16 with an
auxiliary vector, to the store and back. `LARGE_STATE_BYTES` was measured on 2026-11-22 on 2 busy cores of an AMD EPYC
with Ray 2.55.1: two hosts, 50 clients that make one step each, by value and by reference. Fastest round in ms, states
of 62k floats 37 and 72, 125k 65 and 130, 250k 191 and 183, 1M 556 and 375; SCAFFOLD with 1M 735 and 848, Ditto 968 and
863: so on one machine, where copies are all that it saves, it costs nothing from 1 MiB on. Most memory in MiB, 191 of
which are one state a client: SCAFFOLD 629 and 439 in the object store and 374 and 62 more in the hosts; Ditto with 10
of 50 clients a round 1297 and 267 in the store, as a value is a view of all that came with it.

Retries: Ray repeats a call whose host died. For this it retains every object that was passed to the call for as long
as one of its return values is referenced; for calls whose client states stay in the store, that would be the model of
every round. Ray's retries are therefore disabled for these calls, and `RayCall` repeats them.

Sums: a group of hosts may add up its sums before they are sent to the driver. If that fails, the answer of each host
is fetched separately.

GPUs: `hosts_on_gpus` determines how many hosts share a GPU, as many as keep it busy and fit into its memory. A single
host leaves a GPU idle while it prepares the next kernel, so the share of time in which kernels run, measured in one
round of training, determines the number of hosts.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, repeat
from typing import Any

import numpy as np
import ray
from flwr.app import MessageType
from ray.exceptions import GetTimeoutError, NodeDiedError, ObjectLostError, OutOfMemoryError, RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from fedscout.engine.arrays import FloatArray
from fedscout.engine.config import CPU, HostDevice
from fedscout.engine.contracts.algorithm import ClientState
from fedscout.engine.data.client import QueryTable
from fedscout.engine.data.federation import Federation
from fedscout.engine.errors import EngineError, LostStatesError
from fedscout.engine.grid.host_grid import HostGrid, StateReference, keep
from fedscout.engine.grid.replies import Job, timed_round
from fedscout.engine.grid.watchdog import perform_with_timeout
from fedscout.engine.messages import calls
from fedscout.engine.messages.exact_mean import Answer, added_to, group_size, with_one_sum
from fedscout.engine.messages.keys import REPLY_KEY
from fedscout.engine.runtime.ray import HeadNotes


class HostActor:
    """A `ClientHost` in a process of its own. Its model may come through the object store instead of with the call.

    Args:
        federation: A list of one reference. Inside a list it is dereferenced here, when the actor is started or
            restarted, and stays alive as long as the caller keeps it.
        queries: Table of the queries that clients answer.
        device: Device on which clients train.
    """

    def __init__(self, federation: list[Any], queries: QueryTable, device: HostDevice = CPU) -> None:
        from fedscout.engine.client.host import ClientHost  # imports torch, which the creator of a handle does without

        self._host = ClientHost(ray.get(federation[0]), queries, device)

    def facts(self) -> calls.FederationFacts:
        """Return the facts of the federation that the driver needs."""
        return self._host.facts()

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        return self._host.initial_vector(seed)

    def perform(
        self,
        method: str,
        call: calls.HostCall,
        vector: FloatArray | None,
        owners: Sequence[int] = (),
        *states: ClientState,
    ) -> Any:
        """Perform one call.

        Args:
            method: `train`, `evaluate` or `query`.
            call: The call.
            vector: Replaces the call's vector if that is None.
            owners: Clients whose states are passed separately from the call.
            states: States of these clients, in the same order.
        """
        call = _with_attachments(call, vector, owners, states)
        if call.session.round_timeout_seconds is None:
            return self._perform(method, call)
        return perform_with_timeout(self._perform, method, call, HeadNotes())

    def train_apart(
        self,
        large_bytes: int,
        parts: Sequence[calls.Part],
        call: calls.HostCall,
        vector: FloatArray | None,
        before: Answer | None,
        owners: Sequence[int],
        *states: ClientState,
    ) -> Iterator[Any]:
        """Train; yield the separately stored objects of each client as soon as it is trained, then the results.

        Ray stores each yielded object before it requests the next, so this process holds the models of one block of
        clients only. The results list the clients of the objects. None is yielded for each client that has not trained,
        and for each state that is not large and is returned with the results.

        Args:
            large_bytes: Minimum size of a large state.
            parts: Which objects to yield for each client, in this order.
            call: See `perform`, as for the arguments that follow.
            vector: The model.
            before: Answer of the previous parts of the same call, to which these results are added.
            owners: Clients whose states are passed separately.
            states: Their states.
        """
        if "states" in parts:
            gc.collect()  # cycles of the part before may hold its clients' old states
        call = _with_attachments(call, vector, owners, states)
        done: Any
        if call.session.round_timeout_seconds is None:
            done = yield from self._host.training(call, parts, large_bytes)
        else:  # the watchdog ends this process, or sees the end of the work
            collected: list[Any] = []

            def perform(method: str, part: calls.HostCall) -> Any:
                if method != "train":
                    return self._perform(method, part)
                objects, results = self._host.train_apart(part, parts, large_bytes)
                collected.extend(objects)
                return results

            done = perform_with_timeout(perform, "train", call, HeadNotes())
            yield from collected
        num_missing = len(call.clients) - sum(len(part.slots) for part in (done if isinstance(done, list) else [done]))
        yield from repeat(None, len(parts) * num_missing)
        yield done if before is None else added_to(before, done)

    def _perform(self, method: str, call: calls.HostCall) -> Any:
        return getattr(self._host, method)(call)

    def with_one_sum(self, *answers: Answer) -> list[Answer]:
        """Return the answers of several hosts with one exact sum for all of them."""
        return with_one_sum(answers)

    def process_id(self) -> int:
        """Return the process id of this host."""
        return os.getpid()


def _with_attachments(
    call: calls.HostCall, vector: FloatArray | None, owners: Sequence[int], states: Sequence[ClientState]
) -> calls.HostCall:
    """Return a call completed with the vector and the states that were passed separately."""
    if vector is not None:
        call = replace(call, vector=vector)
    return replace(call, states={**call.states, **dict(zip(owners, states, strict=True))}) if owners else call


RESTARTS = 100
START_SECONDS = 180.0
HOST_CPUS = 0.0001
"""The least that Ray counts. Of an actor that takes nothing Ray ignores on which node it shall be."""


RESERVED_SHARE = 0.9
"""Of a host's CPU; in the rest hosts of lost nodes find room."""


GPU_SHARE_HELD = 0.95
"""Of a host's part of a GPU; the rest is for reservations, and for rounding."""


HEAD_START_SECONDS = 0.5
"""What is done meanwhile starts so much later, or it would take the processes that Ray has ready."""


_HOST: Any = ray.remote(HostActor)
"""Made once: Ray sends each remote class that is made to its head, and keeps it there."""


@dataclass(frozen=True)
class RayHosts:
    """Handles of running hosts. Picklable; passed to trial tasks.

    Attributes:
        actors: One handle per host.
        facts: Facts of the federation that the hosts serve.
        federation: Reference that keeps the data in the object store; a lost host is rebuilt from it.
        reservation: Placement group that reserves the hosts' CPUs, if any.
        num_nodes: Number of nodes that the hosts were spread over.
    """

    actors: tuple[Any, ...]
    facts: calls.FederationFacts
    federation: Any
    reservation: PlacementGroup | None = None
    num_nodes: int = 1

    def stop(self) -> None:
        """Stop the hosts and release their CPUs."""
        _end(self.actors, self.reservation)


def start_hosts(
    federation: Federation,
    queries: QueryTable,
    num_hosts: int,
    meanwhile: Callable[[], None] = lambda: None,
    device: HostDevice = CPU,
    gpu_share: float = 0.0,
) -> RayHosts:
    """Start hosts on the connected Ray cluster, spread over its nodes.

    Args:
        federation: Put into the object store once.
        queries: Table of the queries that clients answer.
        num_hosts: Number of hosts; more hosts than CPUs are allowed, but slower.
        meanwhile: Called while the hosts start.
        device: Device on which the hosts train.
        gpu_share: Share of a GPU for each host.

    Raises:
        EngineError: If the hosts do not start in time, for example because other work occupies the cluster's CPUs.
    """
    cpus = ray.cluster_resources().get("CPU", 1.0)
    reservation = _reserve(num_hosts, cpus, on_gpus=gpu_share > 0)
    nodes = placement_group_table(reservation)["bundles_to_node_id"]
    reference = ray.put(federation)
    actors = tuple(
        _HOST.options(
            num_cpus=HOST_CPUS,
            num_gpus=_counted(GPU_SHARE_HELD * gpu_share),
            max_restarts=RESTARTS,
            max_task_retries=RESTARTS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id=nodes[host], soft=True),
        ).remote([reference], queries, device)
        for host in range(num_hosts)
    )
    try:
        ray.wait([actor.process_id.remote() for actor in actors], num_returns=num_hosts, timeout=HEAD_START_SECONDS)
        meanwhile()
        facts = _first_facts(actors)
    except BaseException:
        _end(actors, reservation)
        raise
    return RayHosts(actors, facts, reference, reservation, len({*nodes.values()}))


def _end(actors: Sequence[Any], reservation: PlacementGroup | None) -> None:
    for actor in actors:
        ray.kill(actor)
    if reservation is not None:
        remove_placement_group(reservation)


def _counted(share: float) -> float:
    """Return a share rounded down to Ray's resource resolution of 1/10,000."""
    return float(np.floor(share / HOST_CPUS) * HOST_CPUS)


def _reserve(num_hosts: int, cpus: float, on_gpus: bool = False) -> PlacementGroup:
    """Reserve the CPUs of hosts, spread over the nodes in proportion to their free CPUs.

    The hosts themselves hold next to no CPU. If a node is lost, its part of the reservation waits for another node,
    possibly forever, while its hosts are restarted on the remaining nodes. GPUs are held by the hosts, since Ray
    assigns each actor its GPU that way; hosts of a lost GPU wait until another GPU has capacity.

    Raises:
        EngineError: If the CPUs are not free in time.
    """
    held = {"CPU": max(HOST_CPUS, _counted(RESERVED_SHARE * min(1.0, cpus / num_hosts)))}
    if on_gpus:  # the least, so that each lies on a node that has one
        held["GPU"] = HOST_CPUS
    reservation: PlacementGroup = placement_group([held] * num_hosts, strategy="SPREAD")
    if not reservation.wait(START_SECONDS):
        remove_placement_group(reservation)
        raise EngineError(
            f"the CPUs of {num_hosts} hosts must be free within {START_SECONDS:.0f} s; the cluster has "
            f"{cpus:g} CPUs, of which {ray.available_resources().get('CPU', 0.0):g} are free"
        )
    return reservation


def _first_facts(actors: Sequence[Any]) -> calls.FederationFacts:
    """Wait until all hosts respond, and return the facts of the federation."""
    references = [actor.facts.remote() for actor in actors]
    ready, waiting = ray.wait(references, num_returns=len(references), timeout=START_SECONDS)
    if waiting:
        raise EngineError(f"{len(references)} hosts must start within {START_SECONDS:.0f} s, {len(ready)} did")
    try:
        facts: calls.FederationFacts = ray.get(references[0])
    except RayError as error:
        raise EngineError(lost_host(error)) from error
    return facts


def lost_host(error: RayError) -> str:
    """Return a one-line description of why a host was lost."""
    return f"a host was lost: {next(iter(str(error).strip().splitlines()), type(error).__name__)}"


Send = Callable[[Any], Sequence[Any]]
"""Sends a part of a call, given the reference of the previous parts' answer, or None; returns references."""


@dataclass
class RayCall:
    """References to the return values of a call, or of the part of it that was sent last.

    Attributes:
        results: Reference to the joint results of the clients.
        host: Index of the host that performs the call.
        stored: References to separately stored objects by kind, in the order in which clients finish.
        send: Sends the call again and returns all of its references, results last; None if Ray repeats the call.
        repeats_left: Remaining number of repetitions.
        group: Reference to the answers of a group of calls with one sum; None if the call is answered alone.
        place: Index of this call's answer within the group.
        further: Remaining parts to send, in order.
    """

    results: Any
    host: int
    stored: Mapping[calls.Part, Sequence[Any]] = field(default_factory=dict)
    send: Callable[[], Sequence[Any]] | None = None
    repeats_left: int = RESTARTS
    group: Any = None
    place: int = 0
    further: Sequence[Send] = ()
    _num_finished: int = field(default=0, init=False)

    @classmethod
    def sent(cls, sends: Sequence[Send], host: int, apart: Sequence[calls.Part]) -> RayCall:
        """Send a call, or its first part, that is repeated by this class instead of Ray.

        Args:
            sends: Sends the parts, in order.
            host: Index of the host.
            apart: Kinds of separately stored objects.
        """
        call = cls(None, host, dict.fromkeys(apart, ()), further=sends)
        call._send_next(None)
        return call

    def _send_next(self, before: Any) -> None:
        next_send, *self.further = self.further
        self.send = partial(next_send, before)
        self._take(self.send())

    def _take(self, references: Sequence[Any]) -> None:
        *stored, self.results = references
        self.stored = {
            part: [*finished[: self._num_finished], *stored[n :: len(self.stored)]]
            for n, (part, finished) in enumerate(self.stored.items())
        }

    def go_on(self) -> Iterator[calls.TrainResults]:
        """Yield the results of the finished part with references to its states, then send the next part.

        Raises:
            RayError: If the part failed.
        """
        parts = _several(ray.get(self.results))
        self._num_finished = sum(len(part.slots) for part in parts)
        self._refer_to_states(parts)
        yield from parts
        self._send_next(self.results)

    @property
    def reference(self) -> Any:
        """Reference to the answer, which may be shared by a group of calls."""
        return self.results if self.group is None else self.group

    @property
    def references(self) -> list[Any]:
        """References to all objects that are fetched."""
        return [self.reference, *self.stored.get("vectors", ()), *self.stored.get("auxiliary", ())]

    def sent_again(self) -> bool:
        """Send the call again if its host died during it, or with an answer of it; return whether it was sent."""
        if self.send is None or not self.repeats_left:
            return False
        answers = [each[self._num_finished :] for part, each in self.stored.items() if part != "states"]
        try:
            ray.get([self.results, *chain.from_iterable(answers)], timeout=0)
        except (RayActorError, NodeDiedError, OutOfMemoryError, ObjectLostError) as error:
            if hasattr(error, "cause"):  # a task's error: what it was sent is lost
                return False
            self._take(self.send())
            self.repeats_left -= 1
            return True
        except RayError:
            return False  # it is still on its way, or failed in another manner
        return False

    def parts(self, fetched: Mapping[Any, Any]) -> Iterator[Any]:
        """Yield the clients' results with their large vectors and references to their large states.

        A call with a time limit may have several results.

        Args:
            fetched: Values by reference, for all calls.
        """
        answer = fetched[self.reference]
        results = _several(answer if self.group is None else answer[self.place])
        references = self._refer_to_states(results)
        for part in results:
            if "vectors" in references:
                part.vectors = [fetched[references["vectors"][client]] for client in part.clients]
            if "auxiliary" in references:
                rows = [fetched[references["auxiliary"][client]] for client in part.clients]
                part.auxiliary = {name: [vectors[name] for vectors in rows] for name in (rows[0] if rows else ())}
            yield part

    def _refer_to_states(self, several: Sequence[calls.TrainResults]) -> dict[calls.Part, dict[int, Any]]:
        """Add references to large states to the results; return those to all separately stored objects, by client."""
        finished = [client for part in several for client in part.slots] if self.stored else []
        references = {part: dict(zip(finished, objects, strict=False)) for part, objects in self.stored.items()}
        for results in several if "states" in references else ():
            results.states |= {client: StateReference(references["states"][client]) for client in results.large}
        return references


def _several(answer: Answer) -> list[calls.TrainResults]:
    return answer if isinstance(answer, list) else [answer]


def gathered(
    handles: Sequence[RayCall], timeout: float | None, note: Callable[[calls.TrainResults], None] = lambda _: None
) -> list[Any] | None:
    """Return the results of calls, in order, or None if they are not all done within `timeout` seconds.

    Args:
        handles: The calls; parts that were not sent yet are sent while waiting.
        timeout: In seconds; None waits without a limit.
        note: Called with the results of each finished part, including its states, before the next part is sent.

    Raises:
        LostStatesError: If an object was lost that can't be recomputed.
        EngineError: If a host was lost permanently.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    while True:
        remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
        try:
            if unfinished := {call.results: call for call in handles if call.further}:
                done, _ = ray.wait([*unfinished], timeout=remaining)
                for results in done:
                    for part in unfinished[results].go_on():
                        note(part)
                if not done:
                    return None
                continue
            references = [
                *dict.fromkeys(ref for call in handles for ref in call.references)
            ]  # a group's is fetched once
            fetched = dict(zip(references, ray.get(references, timeout=remaining), strict=True))
        except GetTimeoutError:
            return None
        except RayError as error:
            if any(call.group is not None for call in handles):
                for call in handles:
                    call.group = None
            elif not sum(call.sent_again() for call in handles):
                raise lost(error) from error
        else:
            return [part for call in handles for part in call.parts(fetched)]


def lost(error: RayError) -> EngineError:
    """Return the exception for a Ray error. The loss of an object may be the cause of a task's failure."""
    is_object = isinstance(getattr(error, "cause", None) or error, ObjectLostError)
    return (LostStatesError if is_object else EngineError)(lost_host(error))


INLINE_BYTES = 2**19
"""Larger models are put into the object store once a job instead of travelling with each call; so are smaller ones if
all calls together would carry more than `INLINE_TOTAL_BYTES`."""

INLINE_TOTAL_BYTES = 2**23

SUM_BYTES = 8
"""Bytes of a parameter in an exact sum."""

LARGE_STATE_BYTES = calls.LARGE_VECTOR_BYTES
"""From here on a client's state stays in the object store, an object a client, which is freed when it is replaced."""

STATES_BYTES_TOGETHER = 2**28
"""Of the clients of a host that are trained by one call, at least one."""


class RayGrid(HostGrid[RayCall]):
    """A grid over running hosts. Cheap to create: every trial has its own, over shared hosts.

    Args:
        hosts: From `start_hosts`.
        session: Settings that are fixed for the trial.
        merge_on_hosts: See `HostGrid`.
    """

    def __init__(self, hosts: RayHosts, session: calls.Session | None = None, merge_on_hosts: bool = True) -> None:
        super().__init__(hosts.facts, len(hosts.actors), session=session, merge_on_hosts=merge_on_hosts)
        self._hosts = hosts
        self._sent: tuple[FloatArray, Any] | None = None
        keeps_states = self.session.algorithm is not None or not self.facts.holds_rows
        self._large_states = keeps_states and 4 * self.facts.layout.size >= LARGE_STATE_BYTES

    def initial_vectors(self, seeds: Sequence[int]) -> list[FloatArray]:
        """Return the initial models of some seeds, in order; hosts create them in parallel."""
        hosts = itertools.cycle(self._hosts.actors)
        try:
            vectors: list[FloatArray] = ray.get([next(hosts).initial_vector.remote(seed) for seed in seeds])
        except RayError as error:
            raise EngineError(lost_host(error)) from error
        return vectors

    def state_values(self) -> dict[int, ClientState]:
        """Return the client states by value; large arrays are views of the object store."""
        stored = {c: state.reference for c, state in self.client_states.items() if isinstance(state, StateReference)}
        try:
            values = ray.get(list(stored.values()))
        except RayError as error:
            raise lost(error) from error
        return {**self.client_states, **dict(zip(stored, values, strict=True))}

    def close(self) -> None:
        """Cancel pending calls and release the objects in the object store."""
        super().close()
        self._sent = None
        for client in [c for c, state in self.client_states.items() if isinstance(state, StateReference)]:
            del self.client_states[client]

    def _start(self, host: int, method: str, call: calls.HostCall) -> RayCall:
        reference = None
        if call.vector is not None and call.vector.nbytes > min(INLINE_BYTES, INLINE_TOTAL_BYTES // self._num_hosts):
            if self._sent is None or self._sent[0] is not call.vector:
                self._sent = (call.vector, ray.put(call.vector))
            reference = self._sent[1]
            call = replace(call, vector=None)
        actor, stored = self._hosts.actors[host], self._state_references(call.states)
        if stored:
            call = replace(call, states={c: state for c, state in call.states.items() if c not in stored})
        separate = self._apart(call) if method == "train" and call.clients else ()
        if not separate:
            attached = [tuple(stored), *stored.values()] if stored else []
            return RayCall(actor.perform.remote(method, call, reference, *attached), host)
        sends: list[Send] = []
        for part in self._in_parts(call) if "states" in separate else [call]:
            train = actor.train_apart.options(num_returns=1 + len(separate) * len(part.clients), max_task_retries=0)
            states = {client: stored[client] for client in {*part.clients, *part.evaluated} & stored.keys()}
            arguments = (LARGE_STATE_BYTES, separate, part, reference, tuple(states), tuple(states.values()))
            sends.append(partial(_send, train, arguments))
        return RayCall.sent(sends, host, separate)

    def _in_parts(self, call: calls.HostCall) -> list[calls.HostCall]:
        """Split a train call into parts of few enough clients that their states fit into memory together."""
        size = max(1, STATES_BYTES_TOGETHER // (4 * self.facts.layout.size))
        first, *others = (call.clients[start : start + size] for start in range(0, len(call.clients), size))
        watched = None if call.watched is None else replace(call.watched, measured=())
        rest = (replace(call, clients=some, evaluated=(), call_id=self._call_id(), watched=watched) for some in others)
        return [replace(call, clients=first), *rest]

    def _apart(self, call: calls.HostCall) -> tuple[calls.Part, ...]:
        """Return the kinds of training results that are large and thus stored as one object per client."""
        sends_large = call.config[REPLY_KEY] != "merged" and 4 * self.facts.layout.size >= calls.LARGE_VECTOR_BYTES
        algorithm = call.session.algorithm
        has_auxiliary = sends_large and algorithm is not None and bool(algorithm.auxiliary)
        wanted: dict[calls.Part, bool] = {
            "vectors": sends_large,
            "auxiliary": has_auxiliary,
            "states": self._large_states,
        }
        return tuple(part for part, is_wanted in wanted.items() if is_wanted)

    def _launch(self, job: Job[RayCall], clients: Collection[int]) -> None:
        super()._launch(job, clients)
        if job.message_type == MessageType.TRAIN and job.merged and self._merge_on_hosts:
            self._add_in_groups(job.handles)

    def _add_in_groups(self, handles: Sequence[RayCall]) -> None:
        """Let the first host of each group add up the sums of the group's hosts."""
        if any(call.further for call in handles):
            return
        size = group_size(len(handles), self._hosts.num_nodes, SUM_BYTES * self.facts.layout.size)
        for start in range(0, len(handles) if size > 1 else 0, size):
            members = handles[start : start + size]
            group = self._hosts.actors[members[0].host].with_one_sum.remote(*(call.results for call in members))
            for place, call in enumerate(members):
                call.group, call.place = group, place

    def _state_references(self, states: Mapping[int, Any]) -> dict[int, Any]:
        """Return references to large states by client.

        A large state that is held by value, as after a resume, is put into the object store.
        """
        references = {}
        for client, value in states.items():
            state = value
            if not isinstance(value, StateReference) and calls.state_bytes(value) >= LARGE_STATE_BYTES:
                state = self.client_states[client] = StateReference(ray.put(value))
                self._large_states = True
            if isinstance(state, StateReference):
                references[client] = state.reference
        return references

    def _gather(self, handles: Sequence[RayCall], timeout: float | None) -> list[Any] | None:
        return gathered(handles, timeout, lambda part: keep(self.client_states, part.states))

    def _give_up(self, handles: Sequence[RayCall]) -> None:
        for call in handles:
            ray.cancel(call.results)


def _send(train: Any, part: tuple[Any, ...], before: Any) -> Sequence[Any]:
    """Send a part of a training with the answer of the previous parts; return the references to its results."""
    *arguments, owners, states = part
    references: Sequence[Any] = train.remote(*arguments, before, owners, *states)
    return references


MOST_HOSTS = 8
"""On one GPU: each has a context of its own, of some hundred megabytes."""

MOST_TRIED = 256
"""Clients of a round that is tried: each of their kernels is an event of the profiler's."""

MEMORY_SHARE = 0.8
"""Of a GPU's memory, for all hosts together."""


def hosts_that_fit(busy_share: float, host_bytes: int, gpu_bytes: int, cpus_each: float) -> int:
    """Return how many hosts should share a GPU, given what a single one uses; at least one.

    Args:
        busy_share: Share of the time in which kernels run, in `[0, 1]`.
        host_bytes: GPU memory used by the host.
        gpu_bytes: Total GPU memory.
        cpus_each: CPUs available per GPU.
    """
    wanted = round(1 / max(busy_share, 1 / MOST_HOSTS))
    fitting = int(MEMORY_SHARE * gpu_bytes // max(1, host_bytes))
    return max(1, min(wanted, fitting, int(cpus_each)))


def measured_use(
    federation: Federation, queries: QueryTable, device: HostDevice, session: calls.Session
) -> tuple[float, int, int]:
    """Train one epoch on one host with a sample of the clients, and return the first arguments of `hosts_that_fit`.

    A CPU core always counts as busy.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    from fedscout.engine.client.host import ClientHost

    host = ClientHost(federation, queries, device)
    seen = [client for client in range(federation.num_clients) if client not in federation.unseen]
    clients = seen[:: max(1, -(-len(seen) // MOST_TRIED))]
    timed_round(host, session, clients)
    if not device.on_gpu:
        return 1.0, 1, 1
    with profile(activities=[ProfilerActivity.CUDA]) as events:
        seconds = timed_round(host, session, clients).seconds
    busy = 1e-6 * sum(event.self_device_time_total for event in events.key_averages())
    free, total = torch.cuda.mem_get_info()
    return min(1.0, busy / seconds), total - free, total


def hosts_on_gpus(
    federation: Federation, queries: QueryTable, device: HostDevice, session: calls.Session, cpus_each: float
) -> int:
    """Return how many hosts should share each GPU of the connected cluster.

    Args:
        federation: The federation to train on.
        queries: Table of the queries that clients answer.
        device: Device of the hosts.
        session: Session of the training.
        cpus_each: CPUs per GPU.
    """
    trial: Any = ray.remote(max_calls=1)(measured_use)  # its process ends with it, and lets go of the GPU
    task = trial.options(num_cpus=HOST_CPUS, num_gpus=1.0 if device.on_gpu else 0.0)
    busy_share, host_bytes, gpu_bytes = ray.get(task.remote(federation, queries, device, session))
    return hosts_that_fit(busy_share, host_bytes, gpu_bytes, cpus_each)
