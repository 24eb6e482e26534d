"""Terminal output of a study: verdict with caveats and reason, cost, federation with diagnosis, search, next commands.

The verdict states what to use, both scores with the interval of their difference, and why the strategy was tried: who
proposed it and what the rules recommend. Causes of a difference are not measured, so none are claimed. Paragraphs are
wrapped and never truncated. `--verbose` adds the diagnosis in sentences and both intervals of the verdict.

The diagnosis has one line per property: whether the federation has it, its strength, and the affected clients. The
verdict is the calibrated test's, or the published rule's if no test was configured. Strength is that of the most
extreme client in the unit of the deciding finding: the share of its rows that would have to change class, its shift in
standard deviations, how much less its labels depend on its rows, or how much farther its models lie. A full bar is all
of the rows, one standard deviation, or 100 %. For a published rule it is the value relative to the threshold, at which
the bar is full. Lines below state what clients withhold, and why there is no verdict where rows seem to belong
together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.filesize import decimal
from rich.text import Text

from fedscout.detectors.report import TITLES, CalibratedFinding, Finding, HeterogeneityReport, Verdict, verdicts
from fedscout.detectors.statistics import evidence_order
from fedscout.engine.data.federation import Federation, Names
from fedscout.engine.trials.record import Trial
from fedscout.experiments.reports.console import WIDTH, paragraph, seconds_text, show_path
from fedscout.experiments.text import visible
from fedscout.search.objective import ACCURACY, Measure
from fedscout.search.recommenders.rules import DRAWN
from fedscout.strategies import FedAvgSpec, StrategySpec
from fedscout.strategies.specification import SELECTION

if TYPE_CHECKING:
    from fedscout.experiments.studies.workflow import FinishedStudy
    from fedscout.search.study import StudyOutcome


def headline(outcome: StudyOutcome) -> str:
    """Return what to use, or why nothing is recommended."""
    if outcome.best is None:
        return "No trial completed, so there is no recommendation."
    if outcome.recommendation is not None and not outcome.trials:
        return "Use fedavg, as recommended; it is the baseline itself, so there is nothing to confirm."
    if outcome.confirmation is None:
        return f"Best of the search: {outcome.best.spec}; not confirmed on fresh seeds."
    return f"Use {outcome.confirmation.advised}."


SEVERITY_BAR = 10
"""Characters of a full bar."""

COPIED = "No verdict: rows seem to depend on each other (see federation.group_column)."


def diagnosis_lines(report: HeterogeneityReport, width: int) -> Iterator[Text]:
    """Yield a line per verdict of a report, then notes on dependent rows and on what clients withhold."""
    all_verdicts = verdicts(report)
    for verdict in all_verdicts:
        answer, style = answer_of(verdict)
        line = Text(f"  {TITLES[verdict.name]:<16}")
        line.append(f"{answer:<4}", style=style)
        strength, in_words = verdict_strength(verdict)
        line.append(f"{bar(strength):<{SEVERITY_BAR}}", style=style)
        line.append(f" {in_words:<19} ")
        clients = verdict.decided_by.flagged_clients
        clients_text = few_clients(report.names, clients, width - line.cell_len) if verdict.detected else ""
        line.append(visible(clients_text))
        line.truncate(width, overflow="ellipsis")
        line.rstrip()
        yield line
    if report.rows_belong_together and not all(verdict.measured for verdict in all_verdicts):
        yield from paragraph(COPIED, width, style="yellow")
    yield from paragraph(report.withholding, width, style="dim")


def show_diagnosis(console: Console, report: HeterogeneityReport, in_full: bool = False) -> None:
    """Print the diagnosis, with a sentence per property present or not measured, and further findings.

    In full, it has a sentence per property, with the published rule's below it, and notes.
    """
    width = min(console.width, WIDTH)
    for line in diagnosis_lines(report, width):
        console.print(line, soft_wrap=True)
    texts = []
    for verdict in verdicts(report):
        if in_full or verdict.detected or not verdict.measured:
            texts += [(verdict.sentence, ""), (verdict.published_line if in_full else "", "dim")]
    texts += [(text, "") for text in (*report.further_sentences, *(report.notes if in_full else ()))]
    for text, style in texts:
        for line in paragraph(text, width, style=style):
            console.print(line, soft_wrap=True)


def few_clients(names: Names, clients: Sequence[int], width: int) -> str:
    """Return clients in a text of this width, such as `clients 3, 5, 8 and 12 others`; one at least."""
    plural = "s" if len(clients) > 1 else ""
    line = ""
    for shown in range(len(clients), 0, -1):
        others = len(clients) - shown
        rest = f" and {others} other{'s' if others > 1 else ''}" if others else ""
        line = f"client{plural} {', '.join(map(names.client, clients[:shown]))}{rest}"
        if len(line) <= width:
            break
    return line


def answer_of(verdict: Verdict) -> tuple[str, str]:
    """Return whether a property was found, in a word, and the colour of the word."""
    if not verdict.measured:
        return "?", "dim"
    return ("yes", "red") if verdict.detected else ("no", "green")


def verdict_strength(verdict: Verdict) -> tuple[float, str]:
    """Return how much of a bar a verdict fills, 0 or more, and its strength in words."""
    finding = verdict.decided_by
    if isinstance(finding, Finding):
        if finding.value is None:
            return 0.0, "not measured"
        return (
            finding.value / finding.threshold if finding.threshold else 0.0,
            f"{finding.value:.2g} vs {finding.threshold:.2g}",
        )
    if finding.effect is None:
        return 0.0, "not measured"
    effect = max(finding.effect, 0.0)
    return effect, _effect_text(finding, effect)


def _effect_text(found: CalibratedFinding, effect: float) -> str:
    if found.name == "feature_skew":
        return f"up to {effect:.2g} std. dev."
    if found.name == "label_skew":
        return f"up to {effect:.0%} of rows"
    leader = min(found.clients.values(), key=evidence_order, default=None)
    is_by_models = leader is not None and leader.source == "models"
    return f"{effect:.0%} farther" if is_by_models else f"up to {min(effect, 1.0):.0%} of labels"


def bar(strength: float) -> str:
    """Return a bar with a resolution of 1/8 character, full at 1."""
    eighths = round(8 * SEVERITY_BAR * min(max(strength, 0.0), 1.0))
    part = " ▏▎▍▌▋▊▉"[eighths % 8].strip()
    return "█" * (eighths // 8) + part


@dataclass(frozen=True)
class StudyScreen:
    """Terminal output of a study.

    Attributes:
        outcome: Outcome of search and confirmation.
        report: The diagnosis, or None.
        federation: The federation in one line.
        cost: Cost of the study, in a sentence.
        next_steps: Label and command of possible next steps; a command may have several lines.
        measure: What the fitness measures.
        dependence: Notes on rows that depend on each other.
    """

    outcome: StudyOutcome
    report: HeterogeneityReport | None
    federation: str
    cost: str
    next_steps: Sequence[tuple[str, str]] = ()
    measure: Measure = ACCURACY
    dependence: Sequence[str] = ()

    def show(self, console: Console) -> None:
        """Print the study, wrapped to the console's width."""
        for line in self.lines(min(console.width, WIDTH)):
            console.print(line, soft_wrap=True)

    def lines(self, width: int = WIDTH) -> Iterator[Text]:
        """Yield all lines in order."""
        confirmation = self.outcome.confirmation
        yield from paragraph(headline(self.outcome), width, indent="", style="bold")
        if confirmation is not None:
            yield from paragraph(confirmation.sentence, width)
        if why := reason(self.outcome):
            yield from paragraph(f"Why: {why}", width)
        yield from paragraph(self.cost, width)
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
        """Return a summary of the search, with the best trial of each kind."""
        outcome, measure = self.outcome, self.measure
        best: dict[str, float] = {}
        for trial in outcome.full_trials:
            if trial.status != "failed":
                best[trial.spec.label] = max(trial.fitness, best.get(trial.spec.label, trial.fitness))
        num_failed = sum(trial.status == "failed" for trial in outcome.trials)
        summary = f"Tried {len(outcome.trials)} configuration{'s' if len(outcome.trials) != 1 else ''}"
        if outcome.recommendation is not None:
            seeds = 0 if outcome.confirmation is None else len(outcome.confirmation.seeds)
            summary = "Trained the recommended strategy once" + (f" and on {seeds} fresh seeds" if seeds else "")
        if num_failed:
            summary += f", {num_failed} failed ({_failures(outcome)})"
        if outcome.baseline.status == "failed":
            return f"{summary}; FedAvg failed ({first_line_of(outcome.baseline.error)})"
        if outcome.is_perfect:
            return f"{summary}: FedAvg has the best possible score, so the search ended"
        if outcome.recommendation is not None and not outcome.trials:
            return "FedAvg was recommended, and nothing else was trained"
        ranked = sorted(best, key=lambda kind: -best[kind])
        gains = [f"{kind} {measure.number(best[kind] - outcome.baseline.fitness)}" for kind in ranked]
        return f"{summary}; {measure.unit} vs. untuned FedAvg, one seed: {', '.join(gains)}" if gains else summary


def _failures(outcome: StudyOutcome) -> str:
    """Return the failed configurations grouped by reason."""
    reasons: dict[str, list[str]] = {}
    for trial in outcome.trials:
        if trial.status == "failed":
            reasons.setdefault(first_line_of(trial.error), []).append(str(trial.spec))
    return "; ".join(f"{', '.join(specs)}: {reason}" for reason, specs in reasons.items())


def first_line_of(error: str | None) -> str:
    """Return the first line of a trial's error without the final period."""
    return next(iter((error or "unknown reason").splitlines())).rstrip(".")


def reason(outcome: StudyOutcome) -> str:
    """Return a sentence or two on why the strategy was tried; empty where nothing is recommended."""
    confirmation, recommendation, advice = outcome.confirmation, outcome.recommendation, outcome.advice
    if outcome.best is None:
        return ""
    keeps_fedavg = outcome.best is outcome.baseline if confirmation is None else confirmation.verdict != "better"
    if recommendation is not None:
        explanation = recommendation.reasons[0].explanation
        if not outcome.trials or not keeps_fedavg:
            return f"it was recommended: {explanation}"
        return f"{recommendation.spec}, which was recommended, is not shown to be better: {explanation}"
    rules_text = "" if advice is None else f"fedscout's rules recommended {advice.spec}"
    explanation = "" if advice is None else f" {advice.reasons[0].explanation}"
    if keeps_fedavg:
        also = ", too" if advice is not None and advice.spec == FedAvgSpec() else ""
        return f"no other strategy is shown to be better{rules_text and f'; {rules_text}{also}'}.{explanation}"
    name = str(outcome.best.spec) if confirmation is None else confirmation.candidates[0].name
    first = next((why for spec, why in _first_proposals(outcome) if str(spec) == name), None)
    if advice is not None and str(advice.spec) == name:
        origin = "recommended by fedscout's rules"
    elif first is not None:
        origin, explanation = f"{rules_text and f'{rules_text}; this was '}among the first configurations", f" {first}"
    else:
        origin = f"found by the search{rules_text and f'; {rules_text}'}"
    return f"{origin}.{explanation}"


def _first_proposals(outcome: StudyOutcome) -> Iterator[tuple[StrategySpec, str]]:
    """Yield the proposals that the diagnosis or earlier studies made before the search had any result, and why."""
    for alternative in outcome.first_generation:
        if alternative.explanation != DRAWN:
            yield alternative.spec, alternative.explanation
    if outcome.warm_start is not None:
        for spec, proposal in zip(outcome.warm_start.specs(), outcome.warm_start.proposals, strict=True):
            yield spec, f"It did well in an earlier study, {proposal.study}."


# What --verbose adds, and what the other commands on studies print.


def show_details(console: Console, finished: FinishedStudy) -> None:
    """Print the federation, the diagnosis in sentences, both intervals of the verdict, and where the files are."""
    console.print("\nDetails", style="bold")
    show_federation(console, finished.federation)
    if finished.report is not None:
        console.print("\nDiagnosis", style="bold")
        show_diagnosis(console, finished.report, in_full=True)
    if finished.outcome.confirmation is not None:
        console.print("\nConfirmation", style="bold")
        console.print(finished.outcome.confirmation.intervals_text)
    console.print()
    show_path(console, "Log of every trial", finished.folder / "trials", " (fedscout trials shows it)")
    show_path(console, "Result", finished.folder / "result.json")


def federation_line(federation: Federation) -> str:
    """Return a one-line summary of a federation."""
    sizes, task = federation.partition.sizes, federation.task
    if task is not None:
        score = f"maximum {task.score_name} {task.largest_score:g}"
        return f"{federation.name}: reinforcement learning, {federation.num_classes} actions, {score}"
    predicted = federation.target_name
    task_text = f"regression target {predicted}" if predicted else f"{federation.num_classes} classes"
    return f"{federation.name}: {sizes.sum()} rows, {task_text}, {sizes.min()} to {sizes.max()} per client"


def show_federation(console: Console, federation: Federation) -> None:
    """Print a summary of a federation."""
    console.print(federation.name, style="bold", end="")
    console.print(federation_line(federation).removeprefix(federation.name))
    if "model" in federation.facts:
        console.print(f"every client trains the model {federation.facts['model']}")
    if federation.affected_clients:
        console.print(f"the scenario affects {Names.of(federation).some_clients(federation.affected_clients)}")
    if federation.unseen:
        unseen = Names.of(federation).some_clients(sorted(federation.unseen))
        console.print(f"not trained, scored as new clients: {unseen}")


def show_trial(console: Console, trial: Trial, measure: Measure = ACCURACY) -> None:
    """Print a trial's strategy, its fitness or that it failed, and its other scores, bytes and simulated time."""
    differs = trial.own_fitness != trial.clean_fitness
    scores = {
        measure.name: trial.fitness,
        "on the clients' own data": trial.own_fitness if differs else None,
        "on uncorrupted data": trial.clean_fitness if differs else None,
        "mean score": None if measure.of == "mean" else trial.score,
        "global model": trial.global_accuracy,
        "new clients": trial.new_client_accuracy,
    }
    facts = {name: f"{score:.4f}" for name, score in scores.items() if score is not None}
    sent = {"down per round": trial.bytes_down, "up per round": trial.bytes_up}
    facts |= {name: decimal(round(count)) for name, count in sent.items() if count is not None}
    facts |= {"simulated time": seconds_text(sum(trial.rounds["seconds"]))} if "seconds" in trial.rounds else {}
    told = "failed" if trial.status == "failed" else ", ".join(f"{name} {text}" for name, text in facts.items())
    console.print(f"\n{trial_name(trial.spec, trial.selection)}: {told}")


def trial_name(spec: StrategySpec, selection: str | None) -> str:
    """Return the name of a trial, such as `fedadam(eta=0.1, selection=oort)`.

    Args:
        spec: The strategy.
        selection: The selection policy, including the study's if the strategy names none; None without one.
    """
    return str(spec if selection is None else spec.with_values({SELECTION: selection}))
