"""How many rounds a study trains that leaves it to FedAvg."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from fedscout.engine.trials.record import Trial, TrialSettings
from fedscout.search.study import early_stopping, has_converged
from fedscout.search.warm_start import full_rounds
from tests.search.studies import Measured, ScriptedRunner, failed, of_rounds, open_ledger


@pytest.mark.parametrize(("level", "rounds"), [(0, 10), (5, 20), (10, 40), (20, 80), (37, 80), (38, 100), (200, 100)])
def test_rounds_double_until_the_second_half_brings_nothing(tmp_path: Path, level: int, rounds: int) -> None:
    """Accuracy rises by a point a round, and stays from a round on."""

    def rising(spec: TrialSettings) -> Measured:
        return of_rounds(0.3 + 0.01 * min(number, level) for number in range(1, spec.num_rounds + 1))

    runner = ScriptedRunner(rising)
    ledger = open_ledger(tmp_path, runner)
    ledger.facts = replace(ledger.facts, num_rounds=100)
    assert early_stopping(ledger) == rounds
    assert ledger.facts.num_rounds == ledger.facts.cohort.num_rounds == rounds
    assert [spec.num_rounds for spec in runner.ran] == [n for n in (10, 20, 40, 80) if n <= rounds]
    assert {spec.full_rounds for spec in runner.ran} <= {100}


def test_a_fedavg_that_fails_has_levelled_off(tmp_path: Path) -> None:
    ledger = open_ledger(tmp_path, ScriptedRunner(lambda spec: failed("diverged")))
    ledger.facts = replace(ledger.facts, num_rounds=100)
    assert early_stopping(ledger) == 10


def test_the_deciding_view_counts() -> None:
    trial = Trial(round_accuracy=(0.5,) * 10, round_clean_accuracy=tuple(0.1 * n for n in range(10)))
    assert has_converged(trial)
    assert not has_converged(trial, "clean")


def test_a_later_study_knows_the_full_trainings() -> None:
    assert full_rounds({"num_rounds": 200, "early_stopping": True}, [10, 20, 40]) == 40
    assert full_rounds({"num_rounds": 200}, [10]) == 200
