"""What every policy promises: who it chooses, of what it depends, and what survives a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Cohort, RoundReport, SelectionPolicy
from fedscout.engine.trials.checkpoint import PlainState
from fedscout.engine.trials.record import Trial
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, FedAvgSpec, StrategySpec, parse_strategy
from fedscout.strategies.selection.bandits import FlashSpec
from fedscout.strategies.selection.oort import PyramidFLSpec
from fedscout.strategies.selection.policies import RandomSpec, SelectionSpec
from fedscout.strategies.selection.table import parse_selection
from tests.engine.federations import normalised
from tests.kits.refusals import refused
from tests.strategies.by_hand import SIZES, host_of, result_of
from tests.strategies.selection.reports import cohort, report, table

CHOICES: list[dict[str, Any]] = [
    {"kind": "random"},
    {"kind": "oort"},
    {"kind": "oort", "pacer_rounds": 2, "unexplored_window": 1},
    {"kind": "pyramidfl", "pacer_rounds": 2},
    {"kind": "feel"},
    {"kind": "feel", "importance_weight": 0.01},
    {"kind": "power_of_choice"},
    {"kind": "flash", "start_with_all_clients": False},
    {"kind": "flash", "start_with_all_clients": False, "standardised": False, "reward_rows": "validation"},
    {"kind": "flash", "start_with_all_clients": False, "bandit": "neural", "credited": "previous"},
    {"kind": "restless"},
    {"kind": "neural"},
    {"kind": "flash", "start_with_all_clients": False, "bandit": "restless"},
    {"kind": "fedcor", "warm_up": 3, "refit_every": 2, "dimension": 4},
]
NUM_CLIENTS, NUM_SAMPLED = 24, 5


class _Trial:
    """What a checkpoint stores: something that holds a policy."""

    def __init__(self, policy: SelectionPolicy) -> None:
        self.policy = policy


def _rounds(policy: SelectionPolicy, first: int, last: int, seed: int) -> Iterator[list[int]]:
    """Let a policy choose in rounds of every kind: clients vanish, fail, tell nothing or too much, and have no rows."""
    for server_round in range(first, last + 1):
        draw = np.random.default_rng([seed, server_round])
        reachable = np.sort(draw.choice(NUM_CLIENTS, draw.integers(NUM_SAMPLED, NUM_CLIENTS + 1), replace=False))
        num_chosen = int(draw.integers(1, NUM_SAMPLED + 1))
        clients = table(
            reachable.tolist(),
            rows=draw.integers(0, 50, len(reachable)).tolist(),
            seconds=(draw.lognormal(sigma=3, size=len(reachable)) * draw.integers(0, 2)).tolist(),
        )
        chosen = np.asarray(policy.choose(server_round, clients, num_chosen, draw)).tolist()
        assert len(set(chosen)) == len(chosen) == num_chosen
        assert set(chosen) <= set(reachable.tolist())
        assigned = policy.assign(clients, chosen)
        assert set(assigned) <= set(chosen)
        assert all(each.epochs >= 1 and 0 <= each.withheld < 1 for each in assigned.values())
        policy.observe(_told(server_round, chosen, reachable.tolist(), policy.observes.include_idle_clients, draw))
        yield chosen


def _told(
    server_round: int, chosen: list[int], reachable: list[int], everybody: bool, draw: np.random.Generator
) -> RoundReport:
    failures = {client: "lost" for client in chosen if draw.random() < 0.2}
    answered = sorted(set(reachable if everybody else chosen) - set(failures))
    values = np.array([0.0, 1e-9, 1.0, 1e150, np.nan, np.inf])
    return report(
        server_round,
        answered,
        draw.choice(values, len(answered)).tolist(),
        rows=draw.integers(0, 50, len(answered)).tolist(),
        update_norm=draw.choice(values, len(answered)).tolist(),
        trained=[client in chosen for client in answered],
        failures=failures,
    )


@pytest.mark.parametrize("document", CHOICES, ids=str)
def test_whatever_a_round_tells_so_many_different_clients_of_the_table_are_chosen(document: dict[str, Any]) -> None:
    spec = parse_selection(document, cohort(NUM_CLIENTS, NUM_SAMPLED))
    for seed in range(10):
        assert len(list(_rounds(spec.build(cohort(NUM_CLIENTS, NUM_SAMPLED)), 1, 60, seed))) == 60


@pytest.mark.parametrize("document", CHOICES, ids=str)
def test_after_a_kill_the_choices_are_the_same(document: dict[str, Any]) -> None:
    spec, facts = parse_selection(document), cohort(NUM_CLIENTS, NUM_SAMPLED)
    trial, revived = _Trial(spec.build(facts)), _Trial(spec.build(facts))
    plain = PlainState(trial)
    list(_rounds(trial.policy, 1, 30, seed=1))
    written, arrays = plain.encode(trial)
    PlainState(revived).restore(json.loads(json.dumps(written)), [array.copy() for array in arrays])
    assert list(_rounds(revived.policy, 31, 60, seed=1)) == list(_rounds(trial.policy, 31, 60, seed=1))


@pytest.mark.parametrize("document", CHOICES, ids=str)
def test_a_table_may_hold_nobody_to_choose_from_and_a_round_no_answer(document: dict[str, Any]) -> None:
    policy = parse_selection(document).build(cohort(NUM_CLIENTS, NUM_SAMPLED))
    assert list(policy.choose(1, table([]), 0, np.random.default_rng(0))) == []
    assert policy.assign(table([]), []) == {}
    assert sorted(policy.choose(1, table([3, 8, 11, 12, 20]), 5, np.random.default_rng(0))) == [3, 8, 11, 12, 20]
    policy.observe(replace(report(1, [], failures={3: "lost"}), training=None, validation=None))
    assert len(policy.choose(2, table(NUM_CLIENTS), 5, np.random.default_rng(0))) == 5


@pytest.mark.parametrize("document", CHOICES, ids=str)
def test_a_document_describes_the_policy(document: dict[str, Any]) -> None:
    spec = parse_selection(document)
    assert parse_selection({"kind": spec.kind, **spec.parameters()}) == spec
    assert all(field.description for name, field in type(spec).model_fields.items() if name != "kind")
    assert spec.paper


@pytest.mark.parametrize("document", CHOICES, ids=str)
def test_there_must_be_a_choice(document: dict[str, Any]) -> None:
    with refused(StrategyError, key="selection.kind"):
        parse_selection(document).build(cohort(8, 8))


# -- No policy passes a client over for ever unless it says so


NUM_ROUNDS = 400


def rounds_of(policy: SelectionPolicy) -> Iterator[list[int]]:
    """Yield who trains in each round; half of the clients have next to no loss, and one takes ten times as long."""
    losses = np.where(np.arange(NUM_CLIENTS) % 2, 2.0, 0.01) + 0.001 * np.arange(NUM_CLIENTS)
    norms = np.where(np.arange(NUM_CLIENTS) % 3, 1.0, 0.01)
    clients = table(NUM_CLIENTS, rows=[5 + 3 * client for client in range(NUM_CLIENTS)], seconds=[10.0, *[1.0] * 23])
    for server_round in range(1, NUM_ROUNDS + 1):
        generator = np.random.default_rng([5, server_round])
        chosen = sorted(np.asarray(policy.choose(server_round, clients, NUM_SAMPLED, generator)).tolist())
        yield chosen
        told = [*range(NUM_CLIENTS)] if policy.observes.include_idle_clients else chosen
        trained = [client in chosen for client in told]
        policy.observe(
            report(server_round, told, losses[told].tolist(), update_norm=norms[told].tolist(), trained=trained)
        )


@pytest.mark.parametrize(
    ("kind", "num_parts"),
    [("random", 2), ("feel", 2), *((kind, 1) for kind in ("oort", "pyramidfl", "power_of_choice"))],
)
def test_nobody_is_passed_over_for_ever(kind: str, num_parts: int) -> None:
    """By those of which docs/selection.md says so: again and again, or once each and never again."""
    policy = parse_selection(kind).build(cohort(NUM_CLIENTS, NUM_SAMPLED))
    for part in np.array_split([*rounds_of(policy)], num_parts):
        assert {*range(NUM_CLIENTS)} == {*part.ravel().tolist()}


# -- A policy chooses for every strategy, whatever it compares, keeps or groups, or is refused with the reason ---------


SAMPLED, ROUNDS = 5, 3
KINDS = [*BUILT_IN_KINDS, *CHOSEN_BY_NAME_KINDS, "fedadam+fedprox"]

FITTING = {"bulyan": {"num_malicious_nodes": 0}, "fedavgm": {"server_momentum": 0.1}}
"""Parameters that fit five clients, and a momentum that carries no running variance of batch norm below zero."""


UNFIT = ("dp_fedavg", "fedbuff")
"""Strategies that no policy chooses for."""


@pytest.fixture(scope="module")
def any_host() -> ClientHost:
    return host_of(normalised)


def trained(host: ClientHost, strategy: StrategySpec, policy: SelectionSpec, merge_on_hosts: bool = True) -> Trial:
    return result_of(host, strategy, merge_on_hosts, num_sampled=SAMPLED, num_rounds=ROUNDS, selection=policy)


@pytest.mark.sampled(12)
@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_exactly_the_chosen_clients_train(any_host: ClientHost, kind: str) -> None:
    cohort = Cohort(len(SIZES), SAMPLED, 0.1, server_rows=100, server_labels=True, chosen=True)
    if kind in UNFIT:
        assert "selection policy" in parse_strategy(kind).faults(cohort)[0]
        return
    spec = parse_strategy({"kind": kind, **FITTING.get(kind, {})}, cohort)
    trial = trained(any_host, spec, RandomSpec())
    assert sum(trial.clients["rounds"]) == SAMPLED * ROUNDS
    assert trial.clients["rounds"] == trained(any_host, FedAvgSpec(), RandomSpec()).clients["rounds"]
    assert not trial.dropped_clients


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["fedavg", "krum", "scaffold", "fedbn", "communities"])
@pytest.mark.parametrize("policy", [FlashSpec(), PyramidFLSpec()], ids=str)
def test_policies_that_measure_and_assign_choose_for_unlike_strategies(
    any_host: ClientHost, kind: str, policy: SelectionSpec
) -> None:
    """FLASH has everybody measure, and all train in its first round; PyramidFL has clients withhold tensors."""
    cohort = Cohort(len(SIZES), SAMPLED, 0.1, chosen=True)
    spec = parse_strategy(kind, cohort)
    trial = trained(any_host, spec, policy)
    first = len(SIZES) if isinstance(policy, FlashSpec) else SAMPLED
    assert sum(trial.clients["rounds"]) == first + SAMPLED * (ROUNDS - 1)
    assert max(trial.clients["rounds"]) <= ROUNDS
    assert not trial.dropped_clients
    assert trial.rounds["accuracy"][-1] > 0
    apart = trained(any_host, spec, policy, merge_on_hosts=False)
    assert (apart.clients["rounds"], apart.rounds["accuracy"]) == (trial.clients["rounds"], trial.rounds["accuracy"])
