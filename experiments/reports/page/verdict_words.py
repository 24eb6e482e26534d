"""The verdict of a study in plain sentences, and the few numbers that matter, all out of its result and its log."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from fedscout.engine.data.names import Names
from fedscout.experiments.reports.page.study_files import StudyFiles
from fedscout.experiments.reports.page.study_tables import BeforeAndAfter, cost_table, fittest, policy_of, strategy_name
from fedscout.experiments.reports.trial_columns import bytes_text, seconds_text
from fedscout.search.confirmation.confirmation import Confirmation, reference_name
from fedscout.search.confirmation.intervals import PairedDifference

Words = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""Headline, sentences, and figures."""


def verdict(study: StudyFiles, clients: BeforeAndAfter | None = None) -> Words:
    """Return what to use, how much better and how sure, what it cost, and who loses by it where clients are given."""
    cost = _cost_figures(study)
    confirmation = study.confirmation
    if confirmation is None:
        headline, sentences = _unconfirmed(study)
        return headline, sentences, cost
    difference = confirmation.versus[confirmation.reference][confirmation.view]
    if confirmation.no_verdict:
        headline = f"No verdict: {confirmation.no_verdict}."
        return headline, (f"Measured: {confirmation.scores_text}.",), cost
    lead = (_difference_words(confirmation, difference), _certainty(confirmation, difference), *_losers(study, clients))
    measure, name = confirmation.measure, _reference(confirmation)
    pick, reference = map(measure.value, confirmation.means)
    scores = [(f"{measure.name} of {confirmation.contestants[0].strategy}", pick), (f"of {name}", reference)]
    if confirmation.guessing:
        scores.append(("of a constant answer", measure.value(confirmation.guessing)))
    figures = [*scores, ("difference", measure.told(difference.mean))]
    if difference.low is not None and difference.high is not None:
        ends = f"{measure.number(difference.low)} to {measure.number(difference.high)}"
        figures.append((f"95 % interval, {len(difference.differences)} fresh seeds", ends))
    return f"Use {confirmation.advised}.", (*lead, *confirmation.caveats), (*figures, *cost)


def _reference(confirmation: Confirmation) -> str:
    return reference_name(next(one for one in confirmation.contestants if one.role == confirmation.reference))


def _difference_words(confirmation: Confirmation, difference: PairedDifference) -> str:
    measure, name = confirmation.measure, confirmation.contestants[0].name
    reference = _reference(confirmation)
    seeds = len(difference.differences)
    measured = (
        f"{measure.told(difference.mean)} of {measure.name}" if measure.is_accuracy else measure.told(difference.mean)
    )
    words = {
        "better": f"It beats {reference} by {measured.lstrip('+')} on {seeds} seeds that the search never saw.",
        "no difference": f"The search's best, {name}, is not shown to differ: {measured} on {seeds} fresh seeds.",
        "worse": f"The search's best, {name}, is worse on {seeds} fresh seeds: {measured}.",
        "not confirmed": f"The search's best, {name}, was tried on {seeds} fresh seed alone: {measured}.",
    }
    return words[confirmation.verdict]


def _certainty(confirmation: Confirmation, difference: PairedDifference) -> str:
    if difference.low is None or difference.high is None:
        return "A single difference has no interval, so nothing is said of how sure this is."
    measure = confirmation.measure
    ends = f"{measure.number(difference.low)} to {measure.told(difference.high)}"
    holds = "holds zero" if difference.low <= 0 <= difference.high else "does not hold zero"
    if confirmation.design.same_rows:
        return f"The 95 % interval, {confirmation.design.wider_is}, is {ends}, which {holds}."
    return f"For new data from these clients the 95 % interval is {ends}, which {holds}."


def _losers(study: StudyFiles, clients: BeforeAndAfter | None) -> tuple[str, ...]:
    """Return who loses by the choice, in a sentence, where a choice is advised."""
    if clients is None or study.confirmation is None or study.confirmation.verdict != "better":
        return ()
    return (losers_sentence(study, clients),)


def losers_sentence(study: StudyFiles, clients: BeforeAndAfter) -> str:
    """Return which clients have less after the choice than before, the mean over seeds."""
    table, (before, _) = clients
    lost = table[table["change"] < 0].sort_values("change")
    if lost.empty:
        scored = "" if len(table) == len(study.federation.get("client_rows", table)) else " that was scored"
        holds = f"all {len(table)} have at least what {before} gave them, in the mean over seeds"
        return f"No client{scored} loses by it: {holds}."
    worst = lost.iloc[0]
    change = study.score_measure.told(float(worst["change"]))
    always = lost[lost["seeds_worse"] == lost["seeds"]]
    named = study.names.some_clients(sorted(int(client) for client in lost["client"]))
    names = f"{named[:1].upper()}{named[1:]}"
    if len(lost) == 1:
        return f"{names} loses by it: {change} in the mean, worse on {worst['worse']}."
    sure = study.names.some_clients([int(client) for client in always["client"]]) if len(always) else "none"
    always_told = f"on every seed that scores them: {sure}"
    most = study.names.one_client(int(worst["client"]))
    return f"{names} lose by it in the mean, {most} most of all ({change}); {always_told}."


def _unconfirmed(study: StudyFiles) -> tuple[str, tuple[str, ...]]:
    trials = study.trials[study.trials["status"] == "completed"]
    searched = trials[trials["phase"].isin(["search", "baseline", "train"])]
    if searched.empty:
        return "Nothing was trained yet.", ()
    best = fittest(searched)
    name, fitness = strategy_name(best), f"{study.measure.name} {best['fitness']:.4f}"
    if study.result is None and best["phase"] == "train":
        told = (f"It reached {fitness}, the mean of the last rounds.", *_chosen(best, study.names), *_simulated(best))
        return f"{name} was trained.", told
    if study.result is None:
        headline = f"Not finished: {name} is best so far."
        return headline, (f"It has {fitness} on the search's seed; the same command goes on.",)
    several = len(searched) > 1
    flattered = "the largest of several on one seed, which flatters it" if several else "on the search's one seed"
    return f"Best of the search: {name}.", (f"It has {fitness}, {flattered}; it was not tried on fresh seeds.",)


def _chosen(trial: Mapping[str, Any], names: Names) -> Iterator[str]:
    """Yield who chose the clients of a trial, and in how many rounds these trained; nothing without a policy."""
    policy, rounds = policy_of(trial), trial["client_rounds"]
    if policy is None or not isinstance(rounds, list):
        return
    idle = [client for client, count in zip(trial["client"], rounds, strict=True) if not count]
    told = (
        f"{policy} chose who trains: clients trained in {min(rounds)} to {max(rounds)} of {trial['num_rounds']} rounds"
    )
    yield told + (f", {names.some_clients(idle)} in none." if idle else ".")


def _simulated(trial: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the rounds of a trial took on the simulated clock; nothing without one."""
    if isinstance(trial["round_seconds"], list):
        yield f"Its rounds took {seconds_text(sum(trial['round_seconds']))} of simulated time."


def _cost_figures(study: StudyFiles) -> tuple[tuple[str, str], ...]:
    table = cost_table(study)
    if table.empty:
        return ()
    count, sent = int(table["trainings"].sum()), 1e6 * float(table["megabytes"].sum())
    told = f"{seconds_text(float(table['seconds'].sum()))} of training"
    told += f", {bytes_text(sent)} sent and received" if sent > 0 else ""
    return ((told, f"{count} training{'s' if count != 1 else ''}"),)
