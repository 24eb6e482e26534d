"""What a study found, on one screen of 80 × 24: what to use, how sure, why, what it cost, and what to do next.

Every part has its most lines, and what is longer ends in `…`: in the first 5 lines what to use, by how much better, how
sure and why, then 3 of what else is worth knowing of that, 1 of cost, 1 of the federation, 3 of rows that belong
together, 4 of diagnosis, 1 of the search, 2 of what it never tried, and what to do next. The commands alone are never
cut; where they are long, what is told of the verdict is shorter, and no line is empty. Where nothing was searched, 2
lines say who recommended what was trained.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.text import Text

from fedscout.experiments.reports.diagnosis_lines import diagnosis_lines
from fedscout.experiments.reports.naming import Naming
from fedscout.experiments.reports.paragraph import WIDTH, paragraph
from fedscout.experiments.reports.verdict import verdict_lines
from fedscout.experiments.visible import visible
from fedscout.search.measure import ACCURACY, Measure

if TYPE_CHECKING:
    from rich.console import Console

    from fedscout.detectors import HeterogeneityReport
    from fedscout.search.confirmation.confirmation import Confirmation
    from fedscout.search.study.study import StudyOutcome


SCREEN = 24
"""Lines of all."""
VERDICT = 5
"""Lines in which the verdict and its reason stand."""
BESIDE = 3
"""Lines of what else is worth knowing of it."""


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
        naming: Of its clients and classes.
        cost: What it took.
        next_steps: Label and command of what can be done next; a command may have several lines.
        measure: What the fitness measures.
        front_of: What the second of two objectives measures, if there is one.
        dependence: What must be known of rows that belong together.
    """

    outcome: StudyOutcome
    report: HeterogeneityReport | None
    federation: str
    naming: Naming
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
        below = [*self._below(width)]
        left = SCREEN - len(below)
        told = "" if self.outcome.confirmation is None else _beside(self.outcome.confirmation)
        num_beside = len(paragraph(told, width, BESIDE))
        verdict = self._verdict(width, 2 if VERDICT + num_beside <= left else 1)
        beside = paragraph(told, width, min(BESIDE, max(1, left - len(verdict))))
        lines = [*verdict, *beside, *below]
        return lines if len(lines) <= SCREEN else [line for line in lines if line.plain]

    def _below(self, width: int) -> Iterator[Text]:
        """Yield what stands below the verdict."""
        yield from paragraph(str(self.cost), width, 1)
        yield Text()
        yield from paragraph(self.federation, width, 1, indent="", style="bold")
        yield from paragraph(" ".join(self.dependence), width, 3)
        if self.report is not None:
            yield from diagnosis_lines(self.report, self.naming, width)
        if self.outcome.recommendation is not None:
            yield from paragraph(self.outcome.recommendation.answered_by, width, 2)
        yield from paragraph(self._search(), width, 1)
        yield from paragraph("; ".join(self.outcome.notes), width, 2)
        yield Text()
        for label, command in self.next_steps:
            for number, line in enumerate(command.split("\n")):
                yield Text(f"{label if number == 0 else '':<8}", style="bold").append(visible(line), style="not bold")

    def _verdict(self, width: int, most_of_why: int) -> list[Text]:
        """Return what to use, how sure that is and why, in `VERDICT` lines at most."""
        from fedscout.experiments.reports.reason import reason  # not before: it loads the strategies

        head, *_ = verdict_lines(self.outcome, None)
        lines = paragraph(head, width, 2, indent="", style="bold")
        if self.outcome.confirmation is not None:
            lines += paragraph(_how_sure(self.outcome.confirmation), width, VERDICT - 1 - len(lines))
        if why := self.naming.told(reason(self.outcome)):
            lines += paragraph(f"Why: {why}", width, min(most_of_why, VERDICT - len(lines)))
        return lines

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
            told += f", {num_failed} failed"
        if outcome.front:
            second = "" if self.front_of is None else f" by {measure.name} and {self.front_of.name}"
            told += f", {len(outcome.front)} on the front{second}"
        if outcome.baseline.status == "failed":
            return f"{told}; FedAvg failed ({(outcome.baseline.error or '')[:60]})"
        if outcome.at_ceiling:
            return f"{told}: FedAvg has the best score there can be, and the search ended"
        if outcome.recommendation is not None and not outcome.trials:
            return "FedAvg is what was recommended, and nothing else was trained"
        ranked = sorted(best, key=lambda kind: -best[kind])
        gains = [f"{kind} {measure.number(best[kind] - outcome.baseline.fitness)}" for kind in ranked]
        return f"{told}, in {measure.unit} against FedAvg: {', '.join(gains)}" if gains else told


def _how_sure(confirmation: Confirmation) -> str:
    """Return the difference to the reference with its interval."""
    from fedscout.search.confirmation.confirmation import reference_name

    reference = next(one for one in confirmation.contestants if one.role == confirmation.reference)
    difference = confirmation.versus[confirmation.reference][confirmation.view]
    measure, name = confirmation.measure, confirmation.contestants[0].strategy
    count = len(difference.differences)
    seeds = f"{count} fresh seed{'s' if count > 1 else ''}"
    gain = measure.told(difference.mean) + (" of accuracy" if measure.is_accuracy else "")
    if difference.low is None or difference.high is None:
        return f"{name}: {gain} on {seeds}, and it takes two to tell that from noise."
    interval = f"95 % interval {measure.number(difference.low)} to {measure.number(difference.high)}, {seeds}"
    rival, design = reference_name(reference), confirmation.design
    if confirmation.verdict == "better":
        return f"{gain} against {rival} ({interval})."
    if confirmation.gave_up:
        if difference.low == -(design.span or 0.0) and difference.high == design.span:
            interval = f"{count} of {design.max_seeds} fresh seeds rule nothing out"
        return f"{name} can't be told from {rival}: {gain} ({interval}), and more would hardly tell."
    found = f"worse than {rival}" if confirmation.verdict == "worse" else f"not better than {rival} beyond noise"
    return f"{name} is {found}: {gain} ({interval})."


def _beside(confirmation: Confirmation) -> str:
    """Return what is worth knowing of the verdict, the weightiest first, as its end may be cut; empty if nothing is."""
    from fedscout.search.confirmation.confirmation import failures_told, rivals_told

    told = [failures_told(confirmation.contestants), *confirmation.caveats, rivals_told(confirmation.rivals)]
    return " ".join(part.strip() for part in told if part)
