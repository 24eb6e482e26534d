"""The archive and what it is told."""

from __future__ import annotations

import pytest

from fedscout.engine.messages.calls import Cohort
from fedscout.engine.trials.record import Trial
from fedscout.search.searcher import Archive, ranking
from fedscout.strategies import FedAvgMSpec, FedAvgSpec, FedMedianSpec, FedProxSpec, KrumSpec, space_of

SPACE = space_of(Cohort(num_clients=10, num_sampled=10, client_learning_rate=0.2))
MEDIAN, KRUM, PROX = FedMedianSpec(), KrumSpec(num_malicious_nodes=1), FedProxSpec(proximal_mu=0.1)


def archive_of(*evaluations: Trial) -> Archive:
    archive = Archive(SPACE, [FedAvgSpec()])
    for evaluation in evaluations:
        archive.add(evaluation)
    return archive


def test_references_are_kept_apart() -> None:
    archive = archive_of(Trial(FedAvgSpec(), fitness=0.5), Trial(MEDIAN, fitness=0.4))
    assert [e.spec for e in archive.references] == [FedAvgSpec()]
    assert [e.spec for e in archive.searched] == [MEDIAN]


def test_a_twin_of_the_reference_is_the_reference_and_the_first_result_of_a_configuration_stands() -> None:
    twin = FedAvgMSpec(server_learning_rate=1, server_momentum=0)
    archive = archive_of(Trial(twin, fitness=0.5), Trial(MEDIAN, fitness=0.4), Trial(MEDIAN, fitness=0.9))
    assert [e.fitness for e in archive.searched] == [0.4]


def test_best_prefers_the_reference_at_a_draw_and_no_further() -> None:
    assert archive_of().best() is None
    reference = Trial(FedAvgSpec(), fitness=0.5)
    assert archive_of(Trial(MEDIAN, fitness=0.5), reference).best() == reference
    better = Trial(MEDIAN, fitness=0.51)
    assert archive_of(reference, better).best() == better
    assert archive_of(better).best() == better


def test_references_are_taken_before_they_are_told() -> None:
    assert archive_of(Trial(MEDIAN, fitness=0.4)).taken == {SPACE.digest(FedAvgSpec()), SPACE.digest(MEDIAN)}


def test_a_failed_trial_ranks_below_one_of_negative_fitness() -> None:
    """As that of a quantity may be, though a failed trial is told with 0."""
    poor, failed = Trial(PROX, fitness=-0.5), Trial(FedAvgSpec(), status="failed", error="why not")
    assert ranking([failed, poor], SPACE) == [poor, failed]


def test_ranking_does_not_depend_on_the_order_of_telling() -> None:
    tied = [Trial(MEDIAN, fitness=0.5), Trial(KRUM, fitness=0.5), Trial(PROX, fitness=0.7)]
    assert ranking(tied, SPACE) == ranking(tied[::-1], SPACE)
    assert ranking(tied, SPACE)[0].spec == PROX


def test_a_completed_trial_of_no_use_ranks_before_a_failed_one() -> None:
    for useless, failed in ((MEDIAN, KRUM), (KRUM, MEDIAN)):
        found = ranking([Trial(failed, status="failed", error="why not"), Trial(useless, fitness=0.0)], SPACE)
        assert [e.spec for e in found] == [useless, failed]


def test_a_longer_training_takes_the_place_of_a_shorter_one_and_no_other() -> None:
    short, longer, whole = (
        Trial(MEDIAN, fitness=0.9, asked_rounds=2),
        Trial(MEDIAN, fitness=0.7, asked_rounds=8),
        Trial(MEDIAN, fitness=0.5),
    )
    assert archive_of(short, longer, short).searched == (longer,)
    assert archive_of(short, longer, whole, longer).searched == (whole,)
    assert archive_of(whole, short).searched == (whole,)


def test_only_full_trainings_are_compared() -> None:
    short, whole = Trial(KRUM, fitness=0.9, asked_rounds=2), Trial(MEDIAN, fitness=0.5)
    assert archive_of(short).best() is None
    assert archive_of(short, whole).best() == whole


def test_a_fitness_is_finite_and_a_failure_worth_nothing() -> None:
    with pytest.raises(AssertionError):
        archive_of(Trial(MEDIAN, fitness=float("nan")))
    with pytest.raises(AssertionError):
        archive_of(Trial(MEDIAN, fitness=0.3, status="failed"))
