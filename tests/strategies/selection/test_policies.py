"""What every policy promises, and Oort, PyramidFL, power of choice and FEEL against numbers worked by hand."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from fedscout.engine.client.host import ClientHost
from fedscout.engine.errors import StrategyError
from fedscout.engine.messages.calls import Assignment, ClientTable, Cohort, DoubleArray, RoundReport, SelectionPolicy
from fedscout.engine.trials.checkpoint import PlainState
from fedscout.engine.trials.record import Trial
from fedscout.strategies import BUILT_IN_KINDS, CHOSEN_BY_NAME_KINDS, FedAvgSpec, StrategySpec, parse_strategy
from fedscout.strategies.selection import oort, policies
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
def test_a_document_describes_the_policy_which_must_have_a_choice(document: dict[str, Any]) -> None:
    spec = parse_selection(document)
    assert parse_selection({"kind": spec.kind, **spec.parameters()}) == spec
    assert all(field.description for name, field in type(spec).model_fields.items() if name != "kind")
    assert spec.paper
    with refused(StrategyError, key="selection.kind"):
        spec.build(cohort(8, 8))


def test_a_boolean_is_no_number() -> None:
    with refused(StrategyError, key="pacer_rounds", given="'true'"):
        parse_selection({"kind": "oort", "pacer_rounds": True})


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


# -- Oort's utilities, scores and pacer --------------------------------------------------------------------------------


EXPLOITING = oort.OortSpec(exploration=0.0, exploration_floor=0.0, uncertainty=0.0)


def check_choices(policy: SelectionPolicy, clients: ClientTable, expected: Sequence[float] | DoubleArray) -> None:
    """Hold that a client is chosen as often as expected, within four standard deviations; those after them never."""
    generator, num_draws = np.random.default_rng(0), 5000
    seen = Counter(int(policy.choose(2, clients, 1, generator)[0]) for _ in range(num_draws))
    assert {*seen} == {*range(len(expected))}
    for client, share in enumerate(expected):
        assert abs(seen[client] / num_draws - share) < 4 * np.sqrt(share * (1 - share) / num_draws)


def test_the_utility_is_rows_times_the_root_of_the_mean_squared_loss() -> None:
    policy = oort.Oort(oort.OortSpec())
    policy.observe(report(3, [2, 5], [4.0, 0.5], rows=[10, 100]))
    assert policy.utility == {2: 40.0, 5: 50.0}
    assert policy.last_round == {2: 3, 5: 3}


def test_utilities_are_clipped_at_a_rank_and_divided_by_the_range_before() -> None:
    """Rank ⌊4 · ½⌋ of 100 … 400 is 300; the range is 400 − 99.9."""
    found = oort.normalised(np.array([100.0, 400.0, 200.0, 300.0]), 0.5)
    np.testing.assert_allclose(found, np.array([0.1, 200.1, 100.1, 200.1]) / 300.1, rtol=1e-12)


def test_without_a_loss_there_is_no_utility() -> None:
    assert oort.normalised(np.array([0.0, 0.0]), 0.98).tolist() == [0.0, 0.0]
    assert oort.normalised(np.array([0.0, 50.0]), 0.98)[0] == 0.0
    policy = oort.Oort(oort.OortSpec())
    policy.observe(report(1, [0, 1], [np.nan, np.inf]))
    assert policy.utility == {0: 0.0, 1: 0.0}


def test_long_ago_is_uncertain() -> None:
    """Equal utilities of 1000 have a range of 1, so each is 1; √(0.1 ln 9 / t) is added."""
    policy = oort.Oort(oort.OortSpec())
    policy.observe(report(1, [0], 100.0))
    policy.observe(report(4, [1], 100.0))
    expected = 1 + np.sqrt(0.1 * np.log(9) / np.array([1, 4]))
    np.testing.assert_allclose(policy.scores(np.array([0, 1]), 9), expected, rtol=1e-9)


def test_the_slow_are_worth_less() -> None:
    """Of 4, 1 and 2 s, T is 1 at rank ⌊0.3⌋ and 2 at rank ⌊1.2⌋."""
    of_three = {10.0: [1 / 16, 1, 1 / 4], 40.0: [1 / 4, 1, 1], 99.0: [1, 1, 1], 100.0: [1, 1, 1]}
    assert {share: oort.slow_factors(np.array([4.0, 1.0, 2.0]), share, 2.0).tolist() for share in of_three} == of_three
    assert oort.slow_factors(np.zeros(3), 10.0, 2.0).tolist() == [1, 1, 1]
    assert oort.slow_factors(np.array([0.0, 3.0, 0.0]), 10.0, 2.0).tolist() == [1, 0, 1]


def test_the_exploited_are_drawn_by_score_among_those_near_the_cut() -> None:
    """Losses give R = 1000, 900, 800, 700, 100, 100, so scores (R − 99.9) / 900.1.

    One is exploited: the score at the cut is the second, .8890, and its .7 share .6223. The fourth, .6667, is above.
    """
    policy = oort.Oort(EXPLOITING)
    policy.observe(report(1, range(6), [100.0, 90.0, 80.0, 70.0, 10.0, 10.0]))
    scores = (np.array([1000, 900, 800, 700]) - 99.9) / 900.1
    check_choices(policy, table(6), scores / scores.sum())


def test_a_high_cut_takes_the_best() -> None:
    """With a share of 1 the pool is the exploited and the one at the cut."""
    policy = oort.Oort(EXPLOITING.model_copy(update={"cut_off": 1.0}))
    policy.observe(report(1, range(6), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))
    chosen = [set(policy.choose(2, table(6), 2, np.random.default_rng(seed)).tolist()) for seed in range(50)]
    assert set.union(*chosen) == {3, 4, 5}


def test_a_slow_client_of_high_utility_is_left() -> None:
    """Client 4 scores 1 · (1 / 10)², less than .7 of the .5 or so at the cut."""
    policy = oort.Oort(EXPLOITING)
    policy.observe(report(1, range(5), [8.0, 9.0, 9.0, 9.0, 10.0]))
    reachable = table(5, seconds=[1.0, 1.0, 1.0, 1.0, 10.0])
    chosen = [set(policy.choose(2, reachable, 2, np.random.default_rng(seed)).tolist()) for seed in range(50)]
    assert set.union(*chosen) == {1, 2, 3}


def test_exploration_decays_to_its_floor() -> None:
    shares = {1: 0.855, 2: 0.81225, 29: 0.9 * 0.95**29, 30: 0.2}
    explored_share = oort.Oort(oort.OortSpec()).explored_share
    assert {number: explored_share(number) for number in shares} == pytest.approx(shares, rel=1e-12)


@pytest.mark.parametrize(("server_round", "num_exploited"), [(2, 1), (10, 4), (100, 8)])
def test_the_unexplored_get_their_share(server_round: int, num_exploited: int) -> None:
    """⌊10 (1 − ε)⌋ for ε = .812, .539 and .2."""
    policy = oort.Oort(oort.OortSpec())
    policy.observe(report(1, range(20)))
    chosen = policy.choose(server_round, table(40), 10, np.random.default_rng(0))
    assert sum(client < 20 for client in chosen) == num_exploited == len(policy.exploited)


def test_the_unexplored_with_many_rows_and_short_rounds_come_first() -> None:
    """A window of 1 takes the largest rows · (T / d)²: 40, 10, 30, 40 / 4 = 10, 20 with T = 1."""
    policy = oort.Oort(oort.OortSpec(unexplored_window=1, preferred_percentile=10))
    reachable = table(5, rows=[40, 10, 30, 40, 20], seconds=[1.0, 1.0, 1.0, 2.0, 1.0])
    assert sorted(policy.choose(1, reachable, 3, np.random.default_rng(0))) == [0, 2, 4]


def test_clients_that_always_fail_keep_nobody_from_being_asked() -> None:
    """Ten of many rows are lost for good; client 29 fails the first time, and is asked again."""
    policy, generator, asked = oort.Oort(oort.OortSpec(unexplored_window=1)), np.random.default_rng(0), set[int]()
    reachable = table(30, rows=[100] * 10 + [1] * 20)
    for server_round in range(1, 60):
        chosen = policy.choose(server_round, reachable, 3, generator).tolist()
        failures = {client: "lost" for client in chosen if client < 10 or (client == 29 and client not in asked)}
        asked.update(chosen)
        policy.observe(report(server_round, sorted(set(chosen) - set(failures)), failures=failures))
    assert asked == set(range(30))
    assert set(policy.utility) == set(range(10, 30))


def test_the_pacer_follows_the_exploited_utility() -> None:
    """Windows of two rounds: 20 → 21 is flat, 21 → 200 is a jump of more than five times, 200 → 240 neither."""
    policy, percentiles = oort.Oort(oort.OortSpec(pacer_rounds=2)), []
    for server_round, utility in enumerate([10.0, 10.0, 10.5, 10.5, 100.0, 100.0, 100.0, 140.0], start=1):
        policy.exploited = [0, 7]  # 7 fails, 1 was explored
        policy.observe(report(server_round, [0, 1], [utility, 999.0], rows=1, failures={7: "lost"}))
        percentiles.append(policy.percentile)
    assert percentiles == [10, 10, 10, 15, 15, 10, 10, 10]


def test_the_percentile_has_bounds() -> None:
    flat, jumping = (oort.Oort(oort.OortSpec(pacer_rounds=1, pacer_percent=40)) for _ in range(2))
    for server_round in range(1, 8):
        flat.exploited = jumping.exploited = [0]
        flat.observe(report(server_round, [0], 1.0))
        jumping.observe(report(server_round, [0], 10.0**server_round))
    assert (flat.percentile, jumping.percentile) == (100.0, 40.0)


# -- PyramidFL's ranks and slack against numbers worked by hand --------------------------------------------------------


def test_the_largest_update_withholds_least() -> None:
    """Ranks 3, 0, 1, 1 of four: .1 + .5 k / 4."""
    policy = oort.PyramidFL(oort.PyramidFLSpec())
    policy.observe(report(1, [2, 3, 5, 7], update_norm=[1.0, 4.0, 2.0, 2.0]))
    assigned = policy.assign(table(8), [7, 5, 3, 2])
    assert {client: each.withheld for client, each in assigned.items()} == pytest.approx(
        {2: 0.475, 3: 0.1, 5: 0.225, 7: 0.225}, rel=1e-12
    )
    assert all(each.epochs == 1 for each in assigned.values())
    assert [*policy.utility] == [2, 3, 5, 7], "it is told what Oort is told"


def test_who_told_no_norm_ranks_first() -> None:
    policy = oort.PyramidFL(oort.PyramidFLSpec())
    policy.observe(report(1, [0, 1, 2], update_norm=[1.0, 2.0, np.nan]))
    withheld = [policy.assign(table(4), [0, 1, 2, 3])[client].withheld for client in range(4)]
    assert withheld == pytest.approx([0.1 + 0.5 * 3 / 4, 0.1 + 0.5 * 2 / 4, 0.1, 0.1], rel=1e-12)


def test_the_quick_train_longer() -> None:
    """Of 10 seconds, those of 1, 2, 4 and 0.5 have a slack of 9, 4, 1.5 and 19 of their own rounds."""
    reachable = table([1, 3, 4, 6, 8], seconds=[1.0, 2.0, 4.0, 10.0, 0.5])
    assigned = oort.PyramidFL(oort.PyramidFLSpec()).assign(reachable, [8, 6, 4, 3, 1])
    assert {client: each.epochs for client, each in assigned.items()} == {1: 10, 3: 5, 4: 2, 6: 1, 8: 11}


def test_nobody_takes_longer_than_the_slowest() -> None:
    seconds = np.random.default_rng(0).lognormal(sigma=2, size=1000)
    slack = oort.extra_rounds(seconds, 10)
    assert ((1 + slack) * seconds <= seconds.max()).all()
    assert ((2 + slack) * seconds > seconds.max())[slack < 10].all()
    for durations, most, expected in (([0.0] * 3, 10, [0] * 3), ([0.0, 1.0], 10, [10, 0]), ([0.1, 1.0], 0, [0, 0])):
        assert oort.extra_rounds(np.array(durations), most).tolist() == expected
    whole = oort.PyramidFL(oort.PyramidFLSpec(withheld_first=0, withheld_last=0))
    assert whole.assign(table(9), [4]) == {4: Assignment()}


def test_as_many_candidates_as_train_is_the_draw_by_rows() -> None:
    """d = M = 1: p ∝ rows, whatever the losses."""
    policy = policies.PowerOfChoice(1)
    policy.observe(report(1, [0, 1, 2], [9.0, 1.0, 5.0]))
    check_choices(policy, table(3, rows=[1, 3, 6]), [0.1, 0.3, 0.6])


def test_all_candidates_are_the_largest_losses() -> None:
    policy = policies.PowerOfChoice(6)
    policy.observe(report(1, range(6), [3.0, 1.0, 6.0, 2.0, 5.0, 4.0]))
    for seed in range(20):
        assert policy.choose(2, table(6), 3, np.random.default_rng(seed)).tolist() == [2, 4, 5]


def test_who_never_trained_comes_first_in_the_order_of_the_draw() -> None:
    policy, first = policies.PowerOfChoice(4), Counter[int]()
    policy.observe(report(1, [0, 3], [1e9, 1.0]))
    generator, num_draws = np.random.default_rng(0), 4000
    for _ in range(num_draws):
        chosen = policy.choose(2, table(4, rows=[1, 1, 3, 1]), 3, generator).tolist()
        assert (set(chosen[:2]), chosen[2]) == ({1, 2}, 0)
        first[chosen[0]] += 1
    assert abs(first[2] / num_draws - 3 / 4) < 4 * np.sqrt(3 / 16 / num_draws)


def test_the_latest_loss_is_that_of_training() -> None:
    policy = policies.PowerOfChoice(4)
    policy.observe(report(1, [0, 1], [2.0, np.nan]))
    policy.observe(report(2, [0, 2], [3.0, 9.0], trained=[True, False]))
    assert policy.loss == {0: 3.0, 1: 0.0}


@pytest.mark.parametrize(("num_clients", "losses"), [(20, 10), (8, 8)])
def test_by_default_twice_as_many_are_candidates(num_clients: int, losses: int) -> None:
    """With all losses known, the d − M lowest never train: 5 of 20 for d = 10, 3 of 8 for d = 8."""
    policy = parse_selection("power_of_choice").build(cohort(num_clients, 5))
    policy.observe(report(1, range(num_clients), [float(client) for client in range(num_clients)]))
    generator = np.random.default_rng(0)
    chosen = {c for _ in range(2000) for c in np.asarray(policy.choose(2, table(num_clients), 5, generator)).tolist()}
    assert chosen == set(range(losses - 5, num_clients))


# -- FEEL's probabilities: their limits, and that no others are better -------------------------------------------------


IMPORTANCE = np.array([1.0, 2.0, 3.0, 4.0])
SECONDS = np.array([3.0, 1.0, 4.0, 2.0])


@pytest.mark.parametrize("weight", [0.01, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("seconds", [SECONDS, 1e-3 * SECONDS, np.full(4, 7.0), np.zeros(4)], ids=str)
def test_the_derivatives_are_equal(weight: float, seconds: np.ndarray) -> None:
    """At the minimum ρ a² / p² − (1 − ρ) T is λ for every client, in whatever units; equal T leave p = a."""
    found = policies.scheduling_probabilities(1e6 * IMPORTANCE, seconds, weight)
    in_means = seconds / (seconds.mean() or 1.0)
    multipliers = weight * (IMPORTANCE / 10 / found) ** 2 - (1 - weight) * in_means
    assert found.sum() == pytest.approx(1, rel=1e-14)
    np.testing.assert_allclose(multipliers, multipliers[0], rtol=0, atol=1e-9)


def test_importance_is_rows_times_norm_and_the_mean_norm_of_others() -> None:
    """Norms 2, 4 and 0, so 2 for client 2: with rows 3, 1, 1, 9 the importance is 6, 4, 2 and 0, which counts as 0.3.

    A tenth of the mean of 6, 4, 2 and 0 is 0.3.
    """
    policy = policies.Feel(0.5)
    policy.observe(report(1, [0, 1, 2, 3], update_norm=[2.0, 4.0, np.nan, 0.0]))
    check_choices(policy, table(4, rows=[3, 1, 1, 9]), np.array([6, 4, 2, 0.3]) / 12.3)


# -- Draws by weight without replacement, against the product of their conditional probabilities -----------------------


NUM_DRAWS = 20_000


def test_each_draw_is_by_the_weights_of_those_left() -> None:
    """P(i, j) = w_i / 6 · w_j / (6 − w_i) for weights 1, 2, 3."""
    weights, generator = np.array([1.0, 2.0, 3.0]), np.random.default_rng(0)
    seen = Counter(tuple(policies.draw_by_weight(weights, 2, generator).tolist()) for _ in range(NUM_DRAWS))
    for first, second in permutations(range(3), 2):
        expected = weights[first] / 6 * weights[second] / (6 - weights[first])
        deviation = np.sqrt(expected * (1 - expected) / NUM_DRAWS)
        assert abs(seen[first, second] / NUM_DRAWS - expected) < 4 * deviation


@pytest.mark.parametrize("nothing", [0.0, -1.0, np.nan, np.inf])
def test_what_weighs_nothing_comes_last(nothing: float) -> None:
    generator = np.random.default_rng(0)
    assert all(policies.draw_by_weight(np.array([nothing, 1.0, 2.0]), 3, generator)[-1] == 0 for _ in range(100))


def test_if_nothing_weighs_anything_all_weigh_the_same() -> None:
    zero, one = (policies.draw_by_weight(np.full(9, weight), 9, np.random.default_rng(3)) for weight in (0.0, 1.0))
    assert zero.tolist() == one.tolist()


def test_the_scale_does_not_count() -> None:
    weights = np.array([1.0, 5.0, 2.0, 8.0])
    small, large = (
        policies.draw_by_weight(weights * scale, 4, np.random.default_rng(1)) for scale in (2.0**-900, 2.0**900)
    )
    assert small.tolist() == large.tolist()
