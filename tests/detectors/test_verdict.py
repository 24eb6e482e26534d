"""One verdict a property: who decides, what stands beside it, and why the rules part."""

from __future__ import annotations

import pytest

from fedscout.detectors import CalibratedFinding, ClientEvidence, HeterogeneityReport
from fedscout.detectors.report import DetectorName
from fedscout.detectors.verdict import Verdict, verdicts
from tests.detectors.detection.test_detect import report_of
from tests.detectors.federations import FlipLabels, federation, gaussian_clients


@pytest.fixture(scope="module")
def report() -> HeterogeneityReport:
    return report_of(federation(gaussian_clients([150] * 4), transforms={2: (FlipLabels(),)}))


def changed(
    report: HeterogeneityReport, name: DetectorName, published: bool, calibrated: CalibratedFinding | None
) -> Verdict:
    """Return the verdict on one property after the published rule's answer and the calibrated finding are replaced."""
    finding = getattr(report, name).model_copy(update={"detected": published, "value": 0.5})
    others = [found for found in report.calibrated if found.name != name]
    found = report.model_copy(
        update={name: finding, "calibrated": tuple(others if calibrated is None else [*others, calibrated])}
    )
    return next(verdict for verdict in verdicts(found) if verdict.name == name)


def finding_of(name: DetectorName, p_value: float, detected: bool) -> CalibratedFinding:
    evidence = ClientEvidence(source="labels", p_value=p_value, effect=0.5, flagged=detected)
    return CalibratedFinding(
        name=name,
        rate=0.0167,
        p_value=p_value,
        effect=0.5,
        detected=detected,
        flagged_clients=(2,) if detected else (),
        clients={2: evidence},
        sentence="Title, calibrated: what was found.",
    )


def test_there_is_one_verdict_a_property_and_the_test_decides(report: HeterogeneityReport) -> None:
    found = {verdict.name: verdict for verdict in verdicts(report)}
    assert list(found) == ["label_skew", "feature_skew", "outliers"]
    assert found["outliers"].detected
    assert found["outliers"].decided_by.flagged_clients == (2,)
    assert all("calibrated" not in verdict.sentence for verdict in found.values())
    assert all(verdict.beside.startswith("Published rule: ") for verdict in found.values())


@pytest.mark.parametrize(
    ("name", "p_value", "detected", "reason"),
    [
        ("label_skew", 0.3, False, "differ as much by chance"),
        ("label_skew", 0.001, False, "too small to matter"),
        ("label_skew", 0.001, True, "below the rule's threshold"),
        ("feature_skew", 0.3, False, "differ as much by chance"),
        ("feature_skew", 0.001, True, "off the two axes"),
        ("outliers", 0.3, False, "whoever is farthest"),
        ("outliers", 0.001, True, "labels that the others contradict"),
    ],
)
def test_where_the_rules_part_it_is_said_why(
    report: HeterogeneityReport, name: DetectorName, p_value: float, detected: bool, reason: str
) -> None:
    calibrated = finding_of(name, p_value, detected)
    parted = changed(report, name, not detected, calibrated)
    assert parted.detected == detected
    assert parted.sentence == "Title: what was found."
    assert f"Published rule: {'no' if detected else 'yes'}, 0.5 against " in parted.beside
    assert reason in parted.beside
    assert "They part" not in changed(report, name, detected, calibrated).beside


def test_skew_is_why_honest_models_differ(report: HeterogeneityReport) -> None:
    skewed = report.model_copy(update={"calibrated": (finding_of("label_skew", 0.001, True), *report.calibrated[1:])})
    assert "label skew alone" in changed(skewed, "outliers", True, finding_of("outliers", 0.3, False)).beside


def test_without_a_test_nobody_is_called_an_outlier(report: HeterogeneityReport) -> None:
    verdict = changed(report, "outliers", True, CalibratedFinding.unmeasured("outliers", 0.0167, "there is label skew"))
    assert not verdict.detected
    assert not verdict.measured
    assert "not measured; there is label skew" in verdict.sentence
    assert verdict.beside.startswith("Published rule: yes")
    old = changed(report, "outliers", True, None)
    assert old.detected


def test_without_a_test_of_skew_the_published_rule_decides(report: HeterogeneityReport) -> None:
    for calibrated in (None, CalibratedFinding.unmeasured("label_skew", 0.0167, "there are two clients")):
        verdict = changed(report, "label_skew", True, calibrated)
        assert verdict.detected
        assert verdict.beside == ""
        assert ("as no test was possible: there are two clients." in verdict.sentence) == (calibrated is not None)
