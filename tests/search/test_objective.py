"""Objectives by hand: what a trial's rounds are worth, and that who gets to the target is worth more than who does
not."""

from __future__ import annotations

from collections.abc import Sequence
from math import nan

import pytest
from hypothesis import given, strategies as st

from fedscout.engine.errors import ConfigurationError
from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.experiments.config import load_config
from fedscout.search.ledger import best_of
from fedscout.search.objective import ACCURACY, Objective
from fedscout.search.searcher import Archive, ranking
from fedscout.strategies import FedAvgSpec, space_of
from fedscout.strategies.methods.averaging import FedAvgMSpec, FedProxSpec
from fedscout.strategies.methods.robust import FedMedianSpec, KrumSpec
from tests.kits.refusals import refused
from tests.search.studies import by_map

SCORES = st.lists(st.floats(0, 1), min_size=12, max_size=12)


def trial(scores: Sequence[float], down: float = 400.0, up: float = 400.0, **more: object) -> Trial:
    clean = tuple(score / 2 for score in scores)
    curves = {"round_accuracy": tuple(scores), "round_clean_accuracy": clean}
    return Trial(bytes_down=down, bytes_up=up, **by_map({**curves, **more}))


def rounds(target: float = 0.8, num_rounds: int = 12) -> Objective:
    return Objective("rounds_to_target", num_rounds, target)


def test_the_first_five_rounds_whose_mean_is_there_count() -> None:
    """0.5 for five rounds, then 1: the windows that end in rounds 5 to 8 have means of .5, .6, .7 and .8."""
    found = trial([0.5] * 5 + [1.0] * 7)
    assert rounds().fitness(found, "own") == 12 + 1 - 8
    assert rounds(target=0.81).fitness(found, "own") == 12 + 1 - 9
    assert rounds(target=0.5).fitness(found, "own") == 12 + 1 - 5
    assert rounds(target=0.4).fitness(found, "clean") == 12 + 1 - 8


def test_who_is_not_there_has_the_share_of_the_target_that_is_reached() -> None:
    """After one lucky round, not at all, or as a training has just begun."""
    lucky, far = (0.5, 1.0, *[0.5] * 10), (0.1, 0.2, 0.3, 0.4, 0.5, *[0.0] * 7)
    reached: dict[tuple[float, ...], float] = {lucky: 0.6, far: 0.3, (1.0, 1.0): 0.8, (0.4, 0.4): 0.4}
    for scores, share in reached.items():
        assert rounds().fitness(trial(scores), "own") == pytest.approx(share / 0.8)
    assert rounds().fitness(trial([1.0, 1.0]), "own") < 1


@given(ours=SCORES, theirs=SCORES, target=st.floats(0.05, 1), name=st.sampled_from(["rounds", "bytes"]))
def test_who_gets_there_is_better_than_who_does_not(
    ours: list[float], theirs: list[float], target: float, name: str
) -> None:
    """Whatever it costs: here the one who gets there sends fifty times as much."""
    objective = Objective(f"{name}_to_target", 12, target, plain_cost=800.0)  # type: ignore[arg-type]
    best = [max(sum(scores[last - 5 : last]) / 5 for last in range(5, 13)) for scores in (ours, theirs)]
    values = [objective.fitness(trial(ours, 20_000, 20_000), "own"), objective.fitness(trial(theirs), "own")]
    if best[0] >= target > best[1] + 1e-9:
        assert values[0] >= 1 > values[1] >= 0
    if max(best) + 1e-9 < target and abs(best[0] - best[1]) > 1e-9:
        assert (values[0] > values[1]) == (best[0] > best[1])


def test_bytes_are_counted_in_rounds_of_plain_traffic() -> None:
    """There in round 8, with the bytes of plain FedAvg a round, half and thrice: 24 rounds' worth is too dear."""
    bytes_objective = Objective("bytes_to_target", 12, 0.8, plain_cost=800.0)
    scores = [0.5] * 5 + [1.0] * 7
    assert bytes_objective.fitness(trial(scores), "own") == rounds().fitness(trial(scores), "own")
    assert bytes_objective.fitness(trial(scores, 200, 200), "own") == 12 + 1 - 8 / 2
    assert bytes_objective.fitness(trial(scores, 1200, 1200), "own") == 1


def test_a_training_of_few_rounds_has_them_all_for_five() -> None:
    short = Objective("rounds_to_target", 3, 0.5)
    assert short.fitness(trial([0.4, 0.5, 0.6]), "own") == 1
    assert short.fitness(trial([0.4, 0.5, 0.3]), "own") == pytest.approx(0.8)


def test_the_worst_clients_have_the_mean_of_the_last_five_rounds() -> None:
    found = trial([0.9] * 6, round_worst_clients=(0.9, 0.1, 0.2, 0.3, 0.4, 0.5), round_clean_worst_clients=(0.0,) * 6)
    objective = Objective("worst_clients", 6)
    assert objective.fitness(found, "own") == pytest.approx(0.3)
    assert objective.fitness(found, "clean") == 0


def test_time_is_that_of_the_rounds_until_the_target() -> None:
    """The windows that end in rounds 5 to 8 have means of .5 to .8: eight rounds of 1 to 8 s, 36 s of plain 10 s."""
    seconds = tuple(float(number) for number in range(1, 13))
    found = trial([0.5] * 5 + [1.0] * 7, round_seconds=seconds)
    objective = Objective("time_to_accuracy", 12, 0.8, plain_cost=10.0)
    assert objective.fitness(found, "own") == pytest.approx(13 - 3.6)
    assert Objective("time_to_accuracy", 12, 0.8).fitness(found, "own") == 1
    assert objective.fitness(trial([1.0] * 12), "own") == 1, "there, but nobody knows when"
    equal = trial([0.5] * 5 + [1.0] * 7, round_seconds=(10.0,) * 12)
    assert objective.fitness(equal, "own") == rounds().fitness(equal, "own")


def test_a_round_without_a_score_reaches_nothing_and_enters_no_mean() -> None:
    """Windows with round 3 do not count: the first without it ends in round 8."""
    scores = [0.9, 0.9, nan, *[0.9] * 9]
    assert rounds().reached(scores) == 8
    assert rounds().fitness(trial([0.5, 0.5, nan] + [0.4] * 9), "own") == pytest.approx(0.4 / 0.8)
    assert rounds().fitness(trial([0.5] * 11 + [nan]), "own") == pytest.approx(0.5 / 0.8)
    worst = trial([0.9] * 5, round_worst_clients=(0.1, nan, 0.2, 0.3, 0.4))
    assert Objective("worst_clients", 5).fitness(worst, "own") == pytest.approx(0.25)


def test_a_failed_trial_is_worth_nothing() -> None:
    assert rounds().fitness(trial([1.0] * 12, status="failed", error="why"), "own") == 0


def test_a_metric_is_the_score_where_there_is_one() -> None:
    found = trial([1.0] * 6, metric="macro_f1", round_metric=(0.2,) * 6, round_clean_metric=(0.1,) * 6)
    assert Objective("rounds_to_target", 6, 0.4).fitness(found, "own") == pytest.approx(0.5)


def test_shares_are_told_in_points_and_rounds_as_rounds() -> None:
    told = {"accuracy": "+3.1", "worst_clients": "+3.1", "rounds_to_target": "+0.031", "time_to_accuracy": "+0.31"}
    for name, number in told.items():
        assert Objective(name, 9, 0.5, plain_cost=10.0).measure(ACCURACY).number(0.031) == number  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "key", "named"),
    [
        ("{objective: rounds_to_target}", "target", "objective=rounds_to_target"),
        ("{target: 0.9}", "target", "got 0.9"),
        ("{kind: one_shot, warm_start: [earlier]}", "warm_start", "kind=one_shot"),
    ],
)
def test_what_makes_no_objective_is_refused(setting: str, key: str, named: str) -> None:
    with refused(ConfigurationError, key=f"search.{key}", names=named):
        load_config([f"search={setting}"])


# -- The archive and what it is told -----------------------------------------------------------------------------------


SPACE = space_of(Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2))
MEDIAN, KRUM, PROX = FedMedianSpec(), KrumSpec(num_malicious_nodes=1), FedProxSpec(proximal_mu=0.1)


def archive_of(*evaluations: Trial) -> Archive:
    archive = Archive(SPACE, [FedAvgSpec()])
    for evaluation in evaluations:
        archive.add(evaluation)
    return archive


def test_a_twin_of_the_reference_is_the_reference_and_the_first_result_of_a_configuration_stands() -> None:
    twin = FedAvgMSpec(server_learning_rate=1, server_momentum=0)
    archive = archive_of(Trial(twin, fitness=0.5), Trial(MEDIAN, fitness=0.4), Trial(MEDIAN, fitness=0.9))
    assert [e.fitness for e in archive.searched] == [0.4]


def test_best_is_of_full_trainings_and_prefers_the_reference_at_a_draw_and_no_further() -> None:
    reference, equal, better = Trial(FedAvgSpec(), fitness=0.5), Trial(MEDIAN, fitness=0.5), Trial(MEDIAN, fitness=0.51)
    short = Trial(KRUM, fitness=0.9, asked_rounds=2)
    assert best_of([]) is best_of([short]) is None
    assert best_of([reference, equal, short]) == reference
    assert best_of([reference, better]) == best_of([better]) == better


@pytest.mark.parametrize("fitness", [0.0, -0.5])
def test_a_completed_trial_of_no_use_ranks_before_a_failed_one(fitness: float) -> None:
    """Also one of negative fitness, as that of a quantity may be, though a failed trial is told with 0."""
    for useless, failed in ((MEDIAN, KRUM), (KRUM, MEDIAN)):
        found = ranking([Trial(failed, status="failed", error="why not"), Trial(useless, fitness=fitness)], SPACE)
        assert [e.spec for e in found] == [useless, failed]


def test_a_longer_training_takes_the_place_of_a_shorter_one_and_no_other() -> None:
    told = ((0.9, 2), (0.7, 8), (0.5, None))
    short, longer, whole = (Trial(MEDIAN, fitness=fitness, asked_rounds=rounds) for fitness, rounds in told)
    assert archive_of(short, longer, short).searched == (longer,)
    assert archive_of(short, longer, whole, longer).searched == (whole,)
    assert archive_of(whole, short).searched == (whole,)
