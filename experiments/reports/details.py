"""Detailed console output of a study: diagnosis, advice, trials, tuning and confirmation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedscout.engine.data.federation import Names
from fedscout.experiments.reports.console import bytes_text, plain_table, seconds_text, show_path
from fedscout.experiments.reports.study_console import answer_of
from fedscout.search.objective import ACCURACY, Measure, Objective
from fedscout.strategies.specification import SELECTION

if TYPE_CHECKING:
    from fedscout.detectors import HeterogeneityReport
    from fedscout.engine.data.federation import Federation
    from fedscout.engine.trials.record import Trial
    from fedscout.experiments.studies.workflow import FinishedStudy
    from fedscout.search.config import View
    from fedscout.search.confirmation.confirmation import Candidate, Confirmation
    from fedscout.search.confirmation.runs import TunedRate
    from fedscout.search.study import StudyOutcome
    from fedscout.strategies import StrategySpec


def show_study(console: Console, finished: FinishedStudy) -> None:
    """Print all details of a study."""
    console.print("\nDetails", style="bold")
    show_federation(console, finished.federation)
    for note in finished.document["dependence"]:
        console.print(f"  {note}")
    if finished.report is not None:
        show_report(console, finished.report)
    show_outcome(console, finished.outcome, finished.measure)
    console.print()
    show_path(console, "Log of every trial", finished.folder / "trials", " (fedscout.read_trials reads it)")
    show_path(console, "Result", finished.folder / "result.json")


def federation_line(federation: Federation) -> str:
    """Return a one-line summary of a federation."""
    sizes, task = federation.partition.sizes, federation.task
    if task is not None:
        score = f"maximum {task.score_name} {task.largest_score:g}"
        return f"{federation.name}: reinforcement learning, {federation.num_classes} actions, {score}"
    predicted = federation.target_name
    task_text = f"regression target {predicted}" if predicted else f"{federation.num_classes} classes"
    return f"{federation.name}: {sizes.sum()} rows, {task_text}, {sizes.min()} to {sizes.max()} each"


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


def show_labels(console: Console, federation: Federation, trial: Trial, view: View) -> None:
    """Print which labels a trial is scored against, if a scenario changed some."""
    moved: dict[int, int] = federation.facts.get("moved_labels", {})
    if not moved or trial.status == "failed":
        return
    num_rows = federation.partition.sizes.sum()
    clients = Names.of(federation).some_clients(sorted(moved))
    observed_labels = f"the clients' own labels ({sum(moved.values())} of {num_rows} are wrong, at {clients})"
    against, other = (
        (observed_labels, "the correct labels") if view == "own" else ("the correct labels", observed_labels)
    )
    score = trial.clean_fitness if view == "own" else trial.own_fitness
    console.print(f"The score is computed against {against}. Against {other}, it is {score:.4f}.")


def show_report(console: Console, report: HeterogeneityReport) -> None:
    """Print the diagnosis: one verdict per property, with the published rule below in dim text."""
    from fedscout.detectors.report import verdicts

    console.print("\nDiagnosis", style="bold")
    table = plain_table(show_header=False, padding=(0, 1, 0, 0))
    for verdict in verdicts(report):
        answer, style = answer_of(verdict)
        table.add_row(Text(answer, style=style), verdict.sentence)
        if verdict.beside:
            table.add_row("", Text(verdict.beside, style="dim"))
    console.print(table)
    for sentence in report.beside:
        console.print(f"  {sentence}")
    for note in filter(None, (report.withholding, *report.notes)):
        console.print(f"  {note}")


def show_trials(
    console: Console,
    trials: Sequence[Trial],
    baseline: float | None,
    title: str = "Trials",
    measure: Measure = ACCURACY,
) -> None:
    """Print a table of trials."""
    has_partial_trials = any(not trial.whole for trial in trials)
    against = "" if baseline is None else f"{measure.unit} vs. FedAvg"
    numbers = ["trial", "generation", *(["rounds"] if has_partial_trials else [])]
    columns = informative_columns([trial_values(trial, measure) for trial in trials])
    headings = [measure.name, against, *columns]
    table = plain_table(*numbers, "strategy", *headings, title=title, numbers=(*numbers, *headings))
    for index, trial in enumerate(trials):
        more = [cells[index] for cells in columns.values()]
        generation = str(trial.generation) if trial.generation else "-"
        rounds = [str(trial.num_rounds)] if has_partial_trials else []
        first = [str(trial.trial), generation, *rounds, trial_name(trial.spec, trial.selection)]
        if trial.status == "failed":
            table.add_row(*first, "failed", (trial.error or "")[:60], *more)
            continue
        compared = baseline is not None and trial.phase != "baseline" and trial.whole
        gain = measure.number(trial.fitness - (baseline or 0.0)) if compared else ""
        table.add_row(*first, f"{trial.fitness:.4f}", gain, *more)
    console.print()
    console.print(table)


def show_outcome(console: Console, outcome: StudyOutcome, measure: Measure = ACCURACY) -> None:
    """Print the search and the confirmation; the screen above has the verdict."""
    show_trials(console, [outcome.baseline, *outcome.trials], outcome.baseline.fitness, measure=measure)
    if outcome.is_perfect:
        best = "classifies every test row correctly" if measure.is_accuracy else "has the best possible score"
        console.print(f"\nFedAvg {best}, so the search ended.")
    if outcome.tuned:
        console.print()
        rates = ", ".join(_tuned_text(rate) for rate in outcome.tuned)
        cost = sum(len(rate.trials) for rate in outcome.tuned) - 1
        console.print(f"FedAvg by client learning rate, best first ({cost} additional trainings): {rates}")
    if outcome.confirmation is not None:
        show_confirmation(console, outcome.confirmation, measure)


def _tuned_text(rate: TunedRate) -> str:
    count = len(rate.scores)
    over = f" over {count} seeds" if count > 1 else ""
    failed = f", failed on {rate.num_failures} of {count}" if rate.num_failures else ""
    return f"{rate.learning_rate:g}: {sum(rate.scores) / count:.4f}{over}{failed}"


def show_confirmation(console: Console, confirmation: Confirmation, measure: Measure = ACCURACY) -> None:
    """Print the verdict on the fresh seeds, in both views if they differ."""
    import numpy as np

    from fedscout.search.confirmation.confirmation import difference_text

    clean = any(candidate.own != candidate.clean for candidate in confirmation.contestants)
    columns = informative_columns([candidate_values(candidate) for candidate in confirmation.contestants])
    numbers = ["learning rate", measure.name, *(["on clean data"] if clean else []), *columns]
    table = plain_table("", "strategy", *numbers, numbers=numbers, title="Confirmation on fresh seeds", padding=(0, 1))
    for index, candidate in enumerate(confirmation.contestants):
        views = [candidate.own, candidate.clean] if clean else [candidate.own]
        spread = [f"{np.mean(scores):.4f} ± {np.std(scores, ddof=1) if len(scores) > 1 else 0:.4f}" for scores in views]
        more = [cells[index] for cells in columns.values()]
        table.add_row(candidate.role, candidate.name, f"{candidate.learning_rate:g}", *spread, *more)
    console.print()
    console.print(table)
    for role, sides in confirmation.versus.items():
        for view in ("own", "clean") if clean else ("own",):
            name = f"challenger minus {role}" + (f", {view} data" if clean else "")
            console.print(f"{name}: {difference_text(sides[view], measure, confirmation.design)}")
    for rival in confirmation.rivals:
        status = "dropped" if rival.dropped else "not dropped"
        console.print(
            f"challenger minus {rival.name} ({status}): {difference_text(rival.behind, measure, confirmation.design)}"
        )
    console.print(confirmation.sentence, style="bold")


def trial_name(spec: StrategySpec, selection: str | None) -> str:
    """Return the name of a trial, such as `fedadam(eta=0.1, selection=oort)`.

    Args:
        spec: The strategy.
        selection: The selection policy, including the study's if the strategy names none; None without one.
    """
    return str(spec if selection is None else spec.with_values({SELECTION: selection}))


def _score_text(value: float) -> str:
    return f"{value:.4f}"


DOWN, UP = "down per round", "up per round"
INFORMATIVE: Mapping[str, Callable[[float], str]] = {
    "mean score": _score_text,
    "global model": _score_text,
    "new client": _score_text,
    DOWN: bytes_text,
    UP: bytes_text,
    "simulated time": seconds_text,
    "time to target": seconds_text,
}
"""Format of each column."""

Values = Mapping[str, float | None]
"""The values of a table row by column; None where unknown. `own` is the score of the model that a client would use."""


def trial_values(trial: Trial, measure: Measure = ACCURACY) -> Values:
    """Return the values of a trial; a failed one has only bytes."""
    return {
        "mean score": None if measure.of == "mean" else trial.score,
        "own": trial.score,
        "global model": trial.global_accuracy,
        "new client": trial.new_client_accuracy,
        DOWN: trial.bytes_down,
        UP: trial.bytes_up,
        "simulated time": None if trial.round_seconds is None else sum(trial.round_seconds),
        "time to target": _seconds_to_target(trial, measure.target),
    }


def candidate_values(candidate: Candidate) -> Values:
    """Return the values of a confirmation candidate, averaged over its seeds."""
    scores = {
        "mean score": candidate.score,
        "own": candidate.score or candidate.own,
        "global model": candidate.global_accuracy,
        "new client": candidate.new_client_accuracy,
    }
    means = {name: None if values is None else sum(values) / len(values) for name, values in scores.items()}
    return {**means, DOWN: candidate.bytes_down, UP: candidate.bytes_up}


def informative_columns(rows: Sequence[Values]) -> dict[str, list[str]]:
    """Return the columns that carry information, by heading, with one cell per row.

    The score has a column where the fitness is something else. The global model has one where some clients use another
    model, new clients where there are some, bytes where rows differ or there is only one row, and time where there is
    a simulated clock.
    """
    sent = {(row[DOWN], row[UP]) for row in rows} - {(None, None)}
    hidden = () if len(sent) > 1 or len(rows) == len(sent) == 1 else (DOWN, UP)
    columns: dict[str, list[str]] = {}
    for heading, text in INFORMATIVE.items():
        values = [row.get(heading) for row in rows]
        if heading in hidden or all(value is None for value in values):
            continue
        if heading == "global model":
            values = [row["own"] if value is None else value for row, value in zip(rows, values, strict=True)]
        columns[heading] = ["" if value is None else text(value) for value in values]
    return columns


def _seconds_to_target(trial: Trial, target: float | None) -> float | None:
    """Return the simulated seconds until a trial reached a target; None if it did not, or without a target."""
    if target is None or trial.round_seconds is None or not trial.num_rounds:
        return None
    reached = Objective("time_to_accuracy", trial.num_rounds, target).reached(trial.scores() or ())
    return None if reached is None else sum(trial.round_seconds[:reached])
