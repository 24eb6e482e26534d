"""What holds for FLASH, its two rivals and FedCor alike, and what is asked of them before training."""

from __future__ import annotations

import json

import numpy as np
import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import ClientTable, Cohort, SelectionPolicy
from fedscout.engine.trials.checkpoint import PlainState
from fedscout.strategies.selection.bandits import FlashSpec
from fedscout.strategies.selection.table import parse_selection
from tests.strategies.selection.planted_rounds import NUM_CHOSEN, NUM_CLIENTS, played, report

COHORT = Cohort(NUM_CLIENTS, NUM_CHOSEN, client_learning_rate=0.1, num_rounds=30)
DOCUMENTS = {
    "flash": {"kind": "flash", "start_with_all_clients": False},
    "flash-neural": {"kind": "flash", "bandit": "neural", "start_with_all_clients": False, "credited": "previous"},
    "flash-restless": {"kind": "flash", "bandit": "restless", "start_with_all_clients": False},
    "flash-raw": {"kind": "flash", "standardised": False, "reward_rows": "validation", "start_with_all_clients": False},
    "restless": {"kind": "restless"},
    "neural": {"kind": "neural"},
    "fedcor": {"kind": "fedcor", "warm_up": 3, "refit_every": 2, "dimension": 4},
}


def built(name: str) -> SelectionPolicy:
    return parse_selection(DOCUMENTS[name], COHORT).build(COHORT)


@pytest.mark.parametrize("clock", [True, False])
@pytest.mark.parametrize("name", DOCUMENTS)
def test_as_many_clients_of_the_table_as_asked_for(name: str, clock: bool) -> None:
    rounds = 0
    for table, chosen in played(built(name), range(1, 21), clock):
        assert len({*chosen}) == NUM_CHOSEN
        assert {*chosen} <= {*table.clients.tolist()}
        rounds += 1
    assert rounds == 20


@pytest.mark.parametrize("name", DOCUMENTS)
def test_stored_and_restored_it_goes_on_alike(name: str) -> None:
    policy = built(name)
    plain = PlainState(policy)
    for _ in played(policy, range(1, 9)):
        pass
    document, arrays = plain.encode(policy)
    document, arrays = json.loads(json.dumps(document)), [array.copy() for array in arrays]
    expected = [chosen for _, chosen in played(policy, range(9, 16))]
    restored = built(name)
    PlainState(restored).restore(document, arrays)
    assert [chosen for _, chosen in played(restored, range(9, 16))] == expected
    unrestored = [chosen for _, chosen in played(built(name), range(9, 16))]
    assert unrestored != expected  # so the state matters


@pytest.mark.parametrize("document", [{"kind": "flash"}, {"kind": "flash", "bandit": "neural"}])
def test_flash_starts_from_everyone(document: dict) -> None:
    policy = parse_selection(document, COHORT).build(COHORT)
    rounds = [*played(policy, range(1, 4))]
    assert rounds[0][1] == rounds[0][0].clients.tolist()
    assert [len(chosen) for _, chosen in rounds[1:]] == [NUM_CHOSEN] * 2


LEARNT = [
    {"kind": "flash"},
    {"kind": "flash", "credited": "previous"},
    {"kind": "flash", "bandit": "neural"},
    {"kind": "flash", "bandit": "restless"},
    {"kind": "restless"},
    {"kind": "neural"},
]


@pytest.mark.parametrize("document", LEARNT, ids=str)
def test_clients_whose_losses_change_most_are_found(document: dict) -> None:
    policy = parse_selection(document, COHORT).build(COHORT)
    clients = np.arange(NUM_CLIENTS)
    spread = np.where(clients < 10, 1.0, 0.1)
    table = ClientTable(clients, np.full(NUM_CLIENTS, 10), np.random.default_rng(0).lognormal(size=NUM_CLIENTS))
    shares = []
    for server_round in range(1, 61):
        generator = np.random.default_rng(server_round)
        chosen = [int(client) for client in policy.choose(server_round, table, NUM_CHOSEN, generator)]
        shares.append(np.mean([client < 10 for client in chosen]))
        told = (4 + spread * generator.normal(size=NUM_CLIENTS)).clip(0.01)
        policy.observe(report(server_round, clients.tolist(), chosen, told.tolist(), round_seconds=1.0))
    assert np.mean(shares[20:]) > 0.8  # a random choice has 0.5, with a standard error of 0.04


def test_fedcor_is_random_in_its_warm_up_and_until_it_can_fit() -> None:
    policy = built("fedcor")
    for _ in played(policy, range(1, 4)):
        assert not policy.embeddings.any()
    (_,) = played(policy, range(4, 5))
    assert policy.embeddings.any()
    silent = built("fedcor")
    table = next(played(built("fedcor"), range(1, 2)))[0]
    for server_round in range(1, 9):
        assert len({*silent.choose(server_round, table, 4, np.random.default_rng(server_round))}) == 4
    assert not silent.embeddings.any()


def test_fedcor_anneals_who_is_chosen_until_the_next_fit() -> None:
    policy = built("fedcor")
    for _ in played(policy, range(1, 4)):
        pass
    for server_round in (4, 5, 6):
        ((_, chosen),) = played(policy, range(server_round, server_round + 1))
        if server_round != 5:  # there is a new fit
            expected = np.ones(NUM_CLIENTS)
        expected[chosen] *= 0.95
        np.testing.assert_array_equal(policy.annealing, expected)


@pytest.mark.parametrize(
    ("document", "share"),
    [
        ({"kind": "flash"}, 0.1),
        ({"kind": "flash", "contexts": ["training", "reward"]}, 0.0),
        ({"kind": "flash", "contexts": ["training"], "reward_rows": "validation"}, 0.1),
        ({"kind": "fedcor"}, 0.0),
        ({"kind": "neural"}, 0.1),
        ({"kind": "restless"}, 0.1),
    ],
)
def test_rows_are_set_aside_only_where_they_are_measured(document: dict, share: float) -> None:
    spec = parse_selection(document)
    assert spec.validation_share == share
    assert spec.build(COHORT).observes.validation_losses == (share > 0)


@pytest.mark.parametrize("left_out", ["training", "validation", "duration", "reward"])
def test_each_context_can_be_left_out(left_out: str) -> None:
    names = [name for name in ("training", "validation", "duration", "reward") if name != left_out]
    policy = parse_selection({"kind": "flash", "contexts": names}, COHORT).build(COHORT)
    assert [len(chosen) for _, chosen in played(policy, range(2, 6))] == [NUM_CHOSEN] * 4


@pytest.mark.parametrize(
    ("document", "cohort", "first", "given"),
    [
        ({"kind": "flash", "contexts": ["reward", "reward"]}, COHORT, "contexts of selection.kind=flash", None),
        ({"kind": "flash", "contexts": []}, COHORT, "contexts of selection.kind=flash", "[]"),
        ({"kind": "flash", "delta": 1}, COHORT, "delta of selection.kind=flash", "1"),
        ({"kind": "neural", "num_hidden": 5}, COHORT, "num_hidden of selection.kind=neural", "5"),
        ({"kind": "fedcor"}, Cohort(50, 10, 0.1, num_rounds=15), "warm_up of selection.kind=fedcor", "15"),
        ({"kind": "fedcor"}, Cohort(15, 5, 0.1, num_rounds=40), "dimension of selection.kind=fedcor", "15"),
        ({"kind": "flash"}, Cohort(10, 10, 0.1), "selection.kind", "training.fraction_train that selects 10 of 10"),
    ],
)
def test_faults_are_told_before_training(document: dict, cohort: Cohort, first: str, given: str | None) -> None:
    with pytest.raises(StrategyError) as caught:
        parse_selection(document, cohort)
    (fault,) = caught.value.faults
    assert fault.startswith(first)
    assert fault.given == given


def test_a_specification_is_shown_by_what_is_not_default() -> None:
    assert str(FlashSpec()) == "flash"
    assert str(FlashSpec(contexts=("reward",), bandit="neural")) == "flash(bandit=neural, contexts=['reward'])"
    assert parse_selection({"kind": "flash", **FlashSpec(contexts=("reward",)).parameters()}) == FlashSpec(
        contexts=("reward",)
    )
