"""Flower's `Grid` over hosts. How a host is reached is left to two subclasses.

    push_messages     messages of one content are a job (`jobs`); what it needs scored on the way (`received_scores`);
                      one call a host (`host_shards`) with its clients' states (`client_states`)
    pull, send …      the hosts' results, states kept, clients that hang (`watchdog`), reply messages (`replies`)

Replies are made from the results sorted by client, so nothing depends on the number of hosts.

Which host serves which client.

The same one in every round, as hosts keep how clients split their rows. The largest clients go one by one to the least
loaded host. Of a great many the rest, each next to nothing beside what is dealt already, go to the hosts in turn.

What clients keep between rounds: it, or a reference to it, goes out with a call and comes back with the answer.

What train messages carry between a server and its clients, as a federation over a network would send it.

Counted are the values that travel (`fedscout.engine.messages.keys`): down to each client that is asked, up
from each that answered. That replies are summed on the hosts here changes nothing: each client's vectors are counted.
Scalars, such as the numbers of rows and steps, and what a transport adds are not counted either. A
selection policy may have clients receive the model that only measure it, which counts, and withhold tensors, which do
not.
"""

from __future__ import annotations

import heapq
import itertools
import time
import uuid
from abc import abstractmethod
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from fedscout.engine.grid.replies import (
    Evaluation,
    Handle,
    Job,
    ReceivedScores,
    TrainReplies,
    base_config,
    evaluate_contents,
    fold_evaluation,
    grouped,
    query_contents,
    read_job,
    reply_messages,
)
from fedscout.engine.grid.selection import ClientReports, scored_clients
from fedscout.engine.grid.watchdog import IdlePolls, refuse_hanging
from fedscout.engine.messages.calls import FederationFacts, HostCall, ServerWork, Session, TrainResults
from fedscout.engine.messages.contents import client_of, flat_vector, give_id, models_of, node_of, round_in, unread
from fedscout.engine.messages.keys import BYTES_A_VALUE, REPLY_KEY, ROUND_KEY, SEED_KEY, OwnValue, is_own, num_shared

Shards = Mapping[int, tuple[int, ...]]
"""Clients by the host that serves them, both ascending."""

ONE_BY_ONE = 16_384
"""So many of the largest clients are weighed each."""


def balance(client_rows: IntArray, num_hosts: int) -> IntArray:
    """Assign clients to hosts, the largest first, each to the least loaded host; ties go to the lower index.

    Args:
        client_rows: Rows of each client, shape `(num_clients,)`.
        num_hosts: Hosts; none counts as one.

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


class HostShards:
    """The clients of a federation over its hosts.

    Args:
        client_rows: Rows of each client.
        num_hosts: Hosts.
    """

    def __init__(self, client_rows: IntArray, num_hosts: int) -> None:
        self._host_of = balance(client_rows, num_hosts)

    @cached_property
    def every(self) -> Shards:
        """All clients."""
        return shard(range(len(self._host_of)), self._host_of)

    def of(self, clients: Collection[int]) -> Shards:
        """Group some clients."""
        return self.every if len(clients) == len(self._host_of) else shard(clients, self._host_of)


@dataclass(frozen=True)
class StateReference:
    """Stands for a state that stays where its host put it.

    Attributes:
        reference: Of Ray's object store; who holds it keeps the state.
    """

    reference: Any


KeptState = ClientState | StateReference


def states_of(clients: Iterable[int], states: Mapping[int, KeptState]) -> dict[int, Any]:
    """Return the states of those clients that have one."""
    return {client: states[client] for client in clients if client in states} if states else {}


def keep(states: MutableMapping[int, KeptState], answered: Mapping[int, KeptState]) -> None:
    """Take over what clients keep from now on; an empty state forgets the one before."""
    for client, state in answered.items():
        if state:
            states[client] = state
        else:
            states.pop(client, None)


def bytes_down(job: Job[Any], shared: int) -> int:
    """Return the bytes of a job's train messages, of models of which so many values travel."""
    companions = sum(vector.size for vector in job.companions.values())
    return len(job.messages) * (shared + companions) * BYTES_A_VALUE


def bytes_up(results: Sequence[TrainResults], shared: int) -> int:
    """Return the bytes of the clients' answers."""
    companions = max(map(_num_companion_values, results), default=0)  # where sums are together, one result knows
    values = sum(len(one.clients) * (shared + companions) - one.num_withheld for one in results)
    return values * BYTES_A_VALUE


def _num_companion_values(result: TrainResults) -> int:
    """Return the values of one client's companions."""
    summed = [total.size for total in result.companion_totals.values()]
    return sum(summed) + sum(len(rows[0]) for rows in result.companions.values() if len(rows))


INPUT_BYTES_TOGETHER = 2**26
"""Of what one call has work of the server's done on, at least one input."""


class HostGrid(Grid, Generic[Handle]):
    """A Flower grid whose nodes are the clients of one federation.

    Args:
        facts: Of the federation.
        num_hosts: Over how many hosts the clients are spread.
        session: What the trial fixes.
        merge_on_hosts: Whether a merged reply is summed on the hosts (fast) or from individual replies in the
            driver. The bits are the same; the second is for debugging and for the test of that claim.

    Attributes:
        server_round: Which messages that say none are of.
        client_states: What clients keep, or a `StateReference` to it.
        unread: What messages held that no client reads, by name.
        memory_notes: What hosts did as their devices' memory ran out.
        first_trained: How many clients the first training was sent to; None before it.
        most_trainings: Train messages that one client was sent at once, the most so far.
        reports: What a selection policy wants of this round's training, and what it told.
        told_sums: What clients reported beside models, rows, steps and losses, by name.
        far_clients: What each said of whether it lies far from every cell of their table, 0 or 1.
        clips_for_clients: Whether what strategies have clients clip is clipped here, ahead of the reply.
    """

    clips_for_clients = True

    def __init__(
        self, facts: FederationFacts, num_hosts: int, session: Session | None = None, merge_on_hosts: bool = True
    ) -> None:
        self.session = session or Session()
        self.server_round = 0
        self.client_states: dict[int, Any] = {}
        self.unread: dict[str, None] = {}
        self.memory_notes: dict[str, None] = {}
        self.first_trained: int | None = None
        self.most_trainings = 0
        self.reports = ClientReports()
        self.told_sums: dict[str, None] = {}
        self.far_clients: dict[int, float] = {}
        self._merge_on_hosts = merge_on_hosts
        self._take_facts(facts, num_hosts)
        self._scores = ReceivedScores(self.session.seed)
        self._personal = self.session.algorithm is not None and self.session.algorithm.personal
        self._states_version = 0
        self._polls = IdlePolls()
        self._message_ids = itertools.count(1)
        self._jobs: dict[str, Job[Handle]] = {}
        self._train_failures: dict[str, str] = {}
        self._compute_seconds = 0.0
        self._bytes = {"down": 0, "up": 0}
        self._durations: dict[int, float] = {}
        self._num_shared = num_shared(facts.layout, self.session.algorithm)
        self._run = Run.create_empty(run_id=1)

    def _take_facts(self, facts: FederationFacts, num_hosts: int) -> None:
        """Spread the clients of a federation over hosts."""
        self.facts = facts
        self._num_hosts = num_hosts
        self._host_shards = HostShards(facts.client_rows, num_hosts)
        scored = scored_clients(facts, self.session)
        self._scorers = None if scored is None else frozenset(scored.tolist())
        self._node_ids: tuple[int, ...] | None = None  # kept, as a million of them take long to make
        needs = self.session.needs
        self._replies = TrainReplies(facts, needs.weighted_by, self.session.algorithm, needs.durations)

    # -- how hosts are reached ---------------------------------------------------------------------------------------

    @abstractmethod
    def _start(self, host: int, method: str, call: HostCall) -> Handle:
        """Send one call to one host."""

    @abstractmethod
    def _gather(self, handles: Sequence[Handle], timeout: float | None) -> list[Any] | None:
        """Return the results of calls, in order, or None if they are not all done within `timeout` seconds.

        Raises:
            EngineError: If a host was lost for good.
        """

    def _give_up(self, handles: Sequence[Handle]) -> None:
        """Take back calls whose results nobody waits for any more, as far as that is possible."""
        del handles

    @abstractmethod
    def initial_vector(self, seed: int) -> FloatArray:
        """Return the initial model of a seed, shape `(params,)`."""

    def initial_vectors(self, seeds: Sequence[int]) -> list[FloatArray]:
        """Return the initial models of some seeds, in order."""
        return [self.initial_vector(seed) for seed in seeds]

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
        """Make a message; the same as `flwr.app.Message`."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> Iterable[int]:
        """Return the node ids of all clients that take part, ascending.

        Raises:
            TrialError: If the strategy waits for more nodes than there are.
        """
        self._polls.asked(self.facts.num_seen)
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
        groups = grouped(messages, self.facts.num_clients, self.facts.unseen)
        if trained := [group for message_type, group in groups if message_type == MessageType.TRAIN]:
            self._count_training(trained)
        for message_type, group in groups:
            job = self._begin(message_type, group)
            self._jobs |= dict.fromkeys((message.metadata.message_id for message in group.values()), job)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Return the replies to those messages whose work is done; each reply is handed over once."""
        return self._collect(list(message_ids), timeout=0.0)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Send messages and wait for their replies, sorted by client.

        Args:
            messages: To any clients, of any types.
            timeout: Seconds; work not done by then is left out of the replies. None waits.
        """
        return self._collect(list(self.push_messages(messages)), timeout)

    # -- beyond Flower's interface -----------------------------------------------------------------------------------

    def evaluate_all(self, arrays: ArrayRecord, timeout: float | None = None) -> Evaluation:
        """Score a model on every client that scores, without messages: the trial's own evaluation.

        Whoever evaluates the same arrays afterwards is answered from this result; but not that of several models, of
        which each client is scored under its own.

        Raises:
            TrialError: If it takes longer than `timeout` seconds.
        """
        self._scores.ask(None)
        models = self.models(arrays)
        ((vector, _), *further) = models
        if not further and (known := self._scores.known(vector, self._states_version, self.session.seed)) is not None:
            return known
        config, handles, version = base_config(self.session, self.server_round), [], self._states_version
        for model, clients in models:
            job: Job[Handle] = Job(MessageType.EVALUATE, {}, config, model)
            self._launch(job, self._of_those_that_score(clients))
            handles += job.handles
        results = self._gather(handles, timeout)
        if results is None:
            self._give_up(handles)
            raise TrialError(f"the evaluation was not done within the {timeout:.1f} s that were left")
        self._count_seconds(results)
        evaluation = fold_evaluation(results, self.facts.unseen, self.session.metric)
        return evaluation if further else self._scores.keep(vector, version, evaluation)

    def serve(self, work: ServerWork, arrays: Arrays) -> Arrays:
        """Have work on the server's rows done by a host, another one each round, as trials share them.

        Raises:
            TrialError: If it fails, or takes longer than a part of a round may.
        """
        (done,) = self.serve_each(work, [arrays])
        return done

    def serve_each(self, work: ServerWork, inputs: Sequence[Arrays]) -> Iterator[Arrays]:
        """Have it done on each of some inputs, and yield what that gives, in order.

        Every host has one call at a time, with some of them, and is sent the next when that is fetched.

        Raises:
            TrialError: If it fails for one, or a call takes longer than a part of a round may.
        """
        call = HostCall(
            clients=(),
            session=self.session,
            config=base_config(self.session, self.server_round),
            work=OwnValue.of(work) if is_own(work) else work,
        )
        largest = max((sum(array.nbytes for array in arrays.values()) for arrays in inputs), default=0)
        together = max(1, min(-(-len(inputs) // self._num_hosts), INPUT_BYTES_TOGETHER // max(1, largest)))
        hosts = itertools.cycle(range(self._num_hosts))
        waited_for: deque[Handle] = deque()
        try:
            for start in range(0, len(inputs), together):
                if len(waited_for) == self._num_hosts:
                    yield from self._served(waited_for.popleft())
                part = replace(call, inputs=(*inputs[start : start + together],), call_id=self._call_id())
                waited_for.append(self._start((self.server_round + next(hosts)) % self._num_hosts, "serve", part))
            while waited_for:
                yield from self._served(waited_for.popleft())
        finally:
            self._give_up(waited_for)

    def _served(self, handle: Handle) -> Sequence[Arrays]:
        """Wait for a call of server's work and return what it gave.

        Raises:
            TrialError: See `serve_each`.
        """
        results = self._gather([handle], None)
        if not results:
            limit = self.session.round_timeout_seconds
            raise TrialError(f"round {self.server_round}: the server's work was not done within {limit or 0:g} s")
        self._count_seconds(results)
        (result,) = results
        if result.failure is not None:
            raise TrialError(f"round {self.server_round}: {result.failure}")
        outputs: Sequence[Arrays] = result.outputs
        return outputs

    def measure(self, arrays: ArrayRecord) -> None:
        """Have those who are to measure without training do so ahead of it, each under its own of several models.

        Of one model they do it on the round trip that sends it out for training.

        Raises:
            TrialError: If that takes longer than a part of a round may.
        """
        config, handles = base_config(self.session, self.server_round), []
        to_measure = {*self.reports.to_measure()}
        for model, clients in self.models(arrays):
            for host, members in self._measuring({*clients} & to_measure).items():
                watched = self.reports.wanted_of((), members)
                call = HostCall((), self.session, config, model, call_id=self._call_id(), watched=watched)
                handles.append(self._start(host, "measure", call))
        results = self._gather(handles, None)
        assert results is not None, "no limit was given"
        self.reports.add(results)
        self._count_durations(results)
        self._count_seconds(results)

    def evaluate_with_next_training(self, arrays: ArrayRecord) -> None:
        """Have a model scored by every client at the next train message that sends it."""
        self._scores.ask(self.flat_vector(arrays))

    def take_evaluation(self) -> Evaluation | None:
        """Return what `evaluate_with_next_training` asked for; None if no train message sent that model."""
        return self._scores.take()

    def follow_trainings(self) -> None:
        """Have every model that is sent out for training scored, and count rounds by sendings.

        For a strategy whose rounds nobody else counts: see `received_scores`.
        """
        self._scores.followed = True

    @property
    def trainings(self) -> int:
        """Sendings of train messages so far."""
        return self._scores.trainings

    @property
    def told_rounds(self) -> list[int | None]:
        """Which round each of them says it is of."""
        return self._scores.told_rounds

    @property
    def received_scores(self) -> dict[int, Evaluation]:
        """If followed, each client's score of the model that the n-th training sent out, by n."""
        return self._scores.by_training

    def take_train_failures(self) -> dict[str, str]:
        """Return the reasons of clients that failed in training since this was last asked, by `round:client`."""
        failures, self._train_failures = self._train_failures, {}
        return failures

    def take_compute_seconds(self) -> float:
        """Return the hosts' compute time since this was last asked."""
        seconds, self._compute_seconds = self._compute_seconds, 0.0
        return seconds

    def take_bytes(self) -> dict[str, int]:
        """Return what train messages carried since this was last asked, over all clients: bytes `down` and `up`."""
        carried, self._bytes = self._bytes, {"down": 0, "up": 0}
        return carried

    def take_durations(self) -> dict[int, float]:
        """Return the simulated seconds that train messages took each client since this was last asked.

        So for all that were asked, also those that did not answer; a client that was asked several times took as long
        as these together. Empty where no client's rounds take any.
        """
        durations, self._durations = self._durations, {}
        return durations

    def state_values(self) -> dict[int, ClientState]:
        """Return what clients keep, by value.

        Raises:
            LostStatesError: If some of it was lost.
        """
        return self.client_states

    def flat_vector(self, arrays: ArrayRecord) -> FloatArray:
        """Return the flat vector of a flat or named record.

        Raises:
            ValueError: If the names or shapes are not the model's.
        """
        return flat_vector(arrays, self.facts.layout)

    def models(self, arrays: ArrayRecord) -> list[tuple[FloatArray, Sequence[int]]]:
        """Return each model of a record as a flat vector, and the clients that use it.

        Raises:
            ValueError: If these are not this federation's models.
        """
        return models_of(arrays, self.facts.layout, self.facts.num_clients)

    def close(self) -> None:
        """Take back what is still on its way; nobody will ask for it."""
        for job in {id(job): job for job in self._jobs.values() if job.replies is None}.values():
            self._give_up(job.handles)
        self._jobs.clear()

    # -- sending -----------------------------------------------------------------------------------------------------

    def _count_training(self, groups: Sequence[Mapping[int, Message]]) -> None:
        """Count one sending of train messages, those of each content together."""
        self._scores.count(len(groups), round_in(next(iter(groups[0].values())).content))
        if self._scores.followed:
            self.server_round = self._scores.trainings
        num_clients = len(set().union(*groups))
        if self.first_trained is None:
            self.first_trained = num_clients
        if num_clients < sum(map(len, groups)):
            self.most_trainings = max(self.most_trainings, *Counter(itertools.chain(*groups)).values())

    def _begin(self, message_type: str, messages: dict[int, Message]) -> Job[Handle]:
        """Start the work of one job, as far as its answer is not known."""
        if message_type != MessageType.QUERY:
            self.unread |= dict.fromkeys(unread(next(iter(messages.values())).content, self.session.algorithm))
        job: Job[Handle] = read_job(message_type, messages, self.session, self.server_round, self.facts.layout)
        if job.vector is not None:
            seed = job.config[SEED_KEY]
            if message_type == MessageType.EVALUATE:
                if self._scorers is None or messages.keys() <= self._scorers:
                    job.evaluation = self._scores.known(job.vector, self._states_version, seed)
                if job.evaluation is not None:
                    return job
            else:
                job.training = self._scores.number(seed)
                job.scores_received = self._scores.carried(job.vector, self._states_version, seed)
                self._bytes["down"] += bytes_down(job, self._num_shared)
        self._launch(job, messages)
        return job

    def _launch(self, job: Job[Handle], clients: Collection[int]) -> None:
        """Send a job's calls, one a host."""
        config, trains = job.config, job.message_type == MessageType.TRAIN
        job.states_version = self._states_version
        if trains and not self._merge_on_hosts:
            config = {**config, REPLY_KEY: "individual"}
        shards = self._host_shards.of(clients)
        evaluated = self._scoring() if job.scores_received else {}
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
                companions=job.companions,
                evaluated=evaluated.get(host, ()),
                call_id=self._call_id(),
                watched=self.reports.wanted_of(members, measured.get(host, ())) if trains else None,
            )
            job.handles.append(self._start(host, job.message_type, call))

    def _scoring(self) -> Shards:
        """Return by host who scores models."""
        return self._host_shards.every if self._scorers is None else self._host_shards.of(self._scorers)

    def _of_those_that_score(self, clients: Sequence[int]) -> Collection[int]:
        """Return those of a model's clients that score it."""
        if self._scorers is None:
            return clients
        return self._scorers if len(clients) == self.facts.num_clients else self._scorers.intersection(clients)

    def _measuring(self, clients: Collection[int]) -> Shards:
        """Return by host who measures a model without training, and count that each is sent one."""
        self._bytes["down"] += len(clients) * self._num_shared * BYTES_A_VALUE
        return self._host_shards.of(clients)

    def _call_id(self) -> str:
        return "" if self.session.round_timeout_seconds is None else uuid.uuid4().hex

    def _states_for(
        self, message_type: str, members: Iterable[int], evaluated: Iterable[int]
    ) -> dict[int, ClientState]:
        """Return what clients kept, of those whose answer depends on it."""
        if self._personal:
            return states_of({*members, *evaluated}, self.client_states)
        return states_of(members, self.client_states) if message_type == MessageType.TRAIN else {}

    # -- receiving ---------------------------------------------------------------------------------------------------

    def _collect(self, message_ids: list[str], timeout: float | None) -> list[Message]:
        """Gather the replies of finished jobs, in the order of the clients."""
        deadline = None if timeout is None else time.monotonic() + timeout
        for job in {id(self._jobs[m]): self._jobs[m] for m in message_ids if m in self._jobs}.values():
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            results = self._gather(job.handles, left) if job.replies is None else None
            if results is not None:
                job.handles.clear()  # and with them what was sent, ahead of other jobs' results
                self._count_seconds(results)
                job.replies = {reply.metadata.reply_to_message_id: reply for reply in self._reply(job, results)}
        replies: list[Message] = []
        for message_id in message_ids:
            job_of = self._jobs.get(message_id)
            if job_of is not None and job_of.replies is not None:
                del self._jobs[message_id]
                if message_id in job_of.replies:
                    replies.append(job_of.replies.pop(message_id))
        return sorted(replies, key=lambda reply: reply.metadata.src_node_id)

    def _reply(self, job: Job[Handle], results: list[Any]) -> list[Message]:
        """Take in the results of a job and return the replies to its messages."""
        if job.message_type == MessageType.TRAIN:
            assert job.vector is not None
            for result in results:
                keep(self.client_states, result.states)
                self.told_sums |= dict.fromkeys(result.sums)
                if result.memory_note:
                    self.memory_notes[result.memory_note] = None
                self.far_clients |= zip(result.clients, result.sums.get(FAR_KEY, ()), strict=False)
            self._count_durations(results)
            self._states_version += self._personal
            self._bytes["up"] += bytes_up(results, self._num_shared)
            self.reports.add(results)
            if self.session.hanging_clients == "fail":
                refuse_hanging(results, self.server_round)
            if job.scores_received:
                scored = [result.evaluation for result in results if result.evaluation is not None]
                if scored:
                    scores = fold_evaluation(scored, self.facts.unseen, self.session.metric)
                    self._scores.keep(job.vector, job.states_version, scores, job.training)
                else:  # all were lost on the way; whoever asked is told that there are none
                    self._scores.ask(job.vector)
            contents, failures = self._replies.train(job, results)
            for client in sorted(failures):
                self._train_failures[f"{job.config[ROUND_KEY]}:{client}"] = failures[client]
        elif job.message_type == MessageType.QUERY:
            contents, failures = query_contents(results)
        else:
            evaluation = job.evaluation or fold_evaluation(results)
            contents, failures = evaluate_contents(job.messages, evaluation, self.session.client_table is None)
        replies = reply_messages(job, contents, failures, self.clips_for_clients)
        for reply in replies:
            give_id(reply, str(next(self._message_ids)))
        return replies

    def _count_durations(self, results: Sequence[TrainResults]) -> None:
        for result in results if self.facts.devices else ():  # who hangs is waited for, whether there is a clock or not
            for client, seconds in result.durations.items():
                self._durations[client] = self._durations.get(client, 0.0) + seconds

    def _count_seconds(self, results: Sequence[Any]) -> None:
        self._compute_seconds += sum(result.seconds for result in results)
