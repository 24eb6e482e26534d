"""The driver's side of masked sums: who takes part, what is passed on, and the sum, which is all that it can read.

A sum that was prepared by the one before takes two exchanges, if it is of the clients that added to that; any other
takes four (`sum_calls`). Who does not answer, or answers what does not fit, has dropped out. Where too few are left the
sum is lost, and nothing of it can be read.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Message, MessageType

from fedscout.engine.contracts.client_algorithm import ClientState
from fedscout.engine.errors import TrialError
from fedscout.engine.nodes.masked_sums import PublicHalf, least_threshold, unmasked_sum
from fedscout.engine.nodes.node_call import ACTION, Greeting, NodeCall, Wire, one_line
from fedscout.engine.nodes.node_exchange import Exchange
from fedscout.engine.nodes.node_grid import LATER_SECONDS
from fedscout.engine.nodes.node_roster import NodeRoster
from fedscout.engine.nodes.sum_calls import (
    FEWEST,
    Adding,
    Opening,
    Sealing,
    SumAnswer,
    SumStep,
    public_half,
)
from fedscout.engine.nodes.summed_results import num_values, told_apart
from fedscout.engine.nodes.wire_values import UnsendableError


class LostSumError(Exception):
    """Too few clients were left for a sum; the text says how many."""


@dataclass(frozen=True)
class Prepared:
    """A sum to which its clients may add.

    Attributes:
        sum_id: Its own.
        public: Public halves of all whose shares were sealed, as they travel.
        sealed: Shares by receiver and sender.
        threshold: How many shares tell a secret.
    """

    sum_id: str
    public: Mapping[int, str]
    sealed: Mapping[int, Mapping[int, str]]
    threshold: int

    @property
    def cohort(self) -> dict[int, PublicHalf]:
        """The public halves."""
        return {client: public_half(text) for client, text in self.public.items()}


@dataclass(frozen=True)
class Total:
    """A sum.

    Attributes:
        values: By section.
        added: Who added something to which part, ascending.
        failures: Why others did not, by group and client.
        states: Marks of what clients keep.
    """

    values: Mapping[str, npt.NDArray[Any]]
    added: Mapping[str, tuple[int, ...]]
    failures: Mapping[str, Mapping[int, str]]
    states: Mapping[int, ClientState]


class SumExchanges:
    """Sums over the clients of a roster, one after the other.

    Args:
        roster: The clients.
        wire: Writes and reads messages.
        timeout: Seconds that a client may take to answer a step; None waits.

    Attributes:
        absent: Why clients dropped out of the last sum.
        timed_out: Those of them that did not answer in time.
        num_exchanges: So far.
    """

    def __init__(self, roster: NodeRoster, wire: Wire, timeout: float | None) -> None:
        self._roster, self._wire, self._timeout = roster, wire, timeout
        self._exchange = Exchange(roster.link)
        self._prepared: Prepared | None = None
        self.absent: dict[int, str] = {}
        self.timed_out: set[int] = set()
        self._end: float | None = None
        self.num_exchanges = 0

    def total(
        self,
        asked: Mapping[int, NodeCall | Greeting],
        groups: Mapping[str, Collection[int]],
        max_weight: int,
        num_classes: int,
        timeout: float | None = None,
    ) -> Total:
        """Return the sum of what clients are asked for.

        Args:
            asked: What each does.
            groups: Who is to add something to which part.
            max_weight: Rows of all clients.
            num_classes: Of the federation.
            timeout: Seconds for all of it; None gives each step its own limit alone.

        Raises:
            LostSumError: If too few clients are left.
            TrialError: If what they are asked can't travel.
        """
        self._end = None if timeout is None else time.monotonic() + timeout
        self.absent = {client: "is not connected" for client in asked if self._roster.node_of(client) is None}
        self.timed_out = set()
        members = asked.keys() - self.absent.keys()
        prepared, self._prepared = self._prepared, None
        if prepared is None or prepared.public.keys() != members:
            prepared = self._prepare(members)
        parts = {name: tuple(sorted({*clients} & prepared.public.keys())) for name, clients in groups.items()}
        for name, clients in parts.items():
            _check_left(len(clients), FEWEST, f"clients to add to its {name}")
        next_id, steps = uuid.uuid4().hex, {}
        for client, shares in prepared.sealed.items():
            adding = Adding(prepared.sum_id, shares, parts, asked[client], max_weight, num_classes)
            steps[client] = SumStep(client, keys_of=next_id, adds=adding)
        answers = self._ask(steps)
        arrived = self._arrived(answers)
        _check_left(len(arrived), prepared.threshold, "masked vectors")
        told = {client: answers[client] for client in arrived}
        failures = {
            name: {client: one_line(one.failures[name]) for client, one in told.items() if name in one.failures}
            for name in parts
        }
        added = {name: tuple(c for c in own if c in told and c not in failures[name]) for name, own in parts.items()}
        for name, clients in added.items():
            why = "".join(f" (client {client}: {reason})" for client, reason in [*failures[name].items()][:1])
            _check_left(len(clients), least_threshold(len(parts[name])), f"clients that added to its {name}", why)
        opened = self._opened(prepared, arrived, added, {client: one.public for client, one in told.items()}, next_id)
        try:
            total = unmasked_sum(arrived, opened, prepared.cohort, prepared.threshold)
        except TrialError as error:
            raise LostSumError(str(error)) from error
        states = {client: state for one in told.values() for client, state in one.states.items()}
        return Total(told_apart(next(iter(told.values())).sections, total), added, failures, states)

    def _prepare(self, members: Collection[int]) -> Prepared:
        """Have clients draw secrets and seal shares of them."""
        _check_left(len(members), FEWEST, "clients")
        sum_id = uuid.uuid4().hex
        answers = self._ask({client: SumStep(client, keys_of=sum_id) for client in sorted(members)})
        public = {client: answer.public for client, answer in answers.items()}
        _check_left(len(public), FEWEST, "clients")
        sealing = Sealing(sum_id, public, least_threshold(len(public)))
        answers = self._ask({client: SumStep(client, seals=sealing) for client in public})
        prepared = _sealed(sealing, answers)
        if prepared is None:
            raise LostSumError(f"{FEWEST} clients are needed for a sum, got {len(answers)}")
        return prepared

    def _arrived(self, answers: Mapping[int, SumAnswer]) -> dict[int, npt.NDArray[np.uint64]]:
        """Return the masked vectors that hold what most hold."""
        usual = Counter(answer.sections for answer in answers.values() if answer.masked is not None).most_common(1)
        arrived = {}
        for client, answer in answers.items():
            vector = answer.masked
            fits = vector is not None and bool(usual) and answer.sections == usual[0][0]
            if fits and vector is not None and vector.dtype == np.uint64 and vector.shape == (num_values(usual[0][0]),):
                arrived[client] = vector
            else:
                self.absent[client] = "its masked vector is not like those of others"
        return arrived

    def _opened(
        self,
        prepared: Prepared,
        arrived: Mapping[int, Any],
        added: Mapping[str, tuple[int, ...]],
        public: Mapping[int, str],
        next_id: str,
    ) -> dict[int, dict[int, bytes]]:
        """Return the shares that take the masks off, and have the next sum prepared by the way."""
        opening = Opening(prepared.sum_id, tuple(sorted(arrived)), added)
        sealing = Sealing(next_id, public, least_threshold(len(public))) if len(public) >= FEWEST else None
        answers = self._ask({client: SumStep(client, opens=opening, seals=sealing) for client in arrived})
        self._prepared = None if sealing is None else _sealed(sealing, answers)
        return {
            client: {member: bytes.fromhex(share) for member, share in answer.opened.items()}
            for client, answer in answers.items()
        }

    def _ask(self, steps: Mapping[int, SumStep]) -> dict[int, SumAnswer]:
        """Send steps, and return the answers of those that gave one."""
        self.num_exchanges += 1
        sent = {}
        for client, step in steps.items():
            node = self._roster.node_of(client)
            if node is not None:
                kind = MessageType.QUERY if _asks_query(step) else MessageType.TRAIN
                ttl = None if self._timeout is None else self._timeout + LATER_SECONDS
                sent[client] = self._exchange.send(Message(self._packed(step), node, f"{kind}.{ACTION}", ttl=ttl))
        left = None if self._end is None else max(0.0, self._end - time.monotonic())
        waits = [seconds for seconds in (self._timeout, left) if seconds is not None]
        self._exchange.wait(sent.values(), min(waits, default=None))
        replies = self._exchange.take(sent.values())
        self.timed_out |= {client for client, number in sent.items() if number not in replies}
        answers = {}
        for client, number in sent.items():
            try:
                answers[client] = self._answer(steps[client], replies.get(number))
            except ValueError as error:
                self.absent[client] = str(error)
        return answers

    def _packed(self, step: SumStep) -> Any:
        try:
            return self._wire.packed(step)
        except UnsendableError as error:
            raise TrialError(f"what it asks of clients can't be sent to other machines: {error}") from error

    def _answer(self, step: SumStep, reply: Message | None) -> SumAnswer:
        """Return what a client answered to a step.

        Raises:
            ValueError: If it did not, or something that can't be used.
        """
        if reply is None:
            raise ValueError(f"did not answer within {self._timeout or 0:g} s")
        if reply.has_error():
            raise ValueError(one_line(reply.error.reason or "it gave no reason"))
        answer = self._wire.opened(reply.content)
        if not isinstance(answer, SumAnswer):
            raise ValueError("it answered something else than a step of a sum")
        if step.keys_of:
            public_half(answer.public)
        for shares in (answer.sealed, answer.opened):
            if not all(isinstance(share, str) for share in shares.values()):
                raise ValueError("its shares can't be read")
        if not {*answer.states} <= {step.client}:
            raise ValueError("it told what others keep")
        return answer


def _asks_query(step: SumStep) -> bool:
    return step.adds is not None and isinstance(step.adds.asked, NodeCall) and step.adds.asked.method == "query"


def _sealed(sealing: Sealing, answers: Mapping[int, SumAnswer]) -> Prepared | None:
    """Return a sum that can be added to by those who sealed shares for all; None if they are too few."""
    whole = {
        client: answer.sealed for client, answer in answers.items() if answer.sealed.keys() == sealing.cohort.keys()
    }
    if len(whole) < max(FEWEST, sealing.threshold):
        return None
    by_receiver = {client: {sender: shares[client] for sender, shares in whole.items()} for client in whole}
    public = {client: sealing.cohort[client] for client in sorted(whole)}
    return Prepared(sealing.sum_id, public, by_receiver, sealing.threshold)


def _check_left(count: int, least: int, what: str, why: str = "") -> None:
    if count < least:
        raise LostSumError(f"{least} {what} are needed, got {count}{why}")
