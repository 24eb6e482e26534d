"""Flower's `Grid` over hosts, without the transport to a host, which two subclasses implement.

    push_messages     group messages of one content into a job (`grouped`), request scores of received models
                      (`ReceivedScores`), send one call per host with its clients' states
    pull, send …      gather the hosts' results, store client states, create reply messages (`replies`)

Replies are created from the results sorted by client, so nothing depends on the number of hosts.

Assignment of clients to hosts: each client stays with one host in all rounds, because hosts cache how clients split
their rows. The largest clients are assigned one by one to the least loaded host. With very many clients, the remaining
ones, each negligible relative to the load already assigned, are assigned to the hosts in turn.

Client states: a state, or a reference to it, is sent with a call and returned with the answer.

Traffic: `take_bytes` counts the values that a federation over a network would exchange by train messages
(`fedscout.engine.messages.keys`): down to each client that receives a message, up from each client that answers. The
vectors of every client are counted, although replies may be summed on hosts. Scalars, such as the numbers of rows and
steps, and the transport's overhead are not counted. A selection policy may let clients receive the model only to
measure it, which is counted, and withhold tensors, which are not.
"""

from __future__ import annotations

import heapq
import itertools
import time
import uuid
from abc import abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
from flwr.app import ArrayRecord, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedscout.engine.arrays import FloatArray, IntArray
from fedscout.engine.contracts.algorithm import ClientState
from fedscout.engine.contracts.client_table import FAR_KEY
from fedscout.engine.data.client import Arrays
from fedscout.engine.errors import TrialError
from fedscout.engine.grid import replies
from fedscout.engine.grid.selection import ClientReports, scored_clients
from fedscout.engine.grid.watchdog import IdlePolls
from fedscout.engine.messages.calls import FederationFacts, HostCall, ServerWork, Session, TrainResults
from fedscout.engine.messages.contents import client_of, flat_vector, give_id, models_of, node_of, unread_entries
from fedscout.engine.messages.keys import BYTES_A_VALUE, REPLY_KEY, ROUND_KEY, SEED_KEY, OwnValue, is_own, num_shared

Shards = Mapping[int, tuple[int, ...]]
"""Clients by the host that serves them, both ascending."""

ONE_BY_ONE = 16_384
"""Number of the largest clients that are weighed individually."""


def balance(client_rows: IntArray, num_hosts: int) -> IntArray:
    """Assign clients to hosts, the largest first, each to the least loaded host; ties go to the lower index.

    Args:
        client_rows: Rows of each client, shape `(num_clients,)`.
        num_hosts: Number of hosts; 0 counts as 1.

    Returns:
        The host of each client, shape `(num_clients,)`.
    """
    order = np.argsort(-client_rows, kind="stable")
    host_of = np.zeros(len(order), np.int64)
    loads = [(0, host) for host in range(max(1, num_hosts))]
    largest = order[:ONE_BY_ONE]
    for client, rows in zip(largest.tolist(), client_rows[largest].tolist(), strict=True):
        load, host = loads[0]
        host_of[client] = host
        heapq.heapreplace(loads, (load + rows + 1, host))
    rest = order[ONE_BY_ONE:]
    host_of[rest] = np.resize([host for _, host in sorted(loads)], len(rest))
    return host_of


def shard(clients: Iterable[int], host_of: IntArray) -> Shards:
    """Group clients by host."""
    members = np.array(sorted(clients), np.int64)
    hosts = host_of[members]
    return {int(host): tuple(members[hosts == host].tolist()) for host in np.unique(hosts)}


@dataclass(frozen=True)
class StateReference:
    """Reference to a state that stays where its host stored it.

    Attributes:
        reference: Reference to an object in Ray's object store; it keeps the state alive.
    """

    reference: Any


KeptState = ClientState | StateReference


def keep(states: MutableMapping[int, KeptState], answered: Mapping[int, KeptState]) -> None:
    """Store the new client states; an empty state removes the previous one."""
    for client, state in answered.items():
        if state:
            states[client] = state
        else:
            states.pop(client, None)


def bytes_down(job: replies.Job[Any], shared: int) -> int:
    """Return the bytes of a job's train messages; `shared` is the number of model values that are sent."""
    auxiliary = sum(vector.size for vector in job.auxiliary.values())
    return len(job.messages) * (shared + auxiliary) * BYTES_A_VALUE


def bytes_up(results: Sequence[TrainResults], shared: int) -> int:
    """Return the bytes of the clients' answers; `shared` is the number of model values that are sent."""
    auxiliary = 0  # values of one client's auxiliary vectors; where sums are together, one result knows
    for result in results:
        summed = sum(total.size for total in result.auxiliary_totals.values())
        auxiliary = max(auxiliary, summed + sum(len(rows[0]) for rows in result.auxiliary.values() if len(rows)))
    values = sum(len(result.clients) * (shared + auxiliary) - result.num_withheld for result in results)
    return values * BYTES_A_VALUE


INPUT_BYTES_TOGETHER = 2**26
"""Bytes of the inputs of one call of server work, which has at least one input."""


class HostGrid(Grid, Generic[replies.Handle]):
    """A Flower grid whose nodes are the clients of one federation.

    Args:
        facts: Facts of the federation.
        num_hosts: Number of hosts over which the clients are distributed.
        session: Settings that are fixed for the trial.
        merge_on_hosts: Whether a merged reply is summed on the hosts (fast) or from individual replies in the
            driver. The bits are the same; the second is for debugging and for the test of that claim.

    Attributes:
        server_round: Round of messages that do not specify one.
        client_states: Client states, by value or as a `StateReference`.
        unread_entries: Names of message entries that no client reads.
        memory_notes: How hosts reacted to running out of device memory.
        first_trained: Number of clients that the first training was sent to; None before it.
        counts_rounds: Whether each sending of train messages begins a round, for a strategy that drives its own.
        reports: A selection policy's requests for this round's training, and the results.
        scores: Scores of the models that are sent out for training, and which trainings carry their scoring.
        reported_sums: Names of sums that clients reported in addition to models, rows, steps and losses.
        far_clients: Each client's report of whether it is far from every cell of the settings table, 0 or 1.
    """

    def __init__(
        self, facts: FederationFacts, num_hosts: int, session: Session | None = None, merge_on_hosts: bool = True
    ) -> None:
        self.session = session or Session()
        self.server_round = 0
        self.client_states: dict[int, Any] = {}
        self.unread_entries: dict[str, None] = {}
        self.memory_notes: dict[str, None] = {}
        self.first_trained: int | None = None
        self.counts_rounds = False
        self.reports = ClientReports()
        self.reported_sums: dict[str, None] = {}
        self.far_clients: dict[int, float] = {}
        self._merge_on_hosts = merge_on_hosts
        self._take_facts(facts, num_hosts)
        self.scores = replies.ReceivedScores(self.session.seed)
        self._personal = self.session.algorithm is not None and self.session.algorithm.personal
        self._states_version = 0
        self._polls = IdlePolls()
        self._message_ids = itertools.count(1)
        self._jobs: dict[str, replies.Job[replies.Handle]] = {}
        self._train_failures: dict[str, str] = {}
        self._compute_seconds = 0.0
        self._bytes = {"down": 0, "up": 0}
        self._durations: dict[int, float] = {}
        self._num_shared = num_shared(facts.layout, self.session.algorithm)
        self._run = Run.create_empty(run_id=1)

    def _take_facts(self, facts: FederationFacts, num_hosts: int) -> None:
        """Assign the clients of a federation to hosts."""
        self.facts = facts
        self._num_hosts = num_hosts
        self._host_of = balance(facts.client_rows, num_hosts)
        self._every_shard: Shards | None = None  # of all clients, made when it is needed
        scored = scored_clients(facts, self.session)
        self._scorers = None if scored is None else frozenset(scored.tolist())
        self._node_ids: tuple[int, ...] | None = None  # kept, as a million of them take long to make
        self._replies = replies.TrainReplies(facts, self.session.needs, self.session.algorithm)

    # -- how hosts are reached ---------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self, host: int, method: str, call: HostCall) -> replies.Handle:
        """Send one call to one host."""

    @abstractmethod
    def _gather(self, handles: Sequence[replies.Handle], timeout: float | None) -> list[Any] | None:
        """Return the results of calls, in order, or None if they are not all done within `timeout` seconds.

        Raises:
            EngineError: If a host was lost permanently.
        """

    def _give_up(self, handles: Sequence[replies.Handle]) -> None:
        """Cancel calls whose results are no longer needed, if possible."""
        del handles

    @abstractmethod
    def initial_vectors(self, seeds: Sequence[int]) -> list[FloatArray]:
        """Return the initial models of some seeds, in order, each of shape `(params,)`."""

    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""
        (vector,) = self.initial_vectors([seed])
        return vector

    # -- Flower's interface ------------------------------------------------------------------------------------------

    def set_run(self, run: Run) -> None:
        """Set the run that messages belong to."""
        self._run = run

    @property
    def run(self) -> Run:
        """The run that messages belong to."""
        return self._run

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """Create a message; the same as `flwr.app.Message`."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of all participating clients, ascending.

        Raises:
            TrialError: If the strategy waits for more nodes than exist.
        """
        self._polls.count(self.facts.num_seen)
        if self._node_ids is None:
            nodes, unseen = range(node_of(0), node_of(self.facts.num_clients)), self.facts.unseen
            self._node_ids = tuple(node for node in nodes if client_of(node) not in unseen) if unseen else tuple(nodes)
        return self._node_ids

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Start the work of messages and return their ids, in order."""
        self._polls.sent()
        messages = list(messages)
        ids = [str(next(self._message_ids)) for _ in messages]
        for message, message_id in zip(messages, ids, strict=True):
            give_id(message, message_id)
        groups = replies.grouped(messages, self.facts.num_clients, self.facts.unseen)
        if trained := [group for message_type, group in groups if message_type == MessageType.TRAIN]:
            self.server_round += self.counts_rounds
            if self.first_trained is None:
                self.first_trained = len(set().union(*trained))
        for message_type, group in groups:
            job = self._begin(message_type, group)
            self._jobs |= dict.fromkeys((message.metadata.message_id for message in group.values()), job)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to messages whose work is done; each reply is returned once."""
        return self._collect(list(message_ids), timeout=0.0)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for their replies, sorted by client.

        Args:
            messages: To any clients, of any types.
            timeout: In seconds; unfinished work is left out of the replies. None waits without a limit.
        """
        return self._collect(list(self.push_messages(messages)), timeout)

    # -- beyond Flower's interface -----------------------------------------------------------------------------------

    def evaluate_all(self, arrays: ArrayRecord, timeout: float | None = None) -> replies.Evaluation:
        """Score a model on all scoring clients, without messages; this is the trial's own evaluation.

        A later evaluation of the same arrays reuses this result, except for a record of several models, where each
        client is scored under its own.

        Raises:
            TrialError: If it takes longer than `timeout` seconds.
        """
        self.scores.ask(None)
        models = self.models(arrays)
        ((vector, _), *others) = models
        if not others and (known := self.scores.known(vector, self._states_version, self.session.seed)) is not None:
            return known
        config, handles, version = replies.base_config(self.session, self.server_round), [], self._states_version
        for model, clients in models:
            job: replies.Job[replies.Handle] = replies.Job(MessageType.EVALUATE, {}, config, model)
            scorers: Collection[int] = clients
            if self._scorers is not None:
                scorers = self._scorers.intersection(clients) if others else self._scorers
            self._launch(job, scorers)
            handles += job.handles
        results = self._gather(handles, timeout)
        if results is None:
            self._give_up(handles)
            raise TrialError(f"the evaluation did not finish within the remaining {timeout:.1f} s")
        self._count_seconds(results)
        evaluation = replies.fold_evaluation(results, self.facts.unseen, self.session.metric)
        return evaluation if others else self.scores.keep(vector, version, evaluation)

    def serve(self, work: ServerWork, arrays: Arrays) -> Arrays:
        """Run server-side work on one host, a different one in each round, since trials share the hosts.

        Raises:
            TrialError: If it fails, or exceeds the time limit of a host's part of a round.
        """
        (outputs,) = self.serve_each(work, [arrays])
        return outputs

    def serve_each(self, work: ServerWork, inputs: Sequence[Arrays]) -> Iterator[Arrays]:
        """Run server-side work on each of several inputs, and yield the results in order.

        Every host has one call at a time, with some of the inputs; it is sent the next after the result was fetched.

        Raises:
            TrialError: If it fails for an input, or a call exceeds the time limit of a host's part of a round.
        """
        call = HostCall(
            clients=(),
            session=self.session,
            config=replies.base_config(self.session, self.server_round),
            work=OwnValue.of(work) if is_own(work) else work,
        )
        largest = max((sum(array.nbytes for array in arrays.values()) for arrays in inputs), default=0)
        block_size = max(1, min(-(-len(inputs) // self._num_hosts), INPUT_BYTES_TOGETHER // max(1, largest)))
        hosts = itertools.cycle(range(self._num_hosts))
        pending: deque[replies.Handle] = deque()
        try:
            for start in range(0, len(inputs), block_size):
                if len(pending) == self._num_hosts:
                    yield from self._served(pending.popleft())
                part = replace(call, inputs=(*inputs[start : start + block_size],), call_id=self._call_id())
                pending.append(self._start((self.server_round + next(hosts)) % self._num_hosts, "serve", part))
            while pending:
                yield from self._served(pending.popleft())
        finally:
            self._give_up(pending)

    def _served(self, handle: replies.Handle) -> Sequence[Arrays]:
        """Wait for a call of server-side work and return its outputs.

        Raises:
            TrialError: See `serve_each`.
        """
        results = self._gather([handle], None)
        if not results:
            limit = self.session.round_timeout_seconds
            raise TrialError(f"round {self.server_round}: the server's work did not finish within {limit or 0:g} s")
        self._count_seconds(results)
        (result,) = results
        if result.failure is not None:
            raise TrialError(f"round {self.server_round}: {result.failure}")
        outputs: Sequence[Arrays] = result.outputs
        return outputs

    def measure(self, arrays: ArrayRecord) -> None:
        """Let the clients that only measure do so before the training, each with its own one of several models.

        A single model is instead measured in the round trip that sends it out for training.

        Raises:
            TrialError: If it exceeds the time limit of a host's part of a round.
        """
        config, handles = replies.base_config(self.session, self.server_round), []
        to_measure = {*self.reports.to_measure()}
        for model, clients in self.models(arrays):
            for host, members in self._measuring({*clients} & to_measure).items():
                watched = self.reports.request_for((), members)
                call = HostCall((), self.session, config, model, call_id=self._call_id(), watched=watched)
                handles.append(self._start(host, "train", call))
        results = self._gather(handles, None)
        assert results is not None, "no limit was given"
        self.reports.add(results)
        self._count_durations(results)
        self._count_seconds(results)

    def take_train_failures(self) -> dict[str, str]:
        """Return the reasons of clients' failures in training since the last call, by `round:client`."""
        failures, self._train_failures = self._train_failures, {}
        return failures

    def take_compute_seconds(self) -> float:
        """Return the hosts' compute time since the last call."""
        seconds, self._compute_seconds = self._compute_seconds, 0.0
        return seconds

    def take_bytes(self) -> dict[str, int]:
        """Return the bytes of train messages since the last call, over all clients, `down` and `up`."""
        num_bytes, self._bytes = self._bytes, {"down": 0, "up": 0}
        return num_bytes

    def take_durations(self) -> dict[int, float]:
        """Return the simulated seconds of each client's train messages since the last call.

        Includes clients that did not answer; the durations of several messages to a client are summed. Empty if the
        federation has no devices.
        """
        durations, self._durations = self._durations, {}
        return durations

    def state_values(self) -> dict[int, ClientState]:
        """Return the client states by value.

        Raises:
            LostStatesError: If some of them were lost.
        """
        return self.client_states

    def flat_vector(self, arrays: ArrayRecord) -> FloatArray:
        """Return the flat vector of a flat or named record.

        Raises:
            ValueError: If the names or shapes do not match the model's.
        """
        return flat_vector(arrays, self.facts.layout)

    def models(self, arrays: ArrayRecord) -> list[tuple[FloatArray, Sequence[int]]]:
        """Return each model of a record as a flat vector, and the clients that use it.

        Raises:
            ValueError: If the models do not match this federation.
        """
        return models_of(arrays, self.facts.layout, self.facts.num_clients)

    def close(self) -> None:
        """Cancel pending calls."""
        for job in {id(job): job for job in self._jobs.values() if job.replies is None}.values():
            self._give_up(job.handles)
        self._jobs.clear()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _begin(self, message_type: str, messages: dict[int, Message]) -> replies.Job[replies.Handle]:
        """Start the work of one job, unless its answer is already known."""
        if message_type != MessageType.QUERY:
            content = next(iter(messages.values())).content
            self.unread_entries |= dict.fromkeys(unread_entries(content, self.session.algorithm))
        job: replies.Job[replies.Handle] = replies.read_job(
            message_type, messages, self.session, self.server_round, self.facts.layout
        )
        if job.vector is not None:
            seed = job.config[SEED_KEY]
            if message_type == MessageType.EVALUATE:
                if self._scorers is None or messages.keys() <= self._scorers:
                    job.evaluation = self.scores.known(job.vector, self._states_version, seed)
                if job.evaluation is not None:
                    return job
            else:
                job.scores_received = self.scores.carried(job.vector, seed)
                self._bytes["down"] += bytes_down(job, self._num_shared)
        self._launch(job, messages)
        return job

    def _launch(self, job: replies.Job[replies.Handle], clients: Collection[int]) -> None:
        """Send the calls of a job, one per host."""
        config, trains = job.config, job.message_type == MessageType.TRAIN
        job.states_version = self._states_version
        if trains and not self._merge_on_hosts:
            config = {**config, REPLY_KEY: "individual"}
        shards = self._shards(clients)
        evaluated: Shards = {}
        if job.scores_received:
            evaluated = self._shards(range(self.facts.num_clients) if self._scorers is None else self._scorers)
        measured = self._measuring(self.reports.to_measure()) if trains else {}
        for host in sorted({*shards, *evaluated, *measured}):
            members = shards.get(host, ())
            call = HostCall(
                clients=members,
                session=self.session,
                config=config,
                vector=job.vector,
                arrays=job.arrays,
                states=self._states_for(job.message_type, members, evaluated.get(host, ())),
                auxiliary=job.auxiliary,
                evaluated=evaluated.get(host, ()),
                call_id=self._call_id(),
                watched=self.reports.request_for(members, measured.get(host, ())) if trains else None,
            )
            job.handles.append(self._start(host, job.message_type, call))

    def _measuring(self, clients: Collection[int]) -> Shards:
        """Return the clients that measure a model without training, by host, and count the bytes of sending it."""
        self._bytes["down"] += len(clients) * self._num_shared * BYTES_A_VALUE
        return self._shards(clients)

    def _shards(self, clients: Collection[int]) -> Shards:
        """Group some clients by host."""
        if len(clients) < len(self._host_of):
            return shard(clients, self._host_of)
        if self._every_shard is None:
            self._every_shard = shard(range(len(self._host_of)), self._host_of)
        return self._every_shard

    def _call_id(self) -> str:
        return "" if self.session.round_timeout_seconds is None else uuid.uuid4().hex

    def _states_for(self, kind: str, members: Iterable[int], evaluated: Iterable[int]) -> dict[int, ClientState]:
        """Return the states of those clients whose answer depends on them."""
        states, stateful = self.client_states, {*members, *evaluated} if self._personal else members
        if not states or (kind != MessageType.TRAIN and not self._personal):
            return {}
        return {client: states[client] for client in stateful if client in states}

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _collect(self, message_ids: list[str], timeout: float | None) -> list[Message]:
        """Return the replies of finished jobs, sorted by client."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for job in {id(self._jobs[m]): self._jobs[m] for m in message_ids if m in self._jobs}.values():
            remaining = None if deadline is None else max(0.0, deadline - time.monotonic())
            results = self._gather(job.handles, remaining) if job.replies is None else None
            if results is not None:
                job.handles.clear()  # and with them what was sent, ahead of other jobs' results
                self._count_seconds(results)
                job.replies = {reply.metadata.reply_to_message_id: reply for reply in self._reply(job, results)}
        received: list[Message] = []
        for message_id in message_ids:
            answered = self._jobs.get(message_id)
            if answered is not None and answered.replies is not None:
                del self._jobs[message_id]
                if message_id in answered.replies:
                    received.append(answered.replies.pop(message_id))
        return sorted(received, key=lambda reply: reply.metadata.src_node_id)

    def _reply(self, job: replies.Job[replies.Handle], results: list[Any]) -> list[Message]:
        """Process the results of a job and return the replies to its messages."""
        if job.message_type == MessageType.TRAIN:
            assert job.vector is not None
            for result in results:
                keep(self.client_states, result.states)
                self.reported_sums |= dict.fromkeys(result.sums)
                if result.memory_note:
                    self.memory_notes[result.memory_note] = None
                self.far_clients |= zip(result.clients, result.sums.get(FAR_KEY, ()), strict=False)
            self._count_durations(results)
            self._states_version += self._personal
            self._bytes["up"] += bytes_up(results, self._num_shared)
            self.reports.add(results)
            if job.scores_received:
                evaluations = [result.evaluation for result in results if result.evaluation is not None]
                if evaluations:
                    scores = replies.fold_evaluation(evaluations, self.facts.unseen, self.session.metric)
                    self.scores.keep(job.vector, job.states_version, scores)
                else:  # all replies were lost; the caller learns that there are none
                    self.scores.ask(job.vector)
            contents, failures = self._replies.train(job, results)
            for client in sorted(failures):
                self._train_failures[f"{job.config[ROUND_KEY]}:{client}"] = failures[client]
        elif job.message_type == MessageType.QUERY:
            contents, failures = replies.query_contents(results)
        else:
            evaluation = job.evaluation or replies.fold_evaluation(results)
            contents, failures = replies.evaluate_contents(job.messages, evaluation, self.session.client_table is None)
        answers = replies.reply_messages(job, contents, failures)
        for reply in answers:
            give_id(reply, str(next(self._message_ids)))
        return answers

    def _count_durations(self, results: Sequence[TrainResults]) -> None:
        for result in results if self.facts.devices else ():  # who hangs is waited for, whether there is a clock or not
            for client, seconds in result.durations.items():
                self._durations[client] = self._durations.get(client, 0.0) + seconds

    def _count_seconds(self, results: Sequence[Any]) -> None:
        self._compute_seconds += sum(result.seconds for result in results)
