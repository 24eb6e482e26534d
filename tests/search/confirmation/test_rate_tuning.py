"""The tuned reference: which rate is taken, on how many seeds, and what becomes of the study's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedscout.engine.trials.record import TrialSettings
from fedscout.search.config import SearchConfig
from fedscout.search.confirmation.confirmation import confirmation_seeds, fresh_seeds
from fedscout.search.confirmation.runs import num_tuning_trials
from fedscout.search.study import StudyOutcome
from tests.search.studies import FACTS, SEED, Measured, ScriptedRunner, completed, failed, study

CONFIG = SearchConfig(tuning_factors=(0.5, 1.0, 2.0, 4.0), confirmation_seeds=2)


def by_rate(fedavg: Callable[[float, int], Measured | None]) -> Callable[[TrialSettings], Measured]:
    """Return trials of which FedAvg's are by rate and seed, 1 less their distance to 0.4 where nothing is said."""

    def outcome(spec: TrialSettings) -> Measured:
        if spec.strategy.kind != "fedavg":
            return completed(0.1)
        rate = spec.session.training.learning_rate
        return fedavg(rate, spec.session.seed) or completed(1 - abs(rate - 0.4))

    return outcome


def tuned(folder: Path, fedavg: Callable[[float, int], Measured | None], config: SearchConfig = CONFIG) -> StudyOutcome:
    return study(folder, ScriptedRunner(by_rate(fedavg)), config)


def cost(folder: Path, config: SearchConfig, best: float) -> int:
    """Return how many trainings a study tunes FedAvg with, whose accuracy at the study's own rate is given."""
    runner = ScriptedRunner(
        by_rate(lambda rate, seed: completed(best) if rate == FACTS.session.training.learning_rate else None)
    )
    study(folder, runner, config)
    return sum(spec.phase == "tuned-baseline" for spec in runner.ran)


def test_the_best_rate_is_the_reference(tmp_path: Path) -> None:
    """1.0 is trial 0 itself and not run again; the study's rate is 0.2, and the fitness peaks at twice that."""
    found = tuned(tmp_path, lambda rate, seed: None)
    assert [rate.learning_rate for rate in found.tuned] == pytest.approx([0.4, 0.2, 0.1, 0.8])
    assert [len(rate.trials) for rate in found.tuned] == [2, 2, 1, 1]
    assert {trial.phase for rate in found.tuned for trial in rate.trials} == {"baseline", "tuned-baseline"}
    assert found.best is found.baseline  # it competes in the confirmation, not in the search
    roles = {one.role: one.learning_rate for one in found.confirmation.contestants}
    assert roles == pytest.approx({"challenger": 0.2, "fedavg": 0.2, "tuned-fedavg": 0.4})
    assert found.confirmation.versus["tuned-fedavg"]["own"].mean == pytest.approx(0.1 - 1.0)
    assert found.confirmation.reference == "tuned-fedavg"


@pytest.mark.parametrize("collapse", [failed("diverged"), completed(0.2)])
def test_a_rate_that_is_best_where_it_works_loses(tmp_path: Path, collapse: Measured) -> None:
    """Of 0.8, which is best on the search's seed: it fails, or collapses, on another one."""

    def fedavg(rate: float, seed: int) -> Measured | None:
        if rate != pytest.approx(0.8):
            return None
        return completed(1.0) if seed == SEED else collapse

    first, second, *_ = tuned(tmp_path, fedavg).tuned
    assert (first.learning_rate, second.learning_rate) == pytest.approx((0.4, 0.8))


def test_a_failure_weighs_more_than_any_mean(tmp_path: Path) -> None:
    """One failure of three, a perfect score on the others, and guessing is nearly as good."""
    last = fresh_seeds("tuning-seed", SEED, 2)[-1]

    def fedavg(rate: float, seed: int) -> Measured | None:
        if rate != pytest.approx(0.8):
            return completed(0.5 if rate == pytest.approx(0.4) else 0.1)
        return failed("diverged") if seed == last else completed(1.0)

    config = CONFIG.model_copy(update={"tuning_seeds": 3})
    first, second, *_ = study(tmp_path, ScriptedRunner(by_rate(fedavg)), config, guessing=0.49).tuned
    assert (first.learning_rate, first.num_failures) == (pytest.approx(0.4), 0)
    assert (second.learning_rate, second.num_failures) == (pytest.approx(0.8), 1)
    assert second.scores == (1.0, 1.0, 0.49)


def test_a_single_rate_that_works_is_not_trained_again(tmp_path: Path) -> None:
    """There is nothing to tell it from: further seeds would decide nothing."""
    found = tuned(tmp_path, lambda rate, seed: None if rate == pytest.approx(0.4) else failed("diverged"))
    assert found.tuned[0].learning_rate == pytest.approx(0.4)
    assert [(len(rate.trials), rate.num_failures) for rate in found.tuned] == [(1, 0), (1, 1), (1, 1), (1, 1)]


def test_the_study_s_own_rate_is_no_second_reference(tmp_path: Path) -> None:
    """Of equals the study's own rate is taken, and FedAvg is trained once a seed in the confirmation."""
    runner = ScriptedRunner(by_rate(lambda rate, seed: completed(0.5)))
    found = study(tmp_path, runner, CONFIG)
    assert found.tuned[0].learning_rate == found.baseline.learning_rate
    assert [one.role for one in found.confirmation.contestants] == ["challenger", "fedavg"]
    confirming = Counter(spec.session.seed for spec in runner.ran if spec.phase == "confirmation")
    assert set(confirming.values()) == {2}


def test_it_is_tuned_on_other_seeds_than_those_of_the_confirmation(tmp_path: Path) -> None:
    runner = ScriptedRunner(by_rate(lambda rate, seed: None))
    study(tmp_path, runner, CONFIG)
    tuning = {spec.session.seed for spec in runner.ran if spec.phase == "tuned-baseline"} - {SEED}
    assert len(tuning) == 1
    assert not tuning & {*confirmation_seeds(SEED, 1000)}


@pytest.mark.parametrize(("factors", "num_seeds"), [((0.5, 2.0), 1), ((0.25, 0.5, 2.0, 4.0), 3), ((2.0,), 5)])
def test_what_it_costs(tmp_path: Path, factors: tuple[float, ...], num_seeds: int) -> None:
    config = SearchConfig(tuning_factors=factors, tuning_seeds=num_seeds, confirmation_seeds=2)
    assert cost(tmp_path, config, best=0.9) == num_tuning_trials(config) == len(factors) + 2 * (num_seeds - 1)


def test_with_the_defaults_it_costs_six_trainings(tmp_path: Path) -> None:
    assert cost(tmp_path, SearchConfig(), best=0.9) == num_tuning_trials(SearchConfig()) == 6


@pytest.mark.parametrize("without", [{"tuned_baseline": False}, {"confirmation_seeds": 0}])
def test_without_a_confirmation_there_is_no_use_for_it(tmp_path: Path, without: dict[str, Any]) -> None:
    config = SearchConfig(**without)
    assert cost(tmp_path, config, best=0.9) == num_tuning_trials(config) == 0


def test_a_fedavg_that_is_right_on_every_row_is_not_tuned(tmp_path: Path) -> None:
    assert cost(tmp_path, SearchConfig(), best=1.0) == 0
