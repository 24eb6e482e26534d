"""Why a study tried what it advises: who proposed it, and what the rules say."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fedscout.detectors import HeterogeneityReport
from fedscout.engine.trials.record import TrialSettings
from fedscout.experiments.reports.study_console import reason
from fedscout.search.recommenders.diagnosis import Alternative
from fedscout.search.recommenders.rules import DRAWN
from fedscout.search.study import StudyOutcome
from fedscout.search.warm_start import WarmProposal, WarmStart
from fedscout.strategies import StrategySpec, parse_strategy
from tests.experiments.reports.test_verdict import ALIKE, SKEWED, by_kind, found
from tests.search.studies import Measured, completed, failed


def only(name: str) -> Callable[[TrialSettings], Measured]:
    """Return trials of which one configuration is good."""
    return lambda spec: completed(0.75 if str(spec.strategy) == name else 0.5)


def study(
    folder: Path, outcome: Callable[[TrialSettings], Measured], report: Any = SKEWED, **more: Any
) -> StudyOutcome:
    return found(folder, outcome, report, **{"informed": True, "budget": 4, **more})


def advice(outcome: StudyOutcome) -> tuple[StrategySpec, str]:
    assert outcome.advice is not None
    return outcome.advice.spec, outcome.advice.reasons[0].explanation


def test_of_the_rules_answer_it_is_what_decided_there(tmp_path: Path) -> None:
    outcome = study(tmp_path, by_kind(fedadam=0.75), budget=2)
    spec, explanation = advice(outcome)
    assert str(outcome.best and outcome.best.spec) == str(spec)
    tells(outcome, "by the rules", explanation)


def tells(outcome: StudyOutcome, *names: str) -> None:
    """Hold that the reason names these, in their order, and ends with the last."""
    said = reason(outcome)
    assert re.search(".*".join(map(re.escape, names)) + "$", said), said


def test_what_was_proposed_first_tells_its_own_reason_and_what_the_rules_say_instead(tmp_path: Path) -> None:
    again = study(tmp_path / "plain", by_kind(), strategies=("fedadam", "fedavgm", "fedyogi"))
    spec, _ = advice(again)
    other = next(one for one in again.first_generation if one.explanation != DRAWN and one.spec.kind != spec.kind)
    outcome = study(tmp_path / "other", only(str(other.spec)), strategies=("fedadam", "fedavgm", "fedyogi"))
    tells(outcome, f"the rules recommend {spec};", "first", f". {other.explanation}")


def test_what_the_search_found_tells_what_was_proposed_of_its_kind(tmp_path: Path) -> None:
    """A mutant of the rules' answer is the best."""
    seen: list[StrategySpec] = []

    def outcome_of(spec: TrialSettings) -> Measured:
        kinds = [one for one in seen if one.kind == "fedadam"]
        if spec.strategy.kind == "fedadam" and spec.strategy not in kinds:
            seen.append(spec.strategy)
        place = seen.index(spec.strategy) if spec.strategy in seen else -1
        return completed(0.6 + 0.05 * place if place >= 0 else 0.5)

    outcome = study(tmp_path, outcome_of, strategies=("fedadam",), budget=8)
    spec, explanation = advice(outcome)
    assert outcome.best is not None
    assert outcome.best.spec != spec
    tells(outcome, "found by the search", f"the rules' {spec}. {explanation}")


def test_what_was_drawn_is_found_by_the_search_and_has_no_reason_of_its_own(tmp_path: Path) -> None:
    outcome = study(tmp_path, by_kind(fedmedian=0.75), informed=False)
    spec, explanation = advice(outcome)
    drawn = Alternative(parse_strategy({"kind": "fedmedian"}), DRAWN, "")
    outcome = replace(outcome, first_generation=(drawn,))
    tells(outcome, "found by the search;", f"the rules recommend {spec}. {explanation}")


def test_what_was_never_trained_came_before_nothing(tmp_path: Path) -> None:
    """The search draws from the whole space, of which another FedAdam than the rules' is the best."""
    outcome = study(tmp_path, by_kind(fedadam=0.75), informed=False)
    spec, explanation = advice(outcome)
    assert spec.kind == "fedadam"
    assert spec not in [trial.spec for trial in outcome.trials]
    tells(outcome, "found by the search;", f"the rules recommend {spec}. {explanation}")


def test_without_a_diagnosis_no_rule_is_named(tmp_path: Path) -> None:
    for name, outcome in (("found", by_kind(fedmedian=0.75)), ("no other", by_kind())):
        said = reason(study(tmp_path / name, outcome, None))
        assert said.startswith(name)
        assert "rules" not in said


def test_an_earlier_study_is_named(tmp_path: Path) -> None:
    outcome = study(tmp_path, by_kind(fedmedian=0.75), None)
    proposal = WarmProposal(strategy={"kind": "fedmedian"}, study="runs/like", gain=0.1)
    tells(replace(outcome, warm_start=WarmStart(studies=(), proposals=(proposal,))), "first", "runs/like.")


@pytest.mark.parametrize("report", [ALIKE, SKEWED])
@pytest.mark.parametrize("seeds", [0, 3])
def test_where_fedavg_is_kept_the_rules_answer_is_told_all_the_same(
    tmp_path: Path, report: HeterogeneityReport, seeds: int
) -> None:
    outcome = study(tmp_path, by_kind(fedadam=0.25, fedmedian=0.25), report, confirmation_seeds=seeds)
    spec, explanation = advice(outcome)
    too = ", too" if spec.kind == "fedavg" else ""
    tells(outcome, "no other ", f"the rules recommend {spec}{too}. {explanation}")


def test_where_nothing_went_through_there_is_no_reason(tmp_path: Path) -> None:
    assert reason(study(tmp_path, lambda spec: failed("diverged"))) == ""
