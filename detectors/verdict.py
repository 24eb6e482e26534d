"""One verdict a property: the calibrated answer decides, the published rule stands beside it, with why they part.

Where a calibrated test of skew could not be made, or a report of an earlier version has none, the published rule
decides. Of outliers nothing is said then: the published rule names somebody nearly everywhere, and under label skew,
which is why that test most often can't be made, honest clients (`docs/detection.md`).
"""

from __future__ import annotations

from dataclasses import dataclass

from fedscout.detectors.report import (
    CalibratedFinding,
    DetectorName,
    Finding,
    HeterogeneityReport,
    name_clients,
    yes_no,
)


@dataclass(frozen=True)
class Verdict:
    """What is said of one property of a federation.

    Attributes:
        decided_by: The finding that decides.
        sentence: What it says, for people.
        beside: The published rule's answer in a line, and why it is another; empty where the published rule decides.
    """

    decided_by: Finding | CalibratedFinding
    sentence: str
    beside: str = ""

    @property
    def name(self) -> DetectorName:
        """The property."""
        return self.decided_by.name

    @property
    def detected(self) -> bool:
        """Whether the federation has the property."""
        return self.decided_by.detected

    @property
    def measured(self) -> bool:
        """Whether anything could be said."""
        return self.decided_by.measured


def deciding(report: HeterogeneityReport, published: Finding) -> Finding | CalibratedFinding:
    """Return the finding that decides on the property of a published one."""
    calibrated = report.calibrated_finding(published.name)
    if calibrated is None:
        return published
    return calibrated if calibrated.measured or published.name == "outliers" or not published.measured else published


def verdicts(report: HeterogeneityReport) -> tuple[Verdict, ...]:
    """Return the verdicts of a report, in the order in which they are told."""
    return tuple(_verdict(report, published) for published in report.findings)


def _verdict(report: HeterogeneityReport, published: Finding) -> Verdict:
    calibrated = report.calibrated_finding(published.name)
    if calibrated is None:
        return Verdict(published, published.sentence)
    tested = calibrated.sentence.replace(", calibrated:", ":", 1)
    if not calibrated.measured:
        if deciding(report, published) is calibrated:
            return Verdict(calibrated, tested, _published_line(published) if published.measured else "")
        reason = calibrated.sentence.partition("not measured; ")[2].rstrip(".")
        return Verdict(published, f"{published.sentence} By the published rule, as no test was possible: {reason}.")
    beside = _published_line(published)
    if published.measured and published.detected != calibrated.detected:
        reason = _why_published_only(report, calibrated) if published.detected else _why_tested_only(calibrated)
        beside += f" They part, as {reason}."
    return Verdict(calibrated, tested, beside)


def _published_line(finding: Finding) -> str:
    if finding.value is None:
        return "Published rule: not measured."
    flagged = f", {name_clients(finding.flagged_clients)}" if finding.flagged_clients else ""
    return f"Published rule: {yes_no(finding.detected)}, {finding.value:.3g} against {finding.threshold:.3g}{flagged}."


def _why_published_only(report: HeterogeneityReport, calibrated: CalibratedFinding) -> str:
    """Return why a published rule finds what the test does not."""
    skews = [found for name in ("label_skew", "feature_skew") if (found := report.calibrated_finding(name)) is not None]
    named = " and ".join(found.name.replace("_", " ") for found in skews if found.detected)
    if calibrated.name == "outliers":
        if named:
            return f"{named} alone makes honest clients train unlike models"
        return "it flags whoever is farthest in most repetitions, which somebody is among clients that are alike, too"
    if calibrated.name == "feature_skew" and report.label_skew.detected:
        return "skewed labels move a client's mean, while its rows are like the others' of the same class"
    if calibrated.p_value is not None and calibrated.p_value <= calibrated.rate:
        return "the difference is beyond chance and too small to matter"
    return "clients that are alike differ as much by chance, with so few rows"


def _why_tested_only(calibrated: CalibratedFinding) -> str:
    """Return why a test finds what the published rule does not."""
    if calibrated.name == "outliers":
        sources = {calibrated.clients[client].source for client in calibrated.flagged_clients}
        if sources == {"labels"}:
            return "labels that the others contradict need not move a client's model far"
        return "the rule asks for a place among the farthest tenth in most repetitions, the test for a certain distance"
    if calibrated.name == "feature_skew":
        return "the shift lies off the two axes that the rule looks at, or is short in their unit, and yet is certain"
    return "the divergence is below the rule's threshold and yet beyond chance"
