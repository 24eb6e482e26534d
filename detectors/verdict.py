"""One verdict a property: the calibrated answer decides, the published rule stands beside it, with why they disagree.

Where a calibrated test could not be made, the property is not measured, whatever the published rule says: it ignores
classes, so that it finds feature skew under label skew alone, and it names honest clients as outliers there; label skew
is why these tests most often can't be made (`docs/detection.md`). Clients that play episodes are not tested for skew;
the published rules do not measure it there, either.
"""

from __future__ import annotations

from dataclasses import dataclass

from fedscout.detectors.report import (
    CalibratedFinding,
    DetectorName,
    Finding,
    HeterogeneityReport,
    yes_no,
)
from fedscout.engine.data.names import Names


@dataclass(frozen=True)
class Verdict:
    """What is said of one property of a federation.

    Attributes:
        decided_by: The finding that decides.
        sentence: What it says, for people.
        beside: The published rule's answer in a line, and why it is another; empty where nothing was measured, or the
            calibrated test was not asked.
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
    """Return the finding that decides on the property of a published one: the calibrated one, wherever it was asked."""
    return report.calibrated_finding(published.name) or published


def verdicts(report: HeterogeneityReport) -> tuple[Verdict, ...]:
    """Return the verdicts of a report, in the order in which they are told."""
    return tuple(_verdict(report, published) for published in report.findings)


def _verdict(report: HeterogeneityReport, published: Finding) -> Verdict:
    calibrated = report.calibrated_finding(published.name)
    if calibrated is None:
        return Verdict(published, published.sentence)
    tested = calibrated.sentence.replace(", calibrated:", ":", 1)
    beside = _published_line(published, report.names) if published.measured or calibrated.measured else ""
    if published.measured and calibrated.measured and published.detected != calibrated.detected:
        reason = _why_published_only(report, calibrated) if published.detected else _why_tested_only(calibrated)
        beside += f" The two rules disagree: {reason}."
    return Verdict(calibrated, tested, beside)


def _published_line(finding: Finding, names: Names) -> str:
    if finding.value is None:
        return "Published rule: not measured."
    flagged = f", {names.some_clients(finding.flagged_clients)}" if finding.flagged_clients else ""
    return f"Published rule: {yes_no(finding.detected)}, {finding.value:.3g} against {finding.threshold:.3g}{flagged}."


def _why_published_only(report: HeterogeneityReport, calibrated: CalibratedFinding) -> str:
    """Return why a published rule finds what the test does not."""
    skews = [found for name in ("label_skew", "feature_skew") if (found := report.calibrated_finding(name)) is not None]
    named = " and ".join(found.name.replace("_", " ") for found in skews if found.detected)
    if calibrated.name == "outliers":
        if named:
            return f"under {named} honest clients train unlike models"
        return "the published rule flags the farthest client, and some client is farthest in any federation"
    if calibrated.name == "feature_skew" and report.label_skew.detected:
        return "label skew shifts a client's mean, but not the means of its classes"
    if calibrated.p_value is not None and calibrated.p_value <= calibrated.rate:
        return "the difference is significant, but below the smallest effect that counts"
    return "with so few rows, clients of one distribution differ as much by chance"


def _why_tested_only(calibrated: CalibratedFinding) -> str:
    """Return why a test finds what the published rule does not."""
    if calibrated.name == "outliers":
        sources = {calibrated.clients[client].source for client in calibrated.flagged_clients}
        if sources == {"labels"}:
            return "wrong labels need not move a client's model far"
        return "the published rule asks who is farthest in most repetitions, the test how far a model is"
    if calibrated.name == "feature_skew":
        return "the shift is significant, but small on the two principal axes of the published rule"
    return "the divergence is significant, but below the published threshold"
