"""Sections of a study's page: the verdict in sentences with key figures, and the diagnosis with charts.

Both are derived from the study's result and log.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import TITLES, CalibratedFinding, DetectorName, Finding, Verdict, verdicts
from fedscout.engine.data.federation import Names
from fedscout.engine.trials.record import Trial
from fedscout.experiments import charts
from fedscout.experiments.reports.console import bytes_text, seconds_text
from fedscout.experiments.reports.page_tables import (
    PARTS,
    BeforeAndAfter,
    Cost,
    Picture,
    Section,
    Table,
    completed,
    fittest,
    strategy_name,
)
from fedscout.experiments.reports.study_console import caveats, certainty
from fedscout.experiments.studies.result import StoredStudy
from fedscout.search.confirmation.confirmation import reference_name

Words = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""Headline, sentences, and figures."""


def verdict(study: StoredStudy, clients: BeforeAndAfter | None = None) -> Words:
    """Return recommendation, gain, certainty and cost, and which clients lose if their scores are given."""
    cost = _cost_figures(study)
    confirmation = study.confirmation
    if confirmation is None:
        headline, sentences = _unconfirmed(study)
        return headline, sentences, cost
    measure, difference = confirmation.measure, confirmation.difference
    scores = map(measure.value, confirmation.means)
    names = (f"{measure.name} of {confirmation.contestants[0].strategy}", f"of {reference_name(confirmation.baseline)}")
    figures = [*zip(names, scores, strict=True)]
    if confirmation.guessing:
        figures.append(("of a constant prediction", measure.value(confirmation.guessing)))
    figures.append(("difference", measure.told(difference.mean)))
    if difference.low is not None and difference.high is not None:
        ends = f"{measure.number(difference.low)} to {measure.number(difference.high)}"
        figures.append((f"95 % interval, {len(difference.differences)} fresh seeds", ends))
    losers = () if clients is None or confirmation.verdict != "better" else (losers_sentence(study, clients),)
    lead = (certainty(confirmation), *losers, *filter(None, [caveats(confirmation)]))
    return f"Use {confirmation.advised}.", lead, (*figures, *cost)


def losers_sentence(study: StoredStudy, clients: BeforeAndAfter) -> str:
    """Return a sentence on the clients whose mean score over seeds is lower after the choice than before."""
    table, (before, _) = clients
    lost = table[table["change"] < 0].sort_values("change")
    if lost.empty:
        return f"No client that was scored has a lower mean score than with {before}."
    worst, change = lost.iloc[0], study.score_measure.told(float(lost.iloc[0]["change"]))
    losing_clients = study.names.some_clients(sorted(int(client) for client in lost["client"]))
    verb = "has" if len(lost) == 1 else "have"
    largest = (
        f"the largest loss is {change} of {study.names.one_client(int(worst['client']))}, worse on {worst['worse']}"
    )
    return f"{losing_clients[:1].upper()}{losing_clients[1:]} {verb} a lower mean score than with {before}; {largest}."


def _unconfirmed(study: StoredStudy) -> tuple[str, tuple[str, ...]]:
    trials = completed(study, "search", "baseline", "train")
    if not trials:
        return "Nothing has been trained yet.", ()
    best = fittest(trials)
    name, fitness = strategy_name(best), f"{study.measure.name} {best.fitness:.4f}"
    if study.result is None and best.phase == "train":
        sentences = (
            f"It reached {fitness}, the mean of the last rounds.",
            *_chosen(best, study.names),
            *_simulated(best),
        )
        return f"{name} was trained.", sentences
    if study.result is None:
        headline = f"Not finished: {name} is best so far."
        return headline, (f"It has {fitness} on the search's seed; run the same command to resume.",)
    caveat = (
        "the largest of several on one seed and thus optimistic" if len(trials) > 1 else "on the search's only seed"
    )
    return f"Best of the search: {name}.", (f"It has {fitness}, {caveat}; it was not evaluated on fresh seeds.",)


def _chosen(trial: Trial, names: Names) -> Iterator[str]:
    """Yield the client selection policy of a trial and the clients' numbers of rounds; nothing without a policy."""
    rounds = trial.clients.get("rounds")
    if trial.selection is None or not rounds:
        return
    idle = [int(client) for client, count in zip(trial.clients["id"], rounds, strict=False) if not count]
    text = f"{trial.selection} selected the clients: each trained in {min(rounds)} to {max(rounds)} of "
    text += f"{trial.num_rounds} rounds"
    yield text + (f"; {names.some_clients(idle)} never trained." if idle else ".")


def _simulated(trial: Trial) -> Iterator[str]:
    """Yield the simulated duration of a trial's rounds; nothing without a simulated clock."""
    if seconds := trial.rounds.get("seconds"):
        yield f"Its rounds took {seconds_text(sum(seconds))} of simulated time."


def _cost_figures(study: StoredStudy) -> tuple[tuple[str, str], ...]:
    cost = Cost.of(study, *PARTS)
    if not cost.trainings:
        return ()
    text = f"{seconds_text(cost.seconds)} of training"
    text += f", {bytes_text(cost.bytes)} sent and received" if cost.bytes > 0 else ""
    return ((text, f"{cost.trainings} training{'s' if cost.trainings != 1 else ''}"),)


VALUES: dict[DetectorName, tuple[str, str]] = {
    "label_skew": ("label-divergences", "Jensen-Shannon divergence of labels"),
    "feature_skew": ("feature-distances", "distance of the centroid from the median centroid"),
    "outliers": ("model-distances", "distance of the model from the other clients' models"),
}
"""For each detector, the name of its chart and the value that the chart shows for each client."""

MEANINGS: dict[DetectorName, str] = {
    "label_skew": "clients hold different classes",
    "feature_skew": "rows of the same class look different",
    "outliers": "labels or models differ from those of other clients",
}


def diagnosis(study: StoredStudy) -> Section:
    """Return the diagnosis section; it states why if detection did not run."""
    report = study.report
    if report is None:
        reason = "Detection did not run; fedscout run includes it, fedscout search and train do not."
        return Section("diagnosis", "Diagnosis", missing=(reason,))
    rows, missing = [], []
    pictures: list[Picture] = []
    for verdict in verdicts(report):
        decided = verdict.decided_by
        value = decided.effect if isinstance(decided, CalibratedFinding) else decided.value
        answer = ("yes" if verdict.detected else "no") if verdict.measured else "not measured"
        flagged = ", ".join(map(study.names.client, decided.flagged_clients[:12])) or "none"
        strength = "" if value is None else f"{value:.3g}"
        rows.append((TITLES[verdict.name], answer, flagged, strength, MEANINGS[verdict.name]))
        evidence_pictures = [*_evidence(report, study.names, verdict)]
        pictures += evidence_pictures
        missing += [] if evidence_pictures else [verdict.sentence]
        if verdict.name == "feature_skew":
            pictures += _shifts(report, study.names, decided)
    headings = ("property", "found", "clients", "strength", "what it means")
    table = Table(headings, rows, ("found", "clients", "what it means"))
    sentences = (*report.beside, *filter(None, [report.withholding]), *report.notes)
    return Section("diagnosis", "Diagnosis", sentences, tuple(pictures), table, tuple(missing))


EVIDENCE = "Colour: the decision, which uses more than this value. Dashed: the published rule's threshold."


def _evidence(report: HeterogeneityReport, names: Names, verdict: Verdict) -> Iterator[Picture]:
    """Yield a chart of a detector's value for each client; nothing if it was not measured."""
    finding = next(finding for finding in report.findings if finding.name == verdict.name)
    is_of_models = finding.name == "outliers"
    values = report.metrics.model_distances if is_of_models else finding.client_values
    if not values:
        return
    decided = verdict.decided_by
    tested = decided.clients if isinstance(decided, CalibratedFinding) else {}
    why = {client: f"{t.source}, effect {t.effect:.3g}, p = {t.p_value:.2g}" for client, t in tested.items()}
    rows = [
        {"client": names.client(client), "value": value, "flagged": _flag(client, decided), "why": why.get(client, "")}
        for client, value in values.items()
    ]
    threshold = None if is_of_models or not finding.measured else finding.threshold
    name, title = VALUES[finding.name]
    yield Picture(name, f"{verdict.sentence} {EVIDENCE}", charts.evidence(pd.DataFrame(rows), title, threshold))


SHIFTS = (
    "Shift of each client's rows from the median client's rows of the same class, on the two axes on which clients "
    "differ most; in standard deviations, corrected for chance. Larger points have more rows."
)


def _shifts(report: HeterogeneityReport, names: Names, decided: Finding | CalibratedFinding) -> Iterator[Picture]:
    """Yield a chart of the clients' class-conditional shifts; nothing if they have fewer than two axes."""
    sizes = {facts.client: facts.num_rows for facts in report.clients}
    rows = [
        (names.client(client), shift[0], shift[1], sizes.get(client, 0), _flag(client, decided))
        for client, shift in report.feature_shifts.items()
        if len(shift) > 1
    ]
    if rows:
        places = pd.DataFrame(rows, columns=["client", "x", "y", "rows", "flagged"])
        chart = charts.positions(places, ("first shared axis", "second shared axis"))
        yield Picture("feature-shifts", SHIFTS, chart)


def _flag(client: int, decided: Finding | CalibratedFinding) -> str:
    return charts.FLAGGED if client in decided.flagged_clients else charts.NOT_FLAGGED
