"""Detailed console output of a study: diagnosis, advice, trials, tuning and confirmation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedscout.engine.data.federation import Names
from fedscout.experiments.reports.console import bytes_text, plain_table, seconds_text, show_path
from fedscout.experiments.reports.study_console import show_verdict
from fedscout.search.objective import ACCURACY, Measure, Objective
from fedscout.strategies.specification import SELECTION

if TYPE_CHECKING:
    from fedscout.detectors import HeterogeneityReport
    from fedscout.detectors.report import Verdict
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
    show_verdict(console, finished.outcome, finished.report)
    console.print()
    show_federation(console, finished.federation)
    for note in finished.document["dependence"]:
        console.print(f"  {note}")
    if finished.report is not None:
        show_report(console, finished.report)
    show_outcome(console, finished.outcome, finished.measure, finished.second_measure)
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
        table.add_row(_mark(verdict), verdict.sentence)
        if verdict.beside:
            table.add_row("", Text(verdict.beside, style="dim"))
    console.print(table)
    for sentence in report.beside:
        console.print(f"  {sentence}")
    for note in filter(None, (report.withholding, *report.notes)):
        console.print(f"  {note}")


def _mark(verdict: Verdict) -> Text:
    if not verdict.measured:
        return Text("?")
    return Text("!", style="red") if verdict.detected else Text("-", style="green")


def show_trials(
    console: Console,
    trials: Sequence[Trial],
    baseline: float | None,
    title: str = "Trials",
    measure: Measure = ACCURACY,
    second: Measure | None = None,
) -> None:
    """Print a table of trials; `second` is what the second of two objectives measures."""
    has_partial_trials = any(not trial.whole for trial in trials)
    against = "" if baseline is None else f"{measure.unit} vs. FedAvg"
    numbers = ["trial", "generation", *(["rounds"] if has_partial_trials else [])]
    columns = informative_columns([TrialLine.of_trial(trial, measure) for trial in trials], *_named(second))
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


def _named(second: Measure | None) -> tuple[str, ...]:
    return () if second is None else (second.name,)


def show_outcome(
    console: Console, outcome: StudyOutcome, measure: Measure = ACCURACY, second: Measure | None = None
) -> None:
    """Print the search, its winner and the confirmation."""
    if outcome.early_stopping_round is not None:
        rounds = outcome.early_stopping_round
        console.print(f"\nEarly stopping: FedAvg stopped after {rounds} rounds, and all configurations train as many.")
    show_trials(console, [outcome.baseline, *outcome.trials], outcome.baseline.fitness, measure=measure, second=second)
    if outcome.is_perfect:
        best = "classifies every test row correctly" if measure.is_accuracy else "has the best possible score"
        console.print(f"\nFedAvg {best}, so the search ended.")
    if outcome.front:
        title = "Pareto front: no other configuration is better in one objective and no worse in the other"
        show_trials(console, outcome.front, outcome.baseline.fitness, title, measure, second)
    if outcome.tuned:
        console.print()
        rates = ", ".join(_tuned_text(rate) for rate in outcome.tuned)
        cost = sum(len(rate.trials) for rate in outcome.tuned) - 1
        console.print(f"FedAvg by client learning rate, best first ({cost} additional trainings): {rates}")
    console.print()
    if outcome.best is None:
        console.print("No trial completed.", style="bold")
    elif outcome.best is outcome.baseline:
        console.print("FedAvg itself is the best of the search.", style="bold")
    else:
        console.print("Best of the search", style="bold", end=": ")
        console.print(f"{outcome.best.spec}, {outcome.best.fitness:.4f}")
    if outcome.confirmation is not None:
        show_confirmation(console, outcome.confirmation, measure, second)
    elif outcome.best is not None and outcome.best is not outcome.baseline:
        console.print("It was not confirmed on fresh seeds, as search.confirmation_seeds is 0.")


def _tuned_text(rate: TunedRate) -> str:
    count = len(rate.scores)
    over = f" over {count} seeds" if count > 1 else ""
    failed = f", failed on {rate.num_failures} of {count}" if rate.num_failures else ""
    return f"{rate.learning_rate:g}: {sum(rate.scores) / count:.4f}{over}{failed}"


def show_confirmation(
    console: Console, confirmation: Confirmation, measure: Measure = ACCURACY, second: Measure | None = None
) -> None:
    """Print the verdict on the fresh seeds, in both views if they differ."""
    import numpy as np

    from fedscout.search.confirmation.confirmation import difference_text

    clean = any(candidate.own != candidate.clean for candidate in confirmation.contestants)
    columns = informative_columns(
        [TrialLine.of_contestant(candidate) for candidate in confirmation.contestants], *_named(second)
    )
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


SCORE, GLOBAL, NEW_CLIENT = "mean score", "global model", "new client"
DOWN, UP = "down per round", "up per round"
SIMULATED, TO_TARGET = "simulated time", "time to target"


def trial_name(spec: StrategySpec, selection: str | None) -> str:
    """Return the name of a trial, such as `fedadam(eta=0.1, selection=oort)`.

    Args:
        spec: The strategy.
        selection: The selection policy, including the study's if the strategy names none; None without one.
    """
    return str(spec if selection is None else spec.with_values({SELECTION: selection}))


@dataclass(frozen=True)
class TrialLine:
    """The values of a table row; None where unknown.

    Attributes:
        own: Score of the model that a client would use.
        shared: Score of the global model; None where that is the model clients use.
        new_client: Score of the model for a client that never trained.
        bytes_down: Bytes sent to all clients of a round.
        bytes_up: Bytes sent by all clients of a round.
        has_own_score: Whether the own score has its own column, as the fitness is something else.
        second: Fitness by the second objective, if there are two.
        simulated_seconds: Simulated time of the rounds.
        seconds_to_target: Simulated time until the target was reached, if there is one.
    """

    own: float | None
    shared: float | None
    new_client: float | None
    bytes_down: float | None
    bytes_up: float | None
    has_own_score: bool = False
    second: float | None = None
    simulated_seconds: float | None = None
    seconds_to_target: float | None = None

    @classmethod
    def of_trial(cls, trial: Trial, measure: Measure = ACCURACY) -> TrialLine:
        """Return the values of a trial; a failed one has only bytes."""
        shared, new_client = trial.global_accuracy, trial.new_client_accuracy
        second = trial.objectives[1] if trial.objectives and trial.status == "completed" else None
        simulated = None if trial.round_seconds is None else sum(trial.round_seconds)
        to_target, has_own_score = _seconds_to_target(trial, measure.target), measure.of != "mean"
        sent = (trial.bytes_down, trial.bytes_up)
        return cls(trial.score, shared, new_client, *sent, has_own_score, second, simulated, to_target)

    @classmethod
    def of_contestant(cls, one: Candidate) -> TrialLine:
        """Return the values of a confirmation candidate, averaged over its seeds."""
        scores = (one.score or one.own, one.global_accuracy, one.new_client_accuracy)
        own, shared, new_client = (None if values is None else sum(values) / len(values) for values in scores)
        second = None if one.second is None else sum(one.second) / len(one.second)
        return cls(own, shared, new_client, one.bytes_down, one.bytes_up, one.score is not None, second)


def informative_columns(lines: Sequence[TrialLine], second: str = "second objective") -> dict[str, list[str]]:
    """Return the columns that carry information, by heading, with one cell per line.

    The score has a column where the fitness is something else. The global model has one where some clients use another
    model, new clients where there are some, bytes where lines differ or there is only one line, and time where there is
    a simulated clock.
    """
    columns: dict[str, list[str]] = {}
    if any(line.second is not None for line in lines):
        columns[second] = _cells([line.second for line in lines], _accuracy)
    if any(line.has_own_score for line in lines):
        columns[SCORE] = _cells([line.own for line in lines], _accuracy)
    if any(line.shared is not None for line in lines):
        columns[GLOBAL] = _cells([line.own if line.shared is None else line.shared for line in lines], _accuracy)
    if any(line.new_client is not None for line in lines):
        columns[NEW_CLIENT] = _cells([line.new_client for line in lines], _accuracy)
    sent = {(line.bytes_down, line.bytes_up) for line in lines} - {(None, None)}
    if len(sent) > 1 or len(lines) == len(sent) == 1:
        columns[DOWN] = _cells([line.bytes_down for line in lines], bytes_text)
        columns[UP] = _cells([line.bytes_up for line in lines], bytes_text)
    if any(line.simulated_seconds is not None for line in lines):
        columns[SIMULATED] = _cells([line.simulated_seconds for line in lines], seconds_text)
    if any(line.seconds_to_target is not None for line in lines):
        columns[TO_TARGET] = _cells([line.seconds_to_target for line in lines], seconds_text)
    return columns


def _seconds_to_target(trial: Trial, target: float | None) -> float | None:
    """Return the simulated seconds until a trial reached a target; None if it did not, or without a target."""
    if target is None or trial.round_seconds is None or not trial.num_rounds:
        return None
    reached = Objective("time_to_accuracy", trial.num_rounds, target).reached(trial.scores() or ())
    return None if reached is None else sum(trial.round_seconds[:reached])


def _accuracy(value: float) -> str:
    return f"{value:.4f}"


def _cells(values: Sequence[float | None], text: Callable[[float], str]) -> list[str]:
    return ["" if value is None else text(value) for value in values]
