"""The diagnosis on a study's page: each property's answer, and what it rests on as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from fedscout.detectors import HeterogeneityReport
from fedscout.detectors.report import TITLES, CalibratedFinding, DetectorName, Finding
from fedscout.detectors.verdict import verdicts
from fedscout.engine.data.names import Names
from fedscout.experiments.reports.page.page_parts import Picture, Section, Table
from fedscout.experiments.reports.page.pictures.detector_evidence import (
    FLAGGED,
    NOT_FLAGGED,
    density,
    evidence,
    positions,
)
from fedscout.experiments.reports.page.pictures.federation_map import MOST_CLIENTS
from fedscout.experiments.reports.page.study_files import StudyFiles

VALUES: dict[DetectorName, tuple[str, str]] = {
    "label_skew": ("label-divergences", "Jensen-Shannon divergence of labels"),
    "feature_skew": ("feature-distances", "distance of the centroid from the median one"),
    "outliers": ("model-distances", "distance of the model from the others'"),
}
"""Of each detector: its picture's name, and what the picture draws of each client."""

MEANINGS: dict[DetectorName, str] = {
    "label_skew": "clients hold different classes",
    "feature_skew": "rows of the same class look different",
    "outliers": "labels or models disagree with the others'",
}


def diagnosis(study: StudyFiles) -> Section:
    """Return the section; it says why where the detectors were not asked."""
    report = study.report
    if report is None:
        reason = "The detectors were not asked: fedscout run asks them, fedscout search and train do not."
        return Section("diagnosis", "Diagnosis", missing=(reason,))
    rows, pictures, missing = [], [], []
    for found in verdicts(report):
        finding = next(one for one in report.findings if one.name == found.name)
        answer = ("yes" if found.detected else "no") if found.measured else "not measured"
        flagged = ", ".join(map(study.names.client, found.decided_by.flagged_clients[:12])) or "none"
        rows.append((TITLES[found.name], answer, flagged, _strength(found.decided_by), MEANINGS[found.name]))
        picture = _evidence_picture(report, study.names, finding, found.decided_by, found.sentence)
        if picture is None:
            missing.append(found.sentence)
        else:
            pictures.append(picture)
        if found.name == "feature_skew":
            pictures += _centroids(report, study.names, found.decided_by)
            pictures += _density(report, study.names, found.decided_by)
            pictures += _shifts(report, study.names, found.decided_by)
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
        own = tested.get(client)
        why = "" if own is None else f"{own.source}, effect {own.effect:.3g}, p = {own.p_value:.2g}"
        flagged = _flag(client, decided)
        rows.append({"client": names.client(client), "value": value, "flagged": flagged, "why": why})
    threshold = None if finding.name == "outliers" or not finding.measured else finding.threshold
    line = "" if threshold is None else " Dashed: the published rule's threshold."
    by = " Colour: the test's decision, which compares more than this value." if tested else ""
    if finding.name == "feature_skew" and report.label_skew.detected:
        by += " Skewed labels alone move centroids apart."
    return Picture(name, f"{sentence}{line}{by}", evidence(pd.DataFrame(rows), title, threshold))


def _centroids(report: HeterogeneityReport, names: Names, decided: Finding | CalibratedFinding) -> list[Picture]:
    caption = (
        "The mean of each client's rows on the two principal axes of all rows, whatever their class; the larger, the "
        "more rows. Clients that hold other classes lie apart here, too."
    )
    rows = _places(report, names, decided, report.centroids)
    chart = positions(rows, ("first principal axis", "second principal axis"))
    return [Picture("feature-centroids", caption, chart)] if len(rows) else []


def _shifts(report: HeterogeneityReport, names: Names, decided: Finding | CalibratedFinding) -> list[Picture]:
    """Return where clients' rows lie, rows of the same class compared; nothing where no two axes tell clients apart."""
    caption = (
        "Where clients' rows lie against the median client's, rows of the same class compared, on the two axes on "
        "which clients differ most; in standard deviations, what chance explains taken off. The larger, the more rows."
    )
    rows = _places(report, names, decided, {one.client: one.shift for one in report.features if len(one.shift) > 1})
    chart = positions(rows, ("first shared axis", "second shared axis"))
    return [Picture("feature-shifts", caption, chart)] if len(rows) else []


def _places(
    report: HeterogeneityReport,
    names: Names,
    decided: Finding | CalibratedFinding,
    places: Mapping[int, Sequence[float]],
) -> pd.DataFrame:
    """Return a row a client that has a place: what `positions` draws."""
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
    held = report.density
    if held is None:
        return []
    filled = [place for counts in held.counts.values() for place, count in enumerate(counts) if count]
    shown = range(min(filled, default=0) - 1, max(filled, default=0) + 2)
    rows = [
        {
            "client": names.client(client),
            "value": held.start + (place + 0.5) * held.width,
            "share": count / max(sum(counts), 1),
        }
        | {"flagged": _flag(client, decided)}
        for client, counts in list(held.counts.items())[:MOST_CLIENTS]
        for place, count in enumerate(counts)
        if place in shown
    ]
    caption = "How each client's values of the feature of largest variance are spread, a line a client."
    if len(held.counts) > MOST_CLIENTS:
        caption += f" The first {MOST_CLIENTS} of {len(held.counts)} clients."
    return [Picture("feature-density", caption, density(pd.DataFrame(rows), f"feature {held.feature}"))]


def _flag(client: int, decided: Finding | CalibratedFinding) -> str:
    return FLAGGED if client in decided.flagged_clients else NOT_FLAGGED
