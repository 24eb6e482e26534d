"""The grid over host actors on Ray: actors, calls, placement of data, and shares of GPUs.

The grid over `ClientHost` actors on Ray: one laptop or a cluster, by where the actors are.

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

A call to a host actor: what comes back, and sending it again where Ray does not.

Ray repeats a call whose host died, and keeps for that whatever was put into the object store for a call as long as
something that it returned is referred to. Of a call whose clients' states stay in the store that would be every round's
model. So Ray is told not to repeat those, and they are repeated here.

Where a group of hosts adds its sums before they come here, and that fails, each host's answer is fetched by itself.

A training whose states take much room is sent part by part: the next clients' once those before are done, whose old
states nobody refers to any more. Each part is told what came before and adds it to its answer.

Hosts as Ray actors: started with the federation placed once, watched, replaced, ended.

`ClientHost` as a Ray actor.

How many hosts share a GPU: as many as keep it busy and fit into its memory, found by one round of training.

A host alone leaves a GPU idle while it prepares the next kernel. What share of the time kernels run tells how many
hosts have a use for it.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import repeat
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
from fedscout.engine.grid.replies import Job, tried_round
from fedscout.engine.grid.watchdog import perform_watched
from fedscout.engine.messages.calls import (
    LARGE_VECTOR_BYTES,
    FederationFacts,
    HostCall,
    Part,
    Session,
    TrainResults,
    state_bytes,
)
from fedscout.engine.messages.exact_mean import Answer, added_to, group_size, with_one_sum
from fedscout.engine.messages.keys import REPLY_KEY
from fedscout.engine.runtime.ray import HeadNotes


class HostActor:
    """A `ClientHost` in a process of its own, whose model may come through the object store instead of with the call.

    Args:
        federation: A list of one reference. Inside a list it is fetched here, when the actor is started or restarted,
            and stays alive as long as the caller keeps it.
        queries: The aggregates that clients are willing to give.
        device: Where they train.
    """

    def __init__(self, federation: list[Any], queries: QueryTable, device: HostDevice = CPU) -> None:
        from fedscout.engine.client.host import ClientHost  # torch, which who makes a handle does without

        self._host = ClientHost(ray.get(federation[0]), queries, device)

    def facts(self) -> FederationFacts:
        """Return what the driver must know."""
        return self._host.facts()

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        return self._host.initial_vector(seed)

    def perform(
        self, method: str, call: HostCall, vector: FloatArray | None, owners: Sequence[int] = (), *states: ClientState
    ) -> Any:
        """Do one call.

        Args:
            method: `train`, `evaluate` or `query`.
            call: What is asked.
            vector: Stands in for the call's own where that is None.
            owners: Clients whose states come beside the call.
            states: Theirs.
        """
        call = _completed(call, vector, owners, states)
        if call.session.round_timeout_seconds is None:
            return self._perform(method, call)
        return perform_watched(self._perform, method, call, HeadNotes())

    def train_apart(
        self,
        large_bytes: int,
        parts: Sequence[Part],
        call: HostCall,
        vector: FloatArray | None,
        before: Answer | None,
        owners: Sequence[int],
        *states: ClientState,
    ) -> Iterator[Any]:
        """Train, and yield for each client what of it lies beside the results, as soon as it is trained, then these.

        Each is an object of its own, which Ray stores before the next is asked for, so that this process has but one
        block of clients' models. Results say whose they were; for clients that have not trained there is None, and so
        for a state that is not large and comes with the results.

        Args:
            large_bytes: From which a state is large.
            parts: What lies beside the results; of each client in this order.
            call: As for `perform`, like all others.
            vector: The model.
            before: The answer to other clients' part of the same call, which these results are added to.
            owners: Whose states these are.
            states: What they kept.
        """
        if "states" in parts:
            gc.collect()  # cycles of the part before may hold its clients' old states
        call = _completed(call, vector, owners, states)
        done: Any
        if call.session.round_timeout_seconds is None:
            done = yield from self._host.training(call, parts, large_bytes)
        else:  # the watchdog ends this process, or sees the end of the work
            taken: list[Any] = []

            def perform(method: str, part: HostCall) -> Any:
                if method != "train":
                    return self._perform(method, part)
                lying, results = self._host.train_apart(part, parts, large_bytes)
                taken.extend(lying)
                return results

            done = perform_watched(perform, "train", call, HeadNotes())
            yield from taken
        num_missing = len(call.clients) - sum(len(part.slots) for part in (done if isinstance(done, list) else [done]))
        yield from repeat(None, len(parts) * num_missing)
        yield done if before is None else added_to(before, done)

    def _perform(self, method: str, call: HostCall) -> Any:
        return getattr(self._host, method)(call)

    def with_one_sum(self, *answers: Answer) -> list[Answer]:
        """Return answers of several hosts, of which one holds the sum of all."""
        return with_one_sum(answers)

    def process_id(self) -> int:
        """Return the operating system's id of this host's process."""
        return os.getpid()


def _completed(
    call: HostCall, vector: FloatArray | None, owners: Sequence[int], states: Sequence[ClientState]
) -> HostCall:
    """Return a call with what came beside it."""
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
        actors: One handle a host.
        facts: Of the federation they serve.
        federation: Reference that keeps the data in the object store, from which a lost host is rebuilt.
        reservation: Placement group that holds their CPUs, if there is one.
        num_nodes: Over how many nodes they were spread.
    """

    actors: tuple[Any, ...]
    facts: FederationFacts
    federation: Any
    reservation: PlacementGroup | None = None
    num_nodes: int = 1

    def stop(self) -> None:
        """End the hosts, and let their CPUs go."""
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
        federation: Placed in the object store once.
        queries: The aggregates that clients are willing to give.
        num_hosts: How many; more than CPUs is allowed and slower.
        meanwhile: Done while they start.
        device: On which they train.
        gpu_share: Of a GPU, for each.

    Raises:
        EngineError: If they are not up in time, as when other work holds the cluster's CPUs.
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
    """Return a share as Ray counts it, in ten thousandths, rounded down."""
    return float(np.floor(share / HOST_CPUS) * HOST_CPUS)


def _reserve(num_hosts: int, cpus: float, on_gpus: bool = False) -> PlacementGroup:
    """Hold the CPUs of hosts, spread over the nodes in proportion to what is free there.

    The hosts themselves hold next to none. If a node is lost, its part of the reservation waits for another node, maybe
    for ever; its hosts do not, and are restarted on the nodes that are left. A GPU is held by its hosts, as that is how
    Ray tells each which one is its own; hosts of a lost one wait until another has room.

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
            f"the CPUs of {num_hosts} hosts must be free within {START_SECONDS:.0f} s; of the cluster's {cpus:g} "
            f"{ray.available_resources().get('CPU', 0.0):g} are"
        )
    return reservation


def _first_facts(actors: Sequence[Any]) -> FederationFacts:
    """Wait until all hosts answer."""
    asked = [actor.facts.remote() for actor in actors]
    ready, waiting = ray.wait(asked, num_returns=len(asked), timeout=START_SECONDS)
    if waiting:
        raise EngineError(f"{len(asked)} hosts must be up within {START_SECONDS:.0f} s, {len(ready)} were")
    try:
        facts: FederationFacts = ray.get(asked[0])
    except RayError as error:
        raise EngineError(lost_host(error)) from error
    return facts


def lost_host(error: RayError) -> str:
    """Return why a host is lost, in a line."""
    return f"a host was lost: {next(iter(str(error).strip().splitlines()), type(error).__name__)}"


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


MOST_HOSTS = 8
"""On one GPU: each has a context of its own, of some hundred megabytes."""

TASK_CPUS = 0.0001
"""The least that Ray counts."""

MOST_TRIED = 256
"""Clients of a round that is tried: each of their kernels is an event of the profiler's."""

MEMORY_SHARE = 0.8
"""Of a GPU's memory, for all hosts together."""


@dataclass(frozen=True)
class GpuUse:
    """What one host alone makes of a GPU.

    Attributes:
        busy_share: Of the time, that kernels run, in `[0, 1]`.
        host_bytes: Memory that the host takes.
        gpu_bytes: Memory that there is.
    """

    busy_share: float
    host_bytes: int
    gpu_bytes: int

    def num_hosts(self, cpus_each: float) -> int:
        """Return how many hosts a GPU is for, with so many CPUs beside it; at least one."""
        wanted = round(1 / max(self.busy_share, 1 / MOST_HOSTS))
        fitting = int(MEMORY_SHARE * self.gpu_bytes // max(1, self.host_bytes))
        return max(1, min(wanted, fitting, int(cpus_each)))


def measured_use(federation: Federation, queries: QueryTable, device: HostDevice, session: Session) -> GpuUse:
    """Train one epoch with one host of some clients, and return what it made of its device; a core is always busy."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from fedscout.engine.client.host import ClientHost

    host = ClientHost(federation, queries, device)
    seen = [client for client in range(federation.num_clients) if client not in federation.unseen]
    clients = seen[:: max(1, -(-len(seen) // MOST_TRIED))]
    tried_round(host, session, clients)
    if not device.on_gpu:
        return GpuUse(1.0, 1, 1)
    with profile(activities=[ProfilerActivity.CUDA]) as events:
        seconds = tried_round(host, session, clients).seconds
    busy = 1e-6 * sum(event.self_device_time_total for event in events.key_averages())
    free, total = torch.cuda.mem_get_info()
    return GpuUse(min(1.0, busy / seconds), total - free, total)


def hosts_on_gpus(
    federation: Federation, queries: QueryTable, device: HostDevice, session: Session, cpus_each: float
) -> int:
    """Return how many hosts a GPU of the connected cluster is for.

    Args:
        federation: Whose clients train.
        queries: The aggregates that clients are willing to give.
        device: Of hosts.
        session: Of the training that is to come.
        cpus_each: CPUs for each GPU.
    """
    trial: Any = ray.remote(max_calls=1)(measured_use)  # its process ends with it, and lets go of the GPU
    task = trial.options(num_cpus=TASK_CPUS, num_gpus=1.0 if device.on_gpu else 0.0)
    use: GpuUse = ray.get(task.remote(federation, queries, device, session))
    return use.num_hosts(cpus_each)
