"""All that a study found, for who wants to know: diagnosis, advice, trials, tuning and confirmation, in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedscout.engine.data.federation import Names
from fedscout.experiments.reports.console import TrialLine, plain_table, show_path, told_columns, trial_name
from fedscout.experiments.reports.study_console import show_verdict
from fedscout.search.objective import ACCURACY, Measure

if TYPE_CHECKING:
    from fedscout.detectors import HeterogeneityReport
    from fedscout.detectors.report import Verdict
    from fedscout.engine.data.federation import Federation
    from fedscout.engine.trials.record import Trial
    from fedscout.experiments.studies.workflow import FinishedStudy
    from fedscout.search.config import View
    from fedscout.search.confirmation.confirmation import Confirmation
    from fedscout.search.confirmation.runs import TunedRate
    from fedscout.search.recommenders.diagnosis import Alternative, Recommendation
    from fedscout.search.study import StudyOutcome
    from fedscout.search.warm_start import WarmStart


def show_study(console: Console, finished: FinishedStudy) -> None:
    """Print all that a study's screen rests on."""
    console.print("\nIn full", style="bold")
    show_verdict(console, finished.outcome, finished.report)
    console.print()
    show_federation(console, finished.federation)
    for note in finished.document["dependence"]:
        console.print(f"  {note}")
    if finished.report is not None:
        show_report(console, finished.report)
    show_outcome(console, finished.outcome, finished.measure, finished.second_measure)
    show_seconds(console, finished.document["timings"]["seconds"])
    console.print()
    show_path(console, "Log of every trial", finished.folder / "trials", " (pandas.read_parquet reads the folder)")
    show_path(console, "Result", finished.folder / "result.json")


def federation_line(federation: Federation) -> str:
    """Return what was built in a line."""
    sizes, task = federation.partition.sizes, federation.task
    if task is not None:
        score = f"{task.score_name} {task.largest_score:g} at most"
        return f"{federation.name}: every client plays; {federation.num_classes} actions, {score}"
    predicted = federation.target_name
    what = f"predicts {predicted}" if predicted else f"{federation.num_classes} classes"
    return f"{federation.name}: {sizes.sum()} rows, {what}, {sizes.min()} to {sizes.max()} each"


def show_federation(console: Console, federation: Federation) -> None:
    """Print what was built."""
    console.print(federation.name, style="bold", end="")
    console.print(federation_line(federation).removeprefix(federation.name))
    if "model" in federation.facts:
        console.print(f"every client trains the model {federation.facts['model']}")
    if federation.affected_clients:
        console.print(f"the scenario affects {Names.of(federation).some_clients(federation.affected_clients)}")
    if federation.unseen:
        unseen = Names.of(federation).some_clients(sorted(federation.unseen))
        console.print(f"never trained, and scored as new clients: {unseen}")


def show_labels(console: Console, federation: Federation, trial: Trial, view: View) -> None:
    """Print whose labels a trial is scored against, where a scenario moved some."""
    moved: dict[int, int] = federation.facts.get("moved_labels", {})
    if not moved or trial.status == "failed":
        return
    num_rows = federation.partition.sizes.sum()
    where = Names.of(federation).some_clients(sorted(moved))
    own = f"the clients' own labels, of which {sum(moved.values())} of {num_rows} are wrong, at {where}"
    against, other = (own, "the correct labels") if view == "own" else ("the correct labels", own)
    score = trial.clean_fitness if view == "own" else trial.own_fitness
    console.print(f"The score is counted against {against}. Against {other} it is {score:.4f}.")


def show_report(console: Console, report: HeterogeneityReport) -> None:
    """Print the diagnosis: one verdict a property, the published rule beside it in small."""
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
    """Print trials, one a line; `second` is what the second of two objectives measures."""
    rungs = any(not trial.whole for trial in trials)
    against = "" if baseline is None else f"{measure.unit} against FedAvg"
    numbers = ["trial", "generation", *(["rounds"] if rungs else [])]
    told = told_columns([TrialLine.of_trial(trial, measure) for trial in trials], *_named(second))
    headings = [measure.name, against, *told]
    table = plain_table(*numbers, "strategy", *headings, title=title, numbers=(*numbers, *headings))
    for index, trial in enumerate(trials):
        more = [cells[index] for cells in told.values()]
        generation = str(trial.generation) if trial.generation else "-"
        rounds = [str(trial.num_rounds)] if rungs else []
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


def show_warm_start(console: Console, found: WarmStart, measure: Measure = ACCURACY) -> None:
    """Print from which earlier studies a search started."""
    from fedscout.strategies import parse_strategy

    console.print("\nWarm start", style="bold")
    for note in found.notes:
        console.print(f"  {note}")
    for each in found.studies:
        told = each.note or f"distance {each.distance:.2f}" + ", of the same data" * each.same_data
        console.print(f"  {each.study}: {told}")
    for proposal in found.proposals:
        name = str(parse_strategy(proposal.strategy))
        console.print(f"  try {name}: {measure.told(proposal.gain)} in {proposal.study}")


def show_seconds(console: Console, seconds: Mapping[str, float]) -> None:
    """Print how long each stage of this run took; one that was read back is not among them."""
    told = ", ".join(f"{stage} {spent:.1f}" for stage, spent in seconds.items())
    console.print(f"\nSeconds of this run: {told}.")


def show_advice(console: Console, advice: Recommendation, first: Sequence[Alternative]) -> None:
    """Print what the diagnosis says without a trial, and what it made the search try first."""
    console.print("\nFrom the diagnosis", style="bold")
    console.print(f"  the rules' answer, which takes no trial: {advice.spec}. {advice.grounds[0].because}")
    for candidate in first:
        if candidate.spec != advice.spec:
            console.print(f"  try {candidate.spec}: {candidate.because}")


def show_one_shot(console: Console, found: Recommendation) -> None:
    """Print what was trained in place of a search, who recommended it, and why."""
    console.print("\nOne shot", style="bold")
    console.print(f"  {found.answered_by}")
    console.print(f"  {found.spec}")
    for ground in found.grounds:
        console.print(f"  {ground.rule}: {ground.because} [{ground.source}]")
    for note in found.notes:
        if note != found.instead_of_model:
            console.print(f"  {note}")


def show_outcome(
    console: Console,
    outcome: StudyOutcome,
    measure: Measure = ACCURACY,
    second: Measure | None = None,
) -> None:
    """Print the search, its winner and the confirmation."""
    if outcome.warm_start is not None:
        show_warm_start(console, outcome.warm_start, measure)
    asked = outcome.recommendation
    if asked is not None:
        show_one_shot(console, asked)
    if outcome.advice is not None and (asked is None or asked.source == "llm"):
        show_advice(console, outcome.advice, outcome.first_generation)
    if outcome.levelled is not None:
        console.print(
            f"\nFedAvg levels off, or may train no longer, after {outcome.levelled} rounds: all train so many."
        )
    show_trials(console, [outcome.baseline, *outcome.trials], outcome.baseline.fitness, measure=measure, second=second)
    if outcome.at_ceiling:
        best = "is right on every test row" if measure.is_accuracy else "has the best score there can be"
        console.print(f"\nFedAvg {best}: nothing can be gained, and the search ended.")
    if outcome.front:
        title = "Front: no other configuration is better by one objective and no worse by the other"
        show_trials(console, outcome.front, outcome.baseline.fitness, title, measure, second)
    if outcome.tuned:
        console.print()
        rates = ", ".join(_tuned_text(rate) for rate in outcome.tuned)
        cost = sum(len(rate.trials) for rate in outcome.tuned) - 1
        console.print(f"FedAvg by client learning rate, best first, for {cost} further trainings: {rates}")
    console.print()
    if outcome.best is None:
        console.print("No trial went through.", style="bold")
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
    console: Console,
    confirmation: Confirmation,
    measure: Measure = ACCURACY,
    second: Measure | None = None,
) -> None:
    """Print the fresh seeds' verdict, in both views where they differ."""
    import numpy as np

    from fedscout.search.confirmation.confirmation import difference_text

    clean = any(one.own != one.clean for one in confirmation.contestants)
    beside = told_columns([TrialLine.of_contestant(one) for one in confirmation.contestants], *_named(second))
    numbers = ["client rate", measure.name, *(["on clean data"] if clean else []), *beside]
    table = plain_table("", "strategy", *numbers, numbers=numbers, title="Confirmation on fresh seeds", padding=(0, 1))
    for index, one in enumerate(confirmation.contestants):
        views = [one.own, one.clean] if clean else [one.own]
        spread = [f"{np.mean(scores):.4f} ± {np.std(scores, ddof=1) if len(scores) > 1 else 0:.4f}" for scores in views]
        more = [cells[index] for cells in beside.values()]
        table.add_row(one.role, one.name, f"{one.learning_rate:g}", *spread, *more)
    console.print()
    console.print(table)
    for role, sides in confirmation.versus.items():
        for view in ("own", "clean") if clean else ("own",):
            name = f"challenger minus {role}" + (f", {view} data" if clean else "")
            console.print(f"{name}: {difference_text(sides[view], measure, confirmation.design)}")
    for rival in confirmation.rivals:
        told = "dropped" if rival.dropped else "still in the running"
        console.print(
            f"challenger minus {rival.name} ({told}): {difference_text(rival.behind, measure, confirmation.design)}"
        )
    console.print(confirmation.sentence, style="bold")
