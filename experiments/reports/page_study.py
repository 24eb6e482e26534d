"""Sections of a study's page: the verdict in sentences with key figures, and the diagnosis with charts.

Both are derived from the study's result and log.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import TITLES, CalibratedFinding, DetectorName, Finding, verdicts
from fedscout.engine.data.federation import Names
from fedscout.experiments.charts import FLAGGED, MOST_CLIENTS, NOT_FLAGGED, density, evidence, positions
from fedscout.experiments.reports.console import bytes_text, seconds_text
from fedscout.experiments.reports.page_tables import (
    BeforeAndAfter,
    Picture,
    Section,
    StudyFiles,
    Table,
    cost_table,
    fittest,
    policy_of,
    strategy_name,
)
from fedscout.search.confirmation.confirmation import Confirmation, reference_name
from fedscout.search.confirmation.intervals import PairedDifference

Words = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]
"""Headline, sentences, and figures."""


def verdict(study: StudyFiles, clients: BeforeAndAfter | None = None) -> Words:
    """Return recommendation, gain, certainty and cost, and which clients lose if their scores are given."""
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
        scores.append(("of a constant prediction", measure.value(confirmation.guessing)))
    figures = [*scores, ("difference", measure.told(difference.mean))]
    if difference.low is not None and difference.high is not None:
        ends = f"{measure.number(difference.low)} to {measure.number(difference.high)}"
        figures.append((f"95 % interval, {len(difference.differences)} fresh seeds", ends))
    return f"Use {confirmation.advised}.", (*lead, *confirmation.caveats), (*figures, *cost)


def _reference(confirmation: Confirmation) -> str:
    return reference_name(
        next(candidate for candidate in confirmation.contestants if candidate.role == confirmation.reference)
    )


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
        "not confirmed": f"The search's best, {name}, was evaluated on only {seeds} fresh seed: {measured}.",
    }
    return words[confirmation.verdict]


def _certainty(confirmation: Confirmation, difference: PairedDifference) -> str:
    if difference.low is None or difference.high is None:
        return "A single difference has no interval, so its uncertainty is unknown."
    measure = confirmation.measure
    ends = f"{measure.number(difference.low)} to {measure.told(difference.high)}"
    holds = "contains zero" if difference.low <= 0 <= difference.high else "excludes zero"
    if confirmation.design.same_rows:
        return f"The 95 % interval, {confirmation.design.wider_is}, is {ends}, which {holds}."
    return f"For new data from these clients the 95 % interval is {ends}, which {holds}."


def _losers(study: StudyFiles, clients: BeforeAndAfter | None) -> tuple[str, ...]:
    """Return a sentence on the clients that lose by the choice, if a choice is recommended."""
    if clients is None or study.confirmation is None or study.confirmation.verdict != "better":
        return ()
    return (losers_sentence(study, clients),)


def losers_sentence(study: StudyFiles, clients: BeforeAndAfter) -> str:
    """Return a sentence on the clients whose mean score over seeds is lower after the choice than before."""
    table, (before, _) = clients
    lost = table[table["change"] < 0].sort_values("change")
    if lost.empty:
        scored = "" if len(table) == len(study.federation.get("client_rows", table)) else " that was scored"
        holds = f"averaged over seeds, all {len(table)} score at least as high as with {before}"
        return f"No client{scored} has a lower score: {holds}."
    worst = lost.iloc[0]
    change = study.score_measure.told(float(worst["change"]))
    always = lost[lost["seeds_worse"] == lost["seeds"]]
    losing_clients = study.names.some_clients(sorted(int(client) for client in lost["client"]))
    names = f"{losing_clients[:1].upper()}{losing_clients[1:]}"
    if len(lost) == 1:
        return f"{names} has a lower mean score ({change}), worse on {worst['worse']}."
    always_losing = study.names.some_clients([int(client) for client in always["client"]]) if len(always) else "none"
    always_text = f"lower on every seed that scores them: {always_losing}"
    worst_client = study.names.one_client(int(worst["client"]))
    return f"{names} have lower mean scores, most of all {worst_client} ({change}); {always_text}."


def _unconfirmed(study: StudyFiles) -> tuple[str, tuple[str, ...]]:
    trials = study.trials[study.trials["status"] == "completed"]
    searched = trials[trials["phase"].isin(["search", "baseline", "train"])]
    if searched.empty:
        return "Nothing has been trained yet.", ()
    best = fittest(searched)
    name, fitness = strategy_name(best), f"{study.measure.name} {best['fitness']:.4f}"
    if study.result is None and best["phase"] == "train":
        sentences = (
            f"It reached {fitness}, the mean of the last rounds.",
            *_chosen(best, study.names),
            *_simulated(best),
        )
        return f"{name} was trained.", sentences
    if study.result is None:
        headline = f"Not finished: {name} is best so far."
        return headline, (f"It has {fitness} on the search's seed; run the same command to resume.",)
    several = len(searched) > 1
    caveat = "the largest of several on one seed and thus optimistic" if several else "on the search's only seed"
    return f"Best of the search: {name}.", (f"It has {fitness}, {caveat}; it was not evaluated on fresh seeds.",)


def _chosen(trial: Mapping[str, Any], names: Names) -> Iterator[str]:
    """Yield the client selection policy of a trial and the clients' numbers of rounds; nothing without a policy."""
    policy, rounds = policy_of(trial), trial["client_rounds"]
    if policy is None or not isinstance(rounds, list):
        return
    idle = [client for client, count in zip(trial["client"], rounds, strict=True) if not count]
    text = (
        f"{policy} selected the clients: each trained in {min(rounds)} to {max(rounds)} of {trial['num_rounds']} rounds"
    )
    yield text + (f"; {names.some_clients(idle)} never trained." if idle else ".")


def _simulated(trial: Mapping[str, Any]) -> Iterator[str]:
    """Yield the simulated duration of a trial's rounds; nothing without a simulated clock."""
    if isinstance(trial["round_seconds"], list):
        yield f"Its rounds took {seconds_text(sum(trial['round_seconds']))} of simulated time."


def _cost_figures(study: StudyFiles) -> tuple[tuple[str, str], ...]:
    table = cost_table(study)
    if table.empty:
        return ()
    count, sent = int(table["trainings"].sum()), 1e6 * float(table["megabytes"].sum())
    text = f"{seconds_text(float(table['seconds'].sum()))} of training"
    text += f", {bytes_text(sent)} sent and received" if sent > 0 else ""
    return ((text, f"{count} training{'s' if count != 1 else ''}"),)


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


def diagnosis(study: StudyFiles) -> Section:
    """Return the diagnosis section; it states why if detection did not run."""
    report = study.report
    if report is None:
        reason = "Detection did not run; fedscout run includes it, fedscout search and train do not."
        return Section("diagnosis", "Diagnosis", missing=(reason,))
    rows, pictures, missing = [], [], []
    for property_verdict in verdicts(report):
        finding = next(candidate for candidate in report.findings if candidate.name == property_verdict.name)
        answer = ("yes" if property_verdict.detected else "no") if property_verdict.measured else "not measured"
        flagged = ", ".join(map(study.names.client, property_verdict.decided_by.flagged_clients[:12])) or "none"
        rows.append(
            (
                TITLES[property_verdict.name],
                answer,
                flagged,
                _strength(property_verdict.decided_by),
                MEANINGS[property_verdict.name],
            )
        )
        picture = _evidence_picture(
            report, study.names, finding, property_verdict.decided_by, property_verdict.sentence
        )
        if picture is None:
            missing.append(property_verdict.sentence)
        else:
            pictures.append(picture)
        if property_verdict.name == "feature_skew":
            pictures += _centroids(report, study.names, property_verdict.decided_by)
            pictures += _density(report, study.names, property_verdict.decided_by)
            pictures += _shifts(report, study.names, property_verdict.decided_by)
    table = Table(
        ("property", "found", "clients", "strength", "what it means"), rows, ("found", "clients", "what it means")
    )
    sentences = (*report.beside, *filter(None, [report.withholding]), *report.notes)
    return Section("diagnosis", "Diagnosis", sentences, tuple(pictures), table, tuple(missing))


def _strength(found: Finding | CalibratedFinding) -> str:
    value = found.effect if isinstance(found, CalibratedFinding) else found.value
    return "" if value is None else f"{value:.3g}"


def _evidence_picture(
    report: HeterogeneityReport, names: Names, finding: Finding, decided: Finding | CalibratedFinding, sentence: str
) -> Picture | None:
    values = report.metrics.model_distances if finding.name == "outliers" else finding.client_values
    if not values:
        return None
    name, title = VALUES[finding.name]
    tested = decided.clients if isinstance(decided, CalibratedFinding) else {}
    rows = []
    for client, value in values.items():
        client_test = tested.get(client)
        why = (
            ""
            if client_test is None
            else f"{client_test.source}, effect {client_test.effect:.3g}, p = {client_test.p_value:.2g}"
        )
        flagged = _flag(client, decided)
        rows.append({"client": names.client(client), "value": value, "flagged": flagged, "why": why})
    threshold = None if finding.name == "outliers" or not finding.measured else finding.threshold
    line = "" if threshold is None else " Dashed: the published rule's threshold."
    remark = " Colour: the test's decision, which uses more than this value." if tested else ""
    if finding.name == "feature_skew" and report.label_skew.detected:
        remark += " Label skew alone also separates centroids."
    return Picture(name, f"{sentence}{line}{remark}", evidence(pd.DataFrame(rows), title, threshold))


def _centroids(report: HeterogeneityReport, names: Names, decided: Finding | CalibratedFinding) -> list[Picture]:
    caption = (
        "Mean of each client's rows on the first two principal axes of all rows, regardless of class; larger points "
        "have more rows. Different classes also separate clients here."
    )
    rows = _places(report, names, decided, report.centroids)
    chart = positions(rows, ("first principal axis", "second principal axis"))
    return [Picture("feature-centroids", caption, chart)] if len(rows) else []


def _shifts(report: HeterogeneityReport, names: Names, decided: Finding | CalibratedFinding) -> list[Picture]:
    """Return a chart of clients by class-conditional feature shift; empty if no two axes distinguish clients."""
    caption = (
        "Shift of each client's rows from the median client's rows of the same class, on the two axes on which clients "
        "differ most; in standard deviations, corrected for chance. Larger points have more rows."
    )
    rows = _places(
        report,
        names,
        decided,
        {client: shift for client, shift in report.feature_shifts.items() if len(shift) > 1},
    )
    chart = positions(rows, ("first shared axis", "second shared axis"))
    return [Picture("feature-shifts", caption, chart)] if len(rows) else []


def _places(
    report: HeterogeneityReport,
    names: Names,
    decided: Finding | CalibratedFinding,
    places: Mapping[int, Sequence[float]],
) -> pd.DataFrame:
    """Return one row per client with a position, as input of `positions`."""
    sizes = {facts.client: facts.num_rows for facts in report.clients}
    rows = [
        {
            "client": names.client(client),
            "x": place[0],
            "y": place[1],
            "rows": sizes.get(client, 0),
            "flagged": _flag(client, decided),
        }
        for client, place in places.items()
    ]
    return pd.DataFrame(rows)


def _density(report: HeterogeneityReport, names: Names, decided: Finding | CalibratedFinding) -> list[Picture]:
    histogram = report.density
    if histogram is None:
        return []
    filled = [bin_index for counts in histogram.counts.values() for bin_index, count in enumerate(counts) if count]
    displayed_bins = range(min(filled, default=0) - 1, max(filled, default=0) + 2)
    rows = [
        {
            "client": names.client(client),
            "value": histogram.start + (bin_index + 0.5) * histogram.width,
            "share": count / max(sum(counts), 1),
        }
        | {"flagged": _flag(client, decided)}
        for client, counts in list(histogram.counts.items())[:MOST_CLIENTS]
        for bin_index, count in enumerate(counts)
        if bin_index in displayed_bins
    ]
    caption = "Distribution of the feature with the largest variance, one line per client."
    if len(histogram.counts) > MOST_CLIENTS:
        caption += f" Only the first {MOST_CLIENTS} of {len(histogram.counts)} clients are shown."
    return [Picture("feature-density", caption, density(pd.DataFrame(rows), f"feature {histogram.feature}"))]


def _flag(client: int, decided: Finding | CalibratedFinding) -> str:
    return FLAGGED if client in decided.flagged_clients else NOT_FLAGGED
