"""What a study says first: what to use, by how much better, how sure, and why."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import verdicts
from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.reports.console import PlainConsole
from fedscout.experiments.reports.study_console import show_verdict, verdict_lines
from fedscout.search.config import SearchConfig
from fedscout.search.study import StudyOutcome, run_study
from tests.search.recommenders.reports import report_of
from tests.search.studies import NUM_CLIENTS, SEED, Measured, ScriptedRunner, completed, failed, open_ledger

SETTINGS = {"strategies": ("fedmedian", "fedadam"), "budget": 2, "confirmation_seeds": 3, "tuned_baseline": False}
ALIKE = report_of(rows=(160,) * NUM_CLIENTS, distances=(1.0,) * NUM_CLIENTS)
SKEWED = report_of(divergence=0.5, rows=(160,) * NUM_CLIENTS, distances=(1.0,) * NUM_CLIENTS, num_classes=10)


def found(
    folder: Path,
    outcome: Callable[[TrialSettings], Measured],
    report: HeterogeneityReport | None = None,
    **settings: Any,
) -> StudyOutcome:
    config = SearchConfig.model_validate({**SETTINGS, **settings})
    return run_study(config, open_ledger(folder, ScriptedRunner(outcome)), report)


def by_kind(**means: float) -> Callable[[TrialSettings], Measured]:
    """Return trials whose accuracy is that of their kind, 0.5 if none is given."""
    return lambda spec: completed(means.get(spec.strategy.kind, 0.5))


def sentence_of(outcome: StudyOutcome) -> str:
    assert outcome.confirmation is not None
    return outcome.confirmation.sentence


def test_what_is_better_is_to_be_used(tmp_path: Path) -> None:
    outcome = found(tmp_path, by_kind(fedmedian=0.75))
    assert [*verdict_lines(outcome, None)] == ["Use fedmedian.", sentence_of(outcome)]
    assert sentence_of(outcome).startswith("fedmedian ")
    assert "+25.0 points" in sentence_of(outcome)


@pytest.mark.parametrize("best", [0.25, 0.5])
def test_where_nothing_is_better_fedavg_is_to_be_used(tmp_path: Path, best: float) -> None:
    outcome = found(tmp_path, by_kind(fedmedian=best, fedadam=0.25))
    assert [*verdict_lines(outcome, None)] == ["Use FedAvg.", sentence_of(outcome)]


def test_where_fedavg_at_another_rate_is_as_good_that_is_to_be_used(tmp_path: Path) -> None:
    """The median beats plain FedAvg by 20 points, and FedAvg at four times the step is 30 better."""
    means = {0.2: 0.5, 0.8: 0.8}

    def outcome(spec: TrialSettings) -> Measured:
        rate = spec.session.training.learning_rate
        return completed(means.get(rate, 0.3) if spec.strategy.kind == "fedavg" else 0.7)

    first, second = verdict_lines(found(tmp_path, outcome, tuned_baseline=True), None)
    assert first.startswith("Use FedAvg ")
    assert all("rate 0.8" in line for line in (first, second))


def test_what_was_not_confirmed_is_only_the_best_of_the_search(tmp_path: Path) -> None:
    outcome = found(tmp_path, by_kind(fedmedian=0.75), confirmation_seeds=0)
    (line,) = verdict_lines(outcome, None)
    assert line.startswith("Best of the search: fedmedian;")


@pytest.mark.parametrize("report", [None, SKEWED])
def test_where_no_trial_went_through_nothing_is_advised(tmp_path: Path, report: HeterogeneityReport | None) -> None:
    outcome = found(tmp_path, lambda spec: failed("diverged"), report)
    (line,) = verdict_lines(outcome, report)
    assert line.startswith("No trial ")


def test_what_was_detected_is_told_and_why_the_winner_was_tried(tmp_path: Path) -> None:
    outcome = found(tmp_path, by_kind(fedadam=0.75), SKEWED, informed=True)
    tried = outcome.first_generation[0]
    assert tried.spec.kind == "fedadam"
    (skew,) = [verdict for verdict in verdicts(SKEWED) if verdict.detected]
    *lines, why = verdict_lines(outcome, SKEWED)
    assert lines == [f"Use {tried.spec}.", sentence_of(outcome), skew.sentence]
    assert why.endswith(f": {tried.explanation}")


def test_clients_that_are_alike_are_called_so_and_fedavg_needs_no_reason(tmp_path: Path) -> None:
    outcome = found(tmp_path, by_kind(fedadam=0.25), ALIKE, informed=True)
    assert outcome.first_generation
    *lines, alike = verdict_lines(outcome, ALIKE)
    assert lines == ["Use FedAvg.", sentence_of(outcome)]
    assert "No difference" in alike


def test_the_reason_is_that_of_what_is_advised_not_of_what_was_lucky_in_the_search(tmp_path: Path) -> None:
    """Of two that are confirmed, the one that was best on the search's seed is as bad as FedAvg on all others."""
    kinds = ("fedadam", "fedyogi")

    def outcome(spec: TrialSettings) -> Measured:
        lucky = spec.session.seed == SEED and spec.strategy.kind == "fedadam"
        return completed(0.9 if lucky else 0.75 if spec.strategy.kind == "fedyogi" else 0.5)

    settings = {"strategies": kinds, "informed": True, "budget": 4, "confirmation_top": 4}
    study = found(tmp_path, outcome, SKEWED, **settings)
    assert study.best is not None
    assert study.best.spec.kind == "fedadam"
    first, *_, last = verdict_lines(study, SKEWED)
    (advised,) = [one for one in study.first_generation if first == f"Use {one.spec}."]
    assert advised.spec.kind == "fedyogi"
    assert last.endswith(f": {advised.explanation}")


def test_the_lines_are_printed_as_they_are(tmp_path: Path) -> None:
    outcome = found(tmp_path, by_kind(fedmedian=0.75))
    file = io.StringIO()
    show_verdict(PlainConsole(file=file, width=400), outcome, None)
    assert file.getvalue() == f"  Use fedmedian.\n  {sentence_of(outcome)}\n"
