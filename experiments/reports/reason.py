"""Why a study tried what it advises: who proposed it and what for, and what the rules say, in a line or two.

What a difference comes from is not measured, so nothing is said of causes. What the search has found by itself is told
with what was proposed of its kind before, from which it may descend.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from fedscout.search.recommenders.first_generation import DRAWN
from fedscout.search.recommenders.recommendation import Alternative
from fedscout.strategies import FedAvgSpec

if TYPE_CHECKING:
    from fedscout.search.recommenders.recommendation import Recommendation
    from fedscout.search.study.study import StudyOutcome


def reason(outcome: StudyOutcome) -> str:
    """Return a sentence or two; empty where nothing is advised."""
    if outcome.best is None:
        return ""
    if outcome.recommendation is not None:
        return _of_one_shot(outcome, outcome.recommendation)
    rules = _rules(outcome)
    say, because = ("", "") if rules is None else (f"the rules say {rules.spec}", f" {rules.because}")
    if _keeps_fedavg(outcome):
        too = ", too" if rules is not None and rules.spec == FedAvgSpec() else ""
        return f"nothing tried is shown to be better{say and f'; {say}{too}'}.{because}"
    name, kind = _chosen(outcome)
    trained = {str(trial.spec) for trial in outcome.trials}
    proposed = [one for one in _proposed(outcome, rules) if str(one.spec) in trained]
    own = next((one for one in proposed if str(one.spec) == name), None)
    first = own or next((one for one in proposed if one.spec.label == kind), None)
    if first is None:
        return f"found by the search{say and f'; {say}'}.{because}"
    if first is rules:
        told = "the rules' answer" if own is rules else f"found by the search after the rules' {first.spec}"
    else:
        told = "among the first that were tried" if own else f"found by the search after {first.spec}"
        told = f"{say}; this was {told}" if say else told
    return f"{told}. {first.because}"


def _of_one_shot(outcome: StudyOutcome, asked: Recommendation) -> str:
    because = asked.grounds[0].because
    if not outcome.trials or not _keeps_fedavg(outcome):
        return f"it was recommended: {because}"
    return f"{asked.spec}, which was recommended, is not shown to be better: {because}"


def _keeps_fedavg(outcome: StudyOutcome) -> bool:
    """Whether FedAvg is advised, at whatever rate."""
    confirmation = outcome.confirmation
    return outcome.best is outcome.baseline if confirmation is None else confirmation.verdict != "better"


def _chosen(outcome: StudyOutcome) -> tuple[str, str]:
    """Return what is advised for people, and its kind."""
    if outcome.confirmation is not None:
        pick = outcome.confirmation.contestants[0]
        return pick.name, pick.strategy
    assert outcome.best is not None
    return str(outcome.best.spec), outcome.best.spec.label


def _rules(outcome: StudyOutcome) -> Alternative | None:
    """Return the rules' answer, which takes no trial."""
    if outcome.advice is None:
        return None
    ground = outcome.advice.grounds[0]
    return Alternative(outcome.advice.spec, ground.because, ground.source)


def _proposed(outcome: StudyOutcome, rules: Alternative | None) -> Iterator[Alternative]:
    """Yield what was proposed before the search knew anything, the rules' answer first."""
    if rules is not None:
        yield rules
    yield from (one for one in outcome.first_generation if one.because != DRAWN)
    if outcome.warm_start is not None:
        for spec, proposal in zip(outcome.warm_start.specs(), outcome.warm_start.proposals, strict=True):
            yield Alternative(spec, f"It did well in an earlier study, {proposal.study}.", proposal.study)
