"""The verdict of a study in a few lines: what to use, by how much better, how sure, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

    from fedscout.detectors import HeterogeneityReport
    from fedscout.search.study.study import StudyOutcome


def show_verdict(console: Console, outcome: StudyOutcome, report: HeterogeneityReport | None) -> None:
    """Print the verdict, which comes before all that it rests on."""
    for line in verdict_lines(outcome, report):
        console.print(f"  {line}")


def verdict_lines(outcome: StudyOutcome, report: HeterogeneityReport | None) -> Iterator[str]:
    """Yield what to use first; then, where they are known, the measured difference, and the reasons."""
    confirmation = outcome.confirmation
    if outcome.best is None:
        yield "No trial went through: nothing can be advised."
        return
    if outcome.recommendation is not None and not outcome.trials:
        yield "Use fedavg, as recommended: it is the reference itself, so there is nothing to confirm."
        return
    named = str(outcome.best.spec) if confirmation is None else confirmation.advised
    if confirmation is None:
        yield f"Best of the search: {named}; not confirmed on fresh seeds."
    else:
        yield f"Use {named}."
        yield confirmation.sentence
    if report is not None:
        yield _found(report)
    yield from (f"Why it was tried: {one.because}" for one in outcome.first_generation if str(one.spec) == named)


def _found(report: HeterogeneityReport) -> str:
    from fedscout.detectors.verdict import verdicts

    found = [verdict.sentence for verdict in verdicts(report) if verdict.detected]
    return " ".join(found) or "The clients are alike, as far as was measured."
