"""What a client does for a sum it does once, in order, and for enough clients; whatever it is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from flwr.app import RecordDict

from fedscout.engine.nodes.masked_answers import MaskedAnswers
from fedscout.engine.nodes.masked_sums import least_threshold, unmasked_sum
from fedscout.engine.nodes.node_call import Greeting, Introduction
from fedscout.engine.nodes.owner_policy import RefusedError
from fedscout.engine.nodes.sum_calls import Adding, Opening, Sealing, SumAnswer, SumStep, public_half

ROWS = (40, 17, 26, 12)
EVERYBODY = tuple(range(len(ROWS)))
SUM = "of-rows"


def introduction(rows: int) -> Introduction:
    return Introduction("", None, rows, False, "", "")


@dataclass
class Clients:
    """Four clients whose numbers of rows are summed, as far as they have come."""

    memories: list[RecordDict] = field(default_factory=lambda: [RecordDict() for _ in ROWS])
    public: dict[int, str] = field(default_factory=dict)
    sealed: Mapping[int, Mapping[int, str]] = field(default_factory=dict)

    def step(self, client: int, **parts: Sealing | Adding | Opening | str) -> SumAnswer:
        """Have a client take a step; what it keeps lies in its memory alone, as between two processes."""
        answers = MaskedAnswers(self.memories[client], lambda _: introduction(ROWS[client]))
        return answers.answer(SumStep(client, **parts))  # type: ignore[arg-type]

    def with_keys(self) -> Clients:
        self.public = {client: self.step(client, keys_of=SUM).public for client in EVERYBODY}
        return self

    def sealing(self) -> Sealing:
        return Sealing(SUM, self.public, least_threshold(len(ROWS)))

    def with_shares(self) -> Clients:
        self.with_keys()
        sealed = {client: self.step(client, seals=self.sealing()).sealed for client in EVERYBODY}
        self.sealed = {to: {sender: shares[to] for sender, shares in sealed.items()} for to in EVERYBODY}
        return self

    def adding(self, client: int, group: tuple[int, ...] = EVERYBODY) -> Adding:
        return Adding(SUM, self.sealed[client], {"rows": group}, Greeting(), 1, 3)

    def opening(self, added: tuple[int, ...] = EVERYBODY) -> Opening:
        return Opening(SUM, added, {"rows": added})


def test_the_steps_in_their_order_give_the_sum() -> None:
    clients = Clients().with_shares()
    answers = {client: clients.step(client, adds=clients.adding(client)) for client in EVERYBODY}
    vectors = {client: answer.masked for client, answer in answers.items() if answer.masked is not None}
    opened = {client: clients.step(client, opens=clients.opening()).opened for client in EVERYBODY}
    shares = {client: {of: bytes.fromhex(share) for of, share in told.items()} for client, told in opened.items()}
    cohort = {client: public_half(text) for client, text in clients.public.items()}
    assert unmasked_sum(vectors, shares, cohort, least_threshold(len(ROWS))).tolist() == [sum(ROWS)]
    assert all(not [key for key in memory if key.startswith("sum.")] for memory in clients.memories)


def test_one_secret_masks_one_vector() -> None:
    clients = Clients().with_shares()
    clients.step(0, adds=clients.adding(0))
    with pytest.raises(RefusedError, match="the step was taken before"):
        clients.step(0, adds=clients.adding(0))


def test_a_secret_that_was_to_mask_what_failed_masks_nothing_else() -> None:
    clients = Clients().with_shares()

    def fails(_: object) -> Introduction:
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        MaskedAnswers(clients.memories[0], fails).answer(SumStep(0, adds=clients.adding(0)))
    with pytest.raises(RefusedError, match="the step was taken before"):
        clients.step(0, adds=clients.adding(0))


def test_shares_are_opened_once() -> None:
    clients = Clients().with_shares()
    clients.step(0, adds=clients.adding(0))
    clients.step(0, opens=clients.opening())
    with pytest.raises(RefusedError, match="it has no secrets for this step"):
        clients.step(0, opens=clients.opening((0, 1, 2)))


def test_shares_are_not_opened_once_it_was_asked_with_too_few() -> None:
    clients = Clients().with_shares()
    clients.step(0, adds=clients.adding(0))
    with pytest.raises(RefusedError, match="3 of 4 clients must have added to its rows, got 2"):
        clients.step(0, opens=clients.opening((0, 1)))
    with pytest.raises(RefusedError, match="it has no secrets for this step"):
        clients.step(0, opens=clients.opening())


def test_who_only_was_present_has_added_nothing() -> None:
    clients = Clients().with_shares()
    clients.step(0, adds=clients.adding(0))
    with pytest.raises(RefusedError, match="must have added to its rows, got 1"):
        clients.step(0, opens=replace(clients.opening(), added={"rows": (3,)}))


def test_steps_out_of_order_are_refused() -> None:
    clients = Clients().with_shares()
    with pytest.raises(RefusedError, match="no secrets for this step"):
        clients.step(0, opens=clients.opening())
    with pytest.raises(RefusedError, match="sealed once"):
        clients.step(0, seals=clients.sealing())
    with pytest.raises(RefusedError, match="no secrets for this step"):
        clients.step(0, adds=replace(clients.adding(0), sum_id="another"))


@pytest.mark.parametrize("group", [(0, 1), (), (0, 1, 7, 8)])
def test_nothing_is_added_where_few_do(group: tuple[int, ...]) -> None:
    clients = Clients().with_shares()
    with pytest.raises(RefusedError, match="at least 3 clients must add something"):
        clients.step(0, adds=clients.adding(0, group))


def test_no_shares_are_sealed_for_two_or_for_keys_that_are_not_its_own() -> None:
    clients = Clients().with_keys()
    two = {client: clients.public[client] for client in (0, 1)}
    with pytest.raises(RefusedError, match="at least 3 clients"):
        clients.step(0, seals=Sealing(SUM, two, 2))
    forged = {**clients.public, 0: clients.public[1]}
    with pytest.raises(RefusedError, match="must hold the keys that node 0 sent"):
        clients.step(0, seals=Sealing(SUM, forged, 3))
    with pytest.raises(RefusedError, match="public keys must be 96 bytes"):
        clients.step(0, seals=Sealing(SUM, {**clients.public, 1: "00"}, 3))


def test_secrets_of_sums_that_never_came_are_forgotten() -> None:
    clients = Clients()
    for number in range(9):
        clients.step(0, keys_of=str(number))
    assert len(clients.memories[0]) == 2


def test_what_a_client_sends_is_nothing_of_its_rows() -> None:
    clients = Clients().with_shares()
    answer = clients.step(0, adds=clients.adding(0))
    assert answer.masked is not None
    assert answer.masked.dtype == np.uint64
    assert answer.masked.tolist() != [ROWS[0]]
    assert answer.sections == clients.step(1, adds=clients.adding(1)).sections
