"""What every policy promises: who it chooses, of what it depends, and what survives a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import RoundReport, SelectionPolicy
from fedscout.engine.trials.checkpoint import PlainState
from fedscout.strategies.selection.table import parse_selection
from tests.kits.refusals import refused
from tests.strategies.selection.reports import cohort, report, table

CHOICES: list[dict[str, Any]] = [
    {"kind": "random"},
    {"kind": "oort"},
    {"kind": "oort", "pacer_rounds": 2, "unexplored_window": 1},
    {"kind": "pyramidfl", "pacer_rounds": 2},
    {"kind": "feel"},
    {"kind": "feel", "importance_weight": 0.01},
    {"kind": "power_of_choice"},
    {"kind": "power_of_choice", "losses": "probed"},
    {"kind": "flash", "start_with_all_clients": False},
    {"kind": "flash", "start_with_all_clients": False, "standardised": False, "reward_rows": "validation"},
    {"kind": "flash", "start_with_all_clients": False, "bandit": "neural", "credited": "previous"},
    {"kind": "restless"},
    {"kind": "neural"},
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
def test_a_table_of_as_many_clients_as_train_is_chosen_whole(document: dict[str, Any]) -> None:
    policy = parse_selection(document).build(cohort(NUM_CLIENTS, NUM_SAMPLED))
    chosen = policy.choose(1, table([3, 8, 11, 12, 20]), 5, np.random.default_rng(0))
    assert sorted(chosen) == [3, 8, 11, 12, 20]


@pytest.mark.parametrize("document", CHOICES, ids=str)
def test_where_nobody_can_be_reached_nobody_is_chosen(document: dict[str, Any]) -> None:
    policy = parse_selection(document).build(cohort(NUM_CLIENTS, NUM_SAMPLED))
    assert list(policy.choose(1, table([]), 0, np.random.default_rng(0))) == []
    assert policy.assign(table([]), []) == {}


@pytest.mark.parametrize("document", CHOICES, ids=str)
def test_a_round_in_which_nobody_answers_is_no_news(document: dict[str, Any]) -> None:
    policy = parse_selection(document).build(cohort(NUM_CLIENTS, NUM_SAMPLED))
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
