"""What a study found: what to use, how sure that is and why, what it cost, and what to do next.

First the verdict with both scores, its interval and its reason; then caveats, cost, the federation with its diagnosis,
the search, and the next commands. Paragraphs are wrapped and never cut.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from fedscout.experiments.reports.diagnosis_lines import diagnosis_lines
from fedscout.experiments.reports.paragraph import WIDTH, paragraph
from fedscout.experiments.reports.verdict import verdict_lines
from fedscout.experiments.visible import visible
from fedscout.search.measure import ACCURACY, Measure

if TYPE_CHECKING:
    from rich.console import Console

    from fedscout.detectors import HeterogeneityReport
    from fedscout.search.confirmation.confirmation import Confirmation
    from fedscout.search.study.study import StudyOutcome


@dataclass(frozen=True)
class Cost:
    """What a study has cost.

    Attributes:
        num_trainings: All of them, those of fewer rounds included.
        num_known: Those of them that were in the log before.
        seconds: Of this run.
        num_short: Those that a race ended after few rounds.
    """

    num_trainings: int
    num_known: int
    seconds: float
    num_short: int = 0

    def __str__(self) -> str:
        trainings = f"{self.num_trainings} training{'' if self.num_trainings == 1 else 's'}"
        trainings += f" ({self.num_short} of few rounds)" if self.num_short else ""
        seconds = f"{self.seconds:.{0 if self.seconds >= 10 else 1}f} s"
        if self.num_known == self.num_trainings:
            return f"Cost: {trainings}, all of them from the log of an earlier run ({seconds})."
        known = f", {self.num_known} of them from the log of an earlier run" if self.num_known else ""
        return f"Cost: {trainings}{known}, {seconds}."


@dataclass(frozen=True)
class StudyScreen:
    """One study, ready to be shown.

    Attributes:
        outcome: Of search and confirmation.
        report: The diagnosis, if there was one.
        federation: The federation in a line.
        cost: What it took.
        next_steps: Label and command of what can be done next; a command may have several lines.
        measure: What the fitness measures.
        front_of: What the second of two objectives measures, if there is one.
        dependence: What must be known of rows that belong together.
    """

    outcome: StudyOutcome
    report: HeterogeneityReport | None
    federation: str
    cost: Cost
    next_steps: Sequence[tuple[str, str]] = ()
    measure: Measure = ACCURACY
    front_of: Measure | None = None
    dependence: Sequence[str] = ()

    def show(self, console: Console) -> None:
        """Print it, in lines that fit."""
        for line in self.lines(min(console.width, WIDTH)):
            console.print(line, soft_wrap=True)

    def lines(self, width: int = WIDTH) -> list[Text]:
        """Return its lines, from the first to the last."""
        return [*self._verdict(width), *self._below(width)]

    def _verdict(self, width: int) -> Iterator[Text]:
        """Yield what to use, how sure that is and why, and what else is worth knowing of it."""
        from fedscout.experiments.reports.reason import reason  # not before: it loads the strategies

        confirmation = self.outcome.confirmation
        head, *_ = verdict_lines(self.outcome, None)
        yield from paragraph(head, width, indent="", style="bold")
        if confirmation is not None:
            yield from paragraph(_how_sure(confirmation), width)
        if why := reason(self.outcome):
            yield from paragraph(f"Why: {why}", width)
        if confirmation is not None:
            yield from paragraph(_caveats(confirmation), width)

    def _below(self, width: int) -> Iterator[Text]:
        """Yield what stands below the verdict."""
        yield from paragraph(str(self.cost), width)
        yield Text()
        yield from paragraph(self.federation, width, indent="", style="bold")
        for note in self.dependence:
            yield from paragraph(note, width)
        if self.report is not None:
            yield from diagnosis_lines(self.report, width)
        if self.outcome.recommendation is not None:
            yield from paragraph(self.outcome.recommendation.answered_by, width)
        yield from paragraph(self._search(), width)
        yield from paragraph("; ".join(self.outcome.notes), width)
        yield Text()
        for label, command in self.next_steps:
            for number, line in enumerate(command.split("\n")):
                yield Text(f"{label if number == 0 else '':<8}", style="bold").append(visible(line), style="not bold")

    def _search(self) -> str:
        """Return what was tried, and the best of each kind."""
        outcome, measure = self.outcome, self.measure
        best: dict[str, float] = {}
        for trial in outcome.whole_trials:
            if trial.status != "failed":
                best[trial.spec.label] = max(trial.fitness, best.get(trial.spec.label, trial.fitness))
        num_failed = sum(trial.status == "failed" for trial in outcome.trials)
        told = f"Tried {len(outcome.trials)}"
        if outcome.recommendation is not None:
            seeds = 0 if outcome.confirmation is None else len(outcome.confirmation.seeds)
            told = "Trained what was recommended once" + (f", and on {seeds} fresh seeds" if seeds else "")
        if num_failed:
            told += f", {num_failed} failed ({_failures(outcome)})"
        if outcome.front:
            second = "" if self.front_of is None else f" by {measure.name} and {self.front_of.name}"
            told += f", {len(outcome.front)} on the front{second}"
        if outcome.baseline.status == "failed":
            return f"{told}; FedAvg failed ({first_line_of(outcome.baseline.error)})"
        if outcome.at_ceiling:
            return f"{told}: FedAvg has the best score there can be, and the search ended"
        if outcome.recommendation is not None and not outcome.trials:
            return "FedAvg is what was recommended, and nothing else was trained"
        ranked = sorted(best, key=lambda kind: -best[kind])
        gains = [f"{kind} {measure.number(best[kind] - outcome.baseline.fitness)}" for kind in ranked]
        return f"{told}, in {measure.unit} against FedAvg: {', '.join(gains)}" if gains else told


def _failures(outcome: StudyOutcome) -> str:
    """Return the failed configurations with the reason of each, the same reason once."""
    reasons: dict[str, list[str]] = {}
    for trial in outcome.trials:
        if trial.status == "failed":
            reasons.setdefault(first_line_of(trial.error), []).append(str(trial.spec))
    return "; ".join(f"{', '.join(specs)}: {reason}" for reason, specs in reasons.items())


def first_line_of(error: str | None) -> str:
    """Return the first line of a trial's error without its full stop."""
    return next(iter((error or "no reason known").splitlines())).rstrip(".")


def _how_sure(confirmation: Confirmation) -> str:
    """Return both scores, their difference and its interval; or why there is no verdict."""
    from fedscout.search.confirmation.confirmation import reference_name

    if confirmation.no_verdict:
        return f"No verdict: {confirmation.no_verdict}. Measured: {confirmation.scores_text}."
    reference = next(one for one in confirmation.contestants if one.role == confirmation.reference)
    difference = confirmation.versus[confirmation.reference][confirmation.view]
    measure, name, rival = confirmation.measure, confirmation.contestants[0].strategy, reference_name(reference)
    count = len(difference.differences)
    seeds = f"{count} fresh seed{'s' if count > 1 else ''}"
    gain = f"{confirmation.scores_text}, {measure.told(difference.mean)}"
    if difference.low is None or difference.high is None:
        return f"{name} and {rival}: {gain} on {seeds}; an interval takes at least two seeds."
    interval = f"95 % interval {measure.number(difference.low)} to {measure.number(difference.high)}, {seeds}"
    if confirmation.verdict == "better":
        return f"It is better than {rival}: {gain} ({interval})."
    if confirmation.verdict == "worse":
        return f"The search's best, {name}, is worse than {rival}: {gain} ({interval})."
    design = confirmation.design
    if confirmation.gave_up:
        if difference.low == -(design.span or 0.0) and difference.high == design.span:
            interval = f"{count} of {design.max_seeds} fresh seeds rule nothing out"
        left = f"{design.max_seeds - count} more seeds would hardly show a difference"
        return f"{name} and {rival} are not shown to differ: {gain} ({interval}); {left}."
    return f"{name} and {rival} are not shown to differ: {gain} ({interval}, which holds zero)."


def _caveats(confirmation: Confirmation) -> str:
    """Return what else is worth knowing of the verdict, the weightiest first; empty if nothing is."""
    from fedscout.search.confirmation.confirmation import failures_told, rivals_told

    told = [failures_told(confirmation.contestants), *confirmation.caveats, rivals_told(confirmation.rivals)]
    return " ".join(part.strip() for part in told if part)
